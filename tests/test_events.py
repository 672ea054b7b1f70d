"""Every event is plain data on the wire and the same event again when it is read."""

from __future__ import annotations

import json
import pickle
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent import events
from llm_agent.errors import ConfigError
from llm_agent.events import AttemptRecord, Event
from llm_agent.messages import Message, ToolRequest, Usage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON_VALUE = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), TEXT
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)
MAPPING = st.dictionaries(TEXT, JSON_VALUE, max_size=3)
COUNT = st.integers(0, 10**9)
NUMBER = st.floats(0, 1e9)
USAGE = st.builds(
    Usage,
    prompt_tokens=st.none() | COUNT,
    total_tokens=st.none() | COUNT,
    cost=st.none() | NUMBER,
    generation_id=st.none() | TEXT,
)
RECORD = st.builds(
    AttemptRecord,
    backend_index=COUNT,
    model=TEXT,
    error=TEXT,
    raw_text=st.none() | TEXT,
    usage=st.none() | USAGE,
    disposition=st.sampled_from([None, "advance"]),
)
CALL = st.builds(ToolRequest, TEXT, TEXT, st.none() | TEXT | MAPPING)
TURN = st.builds(Message.assistant, TEXT, st.lists(CALL, max_size=2))

CLASSES: tuple[Any, ...] = get_args(Event)
# Fields whose name says more than their type.
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "at_us": st.integers(0, 4_000_000_000_000_000),
    "message": TURN,
    "attempts": st.lists(RECORD, max_size=2).map(tuple),
    "data": TEXT | MAPPING,
    "answer": st.none() | TEXT | MAPPING,
}
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: COUNT,
    float: NUMBER,
    bool: st.booleans(),
    type(None): st.none(),
    Usage: USAGE,
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if str(hint).startswith("collections.abc.Mapping"):
        return MAPPING
    return st.one_of(*map(values_of, get_args(hint)))


def field_values(cls: Any, field: attrs.Attribute[Any], hint: Any) -> st.SearchStrategy[Any]:
    if field.name in BY_NAME and (cls, field.name) != (events.ToolProgress, "message"):
        return BY_NAME[field.name]
    return values_of(hint)


def instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{field.name: field_values(cls, field, hints[field.name]) for field in attrs.fields(cls)})


# One small event of each class, only what is required.
MINIMAL: list[Any] = [
    events.RunStarted(message_count=1),
    events.RoundStarted(round=1),
    events.CompactionStarted(),
    events.CompactionDone(),
    events.AttemptStarted(round=1, attempt=1, backend_index=0, model="m"),
    events.Token(text="x"),
    events.AttemptFailed(round=1, attempt=1, backend_index=0, error="no", disposition="advance"),
    events.AttemptSucceeded(round=1, attempt=1, backend_index=0),
    events.AssistantMessage(message=Message.assistant("x")),
    events.TurnCommitted(),
    events.LimitReached(limit="max-tool-rounds"),
    events.TurnDiscarded(reason="limit"),
    events.ToolCall(id="c", name="n"),
    events.ToolStarted(id="c", name="n"),
    events.ToolProgress(id="c", progress=0.5),
    events.ToolResult(id="c", content="x"),
    events.ToolAbandoned(id="c", name="n", reason="deadline", dispatched=True),
    events.AskPending(request={"tool": "n"}),
    events.AskAnswered(request={"tool": "n"}),
    events.Log(data="x"),
    events.RunCompleted(final="x"),
    events.RunFailed(error="no"),
    events.RunCancelled(),
]
# What each of them tells beside its kind and time: the keys of the wire, spelled once.
PAYLOADS: dict[str, dict[str, Any]] = {
    "run-started": {"message-count": 1},
    "round-started": {"round": 1},
    "compaction-started": {},
    "compaction-done": {"fallback": False},
    "attempt-started": {"round": 1, "attempt": 1, "backend-index": 0, "model": "m"},
    "token": {"text": "x"},
    "attempt-failed": {"round": 1, "attempt": 1, "backend-index": 0, "error": "no", "disposition": "advance"},
    "attempt-succeeded": {"round": 1, "attempt": 1, "backend-index": 0, "usage": {}},
    "assistant-message": {"message": {"role": "assistant", "content": "x"}},
    "turn-committed": {},
    "limit-reached": {"limit": "max-tool-rounds"},
    "turn-discarded": {"reason": "limit"},
    "tool-call": {"id": "c", "name": "n"},
    "tool-started": {"id": "c", "name": "n"},
    "tool-progress": {"id": "c", "progress": 0.5},
    "tool-result": {"id": "c", "content": "x", "is-error": False},
    "tool-abandoned": {"id": "c", "name": "n", "reason": "deadline", "dispatched": True},
    "ask-pending": {"request": {"tool": "n"}},
    "ask-answered": {"request": {"tool": "n"}},
    "log": {"level": "info", "data": "x"},
    "run-completed": {"final": "x"},
    "run-failed": {"error": "no", "attempts": []},
    "run-cancelled": {},
}


def kind_of(event: Any) -> str:
    return str(event.kind)


# -- the taxonomy ---------------------------------------------------------------------------


def test_every_class_is_sampled_and_kinds_are_unique() -> None:
    """A new class cannot escape these tests."""
    assert [type(event) for event in MINIMAL] == list(CLASSES)
    assert [event.kind for event in MINIMAL] == list(PAYLOADS) == list(events.KINDS)
    assert len(set(events.KINDS)) == len(CLASSES)


def test_three_kinds_end_a_run() -> None:
    """Exactly these, and their classes say so."""
    assert {"run-completed", "run-failed", "run-cancelled"} == events.TERMINAL_KINDS
    assert {event.kind for event in MINIMAL if event.is_terminal} == events.TERMINAL_KINDS


def test_the_base_is_no_event() -> None:
    """It has no kind to be told by."""
    base: Any = events._Event()

    with pytest.raises(AttributeError):
        base.to_dict()


@pytest.mark.parametrize("event", MINIMAL, ids=kind_of)
def test_events_are_frozen_and_slotted(event: Any) -> None:
    """Shared by every reader, changed by none."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.seq = 1
    assert not hasattr(event, "__dict__")


@pytest.mark.parametrize("cls", CLASSES, ids=kind_of)
def test_no_payload_is_called_kind_or_hides_the_envelope(cls: Any) -> None:
    """Those keys are taken."""
    own = {field.name for field in attrs.fields(cls)} - {"run_id", "seq", "at_us"}

    assert not own & {"kind", "ts", "is_terminal"}


# -- telling --------------------------------------------------------------------------------


@pytest.mark.parametrize("event", MINIMAL, ids=kind_of)
def test_the_wire_form_of_a_minimal_event(event: Any) -> None:
    """Kind, time, and the payload without what is not known."""
    told = attrs.evolve(event, at_us=0).to_dict()

    assert told == {"kind": event.kind, "ts": "1970-01-01T00:00:00.000000Z"} | PAYLOADS[event.kind]


@given(st.one_of(*map(instances, CLASSES)))
def test_an_event_comes_back_from_its_wire_form(event: Any) -> None:
    """Through JSON, as a queue or a socket would carry it: the same event, `ts` included."""
    relayed = events.from_dict(json.loads(json.dumps(event.to_dict())))

    assert relayed == event
    assert type(relayed) is type(event)


@pytest.mark.parametrize("event", MINIMAL, ids=kind_of)
def test_every_kind_comes_back_from_its_wire_form(event: Any) -> None:
    """Each class for certain, stamped as a run stamps it."""
    stamped = event.stamped("run-1", 0)

    assert events.from_dict(stamped.to_dict()) == stamped


@pytest.mark.parametrize("event", MINIMAL, ids=kind_of)
def test_events_pickle(event: Any) -> None:
    """Process pools carry them."""
    assert pickle.loads(pickle.dumps(event)) == event


def test_an_unstamped_event_has_no_place_in_a_run() -> None:
    """Run id and seq are absent until the channel gives them."""
    event = events.Token(text="x")
    stamped = event.stamped("run-1", 0)

    assert not {"run-id", "seq"} & set(event.to_dict())
    assert (stamped.to_dict()["run-id"], stamped.to_dict()["seq"]) == ("run-1", 0)
    assert (event.run_id, event.seq) == (None, None)


def test_a_turn_is_shown_as_the_model_sent_it() -> None:
    """Chat-completions form, calls unrepaired, reasoning beside the message."""
    message = Message.assistant("", [ToolRequest("c", "bad name", '{"a": ')])

    told = events.AssistantMessage(message=message, reasoning="because").to_dict()

    assert told["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bad name", "arguments": '{"a": '}}],
    }
    assert told["reasoning"] == "because"


@pytest.mark.parametrize(
    "event",
    [
        events.AttemptFailed(round=1, attempt=1, backend_index=0, error="no", disposition="abort", usage=Usage()),
        events.ToolResult(id="c", content="x", artifact={}),
    ],
    ids=kind_of,
)
def test_an_empty_bill_and_an_empty_artifact_are_absent(event: Any) -> None:
    """And the event comes back as it is."""
    assert not {"usage", "artifact"} & set(event.to_dict())
    assert events.from_dict(event.to_dict()) == event


@pytest.mark.parametrize(
    "event",
    [
        events.Log(data="no caf\udce9"),
        events.Log(data={"\ud800": ["\udc00"]}),
        events.RunFailed(error="\ud800", attempts=(AttemptRecord(backend_index=0, model="m", error="\ud800"),)),
        events.ToolProgress(id="c", progress=float("nan"), total=float("inf")),
        events.AskAnswered(request={"x": object}, answer="\ud83d\ude00"),
        events.ToolCall(id="c", name="n", arguments={"wide": 10**5000}),
    ],
    ids=kind_of,
)
def test_what_is_told_can_be_sent_whatever_came_in(event: Any) -> None:
    """Valid JSON in valid UTF-8, by the strictest encoder."""
    json.dumps(event.to_dict(), allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda data: events.Log(data=data), lambda event: event.data),
        (lambda data: events.AskPending(request=data), lambda event: event.request),
        (lambda data: events.AskAnswered(request=data), lambda event: event.request),
        (lambda data: events.AskAnswered(request={}, answer=data), lambda event: event.answer),
        (lambda data: events.ToolResult(id="c", content="x", artifact=data), lambda event: event.artifact),
        (lambda data: events.ToolCall(id="c", name="n", arguments=data), lambda event: event.arguments),
    ],
    ids=["log", "request", "answered-request", "answer", "artifact", "arguments"],
)
def test_history_does_not_change_with_the_callers_data(make: Any, read: Any) -> None:
    """A late reader sees what an early one saw; changing what was told changes nothing either."""
    data = {"list": [1]}
    event = make(data)

    data["list"].append(2)
    event.to_dict().clear()

    assert read(event) == {"list": [1]}


# -- time -----------------------------------------------------------------------------------


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_has_six_digits_and_comes_back(moment: datetime) -> None:
    """ISO-8601, UTC, microseconds, `Z`; also where the fraction is zero."""
    at_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    text = events.format_ts(at_us)

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert events.parse_ts(text) == at_us
    assert events.Token(text="x", at_us=at_us).ts == moment


def test_a_time_with_another_offset_is_understood() -> None:
    """The transcript of another program may hold one."""
    assert events.parse_ts("1970-01-01T01:00:00.5+01:00") == 500_000


@pytest.mark.parametrize(
    "text", ["1970-01-01T00:00:00", "yesterday", "", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    """No offset, no time, or outside of what can be told again."""
    with pytest.raises(ValueError, match=r"."):
        events.parse_ts(text)
    with pytest.raises(ConfigError, match="not a token event"):
        events.from_dict({"kind": "token", "text": "x", "ts": text})


def test_an_event_is_dated_when_it_is_made() -> None:
    """Aware, UTC."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    event = events.Token(text="x")

    assert before < event.ts < datetime.now(UTC) + timedelta(seconds=1)
    assert event.ts.utcoffset() == timedelta(0)


# -- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: events.AttemptFailed(round=1, attempt=1, backend_index=0, error="x", disposition="retry"),
            "disposition must be one of retry-same, advance, abort, got 'retry'",
        ),
        (lambda: events.TurnDiscarded(reason="boring"), "reason must be one of limit, failed, cancelled"),
        (
            lambda: events.ToolAbandoned(id="c", name="n", reason="limit", dispatched=False),
            "reason must be one of cancelled, deadline, budget-exhausted",
        ),
        (lambda: events.Log(data=42), "Log: data must be text or a mapping, got int"),
        (lambda: events.Log(data=None), "Log: data must be text or a mapping, got NoneType"),
    ],
)
def test_what_an_event_cannot_say_is_refused_where_it_is_made(make: Any, message: str) -> None:
    """The message names the event, the field and what came."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_turn_event_needs_a_message() -> None:
    """A dict in its place is refused."""
    message: Any = {"role": "assistant", "content": "x"}

    with pytest.raises(TypeError):
        events.AssistantMessage(message=message)


@pytest.mark.parametrize("reason", get_args(events.AbandonReason))
@pytest.mark.parametrize("dispatched", [False, True])
def test_a_call_is_abandoned_before_or_after_it_left(reason: Any, dispatched: bool) -> None:
    """Certain either way, and told either way."""
    told = events.ToolAbandoned(id="c", name="n", reason=reason, dispatched=dispatched).to_dict()

    assert (told["reason"], told["dispatched"]) == (reason, dispatched)


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ({"action": "allow"}, {"action": "allow"}),
        ("allow-once", "allow-once"),
        ("", ""),
        (True, "True"),
        (False, "False"),
        (0, "0"),
        (["a"], "['a']"),
        (None, None),
        (Mute(), "<Mute without text>"),
    ],
    ids=range(9),
)
def test_an_ask_takes_any_answer(answer: Any, kept: Any) -> None:
    """A mapping stays one, anything else becomes text, `None` is no answer."""
    event = events.AskAnswered(request={}, answer=answer)

    assert event.answer == kept
    assert ("answer" in event.to_dict()) is (kept is not None)


@pytest.mark.parametrize("kind", ["nonsense", "", None, 7, ["token"], {"kind": "token"}])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    """Whatever its type."""
    with pytest.raises(ConfigError, match=r"events\.from_dict: unknown kind"):
        events.from_dict({"kind": kind})


@pytest.mark.parametrize("data", [None, [], "token", 7])
def test_what_is_no_mapping_is_refused(data: Any) -> None:
    """With the type that came."""
    with pytest.raises(ConfigError, match=f"expected a mapping, got {type(data).__name__}"):
        events.from_dict(data)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "token"},
        {"kind": "token", "text": "x", "ts": 7},
        {"kind": "turn-discarded", "reason": "boring"},
        {"kind": "assistant-message", "message": "x"},
        {"kind": "assistant-message", "message": {"role": "robot"}},
        {"kind": "attempt-succeeded", "round": 1, "attempt": 1, "backend-index": 0, "usage": 7},
        {"kind": "run-failed", "error": "x", "attempts": 7},
        {"kind": "run-failed", "error": "x", "attempts": [7]},
        {"kind": "log", "data": 42},
    ],
    ids=range(9),
)
def test_what_cannot_be_that_event_is_refused(data: dict[str, Any]) -> None:
    """One error, which names the kind."""
    with pytest.raises(ConfigError, match=f"events.from_dict: not a {data['kind']} event"):
        events.from_dict(data)


def test_keys_that_nobody_knows_are_ignored() -> None:
    """A newer program may say more."""
    assert events.from_dict({"kind": "token", "text": "x", "mood": "good"}).kind == "token"
