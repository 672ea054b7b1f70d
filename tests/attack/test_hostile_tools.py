"""Whatever a provider hands in, every call is answered, and nothing of the run is lost over it."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llm_agent.call_context import ToolCallContext, current_call
from llm_agent.cancel import CancelToken
from llm_agent.events import AskAnswered, AskPending, Log, ToolProgress, ToolResult
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Message, ToolAnswer, ToolRequest
from llm_agent.session.session import Session
from llm_agent.slot import Answered, Slot
from llm_agent.testing import FinishedRun, Gate, ScriptedBackend, call, finished

WAIT = 5.0


class Unreadable:
    """A value that answers no question about itself."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")

    def __float__(self) -> float:
        raise RuntimeError("no number")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Provider:
    """One tool `t`, whose provider call is the test's function."""

    def __init__(self, answer: Callable[[list[ToolRequest]], Any], tools: Any = None) -> None:
        self._answer = answer
        self._tools = [{"type": "function", "function": {"name": "t"}}] if tools is None else tools

    def tools_for_llm(self) -> Any:
        return self._tools

    def execute_tool_calls(self, calls: list[ToolRequest]) -> Any:
        return self._answer(calls)


def asked(answer: Callable[[list[ToolRequest]], Any], **options: Any) -> FinishedRun:
    loop = Loop(ScriptedBackend([call("t"), "done"]), provider=Provider(answer), session=Session.in_memory(), **options)
    done = finished(loop.run("go"))
    assert done.outcome.final == "done", done.outcome.error
    return done


def context() -> ToolCallContext:
    found = current_call()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ([Unreadable()], "<Unreadable without text>"),
        ([{"content": Unreadable()}], "<Unreadable without text>"),
        ([{"content": "x", "is_error": Unreadable()}], "x"),
        ([ToolAnswer("call_1", "x", Unreadable())], "x"),  # type: ignore[arg-type]  # what is tested
        (ToolAnswer("call_1", "alone"), "alone"),
        (b"bytes", "bytes"),
        ([b"bytes"], "bytes"),
    ],
)
def test_an_answer_of_a_hostile_type_is_an_answer(answer: Any, content: str) -> None:
    """It is read as far as it can be; the run does not die of it with the call unanswered."""
    done = asked(lambda calls: answer)

    assert done.of(ToolResult)[0].content == content
    assert not done.of(ToolResult)[0].is_error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Speechless()])
def test_whatever_a_provider_raises_is_an_error_answer(error: BaseException) -> None:
    """Also what is no `Exception`, and what has no words."""

    def fail(calls: list[ToolRequest]) -> Any:
        raise error

    result = asked(fail).of(ToolResult)[0]

    assert result.is_error
    assert type(error).__name__ in result.content


@pytest.mark.parametrize("tools", ["text", [1], [object()], {"name": "t"}])
def test_declarations_that_are_none_fail_the_run_and_say_so(tools: Any) -> None:
    """A catalogue that no server could read is not sent."""
    backend = ScriptedBackend(["never"])

    outcome = finished(Loop(backend, provider=Provider(lambda calls: [], tools)).run("go")).outcome

    assert "a declaration must be a mapping" in (outcome.error or "")
    assert not backend.requests


def test_what_a_tool_says_never_raises() -> None:
    """Progress and logs of any type; numbers that JSON has no word for are left out."""

    def say(calls: list[ToolRequest]) -> list[str]:
        context().progress(math.nan, math.inf, Unreadable())  # type: ignore[arg-type]  # what is tested
        context().progress(Unreadable())  # type: ignore[arg-type]  # as above
        context().log(Unreadable(), Unreadable())  # type: ignore[arg-type]  # as above
        return ["said"]

    done = asked(say)

    assert done.of(ToolResult)[0].content == "said"
    assert [(e.progress, e.total) for e in done.of(ToolProgress)] == [(0.0, None), (0.0, None)]
    assert done.of(Log)[0].data == "<Unreadable without text>"


def test_asks_and_answers_that_are_no_json_can_be_told() -> None:
    """The asker gets and gives the objects; the events have words for them."""
    answer = Unreadable()

    def ask(calls: list[ToolRequest]) -> list[str]:
        assert context().ask({"tool": 5, "what": answer}, lambda request: request["what"]) is answer
        return ["asked"]

    done = asked(ask)

    assert done.of(ToolResult)[0].content == "asked"
    assert done.of(AskPending)[0].to_dict()["request"]["what"] == "<Unreadable without text>"
    assert done.of(AskAnswered)[0].to_dict()["answer"] == "<Unreadable without text>"


def test_an_ask_that_is_no_mapping_is_refused_by_name() -> None:
    """The tool is told what was expected, and what came."""
    done = asked(lambda calls: context().ask("ok?", lambda request: "yes"))  # type: ignore[arg-type]  # what is tested

    assert "an ask's request must be a mapping, got str" in done.of(ToolResult)[0].content


# -- what never ends ---------------------------------------------------------------------------


def test_an_endless_generator_ends_with_the_wait_for_it() -> None:
    """At the deadline it is closed on its own thread: neither it nor its memory goes on for ever."""
    closed = threading.Event()

    def endless() -> Iterator[str]:
        try:
            while True:
                yield "more"
        finally:
            closed.set()

    done = asked(lambda calls: endless(), tool_deadline=0.05)

    assert "tool-abandoned" in done.kinds
    assert closed.wait(WAIT)


def test_endless_grants_end_with_the_wait_for_them() -> None:
    """After its second the generator is closed, and `drained` tells the truth."""
    closed = threading.Event()

    class Granting(Provider):
        def grants(self) -> Iterator[str]:
            try:
                while True:
                    yield "more"
            finally:
                closed.set()

    loop = Loop(ScriptedBackend(["done"]), provider=Granting(lambda calls: []), session=Session.in_memory())

    assert finished(loop.run("go")).outcome.ok
    assert closed.wait(WAIT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("leave", "code"), [("return", 0), ("exit", 3)])
def test_the_child_that_a_tool_forks_ends_when_it_comes_back(leave: str, code: int) -> None:
    """In the child nobody waits for an answer; it would hold what it inherited for ever."""
    pids: list[int] = []

    def fork(calls: list[ToolRequest]) -> list[str]:
        pid = os.fork()
        if pid == 0 and leave == "exit":
            sys.exit(3)
        pids.append(pid)
        return ["forked"]

    done = asked(fork)
    ended = threading.Event()
    status: list[int] = []

    def reap() -> None:
        status.append(os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]))
        ended.set()

    threading.Thread(target=reap, daemon=True).start()
    has_ended = ended.wait(WAIT)
    if not has_ended:
        os.kill(pids[0], 9)

    assert has_ended
    assert status == [code]
    assert done.of(ToolResult)[0].content == "forked"


# -- no thread to be had ----------------------------------------------------------------------


@pytest.fixture
def no_threads() -> Iterator[Callable[[bool], None]]:
    """Make the platform refuse new threads, and allow them again."""

    def refuse(is_refused: bool) -> None:
        threading.stack_size(1 << 46 if is_refused else 0)

    yield refuse
    threading.stack_size(0)


def test_a_slot_that_got_no_thread_gets_one_at_the_next_try(no_threads: Callable[[bool], None]) -> None:
    """A call is never put before a worker that does not exist: it would wait for ever."""
    slot = Slot("test-slot")
    no_threads(True)
    with pytest.raises(RuntimeError):
        slot.start(lambda: 1)
    no_threads(False)

    end = slot.start(lambda: 2).wait(CancelToken(), lambda: WAIT)

    slot.close()
    assert end == Answered(2)


@pytest.mark.usefixtures("no_wait")
def test_a_call_for_which_there_is_no_thread_is_answered(no_threads: Callable[[bool], None]) -> None:
    """It has not run; the model is told, and the run goes on once there are threads again."""
    gate = Gate()

    class Granting(Provider):
        reads = 0

        def grants(self) -> list[str]:
            self.reads += 1
            if self.reads == 2:  # behind the first call: the worker is given up, and no other to be had
                no_threads(True)
                gate.wait(WAIT)
            return []

    def recover(error_class: str, status: int | None) -> Any:
        no_threads(False)
        return "retry-same"

    ran: list[str] = []

    def tool(calls: list[ToolRequest]) -> list[str]:
        ran.extend(request.id for request in calls)
        return ["ok"]

    backend = ScriptedBackend([[call("t"), call("t")], "done"])
    loop = Loop(backend, provider=Granting(tool), session=Session.in_memory(), classify=recover)
    run = loop.run("go")
    run.result(WAIT)
    gate.open()
    done = finished(run)

    assert done.outcome.final == "done"
    assert ran == ["call_1"]
    assert "can't start new thread" in done.of(ToolResult)[1].content


# -- many calls ----------------------------------------------------------------------------------


def test_ten_thousand_calls_of_one_id_are_no_square() -> None:
    """Servers that give one id to every call cost no more than others; every call has its answer."""
    calls = tuple(ToolRequest("same", "t", f'{{"n":{n}}}') for n in range(10_000))
    backend = ScriptedBackend([[Delta(tool_calls=calls, finish_reason="tool_calls")], "done"])
    loop = Loop(backend, provider=Provider(lambda calls: ["x" for _ in calls]), concurrent_tools=["t"])

    run = loop.run([Message.user("go")])

    assert run.result(60).ok
    assert len({message.tool_call_id for message in run.result().messages if message.role == "tool"}) == 10_000
