"""What a human answered, in one shape; whatever else came is a problem with words.

The law: an answer is understood whole or not at all, and one that is not understood refuses the
call it was about and is remembered for no other. Who is asked, and when, does not live here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

import attrs

from llm_agent.errors import ConfigError
from llm_agent.policy.grants import SCOPES, Scope
from llm_agent.policy.rules import Decision, Rule, read_rule

Action = Literal["allow-once", "deny-once", "always-allow", "always-deny", "expired"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
_REMEMBERED: Final[Mapping[str, Decision]] = {"always-allow": "allow", "always-deny": "deny"}
# No longer, or the moment at which it ends has no date; who means longer leaves it out.
_MOST_SECONDS: Final = 100 * 365 * 86_400
_MEMBERS: Final = ("action", "rule", "rules", "scope", "expires-in", "reason")


@attrs.frozen(kw_only=True)
class Answer:
    """A human's answer to a permission question."""

    action: Action
    rules: tuple[Rule, ...] = ()
    """What is to be remembered; for an "always", at least one."""
    scope: Scope | None = None
    expires_in: float | None = None
    """Seconds that what is remembered holds."""
    reason: str | None = None
    """Why not, in the human's words, for the model."""

    @property
    def is_allowed(self) -> bool:
        return self.action in ("allow-once", "always-allow")


def read_answer(raw: Any, suggestion: Rule | None) -> Answer:
    """Return *raw* as an answer.

    Args:
        raw: `True` (allow once), `False` or `None` (deny once), an action, or a mapping of an
            action with `rule` or `rules`, `scope`, `expires-in` (seconds) and `reason`.
        suggestion: what an "always" remembers that names no rule.

    Raises:
        ConfigError: anything else; says what.
    """
    match raw:
        case bool() | None:
            return Answer(action="allow-once" if raw else "deny-once")
        case str():
            return _read({"action": raw}, suggestion)
        case Mapping():
            return _read(raw, suggestion)
        case _:
            raise ConfigError(f"expected an action, or a mapping with one, got {type(raw).__name__}")


def _read(raw: Mapping[str, Any], suggestion: Rule | None) -> Answer:
    action = raw.get("action")
    if action not in ACTIONS:
        raise ConfigError(f"action: expected one of {', '.join(ACTIONS)}, got {action!r}")
    unknown = [str(member) for member in raw if member not in _MEMBERS]
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such member; an answer has {', '.join(_MEMBERS)}")
    decision = _REMEMBERED.get(action)
    return Answer(
        action=cast("Action", action),
        rules=() if decision is None else _rules(raw, decision, suggestion),
        scope=_scope(raw.get("scope")),
        expires_in=_seconds(raw.get("expires-in")),
        reason=_words(raw.get("reason")),
    )


def _rules(raw: Mapping[str, Any], decision: Decision, suggestion: Rule | None) -> tuple[Rule, ...]:
    rule, rules = raw.get("rule"), raw.get("rules")
    if rule is not None and rules is not None:
        raise ConfigError("expected rule or rules, got both")
    if rules is not None:
        if not isinstance(rules, list | tuple) or not rules:
            raise ConfigError(f"rules: expected a list of at least one rule, got {rules!r}")
        return tuple(_decided(each, f"rules[{index}]", decision) for index, each in enumerate(rules))
    chosen = suggestion if rule is None else rule
    if chosen is None:
        raise ConfigError("rule: nothing narrow enough to be remembered could be suggested; name a rule")
    return (_decided(chosen, "rule", decision),)


def _decided(data: Any, where: str, decision: Decision) -> Rule:
    """The rule as written, with the decision of the action; an answer need not repeat it."""
    if isinstance(data, Mapping):
        return read_rule({**data, "decision": decision}, where)
    return attrs.evolve(read_rule(data, where), decision=decision)


def _scope(value: Any) -> Scope | None:
    if value is not None and value not in SCOPES:
        raise ConfigError(f"scope: expected one of {', '.join(SCOPES)}, got {value!r}")
    return cast("Scope | None", value)


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_SECONDS:
        raise ConfigError(f"expires-in: expected seconds above 0, and no more than a century, got {value!r}")
    return float(value)


def _words(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"reason: expected text, got {type(value).__name__}")
    return value or None
