"""The lines of a transcript: their types, their envelope, and what a line about a message holds.

The law: what is on disk is kebab-case and never changes its meaning. Here JSON is plain data;
`session.replay` knows what a sequence of lines amounts to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llm_agent.codec import clean_value
from llm_agent.events import format_ts, now_us
from llm_agent.messages import Message
from llm_agent.run_context import RunContext, Section
from llm_agent.tool_operation import Settlement

Envelope = dict[str, Any]
"""`{"v": 1, "type", "id", "ts", "payload"}`."""

VERSION: Final = 1

SESSION_META: Final = "session-meta"
MESSAGE: Final = "message"
GRANTS: Final = "grants"
COMPACTION: Final = "compaction"
ELISION: Final = "elision"
TOOL_DISPATCHED: Final = "tool-dispatched"
TOOL_SETTLED: Final = "tool-settled"
RUN_CONTEXT: Final = "run-context"
BUILT_IN: Final = frozenset(
    {SESSION_META, MESSAGE, GRANTS, COMPACTION, ELISION, TOOL_DISPATCHED, TOOL_SETTLED, RUN_CONTEXT}
)
# A run's context is for the reader of a file: damage in it must not cost the conversation.
_HOLDS_OBJECT: Final = BUILT_IN - {RUN_CONTEXT}

# Beside a tool message that was written after other messages had followed its turn: the id of
# the line of that turn. The file only grows, so the place is told instead of taken.
ANSWERS_TURN: Final = "answers-turn"

# What a message says about itself, in both spellings that are read: nothing beside a message
# may say it in its stead.
_MESSAGE_KEYS: Final = frozenset(
    {
        *("role", "content", "sticky", "sysprompt", "depth"),
        *("tool-calls", "tool-call-id", "tool_calls", "tool_call_id"),
    }
)


# The second of the newest line and its text up to the point. Replaced whole: no lock.
_second: tuple[int, str] = (-1, "")


class Refused(ValueError):
    """A line that no transcript may hold; says why. Never leaves the session."""


def new_envelope(kind: str, payload: Mapping[str, Any]) -> Envelope:
    """Return *payload* as the line of type *kind*, with an id of its own."""
    return {"v": VERSION, "type": kind, "id": _new_id(), "ts": _now_text(), "payload": payload}


def _new_id() -> str:
    # A version 4 UUID at half the price of uuid4: every line needs one.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def _now_text() -> str:
    # `format_ts` with the second remembered: lines come in bursts, and dates are dear.
    global _second
    second, fraction = divmod(now_us(), 1_000_000)
    known, text = _second
    if known != second:
        text = format_ts(second * 1_000_000)[:-7]
        _second = second, text
    return f"{text}{fraction:06d}Z"


def checked_kind(envelope: Any) -> str:
    """Return the type of a line.

    Raises:
        Refused: it is no envelope of a version we read.
    """
    if not isinstance(envelope, dict):
        raise Refused(f"a line must be a JSON object, got {type(envelope).__name__}")
    version = envelope.get("v")
    if version != VERSION or version is True:
        raise Refused(f"the version 'v' must be {VERSION}, got {version!r}")
    kind = envelope.get("type")
    if not isinstance(kind, str):
        raise Refused(f"the type must be text, got {kind!r}")
    if kind in _HOLDS_OBJECT and not isinstance(envelope.get("payload"), dict):
        raise Refused(f"the payload of a {kind} line must be a JSON object, got {envelope.get('payload')!r}")
    return kind


def line_id(envelope: Envelope) -> str:
    """Return the id of a line that others may name.

    Raises:
        Refused: it has none.
    """
    known = envelope.get("id")
    if not isinstance(known, str) or not known:
        raise Refused(f"a {envelope['type']} line needs an id, got {known!r}")
    return known


def message_payload(message: Message, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the line of *message* holds; of *extra*, what the message itself does not say."""
    payload = message.to_dict()
    if extra:
        for key, value in clean_value(extra).items():
            if key not in _MESSAGE_KEYS:
                payload[key] = value
    return payload


def run_context_payload(context: RunContext, run_id: str, carrier: Callable[[Section], str | None]) -> dict[str, Any]:
    """Return what the line of *context* holds.

    Args:
        carrier: the id of the line that has a section's text already, or `None`.
    """
    return {
        "run-id": run_id,
        "digest": context.digest,
        "facts": [[name, value] for name, value in context.facts],
        "sections": [_section(section, carrier(section)) for section in context.sections],
    }


def _section(section: Section, carrier_id: str | None) -> dict[str, str]:
    body = {"rendered": section.text} if carrier_id is None else {"rendered-in": carrier_id}
    return {"part": section.part, "name": section.name, "digest": section.digest, **body}


# Beside a tool message whose call did not run; the other ends: `EXTRA_BY_OUTCOME`.
DID_NOT_RUN: Final[Mapping[str, Any]] = {"abandoned": True}


@attrs.frozen
class AnswerKind:
    """What the line of a tool message says about the call it answers."""

    outcome: Settlement = "completed"
    reason: str | None = None

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> AnswerKind:
        if payload.get("outcome-unknown"):
            return cls("outcome-unknown", "cancelled" if payload.get("cancelled") else None)
        return cls("failed") if payload.get("is-error") else COMPLETED


COMPLETED: Final = AnswerKind()
UNKNOWN: Final = AnswerKind("outcome-unknown")


def without_none(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return *payload* without what is not known."""
    return {key: value for key, value in payload.items() if value is not None}
