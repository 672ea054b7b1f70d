"""`finished` waits for a run and asserts what holds for every run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import attrs
import pytest

from llm_agent.events import Event, RunCancelled, RunCompleted, RunStarted, Token
from llm_agent.loop.loop import Loop
from llm_agent.messages import Message, ToolRequest
from llm_agent.outcome import Outcome
from llm_agent.run import Run
from llm_agent.testing import ScriptedBackend, ScriptedProvider, call, finished


@attrs.define
class Recording:
    """A run that has been, told from notes; each reader gets the next telling."""

    tellings: list[list[Event]]
    outcome: Outcome
    is_drained: bool = True
    id: str = "r"

    def events(self, timeout: float) -> Iterator[Event]:
        return iter(self.tellings.pop(0) if len(self.tellings) > 1 else self.tellings[0])

    def result(self, timeout: float) -> Outcome:
        return self.outcome

    def drained(self, timeout: float) -> bool:
        return self.is_drained


CANCELLED = [RunStarted(message_count=1).stamped("r", 0), RunCancelled().stamped("r", 1)]
OUTCOME = Outcome(status="cancelled")


def recording(**changes: Any) -> Run:
    return cast("Run", Recording(**{"tellings": [CANCELLED], "outcome": OUTCOME, **changes}))


def test_a_run_of_the_engine_is_returned_with_its_events_and_outcome() -> None:
    """Kinds, events of one class and the streamed text are at hand."""
    backend = ScriptedBackend([["Let me see. ", call("look")], "Done."])
    run = Loop(backends=backend, tools=ScriptedProvider({"look": "a tree"})).run("go")

    done = finished(run)

    assert done.outcome.final == "Done."
    assert (done.kinds[0], done.kinds[-1]) == ("run-started", "run-completed")
    assert done.streamed == "Let me see. Done."
    assert [event.final for event in done.of(RunCompleted)] == ["Done."]
    assert len(done.of(Token)) > 1


def test_a_broken_grammar_is_refused() -> None:
    """The check of the events is part of it."""
    with pytest.raises(AssertionError, match="without a terminal"):
        finished(recording(tellings=[CANCELLED[:1]]))


def test_an_outcome_that_contradicts_the_terminal_is_refused() -> None:
    """A cancelled run cannot have completed."""
    with pytest.raises(AssertionError, match="the terminal is run-cancelled, but the outcome says completed"):
        finished(recording(outcome=attrs.evolve(OUTCOME, status="completed")))


def test_a_second_reader_that_sees_something_else_is_refused() -> None:
    """Every reader sees the whole run."""
    with pytest.raises(AssertionError, match="a second reader"):
        finished(recording(tellings=[CANCELLED, CANCELLED[1:]]))


def test_an_unanswered_call_is_refused() -> None:
    """No run leaves a conversation that vendors refuse."""
    messages = (Message.user("go"), Message.assistant("", [ToolRequest("c1", "look")]))

    with pytest.raises(AssertionError, match="calls without an answer: c1"):
        finished(recording(outcome=attrs.evolve(OUTCOME, messages=messages)))


def test_a_run_that_still_works_is_said_unless_it_may() -> None:
    """Something stuck on purpose is allowed when the test says so."""
    with pytest.raises(TimeoutError, match="something still works for it"):
        finished(recording(is_drained=False), timeout=0.1)

    assert finished(recording(is_drained=False), drained=False).outcome == OUTCOME
