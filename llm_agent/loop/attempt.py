"""One streamed attempt: open the scope, pass the tokens on, close the scope.

The stream is read by the run's worker. What may end it early (a cancel, silence, the total
time) does so through one `Interruption`, which wakes the reader; whoever reads then asks why.
The law: once interrupted, not one more token of this attempt is published.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Literal

import attrs

from llm_agent.codec import error_text, text_of
from llm_agent.errors import ERROR_CLASSES, BackendError
from llm_agent.events import AttemptStarted, AttemptSucceeded
from llm_agent.loop.config import completion_cap, model_name
from llm_agent.loop.scope import Scope
from llm_agent.loop.state import RunState
from llm_agent.messages import Delta, Reply, Usage
from llm_agent.ports import Backend, CompletionRequest
from llm_agent.watchdog import WATCHDOG

Cause = Literal["cancelled", "inactivity", "attempt-timeout"]


@attrs.frozen(kw_only=True)
class AttemptFailure:
    """Why an attempt gave no reply."""

    error: BackendError
    model: str
    usage: Usage
    streamed: str
    is_truncation: bool = False
    """The completion was cut at its cap: the same request would be cut again."""


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

    def __init__(self, state: RunState, backend: Backend, request: CompletionRequest, stop: Interruption) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._handed_over: Iterable[Delta | str] | None = None
        self._stop = stop
        stop.wakes(lambda: self._queue.put(_WAKE))
        state.slot.start(lambda: self._produce(backend, request))

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


# -- the attempt -------------------------------------------------------------------------


class Attempt:
    """One request to one backend of the chain."""

    def __init__(self, state: RunState, backend_index: int, number: int) -> None:
        self._state = state
        self._backend = state.config.backends[backend_index]
        self._backend_index = backend_index
        self._number = number
        self._model = model_name(self._backend)
        self._stop = Interruption()
        publish, round_no = state.core.channel.publish_token, state.round_no
        self._scope = Scope(lambda text: publish(text, round_no, number))

    def run(self) -> Reply | AttemptFailure:
        """Ask once.

        Raises:
            RunStopped: cancelled; a cancel wins even over a completion that has just arrived.
        """
        state = self._state
        state.is_turn_open = True
        state.core.set_stage("streaming", round=state.round_no, backend=self._backend_index, model=self._model)
        state.emit(
            AttemptStarted(
                round=state.round_no, attempt=self._number, backend_index=self._backend_index, model=self._model
            )
        )
        started = monotonic()
        sent = len(state.conversation.wire.messages)
        error = self._stream()
        self._record_usage(sent)
        if state.core.cancel.is_set:
            raise state.discard_cancelled("streaming")
        failure = self._failure(error)
        if failure is not None:
            return failure
        self._announce_success((monotonic() - started) * 1000.0)
        return self._scope.reply()

    def _stream(self) -> BackendError | None:
        """Read the completion to its end, or to what ended it; returns why it is no completion."""
        config, stop = self._state.config, self._stop
        silence = WATCHDOG.watch(config.round_trip_timeout, lambda: stop.interrupt("inactivity"))
        total = (
            None
            if config.attempt_timeout is None
            else WATCHDOG.watch(config.attempt_timeout, lambda: stop.interrupt("attempt-timeout"))
        )
        forget = self._state.core.cancel.on_cancel(lambda: stop.interrupt("cancelled"))
        try:
            self._read(silence.touch)
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

    def _read(self, touch: Callable[[], None]) -> None:
        request = CompletionRequest(
            messages=self._state.request_messages(), tools=self._state.tools, cancelled=self._stop.event
        )
        source = Source(self._state, self._backend, request, self._stop)
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
        config = self._state.config
        match self._stop.cause:
            case "inactivity":
                return BackendError(f"no activity for {config.round_trip_timeout:g} s", "timeout")
            case "attempt-timeout":
                return BackendError(f"no end of the completion within {config.attempt_timeout:g} s", "timeout")
            case _:
                return None

    def _record_usage(self, sent: int) -> None:
        usage = self._scope.usage
        self._state.bill.record(self._model, usage)
        if usage.prompt_tokens is not None:
            self._state.config.counter.record_usage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                message_count=sent,
                prefix_digest=self._state.wire_digest(),
                backend=self._model,
            )

    def _failure(self, error: BackendError | None) -> AttemptFailure | None:
        """Judge what came: an error, a truncation, nothing at all, or a completion (`None`)."""
        scope = self._scope
        cap = completion_cap(self._backend)
        if error is not None:
            if scope.finish_reason != "length" or error.error_class == "timeout":
                return self._failed(error)
            words = f"{error.message}; {_truncation(cap)}"
            named = BackendError(words, error.error_class, error.status, error.retry_after, error.body)
            return self._failed(named, is_truncation=True)
        used = scope.usage.completion_tokens
        is_clipped = cap is not None and used is not None and used >= cap
        if scope.finish_reason == "length" or is_clipped:
            if scope.finish_reason != "length":
                self._log_clip(cap, used)
            return self._failed(BackendError(_truncation(cap), "response"), is_truncation=True)
        if not scope.text and not scope.tool_calls and scope.finish_reason != "stop":
            said = "no finish reason" if scope.finish_reason is None else f"finish reason {scope.finish_reason!r}"
            return self._failed(BackendError(f"the completion has neither text nor tool calls, and {said}", "response"))
        return None

    def _failed(self, error: BackendError, *, is_truncation: bool = False) -> AttemptFailure:
        return AttemptFailure(
            error=error,
            model=self._model,
            usage=self._scope.usage,
            streamed=self._scope.text,
            is_truncation=is_truncation,
        )

    def _log_clip(self, cap: int | None, used: int | None) -> None:
        self._state.log(
            "warning",
            {
                "message": "the completion used its whole cap and is taken as truncated, whatever it says",
                "backend-index": self._backend_index,
                "model": self._model,
                "finish-reason": self._scope.finish_reason,
                "completion-tokens": used,
                "cap": cap,
            },
        )

    def _announce_success(self, latency_ms: float) -> None:
        scope = self._scope
        self._state.emit(
            AttemptSucceeded(
                round=self._state.round_no,
                attempt=self._number,
                backend_index=self._backend_index,
                model_used=scope.model,
                finish_reason=scope.finish_reason,
                usage=scope.usage,
                latency_ms=latency_ms,
            )
        )


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


def _truncation(cap: int | None) -> str:
    limit = "its cap" if cap is None else f"its cap of {cap} tokens"
    return (
        f"the completion was cut at {limit}, or at the end of the context window; the same request would be cut again"
    )
