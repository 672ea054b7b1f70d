"""What a run was billed: every attempt that was started, failed and cancelled ones included.

Absent is not zero: a number nobody reported stays `None`, and one attempt without a total
makes the bill incomplete.
"""

from __future__ import annotations

import attrs

from llm_agent.messages import Usage
from llm_agent.outcome import ModelSpend, Spent


@attrs.define(eq=False)
class Bill:
    """Owned by the run's worker; no lock."""

    _total: ModelSpend = attrs.field(factory=ModelSpend, init=False)
    _by_model: dict[str, ModelSpend] = attrs.field(factory=dict, init=False)

    def record(self, model: str, usage: Usage) -> None:
        """Add one attempt at *model*, with whatever it reported."""
        self._total = self._total.plus(usage)
        self._by_model[model] = self._by_model.get(model, ModelSpend()).plus(usage)

    def spent(self, wall_clock: float) -> Spent:
        """Return the bill so far; *wall_clock* in seconds of work."""
        total = {field.name: getattr(self._total, field.name) for field in attrs.fields(ModelSpend)}
        return Spent(**total, wall_clock=wall_clock, by_model=dict(self._by_model))
