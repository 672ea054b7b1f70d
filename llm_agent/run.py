"""The handle a caller holds while a run lives, and afterwards.

Everything here may be used from any thread, also long after the run ended. Only `result`,
`events` and `drained` block, each with a timeout and each ended by the run's end.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import attrs

from llm_agent.asks import PendingAsk
from llm_agent.channel import EventReader
from llm_agent.errors import ConfigError
from llm_agent.outcome import Outcome
from llm_agent.run_core import DetachedCall, RunCore, RunStatus, call_shielded
from llm_agent.watchdog import bounded

# How long leaving a `with` block waits for a cancelled run's last work, in seconds.
LEAVE_GRACE: Final = 5.0


class Run:
    """One run of a loop: its events, its outcome, and the ways to speak to it.

    Made by `Loop.run`. As a context manager it cancels the run when the block is left early.
    """

    def __init__(self, core: RunCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<Run {self.id} {self._core.status.stage}>"

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def is_done(self) -> bool:
        """Whether the outcome is there."""
        return self._core.finished.is_set()

    @property
    def is_cancelled(self) -> bool:
        """Whether a cancel was asked for; once the run has ended, whether it took effect."""
        outcome = self._core.outcome
        return self._core.cancel.is_set if outcome is None else outcome.status == "cancelled"

    @property
    def status(self) -> RunStatus:
        """What the run is doing at this moment."""
        return attrs.evolve(self._core.status, last_event_at=self._core.channel.last_event_at)

    @property
    def detached(self) -> tuple[DetachedCall, ...]:
        """Calls that were given up at a deadline or a cancel and have not returned yet."""
        return self._core.detached

    def events(self, after: int | None = None, timeout: float | None = None) -> EventReader:
        """Iterate over the whole run, from its first event or the one behind seq *after*.

        Args:
            after: the last seq that was seen; `None` for all.
            timeout: seconds to wait for the NEXT event; `None` waits as long as the run lives.

        Returns:
            A blocking iterator that ends after the terminal event. Any number of them, each
            sees every event once and in order, also when the run ended long ago.

        Raises:
            TimeoutError: from the iterator, which can then be continued.
            ConfigError: *after* is no number.
            AgentError: in a forked child of the run's process.
        """
        self._core.check_owner()
        if after is not None and not isinstance(after, int):
            raise ConfigError(f"Run.events: after must be an event's seq, a whole number, got {type(after).__name__}")
        return self._core.channel.reader(after, timeout)

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for the outcome. A failed or cancelled run is an outcome, not an exception.

        Raises:
            TimeoutError: no outcome within *timeout* seconds; the run goes on.
            AgentError: in a forked child of the run's process.
        """
        self._core.check_owner()
        if not self._core.finished.wait(bounded(timeout)):
            raise TimeoutError(f"run {self.id} has no outcome after {timeout} s; it goes on")
        outcome = self._core.outcome
        assert outcome is not None  # stored before the event is set
        return outcome

    def drained(self, timeout: float | None = None) -> bool:
        """Wait until nothing works for this run any more, detached calls included. Never raises.

        In a forked child it does not wait: what works for the run lives in the parent.
        """
        if not self._core.is_owned:
            return self._core.drained.is_set()
        return self._core.drained.wait(bounded(timeout))

    def cancel(self, reason: str | None = None) -> None:
        """Ask the run to end. Idempotent, any thread, never raises; nothing on a finished run.

        Args:
            reason: appears in RunCancelled and in `Outcome.reason`.

        Nothing in a forked child either: the sockets it would wake are the parent's, too.
        """
        if not self.is_done and self._core.is_owned:
            self._core.cancel.cancel(reason)

    def add_done_callback(self, callback: Callable[[Run], Any]) -> None:
        """Have `callback(run)` called once the run has ended.

        Threads: on the run's worker, after the terminal event; at once, on this thread, when
            the run has ended before. What it raises becomes an error of the `logging` module.

        Raises:
            AgentError: in a forked child of the run's process.
        """
        self._core.check_owner()

        def call() -> None:
            callback(self)

        if not self._core.add_done_callback(call):
            call_shielded(call)

    def steer(self, text: str) -> bool:
        """Add a user turn at the next round boundary; False once no round will follow.

        What could not be delivered after all is in `Outcome.undelivered`.

        Raises:
            AgentError: in a forked child of the run's process.
        """
        self._core.check_owner()
        return self._core.steer(text)

    def pending_asks(self) -> tuple[PendingAsk, ...]:
        """The questions that wait for `answer`, oldest first (with `on_ask="run"`)."""
        return self._core.asks.pending()

    def answer(self, ask_id: str, answer: Any) -> bool:
        """Answer a question; False when it is unknown, answered, or over.

        Raises:
            AgentError: in a forked child of the run's process.
        """
        self._core.check_owner()
        return self._core.asks.answer(ask_id, answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_done or not self._core.is_owned:
            return
        self.cancel("interrupted" if kind is KeyboardInterrupt else None)
        self.drained(LEAVE_GRACE)
