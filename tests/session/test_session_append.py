"""Writing a transcript: what is on disk, what is remembered, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.errors import ConfigError, TranscriptError
from llm_agent.messages import Message, ToolRequest, messages_digest
from llm_agent.session.session import Session

CALL = ToolRequest("c1", "write_file", '{"path": "a"}')


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line]


def dispatched(session: Session, call_id: str = "c1") -> str:
    return session.append_tool_dispatched(call_id=call_id, tool="write_file", arguments='{"path":"a"}')


def test_a_new_transcript_begins_with_the_meta_line(tmp_path: Path) -> None:
    """The first line is session-meta, with what the application gave, and the folder is made."""
    path = tmp_path / "deep" / "run.jsonl"

    with Session.create(path, {"task": "fix", "n": 1}) as session:
        meta = session.meta

    first = lines(path)[0]
    assert (first["v"], first["type"], first["payload"]) == (1, "session-meta", {"task": "fix", "n": 1})
    assert meta == {"task": "fix", "n": 1}


def test_a_line_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    """Another reader of the file sees the message before the session is closed."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        message_id = session.append_message(Message.user("hello"))

        assert lines(path)[-1]["id"] == message_id
        assert lines(path)[-1]["payload"] == {"role": "user", "content": "hello"}


def test_a_line_has_sorted_keys_one_line_end_and_a_utc_time(tmp_path: Path) -> None:
    """Compact JSON with sorted keys, UTF-8 as it is, ended by exactly one 0x0A."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_message(Message.user("a\r\n\u2028\u0085\0é"))

    raw = path.read_bytes().split(b"\n")

    assert len(raw) == 3
    assert raw[2] == b""
    record = orjson.loads(raw[1])
    assert raw[1] == orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    assert "é".encode() in raw[1]
    assert record["ts"][-8] == "."
    assert record["ts"].endswith("Z")


def test_extra_keys_stand_beside_the_message_and_never_in_its_stead(tmp_path: Path) -> None:
    """What the message says wins, and what it leaves unsaid cannot be said by an extra."""
    path = tmp_path / "run.jsonl"
    extra = {"role": "system", "content": "other", "sticky": True, "tool_calls": [{"id": "x"}], "usage": {"n": 1}}
    with Session.create(path) as session:
        session.append_message(Message.user("said"), extra)
        live = session.messages

    assert lines(path)[-1]["payload"] == {"role": "user", "content": "said", "usage": {"n": 1}}
    assert Session.read(path).messages == live


class Key(Enum):
    """Becomes its value where JSON is written."""

    STICKY = "sticky"


def test_an_extra_key_of_any_kind_cannot_speak_for_the_message(tmp_path: Path) -> None:
    """Not even a key that only becomes one of the message's on its way to the disk."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_message(Message.user("said"), {Key.STICKY: True, 1: "one"})  # type: ignore[dict-item]

        assert Session.read(path).messages == session.messages


def test_ids_are_parallel_to_messages(tmp_path: Path) -> None:
    """message_ids names the line of each message."""
    with Session.create(tmp_path / "run.jsonl") as session:
        ids = tuple(session.append_message(Message.user(text)) for text in "abc")

        assert session.message_ids == ids
        assert [message.text for message in session.messages] == ["a", "b", "c"]


def test_a_file_with_content_is_not_created_again(tmp_path: Path) -> None:
    """create refuses a file that has content, and leaves it and its lock alone."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"precious")

    with pytest.raises(TranscriptError, match=r"run\.jsonl"):
        Session.create(path)

    assert path.read_bytes() == b"precious"


def test_an_existing_transcript_is_not_created_again(tmp_path: Path) -> None:
    """create refuses a transcript, and it can be loaded afterwards."""
    path = tmp_path / "run.jsonl"
    Session.create(path).close()

    with pytest.raises(TranscriptError, match="only ever appended to"):
        Session.create(path)

    Session.load(path).close()


def test_an_empty_file_is_a_fine_place_for_a_transcript(tmp_path: Path) -> None:
    """create takes a file of size 0."""
    path = tmp_path / "run.jsonl"
    path.touch()

    with Session.create(path) as session:
        assert session.elems == 1


def test_open_creates_once_and_loads_afterwards(tmp_path: Path) -> None:
    """The meta of open is for the creation only."""
    path = tmp_path / "run.jsonl"
    with Session.open(path, {"n": 1}) as session:
        session.append_message(Message.user("a"))

    with Session.open(path, {"n": 2}) as session:
        assert session.meta == {"n": 1}
        assert [message.text for message in session.messages] == ["a"]


def test_a_session_is_not_made_directly() -> None:
    """The constructor names the ways that work."""
    with pytest.raises(ConfigError, match=r"Session\.create"):
        Session()


def test_an_unknown_durability_is_refused_before_the_file_is_made(tmp_path: Path) -> None:
    """The caller's mistake is a ConfigError, and no transcript is begun."""
    with pytest.raises(ConfigError, match="durability"):
        Session.create(tmp_path / "run.jsonl", durability="hope")  # type: ignore[arg-type]

    assert not (tmp_path / "run.jsonl").exists()


def test_durable_lines_are_the_same_lines(tmp_path: Path) -> None:
    """fsync changes when append returns, not what is written."""
    path = tmp_path / "run.jsonl"
    with Session.create(path, durability="fsync") as session:
        session.append_message(Message.user("a"))

    with Session.load(path, durability="fsync") as session:
        assert [message.text for message in session.messages] == ["a"]


def test_a_closed_session_reads_and_refuses_to_write(tmp_path: Path) -> None:
    """After close, twice, reading works and appending says that it is closed."""
    session = Session.create(tmp_path / "run.jsonl")
    session.append_message(Message.user("a"))
    session.close()
    session.close()

    with pytest.raises(TranscriptError, match="closed"):
        session.append_message(Message.user("b"))

    assert [message.text for message in session.messages] == ["a"]
    assert [envelope["type"] for envelope in session.envelopes()] == ["session-meta", "message"]


def test_a_session_in_memory_keeps_what_a_file_would(tmp_path: Path) -> None:
    """in_memory has no path and no file, and everything else."""
    session = Session.in_memory({"n": 1})
    session.append_message(Message.user("a"))

    assert session.path is None
    assert [envelope["payload"] for envelope in session.envelopes()] == [{"n": 1}, {"content": "a", "role": "user"}]
    session.close()
    with pytest.raises(TranscriptError, match="closed"):
        session.append_event("app-note")


def test_envelopes_are_copies(tmp_path: Path) -> None:
    """Whoever changes what a reader handed out changes nothing for the next reader."""
    with Session.create(tmp_path / "run.jsonl", {"deep": {"n": 1}}) as session:
        session.append_grants([{"tool": "a"}])
        session.envelopes()[0]["payload"]["deep"]["n"] = 2
        session.meta["deep"]["n"] = 3
        session.grants[0]["tool"] = "b"

        assert session.envelopes()[0]["payload"] == {"deep": {"n": 1}}
        assert session.meta == {"deep": {"n": 1}}
        assert session.grants == [{"tool": "a"}]


def test_what_the_caller_changes_afterwards_was_not_recorded(tmp_path: Path) -> None:
    """Grants are a snapshot: the caller's list may change without changing the session."""
    grants = [{"tool": "a"}]
    with Session.create(tmp_path / "run.jsonl") as session:
        session.append_grants(grants)
        grants[0]["tool"] = "b"

        assert session.grants == [{"tool": "a"}]


def test_the_last_grants_line_wins(tmp_path: Path) -> None:
    """Grants are whole snapshots, [] before the first."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        before = session.grants
        session.append_grants([{"tool": "a"}])
        session.append_grants([])

    assert before == []
    assert Session.read(path).grants == []


def test_lines_of_the_application_are_kept_and_mean_nothing_to_the_conversation(tmp_path: Path) -> None:
    """append_event takes a type of one's own, and its line is found again."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_event("app-note", {"text": "hi"})

    envelope = Session.read(path).envelopes()[-1]
    assert (envelope["type"], envelope["payload"]) == ("app-note", {"text": "hi"})


REFUSED: dict[str, Callable[[Session], object]] = {
    "blank type": lambda s: s.append_event(" "),
    "built-in type": lambda s: s.append_event("message", {"role": "user"}),
    "type of a later issue": lambda s: s.append_event("run-context"),
    "no message": lambda s: s.append_message({"role": "user"}),  # type: ignore[arg-type]
    "compaction of nothing": lambda s: s.append_compaction("short", ""),
    "compaction through a stranger": lambda s: s.append_compaction("short", "nobody"),
    "elision of nothing": lambda s: s.append_elision([]),
    "elision without id": lambda s: s.append_elision([{"stub": "gone"}]),
    "elision without stub": lambda s: s.append_elision([{"id": s.message_ids[0]}]),
    "elision of a stranger": lambda s: s.append_elision([{"id": "nobody", "stub": "gone"}]),
    "settle of a stranger": lambda s: s.append_tool_settled("nobody", "completed"),
    "settle as abandoned": lambda s: s.append_tool_settled(dispatched(s), "abandoned"),
    "resolve of a stranger": lambda s: s.resolve_tool_operation("nobody", "completed", content="text"),
    "answer to what is no turn": lambda s: s.append_message(
        Message.tool("c1", "x"), {"answers-turn": s.message_ids[0]}
    ),
    "answer to a turn that is not there": lambda s: s.append_message(Message.tool("c1", "x"), {"answers-turn": "no"}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_load_would_refuse_is_not_written(tmp_path: Path, case: str) -> None:
    """A refused line is a TranscriptError and leaves neither the file nor the session changed."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_message(Message.user("a"))
        before = session.messages, session.message_ids, len(session.pending_tool_operations())

        with pytest.raises(TranscriptError):
            REFUSED[case](session)

        pending = len(session.pending_tool_operations()) - (1 if case == "settle as abandoned" else 0)
        assert (session.messages, session.message_ids, pending) == before
    assert Session.read(path).messages == before[0]


def test_an_operation_is_settled_once(tmp_path: Path) -> None:
    """The first settlement stands; a second one is refused and not written."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        op_id = dispatched(session)
        session.append_tool_settled(op_id, "completed", duration=0.12345678, result_digest="d")

        with pytest.raises(TranscriptError, match="settled already, as completed"):
            session.append_tool_settled(op_id, "failed")

    assert lines(path)[-1]["payload"] == {
        "op-id": op_id,
        "outcome": "completed",
        "duration": 0.123457,
        "result-digest": "d",
    }


def test_pending_operations_are_told_in_order_until_they_are_settled(tmp_path: Path) -> None:
    """A dispatched line makes an operation pending under its own id, a settled line ends that."""
    with Session.create(tmp_path / "run.jsonl") as session:
        first = session.append_tool_dispatched(
            call_id="c1", tool="a", arguments="{}", arguments_digest="d", idempotency="unknown", run_id="r", round=2
        )
        second = dispatched(session, "c2")
        told = session.pending_tool_operations()
        session.append_tool_settled(first, "failed", error="no")

        assert [operation["op-id"] for operation in told] == [first, second]
        assert told[0].pop("dispatched-at").endswith("Z")
        assert told[0] == {
            "op-id": first,
            "call-id": "c1",
            "tool": "a",
            "arguments": "{}",
            "arguments-digest": "d",
            "idempotency": "unknown",
            "run-id": "r",
            "round": 2,
            "settled": False,
        }
        assert [operation["op-id"] for operation in session.pending_tool_operations()] == [second]


def test_compaction_keeps_what_is_sticky_and_puts_the_summary_behind_it(tmp_path: Path) -> None:
    """Live and on replay: sticky messages, the summary under its line's id, then the rest."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        system = session.append_message(Message("system", "be brief", sysprompt=True))
        cut = [session.append_message(Message.user(text)) for text in "ab"][-1]
        pinned_late = session.append_message(Message("user", "deep", depth=0))
        summary = session.append_compaction("they said a, b", cut, tokens_before=100, tokens_after=40)
        live = session.messages, session.message_ids

    assert live[1] == (system, summary, pinned_late)
    assert [message.text for message in live[0]] == ["be brief", "they said a, b", "deep"]
    assert live[0][1] == Message.user("they said a, b")
    replayed = Session.read(path)
    assert (replayed.messages, replayed.message_ids) == live
    assert lines(path)[-1]["payload"] == {
        "fallback": False,
        "replaces-through-id": cut,
        "summary": "they said a, b",
        "tokens-after": 40,
        "tokens-before": 100,
    }


def test_compactions_compose(tmp_path: Path) -> None:
    """A later compaction may name the summary of an earlier one."""
    with Session.create(tmp_path / "run.jsonl") as session:
        first = session.append_compaction("one", session.append_message(Message.user("a")))
        session.append_compaction("two", first)

        assert [message.text for message in session.messages] == ["two"]


def test_compaction_does_not_disturb_pending_operations(tmp_path: Path) -> None:
    """An operation outlives the turn that asked for it, and can still be settled."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        turn = session.append_message(Message.assistant("", [CALL]))
        op_id = dispatched(session)
        session.append_compaction("gone", turn)

    with Session.load(path) as session:
        assert [operation["op-id"] for operation in session.pending_tool_operations()] == [op_id]
        session.resolve_tool_operation(op_id, "outcome-unknown")
        assert session.pending_tool_operations() == []


def test_elision_replaces_a_content_and_nothing_else(tmp_path: Path) -> None:
    """The stub stands where the content stood, under the same id, live and on replay."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_message(Message.assistant("", [CALL]))
        result = session.append_message(Message.tool("c1", "long"))
        session.append_elision([{"id": result, "stub": "(gone)"}])
        live = session.messages, session.message_ids

    assert live[0][1] == Message.tool("c1", "(gone)")
    assert live[1][1] == result
    assert Session.read(path).messages == live[0]


def test_what_is_folded_away_cannot_be_elided(tmp_path: Path) -> None:
    """An elision names messages of the conversation as it is now."""
    with Session.create(tmp_path / "run.jsonl") as session:
        first = session.append_message(Message.user("a"))
        session.append_compaction("short", first)

        with pytest.raises(TranscriptError, match="elision"):
            session.append_elision([{"id": first, "stub": "gone"}])


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], False),
        ([Message.user("a")], True),
        ([Message.user("a"), Message.assistant("b")], False),
        ([Message.assistant("b"), Message.tool("c9", "orphan")], False),
        ([Message.assistant("", [CALL]), Message.tool("c1", "done")], True),
        ([Message.assistant("", [CALL])], True),
        ([Message.assistant("b"), Message.system("limit")], True),
    ],
)
def test_a_conversation_that_ends_with_an_answer_needs_no_reply(messages: list[Message], expected: bool) -> None:
    """needs_reply is False when nothing is there, or the last turn is an assistant's without calls."""
    session = Session.in_memory()
    for message in messages:
        session.append_message(message)

    assert session.needs_reply is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.text(st.characters(), max_size=12)
KEYS = st.sampled_from(["role", "content", "sticky", "tool-calls", "tool_call_id", "depth", "usage", "x"]) | WORDS
MESSAGES = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "system", "tool"]),
    WORDS | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}), max_size=2),
    st.lists(st.builds(ToolRequest, WORDS, WORDS, WORDS | JSON), max_size=2),
    st.none() | WORDS,
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 3),
)


@given(st.lists(st.tuples(MESSAGES, st.none() | st.dictionaries(KEYS, JSON, max_size=3)), max_size=4))
def test_what_is_replayed_is_what_was_held(messages: list[tuple[Message, dict[str, Any] | None]]) -> None:
    """Whatever a message and its extras are, loading gives the messages that the session held."""
    from llm_agent.session.opening import replay_lines
    from llm_agent.session.replay import Replay

    session = Session.in_memory()
    for message, extra in messages:
        session.append_message(message, extra)
    replay = Replay()
    replay_lines(Path("memory"), session._opened.lines, replay)

    assert messages_digest(replay.messages) == messages_digest(session.messages)
    assert tuple(replay.messages) == session.messages
    assert tuple(replay.message_ids) == session.message_ids


def test_threads_append_whole_lines(tmp_path: Path) -> None:
    """Lines of several threads never mix, and memory has them in the order of the file."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        gate = threading.Barrier(4)

        def work(name: str) -> None:
            gate.wait(5)
            for number in range(50):
                session.append_message(Message.user(f"{name}{number} " + "x" * 2000))

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)

        assert len(session.messages) == 200
        assert Session.read(path).messages == session.messages
