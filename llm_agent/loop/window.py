"""Keep the request inside the window: here, refuse to send what cannot fit.

With a `context_budget` every request is counted before it goes out; one that is over is not
sent. Making the conversation smaller is a compactor's work and is not here yet.
"""

from __future__ import annotations

import attrs

from llm_agent.loop.state import RunState


@attrs.frozen
class Overflow:
    """A request that does not fit: what it needs, and the window, in tokens."""

    needed: int
    window: int
    messages: int
    """How much of *needed* is conversation; the rest is tool declarations and context."""

    def __str__(self) -> str:
        return (
            f"the request does not fit: it needs {self.needed} tokens ({self.messages} of them messages), "
            f"the window has {self.window}"
        )


def measure(state: RunState) -> int | None:
    """Return the tokens of the conversation, where a budget cares; else `None`."""
    if state.config.context_budget is None:
        return None
    return state.config.counter.count_messages(state.conversation.wire.messages)


def overflow(state: RunState) -> Overflow | None:
    """Return how the next request would break the budget, or `None` when it fits."""
    budget = state.config.context_budget
    if budget is None:
        return None
    messages = state.request_messages()
    needed = state.config.counter.count_request(messages, state.tools)
    if needed <= budget:
        return None
    return Overflow(needed, budget, state.config.counter.count_messages(messages))
