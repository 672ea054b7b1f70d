"""Permissions: rules in front of tools, a human behind the rules.

`Policy` is a provider around a provider. Rules deny, ask or allow a call (deny wins, then ask);
what a human answers "always" is a `Grant`, kept in the transcript and revocable.

A rule, as a mapping or a `Rule`; a call is meant by it when every narrower means it:

    tool        a name, or the beginning of names and a `*`; as the policy sees them, with prefixes
    decision    allow | deny | ask
    under       a folder, from the tool's root: every path of the call is in it
    host        a site, or `*.` before one for all below it: the host of the argument `url`
    command     a program's base name, or its beginning and a `*`: every program of the call
    args        its first arguments, to the letter; with `exact: true` all of them
    args-any    arguments of which one is there, anywhere
    check       the name of a predicate in `checks=`: `(Facts) -> True, False or None`
    note        words for the prompt
    severity    danger: an ask that only a grant of the very command line satisfies
    every-time  true: an ask that no grant satisfies

Allow wants a certain yes for everything that the call names. Deny and ask also stand where it
cannot be told: a deny for `git push` refuses a script that nobody can read.

A question, to `on_ask` and in AskPending: `kind` (permission), `tool`, `arguments`, `call`, `rule`
and `reason` (why it is asked), `paths`, `suggestion` (what "always" would remember, or `None`).
An answer: True, False, or one of `allow-once`, `deny-once`, `always-allow`, `always-deny`,
`expired`, as text or as the `action` of a mapping with, if you like, `rule` or `rules` (what is
remembered instead of the suggestion), `expires-in` (seconds), `scope` (session | project, for a
policy with a `store`) and `reason` (why not, for the model).

A refused call is an error answer whose `structured["denied"]` says `by` (rule, grant, human, expired,
headless, prompt, cancel, policy), `rule` and `reason`.
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
