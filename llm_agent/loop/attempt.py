"""One streamed attempt: open the scope, pass the tokens on, close the scope.

`streaming` reads; here the attempt is announced, billed and judged: a reply, or why it is none.
"""

from __future__ import annotations

from time import monotonic
from typing import Literal

import attrs

from llm_agent.budget import exceeds_window
from llm_agent.errors import BackendError
from llm_agent.events import AttemptStarted, AttemptSucceeded
from llm_agent.loop.state import RunState
from llm_agent.messages import Reply, Usage
from llm_agent.ports import completion_cap, model_name
from llm_agent.scope import Scope
from llm_agent.streaming import Clocks, read_completion

Cut = Literal["completion", "prompt"]


@attrs.frozen(kw_only=True)
class AttemptFailure:
    """Why an attempt gave no reply."""

    error: BackendError
    model: str
    usage: Usage
    streamed: str
    cut: Cut | None = None
    """The same request would be cut again: the completion, at its cap or the window's end; or the prompt, silently."""


class Attempt:
    """One request to one backend of the chain."""

    def __init__(self, state: RunState, backend_index: int, number: int) -> None:
        self._state = state
        self._backend = state.config.backends[backend_index]
        self._backend_index = backend_index
        self._number = number
        self._model = model_name(self._backend)
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
        state.warn_of_blind_caps(self._model, self._scope.usage)
        return self._scope.reply()

    def _stream(self) -> BackendError | None:
        """Read the completion to its end, or to what ended it; returns why it is no completion."""
        config = self._state.config
        return read_completion(
            self._backend,
            self._state.request_messages(),
            self._state.tools,
            scope=self._scope,
            slot=self._state.slot,
            clocks=Clocks(silence=config.round_trip_timeout, total=config.attempt_timeout),
            cancelled=self._state.core.cancel.event,
        )

    def _record_usage(self, sent: int) -> None:
        usage = self._scope.usage
        self._state.bill.record(self._model, usage)
        if usage.prompt_tokens is not None:
            self._state.counter_for(self._backend_index).record_usage(
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
            return self._failed(named, cut="completion")
        if scope.finish_reason == "length" or scope.uses_up(cap):
            if scope.finish_reason != "length":
                self._log_clip(cap, scope.usage.completion_tokens)
            return self._failed(BackendError(_truncation(cap), "response"), cut="completion")
        window = self._state.config.declared_window_of(self._backend_index)
        if window is not None and exceeds_window(window, scope.usage):
            billed = scope.usage.prompt_tokens
            words = f"the bill says {billed} prompt tokens, the window has {window.size}: the prompt was cut silently"
            return self._failed(BackendError(words, "response"), cut="prompt")
        if not scope.text and not scope.tool_calls and scope.finish_reason != "stop":
            said = "no finish reason" if scope.finish_reason is None else f"finish reason {scope.finish_reason!r}"
            return self._failed(BackendError(f"the completion has neither text nor tool calls, and {said}", "response"))
        return None

    def _failed(self, error: BackendError, *, cut: Cut | None = None) -> AttemptFailure:
        return AttemptFailure(
            error=error,
            model=self._model,
            usage=self._scope.usage,
            streamed=self._scope.text,
            cut=cut,
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


def _truncation(cap: int | None) -> str:
    limit = "its cap" if cap is None else f"its cap of {cap} tokens"
    return (
        f"the completion was cut at {limit}, or at the end of the context window; the same request would be cut again"
    )
