"""Permissions: rules in front of tools, a human behind the rules.

`Policy` is a provider around a provider. Rules deny, ask or allow a call (deny wins, then ask);
what a human answers "always" is a `Grant`, kept in the transcript and revocable.
"""

from __future__ import annotations

from llm_agent.policy.asking import AskLock, AskRequest
from llm_agent.policy.danger import DangerFloor, danger_floor, default_rules
from llm_agent.policy.evaluation import Facts, Verdict
from llm_agent.policy.grants import Grant, Grants
from llm_agent.policy.policy import Policy
from llm_agent.policy.rules import Rule

__all__ = [
    "AskLock",
    "AskRequest",
    "DangerFloor",
    "Facts",
    "Grant",
    "Grants",
    "Policy",
    "Rule",
    "Verdict",
    "danger_floor",
    "default_rules",
]
