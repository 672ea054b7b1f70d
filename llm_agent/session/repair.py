"""What a crash has left open in a transcript, and the honest word for each.

The law: "did not run" is said only of a call without a dispatched line, and nothing is ever
run again on the strength of what is found here. Pure: `Session.repair` writes what
`diagnose` finds, the tool message before the settlement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import attrs

from llm_agent import notices
from llm_agent.canonical import canonical_arguments
from llm_agent.messages import Message, ToolRequest
from llm_agent.session import records
from llm_agent.session.records import UNKNOWN, AnswerKind
from llm_agent.session.replay import RecordedOperation, Replay
from llm_agent.tool_operation import EXTRA_BY_OUTCOME

Verdict = Literal["unknown", "did-not-run", "only-settle-was-lost", "orphan-result"]

_SENTENCES: Final[dict[str, str]] = {
    "unknown": "was dispatched, and its result was never recorded: whether it took effect is unknown",
    "did-not-run": "was never dispatched: it did not run",
    "only-settle-was-lost": "has its result on record; only the note that it had ended was missing",
    "orphan-result": "has a result that follows no turn asking for it; it stays in the file and is not sent",
}


@attrs.frozen(kw_only=True)
class Repair:
    """One thing a repair found, and what it said about it."""

    call_id: str
    op_id: str | None
    """The dispatched operation; `None` when there is none."""
    tool: str
    arguments: str
    """Canonical text of the arguments, `""` where the file does not tell."""
    verdict: Verdict

    def __str__(self) -> str:
        tool = f" of {self.tool}" if self.tool else ""
        return f"call {self.call_id!r}{tool} {_SENTENCES[self.verdict]}"

    def to_dict(self) -> dict[str, Any]:
        """Kebab-case plain data."""
        return {field.name.replace("_", "-"): getattr(self, field.name) for field in attrs.fields(Repair)}


@attrs.frozen(kw_only=True)
class Finding:
    """A repair, and the lines it takes."""

    repair: Repair
    turn_id: str | None = None
    """The turn whose call is to be answered with *notice*."""
    notice: str | None = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    settles: str | None = None
    """The operation that is to be settled as *answer* says."""
    answer: AnswerKind = UNKNOWN


@attrs.frozen
class _OpenCall:
    """A call that no tool message answers directly behind its turn."""

    turn_id: str
    request: ToolRequest


def diagnose(replay: Replay) -> list[Finding]:
    """Return what is open: calls without an answer, in the model's order, then the rest."""
    open_calls, orphans = _pairs(replay)
    late = {orphan.tool_call_id or "" for orphan in orphans}
    taken: set[str] = set()
    findings = [_unanswered(replay, call, late, taken) for call in open_calls]
    findings += [_unsettled(op) for op in replay.pending.values() if op.op_id not in taken]
    findings += [_orphan(message) for message in orphans]
    return findings


def _pairs(replay: Replay) -> tuple[list[_OpenCall], list[Message]]:
    """Return the calls nobody answered and the results nobody asked for, turn by turn."""
    missing: list[_OpenCall] = []
    orphans: list[Message] = []
    waiting: list[_OpenCall] = []
    for message_id, message in zip(replay.message_ids, replay.messages, strict=True):
        if message.role == "tool":
            asked = _asking(waiting, message)
            if asked is None:
                orphans.append(message)
            else:
                waiting.remove(asked)
            continue
        missing += waiting
        waiting = [_OpenCall(message_id, call) for call in _calls(message)]
    return missing + waiting, orphans


def _calls(message: Message) -> tuple[ToolRequest, ...]:
    return message.tool_calls if message.role == "assistant" else ()


def _asking(waiting: list[_OpenCall], message: Message) -> _OpenCall | None:
    return next((call for call in waiting if call.request.id == message.tool_call_id), None)


def _unanswered(replay: Replay, call: _OpenCall, late: set[str], taken: set[str]) -> Finding:
    """Judge one call without an answer; *taken* collects the operations already judged."""
    operation = next(_free_operations(replay, call, taken), None)
    if operation is not None:
        taken.add(operation.op_id)
    # A result that came too late to be its answer shows that the call left.
    has_left = operation is not None or call.request.id in late
    is_pending = operation is not None and operation.outcome is None
    settled = operation.outcome if operation is not None else None
    return Finding(
        repair=Repair(
            call_id=call.request.id,
            op_id=None if operation is None else operation.op_id,
            tool=call.request.name,
            arguments=canonical_arguments(call.request.arguments),
            verdict="unknown" if has_left else "did-not-run",
        ),
        turn_id=call.turn_id,
        notice=_notice(settled) if has_left else notices.REPAIR_DID_NOT_RUN,
        extra=EXTRA_BY_OUTCOME[settled or UNKNOWN.outcome] if has_left else records.DID_NOT_RUN,
        settles=operation.op_id if operation is not None and is_pending else None,
        answer=UNKNOWN,
    )


def _notice(settled: str | None) -> str:
    """What the model is told of a call that left: no more, and no less, than the file knows."""
    if settled in (None, UNKNOWN.outcome):
        return notices.REPAIR_UNKNOWN
    return notices.REPAIR_RESULT_LOST.format(outcome=settled)


def _free_operations(replay: Replay, call: _OpenCall, taken: set[str]) -> Iterator[RecordedOperation]:
    for operation in replay.operations_of(call.turn_id, call.request.id):
        if operation.answer is None and operation.op_id not in taken:
            yield operation


def _unsettled(operation: RecordedOperation) -> Finding:
    """Judge an operation that is pending though no call waits for it: answered, or compacted away."""
    told = operation.to_dict()
    return Finding(
        repair=Repair(
            call_id=operation.call_id,
            op_id=operation.op_id,
            tool=told["tool"],
            arguments=told["arguments"],
            verdict="unknown" if operation.answer is None else "only-settle-was-lost",
        ),
        settles=operation.op_id,
        answer=operation.answer or UNKNOWN,
    )


def _orphan(message: Message) -> Finding:
    call_id = message.tool_call_id or ""
    return Finding(repair=Repair(call_id=call_id, op_id=None, tool="", arguments="", verdict="orphan-result"))
