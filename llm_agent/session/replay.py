"""The lines of a transcript, folded into what they amount to.

The law: one path for both lives. `prepare` checks a line against everything before it and
returns the change it makes; loading applies it at once, appending only after the line is
written. So what is refused leaves no trace, and what is loaded is what was held. Pure: no
files, no threads, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from llm_agent.errors import ConfigError
from llm_agent.folding import folded, surviving, with_stubs
from llm_agent.messages import Message
from llm_agent.run_context import Section
from llm_agent.session import records
from llm_agent.session.records import AnswerKind, Envelope, Refused
from llm_agent.tool_operation import SETTLEMENTS

Change = Callable[[], None]


@attrs.define(eq=False)
class RecordedOperation:
    """A dispatched call, as far as the file tells. Beside the conversation: compaction leaves it alone."""

    op_id: str
    call_id: str
    turn_id: str | None
    """The line of the turn that asked for it; `None` when no turn did."""
    payload: Mapping[str, Any]
    dispatched_at: str | None
    outcome: str | None = None
    """How it was settled; `None` while it is pending."""
    answer: AnswerKind | None = None
    """What the tool message for it says, once there is one."""

    def to_dict(self) -> dict[str, Any]:
        """The mapping that `pending_tool_operations` hands out."""
        told = self.payload
        return records.without_none(
            {
                "op-id": self.op_id,
                "call-id": self.call_id,
                "tool": told.get("tool") or "",
                "arguments": told.get("arguments") or "",
                "arguments-digest": told.get("arguments-digest"),
                "idempotency": told.get("idempotency"),
                "run-id": told.get("run-id"),
                "round": told.get("round"),
                "dispatched-at": self.dispatched_at,
                "settled": self.outcome is not None,
            }
        )


@attrs.define(eq=False)
class RecordedContexts:
    """What runs were told beside the conversation; the text of each section is held once.

    Never refuses: shapes it does not know are kept, or passed over where they point nowhere.
    """

    _payloads: list[Mapping[str, Any]] = attrs.field(factory=list)
    _texts: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """By line id and section digest."""
    _carriers: dict[str, str] = attrs.field(factory=dict)
    """The id of the newest line with the text, by section digest."""

    def add(self, envelope: Envelope) -> None:
        """Take one more line."""
        payload = envelope.get("payload")
        if not isinstance(payload, dict):
            return
        self._payloads.append(payload)
        for section in _sections(payload):
            match envelope.get("id"), section:
                case str(line_id), {"digest": str(digest), "rendered": str(text)}:
                    self._texts[line_id, digest] = text
                    self._carriers[digest] = line_id

    def carrier(self, section: Section) -> str | None:
        """Return the id of the line that has the text of *section*, `None` when no line has."""
        line_id = self._carriers.get(section.digest)
        # Compared, too: a file may come from elsewhere, and its digests with it.
        if line_id is None or self._texts[line_id, section.digest] != section.text:
            return None
        return line_id

    def to_list(self) -> list[dict[str, Any]]:
        """The mappings that `Session.run_contexts` hands out, oldest first."""
        return [
            {**payload, "sections": [self._resolved(section) for section in _sections(payload)]}
            for payload in self._payloads
        ]

    def _resolved(self, section: Mapping[str, Any]) -> dict[str, Any]:
        told = {key: value for key, value in section.items() if key not in ("rendered", "rendered-in")}
        match section:
            case {"rendered": str(text)}:
                told["rendered"] = text
            case {"rendered-in": str(line_id), "digest": str(digest)}:
                told["rendered"] = self._texts.get((line_id, digest))
            case _:
                told["rendered"] = None
        return told


def _sections(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    sections = payload.get("sections")
    return [each for each in sections if isinstance(each, dict)] if isinstance(sections, list) else []


class Replay:
    """What the lines up to now amount to. One writer; the lists are never handed out."""

    def __init__(self) -> None:
        self.line_count = 0
        self.meta: Mapping[str, Any] = {}
        self.grants: Sequence[Any] = ()
        self.run_contexts = RecordedContexts()
        self.messages: list[Message] = []
        self.message_ids: list[str] = []
        self.pending: dict[str, RecordedOperation] = {}
        self._operations: dict[str, RecordedOperation] = {}
        self._operations_by_call: dict[tuple[str | None, str], list[RecordedOperation]] = {}
        # The newest turn that asks for a call of this id: ids may repeat, turns do not.
        self._turn_by_call: dict[str, str] = {}
        # Calls that a tool message appended now would answer, and the turn they belong to.
        self._open_turn: str | None = None
        self._open_calls: list[str] = []

    def prepare(self, envelope: Any, message: Message | None = None) -> Change:
        """Return the change that one more line makes; nothing has changed yet.

        Args:
            envelope: the line; kept by reference, so it must not be changed any more.
            message: what the payload was made from, where the line is one that we made ourselves.

        Raises:
            Refused: no transcript may go on with this line.
        """
        if message is not None:
            return self._message(envelope, message)
        kind = records.checked_kind(envelope)
        if self.line_count == 0 and kind != records.SESSION_META:
            raise Refused(f"the first line must be {records.SESSION_META}, got {kind}")
        read = _READERS.get(kind)
        return _nothing if read is None else read(self, envelope)

    def apply(self, change: Change) -> None:
        """Make a prepared change: the line it came from is part of the file."""
        change()
        self.line_count += 1

    # -- messages --------------------------------------------------------------------------

    def _read_message(self, envelope: Envelope) -> Change:
        try:
            return self._message(envelope, Message.from_dict(envelope["payload"]))
        except ConfigError as exc:
            raise Refused(str(exc)) from exc

    def _message(self, envelope: Envelope, message: Message) -> Change:
        message_id = records.line_id(envelope)
        payload: Mapping[str, Any] = envelope["payload"]
        if message.role != "tool":
            return partial(self._add, message_id, message)
        turn_id = payload.get(records.ANSWERS_TURN)
        if turn_id is None:
            return partial(self._add_result, message_id, message, AnswerKind.of(payload))
        if turn_id not in self.message_ids or not self.messages[self.message_ids.index(turn_id)].tool_calls:
            raise Refused(f"{records.ANSWERS_TURN} must name a turn of the conversation, got {turn_id!r}")
        return partial(self._place_result, turn_id, message_id, message, AnswerKind.of(payload))

    def _add(self, message_id: str, message: Message) -> None:
        self.messages.append(message)
        self.message_ids.append(message_id)
        self._open_calls = []
        if message.role == "assistant" and message.tool_calls:
            self._open_turn = message_id
            self._open_calls = [call.id for call in message.tool_calls]
            for call_id in self._open_calls:
                self._turn_by_call[call_id] = message_id

    def _add_result(self, message_id: str, message: Message, kind: AnswerKind) -> None:
        self.messages.append(message)
        self.message_ids.append(message_id)
        call_id = message.tool_call_id or ""
        if call_id in self._open_calls:
            self._open_calls.remove(call_id)
            self._note_answer(self._open_turn, call_id, kind)

    def _place_result(self, turn_id: str, message_id: str, message: Message, kind: AnswerKind) -> None:
        """Put a result behind its turn, where every server wants it, though others were written since."""
        place = self.message_ids.index(turn_id) + 1
        while place < len(self.messages) and self.messages[place].role == "tool":
            place += 1
        self.messages.insert(place, message)
        self.message_ids.insert(place, message_id)
        self._note_answer(turn_id, message.tool_call_id or "", kind)

    def _note_answer(self, turn_id: str | None, call_id: str, kind: AnswerKind) -> None:
        for operation in self._operations_by_call.get((turn_id, call_id), ()):
            if operation.answer is None:
                operation.answer = kind
                return

    def has_moved_on(self, turn_id: str | None, call_id: str) -> bool:
        """Whether a call's turn is in the conversation, and a result at the end would not answer it."""
        is_open = turn_id == self._open_turn and call_id in self._open_calls
        return not is_open and turn_id in self.message_ids

    @property
    def needs_reply(self) -> bool:
        """Whether the conversation waits for a model: anything but an assistant's last word."""
        for message in reversed(self.messages):
            if message.role != "tool":
                return message.role != "assistant" or bool(message.tool_calls)
        return False

    # -- rewriting -------------------------------------------------------------------------

    def _read_compaction(self, envelope: Envelope) -> Change:
        payload: Mapping[str, Any] = envelope["payload"]
        through = payload.get("replaces-through-id")
        if through not in self.message_ids:
            raise Refused(f"replaces-through-id must name a message of the conversation, got {through!r}")
        summary = payload.get("summary")
        if not isinstance(summary, str):
            raise Refused(f"summary must be text, got {type(summary).__name__}")
        cut = self.message_ids.index(through)
        kept_ids = payload.get("kept-ids", [])
        replaced = self.message_ids[: cut + 1]
        if not isinstance(kept_ids, list) or not all(kept in replaced for kept in kept_ids):
            raise Refused(f"kept-ids must name messages that the summary would replace, got {kept_ids!r}")
        kept = frozenset(map(self.message_ids.index, kept_ids))
        return partial(self._compact, cut, kept, records.line_id(envelope), summary)

    def _compact(self, cut: int, kept: frozenset[int], summary_id: str, summary: str) -> None:
        stays = [self.message_ids[index] for index in surviving(self.messages, cut, kept)]
        self.messages = folded(self.messages, summary, cut, kept)
        self.message_ids[: cut + 1] = [*stays, summary_id]
        last = len(self.messages) - 1
        while self.messages[last].role == "tool" and last > 0:
            last -= 1
        if self.message_ids[last] != self._open_turn:
            self._open_calls = []

    def _read_elision(self, envelope: Envelope) -> Change:
        items = envelope["payload"].get("items")
        if not isinstance(items, list) or not items:
            raise Refused(f"an elision needs a list of items, got {items!r}")
        known = set(self.message_ids)
        stubs: dict[str, str] = {}
        for item in items:
            if not isinstance(item, dict) or not isinstance(item.get("stub"), str):
                raise Refused(f"an item of an elision must have an id and a stub, got {item!r}")
            if not isinstance(item.get("id"), str) or item["id"] not in known:
                raise Refused(f"an elision must name messages of the conversation, got {item.get('id')!r}")
            stubs[item["id"]] = item["stub"]
        return partial(self._elide, stubs)

    def _elide(self, stubs: Mapping[str, str]) -> None:
        by_index = {index: stubs[known] for index, known in enumerate(self.message_ids) if known in stubs}
        self.messages = with_stubs(self.messages, by_index)

    # -- operations ------------------------------------------------------------------------

    def _read_dispatched(self, envelope: Envelope) -> Change:
        op_id, payload = records.line_id(envelope), envelope["payload"]
        call_id = payload.get("call-id")
        if not isinstance(call_id, str):
            raise Refused(f"call-id must be text, got {call_id!r}")
        turn_id = self._turn_by_call.get(call_id)
        return partial(self._dispatch, RecordedOperation(op_id, call_id, turn_id, payload, envelope.get("ts")))

    def _dispatch(self, operation: RecordedOperation) -> None:
        self.pending[operation.op_id] = self._operations[operation.op_id] = operation
        self._operations_by_call.setdefault((operation.turn_id, operation.call_id), []).append(operation)

    def _read_settled(self, envelope: Envelope) -> Change:
        payload = envelope["payload"]
        operation = self.settleable(payload.get("op-id"), payload.get("outcome"))
        return partial(self._settle, operation, payload["outcome"])

    def settleable(self, op_id: object, outcome: object) -> RecordedOperation:
        """Return the operation that may be settled so.

        Raises:
            Refused: there is none, it is settled, or that is no way for an operation to end.
        """
        if outcome not in SETTLEMENTS:
            raise Refused(f"the outcome must be one of {', '.join(SETTLEMENTS)}, got {outcome!r}")
        operation = self._operations.get(op_id) if isinstance(op_id, str) else None
        if operation is None:
            raise Refused(f"op-id must name a dispatched operation, got {op_id!r}")
        if operation.outcome is not None:
            raise Refused(f"operation {op_id!r} is settled already, as {operation.outcome}")
        return operation

    def _settle(self, operation: RecordedOperation, outcome: str) -> None:
        operation.outcome = outcome
        del self.pending[operation.op_id]

    def operations_of(self, turn_id: str, call_id: str) -> Sequence[RecordedOperation]:
        """Return the operations that were dispatched for a call of a turn, oldest first."""
        return self._operations_by_call.get((turn_id, call_id), ())

    # -- the rest --------------------------------------------------------------------------

    def _read_meta(self, envelope: Envelope) -> Change:
        if self.line_count > 0:
            raise Refused(f"a second {records.SESSION_META} line: these are two transcripts in one file")
        return partial(setattr, self, "meta", envelope["payload"])

    def _read_grants(self, envelope: Envelope) -> Change:
        grants = envelope["payload"].get("grants")
        if not isinstance(grants, list):
            raise Refused(f"grants must be a list, got {grants!r}")
        return partial(setattr, self, "grants", grants)

    def _read_run_context(self, envelope: Envelope) -> Change:
        return partial(self.run_contexts.add, envelope)


def _nothing() -> None:
    """Take a line that says nothing about the conversation."""


_READERS: Final[dict[str, Callable[[Replay, Envelope], Change]]] = {
    records.SESSION_META: Replay._read_meta,
    records.MESSAGE: Replay._read_message,
    records.GRANTS: Replay._read_grants,
    records.COMPACTION: Replay._read_compaction,
    records.ELISION: Replay._read_elision,
    records.TOOL_DISPATCHED: Replay._read_dispatched,
    records.TOOL_SETTLED: Replay._read_settled,
    records.RUN_CONTEXT: Replay._read_run_context,
}
