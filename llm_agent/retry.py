"""How a failed attempt is judged, and how long to wait before the next.

Pure but for the jitter: no clock, no waiting, no events. `loop.roundtrip` obeys what is
decided here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from llm_agent.events import Disposition

# Asking again cannot help: the request, the key or the account is refused.
_HOPELESS: Final = frozenset({400, 401, 402, 403, 404})
_BY_CLASS: Final[dict[str, Disposition]] = {"timeout": "advance", "connection": "retry-same", "response": "advance"}

DEFAULT_RETRY_AFTER_CAP: Final = 120.0
"""Seconds; the longest wait a server may ask for, where the backend says nothing else."""


def classify_error(error_class: str | None, status: int | None = None, *, parser_failed: bool = False) -> Disposition:
    """Return what a failure calls for, before the chain's own circumstances are weighed.

    Args:
        error_class: as in `BackendError`; anything unknown counts as `unknown`.
        status: the HTTP status, for class `http`.
        parser_failed: the answer arrived and could not be read.
    """
    if parser_failed:
        return "advance"
    if error_class != "http":
        return _BY_CLASS.get(error_class or "", "retry-same")
    if status in _HOPELESS:
        return "abort"
    return "retry-same" if 500 <= (status or 0) <= 599 else "advance"


_no_backoff_depth = 0


@contextmanager
def no_backoff() -> Iterator[None]:
    """Make every retry of this process wait 0 s: for tests, ours and yours."""
    global _no_backoff_depth
    _no_backoff_depth += 1
    try:
        yield
    finally:
        _no_backoff_depth -= 1


def retry_backoff(retry: int, cap: float = 30.0, jitter: float | None = None) -> float:
    """Return the seconds to wait before retry number *retry*, 1-based; never above *cap*.

    Raises:
        ValueError: *retry* is below 1.
    """
    if retry < 1:
        raise ValueError(f"retry_backoff: retry counts from 1, got {retry}")
    if _no_backoff_depth:
        return 0.0
    # Clamped: 2.0**1024 overflows, and the cap has long been reached.
    doubled = 2.0 ** min(retry - 1, 30)
    return min(cap, doubled + (random.uniform(0.0, 0.5) if jitter is None else jitter))


@attrs.frozen
class Decision:
    """What happens after a failed attempt; *backoff* in seconds, only with `retry-same`."""

    disposition: Disposition
    backoff: float | None = None


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """The chain's rules. *max_attempts* is per backend and round trip, the first one included."""

    max_attempts: int = 3
    backoff_cap: float = 30.0

    def decide(
        self,
        bucket: Disposition,
        *,
        attempts: int,
        is_last: bool,
        may_degrade: bool,
        retry_after: float | None = None,
        retry_after_cap: float = DEFAULT_RETRY_AFTER_CAP,
    ) -> Decision:
        """Return what to do after *attempts* attempts at one backend.

        Args:
            bucket: the judgement of `classify_error`.
            attempts: attempts at this backend so far, n >= 1.
            is_last: no other backend follows in the chain.
            may_degrade: whether `advance` with nowhere to go may become a wait; not for a
                request that will never fit.
            retry_after: seconds the server asked for.
        """
        if bucket == "abort":
            return Decision("abort")
        if bucket == "advance" and not (is_last and may_degrade):
            return Decision("advance")
        if attempts >= self.max_attempts:
            return Decision("advance")
        longest = retry_after_cap if is_last else self.backoff_cap
        if retry_after is not None and retry_after > longest:
            return Decision("advance")
        backoff = retry_backoff(attempts, self.backoff_cap)
        return Decision("retry-same", max(backoff, 0.0 if _no_backoff_depth else retry_after or 0.0))
