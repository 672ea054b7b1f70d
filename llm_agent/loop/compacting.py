"""Run the compactor: where it can be given up, between its two events, and with its bill.

What it gained becomes the conversation, in the transcript first. The law: a conversation is
replaced only by a smaller one; a compactor that breaks its word, or is cancelled, leaves it as
it was. When to compact, and how small, is `window`.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

import attrs

from llm_agent.cancel import CancelToken
from llm_agent.codec import error_text
from llm_agent.events import CompactionDone, CompactionStarted
from llm_agent.loop.state import RunState
from llm_agent.messages import Message
from llm_agent.outcome import Cancelled, RunStopped
from llm_agent.ports import Compaction, Compactor, TokenCounter
from llm_agent.slot import Answered, Call, GaveUp, Raised

# How long a cancelled run waits for the bill of its summary, in seconds.
BILL_GRACE: Final = 0.2


def compact(
    state: RunState,
    compactor: Compactor,
    tokens: int,
    target: int | None = None,
    counter: TokenCounter | None = None,
) -> Compaction:
    """Run the compactor where it can be given up, and take what it gained."""
    messages = tuple(state.conversation.messages)
    state.core.set_stage("compacting", round=state.round_no)
    state.emit(
        CompactionStarted(
            tokens_before=tokens, budget=compactor.context_budget, message_count=len(messages), round=state.round_no
        )
    )
    cancelled = state.core.cancel.event
    call = state.slot.start(lambda: compactor.compact(messages, cancelled=cancelled, target=target, counter=counter))
    end = call.wait(state.core.cancel, lambda: None)
    if isinstance(end, GaveUp):
        raise _cancelled(state, call, _nothing(messages, tokens))
    match end:
        case Answered(Compaction() as compaction):
            pass
        case Answered(strange):
            compaction = _nothing(messages, tokens)
            state.log("error", f"the compactor must return a Compaction, got {type(strange).__name__}")
        case Raised(error):
            compaction = _nothing(messages, tokens)
            state.log("error", f"the compactor failed: {error_text(error)}")
    _record_bill(state, compaction)
    if gains(compaction):
        state.conversation.shorten(compaction)
    else:
        compaction = attrs.evolve(compaction, dropped=0, summary="", fallback=False)
    _announce(state, compaction)
    return compaction


def _cancelled(state: RunState, call: Call, unchanged: Compaction) -> RunStopped:
    """Return the stop for a run that is cancelled in a compaction: the conversation stays as it is.

    A compactor that has been woken says in a moment what it was billed; no other is waited for.
    """
    patience = monotonic() + BILL_GRACE
    match call.wait(CancelToken(), lambda: patience - monotonic()):
        case Answered(Compaction() as late):
            _record_bill(state, late)
        case _:
            state.bill.note_unknown()
    _announce(state, unchanged)
    return RunStopped(Cancelled("compaction"))


def _record_bill(state: RunState, compaction: Compaction) -> None:
    for model, usage in compaction.billed:
        state.bill.record(model, usage)


def gains(compaction: Compaction) -> bool:
    return bool(compaction.dropped or compaction.elisions) and compaction.tokens_after < compaction.tokens_before


def _nothing(messages: tuple[Message, ...], tokens: int) -> Compaction:
    return Compaction(messages=messages, tokens_before=tokens, tokens_after=tokens)


def _announce(state: RunState, compaction: Compaction) -> None:
    state.emit(
        CompactionDone(
            tokens_before=compaction.tokens_before,
            tokens_after=compaction.tokens_after,
            dropped=compaction.dropped,
            summary=compaction.summary or None,
            fallback=compaction.fallback,
            round=state.round_no,
        )
    )
