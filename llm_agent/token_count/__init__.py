"""How large a conversation is, in tokens.

Three answers: `HeuristicCounter` guesses from bytes, `UsageCounter` learns from bills, and
`ExactCounter` asks the model's own tokenizer. The law: a counter neither blocks nor raises.
"""

from llm_agent.token_count.exact import ExactCounter
from llm_agent.token_count.heuristic import TOKENS_PER_PART, HeuristicCounter
from llm_agent.token_count.usage import UsageCounter

__all__ = ["TOKENS_PER_PART", "ExactCounter", "HeuristicCounter", "UsageCounter"]
