"""How large a conversation is, in tokens.

Three answers: `HeuristicCounter` guesses from bytes, `UsageCounter` learns from bills, and
`ExactCounter` asks the model's own tokenizer. The law: a counter neither blocks nor raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_agent.token_count.heuristic import TOKENS_PER_PART, HeuristicCounter
from llm_agent.token_count.usage import UsageCounter

if TYPE_CHECKING:
    from llm_agent.token_count.exact import ExactCounter

__all__ = ["TOKENS_PER_PART", "ExactCounter", "HeuristicCounter", "UsageCounter"]


def __getattr__(name: str) -> Any:
    if name != "ExactCounter":  # loaded when it is first asked for: few programs have a tokenizer
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from llm_agent.token_count.exact import ExactCounter

    return ExactCounter
