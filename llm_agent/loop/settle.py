"""An answer, or none, becomes message, record and event: in that order.

The order is the promise: whoever finds a settle line on disk finds the message before it, and
whoever sees the event finds both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Literal

import attrs

from llm_agent import notices
from llm_agent.canonical import data_digest
from llm_agent.codec import dumps, error_text, text_of
from llm_agent.events import AbandonReason, ToolAbandoned, ToolResult
from llm_agent.loop.observation import Observation, observe
from llm_agent.loop.state import RunState
from llm_agent.messages import Message, ToolAnswer
from llm_agent.tool_operation import Settlement, ToolOperation

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


@attrs.frozen
class Given:
    """What a provider gave for one call, in one shape; no id where it named none."""

    content: str
    is_error: bool = False
    tool_call_id: str | None = None


def answered(state: RunState, operations: Sequence[ToolOperation], results: Sequence[Any]) -> None:
    """Settle a batch whose provider returned, each call with its answer."""
    for index, (op, given) in enumerate(zip(operations, _paired(operations, results), strict=True)):
        if given is None:
            settle(state, op, notices.NO_RESULT, is_error=True)
            continue
        if given.tool_call_id is not None and given.tool_call_id != op.call_id:
            _log_wrong_id(state, op, index, given.tool_call_id)
        settle(state, op, given.content, is_error=given.is_error)


def raised(state: RunState, operations: Sequence[ToolOperation], error: BaseException) -> None:
    """Settle a batch whose provider raised: every call of it failed."""
    failure = error_text(error).splitlines()[0]
    for op in operations:
        settle(state, op, notices.PROVIDER_RAISED.format(failure=failure), is_error=True)


def settle(state: RunState, op: ToolOperation, content: str, *, is_error: bool) -> None:
    """Settle one call that has an answer."""
    observation = observe(state, op, content)
    message = Message.tool(op.call_id, observation.content)
    state.conversation.append(message, {"is-error": True} if is_error else None)
    outcome: Settlement = "failed" if is_error else "completed"
    op.settle(outcome, monotonic())
    if state.config.session is not None:
        state.config.session.append_tool_settled(
            op.op_id,
            outcome,
            duration=op.duration,
            result_digest=data_digest(message.text),
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
    extra = {"outcome-unknown": True} | ({"cancelled": True} if reason == "cancelled" else {})
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


# -- reading what a provider gave ----------------------------------------------------------


def _paired(operations: Sequence[ToolOperation], results: Sequence[Any]) -> list[Given | None]:
    """Return an answer, or `None`, for each call: by id first, what is left by position."""
    given = [_given(result) for result in results]
    if len(operations) == 1:
        return [given[0] if given else None]
    chosen: list[Given | None] = [None] * len(operations)
    spare: dict[int, Given | None] = dict(enumerate(given))
    places = {op.call_id: place for place, op in enumerate(operations)}
    for index, answer in enumerate(given):
        place_by_id = None if answer is None or answer.tool_call_id is None else places.pop(answer.tool_call_id, None)
        if place_by_id is not None:
            chosen[place_by_id] = spare.pop(index)
    for place, answer in enumerate(chosen):
        if answer is None:
            chosen[place] = spare.pop(place, None)
    return chosen


def _given(result: Any) -> Given | None:
    try:
        return _read(result)
    except Exception as error:  # a shield: an answer that cannot be read is one that says so
        return Given(notices.PROVIDER_RAISED.format(failure=error_text(error).splitlines()[0]), is_error=True)


def _read(result: Any) -> Given | None:
    match result:
        case None:
            return None
        case ToolAnswer():
            return Given(result.content, _is_true(result.is_error), result.tool_call_id or None)
        case Mapping():
            call_id = result.get("tool_call_id")
            return Given(
                _text(result.get("content")), _is_true(result.get("is_error")), text_of(call_id) if call_id else None
            )
        case _:
            return Given(_text(result))


def _is_true(value: Any) -> bool:
    """Whether an answer says that it is an error; a value that will not say is no error."""
    try:
        return bool(value)
    except Exception:  # a shield: arrays, for one, have no truth
        return False


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "replace")
        case Mapping() | list() | tuple():
            return dumps(value).decode()
        case _:
            return text_of(value)


def _first_line(content: str) -> str:
    line = next((line.strip() for line in content.splitlines() if line.strip()), "")
    return line if len(line) <= ERROR_CHARS else line[:ERROR_CHARS] + "…"


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
