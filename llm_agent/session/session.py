"""`Session`: a conversation that is written down as it happens, and can be returned to.

The law: validate, write, remember. A line is checked against everything before it, handed to
the operating system, and only then part of what this object holds; so memory never runs
ahead of the file. What lines mean is in `session.replay`, what a crash left in
`session.repair`, the way in `session.opening`, the bytes in `jsonl`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llm_agent.codec import clean_value, dumps_line, loads
from llm_agent.errors import ConfigError, TranscriptError
from llm_agent.jsonl import Durability, MemoryLines, Torn
from llm_agent.messages import Message
from llm_agent.run_context import RunContext
from llm_agent.session import opening, records
from llm_agent.session.opening import Opened
from llm_agent.session.records import Envelope, Refused, without_none
from llm_agent.session.repair import Finding, Repair, diagnose
from llm_agent.tool_operation import EXTRA_BY_OUTCOME

StrPath = str | os.PathLike[str]


class Session:
    """A transcript: an append-only file of JSON lines, and the conversation they amount to.

    Made by `create`, `load`, `open`, `read` or `in_memory`. One writer per file, in all
    processes together; the lock is a file beside it, `<name>.lock`, which stays. Usable from
    several threads. Every `append_*` returns after its line is with the operating system, and
    raises `TranscriptError` when it is not: then nothing has changed. After a fork a session
    belongs to the parent; in the child every use but `close` raises.
    """

    def __init__(self, _opened: Opened | None = None) -> None:
        if _opened is None:
            raise ConfigError("Session: use Session.create, .load, .open, .read or .in_memory")
        self._opened = _opened
        self._state = _opened.replay
        # Guards the file and what is remembered of it. Re-entrant: a repair appends.
        self._lock = threading.RLock()
        self._is_inherited = False
        self._is_unsure = False
        self._messages: tuple[Message, ...] | None = None

    # -- opening and closing ---------------------------------------------------------------

    @classmethod
    def create(cls, path: StrPath, meta: Mapping[str, Any] | None = None, *, durability: Durability = "flush") -> Self:
        """Begin a new transcript; missing folders are made, and an empty file is fine.

        Args:
            path: where.
            meta: anything JSON, for the application; it is the first line.
            durability: `flush` survives a killed process, `fsync` also a power cut.

        Raises:
            SessionInUse: another session writes it.
            TranscriptError: the file has content, or the path cannot be used.
        """
        return cls._begin(opening.open_new(Path(path), durability), meta)

    @classmethod
    def load(cls, path: StrPath, *, durability: Durability = "flush") -> Self:
        """Return to a transcript. Half a last line, left by a crash, is cut off with a warning.

        Calls that a crash left unanswered stay unanswered: see `repair`.

        Raises:
            SessionInUse: another session writes it.
            MalformedTranscript: it is empty, or damaged in a way that no crash explains.
            TranscriptError: it is missing, or the path cannot be used.
        """
        return cls._begin(opening.open_existing(Path(path), durability), None)

    @classmethod
    def open(cls, path: StrPath, meta: Mapping[str, Any] | None = None, *, durability: Durability = "flush") -> Self:
        """Load the transcript if the file has content, create it otherwise.

        *meta* is for the creation only. Raises what `create` and `load` raise.
        """
        return cls._begin(opening.open_any(Path(path), durability), meta)

    @classmethod
    def read(cls, path: StrPath) -> Self:
        """Look at a transcript, also one that somebody is writing: no lock, no mending, no appending.

        Raises:
            MalformedTranscript: it is empty, or damaged in a way that no crash explains.
            TranscriptError: it cannot be read.
        """
        return cls(opening.open_snapshot(Path(path)))

    @classmethod
    def in_memory(cls, meta: Mapping[str, Any] | None = None) -> Self:
        """Begin a transcript that lives as long as this object."""
        return cls._begin(Opened(None, MemoryLines()), meta)

    @classmethod
    def _begin(cls, opened: Opened, meta: Mapping[str, Any] | None) -> Self:
        session = cls(opened)
        if not opened.replay.line_count:
            try:
                session._append(records.SESSION_META, dict(meta or {}))
            except BaseException:
                opened.close()
                raise
        _writable.add(session)
        return session

    def close(self) -> None:
        """Let go of the file and its lock. Reading still works; idempotent."""
        with self._lock:
            self._opened.close()
        _writable.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self._name}>"

    def _leave_to_parent(self) -> None:
        """In a forked child: keep nothing open of what the parent holds, and refuse every use."""
        self._is_inherited = True
        self._lock = threading.RLock()  # a thread of the parent may have held the old one
        self._opened.close()

    # -- reading ---------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The file, as the path was given; `None` in memory."""
        return self._opened.path

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, oldest first, with what compaction did to it."""
        with self._owned():
            if self._messages is None:
                self._messages = tuple(self._state.messages)
            return self._messages

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The ids of the lines that `messages` come from, one each."""
        with self._owned():
            return tuple(self._state.message_ids)

    @property
    def meta(self) -> dict[str, Any]:
        """What the application gave at the creation; a copy."""
        with self._owned():
            return dict(clean_value(self._state.meta))

    @property
    def grants(self) -> list[Any]:
        """The last snapshot of standing permissions, `[]` before the first; a copy."""
        with self._owned():
            return list(clean_value(self._state.grants))

    @property
    def run_contexts(self) -> list[dict[str, Any]]:
        """What each run was told beside the conversation, oldest first; copies.

        Mappings as their lines have them: `run-id`, `digest`, `facts` (name and value each) and
        `sections`, each with `part` (`head` or `tail`), `name`, `digest` and `rendered`: its
        text, from whichever line holds it, or `None` where none does.
        """
        with self._owned():
            return list(clean_value(self._state.run_contexts.to_list()))

    @property
    def warnings(self) -> tuple[Torn, ...]:
        """What was cut off, or left out, when the file was opened."""
        return self._opened.warnings

    @property
    def needs_reply(self) -> bool:
        """Whether the conversation waits for a model: False when it is empty, or ends with an answer."""
        with self._owned():
            return self._state.needs_reply

    @property
    def elems(self) -> int:
        """How many lines the transcript has, blank ones not counted."""
        with self._owned():
            return self._state.line_count

    def envelopes(self) -> list[Envelope]:
        """Return every line as a dict of its own, unknown types included, read from where it is kept.

        Raises:
            TranscriptError: the file cannot be read any more.
        """
        with self._owned():
            return [loads(line) for line in self._opened.lines if not line.isspace()]

    def pending_tool_operations(self) -> list[dict[str, Any]]:
        """Return the operations that were dispatched and not settled, oldest first.

        Returns:
            Mappings with `op-id`, `call-id`, `tool`, `arguments`, `dispatched-at`, `settled`
            (False) and, where known, `arguments-digest`, `idempotency`, `run-id`, `round`.
        """
        with self._owned():
            return [operation.to_dict() for operation in self._state.pending.values()]

    def _owned(self) -> threading.RLock:
        if self._is_inherited:
            raise TranscriptError(
                f"transcript {self._name}: this session was inherited through a fork and belongs to the parent "
                "process; open one of its own in the child"
            )
        return self._lock

    @property
    def _name(self) -> str:
        return "in memory" if self._opened.path is None else str(self._opened.path)

    # -- appending -------------------------------------------------------------------------

    def append_message(self, message: Message, extra: Mapping[str, Any] | None = None) -> str:
        """Write one message with *extra* keys beside it; return the line's id.

        What the message itself says wins over *extra*.
        """
        if not isinstance(message, Message):
            raise TranscriptError(f"append_message: expected a Message, got {type(message).__name__}")
        return self._append(records.MESSAGE, records.message_payload(message, extra), message)

    def append_grants(self, grants: Sequence[Any]) -> str:
        """Write a whole snapshot of the standing permissions; return the line's id."""
        return self._append(records.GRANTS, {"grants": list(grants)})

    def append_compaction(
        self,
        summary: str,
        replaces_through_id: str,
        *,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        fallback: bool = False,
        kept_ids: Sequence[str] = (),
    ) -> str:
        """Write that a summary stands for the messages up to and including *replaces_through_id*.

        Sticky ones among them, and those of *kept_ids*, stay, in front of the summary. Returns
        the line's id, which is also the summary's.
        """
        payload = {
            "summary": summary,
            "replaces-through-id": replaces_through_id,
            "tokens-before": tokens_before,
            "tokens-after": tokens_after,
            "fallback": fallback,
            "kept-ids": list(kept_ids) or None,
        }
        return self._append(records.COMPACTION, without_none(payload))

    def append_elision(self, items: Sequence[Mapping[str, str]]) -> str:
        """Write that the contents of messages are replaced by stubs.

        Args:
            items: n >= 1 mappings with the `id` of a message's line and its `stub`.
        """
        return self._append(records.ELISION, {"items": [dict(item) for item in items]})

    def append_run_context(self, context: RunContext, run_id: str) -> str:
        """Write what a run is told beside the conversation; return the line's id.

        The text of a section is written once per file; later lines name the line that has it.
        """
        if not isinstance(context, RunContext):
            raise TranscriptError(f"append_run_context: expected a RunContext, got {type(context).__name__}")
        with self._owned():  # or two threads would both write a new text
            payload = records.run_context_payload(context, run_id, self._state.run_contexts.carrier)
            return self._append(records.RUN_CONTEXT, payload)

    def append_event(self, kind: str, payload: Mapping[str, Any] | None = None) -> str:
        """Write a line of the application's own type *kind*; return its id."""
        if not isinstance(kind, str) or not kind.strip() or kind in records.BUILT_IN:
            raise TranscriptError(f"append_event: the type must be one of your own, got {kind!r}")
        return self._append(kind, dict(payload or {}))

    def append_tool_dispatched(
        self,
        *,
        call_id: str,
        tool: str,
        arguments: str,
        arguments_digest: str | None = None,
        idempotency: str | None = None,
        run_id: str | None = None,
        round: int | None = None,
    ) -> str:
        """Write that a call is about to be handed over; the line's id is the operation's id."""
        payload = {
            "call-id": call_id,
            "tool": tool,
            "arguments": arguments,
            "arguments-digest": arguments_digest,
            "idempotency": idempotency,
            "run-id": run_id,
            "round": round,
        }
        return self._append(records.TOOL_DISPATCHED, without_none(payload))

    def append_tool_settled(
        self,
        op_id: str,
        outcome: str,
        *,
        reason: str | None = None,
        duration: float | None = None,
        result_digest: str | None = None,
        error: str | None = None,
        artifact: Mapping[str, Any] | None = None,
    ) -> str:
        """Write how an operation ended: `completed`, `failed` or `outcome-unknown`.

        Its tool message must have been written before: a crash between the two then reads as
        "completed, only the settlement was lost".
        """
        payload = {
            "op-id": op_id,
            "outcome": outcome,
            "reason": reason,
            "duration": None if duration is None else round(duration, 6),
            "result-digest": result_digest,
            "error": error,
            "artifact": artifact,
        }
        return self._append(records.TOOL_SETTLED, without_none(payload))

    def _append(self, kind: str, payload: dict[str, Any], message: Message | None = None) -> str:
        envelope = records.new_envelope(kind, payload)
        line = dumps_line(envelope)
        with self._owned():
            if self._is_unsure:
                raise TranscriptError(
                    f"transcript {self._name}: an earlier append was interrupted; close the session and load it again"
                )
            try:
                # Read back, so that what is remembered is what the next load will see. Messages
                # are immutable and clean already.
                change = self._state.prepare(loads(line) if message is None else envelope, message)
            except Refused as exc:
                raise TranscriptError(f"transcript {self._name}: {kind} refused: {exc}") from exc
            self._is_unsure = True  # stays, should a Ctrl-C get in between
            try:
                self._opened.lines.append(line)
            except TranscriptError:
                self._is_unsure = False
                raise
            self._state.apply(change)
            self._messages = None
            self._is_unsure = False
        new_id: str = envelope["id"]
        return new_id

    # -- after a crash ---------------------------------------------------------------------

    def resolve_tool_operation(
        self, op_id: str, outcome: str, reason: str | None = None, content: str | None = None
    ) -> str:
        """Settle a pending operation; return the settlement's line id.

        Args:
            op_id: as `pending_tool_operations` tells it.
            outcome: `completed`, `failed` or `outcome-unknown`.
            content: what the model shall read as the call's result. It is written first, behind
                the turn that asked, so that a crash in between loses nothing.
        """
        with self._owned():
            try:
                operation = self._state.settleable(op_id, outcome)
            except Refused as exc:
                raise TranscriptError(f"transcript {self._name}: {exc}") from exc
            if content is not None:
                if operation.answer is not None:
                    raise TranscriptError(
                        f"transcript {self._name}: call {operation.call_id!r} has its result on record; "
                        "settle it without content"
                    )
                self._answer(operation.turn_id, operation.call_id, content, EXTRA_BY_OUTCOME[outcome])
            return self.append_tool_settled(op_id, outcome, reason=reason)

    def repair(self) -> list[Repair]:
        """Answer every unanswered call honestly and settle every pending operation.

        For the time between runs: a call in flight looks like one that a crash has left.
        Nothing is run again. Each call is answered behind its own turn, also when the
        conversation went on since. Results that answer no call are told each time; nothing
        is written about them.

        Returns:
            What was found, calls first; `[]` when all is well.
        """
        with self._owned():
            findings = diagnose(self._state)
            for finding in findings:
                self._mend(finding)
            return [finding.repair for finding in findings]

    def _mend(self, finding: Finding) -> None:
        if finding.notice is not None:
            self._answer(finding.turn_id, finding.repair.call_id, finding.notice, finding.extra)
        if finding.settles is not None:
            self.append_tool_settled(finding.settles, finding.answer.outcome, reason=finding.answer.reason)

    def _answer(self, turn_id: str | None, call_id: str, content: str, extra: Mapping[str, Any]) -> None:
        """Write a tool message where it answers its turn, at the end or, if need be, by name."""
        if self._state.has_moved_on(turn_id, call_id):
            extra = {**extra, records.ANSWERS_TURN: turn_id}
        self.append_message(Message.tool(call_id, content), extra)


# Sessions of this process that can write. Forked children close what they inherit: a lock
# lives as long as any process has it open.
_writable: weakref.WeakSet[Session] = weakref.WeakSet()


def _disown_in_child() -> None:
    for session in list(_writable):
        session._leave_to_parent()
    _writable.clear()


os.register_at_fork(after_in_child=_disown_in_child)
