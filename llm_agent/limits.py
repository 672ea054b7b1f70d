"""How many tool rounds, calls and identical calls a run may have: arithmetic only.

Checked once per turn that asks for tools, before anything of it is committed. Only calls
that were dispatched count in the history, whatever became of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs

from llm_agent.patterns import matches_any


@attrs.frozen
class LimitHit:
    """Which limit a turn would break, what it would come to, and what is allowed."""

    limit: str
    count: int
    max: int


@attrs.frozen(kw_only=True)
class Limits:
    """What a run may do. Each number is inclusive: a run may reach it."""

    max_tool_rounds: int = 1000
    max_tool_calls: int = 10_000
    # 30, not a handful: retries of a lock and re-reads to verify are legitimate repetition.
    max_identical_calls: int = 30
    identical_call_exempt: tuple[str, ...] = ()

    def check(self, tally: Tally, batch: Iterable[tuple[str, str]]) -> LimitHit | None:
        """Return the first limit that *batch*, (tool, signature) pairs, would break; `None` if none."""
        calls = list(batch)
        if tally.rounds >= self.max_tool_rounds:
            return LimitHit("tool-rounds", tally.rounds, self.max_tool_rounds)
        if tally.calls + len(calls) > self.max_tool_calls:
            return LimitHit("tool-calls", tally.calls + len(calls), self.max_tool_calls)
        counted = Counter(sig for tool, sig in calls if not matches_any(self.identical_call_exempt, tool))
        for signature, count in counted.items():
            would_be = tally.by_signature[signature] + count
            if would_be > self.max_identical_calls:
                return LimitHit("identical-calls", would_be, self.max_identical_calls)
        return None


@attrs.define(eq=False)
class Tally:
    """What a run has done so far; a resumed run starts at zero."""

    rounds: int = 0
    calls: int = 0
    by_signature: Counter[str] = attrs.field(factory=Counter)

    def count(self, signatures: Iterable[str]) -> None:
        """Count calls that were dispatched."""
        for signature in signatures:
            self.calls += 1
            self.by_signature[signature] += 1
