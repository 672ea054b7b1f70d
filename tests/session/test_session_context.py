"""What a transcript keeps of the context of its runs: every fact, and every text once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from llm_agent.errors import MalformedTranscript, TranscriptError
from llm_agent.messages import Message
from llm_agent.run_context import RunContext
from llm_agent.session.session import Session

RULES = RunContext(head_sections={"rules": "Be brief.", "style": ""}, facts={"date": "Monday", "cwd": "/a"})
LATER = RunContext(
    head_sections={"rules": "Be brief."}, facts={"date": "Tuesday"}, tail_sections={"plan": "1. Look"}, tail_as="user"
)


@pytest.fixture(params=["file", "memory"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """A new transcript, on disk and in memory."""
    made = Session.in_memory() if request.param == "memory" else Session.create(tmp_path / "run.jsonl")
    with made:
        yield made


def payloads(session: Session) -> list[dict[str, Any]]:
    return [line["payload"] for line in session.envelopes() if line["type"] == "run-context"]


def write(path: Path, *lines: Any) -> None:
    """Write a transcript by hand: the meta line, then a run-context line for each (id, payload), or a whole line."""
    meta = {"v": 1, "type": "session-meta", "id": "m", "ts": "2026-01-01T00:00:00.000000Z", "payload": {}}
    whole = [
        line
        if isinstance(line, dict)
        else {"v": 1, "type": "run-context", "id": line[0], "ts": meta["ts"], "payload": line[1]}
        for line in lines
    ]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in (meta, *whole)))


def section(name: str = "rules", digest: str = "d", **body: Any) -> dict[str, Any]:
    return {"name": name, "digest": digest, **body}


# -- writing --------------------------------------------------------------------------------


def test_a_line_holds_the_run_the_digest_the_facts_and_the_sections(session: Session) -> None:
    """Facts as lists, because order counts; sections with their part, the empty ones too."""
    session.append_run_context(RULES, "run-1")

    rules, style = RULES.sections
    assert {
        "run-id": "run-1",
        "digest": RULES.digest,
        "facts": [["date", "Monday"], ["cwd", "/a"]],
        "sections": [
            {"part": "head", "name": "rules", "digest": rules.digest, "rendered": "Be brief."},
            {"part": "head", "name": "style", "digest": style.digest, "rendered": ""},
        ],
    } == payloads(session)[0]


def test_a_text_is_written_once_and_named_afterwards(session: Session) -> None:
    """Later lines name the line that has it, whatever else they say."""
    first = session.append_run_context(RULES, "run-1")
    session.append_run_context(LATER, "run-2")
    session.append_run_context(LATER, "run-3")

    _, second, third = payloads(session)
    assert first == second["sections"][0]["rendered-in"] == third["sections"][0]["rendered-in"]
    assert second["sections"][1]["rendered"] == "1. Look"
    assert "rendered" not in second["sections"][0]
    assert "rendered" not in third["sections"][1]


def test_a_text_under_another_name_is_another_section(session: Session) -> None:
    """The name is part of what a section is."""
    session.append_run_context(RULES, "run-1")
    session.append_run_context(RunContext(head_sections={"norms": "Be brief."}), "run-2")

    assert payloads(session)[1]["sections"][0]["rendered"] == "Be brief."


def test_a_section_that_moves_keeps_its_text_where_it_was(session: Session) -> None:
    """Head or tail is said by each line for itself."""
    first = session.append_run_context(RULES, "run-1")
    session.append_run_context(RunContext(tail_sections={"rules": "Be brief."}), "run-2")

    moved = payloads(session)[1]["sections"][0]
    assert ("tail", first) == (moved["part"], moved["rendered-in"])
    assert session.run_contexts[1]["sections"][0]["rendered"] == "Be brief."


def test_a_text_is_written_once_across_loads(tmp_path: Path) -> None:
    """A resumed session knows what the file has."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        first = session.append_run_context(RULES, "run-1")
    with Session.load(path) as session:
        session.append_run_context(RULES, "run-2")

        assert [first, first] == [each["rendered-in"] for each in payloads(session)[1]["sections"]]


def test_a_text_is_written_once_by_all_threads_together(session: Session) -> None:
    """Looking for the line and writing the next one are one step."""
    contexts = [RunContext(head_sections={"rules": f"Rule {number}."}) for number in range(50)]
    gate = threading.Barrier(4)

    def append_each() -> None:
        for context in contexts:
            gate.wait(5)
            session.append_run_context(context, "run")

    threads = [threading.Thread(target=append_each) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    written = [each for payload in payloads(session) for each in payload["sections"]]
    assert len(written) == 200
    assert sum("rendered" in each for each in written) == 50


def test_it_changes_nothing_of_the_conversation(session: Session) -> None:
    """Context is beside the history, in the file as in a request."""
    session.append_message(Message.user("a"))
    before = session.messages, session.message_ids, session.needs_reply

    session.append_run_context(RULES, "run-1")

    assert before == (session.messages, session.message_ids, session.needs_reply)


def test_what_is_no_context_is_not_written(session: Session) -> None:
    """Text becomes a context with `RunContext.of`, not here."""
    with pytest.raises(TranscriptError, match="append_run_context: expected a RunContext, got str"):
        session.append_run_context("Be brief.", "run-1")  # type: ignore[arg-type]

    assert (session.run_contexts, session.elems) == ([], 1)


def test_a_closed_session_refuses_and_remembers_nothing(tmp_path: Path) -> None:
    """What is not written is not told, and the next writer does not point to it."""
    path = tmp_path / "run.jsonl"
    session = Session.create(path)
    session.close()

    with pytest.raises(TranscriptError):
        session.append_run_context(RULES, "run-1")

    assert [] == session.run_contexts == Session.read(path).run_contexts


# -- reading --------------------------------------------------------------------------------


def test_contexts_are_told_with_their_texts(session: Session) -> None:
    """One mapping per run, oldest first, every section with its text."""
    session.append_run_context(RULES, "run-1")
    session.append_run_context(LATER, "run-2")

    told = session.run_contexts
    assert [("run-1", RULES.digest), ("run-2", LATER.digest)] == [(each["run-id"], each["digest"]) for each in told]
    assert told[1]["facts"] == [["date", "Tuesday"]]
    assert [
        {"part": each.part, "name": each.name, "digest": each.digest, "rendered": each.text} for each in LATER.sections
    ] == told[1]["sections"]


def test_what_is_loaded_is_what_was_held(tmp_path: Path) -> None:
    """The same mappings from the live session, a loaded one, and one that only reads."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        for number, context in enumerate((RULES, LATER, RULES, RunContext())):
            session.append_run_context(context, f"run-{number}")
            session.append_message(Message.user("a"))
        held = session.run_contexts
    with Session.load(path) as loaded:
        assert held == loaded.run_contexts == Session.read(path).run_contexts
    assert held == session.run_contexts


def test_what_is_told_is_a_copy(session: Session) -> None:
    """Whoever changes it changes nothing for the next reader or the next line."""
    session.append_run_context(RULES, "run-1")
    before = orjson.dumps(session.run_contexts)

    told = session.run_contexts[0]
    told["facts"][0][1] = told["sections"][0]["rendered"] = told["run-id"] = "changed"

    assert orjson.dumps(session.run_contexts) == before


def test_texts_survive_compaction(session: Session) -> None:
    """Lines are beside the conversation: folding it takes nothing from them."""
    session.append_run_context(RULES, "run-1")
    last = session.append_message(Message.user("a"))
    session.append_compaction("short", last)
    session.append_run_context(RULES, "run-2")

    assert session.run_contexts[1]["sections"][0]["rendered"] == "Be brief."


def test_a_transcript_without_contexts_tells_none(tmp_path: Path) -> None:
    """Older files load as ever."""
    path = tmp_path / "run.jsonl"
    write(path)

    assert Session.read(path).run_contexts == []


def test_a_text_cut_off_with_its_line_is_written_again(tmp_path: Path) -> None:
    """Half a last line is gone after a crash, and nothing points to it."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        session.append_run_context(RULES, "run-1")
    path.write_bytes(path.read_bytes()[:-20])

    with Session.load(path) as session:
        session.append_run_context(RULES, "run-2")

        assert [each["rendered"] for each in session.run_contexts[0]["sections"]] == ["Be brief.", ""]
        assert len(session.run_contexts) == 1


# -- lines from elsewhere -------------------------------------------------------------------


def test_lines_of_the_original_engine_are_told(tmp_path: Path) -> None:
    """Sections without a part, keys of its own: they are told as they stand, texts resolved."""
    path = tmp_path / "run.jsonl"
    write(
        path,
        ("one", {"run-id": "r1", "digest": "D", "facts": [["a", "b"]], "sections": [section(rendered="text")]}),
        ("two", {"run-id": "r2", "digest": "D", "facts": [], "sections": [section(**{"rendered-in": "one"})], "x": 1}),
    )

    told = Session.read(path).run_contexts
    assert [section(rendered="text")] == told[0]["sections"] == told[1]["sections"]
    assert (told[1]["run-id"], told[1]["x"]) == ("r2", 1)


@pytest.mark.parametrize(
    "broken",
    [
        section(**{"rendered-in": "nobody"}),
        section(digest="other", **{"rendered-in": "one"}),
        section(**{"rendered-in": 7}),
        section(**{"rendered-in": ["one"]}),
        section(rendered=7),
        section(digest=["d"], **{"rendered-in": "one"}),
        section(),
        {"rendered-in": "one"},
    ],
    ids=lambda broken: orjson.dumps(broken).decode(),
)
def test_a_pointer_to_nothing_is_told_as_none(tmp_path: Path, broken: dict[str, Any]) -> None:
    """The section is there, its text is not."""
    path = tmp_path / "run.jsonl"
    write(path, ("one", {"sections": [section(rendered="text")]}), ("two", {"sections": [broken]}))

    told = Session.read(path).run_contexts[1]["sections"]
    assert [each["rendered"] for each in told] == [None]


@pytest.mark.parametrize(
    "broken",
    [section(digest=["d"], rendered="text"), section(rendered=7), section(rendered=None), section()],
    ids=lambda broken: orjson.dumps(broken).decode(),
)
def test_a_section_that_holds_no_text_carries_for_nobody(tmp_path: Path, broken: dict[str, Any]) -> None:
    """What points to it is told as None, and the file loads."""
    path = tmp_path / "run.jsonl"
    write(path, ("one", {"sections": [broken]}), ("two", {"sections": [section(**{"rendered-in": "one"})]}))

    with Session.load(path) as session:
        assert session.run_contexts[1]["sections"] == [section(rendered=None)]


@pytest.mark.parametrize(
    "payload",
    [None, [], "text", 7, {}, {"sections": None}, {"sections": {"rules": "text"}}, {"sections": ["text", None, 7]}],
    ids=lambda payload: orjson.dumps(payload).decode(),
)
def test_a_broken_line_costs_nothing_but_itself(tmp_path: Path, payload: Any) -> None:
    """The file loads, can be written to, and the other lines are told."""
    path = tmp_path / "run.jsonl"
    write(path, ("one", payload), ("two", {"run-id": "r2", "sections": [section(rendered="text")]}))

    with Session.load(path) as session:
        session.append_run_context(RULES, "run-3")
        told = session.run_contexts

    assert [each["run-id"] for each in told if "run-id" in each] == ["r2", "run-3"]
    assert all(each["sections"] == [] for each in told if "run-id" not in each)


@pytest.mark.parametrize("line_id", [None, 7, ["x"]])
def test_a_line_without_an_id_carries_for_nobody(tmp_path: Path, line_id: Any) -> None:
    """Its own text is told; the next line brings the text again."""
    path = tmp_path / "run.jsonl"
    rules = RULES.sections[0]
    write(path, (line_id, {"sections": [section(digest=rules.digest, rendered="Be brief.")]}))

    with Session.load(path) as session:
        session.append_run_context(RULES, "run-1")

        assert session.run_contexts[0]["sections"][0]["rendered"] == "Be brief."
        assert payloads(session)[1]["sections"][0]["rendered"] == "Be brief."


def test_a_foreign_text_under_our_digest_is_not_taken_for_ours(tmp_path: Path) -> None:
    """What a file says of itself is compared before it is pointed to."""
    path = tmp_path / "run.jsonl"
    write(path, ("one", {"sections": [section(digest=RULES.sections[0].digest, rendered="Be loud.")]}))

    with Session.load(path) as session:
        own = session.append_run_context(RULES, "run-1")
        session.append_run_context(RULES, "run-2")

        assert [told["sections"][0]["rendered"] for told in session.run_contexts] == [
            "Be loud.",
            "Be brief.",
            "Be brief.",
        ]
        assert own == payloads(session)[2]["sections"][0]["rendered-in"]


def test_a_context_is_no_first_line(tmp_path: Path) -> None:
    """Tolerance for what is inside a line does not make another file a transcript."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(orjson.dumps({"v": 1, "type": "run-context", "id": "one", "payload": None}) + b"\n")

    with pytest.raises(MalformedTranscript, match="the first line must be session-meta"):
        Session.read(path)
