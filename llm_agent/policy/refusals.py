"""What the model, and a machine, are told of a call that was not let through.

The law: the words say what is known and no more: expired is not refused, and a rule that only
might mean the call is told as one that could not be checked. Who decides does not live here.
"""

from __future__ import annotations

from typing import Any, Final

from llm_agent import notices
from llm_agent.layers import refused, shortened
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.policy.answers import Answer
from llm_agent.policy.asking import Entry
from llm_agent.policy.evaluation import Verdict

TOOL_CHARS: Final = 64
"""How much of a tool's name is told: no vendor takes longer ones."""


def denied(call: ToolRequest, verdict: Verdict) -> ToolAnswer:
    """Refuse *call* for a rule."""
    return told(call, verdict, "rule", notices.DENIED_BY_RULE)


def remembered(call: ToolRequest, verdict: Verdict) -> ToolAnswer | None:
    """Return what the grants' *verdict* makes of *call*: a refusal, or `None` where it may run."""
    return None if verdict.decision == "allow" else told(call, verdict, "grant", notices.DENIED_BY_GRANT)


def told(call: ToolRequest, verdict: Verdict, by: str, text: str, **words: Any) -> ToolAnswer:
    """Refuse *call* with a sentence of `notices`, its fields filled in from the verdict and *words*."""
    rule = verdict.rule
    paths = notices.DENIED_PATHS.format(paths=shortened(", ".join(verdict.paths))) if verdict.paths else ""
    filled = text.format(
        tool=shortened(call.name, TOOL_CHARS),
        rule=rule if rule is None or rule.note is None else f"{rule} ({rule.note})",
        paths=paths,
        unsure=notices.DENIED_UNSURE if verdict.reason == "unevaluable-path" else "",
        **words,
    )
    return refused(call, filled, by=by, rule=None if rule is None else rule.to_dict(), reason=verdict.reason)


def unwanted(call: ToolRequest) -> ToolAnswer:
    """Refuse *call* because nobody waits for it any more."""
    return refused(call, notices.ABANDONED_CANCELLED, by="cancel", rule=None, reason="cancelled")


def undecided(call: ToolRequest, reason: str, text: str) -> ToolAnswer:
    """Refuse *call* because the policy could not make anything of it."""
    return refused(call, text, by="policy", rule=None, reason=reason)


def not_asked(call: ToolRequest, verdict: Verdict, entry: Entry) -> ToolAnswer:
    """Refuse *call* because its question did not get its turn."""
    if entry == "cancelled":
        return unwanted(call)
    if entry == "reentered":
        return told(call, verdict, "prompt", notices.DENIED_REENTERED)
    return told(call, verdict, "expired", notices.DENIED_EXPIRED)


def answered(call: ToolRequest, verdict: Verdict, answer: Answer) -> ToolAnswer | None:
    """Return what a human's answer makes of *call*: a refusal, or `None` where it may run."""
    if answer.is_allowed:
        return None
    if answer.action == "expired":
        return told(call, verdict, "expired", notices.DENIED_EXPIRED)
    why = notices.DENIED_WHY.format(why=answer.reason) if answer.reason else ""
    if answer.action == "deny-once":
        return told(call, verdict, "human", notices.DENIED_BY_HUMAN, why=why)
    rules = "; ".join(map(str, answer.rules))
    return told(call, verdict, "human", notices.DENIED_ALWAYS, rules=rules, why=why)
