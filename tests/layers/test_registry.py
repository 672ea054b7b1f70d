"""One namespace over many providers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from layered import Declaring, Granting, call, declared, names, raising

from llm_agent import Registry, ToolAnswer, ToolRequest, notices, tool
from llm_agent.errors import ConfigError
from llm_agent.tools import Toolbox


class Half:
    def execute_tool_calls(self, calls: Any) -> list[str]:
        return ["1"]


@tool
def shout(text: str) -> str:
    return text.upper()


def plain() -> str:
    return "plain"


# -- adding and removing -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "prefix", "sep", "problem"),
    [
        (5, "fs", "_", "'fs': expected a tool provider .*, got int"),
        (Declaring, "fs", "_", "Declaring is a class"),
        (Half(), "fs", "_", r"'fs': a provider needs tools_for_llm\(\) too"),
        (Declaring(), "", "_", "a prefix must not be empty"),
        (Declaring(), "a b", "_", "a prefix is made of .*, got 'a b'"),
        (Declaring(), "fs\n", "_", "a prefix is made of"),
        (Declaring(), None, "_", "a prefix is made of .*, got None"),
        (Declaring(), "fs", ".", "a separator is made of .*, got '.'"),
        (Declaring(), "taken", "-", "the prefix 'taken' is taken, by Declaring"),
        (
            Declaring(),
            "taken_",
            "",
            "'taken_' with separator '' would begin its names as 'taken' with '_' does: 'taken_'",
        ),
    ],
)
def test_add_refuses_what_cannot_be_routed(provider: Any, prefix: Any, sep: str, problem: str) -> None:
    """The caller hears of it at once, and nothing has been added."""
    registry = Registry({"taken": Declaring()})

    with pytest.raises(ConfigError, match=problem):
        registry.add(provider, prefix, sep)

    assert [entry.prefix for entry in registry.providers()] == ["taken"]


def test_everything_with_two_methods_is_accepted_in_order() -> None:
    """Local, remote, another registry; the order of registration is kept."""
    providers: dict[str, Any] = {"local": Toolbox([shout]), "remote": Declaring(), "nested": Registry()}

    registry = Registry(providers).add(Granting(), "last", sep="")

    assert [(entry.prefix, entry.sep) for entry in registry.providers()] == [
        ("local", "_"),
        ("remote", "_"),
        ("nested", "_"),
        ("last", ""),
    ]
    assert registry.providers()[1].provider is providers["remote"]


@pytest.mark.parametrize("tools", [shout, [shout], (shout,), [shout, Declaring()]])
def test_functions_are_made_a_provider(tools: Any) -> None:
    """One, or a list of them and of providers."""
    registry = Registry({"my": tools})

    assert names(registry) == ["my_shout"]
    assert registry.execute_tool_calls([call("my_shout", {"text": "hey"})])[0].content == "HEY"


def test_remove_returns_the_provider_and_frees_the_prefix() -> None:
    """It is not closed: it may be registered elsewhere."""
    provider = Declaring(declared("x"))
    registry = Registry({"fs": provider})

    assert registry.remove("fs") is provider
    assert not registry.has_prefix("fs")
    assert names(registry.add(Declaring(), "fs")) == []


def test_removing_what_is_not_there_is_none() -> None:
    """And changes nothing."""
    registry = Registry({"fs": Declaring()})

    assert registry.remove("git") is None
    assert registry.has_prefix("fs")


# -- listing -------------------------------------------------------------------------------


def test_names_are_prefixed_and_nothing_else_is_changed() -> None:
    """Order kept, description and schema untouched, the provider's own objects unmodified."""
    declarations = [declared("b", {"p": {"type": "string"}}), declared("a")]
    before = copy.deepcopy(declarations)
    registry = Registry({"fs": Declaring(*declarations)}).add(Declaring(declared("b")), "git", "-")

    listed = registry.tools_for_llm()

    assert names(registry) == ["fs_b", "fs_a", "git-b"]
    assert listed[0]["function"]["parameters"] is declarations[0]["function"]["parameters"]
    assert {**listed[0]["function"], "name": "b"} == declarations[0]["function"]
    assert declarations == before


@pytest.mark.parametrize("odd", [{}, {"function": {"description": "no name"}}, "odd", {"function": {"name": 5}}])
def test_a_declaration_without_a_name_passes_untouched(odd: Any) -> None:
    """It is not dropped: that would hide a fault."""
    assert Registry({"fs": Declaring(odd)}).tools_for_llm()[0] is odd


def test_a_name_that_two_publish_is_refused_naming_both() -> None:
    """Vendors refuse the request; and only one of them would ever be called."""
    registry = Registry({"fs": Declaring(declared("ext_read"))}).add(Granting(declared("read")), "fs_ext")

    with pytest.raises(ConfigError, match=r"'fs_ext_read' is published by 'fs' \(Declaring\), .*'fs_ext' \(Granting\)"):
        registry.tools_for_llm()


def test_a_name_that_would_go_to_another_is_refused() -> None:
    """Also where the other one has no such tool: it would be listed and never run."""
    registry = Registry({"fs_ext": Declaring(), "fs": Declaring(declared("ext_read"))})

    with pytest.raises(ConfigError, match="names that begin with 'fs_ext_' go to 'fs_ext'"):
        registry.tools_for_llm()


def test_a_name_published_twice_by_one_provider_is_refused() -> None:
    """Whoever publishes it."""
    with pytest.raises(ConfigError, match=r"'fs' \(Declaring\) publishes 'fs_x' twice"):
        Registry({"fs": Declaring(declared("x"), declared("x"))}).tools_for_llm()


@pytest.mark.parametrize("name", ["read.file", "x" * 62, "lire_é", "a b", "x\n"])
def test_a_name_that_vendors_refuse_is_refused_when_listing(name: str) -> None:
    """Names are not repaired: the provider would not know them again."""
    with pytest.raises(ConfigError, match=r"'fs' .* publishes .* at most 64 characters"):
        Registry({"fs": Declaring(declared(name))}).tools_for_llm()


def test_the_longest_legal_name_is_listed() -> None:
    """64 characters, the prefix counted."""
    assert len(names(Registry({"fs": Declaring(declared("x" * 61))}))[0]) == 64


def test_a_provider_that_cannot_list_is_not_hidden() -> None:
    """A shorter catalogue would be a lie."""
    broken = Declaring()
    broken.declarations = ConnectionError("server gone")

    with pytest.raises(ConnectionError, match="server gone"):
        Registry({"fs": Declaring(declared("x")), "git": broken}).tools_for_llm()


# -- calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("fs", "fs_ext"), ("fs_ext", "fs")])
def test_the_longest_tag_wins_in_any_order(order: tuple[str, str]) -> None:
    """Each provider sees its own names only, with id and arguments as they were."""
    providers = {"fs": Declaring(), "fs_ext": Declaring()}
    registry = Registry({prefix: providers[prefix] for prefix in order})

    registry.execute_tool_calls([call("fs_read", '{"n": 1}', "a"), call("fs_ext_read", None, "b")])

    assert providers["fs"].calls == [call("read", '{"n": 1}', "a")]
    assert providers["fs_ext"].calls == [call("read", None, "b")]


def test_a_provider_is_asked_once_and_answers_stand_in_the_callers_order() -> None:
    """Its calls go together in the model's order; providers take turns as registered."""
    order: list[str] = []

    def noting(prefix: str) -> Any:
        def answers(calls: Sequence[ToolRequest]) -> list[str]:
            order.append(prefix)
            return [f"{prefix}:{one.name}" for one in calls]

        return answers

    git, fs = Declaring(answers=noting("git")), Declaring(answers=noting("fs"))
    calls = [call("fs_1", id="a"), call("git_2", id="b"), call("fs_3", id="c")]

    answers = Registry({"git": git, "fs": fs}).execute_tool_calls(calls)

    assert [(answer.tool_call_id, answer.content) for answer in answers] == [
        ("a", "fs:1"),
        ("b", "git:2"),
        ("c", "fs:3"),
    ]
    assert order == ["git", "fs"]
    assert [len(fs.batches), len(git.batches)] == [1, 1]


@pytest.mark.parametrize("name", ["read", "git_read", "FS_read", "fs_", "fs", "f"])
def test_an_unknown_name_is_an_error_that_names_it(name: str) -> None:
    """A bare tag is no tool's name either; the neighbours are unaffected."""
    provider = Declaring()

    answers = Registry({"fs": provider}).execute_tool_calls([call(name), call("fs_x", id="c2")])

    assert answers[0].is_error
    assert answers[0].content == notices.NO_PROVIDER.format(tool=name, tags="fs_")
    assert not answers[1].is_error
    assert [one.name for one in provider.calls] == ["x"]


def test_a_bare_tag_may_be_a_name_under_a_shorter_one() -> None:
    """`fs_` + `ext_` is published as what `fs_ext_` begins with, and reaches its owner."""
    fs, ext = Declaring(declared("ext_")), Declaring(declared("x"))
    registry = Registry({"fs": fs, "fs_ext": ext})

    assert names(registry) == ["fs_ext_", "fs_ext_x"]
    registry.execute_tool_calls([call("fs_ext_")])
    assert [one.name for one in fs.calls] == ["ext_"]


def test_a_provider_that_raises_costs_its_own_calls_only() -> None:
    """The answer names the prefix and says what happened."""
    registry = Registry({"fs": Declaring(answers=raising(OSError("disk"))), "git": Declaring()})

    answers = registry.execute_tool_calls([call("fs_x", id="a"), call("git_y", id="b"), call("fs_z", id="c")])

    assert [answer.is_error for answer in answers] == [True, False, True]
    assert answers[0].content == "The tool provider behind the prefix 'fs' failed: OSError: disk"


@pytest.mark.parametrize("raw", [None, "x", {"id": "a"}, {"id": "a", "function": "f"}, {"id": "a", "function": {}}])
def test_a_malformed_call_is_answered_and_reaches_nobody(raw: Any) -> None:
    """One answer per call, also for what is none."""
    provider = Declaring()

    answers = Registry({"fs": provider}).execute_tool_calls([raw, call("fs_x", id="b")])

    assert answers[0] == ToolAnswer("a" if isinstance(raw, dict) else "", notices.NAMELESS_CALL, is_error=True)
    assert answers[1].tool_call_id == "b"


def test_a_missing_id_is_answered_under_the_empty_one() -> None:
    """It is not dropped."""
    answers = Registry({"fs": Declaring()}).execute_tool_calls([{"function": {"name": "fs_x"}}])

    assert [(answer.tool_call_id, answer.content) for answer in answers] == [("", "x None")]


def test_a_provider_that_answers_short_is_filled_in() -> None:
    """And one that answers in bare text is read."""
    registry = Registry({"fs": Declaring(answers=lambda _: ["bare"])})

    answers = registry.execute_tool_calls([call("fs_x", id="a"), call("fs_y", id="b")])

    assert answers == [ToolAnswer("a", "bare"), ToolAnswer("b", notices.NO_RESULT, is_error=True)]


def test_no_calls_are_no_answers() -> None:
    """And nobody is asked."""
    provider = Declaring()

    assert Registry({"fs": provider}).execute_tool_calls([]) == []
    assert provider.batches == []


def test_registries_nest_each_taking_its_own_prefix() -> None:
    """A name is the path to its provider."""
    provider = Declaring(declared("x"))
    outer = Registry({"far": Registry({"fs": provider})})

    assert names(outer) == ["far_fs_x"]
    outer.execute_tool_calls([call("far_fs_x")])
    assert [one.name for one in provider.calls] == ["x"]


def test_the_callers_objects_stay_what_they_were() -> None:
    """Calls are renamed on copies."""
    raw = {"id": "a", "function": {"name": "fs_x", "arguments": {"deep": {"n": [1]}}}}
    before = copy.deepcopy(raw)

    def mutates(calls: Any) -> list[str]:
        calls[0].arguments["deep"]["n"].append(2)
        return ["1"]

    Registry({"fs": Declaring(answers=mutates)}).execute_tool_calls([raw])

    assert raw == before


def test_a_batch_under_way_is_not_disturbed_by_a_removal() -> None:
    """It works on what was registered when it began; the next one does not."""
    began, go_on = threading.Event(), threading.Event()

    def slow(calls: Sequence[ToolRequest]) -> list[str]:
        began.set()
        assert go_on.wait(5)
        return ["slow"]

    registry = Registry({"slow": Declaring(answers=slow), "fs": Declaring()})
    found: list[ToolAnswer] = []
    thread = threading.Thread(
        target=lambda: found.extend(registry.execute_tool_calls([call("slow_x", id="a"), call("fs_y", id="b")])),
        daemon=True,
    )
    thread.start()
    assert began.wait(5)
    registry.remove("fs")
    go_on.set()
    thread.join(5)

    assert [answer.content for answer in found] == ["slow", "y None"]
    assert registry.execute_tool_calls([call("fs_y")])[0].is_error


def test_prefixes_added_at_once_by_many_threads_are_all_there() -> None:
    """And one that all of them want is given once."""
    registry = Registry()
    refusals: list[ConfigError] = []
    start = threading.Barrier(8)

    def add(number: int) -> None:
        start.wait(5)
        registry.add(Declaring(), f"p{number}")
        try:
            registry.add(Declaring(), "wanted")
        except ConfigError as error:
            refusals.append(error)

    threads = [threading.Thread(target=add, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    assert sorted(entry.prefix for entry in registry.providers()) == sorted([*(f"p{n}" for n in range(8)), "wanted"])
    assert len(refusals) == 7


# -- the optional parts --------------------------------------------------------------------


class ScriptedGrants(Declaring):
    """Tells the grants it was made with."""

    def __init__(self, grants: list[Any]) -> None:
        super().__init__()
        self._grants = grants

    def grants(self) -> list[Any]:
        return self._grants


def test_grants_are_told_while_a_provider_has_some() -> None:
    """Of several, in the order of registration; what one has told, no other tells again."""
    registry: Any = Registry({"fs": Declaring()})
    assert not hasattr(registry, "grants")

    other = ScriptedGrants([{"tool": "y"}])
    registry.add(Granting(), "git").add(other, "web").add(Granting(), "log")
    assert registry.grants() == [{"tool": "x", "decision": "allow"}, {"tool": "y"}]

    registry.remove("git")
    registry.remove("log")
    registry.remove("web")
    assert not hasattr(registry, "grants")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("git_x", "read-only"), ("git_y", "unknown"), ("fs_x", "unknown"), ("nobody", "unknown"), ("git_", "unknown")],
)
def test_the_owner_says_what_repeating_a_call_would_do(name: str, expected: str) -> None:
    """Asked under its own name for the tool."""
    assert Registry({"git": Granting(), "fs": Declaring()}).idempotency_of(name) == expected
