"""What a run was billed: every attempt that was started, failed and cancelled ones included.

The law: absent is not zero. A number nobody reported stays `None`, and one attempt without a
total makes the bill incomplete. A price table may stand in for a cost that was not reported;
the sum then says that it is an estimate. What a run may spend is not known here: `budget`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from llm_agent.errors import ConfigError
from llm_agent.messages import Usage
from llm_agent.outcome import ModelSpend, Spent, as_decimal

if TYPE_CHECKING:
    from decimal import Decimal

    Amount = int | float | Decimal

# Vendors publish their prices so.
_TOKENS_PER_UNIT: Final = 1_000_000


def is_amount(value: Any) -> bool:
    """Return whether *value* is an int, float or Decimal of 0 or more; no bool, nothing infinite."""
    if isinstance(value, int | float):
        return not isinstance(value, bool) and math.isfinite(value) and value >= 0
    from decimal import Decimal  # not at the top: 2 % of importing the library

    return isinstance(value, Decimal) and value.is_finite() and value >= 0


def _amount(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not is_amount(value):
        raise ConfigError(
            f"Price: {attribute.name} must be an amount per million tokens, a number of 0 or more, got {value!r}"
        )


@attrs.frozen(kw_only=True)
class Price:
    """What a model costs, in any currency, per million tokens."""

    prompt: Amount = attrs.field(validator=_amount)
    completion: Amount = attrs.field(validator=_amount)
    cached_prompt: Amount | None = attrs.field(default=None, validator=attrs.validators.optional(_amount))
    """For prompt tokens read from a cache; `None`: the same as any other."""

    def cost_of(self, usage: Usage) -> float | None:
        """Return the cost of one request; `None` unless both its halves were reported."""
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        prompt, completion = as_decimal(usage.prompt_tokens), as_decimal(usage.completion_tokens)
        cached = min(prompt, as_decimal(usage.cached_prompt_tokens or 0))
        cached_price = self.prompt if self.cached_prompt is None else self.cached_prompt
        total = (
            (prompt - cached) * as_decimal(self.prompt)
            + cached * as_decimal(cached_price)
            + completion * as_decimal(self.completion)
        )
        return float(total / _TOKENS_PER_UNIT)


_PRICE_KEYS: Final = tuple(field.name for field in attrs.fields(Price))


def checked_prices(value: Any) -> dict[str, Price]:
    """Read a price table: model name to `Price`, or to a mapping with the same keys; `None` is an empty one.

    Raises:
        ConfigError: names the model, and the key where one is wrong.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"prices must be a mapping of model name to Price, got {value!r}")
    return {_checked_model(model): _checked_price(model, price) for model, price in value.items()}


def _checked_model(model: Any) -> str:
    if not isinstance(model, str):
        raise ConfigError(f"prices: a model name must be a str, got {model!r}")
    return model


def _checked_price(model: str, price: Any) -> Price:
    if isinstance(price, Price):
        return price
    if not isinstance(price, Mapping):
        raise ConfigError(f"prices[{model!r}] must be a Price or a mapping, got {price!r}")
    strange = [key for key in price if key not in _PRICE_KEYS]
    missing = [key for key in ("prompt", "completion") if key not in price]
    if strange or missing:
        raise ConfigError(
            f"prices[{model!r}]: expected the keys prompt, completion and perhaps cached_prompt, "
            + (f"got {strange[0]!r}" if strange else f"{missing[0]} is missing")
        )
    try:
        return Price(**price)
    except ConfigError as error:
        raise ConfigError(f"prices[{model!r}]: {error}") from None


@attrs.define(eq=False)
class Bill:
    """Owned by the run's worker; no lock."""

    _prices: Mapping[str, Price] = attrs.field(factory=dict)
    _total: ModelSpend = attrs.field(factory=ModelSpend, init=False)
    _by_model: dict[str, ModelSpend] = attrs.field(factory=dict, init=False)

    def record(self, model: str, usage: Usage) -> None:
        """Add one attempt at *model*, with whatever it reported."""
        price = self._prices.get(model)
        estimated = None if price is None else price.cost_of(usage)
        self._total = self._total.plus(usage, estimated)
        self._by_model[model] = self._by_model.get(model, ModelSpend()).plus(usage, estimated)

    def note_unknown(self) -> None:
        """Something was asked whose bill nobody will see: no attempt of the run, but it may have cost."""
        self._total = attrs.evolve(self._total, complete=False)

    def spent(self, wall_clock: float) -> Spent:
        """Return the bill so far; *wall_clock* in seconds of work."""
        total = {field.name: getattr(self._total, field.name) for field in attrs.fields(ModelSpend)}
        return Spent(**total, wall_clock=wall_clock, by_model=dict(self._by_model))
