"""Read one completion: clocked, cancellable, whatever the backend does.

The stream is read by the calling thread. What may end it early (a cancel, silence, the total
time) does so through one `Interruption`, which wakes the reader; whoever reads then asks why.
The law: once interrupted, not one more piece is taken. What an attempt means to a run, and
what is done about a failure, is not known here.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, Final, Literal

import attrs

from llm_agent.cancel import when_set
from llm_agent.codec import error_text, text_of
from llm_agent.errors import ERROR_CLASSES, BackendError
from llm_agent.messages import Delta, Message
from llm_agent.ports import Backend, CompletionRequest, ToolDeclaration
from llm_agent.scope import Scope
from llm_agent.slot import Slot
from llm_agent.watchdog import WATCHDOG

Cause = Literal["cancelled", "inactivity", "attempt-timeout"]


@attrs.define(eq=False)
class Interruption:
    """Why a stream was ended early; the first cause stands. Any thread."""

    cause: Cause | None = None
    event: threading.Event = attrs.field(factory=threading.Event)
    """What the backend sees as `request.cancelled`."""
    _wakers: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    # Guards all three; a leaf. Wakers run outside of it.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def interrupt(self, cause: Cause) -> None:
        with self._lock:
            if self.cause is not None:
                return
            self.cause = cause
            wakers = list(self._wakers)
        self.event.set()
        for wake in wakers:
            _shielded(wake)

    def wakes(self, wake: Callable[[], None]) -> None:
        """Have *wake* called on an interruption, at once if that has been."""
        with self._lock:
            self._wakers.append(wake)
            is_late = self.cause is not None
        if is_late:
            _shielded(wake)


def _shielded(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # a foreign cancel() or close() that raises changes nothing about the attempt
        pass


def _apart(call: Callable[[], object]) -> None:
    """Call foreign code on a thread of its own: whoever cancels, and the watchdog, must not wait for it.

    `_thread`, because a signal handler may cancel while its thread is inside `Thread.start`.
    """
    try:
        _thread.start_new_thread(_shielded, (call,))
    except RuntimeError:  # no thread to be had, or the interpreter is ending
        _shielded(call)


# -- where the pieces come from ----------------------------------------------------------


@attrs.frozen
class _Handover:
    """The backend returned a stream that can be woken: the worker reads it."""

    stream: Iterable[Delta | str]


@attrs.frozen
class _Broke:
    error: BaseException


_END: Final = object()
_WAKE: Final = object()


class Source:
    """A completion's pieces, started on the abandonable thread."""

    def __init__(self, slot: Slot, backend: Backend, request: CompletionRequest, stop: Interruption) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._handed_over: Iterable[Delta | str] | None = None
        self._stop = stop
        stop.wakes(lambda: self._queue.put(_WAKE))
        slot.start(lambda: self._produce(backend, request))

    def _produce(self, backend: Backend, request: CompletionRequest) -> None:
        """On the abandonable thread: get the stream, and read it unless the worker can."""
        try:
            stream = backend.stream(request)
            if callable(getattr(stream, "cancel", None)):
                cancel: Callable[[], object] = stream.cancel  # type: ignore[attr-defined]  # asked for just above
                # Registered here, not by the worker: it may have given up waiting.
                self._stop.wakes(lambda: _apart(cancel))
                if self._stop.event.is_set():  # the worker has been told, and reads nothing any more
                    _close(stream)
                else:
                    self._queue.put(_Handover(stream))
                return
            if isinstance(stream, Mapping):  # iterating it would stream its keys as text
                raise TypeError(f"the backend must return an iterable of Delta or str, got {type(stream).__name__}")
            self._read_out(stream)
        except BaseException as error:  # foreign code: whatever it raises is this attempt's failure
            self._queue.put(_Broke(error))
        else:
            self._queue.put(_END)

    def _read_out(self, stream: Iterable[Delta | str]) -> None:
        try:
            for piece in stream:
                if self._stop.event.is_set():
                    return
                self._queue.put(piece)
        finally:
            _close(stream)

    def close(self) -> None:
        """Let go of a stream the worker read; what the other thread reads is closed there."""
        if self._handed_over is not None:
            _close(self._handed_over)

    def pieces(self) -> Iterable[Delta | str]:
        """Return the pieces; the worker iterates. Blocks until there is something to read."""
        first = self._queue.get()
        if not isinstance(first, _Handover):
            return self._relayed(first)
        self._handed_over = first.stream
        return first.stream

    def _relayed(self, item: Any) -> Iterator[Delta | str]:
        while item is not _END and item is not _WAKE:
            if isinstance(item, _Broke):
                raise item.error
            yield item
            item = self._queue.get()


def _close(stream: object) -> None:
    close = getattr(stream, "close", None)
    if callable(close):
        _shielded(close)


# -- reading it under clocks ---------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Clocks:
    """How long a completion may take, in seconds."""

    silence: float
    """Without a sign of life."""
    total: float | None = None


def read_completion(
    backend: Backend,
    messages: tuple[Message, ...],
    tools: tuple[ToolDeclaration, ...] = (),
    *,
    scope: Scope,
    slot: Slot,
    clocks: Clocks,
    cancelled: threading.Event,
) -> BackendError | None:
    """Ask *backend* once and put what it says into *scope*.

    Args:
        slot: where the backend's `stream` is called; a thread it blocks is left behind.
        cancelled: ends the reading at once.

    Returns:
        Why this is no whole completion; `None` when the stream came to its end, or *cancelled*
        is set.
    """
    return _Reading(backend, scope, slot, clocks).run(messages, tools, cancelled)


class _Reading:
    def __init__(self, backend: Backend, scope: Scope, slot: Slot, clocks: Clocks) -> None:
        self._backend = backend
        self._scope = scope
        self._slot = slot
        self._clocks = clocks
        self._stop = Interruption()

    def run(
        self, messages: tuple[Message, ...], tools: tuple[ToolDeclaration, ...], cancelled: threading.Event
    ) -> BackendError | None:
        clocks, stop = self._clocks, self._stop
        silence = WATCHDOG.watch(clocks.silence, lambda: stop.interrupt("inactivity"))
        total = (
            None if clocks.total is None else WATCHDOG.watch(clocks.total, lambda: stop.interrupt("attempt-timeout"))
        )
        forget = when_set(cancelled, lambda: stop.interrupt("cancelled"))
        try:
            self._read(CompletionRequest(messages=messages, tools=tools, cancelled=stop.event), silence.touch)
        except BackendError as error:
            return self._cause_error() or _sound(error)
        except BaseException as error:  # foreign code's, `SystemExit` and the like: this attempt's failure
            return self._cause_error() or BackendError(error_text(error), "unknown")
        finally:
            stop.event.set()  # whatever still produces for this attempt may stop
            forget()
            WATCHDOG.dismiss(silence)
            if total is not None:
                WATCHDOG.dismiss(total)
        return self._cause_error()

    def _read(self, request: CompletionRequest, touch: Callable[[], None]) -> None:
        source = Source(self._slot, self._backend, request, self._stop)
        try:
            self._take(source.pieces(), touch)
        finally:
            source.close()

    def _take(self, pieces: Iterable[Delta | str], touch: Callable[[], None]) -> None:
        stop, scope = self._stop, self._scope
        for piece in pieces:
            if stop.cause is not None:
                return
            touch()
            if isinstance(piece, str):
                scope.add_text(piece)
            elif isinstance(piece, Delta):
                scope.add(piece)
            else:
                raise TypeError(f"the backend must yield Delta or str, got {type(piece).__name__}")
        scope.close()

    def _cause_error(self) -> BackendError | None:
        clocks = self._clocks
        match self._stop.cause:
            case "inactivity":
                return BackendError(f"no activity for {clocks.silence:g} s", "timeout")
            case "attempt-timeout":
                return BackendError(f"no end of the completion within {clocks.total:g} s", "timeout")
            case _:
                return None


def _sound(error: BackendError) -> BackendError:
    """Return *error* with fields that the chain can reckon with: foreign code may have filled them."""
    status, wait = error.status, error.retry_after
    fields = (
        text_of(error.message),
        error.error_class if error.error_class in ERROR_CLASSES else "unknown",
        int(status) if isinstance(status, int) else None,
        wait if isinstance(wait, int | float) and wait >= 0 else None,
    )
    if fields == (error.message, error.error_class, status, wait):
        return error
    return BackendError(*fields, error.body)
