"""A provider made of functions keeps the provider's contract."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from llm_agent import notices
from llm_agent.call_context import current_call
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ToolProvider
from llm_agent.testing.tools import call_context
from llm_agent.tools import Toolbox, tool


@tool(idempotency="read-only")
def read(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


def fail(message: str) -> None:
    raise LookupError(message)


def request(name: str, /, id: str = "c1", **arguments: Any) -> ToolRequest:
    return ToolRequest(id, name, arguments)


def on_a_thread(work: Callable[[], Any]) -> Any:
    """What *work* returns on a thread that is not the main one."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(5)
    return results[0]


def test_a_toolbox_is_a_provider() -> None:
    """It has the two methods of the port."""
    assert isinstance(Toolbox([read]), ToolProvider)


def test_declarations_cannot_be_damaged() -> None:
    """Every caller gets a copy of its own."""
    box = Toolbox([read])

    box.tools_for_llm()[0]["function"]["parameters"]["properties"].clear()

    assert list(box.tools_for_llm()[0]["function"]["parameters"]["properties"]) == ["path"]


def test_calls_are_answered_in_order() -> None:
    """One answer per call, with its id, whatever the others did."""
    answers = Toolbox([read, fail]).execute_tool_calls(
        [request("read", "a", path="1"), request("fail", "b", message="no"), request("read", "c", path="2")]
    )

    assert answers == [
        ToolAnswer("a", "content of 1"),
        ToolAnswer("b", "LookupError: no", is_error=True),
        ToolAnswer("c", "content of 2"),
    ]


def test_no_calls_have_no_answers() -> None:
    """An empty batch is an empty list."""
    assert Toolbox([read]).execute_tool_calls([]) == []


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    """The model learns what it could have called."""
    answer = Toolbox([read, fail]).execute_tool_calls([request("raed")])[0]

    assert answer.is_error
    assert answer.content == (
        "This call was not run: there is no tool named 'raed'. Did you mean read? The tools are: read, fail."
    )


def test_raw_calls_are_understood() -> None:
    """The chat-completions shape works as well as the value."""
    raw = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}

    assert Toolbox([read]).execute_tool_calls([raw]) == [ToolAnswer("c1", "content of x")]


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_nothing_a_tool_raises_ends_the_thread(failure: BaseException) -> None:
    """Not even what is meant to end a program."""

    def leave() -> None:
        raise failure

    answers = on_a_thread(lambda: Toolbox([leave]).execute_tool_calls([request("leave")]))

    assert answers[0].is_error
    assert answers[0].content.startswith(type(failure).__name__)


def test_ctrl_c_on_the_main_thread_is_the_users() -> None:
    """Where no engine calls a tool, a KeyboardInterrupt goes through."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Toolbox([interrupted]).execute_tool_calls([request("interrupted")])


def test_an_exception_without_words_is_named() -> None:
    """Its type says something; so does one whose text cannot be made."""

    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def silent() -> None:
        raise ValueError

    def speechless() -> None:
        raise Speechless

    answers = Toolbox([silent, speechless]).execute_tool_calls([request("silent"), request("speechless")])

    assert [answer.content.split(":")[0] for answer in answers] == ["ValueError", "Speechless"]


def test_two_tools_of_one_name_are_refused() -> None:
    """The error names both functions."""

    @tool(name="read")
    def other() -> None: ...

    with pytest.raises(ConfigError, match=r"test_toolbox\.read and .*other are both named 'read'"):
        Toolbox([read, other])


@pytest.mark.parametrize("functions", ["read", 5, read])
def test_what_is_no_list_is_refused(functions: Any) -> None:
    """A single function is not guessed to be a list."""
    with pytest.raises(ConfigError, match="Toolbox: expected a list"):
        Toolbox(functions)


def test_idempotency_is_what_the_author_said() -> None:
    """Unmarked and unknown tools are unknown."""
    box = Toolbox([read, fail])

    assert [box.idempotency_of(name) for name in ("read", "fail", "other")] == ["read-only", "unknown", "unknown"]


def test_each_call_of_a_group_is_the_current_one() -> None:
    """Within a group, every tool sees its own id and name."""
    seen: list[tuple[str, str]] = []

    def look() -> None:
        call = current_call()
        assert call is not None
        seen.append((call.id, call.name))

    with call_context(id="first", name="group"):
        Toolbox([look]).execute_tool_calls([request("look", "a"), request("look", "b")])
        after = current_call()

    assert seen == [("a", "look"), ("b", "look")]
    assert after is not None
    assert after.id == "first"


def test_a_cancelled_group_runs_no_further() -> None:
    """What has not begun when the call is cancelled is answered as not run."""
    cancelled = threading.Event()
    ran: list[int] = []

    def work(n: int) -> None:
        ran.append(n)
        cancelled.set()

    with call_context(cancelled=cancelled):
        answers = Toolbox([work]).execute_tool_calls([request("work", "a", n=1), request("work", "b", n=2)])

    assert ran == [1]
    assert answers[1] == ToolAnswer("b", notices.ABANDONED_CANCELLED, is_error=True)
