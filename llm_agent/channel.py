"""The event log of one run, and the readers that replay it.

Every reader sees the whole run from any position, at its own pace. The log is a list; a
reader holds an index into it and parks on a queue of its own, which holds at most one wake
token. So a reader that stops reading costs the run nothing, and publishing to nobody wakes
nobody. The law: events are appended in `seq` order, and nothing is appended after the close.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Self

from llm_agent.errors import AgentError
from llm_agent.events import Event, Terminal, Token, now_us
from llm_agent.watchdog import bounded


class EventChannel:
    """Appends events with their place in the run; made by the run, closed by its terminal."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._owner_pid = os.getpid()
        self._history: list[Event] = []
        self._parked: list[EventReader] = []
        self._is_closed = False
        # Guards the three above; a leaf. Readers index the history without it: a list that
        # only grows may be read while it grows.
        self._lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def last_event_at(self) -> datetime | None:
        """When the newest event was made; `None` before the first."""
        return self._history[-1].ts if self._history else None

    def publish(self, event: Event) -> bool:
        """Append a stamped copy of *event*; False once closed, and nothing has happened then."""
        with self._lock:
            if self._is_closed:
                return False
            self._history.append(event.stamped(self._run_id, len(self._history)))
            parked = self._take_parked()
        _wake(parked)
        return True

    def publish_token(self, text: str, round_no: int, attempt: int) -> bool:
        """The same as publishing a Token, without the copy: this is the path every token takes."""
        at_us = now_us()
        with self._lock:
            if self._is_closed:
                return False
            history = self._history
            history.append(
                Token(text=text, round=round_no, attempt=attempt, run_id=self._run_id, seq=len(history), at_us=at_us)
            )
            parked = self._take_parked()
        _wake(parked)
        return True

    def close(self, terminal: Terminal, settle: Callable[[], None]) -> bool:
        """End the log: closed, then *settle*, then the terminal, in one critical section.

        So whoever sees the terminal finds settled what *settle* settles. It must be a leaf:
        store a value, set an event. False when it was closed before.
        """
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed = True
            settle()
            self._history.append(terminal.stamped(self._run_id, len(self._history)))
            parked = self._take_parked()
        _wake(parked)
        return True

    def shut(self) -> None:
        """End the log without a terminal: nothing has been said, nothing will be, and nobody reads."""
        with self._lock:
            self._is_closed = True

    def _take_parked(self) -> Sequence[EventReader]:
        """Return who is to be woken, parked no more. Holds the lock; the waking must not."""
        if not self._parked:
            return ()
        parked, self._parked = self._parked, []
        return parked

    def reader(self, after: int | None, timeout: float | None) -> EventReader:
        """Return a reader from the start, or from the event behind seq *after*."""
        return EventReader(self, 0 if after is None else max(0, after + 1), timeout)


def _wake(parked: Sequence[EventReader]) -> None:
    for reader in parked:
        reader._wakes.put(None)


class EventReader:
    """A blocking iterator over a run's events. For one thread at a time; `close` from any.

    Abandoning it anywhere is harmless; nothing has to be closed.
    """

    def __init__(self, channel: EventChannel, start: int, timeout: float | None) -> None:
        self._channel = channel
        self._history: Sequence[Event] = channel._history
        self._next = start
        self._timeout = timeout
        self._is_closed = False
        # A token is put only for a parked reader, which is unparked by that. One that comes just
        # as the reader gives up waiting costs its next wait one look more.
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Return the next event.

        Raises:
            StopIteration: after the terminal event, or once closed.
            TimeoutError: none came in time; the reader can be continued.
            AgentError: in a forked child, where no further event can come.
        """
        try:
            event = self._history[self._next]
        except IndexError:
            event = self._wait()
        self._next += 1
        return event

    def close(self) -> None:
        """End the iteration; a thread blocked in it wakes up. Idempotent, any thread."""
        self._is_closed = True
        self._history = ()
        self._wakes.put(None)

    def _wait(self) -> Event:
        if os.getpid() != self._channel._owner_pid:  # before the lock: the parent may have held it at the fork
            raise AgentError(f"run {self._channel._run_id} belongs to another process; a forked child gets no events")
        give_up = None if self._timeout is None else monotonic() + self._timeout
        while (event := self._look()) is None:
            self._sleep(give_up)
        return event

    def _look(self) -> Event | None:
        """Return the next event if there is one; if not, park, and return `None`."""
        if self._is_closed:
            raise StopIteration
        history = self._channel._history
        # Without the lock first: whoever was just woken would only queue up behind the publisher.
        if self._next < len(history):
            return history[self._next]
        with self._channel._lock:
            if self._next < len(history):
                return history[self._next]
            if self._channel._is_closed:
                raise StopIteration
            self._channel._parked.append(self)
        return None

    def _sleep(self, give_up: float | None) -> None:
        try:
            self._wakes.get(timeout=None if give_up is None else bounded(max(0.0, give_up - monotonic())))
        except BaseException as error:  # not woken, so still parked: a timeout, or a KeyboardInterrupt
            self._unpark()
            if isinstance(error, Empty):
                raise TimeoutError(f"no event came within {self._timeout} s") from None
            raise

    def _unpark(self) -> None:
        with self._channel._lock:
            if self in self._channel._parked:
                self._channel._parked.remove(self)
