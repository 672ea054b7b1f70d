"""Returning to a transcript: crash tails, damage, foreign lines, paths that do not work."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from llm_agent.errors import MalformedTranscript, TranscriptError
from llm_agent.messages import Message, ToolRequest
from llm_agent.session.session import Session


def line(kind: str, number: int, payload: Any, **more: Any) -> bytes:
    record = {"v": 1, "type": kind, "id": f"e{number}", "ts": "2026-01-02T03:04:05.000006Z", "payload": payload}
    return orjson.dumps(record | more, option=orjson.OPT_SORT_KEYS)


META = line("session-meta", 0, {"app": "old"})
GO = line("message", 1, {"role": "user", "content": "gö"})


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(*parts: bytes) -> Path:
        path = tmp_path / "run.jsonl"
        path.write_bytes(b"".join(parts))
        return path

    return write


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("torn", [b"{oops", GO[:-1], GO[: GO.index(b"\xc3") + 1], b"\0\0\0"])
def test_half_a_last_line_is_cut_off_for_good(file: Callable[..., Path], torn: bytes, end: bytes) -> None:
    """With or without its line end, cut in a character or not: the bytes before stay as they were."""
    path = file(META, b"\r\n", GO, b"\r\n", torn, end)

    with Session.load(path) as session:
        assert path.read_bytes() == META + b"\r\n" + GO + b"\r\n"
        assert [(warning.line, warning.raw) for warning in session.warnings] == [(3, torn.decode("utf-8", "replace"))]
        session.append_message(Message.user("more"))

    with Session.load(path) as session:
        assert texts(session) == ["gö", "more"]
        assert session.warnings == ()


def test_a_file_that_is_mended_keeps_its_mode_and_its_links(file: Callable[..., Path], tmp_path: Path) -> None:
    """The end is mended in place: the same file, under all its names."""
    path = file(META, b"\n", GO, b"\n{oops")
    path.chmod(0o640)
    os.link(path, tmp_path / "other-name")

    Session.load(path).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (tmp_path / "other-name").read_bytes() == META + b"\n" + GO + b"\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_whole_last_line_without_its_end_gets_one(file: Callable[..., Path], end: bytes) -> None:
    """Of the kind the line before has, and without a warning."""
    path = file(META, end, GO)

    with Session.load(path) as session:
        assert path.read_bytes() == META + end + GO + end
        assert session.warnings == ()


def test_new_lines_end_in_one_byte_also_in_a_file_of_crlf(file: Callable[..., Path]) -> None:
    """What is appended ends in 0x0A; what was there keeps its CRLF."""
    path = file(META, b"\r\n", GO, b"\r\n")

    with Session.load(path) as session:
        session.append_message(Message.user("more"))

    assert path.read_bytes().count(b"\r\n") == 2
    assert path.read_bytes().count(b"\n") == 3


def test_only_the_line_feed_separates_lines(file: Callable[..., Path]) -> None:
    """U+2028, U+0085, VT and FF inside a text are text."""
    text = "a\u2028b\u0085c\x0bd\x0ce"
    path = file(META, b"\n", line("message", 1, {"role": "user", "content": text}), b"\n")

    assert texts(Session.read(path)) == [text]


def test_a_stale_repair_file_is_removed(file: Callable[..., Path]) -> None:
    """What a killed repair of the original engine left beside the file goes away."""
    path = file(META, b"\n")
    beside = path.with_name("run.jsonl.repair")
    beside.write_bytes(b"half")

    Session.load(path).close()

    assert not beside.exists()


def test_blank_lines_are_ignored_anywhere(file: Callable[..., Path]) -> None:
    """Also before the first line and at the end."""
    path = file(b"\n", META, b"\n\n  \r\n", GO, b"\n \n")

    with Session.load(path) as session:
        assert texts(session) == ["gö"]
        assert session.elems == 2


DAMAGED: dict[str, tuple[tuple[bytes, ...], int, str]] = {
    "empty": ((), 0, "empty"),
    "blank": ((b"\n \n",), 0, "empty"),
    "one bad line": ((b"{oops",), 1, "FINAL"),
    "one bad line behind blank ones": ((b"\n", b"{oops\n"), 2, "FINAL"),
    "torn meta": ((META[:-2],), 1, "FINAL"),
    "two bad lines": ((META, b"\n{oops\n{oops"), 2, "FINAL"),
    "bad line in the middle": ((META, b"\n{oops\n", GO, b"\n"), 2, "malformed.*FINAL"),
    "bad lines in the middle": ((META, b"\n{oops\n{oops\n", GO, b"\n"), 2, "2 malformed lines in all"),
    "null": ((META, b"\nnull\n"), 2, "JSON object"),
    "list": ((META, b"\n[]\n"), 2, "JSON object"),
    "no version": ((META, b"\n{}\n"), 2, "version"),
    "other version": ((META, b"\n", line("message", 1, {}, v=2), b"\n"), 2, "version"),
    "version by another name": ((META, b"\n", line("message", 1, {}, v=True), b"\n"), 2, "version"),
    "no type": ((META, b"\n", line("message", 1, {}, type=None), b"\n"), 2, "type"),
    "no meta": ((GO, b"\n"), 1, "session-meta"),
    "two metas": ((META, b"\n", META, b"\n"), 2, "two transcripts"),
    "payload is a list": ((META, b"\n", line("message", 1, []), b"\n"), 2, "payload"),
    "no id": ((META, b"\n", line("message", 1, {}, id=None), b"\n"), 2, "id"),
    "unknown role": ((META, b"\n", line("message", 1, {"role": "robot"}), b"\n"), 2, "role"),
    "content of a number": ((META, b"\n", line("message", 1, {"content": 1}), b"\n"), 2, "content"),
    "compaction of a stranger": ((META, b"\n", line("compaction", 1, {"summary": "s"}), b"\n"), 2, "replaces-through"),
    "elision of a stranger": ((META, b"\n", line("elision", 1, {"items": [{"id": 1, "stub": ""}]})), 2, "elision"),
    "settled stranger": ((META, b"\n", line("tool-settled", 1, {"outcome": "failed"}), b"\n"), 2, "op-id"),
    "settled otherwise": ((META, b"\n", line("tool-settled", 1, {"outcome": "abandoned"}), b"\n"), 2, "outcome"),
    "grants without a list": ((META, b"\n", line("grants", 1, {}), b"\n"), 2, "grants"),
}


@pytest.mark.parametrize("case", DAMAGED)
@pytest.mark.parametrize("enter", [Session.load, Session.read])
def test_damage_is_refused_with_its_line_and_the_file_is_left_alone(
    file: Callable[..., Path], case: str, enter: Callable[[Path], Session]
) -> None:
    """A typed error names path, line and problem; and the lock is free again."""
    parts, number, problem = DAMAGED[case]
    path = file(*parts)
    before = path.read_bytes()
    errors = []  # kept: a traceback holds on to whatever was not let go

    for _ in range(2):
        with pytest.raises(MalformedTranscript, match=problem) as caught:
            enter(path)
        errors.append(caught.value)

        assert (caught.value.line, caught.value.path) == (number, str(path))
    assert path.read_bytes().startswith(before)


def test_a_mended_end_stays_mended_when_the_replay_fails(file: Callable[..., Path]) -> None:
    """The tail is bytes, whatever the lines before it mean."""
    path = file(GO, b"\n{oops")

    with pytest.raises(MalformedTranscript, match="session-meta"):
        Session.load(path)

    assert path.read_bytes() == GO + b"\n"


def test_lines_of_unknown_type_are_kept_and_skipped(file: Callable[..., Path]) -> None:
    """What a later version, or an application, writes does not stop us."""
    path = file(META, b"\n", line("x-note", 1, [1]), b"\n", GO, b"\n")

    session = Session.read(path)

    assert [envelope["type"] for envelope in session.envelopes()] == ["session-meta", "x-note", "message"]
    assert texts(session) == ["gö"]


def test_what_only_the_standard_parser_reads_is_not_malformed(file: Callable[..., Path]) -> None:
    """Lone surrogate escapes and wide integers are JSON."""
    odd = b'{"id":"e1","payload":{"content":"a\\ud800","n":123456789012345678901234567890,"role":"user"},'
    path = file(META, b"\n", odd, b'"ts":"","type":"message","v":1}\n')

    with Session.load(path) as session:
        assert texts(session) == ["a\ufffd"]


def test_missing_role_and_content_have_their_old_meaning(file: Callable[..., Path]) -> None:
    """A message line without role is a user's, without content it is empty; extras are dropped."""
    path = file(META, b"\n", line("message", 1, {"usage": {"n": 1}}), b"\n")

    assert Session.read(path).messages == (Message.user(""),)


def test_reading_neither_locks_nor_mends_nor_appends(file: Callable[..., Path], tmp_path: Path) -> None:
    """read tolerates a torn tail in memory, with a warning, and leaves everything as it is."""
    path = file(META, b"\n", GO, b"\n{oops")

    session = Session.read(path)

    assert texts(session) == ["gö"]
    assert session.warnings[0].line == 3
    assert "line 3" in str(session.warnings[0])
    assert len(session.envelopes()) == 2
    with pytest.raises(TranscriptError, match="reading only"):
        session.append_message(Message.user("b"))
    assert texts(session) == ["gö"]
    assert path.read_bytes().endswith(b"{oops")
    assert os.listdir(tmp_path) == ["run.jsonl"]


def test_a_transcript_that_is_being_written_can_be_read(tmp_path: Path) -> None:
    """read sees what is there now; what comes later is not part of it."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as writer:
        writer.append_message(Message.user("a"))
        reader = Session.read(path)
        writer.append_message(Message.user("b"))

        assert texts(reader) == ["a"]
        assert len(reader.envelopes()) == 2


def _missing(folder: Path) -> Session:
    return Session.load(folder / "run.jsonl")


def _unread(folder: Path) -> Session:
    return Session.read(folder / "run.jsonl")


def _folder(folder: Path) -> Session:
    return Session.open(folder)


def _below_a_file(folder: Path) -> Session:
    (folder / "file").write_text("x")
    return Session.create(folder / "file" / "run.jsonl")


def _endless_name(folder: Path) -> Session:
    return Session.open(folder / ("x" * 300))


@pytest.mark.parametrize("attempt", [_missing, _unread, _folder, _below_a_file, _endless_name])
def test_trouble_with_the_path_names_it_and_has_its_cause(tmp_path: Path, attempt: Callable[[Path], Session]) -> None:
    """A TranscriptError whose cause is the OSError."""
    with pytest.raises(TranscriptError, match=str(tmp_path)) as caught:
        attempt(tmp_path)

    assert isinstance(caught.value.__cause__, OSError)


def test_loading_what_is_missing_leaves_no_lock_behind(tmp_path: Path) -> None:
    """A lock is not made beside nothing."""
    with pytest.raises(TranscriptError):
        Session.load(tmp_path / "run.jsonl")

    assert os.listdir(tmp_path) == []


def _real_transcript(path: Path) -> list[tuple[Message, ...]]:
    """Write a transcript with everything in it; return the conversation after each of its lines."""
    held: list[tuple[Message, ...]] = []
    with Session.create(path, {"app": "x"}) as session:
        held.append(session.messages)

        def then(_: object) -> None:
            held.append(session.messages)

        then(session.append_message(Message.system("be brief")))
        then(session.append_message(Message.user("größe? \u2028 \U0001f600")))
        then(session.append_message(Message.assistant("", [ToolRequest("c1", "a", "{}"), ToolRequest("c2", "b", {})])))
        op_id = session.append_tool_dispatched(call_id="c1", tool="a", arguments="{}")
        then(op_id)
        result = session.append_message(Message.tool("c1", "long result"))
        then(result)
        then(session.append_tool_settled(op_id, "completed", duration=0.1))
        then(session.append_message(Message.user("and?")))
        then(session.append_message(Message.tool("c2", "late"), {"answers-turn": session.message_ids[2]}))
        then(session.append_grants([{"tool": "a"}]))
        then(session.append_elision([{"id": result, "stub": "(gone)"}]))
        then(session.append_compaction("they talked", session.message_ids[1]))
        then(session.append_event("app-note", {"n": 1}))
        then(session.append_message(Message.assistant("done")))
    return held


def test_every_prefix_of_a_transcript_loads_as_what_was_held_then_or_is_refused(tmp_path: Path) -> None:
    """Cut after any byte: the conversation after the last whole line, or a typed error; never another."""
    whole = tmp_path / "whole.jsonl"
    held = _real_transcript(whole)
    data = whole.read_bytes()
    path = tmp_path / "cut.jsonl"

    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        lines = data[:size].count(b"\n") + (data[size : size + 1] == b"\n")
        if lines == 0:
            with pytest.raises(MalformedTranscript):
                Session.load(path)
            continue
        with Session.load(path) as session:
            assert session.messages == held[lines - 1]


def test_every_cut_of_the_last_line_can_be_read_and_appended_to(tmp_path: Path) -> None:
    """read sees what load will keep, and what is appended after the cut stands on a line of its own."""
    whole = tmp_path / "whole.jsonl"
    held = _real_transcript(whole)
    data = whole.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    path = tmp_path / "cut.jsonl"

    for size in range(last, len(data)):
        path.write_bytes(data[:size])
        kept = held[-2] if size < len(data) - 1 else held[-1]
        assert Session.read(path).messages == kept
        with Session.load(path) as session:
            session.append_message(Message.user("after"))
        assert Session.read(path).messages == (*kept, Message.user("after"))
