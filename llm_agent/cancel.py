"""Cancellation: an event, the reason, and whatever must be woken when it is set.

A wait that cannot look at the event registers a waker. Wakers run on the cancelling thread,
outside the lock, and may not raise (what they raise is dropped: cancel never raises).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class CancelToken:
    """One run's wish to end. Set once, from any thread; never unset."""

    event: threading.Event = attrs.field(factory=threading.Event)
    reason: str | None = None
    """The reason given to the first cancel, if any."""

    # Taken by the first cancel, or by `retire`, and never given back.
    _claim: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    # Guards the wakers; a leaf. Re-entrant, because a signal handler may cancel while its own
    # thread is in here.
    _lock: threading.RLock = attrs.field(factory=threading.RLock, init=False, repr=False)
    _wakers: dict[int, Callable[[], None]] = attrs.field(factory=dict, init=False, repr=False)
    _next_key: int = attrs.field(default=0, init=False, repr=False)

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    def cancel(self, reason: str | None = None) -> bool:
        """Set the event and wake every waiter; True for the first call only."""
        if not self._claim.acquire(blocking=False):
            return False
        self.reason = reason
        self.event.set()
        with self._lock:  # a waker is in here, or finds the event set
            wakers = list(self._wakers.values())
        for wake in wakers:
            _call_shielded(wake)
        return True

    def retire(self) -> None:
        """Nothing is left to be cancelled: a later cancel has no effect, one that has begun keeps its."""
        self._claim.acquire(blocking=False)

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have *wake* called at the cancel, at once if that has been; returns how to take it back.

        A cancel that has already begun may still call *wake* after it was taken back.
        """
        with self._lock:
            is_late = self.event.is_set()
            key = self._next_key
            self._next_key += 1
            if not is_late:
                self._wakers[key] = wake
        if is_late:
            _call_shielded(wake)

        def forget() -> None:
            with self._lock:
                self._wakers.pop(key, None)

        return forget

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
