"""What a crash left open: every call gets an honest answer, and nothing is run again."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent import notices
from llm_agent.errors import TranscriptError
from llm_agent.messages import Message, ToolRequest, unanswered_calls
from llm_agent.session.repair import Repair
from llm_agent.session.session import Session
from llm_agent.wire_view import WireView

WRITE = ToolRequest("c1", "write_file", '{"path": "a"}')
READ = ToolRequest("c2", "read_file", {"path": "b"})
NEVER = ToolRequest("c3", "delete_file", "")


def turn(*calls: ToolRequest) -> Message:
    return Message.assistant("", calls)


def dispatch(session: Session, call: ToolRequest) -> str:
    return session.append_tool_dispatched(call_id=call.id, tool=call.name, arguments='{"path":"a"}')


def types(session: Session) -> list[str]:
    return [envelope["type"] for envelope in session.envelopes()]


def test_a_batch_that_a_crash_cut_is_told_apart_call_by_call(tmp_path: Path) -> None:
    """Answered, in flight, never dispatched: three calls, three different truths, in the model's order."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_message(turn(WRITE, READ, NEVER))
        done = dispatch(session, WRITE)
        session.append_message(Message.tool("c1", "written"))
        session.append_tool_settled(done, "completed")
        in_flight = dispatch(session, READ)

    with Session.load(path) as session:
        repairs = session.repair()

        assert [(repair.call_id, repair.op_id, repair.verdict) for repair in repairs] == [
            ("c2", in_flight, "unknown"),
            ("c3", None, "did-not-run"),
        ]
        assert session.messages[1:] == (
            Message.tool("c1", "written"),
            Message.tool("c2", notices.REPAIR_UNKNOWN),
            Message.tool("c3", notices.REPAIR_DID_NOT_RUN),
        )
        assert session.pending_tool_operations() == []
        assert unanswered_calls(session.messages) == []
        live = session.messages
    assert Session.read(path).messages == live


def test_a_repair_writes_the_answer_before_the_settlement() -> None:
    """A crash in between reads as: completed, only the settlement was lost."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)

    session.repair()

    assert types(session)[-2:] == ["message", "tool-settled"]
    message, settled = (envelope["payload"] for envelope in session.envelopes()[-2:])
    assert message["outcome-unknown"] is True
    assert settled == {"op-id": op_id, "outcome": "outcome-unknown"}


def test_a_call_that_did_not_run_gets_no_operation() -> None:
    """Its answer says abandoned, as that of a live run does, and there is nothing to settle."""
    session = Session.in_memory()
    session.append_message(turn(NEVER))

    session.repair()

    assert types(session)[-1] == "message"
    assert session.envelopes()[-1]["payload"]["abandoned"] is True


def test_a_repair_repeated_finds_nothing() -> None:
    """What is answered stays answered."""
    session = Session.in_memory()
    session.append_message(turn(WRITE, NEVER))
    dispatch(session, WRITE)
    session.repair()
    before = session.elems

    assert session.repair() == []
    assert session.elems == before


@pytest.mark.parametrize(
    ("extra", "outcome", "reason"),
    [
        ({}, "completed", None),
        ({"is-error": True}, "failed", None),
        ({"outcome-unknown": True}, "outcome-unknown", None),
        ({"outcome-unknown": True, "cancelled": True}, "outcome-unknown", "cancelled"),
    ],
)
def test_a_lost_settlement_says_what_the_answer_said(extra: dict[str, bool], outcome: str, reason: str | None) -> None:
    """The message is there and the settlement is not: it is written as the message has it."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)
    session.append_message(Message.tool("c1", "result"), extra)

    (repair,) = session.repair()

    assert (repair.verdict, repair.op_id) == ("only-settle-was-lost", op_id)
    settled = session.envelopes()[-1]["payload"]
    assert (settled["outcome"], settled.get("reason")) == (outcome, reason)
    assert types(session).count("message") == 2


def test_a_settled_operation_without_a_message_gets_one() -> None:
    """An application that settled and died before it answered leaves no hole."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)
    session.append_tool_settled(op_id, "outcome-unknown")

    (repair,) = session.repair()

    assert (repair.verdict, repair.op_id) == ("unknown", op_id)
    assert session.messages[-1] == Message.tool("c1", notices.REPAIR_UNKNOWN)
    assert types(session).count("tool-settled") == 1


def test_an_answer_lands_behind_its_turn_though_the_conversation_went_on(tmp_path: Path) -> None:
    """The line is at the end of the file, the message where every server wants it; live and on replay."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_message(turn(WRITE, READ))
        dispatch(session, WRITE)
        session.append_message(Message.tool("c1", "written"))
        session.append_message(Message.user("still there?"))

        session.repair()

        live = session.messages, session.message_ids
    assert [message.role for message in live[0]] == ["assistant", "tool", "tool", "user"]
    assert live[0][2] == Message.tool("c2", notices.REPAIR_DID_NOT_RUN)
    replayed = Session.read(path)
    assert (replayed.messages, replayed.message_ids) == live
    assert replayed.needs_reply


def test_ids_that_repeat_are_told_apart_by_their_turn() -> None:
    """An answered call of an earlier turn does not answer its namesake, nor does its operation."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    first = dispatch(session, WRITE)
    session.append_message(Message.tool("c1", "written"))
    session.append_tool_settled(first, "completed")
    session.append_message(turn(WRITE))

    (repair,) = session.repair()

    assert (repair.verdict, repair.op_id) == ("did-not-run", None)
    assert session.messages[-1] == Message.tool("c1", notices.REPAIR_DID_NOT_RUN)


def test_both_of_two_unanswered_namesakes_are_answered() -> None:
    """One answer for each turn, each behind its own."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)
    session.append_message(Message.user("again"))
    session.append_message(turn(WRITE))

    repairs = session.repair()

    assert [(repair.verdict, repair.op_id) for repair in repairs] == [("unknown", op_id), ("did-not-run", None)]
    assert [message.text for message in session.messages if message.role == "tool"] == [
        notices.REPAIR_UNKNOWN,
        notices.REPAIR_DID_NOT_RUN,
    ]
    assert unanswered_calls(session.messages) == []


def test_two_calls_of_one_turn_with_one_id_are_both_answered() -> None:
    """A turn of another engine may repeat an id: each call needs its own answer."""
    session = Session.in_memory()
    session.append_message(turn(WRITE, attrs.evolve(READ, id="c1")))
    dispatch(session, WRITE)

    repairs = session.repair()

    assert [repair.verdict for repair in repairs] == ["unknown", "did-not-run"]
    assert unanswered_calls(session.messages) == []
    assert session.pending_tool_operations() == []


def test_answers_to_calls_with_one_id_belong_to_their_operations_in_order() -> None:
    """The second result is that of the second operation, whose settlement alone was lost."""
    session = Session.in_memory()
    session.append_message(turn(WRITE, WRITE))
    first = dispatch(session, WRITE)
    session.append_message(Message.tool("c1", "written"))
    session.append_tool_settled(first, "completed")
    second = dispatch(session, WRITE)
    session.append_message(Message.tool("c1", "written again"))

    assert [(repair.verdict, repair.op_id) for repair in session.repair()] == [("only-settle-was-lost", second)]


def test_an_orphan_result_is_told_and_stays() -> None:
    """A result that no turn asks for is named each time; nothing is written about it."""
    session = Session.in_memory()
    session.append_message(Message.user("go"))
    session.append_message(Message.tool("c9", "from nowhere"))
    before = session.elems

    assert [repair.verdict for repair in session.repair()] == ["orphan-result"]
    assert [repair.call_id for repair in session.repair()] == ["c9"]
    assert session.elems == before


def test_a_call_whose_result_came_too_late_is_not_said_not_to_have_run() -> None:
    """A result behind a user turn answers nothing, but it shows that the call left."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    session.append_message(Message.user("hello?"))
    session.append_message(Message.tool("c1", "written"))

    assert [repair.verdict for repair in session.repair()] == ["unknown", "orphan-result"]


def test_an_operation_whose_turn_was_compacted_away_is_settled_without_a_message() -> None:
    """There is no call left to answer, and the operation must not stay open for ever."""
    session = Session.in_memory()
    cut = session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)
    session.append_compaction("gone", cut)

    (repair,) = session.repair()

    assert (repair.verdict, repair.op_id) == ("unknown", op_id)
    assert session.messages == (Message.user("gone"),)
    assert session.pending_tool_operations() == []


def test_a_turn_that_a_compaction_kept_is_answered_before_the_summary() -> None:
    """A pinned turn with an open call stands in front of the summary, and so must its answer."""
    session = Session.in_memory()
    cut = session.append_message(attrs.evolve(turn(WRITE), sticky=True))
    session.append_compaction("short", cut)

    session.repair()

    assert [message.role for message in session.messages] == ["assistant", "tool", "user"]
    assert session.repair() == []


def test_resolving_with_content_works_when_the_turn_was_compacted_away() -> None:
    """The result is kept in the file, where no turn asks for it any more."""
    session = Session.in_memory()
    cut = session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)
    session.append_compaction("gone", cut)

    session.resolve_tool_operation(op_id, "completed", content="written")

    assert session.pending_tool_operations() == []
    assert session.envelopes()[-2]["payload"] == {"role": "tool", "content": "written", "tool-call-id": "c1"}


def test_an_operation_that_has_its_answer_is_not_taken_for_a_namesake() -> None:
    """Of two calls with one id, the first has run and been answered, and the second never left."""
    session = Session.in_memory()
    session.append_message(turn(WRITE, WRITE))
    op_id = dispatch(session, WRITE)
    session.append_message(Message.tool("c1", "written"))

    repairs = session.repair()

    assert [(repair.verdict, repair.op_id) for repair in repairs] == [
        ("did-not-run", None),
        ("only-settle-was-lost", op_id),
    ]


def test_an_answer_before_a_compaction_is_not_forgotten() -> None:
    """Only the settlement was lost, also when the pair has been summarised since."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    dispatch(session, WRITE)
    cut = session.append_message(Message.tool("c1", "written"))
    session.append_compaction("gone", cut)

    assert [repair.verdict for repair in session.repair()] == ["only-settle-was-lost"]
    assert session.envelopes()[-1]["payload"]["outcome"] == "completed"


def test_a_repair_says_what_it_found_in_a_sentence() -> None:
    """str() names call, tool and verdict; arguments are the canonical text."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))

    (repair,) = session.repair()

    assert str(repair) == "call 'c1' of write_file was never dispatched: it did not run"
    assert repair.arguments == '{"path":"a"}'
    assert repair.to_dict()["op-id"] is None
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        repair.tool = "other"  # type: ignore[misc]


def test_every_verdict_has_its_sentence() -> None:
    """No two verdicts read alike."""
    verdicts = ("unknown", "did-not-run", "only-settle-was-lost", "orphan-result")
    made = [Repair(call_id="c", op_id=None, tool="", arguments="", verdict=verdict) for verdict in verdicts]

    assert len({str(repair) for repair in made}) == 4


@pytest.mark.parametrize(
    ("outcome", "extra"),
    [("completed", {}), ("failed", {"is-error": True}), ("outcome-unknown", {"outcome-unknown": True})],
)
def test_resolving_with_content_answers_first_and_settles_then(outcome: str, extra: dict[str, bool]) -> None:
    """The safe order, with the same words beside the message that a live run writes."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)

    session.resolve_tool_operation(op_id, outcome, reason="checked by hand", content="it is there")

    message, settled = (envelope["payload"] for envelope in session.envelopes()[-2:])
    assert message == {"role": "tool", "content": "it is there", "tool-call-id": "c1"} | extra
    assert settled == {"op-id": op_id, "outcome": outcome, "reason": "checked by hand"}
    assert session.repair() == []


def test_resolving_finds_the_place_behind_a_turn_that_others_followed() -> None:
    """Content given late still answers its call."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)
    session.append_message(Message.user("hello?"))

    session.resolve_tool_operation(op_id, "completed", content="written")

    assert [message.role for message in session.messages] == ["assistant", "tool", "user"]
    assert session.repair() == []


def test_resolving_with_content_what_has_its_answer_is_refused() -> None:
    """A second result for one call would be an orphan."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    op_id = dispatch(session, WRITE)
    session.append_message(Message.tool("c1", "written"))
    before = session.elems

    with pytest.raises(TranscriptError, match="without content"):
        session.resolve_tool_operation(op_id, "completed", content="again")

    assert session.elems == before
    session.resolve_tool_operation(op_id, "completed")
    assert session.pending_tool_operations() == []


IDS = st.sampled_from(["c1", "c2", ""])
STEPS = st.one_of(
    st.builds(lambda ids: ("turn", ids), st.lists(IDS, max_size=3)),
    st.builds(lambda known: ("dispatch", known), IDS),
    st.builds(lambda known: ("result", known), IDS),
    st.builds(lambda index: ("settle", index), st.integers(0, 3)),
    st.builds(lambda index: ("compact", index), st.integers(0, 9)),
    st.just(("user", "")),
)


def play(session: Session, step: tuple[str, object]) -> None:
    match step:
        case ("turn", list(ids)):
            session.append_message(Message.assistant("text", [ToolRequest(known, "t", "{}") for known in ids]))
        case ("dispatch", str(known)):
            session.append_tool_dispatched(call_id=known, tool="t", arguments="{}")
        case ("result", str(known)):
            session.append_message(Message.tool(known, "result"))
        case ("settle", int(index)):
            pending = session.pending_tool_operations()
            if index < len(pending):
                session.append_tool_settled(pending[index]["op-id"], "completed")
        case ("compact", int(index)):
            if index < len(session.message_ids):
                session.append_compaction("summary", session.message_ids[index])
        case _:
            session.append_message(Message.user("more"))


@given(st.lists(STEPS, max_size=12))
def test_whatever_a_file_holds_a_repair_leaves_nothing_open(steps: list[tuple[str, object]]) -> None:
    """Afterwards no call is unanswered, none pending, nothing was dropped, and every request is valid."""
    session = Session.in_memory()
    for step in steps:
        play(session, step)
    orphans = len(WireView.of(session.messages).orphans)
    before = session.messages

    session.repair()

    assert unanswered_calls(session.messages) == []
    assert session.pending_tool_operations() == []
    assert [repair.verdict for repair in session.repair()] == ["orphan-result"] * orphans
    kept = iter(session.messages)
    assert all(message in kept for message in before)


@pytest.mark.parametrize(("outcome", "extra"), [("completed", {}), ("failed", {"is-error": True})])
def test_a_recorded_outcome_without_its_result_is_told_as_what_it_is(outcome: str, extra: dict[str, bool]) -> None:
    """Settled from outside and never answered: the file knows how it ended, and says that much."""
    session = Session.in_memory()
    session.append_message(turn(WRITE))
    session.append_tool_settled(dispatch(session, WRITE), outcome)

    session.repair()

    assert session.messages[-1] == Message.tool("c1", notices.REPAIR_RESULT_LOST.format(outcome=outcome))
    line = session.envelopes()[-1]["payload"]
    assert {key: line[key] for key in extra} == extra
    assert session.pending_tool_operations() == []
