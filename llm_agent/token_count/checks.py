"""What counts as a number of tokens, and as a counter: said once for all counters.

The law: pure questions, asked at the edge. What is counted lives in the rooms beside this one.
"""

from __future__ import annotations

from typing import Any, TypeGuard, cast

import attrs

from llm_agent.errors import ConfigError
from llm_agent.ports import TokenCounter

# What is called of a counter that estimates for another one.
_ESTIMATING = ("count_messages", "count_text", "count_request")


def is_count(value: Any) -> TypeGuard[int]:
    """Whether *value* is an int, 0 or more; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def whole(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refuse, as an attrs validator, what is no count.

    Raises:
        ConfigError: it is none.
    """
    if not is_count(value):
        raise ConfigError(f"{type(instance).__name__}: {attribute.name} must be an int, 0 or more, got {value!r}")


def has(thing: Any, method: str) -> bool:
    """Whether *thing* can be asked for *method*; a class in place of its instance cannot."""
    return not isinstance(thing, type) and callable(getattr(thing, method, None))


def fallback_of(owner: str, counter: Any) -> TokenCounter:
    """Return *counter* if it can estimate for *owner*.

    Raises:
        ConfigError: it is no counter.
    """
    for method in _ESTIMATING:
        if not has(counter, method):
            raise ConfigError(f"{owner}: fallback must be a counter with {method}(), got {counter!r}")
    return cast("TokenCounter", counter)
