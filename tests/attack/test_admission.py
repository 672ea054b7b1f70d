"""One run at a time: whoever comes second is told so, before anything is read or repaired."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from llm_agent.errors import ConfigError, RunInProgress, UnansweredCalls
from llm_agent.live import live_runs
from llm_agent.loop.loop import Loop
from llm_agent.messages import Message
from llm_agent.run import Run
from llm_agent.session.session import Session
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished

WAIT = 5.0


@pytest.fixture
def busy() -> Iterator[tuple[Session, Loop]]:
    """A session whose run is in the middle of a tool call, and its loop."""
    gate = Gate()
    session = Session.in_memory()
    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=ScriptedProvider({"t": gate}), session=session)
    run = loop.run("go")
    gate.wait_entered()
    yield session, loop
    gate.open()
    done = finished(run)
    assert done.outcome.final == "done"
    assert session.messages == done.outcome.messages


@pytest.mark.parametrize("start", [lambda loop: loop.run("too"), lambda loop: loop.resume()])
@pytest.mark.parametrize("is_other_loop", [False, True])
def test_a_second_start_during_a_tool_call_is_told_of_the_first(
    busy: tuple[Session, Loop], start: Callable[[Loop], Any], is_other_loop: bool
) -> None:
    """The call in flight looks unanswered, but nobody shall repair it: it is not lost."""
    session, loop = busy
    other = Loop(ScriptedBackend(["x"]), tools=ScriptedProvider({"t": "x"}), session=session) if is_other_loop else loop

    with pytest.raises(RunInProgress):
        start(other)

    assert [message.role for message in session.messages] == ["user", "assistant"]


def test_a_start_that_fails_leaves_the_loop_and_the_session_free() -> None:
    """Bad input, nothing to resume, no thread: the next start finds nobody in its way."""
    session = Session.in_memory()
    loop = Loop(ScriptedBackend(["done"]), session=session)
    for refused in (
        lambda: loop.run(""),
        lambda: loop.run(5),  # type: ignore[arg-type]  # what is tested
        lambda: loop.run("x", timeout=-1),
        lambda: loop.run("x", context=5),  # type: ignore[arg-type]  # as above
        lambda: loop.resume(),
    ):
        with pytest.raises(ConfigError):
            refused()
    threading.stack_size(1 << 46)  # the platform refuses new threads
    try:
        with pytest.raises(RuntimeError):
            loop.run("go", timeout=5)
    finally:
        threading.stack_size(0)

    assert session.messages == ()
    assert finished(loop.run("go")).outcome.ok
    assert live_runs() == ()


def test_an_unanswered_call_of_a_finished_run_is_still_refused() -> None:
    """With nobody at work, it is the conversation that is at fault."""
    session = Session.in_memory()
    session.append_message(Message.user("go"))
    session.append_message(Message.assistant("", [call("t", _id="a")]))

    with pytest.raises(UnansweredCalls):
        Loop(ScriptedBackend(["x"]), session=session).run("too")


def test_threads_that_start_at_once_are_let_in_one_at_a_time() -> None:
    """Each is served or told; no turn of one comes between those of another."""
    session = Session.in_memory()
    loop = Loop(ScriptedBackend([f"answer {n}" for n in range(200)]), session=session)
    refused: list[BaseException] = []

    def client(name: str) -> None:
        for n in range(10):
            try:
                assert finished(loop.run(f"{name}-{n}")).outcome.ok
            except RunInProgress as exc:
                refused.append(exc)

    threads = [threading.Thread(target=client, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert [message.role for message in session.messages] == ["user", "assistant"] * (40 - len(refused))


def test_a_ctrl_c_at_any_moment_of_a_start_leaves_the_loop_and_the_session_free() -> None:
    """Either no run has begun, or it is cancelled: never one that nobody holds and that bars the way."""
    session = Session.in_memory()
    loop = Loop(ScriptedBackend(lambda request: "done"), session=session)
    moment = 0
    while _interrupted_at(moment, lambda: loop.run("go")):
        moment += 1
        for run in live_runs():
            run.drained(WAIT)
        assert live_runs() == ()
        assert finished(Loop(ScriptedBackend(["done"]), session=session).run("again")).outcome.ok
        assert finished(loop.run("again")).outcome.ok

    assert moment > 20


def _interrupted_at(moment: int, start: Callable[[], Run]) -> bool:
    """Raise a KeyboardInterrupt as that function is entered, counted from 0; whether there was one.

    Ours, and the waits for a new thread to begin. The interpreter looks for signals there, and
    never just before a lock is let go.
    """
    entered = itertools.count()

    def at_call(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        is_wait = code.co_filename == threading.__file__ and code.co_name in ("start", "wait")
        if ("/llm_agent/" in code.co_filename or is_wait) and next(entered) == moment:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        run = start()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    finished(run)
    return False
