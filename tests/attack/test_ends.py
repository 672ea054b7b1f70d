"""A run's last moments: what races its end loses cleanly, and nothing keeps the end from coming."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

import pytest

from llm_agent.call_context import current_call
from llm_agent.errors import TranscriptError
from llm_agent.events import RunCancelled
from llm_agent.loop.loop import Loop
from llm_agent.messages import Message
from llm_agent.outcome import Outcome
from llm_agent.run import Run
from llm_agent.run_core import RunCore
from llm_agent.session.session import Session
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished
from llm_agent.watchdog import Watch

WAIT = 5.0


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_done_callback_that_exits_does_not_keep_the_run_alive(error: BaseException) -> None:
    """The others are called, the run drains, and the loop is free."""
    told: list[str] = []
    gate = Gate()

    def fail(run: Run) -> None:
        raise error

    loop = Loop(ScriptedBackend([gate, "again"]))
    run = loop.run("go")
    gate.wait_entered()
    run.add_done_callback(fail)
    run.add_done_callback(lambda run: told.append(run.id))
    gate.open()

    finished(run)
    assert told == [run.id]
    assert finished(loop.run("go")).outcome.ok


def test_a_cancel_that_comes_as_the_run_ends_has_no_effect() -> None:
    """`is_cancelled` agrees with the outcome, whichever came first, and nobody is woken."""
    core = RunCore()
    woken: list[bool] = []
    core.cancel.on_cancel(lambda: woken.append(True))
    run = Run(core)

    def racing() -> bool:
        """The run ends between the look at it and the cancel."""
        core.finish(RunCancelled(stage="start"), Outcome(status="completed"))
        return False

    class Racing(Run):
        is_done = property(lambda self: racing())  # type: ignore[assignment]  # the instant between the two

    Racing(core).cancel("late")

    assert not run.is_cancelled
    assert core.cancel.is_set is False
    assert woken == []


def test_a_cancel_that_came_too_late_for_the_outcome_did_not_take_effect() -> None:
    """The last word was spoken: the run is completed, and says so in every way."""
    run: Run
    started = threading.Event()

    def cancel_late(request: Any) -> str:
        return "done"

    class Cancelling(Session):
        """Its last append is the last moment at which a cancel can come."""

        def append_message(self, message: Message, extra: Any = None) -> str:
            new_id = super().append_message(message, extra)
            if message.role == "assistant":
                started.wait(WAIT)
                run.cancel()
            return new_id

    run = Loop(ScriptedBackend([cancel_late]), session=Cancelling.in_memory()).run("go")
    started.set()

    assert finished(run).outcome.status == "completed"
    assert not run.is_cancelled


def test_what_a_given_up_call_asks_does_not_change_a_finished_status() -> None:
    """Done is done, whoever still works."""
    core = RunCore()
    core.finish(RunCancelled(stage="start"), Outcome(status="cancelled"))

    core.set_stage("ask")

    assert Run(core).status.stage == "done"


def test_steers_that_the_transcript_refuses_are_told_as_undelivered() -> None:
    """A full disk costs the run, never a word that somebody was told had been taken."""
    gate = Gate()

    class Full(Session):
        def append_message(self, message: Message, extra: Any = None) -> str:
            if message.text.startswith("steer"):
                raise TranscriptError("disk full")
            return super().append_message(message, extra)

    provider = ScriptedProvider({"t": gate})
    run = Loop(ScriptedBackend([call("t"), "never"]), tools=provider, session=Full.in_memory()).run("go")
    gate.wait_entered()
    assert run.steer("steer 1")
    assert run.steer("steer 2")
    gate.open()

    outcome = finished(run).outcome

    assert outcome.status == "failed"
    assert outcome.undelivered == ("steer 1", "steer 2")


@pytest.mark.parametrize("pulled", [{"role": "user", "content": "words"}, b"words"])
def test_a_steer_source_that_returns_no_text_is_not_taken_apart(pulled: Any) -> None:
    """The keys of a mapping are no user turns, the bytes of a text no numbers."""
    backend = ScriptedBackend(["done"])

    done = finished(Loop(backend, steer_source=lambda: pulled).run("go"))

    assert [message.text for message in backend.requests[0].messages] == ["go"]
    assert type(pulled).__name__ in str(done.events)


def test_an_ask_that_opens_as_another_ends_finds_the_clock_standing() -> None:
    """The run's own timeout runs only when nobody is asked."""
    inside, go_on = threading.Event(), threading.Event()

    class SlowToResume(Watch):
        def resume(self) -> None:
            inside.set()
            go_on.wait(0.2)  # runs out where the opening ask is kept waiting, as it should be
            super().resume()

    core = RunCore()
    watch = SlowToResume(60, lambda: None, monotonic() + 60)
    core.watch_timeout(watch)
    core.pause_timeout()

    ending = threading.Thread(target=core.resume_timeout)
    ending.start()
    assert inside.wait(WAIT)
    core.pause_timeout()
    go_on.set()
    ending.join(WAIT)

    assert watch.due == float("inf")


def test_a_run_started_by_a_tool_is_outside_of_its_call() -> None:
    """Its worker executes no call: what it says is not put down to the one that started it."""
    seen: list[object] = []

    def inner() -> str:
        def backend(request: Any) -> str:
            seen.append(current_call())
            return "inner"

        return Loop(ScriptedBackend([backend])).run("go").result(WAIT).final

    done = finished(Loop(ScriptedBackend([call("t"), "outer"]), tools=ScriptedProvider({"t": inner})).run("go"))

    assert done.outcome.final == "outer"
    assert seen == [None]
