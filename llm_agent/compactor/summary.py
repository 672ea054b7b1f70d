"""Asking the summarisers, one after the other, until one has written notes.

The law: no bytes are sent again that cannot do better. What is too large for a summariser, or
came back cut, is never repeated to it; what a wait may cure is, as the chain of a run would.
A request carries no tools. Whether notes are good enough is not known here.
"""

from __future__ import annotations

import threading
from typing import Any

import attrs

from llm_agent import notices
from llm_agent.errors import BackendError
from llm_agent.messages import Message, Usage
from llm_agent.overflow import says_overflow
from llm_agent.ports import Backend
from llm_agent.retry import DEFAULT_RETRY_AFTER_CAP, RetryPolicy, classify_error
from llm_agent.scope import Scope
from llm_agent.slot import Slot
from llm_agent.streaming import Clocks, read_completion


@attrs.frozen(kw_only=True)
class Terms:
    """Who is asked, how often, and for how long."""

    backends: tuple[Backend, ...]
    retry: RetryPolicy
    clocks: Clocks


@attrs.frozen
class Notes:
    """What a summariser wrote."""

    text: str
    author: Backend
    is_cut: bool = False
    """It ran into its cap: too long, and no summary."""


class Summarising:
    """The requests of one compaction: `first`, and after notes that were too long `tighter`.

    One owner; `close` it. A cancel ends whatever is being waited for, at once.
    """

    def __init__(self, terms: Terms, transcript: str, cancelled: threading.Event) -> None:
        self._terms = terms
        self._transcript = transcript
        self._cancelled = cancelled
        self._slot = Slot("llm-agent-summary")
        self.billed: list[tuple[str, Usage]] = []
        """Every request, in order: the model, and what it reported."""

    def close(self) -> None:
        """Let the thread go that the summarisers were called on; one that hangs is left behind."""
        self._slot.close()

    def first(self) -> Notes | None:
        """Return the first notes that a summariser writes, cut ones too; `None` when none will, or at a cancel."""
        last = len(self._terms.backends) - 1
        for index, backend in enumerate(self._terms.backends):
            notes = self._persist(backend, is_last=index == last)
            if notes is not None or self._cancelled.is_set():
                return notes
        return None

    def tighter(self, before: Notes) -> Notes | None:
        """Ask the author of *before* once more, to be shorter; `None` when that fails or is cut again."""
        answer = self._ask(before.author, f"{notices.SUMMARY_INSTRUCTION}\n{notices.SUMMARY_TIGHTER}")
        return answer if isinstance(answer, Notes) and not answer.is_cut else None

    def _persist(self, backend: Backend, *, is_last: bool) -> Notes | None:
        attempts = 0
        while True:
            answer = self._ask(backend, notices.SUMMARY_INSTRUCTION)
            if isinstance(answer, Notes):
                return answer
            attempts += 1
            backoff = self._backoff(backend, answer, attempts, is_last=is_last)
            if backoff is None or self._cancelled.wait(backoff):
                return None

    def _backoff(self, backend: Backend, error: BackendError, attempts: int, *, is_last: bool) -> float | None:
        """Return the seconds until *backend* is asked again; `None` when it is not."""
        if says_overflow(error):
            return None
        cap = _told(backend, "retry_after_cap")
        return self._terms.retry.decide(
            classify_error(error.error_class, error.status),
            attempts=attempts,
            is_last=is_last,
            may_degrade=True,
            retry_after=error.retry_after,
            retry_after_cap=cap if isinstance(cap, int | float) else DEFAULT_RETRY_AFTER_CAP,
        ).backoff

    def _ask(self, backend: Backend, instruction: str) -> Notes | BackendError:
        scope = Scope(publish=_nobody_listens)
        error = read_completion(
            backend,
            (Message.system(instruction), Message.user(self._transcript)),
            scope=scope,
            slot=self._slot,
            clocks=self._terms.clocks,
            cancelled=self._cancelled,
        )
        self.billed.append((str(_told(backend, "model") or "unknown"), scope.usage))
        if self._cancelled.is_set():
            return BackendError("nobody wants the summary any more")
        return _judged(backend, scope, error)


def _judged(backend: Backend, scope: Scope, error: BackendError | None) -> Notes | BackendError:
    cap, used = _told(backend, "max_tokens"), scope.usage.completion_tokens
    is_clipped = error is None and isinstance(cap, int) and used is not None and used >= cap
    if is_clipped or scope.finish_reason == "length":
        return Notes(scope.text, backend, is_cut=True)
    if error is not None:
        return error
    if scope.tool_calls:
        return BackendError("the summariser called a tool; it was offered none", "response")
    text = scope.text.strip()
    return Notes(text, backend) if text else BackendError("the summary is blank", "response")


def _told(backend: Backend, name: str) -> Any:
    try:
        return getattr(backend, name, None)
    except Exception:  # a shield: foreign properties; none of these is worth a compaction
        return None


def _nobody_listens(_: str) -> None:
    """Take a piece of text; the whole is read at the end."""
