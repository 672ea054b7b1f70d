"""Run the compactor: where it can be given up, between its two events, and with its bill.

What it gained becomes the conversation, in the transcript first. The law: a conversation is
replaced only by a smaller one; a compactor that breaks its word, or is cancelled, leaves it as
it was. When to compact, and how small, is `window`.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from llm_agent.codec import error_text
from llm_agent.events import CompactionDone, CompactionStarted
from llm_agent.loop.state import RunState
from llm_agent.messages import Message, Usage
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
    """Run the compactor where it can be given up, and take what it gained.

    After a cancel, that is nothing: look for the cancel before judging what was gained.
    """
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
        return _given_up(state, call, _nothing(messages, tokens))
    match end:
        case Answered(answer):
            problem = _problem(answer, len(messages))
            compaction = answer if problem is None else _nothing(messages, tokens)
            if problem is not None:
                state.log("error", f"the compactor must return a Compaction of what it was given: {problem}")
        case Raised(error):
            compaction = _nothing(messages, tokens)
            state.log("error", f"the compactor failed: {error_text(error)}")
    _record_bill(state, compaction)
    if gains(compaction):
        state.conversation.shorten(compaction)
        state.folded_length = len(state.conversation.wire.messages)
    else:
        compaction = attrs.evolve(compaction, dropped=0, summary="", fallback=False, elisions=())
    _announce(state, compaction)
    return compaction


def _problem(answer: Any, length: int) -> str | None:
    """Return why no conversation of *length* messages, and no transcript, can become *answer*; `None` if it can."""
    if not isinstance(answer, Compaction):
        return f"got {type(answer).__name__}"
    try:
        numbers = (answer.dropped, answer.tokens_before, answer.tokens_after)
        is_told = all(isinstance(number, int | float) for number in numbers)
        is_cut = not answer.dropped or (isinstance(answer.summary, str) and _is_index(answer.cut_index, length))
        is_kept = all(_is_index(index, answer.cut_index + 1) for index in answer.kept)
        is_elided = all(_is_index(one.index, length) and isinstance(one.stub, str) for one in answer.elisions)
        is_billed = all(isinstance(usage, Usage) for _, usage in answer.billed)
    except (TypeError, ValueError, AttributeError) as error:
        return error_text(error)
    checks = {"numbers": is_told, "cut": is_cut, "kept": is_kept, "elisions": is_elided, "billed": is_billed}
    wrong = [name for name, holds in checks.items() if not holds]
    return f"its {', '.join(wrong)} cannot be those of {length} messages" if wrong else None


def _is_index(value: Any, end: int) -> bool:
    return isinstance(value, int) and 0 <= value < end


def _given_up(state: RunState, call: Call, unchanged: Compaction) -> Compaction:
    """Close the compaction of a run that is cancelled: the conversation stays as it is.

    A compactor that has been woken says in a moment what it was billed; no other is waited for.
    """
    match call.linger(BILL_GRACE):
        case Answered(late) if _problem(late, len(unchanged.messages)) is None:
            _record_bill(state, late)
        case _:
            state.bill.note_unknown()
    _announce(state, unchanged)
    return unchanged


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
            aged=len(compaction.elisions) or None,
            error="; ".join(dict.fromkeys(compaction.problems)) or None,
            round=state.round_no,
        )
    )
