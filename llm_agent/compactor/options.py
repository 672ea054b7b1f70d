"""What a compactor was told, checked once, in the caller's thread.

What cannot work is refused here, by a `ConfigError` that names the option, what was expected
and what came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import attrs

from llm_agent.compactor.aging import Rules
from llm_agent.compactor.summary import Terms
from llm_agent.errors import ConfigError
from llm_agent.ports import Backend, TokenCounter
from llm_agent.retry import RetryPolicy
from llm_agent.streaming import Clocks


def _check_whole(option: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"Compactor: {option} must be a whole number of at least {least}, got {value!r}")


def _whole(least: int) -> Any:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        _check_whole(attribute.name, value, least)

    return attrs.field(validator=check)


def _above_zero(option: str, value: Any, what: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"Compactor: {option} must be {what} above 0, got {value!r}")
    return float(value)


def _ratio() -> Any:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        _above_zero(attribute.name, value, "a number")

    return attrs.field(validator=check)


@attrs.frozen(kw_only=True)
class Settings:
    """A compactor's options, as `Compactor` describes them."""

    context_budget: int = _whole(least=1)
    trigger_ratio: float = _ratio()
    target_ratio: float = _ratio()
    keep_recent: int = _whole(least=0)
    tool_result_cap: int = _whole(least=1)
    age_min_chars: int = _whole(least=0)
    # Not 0: a pass would be worth it with nothing to gain, in every round.
    age_reclaim_min: int = _whole(least=1)
    age_observations: bool = attrs.field()
    terms: Terms

    @age_observations.validator
    def _check_flag(self, _: Any, value: Any) -> None:
        if not isinstance(value, bool):
            raise ConfigError(f"Compactor: age_observations must be True or False, got {value!r}")

    def __attrs_post_init__(self) -> None:
        if self.target_ratio >= self.trigger_ratio:
            raise ConfigError(
                "Compactor: target_ratio must be below trigger_ratio, "
                f"got target_ratio={self.target_ratio!r}, trigger_ratio={self.trigger_ratio!r}"
            )

    @property
    def trigger(self) -> int:
        """Tokens."""
        return _part(self.context_budget, self.trigger_ratio)

    @property
    def target(self) -> int:
        """Tokens."""
        return _part(self.context_budget, self.target_ratio)

    @property
    def age_rules(self) -> Rules:
        return Rules(self.age_min_chars, self.age_reclaim_min)


def _part(budget: int, ratio: float) -> int:
    # Rounded first: 0.07 of 100 is 7, not the 8 that the last bit of the product would make it.
    return math.ceil(round(budget * ratio, 6))


def terms_of(backend: Any, max_attempts: Any, backoff_cap: Any, round_trip_timeout: Any, attempt_timeout: Any) -> Terms:
    """Return how the summarisers are asked."""
    _check_whole("max_attempts", max_attempts, 1)
    seconds = "a number of seconds"
    return Terms(
        backends=_backends(backend),
        retry=RetryPolicy(max_attempts=max_attempts, backoff_cap=_above_zero("backoff_cap", backoff_cap, seconds)),
        clocks=Clocks(
            silence=_above_zero("round_trip_timeout", round_trip_timeout, seconds),
            total=None if attempt_timeout is None else _above_zero("attempt_timeout", attempt_timeout, seconds),
        ),
    )


def _backends(given: Any) -> tuple[Backend, ...]:
    backends = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else (given,)
    if not backends:
        raise ConfigError("Compactor: backend must name at least one summariser, got an empty list")
    for one in backends:
        if isinstance(one, type) or not callable(getattr(one, "stream", None)):
            raise ConfigError(f"Compactor: backend must be an object with stream(request), or a list, got {_kind(one)}")
    return cast("tuple[Backend, ...]", backends)


def checked_counter(counter: Any) -> TokenCounter:
    """Return *counter*, which must be one."""
    for method in ("count_messages", "invalidate"):
        if isinstance(counter, type) or not callable(getattr(counter, method, None)):
            raise ConfigError(f"Compactor: counter must have {method}(), got {_kind(counter)}")
    return cast("TokenCounter", counter)


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
