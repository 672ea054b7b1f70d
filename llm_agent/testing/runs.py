"""One run, waited for and checked as every run must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import attrs

from llm_agent.events import Event, RunCancelled, RunCompleted, RunFailed, Token
from llm_agent.messages import unanswered_calls
from llm_agent.outcome import Outcome
from llm_agent.testing.events import check_events

if TYPE_CHECKING:
    from llm_agent.run import Run

_E = TypeVar("_E", bound=Event)

_STATUS_BY_TERMINAL = {RunCompleted: "completed", RunFailed: "failed", RunCancelled: "cancelled"}


@attrs.frozen
class FinishedRun:
    """A run that is over and has kept every rule."""

    outcome: Outcome
    events: tuple[Event, ...]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events, in order."""
        return [event.kind for event in self.events]

    def of(self, cls: type[_E]) -> list[_E]:
        """Return the events of one class, in order."""
        return [event for event in self.events if isinstance(event, cls)]

    @property
    def streamed(self) -> str:
        """Everything that was streamed, retracted text included."""
        return "".join(event.text for event in self.of(Token))


def finished(run: Run, timeout: float = 5.0, *, drained: bool = True, abrupt: bool = False) -> FinishedRun:
    """Wait for *run* and assert what holds for every run.

    The events keep the grammar and are the same for a second reader, the terminal agrees
    with the outcome, and every tool call of the conversation is answered.

    Args:
        run: any run, ended or not.
        timeout: seconds for each wait: the next event, the outcome, the last work.
        drained: also wait until nothing works for it any more; `False` with a tool that is
            stuck on purpose.
        abrupt: see `check_events`.

    Raises:
        AssertionError: a rule is broken; says which.
        TimeoutError: it is still running.
    """
    events = check_events(run.events(timeout=timeout), abrupt=abrupt)
    outcome = run.result(timeout)
    terminal = events[-1]
    status = _STATUS_BY_TERMINAL[type(terminal)]
    assert outcome.status == status, f"the terminal is {terminal.kind}, but the outcome says {outcome.status}"
    again = list(run.events(timeout=timeout))
    assert again == events, "a second reader saw other events than the first"
    missing = [call.id for call in unanswered_calls(outcome.messages)]
    assert not missing, f"the conversation has calls without an answer: {', '.join(missing)}"
    if drained and not run.drained(timeout):
        raise TimeoutError(f"run {run.id} has ended, but something still works for it after {timeout:g} s")
    return FinishedRun(outcome, tuple(events))
