"""Names among a policy's options that no tool has: they match nothing, and nobody would notice.

The law: this only tells; a name without a tool is no error, since catalogues change. Whom it is
told, and when, does not live here (`policy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_agent.patterns import matches
from llm_agent.policy.danger import READ_ONLY_TOOLS
from llm_agent.policy.evaluation import Surroundings
from llm_agent.policy.rules import Rule


def unmatched(names: Sequence[str], rules: Iterable[Rule], around: Surroundings) -> list[str]:
    """Return a sentence for each tool name in *rules* and *around* that means none of *names*."""
    named = [(f"the rule '{rule}'", rule.tool) for rule in rules if not _is_usual(rule)]
    named += [(f"roots[{prefix!r}]", f"{prefix}*") for prefix in around.roots]
    named += [(f"path_params[{pattern!r}]", pattern) for pattern in around.path_params]
    named += [(f"command_params[{pattern!r}]", pattern) for pattern in around.command_params]
    named += [(f"local_tools {pattern!r}", pattern) for pattern in around.local_tools]
    return [
        f"{what} matches no tool in the catalogue, and so does nothing"
        for what, pattern in named
        if not any(matches(pattern, name) for name in names)
    ]


def _is_usual(rule: Rule) -> bool:
    """Whether it is one of `default_rules`, which name more tools than anybody has."""
    return rule.decision == "allow" and rule.is_bare and rule.tool.endswith((*READ_ONLY_TOOLS, "user_ask"))
