"""Asking the summarisers, one after the other, until one has written notes.

The law: no bytes are sent again that cannot do better. What is too large for a summariser goes
to the next, and to the last one once more, shorter; what came back cut is not repeated; what a
wait may cure is, as the chain of a run would.
A request carries no tools. Whether notes are good enough is not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import attrs

from llm_agent import notices
from llm_agent.errors import BackendError
from llm_agent.messages import Message, Usage
from llm_agent.overflow import says_overflow, told_sizes
from llm_agent.ports import Backend, completion_cap
from llm_agent.retry import DEFAULT_RETRY_AFTER_CAP, RetryPolicy, classify_error
from llm_agent.scope import Scope
from llm_agent.slot import Slot
from llm_agent.streaming import Clocks, read_completion

# What of a transcript a summariser gets that could not take all of it: half where it does not
# say how much it can take, else that, with room for its notes.
UNTOLD_SHARE: Final = 0.5
TOLD_SHARE: Final = 0.7


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

    def __init__(
        self, terms: Terms, transcript: str, condense: Callable[[float], str], cancelled: threading.Event
    ) -> None:
        """Begin; nothing is asked yet.

        Args:
            transcript: what the summarisers read.
            condense: the same again, cut to a share of itself, for one that cannot take it.
        """
        self._terms = terms
        self._transcript = transcript
        self._condense = condense
        self._cancelled = cancelled
        self._is_condensed = False
        self._slot = Slot("llm-agent-summary")
        self.billed: list[tuple[str, Usage]] = []
        """Every request, in order: the model, and what it reported."""
        self.problems: list[str] = []
        """Why a request gave no notes, or notes of no use; a sentence each."""

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
        instruction = f"{notices.SUMMARY_INSTRUCTION}\n{notices.SUMMARY_TIGHTER}"
        answer = self._ask(before.author, instruction)
        if isinstance(answer, BackendError) and answer.error_class == "connection" and not self._cancelled.is_set():
            answer = self._ask(before.author, instruction)  # nothing has been read yet
        return answer if isinstance(answer, Notes) and not answer.is_cut else None

    def _persist(self, backend: Backend, *, is_last: bool) -> Notes | None:
        attempts = 0
        while True:
            answer = self._ask(backend, notices.SUMMARY_INSTRUCTION)
            if isinstance(answer, Notes):
                return answer
            if says_overflow(answer) and is_last and self._shrinks(answer):
                continue
            attempts += 1
            backoff = self._backoff(backend, answer, attempts, is_last=is_last)
            if backoff is None or self._cancelled.wait(backoff):
                return None

    def _shrinks(self, error: BackendError) -> bool:
        """Cut the transcript to what the last summariser can take, once; whether that is worth a request."""
        if self._is_condensed:
            return False
        self._is_condensed = True
        sizes = told_sizes(error)
        shorter = self._condense(UNTOLD_SHARE if sizes is None else sizes.share * TOLD_SHARE)
        gains = len(shorter) < len(self._transcript)
        self._transcript = shorter
        return gains

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
        model = str(_told(backend, "model") or "unknown")
        self.billed.append((model, scope.usage))
        if self._cancelled.is_set():
            return BackendError("nobody wants the summary any more")
        answer = _judged(backend, scope, error)
        if isinstance(answer, BackendError):
            self.problems.append(f"{model}: {answer.message}")
        elif answer.is_cut:
            self.problems.append(f"{model}: the summary was cut at its cap")
        return answer


def _judged(backend: Backend, scope: Scope, error: BackendError | None) -> Notes | BackendError:
    is_used_up = error is None and scope.uses_up(completion_cap(backend))
    if is_used_up or scope.finish_reason == "length":
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
