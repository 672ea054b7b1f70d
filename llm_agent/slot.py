"""The single-slot executor: foreign code on a daemon thread that can be given up.

One call at a time. A call that is given up keeps its thread (Python cannot end it); the slot
takes a fresh one for the next call, and the late answer is dropped. Never a
`ThreadPoolExecutor`: its threads hold up the interpreter's exit until they return, and a tool
that never returns would keep the process for ever.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Literal

import attrs

from llm_agent.cancel import CancelToken
from llm_agent.watchdog import bounded


def walked(lazy: Iterable[Any] | None, is_over: threading.Event) -> Iterator[Any]:
    """Walk foreign values to their end, or until nobody waits any more; then a generator is closed."""
    for value in lazy if lazy is not None else ():
        if is_over.is_set():
            close = getattr(lazy, "close", None)
            if callable(close):
                close()
            return
        yield value


@attrs.frozen
class Answered:
    """The call returned."""

    value: Any


@attrs.frozen
class Raised:
    """The call raised."""

    error: BaseException


@attrs.frozen
class GaveUp:
    """Nobody waited any longer; whether the call has had an effect is not known."""

    reason: Literal["cancelled", "deadline"]


CallEnd = Answered | Raised | GaveUp


class Call:
    """One call on the slot. `wait` belongs to the thread that started it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self._context = contextvars.copy_context()
        self._end: Answered | Raised | None = None
        self._is_given_up = False
        self._on_late_return: Callable[[Answered | Raised], None] | None = None
        # Guards the three above, so that an end is either waited for or told late, never both.
        self._lock = threading.Lock()
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """Have the waiting thread look again: a clock has changed. Any thread."""
        self._wakes.put(None)

    def wait(self, cancel: CancelToken, seconds_left: Callable[[], float | None]) -> CallEnd:
        """Wait for the end, a cancel or the deadline, in this order when they coincide.

        Args:
            cancel: ends the wait at once.
            seconds_left: working seconds until the deadline; `None` for no deadline, or while
                its clock stands. Asked again after every `wake`.
        """
        forget = cancel.on_cancel(self.wake)
        try:
            while True:
                if self._end is not None:
                    return self._end
                if cancel.is_set:
                    return self._give_up("cancelled")
                left = seconds_left()
                if left is not None and left <= 0:
                    return self._give_up("deadline")
                self._sleep(left)
        finally:
            forget()

    def linger(self, seconds: float) -> CallEnd:
        """Wait a moment longer for a call that was given up: most need but that to come back."""
        patience = monotonic() + seconds
        return self.wait(CancelToken(), lambda: patience - monotonic())

    def _sleep(self, seconds: float | None) -> None:
        try:
            self._wakes.get(timeout=bounded(seconds))
        except Empty:
            pass

    def _give_up(self, reason: Literal["cancelled", "deadline"]) -> CallEnd:
        with self._lock:
            if self._end is not None:  # it returned in this instant: an answer wins
                return self._end
            self._is_given_up = True
        return GaveUp(reason)

    def on_late_return(self, tell: Callable[[Answered | Raised], None]) -> None:
        """Have *tell* called, on the call's own thread, when a given-up call returns after all."""
        with self._lock:
            if self._end is None:
                self._on_late_return = tell
                return
            end = self._end
        tell(end)

    @property
    def is_over(self) -> bool:
        """Whether the call has returned, waited for or not."""
        return self._end is not None

    def run(self) -> None:
        """Execute the call on this thread; the slot's worker does. Never raises."""
        function, self._function = self._function, None
        if function is None:
            return
        end: Answered | Raised
        pid = os.getpid()
        try:
            end = Answered(self._context.run(function))
        except BaseException as error:  # SystemExit of a tool must not end the worker's thread silently
            end = Raised(error)
        del function
        if os.getpid() != pid:
            _leave_child(end)
        with self._lock:
            self._end = end
            tell = self._on_late_return
        self._wakes.put(None)
        if tell is not None:
            tell(end)


def _leave_child(end: Answered | Raised) -> None:
    """End a child that the call forked and that came back: nobody waits here, and it would stay for ever."""
    code = 0 if isinstance(end, Answered) else 1
    if isinstance(end, Raised) and isinstance(end.error, SystemExit):
        code = end.error.code if isinstance(end.error.code, int) else int(end.error.code is not None)
    os._exit(code & 0xFF)


class Slot:
    """Runs one call at a time. Used by one thread; its worker is made on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Call | None] | None = None
        self._current: Call | None = None

    def start(self, function: Callable[[], Any]) -> Call:
        """Start *function* and return its call. An earlier call that has not returned is left to itself.

        Raises:
            RuntimeError: there is no thread to be had; nothing has started, and a next try may succeed.
        """
        if self._current is not None and not self._current.is_over:
            self.close()
        if self._queue is None:
            queue: SimpleQueue[Call | None] = SimpleQueue()
            threading.Thread(target=_work, args=(queue,), name=self._name, daemon=True).start()
            self._queue = queue  # only now: calls for a worker that never began would wait for ever
        call = Call(function)
        self._current = call
        self._queue.put(call)
        return call

    def close(self) -> None:
        """Let the worker go; it ends when its call returns. The slot can be used again."""
        if self._queue is not None:
            self._queue.put(None)
        self._queue = None
        self._current = None


def _work(queue: SimpleQueue[Call | None]) -> None:
    """The worker: one call after the other, until the sentinel."""
    while (call := queue.get()) is not None:
        call.run()
        del call  # a waiting worker must not keep the last call's values alive
