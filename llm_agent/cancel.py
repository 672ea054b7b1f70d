"""Cancellation: an event, the reason, and whatever must be woken when it is set.

A wait that cannot look at the event registers a waker. Wakers run on the cancelling thread,
outside the lock, and may not raise (what they raise is dropped: cancel never raises).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import attrs

# How often somebody else's event is looked at, in seconds.
_LOOK: Final = 0.05


class WakingEvent(threading.Event):
    """An event that also calls: for waits that no `Event.wait` can be part of. Never unset."""

    def __init__(self) -> None:
        super().__init__()
        # Guards the wakers; a leaf. Re-entrant, because a signal handler may set the event while
        # its own thread is in here.
        self._wakers_lock = threading.RLock()
        self._wakers: dict[int, Callable[[], None]] = {}
        self._next_key = 0

    def set(self) -> None:
        """Set the event and wake every waiter, each once."""
        super().set()
        with self._wakers_lock:  # a waker is in here, or finds the event set
            wakers = list(self._wakers.values())
            self._wakers.clear()
        for wake in wakers:
            _call_shielded(wake)

    def on_set(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have *wake* called when the event is set, at once if that has been; returns how to take it back.

        A `set` that has already begun may still call *wake* after it was taken back.
        """
        with self._wakers_lock:
            is_late = self.is_set()
            key = self._next_key
            self._next_key += 1
            if not is_late:
                self._wakers[key] = wake
        if is_late:
            _call_shielded(wake)

        def forget() -> None:
            with self._wakers_lock:
                self._wakers.pop(key, None)

        return forget


def when_set(event: threading.Event, wake: Callable[[], None]) -> Callable[[], None]:
    """Have *wake* called when any event is set; returns how to take it back.

    An event that cannot call is looked at by a thread of its own until then.
    """
    if isinstance(event, WakingEvent):
        return event.on_set(wake)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            if event.wait(_LOOK):
                _call_shielded(wake)
                return

    threading.Thread(target=look, name="llm-agent-cancel", daemon=True).start()
    return is_over.set


@attrs.define(eq=False)
class CancelToken:
    """One run's wish to end. Set once, from any thread; never unset."""

    event: WakingEvent = attrs.field(factory=WakingEvent)
    reason: str | None = None
    """The reason given to the first cancel, if any."""

    # Taken by the first cancel, or by `retire`, and never given back.
    _claim: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    def cancel(self, reason: str | None = None) -> bool:
        """Set the event and wake every waiter; True for the first call only."""
        if not self._claim.acquire(blocking=False):
            return False
        self.reason = reason
        self.event.set()
        return True

    def retire(self) -> None:
        """Nothing is left to be cancelled: a later cancel has no effect, one that has begun keeps its."""
        self._claim.acquire(blocking=False)

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have *wake* called at the cancel, at once if that has been; returns how to take it back."""
        return self.event.on_set(wake)

    def wait(self, seconds: float) -> bool:
        """Wait *seconds*, or until cancelled; True when the time was served in full."""
        if seconds <= 0:
            return not self.event.is_set()
        return not self.event.wait(min(seconds, threading.TIMEOUT_MAX))


def _call_shielded(wake: Callable[[], None]) -> None:
    try:
        wake()
    except Exception:  # cancel never raises; a waiter that cannot be woken has its own clock
        pass
