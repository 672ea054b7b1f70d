"""Everything a run says while it lives: the event classes, their wire form, their grammar.

The grammar, in the words a UI author needs::

    run      := run-started  round*  terminal
    round    := [compaction]  round-started  attempt*  [compaction attempt*]  [verdict  tools]
    attempt  := attempt-started  token*  [ attempt-succeeded | attempt-failed ]
    verdict  := assistant-message turn-committed      the turn is part of the conversation
              | [limit-reached] turn-discarded        it is not, and never was
    tools    := tool-call*  ( tool-started+ (ask-* | tool-progress)* (tool-result | tool-abandoned)+
                            | tool-abandoned )*       without tool-started: it never ran
    compaction := compaction-started compaction-done
    terminal := run-completed | run-failed | run-cancelled

What a consumer does with a token scope:

- `attempt-started`: open a fresh scope;
- `token`: append to it;
- `attempt-failed`: throw away every token since the last attempt-started;
- `attempt-succeeded`: keep the scope; the assistant-message that follows is authoritative;
- `turn-discarded`: throw away what the round streamed, no assistant-message is coming.

Within a round every attempt-succeeded leads to exactly one of assistant-message and
turn-discarded. A cancelled attempt has neither attempt-failed nor attempt-succeeded; its
turn-discarded follows. A round has no verdict where no request could be sent (the run then
fails as context-exhausted). Calls of one group start together, and each has its own end.
`log` may stand anywhere. Exactly one terminal, and nothing after it.
`llm_agent.testing.check_events` checks all of this.

Events are frozen. `run_id` and `seq` are `None` until the run's channel stamped them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal, Self, cast, get_args

import attrs

from llm_agent.codec import clean_text, clean_value
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, Usage

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Disposition = Literal["retry-same", "advance", "abort"]
DISPOSITIONS: Final = get_args(Disposition)
DiscardReason = Literal["limit", "failed", "cancelled"]
AbandonReason = Literal["cancelled", "deadline", "budget-exhausted"]
Stage = Literal["start", "compaction", "streaming", "backoff", "tools"]


def now_us() -> int:
    """Microseconds since the epoch, now."""
    return time.time_ns() // 1000


def format_ts(at_us: int) -> str:
    """Return ISO-8601 UTC with six fractional digits and `Z`; the transcript uses it too."""
    moment = _EPOCH + timedelta(microseconds=at_us)
    return moment.isoformat(timespec="microseconds")[:-6] + "Z"


def parse_ts(text: str) -> int:
    """The inverse of `format_ts`; any ISO-8601 time with an offset is understood."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"a time needs its offset, got {text!r}")
    try:
        return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise ValueError(f"a time must lie within the years 1 to 9999 in UTC, got {text!r}") from None


def _one_of(literal: Any) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    allowed = get_args(literal)

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in allowed:
            raise ConfigError(
                f"{type(instance).__name__}: {attribute.name} must be one of {', '.join(allowed)}, got {value!r}"
            )

    return check


def _snapshot(value: Any) -> Any:
    """A copy of plain data: what is told is told to every reader alike, whoever changes the original."""
    return clean_value(value) if isinstance(value, Mapping) else value


def _unless_empty(value: Any) -> Any:
    return None if not value or value == Usage() else _snapshot(value)


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class _Event:
    """What every event carries. Not an event itself."""

    kind: ClassVar[str]
    is_terminal: ClassVar[bool] = False

    run_id: str | None = None
    seq: int | None = None
    """Position in the run, from 0, without gaps."""
    at_us: int = attrs.field(factory=now_us)
    """When it was made, in microseconds since the epoch."""

    @property
    def ts(self) -> datetime:
        """When it was made: aware, UTC, microseconds."""
        return _EPOCH + timedelta(microseconds=self.at_us)

    def __repr__(self) -> str:
        # Once for all: one made for each class would be 5 % of what importing the library costs.
        told = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in attrs.fields(type(self)))
        return f"{type(self).__name__}({told})"

    def stamped(self, run_id: str, seq: int) -> Self:
        """Return a copy with its place in a run."""
        return attrs.evolve(self, run_id=run_id, seq=seq)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, kebab-case; what is `None` is absent."""
        told: dict[str, Any] = {"kind": self.kind, "ts": format_ts(self.at_us)}
        if self.run_id is not None:
            told["run-id"] = self.run_id
        if self.seq is not None:
            told["seq"] = self.seq
        for name, key in _payload_keys(type(self)):
            value = getattr(self, name)
            if value is not None:
                told[key] = _told(value)
        return told


_keys_by_class: Final[dict[str, tuple[tuple[str, str], ...]]] = {}


def _payload_keys(cls: type[_Event]) -> tuple[tuple[str, str], ...]:
    """The payload of a class as (attribute, wire key), the envelope left out."""
    keys = _keys_by_class.get(cls.kind)
    if keys is None:
        envelope = {field.name for field in attrs.fields(_Event)}
        keys = tuple((f.name, f.name.replace("_", "-")) for f in attrs.fields(cls) if f.name not in envelope)
        _keys_by_class[cls.kind] = keys
    return keys


def _told(value: Any) -> Any:
    match value:
        case str():
            return clean_text(value)
        case Message():
            return value.to_chat()
        case Usage() | AttemptRecord():
            return value.to_dict()
        case tuple():
            return [_told(item) for item in value]
        case int():
            return value
        case _:
            return clean_value(value)


@attrs.frozen(kw_only=True)
class AttemptRecord:
    """What is remembered of a failed attempt, for the outcome of a failed run."""

    backend_index: int
    model: str
    error: str
    raw_text: str | None = None
    """What it had streamed, if anything."""
    usage: Usage | None = None
    disposition: Disposition | None = None
    """`advance`, only for a backend that was skipped because the request cannot fit it."""

    def to_dict(self) -> dict[str, Any]:
        told = {f.name.replace("_", "-"): getattr(self, f.name) for f in attrs.fields(AttemptRecord)}
        if self.usage is not None:
            told["usage"] = self.usage.to_dict()
        return {key: clean_value(value) for key, value in told.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttemptRecord:
        known = {f.name: data.get(f.name.replace("_", "-")) for f in attrs.fields(cls)}
        if known["usage"] is not None:
            known["usage"] = Usage.from_dict(cast("Mapping[str, Any]", known["usage"]))
        return cls(**cast("Any", known))


# -- the run and its rounds -----------------------------------------------------------


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class RunStarted(_Event):
    """The worker has begun. *message_count* is what the run was given."""

    kind: ClassVar[Literal["run-started"]] = "run-started"
    message_count: int
    context_digest: str | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class RoundStarted(_Event):
    """A round begins. *tokens* only where a budget or a compactor counts them."""

    kind: ClassVar[Literal["round-started"]] = "round-started"
    round: int
    tokens: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class CompactionStarted(_Event):
    """The conversation is to become smaller; compaction-done follows, whatever comes of it."""

    kind: ClassVar[Literal["compaction-started"]] = "compaction-started"
    tokens_before: int | None = None
    budget: int | None = None
    message_count: int | None = None
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class CompactionDone(_Event):
    """What came of it. With neither *dropped* nor *aged* the conversation is as it was.

    Sizes are estimates of the whole and of what is left, in the same units.
    """

    kind: ClassVar[Literal["compaction-done"]] = "compaction-done"
    tokens_before: int | None = None
    tokens_after: int | None = None
    dropped: int | None = None
    """How many messages *summary* stands for."""
    summary: str | None = None
    fallback: bool = False
    """No summary was to be had: *summary* is a note that says so."""
    aged: int | None = None
    """How many old tool results became stubs."""
    error: str | None = None
    """Why requests for a summary failed, where some did."""
    round: int | None = None


# -- one completion: attempts and their tokens ----------------------------------------


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class AttemptStarted(_Event):
    """One request to one backend: open a fresh token scope."""

    kind: ClassVar[Literal["attempt-started"]] = "attempt-started"
    round: int
    attempt: int
    """1-based within the round, counted across backends."""
    backend_index: int
    model: str


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class Token(_Event):
    """A piece of text, never empty. Joined, a scope's tokens are the turn's text exactly."""

    kind: ClassVar[Literal["token"]] = "token"
    text: str
    round: int | None = None
    attempt: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class AttemptFailed(_Event):
    """The attempt is over: throw away its tokens. *disposition* is what happens next."""

    kind: ClassVar[Literal["attempt-failed"]] = "attempt-failed"
    round: int
    attempt: int
    backend_index: int
    model: str | None = None
    error: str
    error_class: str | None = None
    error_status: int | None = None
    disposition: Disposition = attrs.field(validator=_one_of(Disposition))
    backoff: float | None = None
    """Seconds until the same backend is asked again; only with `retry-same`."""
    retry_after: float | None = None
    """Seconds the server asked for."""
    usage: Usage | None = attrs.field(default=None, converter=_unless_empty)


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class AttemptSucceeded(_Event):
    """The completion is whole: keep its tokens, and wait for the verdict of the round."""

    kind: ClassVar[Literal["attempt-succeeded"]] = "attempt-succeeded"
    round: int
    attempt: int
    backend_index: int
    model_used: str | None = None
    finish_reason: str | None = None
    usage: Usage = attrs.field(factory=Usage)
    latency_ms: float | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class AssistantMessage(_Event):
    """The turn as it is now part of the conversation; calls as the model sent them."""

    kind: ClassVar[Literal["assistant-message"]] = "assistant-message"
    message: Message = attrs.field(validator=attrs.validators.instance_of(Message))
    reasoning: str | None = None
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class TurnCommitted(_Event):
    """The turn is on disk (or would be, with a session) under *message_id*."""

    kind: ClassVar[Literal["turn-committed"]] = "turn-committed"
    message_id: str | None = None
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class LimitReached(_Event):
    """The turn asked for more tools than the run allows; turn-discarded follows."""

    kind: ClassVar[Literal["limit-reached"]] = "limit-reached"
    limit: str
    count: int | None = None
    max: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class TurnDiscarded(_Event):
    """Whatever this round streamed never became part of the conversation."""

    kind: ClassVar[Literal["turn-discarded"]] = "turn-discarded"
    reason: DiscardReason = attrs.field(validator=_one_of(DiscardReason))
    round: int | None = None


# -- tools ----------------------------------------------------------------------------


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class ToolCall(_Event):
    """The model asks for this call. All calls of a turn are announced before the first starts."""

    kind: ClassVar[Literal["tool-call"]] = "tool-call"
    id: str
    name: str
    arguments: str | Mapping[str, Any] | None = attrs.field(default=None, converter=_snapshot)
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class ToolStarted(_Event):
    """The call is about to be handed over; from here on it may have had an effect."""

    kind: ClassVar[Literal["tool-started"]] = "tool-started"
    id: str
    name: str
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class ToolProgress(_Event):
    kind: ClassVar[Literal["tool-progress"]] = "tool-progress"
    id: str
    progress: float
    total: float | None = None
    message: str | None = None
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class ToolResult(_Event):
    """The call is answered; *content* is what the model will read."""

    kind: ClassVar[Literal["tool-result"]] = "tool-result"
    id: str
    name: str | None = None
    content: str
    is_error: bool = False
    artifact: Mapping[str, Any] | None = attrs.field(default=None, converter=_unless_empty)
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class ToolAbandoned(_Event):
    """Nobody waits for this call any more.

    *dispatched* False: it was never handed over and did not run. True: it was, and whether
    it took effect is unknown.
    """

    kind: ClassVar[Literal["tool-abandoned"]] = "tool-abandoned"
    id: str
    name: str
    reason: AbandonReason = attrs.field(validator=_one_of(AbandonReason))
    dispatched: bool
    round: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class AskPending(_Event):
    """A human is asked; the call's deadline stands still until the answer."""

    kind: ClassVar[Literal["ask-pending"]] = "ask-pending"
    request: Mapping[str, Any] = attrs.field(converter=_snapshot)
    tool: str | None = None
    ask_id: str | None = None
    call_id: str | None = None


def _answer(value: Any) -> Any:
    plain = clean_value(value)
    return plain if plain is None or isinstance(value, Mapping) else str(plain)


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class AskAnswered(_Event):
    """The ask is over; without *answer* it raised, or nobody answered."""

    kind: ClassVar[Literal["ask-answered"]] = "ask-answered"
    request: Mapping[str, Any] = attrs.field(converter=_snapshot)
    answer: Mapping[str, Any] | str | None = attrs.field(default=None, converter=_answer)
    ask_id: str | None = None
    call_id: str | None = None


# -- anywhere -------------------------------------------------------------------------


def _log_data(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str | Mapping):
        raise ConfigError(f"Log: data must be text or a mapping, got {type(value).__name__}")


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class Log(_Event):
    """A word from the engine (logger `llm-agent.loop`) or from a tool."""

    kind: ClassVar[Literal["log"]] = "log"
    level: str = "info"
    logger: str | None = None
    data: str | Mapping[str, Any] = attrs.field(converter=_snapshot, validator=_log_data)


# -- how a run ends -------------------------------------------------------------------


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class RunCompleted(_Event):
    kind: ClassVar[Literal["run-completed"]] = "run-completed"
    is_terminal: ClassVar[bool] = True
    final: str
    rounds: int | None = None
    message_count: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class RunFailed(_Event):
    """*reason* where a program can branch on it: context-exhausted, budget-exhausted, completion-truncated."""

    kind: ClassVar[Literal["run-failed"]] = "run-failed"
    is_terminal: ClassVar[bool] = True
    error: str
    attempts: tuple[AttemptRecord, ...] = ()
    round: int | None = None
    reason: str | None = None


@attrs.frozen(kw_only=True, weakref_slot=False, repr=False)
class RunCancelled(_Event):
    """*reason* is what was given to `cancel`, or `timeout`."""

    kind: ClassVar[Literal["run-cancelled"]] = "run-cancelled"
    is_terminal: ClassVar[bool] = True
    stage: Stage | None = None
    round: int | None = None
    reason: str | None = None


Terminal = RunCompleted | RunFailed | RunCancelled

Event = (
    RunStarted
    | RoundStarted
    | CompactionStarted
    | CompactionDone
    | AttemptStarted
    | Token
    | AttemptFailed
    | AttemptSucceeded
    | AssistantMessage
    | TurnCommitted
    | LimitReached
    | TurnDiscarded
    | ToolCall
    | ToolStarted
    | ToolProgress
    | ToolResult
    | ToolAbandoned
    | AskPending
    | AskAnswered
    | Log
    | RunCompleted
    | RunFailed
    | RunCancelled
)

_CLASS_BY_KIND: Final[dict[str, type[_Event]]] = {cls.kind: cls for cls in get_args(Event)}
KINDS: Final = tuple(_CLASS_BY_KIND)
TERMINAL_KINDS: Final = frozenset(kind for kind, cls in _CLASS_BY_KIND.items() if cls.is_terminal)


def from_dict(data: Mapping[str, Any]) -> Event:
    """Return the event that `to_dict` described; for relaying a run through a queue or a socket.

    Raises:
        ConfigError: the kind is unknown, or a field is missing or cannot be.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"events.from_dict: expected a mapping, got {type(data).__name__}")
    kind = data.get("kind")
    cls = _CLASS_BY_KIND.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ConfigError(f"events.from_dict: unknown kind {kind!r}, expected one of {', '.join(KINDS)}")
    fields: dict[str, Any] = {"run_id": data.get("run-id"), "seq": data.get("seq")}
    try:
        if "ts" in data:
            fields["at_us"] = parse_ts(data["ts"])
        for name, key in _payload_keys(cls):
            if key in data:
                fields[name] = _read(name, data[key])
        return cast("Event", cls(**fields))
    except (TypeError, ValueError, AttributeError) as exc:
        raise ConfigError(f"events.from_dict: not a {kind} event: {exc}") from exc


def _read(name: str, value: Any) -> Any:
    match name:
        case "message" if isinstance(value, Mapping):
            return Message.from_dict(value)
        case "usage":
            return Usage.from_dict(value)
        case "attempts":
            return tuple(AttemptRecord.from_dict(record) for record in value)
        case _:
            return value
