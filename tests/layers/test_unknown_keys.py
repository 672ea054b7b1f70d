"""A smoke alarm: it tells of arguments that nobody declared, and does nothing else."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from layered import Declaring, Granting, call, declared, raising

from llm_agent import ToolAnswer, UnknownKeys
from llm_agent.errors import ConfigError
from llm_agent.tools import UnknownKeysFound

TEXT = {"type": "string"}


class Watched:
    """A layer that has listed, the provider behind it, and what it has told."""

    def __init__(self, *declarations: Any) -> None:
        self.provider = Declaring(*declarations)
        self.told: list[UnknownKeysFound] = []
        self.layer = UnknownKeys(self.provider, self.told.append)
        self.layer.tools_for_llm()

    def call(self, arguments: Any, name: str = "x", id: str = "c1") -> list[tuple[str, ...]]:
        """Make one call; returns what has been told so far."""
        self.layer.execute_tool_calls([call(name, arguments, id)])
        return [found.unknown_keys for found in self.told]


def test_what_is_no_provider_is_refused() -> None:
    """Naming the layer."""
    with pytest.raises(ConfigError, match=r"UnknownKeys: expected a tool provider .*, got int"):
        UnknownKeys(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_warn", [5, "print", lambda: None, lambda a, b: None])
def test_a_callback_that_cannot_be_called_with_one_argument_is_refused(on_warn: Any) -> None:
    """When the layer is made, not when there is smoke."""
    with pytest.raises(ConfigError, match="UnknownKeys: on_warn"):
        UnknownKeys(Declaring(), on_warn)


@pytest.mark.parametrize("on_warn", [print, lambda found, more=None: None, [].append, dict])
def test_a_callback_that_can_is_taken(on_warn: Any) -> None:
    """Built-ins too, which may not say what they take."""
    UnknownKeys(Declaring(), on_warn)


def test_an_unknown_key_is_told_with_what_is_declared() -> None:
    """Sorted on both sides, with the call's id."""
    watched = Watched(declared("x", {"path": TEXT, "depth": TEXT}))

    watched.call('{"path": "a", "zeal": 1, "mode": 2}', id="c7")

    found = UnknownKeysFound(tool="x", unknown_keys=("mode", "zeal"), declared_keys=("depth", "path"), id="c7")
    assert watched.told == [found]
    assert found.to_dict() == {
        "tool": "x",
        "unknown-keys": ["mode", "zeal"],
        "declared-keys": ["depth", "path"],
        "id": "c7",
    }


def test_calls_answers_and_declarations_are_the_same_objects() -> None:
    """Nothing is refused, stripped or rewritten."""
    request, answer = call("x", {"zeal": 1}), ToolAnswer("c1", "done")
    declaration = declared("x", {"path": TEXT})
    before = copy.deepcopy(declaration)
    provider = Declaring(declaration, answers=lambda _: [answer])
    layer = UnknownKeys(provider, lambda _: None)

    assert layer.tools_for_llm()[0] is declaration
    assert layer.execute_tool_calls([request])[0] is answer
    assert provider.calls[0] is request
    assert declaration == before


def test_a_tool_and_key_are_told_once() -> None:
    """A new key is news, and so is the same key of another tool."""
    watched = Watched(declared("x", {"path": TEXT}), declared("y", {"path": TEXT}))

    watched.call({"zeal": 1})
    watched.call({"zeal": 2})
    watched.call({"zeal": 3, "mode": 1})
    watched.call({"zeal": 4}, name="y")

    assert [(found.tool, found.unknown_keys) for found in watched.told] == [
        ("x", ("zeal",)),
        ("x", ("mode",)),
        ("y", ("zeal",)),
    ]


@pytest.mark.parametrize("arguments", [None, "", " ", "{}", '{"zeal":', "[1]", '"zeal"', {}, {"path": "a"}])
def test_what_has_no_unknown_key_is_quiet(arguments: Any) -> None:
    """Also what cannot be read: others say so."""
    assert Watched(declared("x", {"path": TEXT})).call(arguments) == []


def test_a_reason_is_always_welcome() -> None:
    """Whether or not a layer further in offers one."""
    assert Watched(declared("x", {"path": TEXT})).call({"reason": "why"}) == []


@pytest.mark.parametrize(
    "declaration",
    [
        declared("y", {"path": TEXT}),
        declared("x"),
        declared("x", {"path": TEXT}, additionalProperties=True),
        declared("x", {"path": TEXT}, additionalProperties={}),
        declared("x", {"path": TEXT}, additionalProperties={"type": "string"}),
        declared("x", {"path": TEXT}, patternProperties={"^z": {}}),
        declared("x", {"path": TEXT}, allOf=[{"properties": {"zeal": TEXT}}]),
        declared("x", {"path": TEXT}, **{"$ref": "#/$defs/x"}),
        {"type": "function", "function": {"name": "x"}},
        {"type": "function", "function": {"name": "x", "parameters": {"properties": ["path"]}}},
        "odd",
    ],
)
def test_a_tool_whose_keys_are_not_all_known_is_quiet(declaration: Any) -> None:
    """A false alarm teaches people not to listen."""
    assert Watched(declaration).call({"zeal": 1}) == []


def test_a_closed_schema_is_watched() -> None:
    """Said so or not: servers ignore what they do not know."""
    assert Watched(declared("x", {"path": TEXT}, additionalProperties=False)).call({"zeal": 1}) == [("zeal",)]


def test_the_last_listing_decides() -> None:
    """A key that has meanwhile been declared is none to tell of."""
    watched = Watched(declared("x", {"path": TEXT}))
    watched.provider.declarations = [declared("x", {"path": TEXT, "zeal": TEXT})]
    watched.layer.tools_for_llm()

    assert watched.call({"zeal": 1}) == []


def test_a_listing_that_fails_is_not_hidden_and_changes_nothing() -> None:
    """What was listed before is still watched."""
    watched = Watched(declared("x", {"path": TEXT}))
    watched.provider.declarations = ConnectionError("server gone")

    with pytest.raises(ConnectionError):
        watched.layer.tools_for_llm()

    assert watched.call({"zeal": 1}) == [("zeal",)]


def test_calls_before_a_listing_are_quiet() -> None:
    """Nothing is known of them."""
    told: list[Any] = []
    UnknownKeys(Declaring(declared("x", {"path": TEXT})), told.append).execute_tool_calls([call("x", {"zeal": 1})])

    assert told == []


def test_a_callback_that_raises_is_harmless(caplog: pytest.LogCaptureFixture) -> None:
    """The call goes on, and a log line says what happened."""

    def on_warn(_: object) -> None:
        raise RuntimeError("no bell")

    layer = UnknownKeys(Declaring(declared("x", {"path": TEXT})), on_warn)
    layer.tools_for_llm()

    assert not layer.execute_tool_calls([call("x", {"zeal": 1})])[0].is_error
    assert "no bell" in caplog.text


def test_one_unreadable_call_does_not_silence_the_others() -> None:
    """Each call is looked at by itself."""
    watched = Watched(declared("x", {"path": TEXT}))
    calls: list[Any] = [None, call("x", '{"zeal":'), call("x", {"zeal": 1}, "c3")]

    answers = watched.layer.execute_tool_calls(calls)

    assert [found.id for found in watched.told] == ["c3"]
    assert len(answers) == 3


def test_without_a_callback_there_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Which Python's logging writes to stderr where nobody has configured it."""
    layer = UnknownKeys(Declaring(declared("x", {"path": TEXT})))
    layer.tools_for_llm()

    layer.execute_tool_calls([call("x", {"zeal": 1}), call("x", {"zeal": 2})])

    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["call 'c1' of tool 'x' has arguments that are not declared: 'zeal'; it has 'path'"]


def test_a_dead_provider_is_one_error_per_call() -> None:
    """As for every layer: it may be the outermost one."""
    layer = UnknownKeys(Declaring(answers=raising(OSError("pipe"))))

    answers = layer.execute_tool_calls([call("x", id="a"), call("y", id="b")])

    assert [(answer.tool_call_id, answer.is_error) for answer in answers] == [("a", True), ("b", True)]
    assert layer.execute_tool_calls([]) == []


def test_threads_that_see_the_same_key_tell_it_once() -> None:
    """One layer may stand behind many runs."""
    watched = Watched(declared("x", {"path": TEXT}))
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(5)
        watched.call({"zeal": 1})

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    assert [found.unknown_keys for found in watched.told] == [("zeal",)]


def test_the_optional_parts_pass() -> None:
    """Grants and repeating are not this layer's business."""
    layer: Any = UnknownKeys(Granting())

    assert layer.grants() == [{"tool": "x", "decision": "allow"}]
    assert layer.idempotency_of("x") == "read-only"
