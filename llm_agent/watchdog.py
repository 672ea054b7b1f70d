"""One daemon thread for every deadline that nobody waits on with a timeout of their own.

A reader blocked in a socket cannot look at a clock; this thread does it for all of them. It
sleeps until the earliest deadline it knows, so a deadline that keeps moving away (a stream
that is alive) costs one attribute store per move and no wake-up. What expires is told on
this thread: the callback must be a leaf that wakes somebody, and return.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from time import monotonic

import attrs

_log = logging.getLogger("llm_agent.watchdog")


def bounded(seconds: float | None) -> float | None:
    """Return a timeout as the platform takes it: none stays none, and for ever is very long."""
    return None if seconds is None else min(seconds, threading.TIMEOUT_MAX)


@attrs.define(eq=False)
class Watch:
    """One deadline. Any thread may touch it; it fires at most once.

    `pause` and `resume` are for one thread at a time and do not nest: a second pause, or a
    resume without one, changes nothing.
    """

    limit: float
    """Seconds from a touch to the expiry."""
    on_expiry: Callable[[], None]
    due: float = attrs.field(default=math.inf)
    """Monotonic time of the expiry; infinite while paused."""
    # Infinite before the first pause: a watch without an end is not over after a resume.
    _left: float = attrs.field(default=math.inf, init=False)

    def touch(self) -> None:
        """Start the clock again: the whole limit from now, or from the resume while paused."""
        if self.due == math.inf:
            self._left = self.limit
        else:
            self.due = monotonic() + self.limit

    def pause(self) -> None:
        """Stop the clock and remember what is left."""
        if self.due != math.inf:
            self._left = self.due - monotonic()
            self.due = math.inf

    def resume(self) -> None:
        """Go on with what was left at the pause."""
        if self.due == math.inf:
            self.due = monotonic() + self._left
            WATCHDOG.wake()


class Watchdog:
    """The thread and its list of deadlines. Started on first use, and anew after a fork."""

    def __init__(self) -> None:
        # Guards the watches and the alarm time; a leaf. Re-made in a forked child, where the
        # parent's thread may have held it.
        self._changed = threading.Condition(threading.Lock())
        self._watches: set[Watch] = set()
        self._alarm = math.inf
        self._thread: threading.Thread | None = None

    def watch(self, limit: float, on_expiry: Callable[[], None]) -> Watch:
        """Call *on_expiry* once, *limit* seconds after the last touch, unless dismissed before."""
        watch = Watch(limit, on_expiry, monotonic() + limit)
        with self._changed:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="llm-agent-watchdog", daemon=True)
                self._thread.start()
            if watch.due < self._alarm:
                self._changed.notify()
        return watch

    def dismiss(self, watch: Watch) -> None:
        """Forget *watch*; no effect when it has fired, or is about to: its callback may be running."""
        with self._changed:
            self._watches.discard(watch)

    def wake(self) -> None:
        """Look at the deadlines again: one has moved nearer."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sleep_until_due()
                expired = self._take_expired()
            for watch in expired:
                try:
                    watch.on_expiry()
                except BaseException:  # a shield: one bad callback must not cost everybody their deadlines
                    _log.exception("a deadline's callback raised")

    def _sleep_until_due(self) -> None:
        self._alarm = min((watch.due for watch in self._watches), default=math.inf)
        delay = self._alarm - monotonic()
        if delay > 0:
            # threading.TIMEOUT_MAX is the longest wait the platform takes.
            self._changed.wait(None if delay > threading.TIMEOUT_MAX else delay)
        self._alarm = -math.inf  # awake: a new watch is seen on the next turn without a notify

    def _take_expired(self) -> list[Watch]:
        now = monotonic()
        expired = [watch for watch in self._watches if watch.due <= now]
        self._watches.difference_update(expired)
        return expired


WATCHDOG = Watchdog()


def _start_over_after_fork() -> None:
    WATCHDOG.__init__()  # type: ignore[misc]  # the one object everybody imported, made anew


os.register_at_fork(after_in_child=_start_over_after_fork)
