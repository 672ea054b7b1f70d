"""A limit's consequences: the turn that asked for too much never existed.

It is discarded before anything of it is committed; the model is told, and answers once more
without tools.
"""

from __future__ import annotations

from llm_agent import notices
from llm_agent.canonical import canonical_arguments
from llm_agent.events import LimitReached
from llm_agent.loop.state import RunState
from llm_agent.messages import Message, Reply
from llm_agent.tool_operation import call_signature


def refuses(state: RunState, reply: Reply) -> bool:
    """Return whether *reply* asks for more than the run may have; its consequences are taken then."""
    if not reply.tool_calls or not state.tools:
        return False
    batch = [(call.name, call_signature(call.name, canonical_arguments(call.arguments))) for call in reply.tool_calls]
    hit = state.config.limits.check(state.tally, batch)
    if hit is None:
        return False
    state.emit(LimitReached(limit=hit.limit, count=hit.count, max=hit.max))
    state.discard_turn("limit")
    state.conversation.append(Message.system(notices.LIMIT))
    state.tools = ()
    state.config.counter.invalidate()  # what it learned included the declarations
    return True
