"""The driver's end of a run: what the loop uses to speak, to finish, and to account for work.

The caller holds a `Run` and cannot reach this. Everything here may be called from any
thread; the run is ended only by its worker. Foreign code (done callbacks) never runs under a
lock of ours.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal

import attrs

from llm_agent.asks import AskDesk
from llm_agent.cancel import CancelToken
from llm_agent.channel import EventChannel
from llm_agent.errors import AgentError
from llm_agent.events import Event, Terminal
from llm_agent.outcome import Outcome
from llm_agent.watchdog import WATCHDOG, Watch

_log = logging.getLogger("llm_agent.run")

RunStage = Literal["starting", "compacting", "streaming", "backoff", "tool", "ask", "done"]


@attrs.frozen(kw_only=True)
class RunStatus:
    """What a run is doing at this moment."""

    stage: RunStage
    round: int | None = None
    backend: int | None = None
    """Index in the chain, while streaming or waiting to ask again."""
    model: str | None = None
    tool: str | None = None
    call_id: str | None = None
    since: datetime = attrs.field(factory=lambda: datetime.now(UTC))
    """When this stage began."""
    last_event_at: datetime | None = None


@attrs.frozen(kw_only=True)
class DetachedCall:
    """A call that nobody waits for and that has not returned."""

    call_id: str
    tool: str
    since: datetime = attrs.field(factory=lambda: datetime.now(UTC))


class RunCore:
    """One run's state: its events, its outcome, and who still works for it."""

    def __init__(self) -> None:
        self.id = str(uuid.uuid4())
        self.cancel = CancelToken()
        self.asks = AskDesk()
        self.channel = EventChannel(self.id)
        self.owner_pid = os.getpid()
        self._stage = RunStatus(stage="starting")
        self._done: RunStatus | None = None
        self.outcome: Outcome | None = None
        self.finished = threading.Event()
        self.left = threading.Event()
        """Set when the worker has nothing more to do, its callbacks included."""
        self.drained = threading.Event()
        self._claimed = threading.Lock()  # taken once, and never given back
        # Guards the fields below. The watchdog's lock is taken under it, nothing else.
        self._lock = threading.Lock()
        self._work_sections = 0
        self._steers: list[str] = []
        self._is_sealed = False
        self._callbacks: list[Callable[[], None]] = []
        self._on_drained: list[Callable[[], None]] = []
        self._detached: dict[int, DetachedCall] = {}
        self._timeout: Watch | None = None
        self._open_asks = 0
        self._asked = 0.0
        self._asked_since = 0.0

    @property
    def is_owned(self) -> bool:
        """Whether the run lives in this process; a forked child has only inherited it."""
        return os.getpid() == self.owner_pid

    def check_owner(self) -> None:
        """Raise when this process inherited the run by a fork: its worker lives in the parent."""
        if not self.is_owned:
            raise AgentError(
                f"run {self.id} belongs to process {self.owner_pid}; its forked child {os.getpid()} cannot use it"
            )

    # -- events and the end ----------------------------------------------------------------

    def emit(self, event: Event) -> bool:
        """Publish *event*; False, and nothing more, once the run is over.

        Raises:
            ValueError: *event* is a terminal; only `finish` ends a run.
        """
        if event.is_terminal:
            raise ValueError(f"a {event.kind} event ends the run and goes through finish()")
        return self.channel.publish(event)

    def finish(self, terminal: Terminal, outcome: Outcome) -> bool:
        """End the run: outcome, terminal event, done callbacks. The first call wins."""
        if not terminal.is_terminal:
            raise ValueError(f"a {terminal.kind} event does not end a run")

        def settle() -> None:
            self.outcome = outcome
            self._done = RunStatus(stage="done", round=outcome.rounds or None)
            self.cancel.retire()
            self.finished.set()

        if not self.channel.close(terminal, settle):
            return False
        self.asks.close()
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            call_shielded(callback)
        self._tell_if_drained()
        return True

    def claim(self) -> bool:
        """Whether the caller is the first who wants to begin this run, or to take it back; one of both happens."""
        return self._claimed.acquire(blocking=False)

    def withdraw(self) -> None:
        """A run that never began: nothing works for it, and nobody holds it."""
        self.channel.shut()
        self.dismiss_timeout()
        with self._lock:
            self._work_sections = 0
        self._tell_if_drained()

    def add_done_callback(self, callback: Callable[[], None]) -> bool:
        """Keep *callback* for the end; False when the run is over and the caller shall call it."""
        with self._lock:
            if self.finished.is_set():
                return False
            self._callbacks.append(callback)
            return True

    # -- work that holds up `drained` ------------------------------------------------------

    def begin_work(self) -> bool:
        """Open a work section; False on a run that is over, and then it is not open."""
        with self._lock:
            if self.channel.is_closed:
                return False
            self._work_sections += 1
            return True

    def end_work(self) -> None:
        """Close a work section. Never raises."""
        with self._lock:
            self._work_sections = max(0, self._work_sections - 1)
        self._tell_if_drained()

    @property
    def work_sections(self) -> int:
        return self._work_sections

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Have *callback* called once nothing works for this run any more; for the engine's own books."""
        with self._lock:
            self._on_drained.append(callback)

    def _tell_if_drained(self) -> None:
        with self._lock:
            if self._work_sections or not self.channel.is_closed or self.drained.is_set():
                return
            self.drained.set()
            callbacks, self._on_drained = self._on_drained, []
        for callback in callbacks:
            call_shielded(callback)

    # -- the run's own clock, which stands still while a human is asked ------------------------

    def watch_timeout(self, watch: Watch) -> None:
        self._timeout = watch

    def pause_timeout(self) -> None:
        """An ask opens; asks may overlap, and the first one stops the clock."""
        with self._lock:
            self._open_asks += 1
            if self._open_asks == 1:
                self._asked_since = monotonic()
                if self._timeout is not None:
                    self._timeout.pause()

    def resume_timeout(self) -> None:
        """An ask is over; the last one starts the clock again."""
        with self._lock:
            self._open_asks -= 1
            # Under the lock, with the watchdog's beneath it: else an ask that opens just now
            # would find its clock started again.
            if self._open_asks == 0:
                self._asked += monotonic() - self._asked_since
                if self._timeout is not None:
                    self._timeout.resume()

    @property
    def asked_seconds(self) -> float:
        """How long humans have been asked so far."""
        with self._lock:
            return self._asked + (monotonic() - self._asked_since if self._open_asks else 0.0)

    def dismiss_timeout(self) -> None:
        if self._timeout is not None:
            WATCHDOG.dismiss(self._timeout)

    # -- calls nobody waits for --------------------------------------------------------------

    def detach(self, call: DetachedCall) -> Callable[[], None]:
        """Note a call that was given up; returns how to note that it has returned after all."""
        key = id(call)
        with self._lock:
            self._detached[key] = call

        def returned() -> None:
            with self._lock:
                self._detached.pop(key, None)

        return returned

    @property
    def detached(self) -> tuple[DetachedCall, ...]:
        with self._lock:
            return tuple(self._detached.values())

    # -- words from outside ------------------------------------------------------------------

    def give_back_steers(self, texts: list[str]) -> None:
        """Put back, in front, what was taken and could not be delivered."""
        with self._lock:
            self._steers[:0] = texts

    def steer(self, text: str) -> bool:
        """Queue a user turn for the next round; False once the end is decided."""
        with self._lock:
            if self._is_sealed:
                return False
            self._steers.append(text)
            return True

    def take_steers(self) -> list[str]:
        """Take what is queued, in order."""
        with self._lock:
            taken, self._steers = self._steers, []
            return taken

    def seal_steers(self) -> bool:
        """Decide that no round follows; False, and nothing is decided, while a steer waits for one."""
        with self._lock:
            if self._steers:
                return False
            self._is_sealed = True
            return True

    def refuse_steers(self) -> tuple[str, ...]:
        """Take no more steers, whatever waits; returns what will never be delivered."""
        with self._lock:
            self._is_sealed = True
            left, self._steers = tuple(self._steers), []
            return left

    def set_stage(self, stage: RunStage, **facts: Any) -> None:
        """Say what the run is doing from now on; once it is done, that stands."""
        self._stage = RunStatus(stage=stage, **facts)

    @property
    def status(self) -> RunStatus:
        return self._done or self._stage


def call_shielded(callback: Callable[[], None]) -> None:
    """Call *callback*; what it raises becomes an error of the `logging` module."""
    try:
        callback()
    except BaseException:  # a shield: somebody's callback must not keep the run from ending
        try:
            _log.exception("a callback of a run raised")
        except Exception:  # nor may somebody's logging filter
            pass
