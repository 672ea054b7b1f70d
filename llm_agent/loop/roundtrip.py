"""The backend chain: one completion per round, from the first backend that gives it.

Each round trip starts again at the first backend, with its full number of attempts.
`retry.RetryPolicy` decides what a failure means; this room obeys, and tells.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from llm_agent.budget import Misfit, is_window_cut
from llm_agent.codec import error_text, text_of
from llm_agent.errors import BackendError
from llm_agent.events import DISPOSITIONS, AttemptFailed, AttemptRecord, Disposition
from llm_agent.loop import window
from llm_agent.loop.attempt import Attempt, AttemptFailure
from llm_agent.loop.state import RunState
from llm_agent.messages import Reply
from llm_agent.outcome import Failed, RunStopped
from llm_agent.overflow import says_overflow
from llm_agent.ports import model_name
from llm_agent.retry import DEFAULT_RETRY_AFTER_CAP, Decision, classify_error


@attrs.frozen
class Aborted:
    """A failure that no other backend, and no other attempt, can mend."""

    error: str
    reason: str | None = None


@attrs.frozen
class NothingFits:
    """No backend gave a reply, and a smaller request is what might help."""

    refusals: tuple[window.Refusal, ...]
    errors: tuple[str, ...]
    is_total: bool
    """Whether size is all that stood in the way."""


@attrs.frozen
class EveryBackendFailed:
    errors: tuple[str, ...]


def round_trip(state: RunState) -> Reply:
    """Return one completion for this round, from the first backend that gives it.

    Raises:
        RunStopped: cancelled, no backend gave one, or the request cannot be made to fit.
    """
    outcome = _Chain(state).ask()
    if isinstance(outcome, NothingFits) and window.force_room(state, outcome.refusals):
        outcome = _Chain(state).ask()
    match outcome:
        case Reply():
            return outcome
        case NothingFits(refusals, is_total=True):
            raise window.exhausted(state, refusals)
        case Aborted(error, reason):
            state.discard_turn("failed")
            raise RunStopped(Failed(error=error, reason=reason))
        case NothingFits(errors=errors) | EveryBackendFailed(errors):
            state.discard_turn("failed")
            raise RunStopped(Failed(error="every backend failed: " + "; ".join(errors)))
        case _:
            assert_never(outcome)


class _Chain:
    """One walk along the backends."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._attempts = 0
        self._errors: list[str] = []
        self._refusals: list[window.Refusal] = []

    def ask(self) -> Reply | Aborted | NothingFits | EveryBackendFailed:
        backends = self._state.config.backends
        for index in range(len(backends)):
            misfit = window.misfit(self._state, index)
            if misfit is not None:
                self._skip(index, misfit)
                continue
            outcome = self._ask_backend(index)
            if outcome is not None:
                return outcome
        is_total = len(self._refusals) == len(backends)
        config = self._state.config
        if self._refusals and config.budget is not None and (is_total or config.compactor is not None):
            return NothingFits(tuple(self._refusals), tuple(self._errors), is_total)
        return EveryBackendFailed(tuple(self._errors))

    def _skip(self, index: int, misfit: Misfit) -> None:
        """Note a backend that was not asked: no attempt began, no retry is spent."""
        refusal = window.unsent(self._state, index, misfit)
        model = model_name(self._state.config.backends[index])
        self._errors.append(refusal.problem)
        self._refusals.append(refusal)
        self._state.failures.append(
            AttemptRecord(backend_index=index, model=model, error=refusal.problem, disposition="advance")
        )
        self._log_size("info", index, str(misfit), misfit.needed, misfit.window.size)

    def _log_size(self, level: str, index: int, message: str, needed: int, size: int) -> None:
        self._state.log(
            level,
            {
                "message": message,
                "backend-index": index,
                "model": model_name(self._state.config.backends[index]),
                "needed": needed,
                "window": size,
            },
        )

    def _ask_backend(self, index: int) -> Reply | Aborted | None:
        """Ask one backend until it answers, or until it is another's turn (`None`)."""
        for attempts_here in range(1, self._state.config.retry.max_attempts + 1):
            if self._state.core.cancel.is_set:
                raise self._state.discard_cancelled("streaming")
            self._attempts += 1
            outcome = Attempt(self._state, index, self._attempts).run()
            if isinstance(outcome, Reply):
                return outcome
            error = f"[backend {index}] {outcome.error.message}"
            decision = self._decide(index, attempts_here, outcome)
            self._tell(index, outcome, error, decision)
            if decision.disposition == "abort":
                return Aborted(error, "completion-truncated" if outcome.cut else None)
            if decision.backoff is None:
                return None
            self._wait(index, outcome.model, decision.backoff)
        return None

    def _decide(self, index: int, attempts_here: int, failure: AttemptFailure) -> Decision:
        refusal = self._size_refusal(index, failure)
        if refusal is not None:
            self._refusals.append(refusal)
            return Decision("advance")
        if failure.cut:
            return Decision("abort")
        config, error = self._state.config, failure.error
        return config.retry.decide(
            self._classified(error),
            attempts=attempts_here,
            is_last=index == len(config.backends) - 1,
            may_degrade=True,
            retry_after=error.retry_after,
            retry_after_cap=getattr(config.backends[index], "retry_after_cap", DEFAULT_RETRY_AFTER_CAP),
        )

    def _size_refusal(self, index: int, failure: AttemptFailure) -> window.Refusal | None:
        """Return what there is to say where this backend would refuse, or cut, the same request again for its size."""
        size = self._state.config.window_of(index)
        if failure.cut is None:
            return window.refused(self._state, index, failure.error) if says_overflow(failure.error) else None
        if size is None:
            return None
        if failure.cut == "completion":
            counted = window.counted(self._state, index)
            if not is_window_cut(size, counted, failure.usage):
                return None
            words = "the completion was cut at the end of the window"
            self._log_size("warning", index, words, counted + size.margin, size.size)
        return window.cut(self._state, index, size, failure.usage, failure.error.message)

    def _classified(self, error: BackendError) -> Disposition:
        """Ask the loop's `classify`; a verdict that is none falls back to the engine's own."""
        try:
            bucket = self._state.config.classify(error.error_class, error.status)
            if bucket in DISPOSITIONS:
                return bucket
            problem = f"expected one of {', '.join(DISPOSITIONS)}, got {text_of(bucket)}"
        except Exception as exc:  # a shield: the failure to be judged is the news, not the judge's
            problem = error_text(exc)
        self._state.log("error", f"classify failed, the engine's own rules decide: {problem}")
        return classify_error(error.error_class, error.status)

    def _tell(self, index: int, failure: AttemptFailure, error: str, decision: Decision) -> None:
        usage = failure.usage if failure.usage.to_dict() else None
        self._errors.append(error)
        self._state.failures.append(
            AttemptRecord(
                backend_index=index,
                model=failure.model,
                error=error,
                raw_text=failure.streamed or None,
                usage=usage,
            )
        )
        self._state.emit(
            AttemptFailed(
                round=self._state.round_no,
                attempt=self._attempts,
                backend_index=index,
                model=failure.model,
                error=error,
                error_class=failure.error.error_class,
                error_status=failure.error.status,
                disposition=decision.disposition,
                backoff=decision.backoff,
                retry_after=failure.error.retry_after,
                usage=usage,
            )
        )

    def _wait(self, index: int, model: str, seconds: float) -> None:
        core = self._state.core
        core.set_stage("backoff", round=self._state.round_no, backend=index, model=model)
        if not core.cancel.wait(seconds):
            raise self._state.discard_cancelled("backoff")
