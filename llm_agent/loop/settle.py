"""An answer, or none, becomes message, record and event: in that order.

The order is the promise: whoever finds a settle line on disk finds the message before it, and
whoever sees the event finds both.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, Literal

from llm_agent import notices
from llm_agent.canonical import data_digest
from llm_agent.events import AbandonReason, ToolAbandoned, ToolResult
from llm_agent.layers import first_line_of, paired, shortened
from llm_agent.loop.observation import Observation, observe
from llm_agent.loop.state import RunState
from llm_agent.messages import Message
from llm_agent.tool_operation import EXTRA_BY_OUTCOME, Settlement, ToolOperation

# A settle line quotes the first line of an error, up to this many characters.
ERROR_CHARS = 200

# Why nobody waits for a call that is out.
Reason = Literal["cancelled", "deadline"]
_UNKNOWN: dict[Reason, str] = {"cancelled": notices.UNKNOWN_CANCELLED, "deadline": notices.UNKNOWN_DEADLINE}
_ABANDONED: dict[AbandonReason, str] = {
    "cancelled": notices.ABANDONED_CANCELLED,
    "deadline": notices.ABANDONED_DEADLINE,
    "budget-exhausted": notices.ABANDONED_BUDGET,
}


def answered(state: RunState, operations: Sequence[ToolOperation], results: Sequence[Any]) -> None:
    """Settle a batch whose provider returned, each call with its answer."""
    answers = paired([op.call_id for op in operations], results)
    for index, (op, answer) in enumerate(zip(operations, answers, strict=True)):
        if answer is None:
            settle(state, op, notices.NO_RESULT, is_error=True)
            continue
        if answer.tool_call_id and answer.tool_call_id != op.call_id:
            _log_wrong_id(state, op, index, answer.tool_call_id)
        settle(state, op, answer.content, is_error=answer.is_error, is_unknown=answer.outcome_unknown)


def raised(state: RunState, operations: Sequence[ToolOperation], error: BaseException) -> None:
    """Settle a batch whose provider raised: every call of it failed."""
    failure = first_line_of(error)
    for op in operations:
        settle(state, op, notices.PROVIDER_RAISED.format(failure=failure), is_error=True)


def settle(state: RunState, op: ToolOperation, content: str, *, is_error: bool, is_unknown: bool = False) -> None:
    """Settle one call that has an answer; *is_unknown*: one that says that nobody knows whether it took effect."""
    observation = observe(state, op, content)
    message = Message.tool(op.call_id, observation.content)
    outcome: Settlement = "outcome-unknown" if is_unknown else "failed" if is_error else "completed"
    state.conversation.append(message, EXTRA_BY_OUTCOME[outcome])
    reason = "answer-lost" if is_unknown else None
    op.settle(outcome, monotonic(), reason)
    if state.config.session is not None:
        state.config.session.append_tool_settled(
            op.op_id,
            outcome,
            reason=reason,
            duration=op.duration,
            result_digest=None if is_unknown else data_digest(message.text),
            error=_first_line(message.text) if is_error else None,
            **_where_kept(observation),
        )
    state.emit(
        ToolResult(
            id=op.call_id,
            name=op.tool,
            content=message.text,
            is_error=is_error,
            artifact=observation.artifact,
            round=op.round,
        )
    )


def _where_kept(observation: Observation) -> dict[str, Any]:
    return {} if observation.artifact is None else {"artifact": observation.artifact}


def unknown(state: RunState, operations: Sequence[ToolOperation], reason: Reason) -> None:
    """Settle a batch nobody waits for any longer: dispatched, and that is all that is known."""
    extra = {**EXTRA_BY_OUTCOME["outcome-unknown"], **({"cancelled": True} if reason == "cancelled" else {})}
    for op in operations:
        state.conversation.append(Message.tool(op.call_id, _UNKNOWN[reason]), extra)
        op.settle("outcome-unknown", monotonic(), reason)
        if state.config.session is not None:
            state.config.session.append_tool_settled(op.op_id, "outcome-unknown", reason=reason, duration=op.duration)
        state.emit(ToolAbandoned(id=op.call_id, name=op.tool, reason=reason, dispatched=True, round=op.round))


def never_run(
    state: RunState, operations: Sequence[ToolOperation], reason: AbandonReason, notice: str | None = None
) -> None:
    """Answer calls that will not be dispatched: they did not run, for certain."""
    for op in operations:
        if not op.abandon(reason):
            continue
        text = _ABANDONED[reason] if notice is None else notice
        state.conversation.append(Message.tool(op.call_id, text), {"abandoned": True})
        state.emit(ToolAbandoned(id=op.call_id, name=op.tool, reason=reason, dispatched=False, round=op.round))


def _first_line(content: str) -> str:
    line = next((line.strip() for line in content.splitlines() if line.strip()), "")
    return shortened(line, ERROR_CHARS)


def _log_wrong_id(state: RunState, op: ToolOperation, index: int, provider_id: str) -> None:
    state.log(
        "warning",
        {
            "message": "the provider answered under another call id; the call's own id is kept",
            "tool": op.tool,
            "call-index": index,
            "call-id": op.call_id,
            "provider-id": provider_id,
        },
    )
