"""Transcripts of the original engine load as the original loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_agent.errors import MalformedTranscript
from llm_agent.messages import Message
from llm_agent.session.session import Session

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("scenarios/*.json"))


def loaded(folder: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / folder / f"{name}.json").read_text())
    return content


def comparable(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without what we drop from a call on purpose: anything but its id, name and arguments."""
    return [Message.from_dict(message).to_dict() for message in messages]


def expected(trace: dict[str, Any]) -> dict[str, Any]:
    return trace["replay"] | {"messages": comparable(trace["replay"]["messages"])}


def shown(session: Session) -> dict[str, Any]:
    order = {envelope["id"]: f"e{index}" for index, envelope in enumerate(session.envelopes())}
    return {
        "messages": [message.to_dict() for message in session.messages],
        "message-ids": [order[known] for known in session.message_ids],
        "grants": session.grants,
        "pending": [operation["call-id"] for operation in session.pending_tool_operations()],
    }


@pytest.mark.skipif(not NAMES, reason="the golden scenarios are not beside this checkout")
@pytest.mark.parametrize("name", [name for name in NAMES if "raw" in (loaded("scenarios", name).get("session") or {})])
def test_a_file_of_the_original_loads_as_there(tmp_path: Path, name: str) -> None:
    """Refused where it was refused, untouched; otherwise the same warnings and pending calls."""
    trace = loaded("traces", name)
    path = tmp_path / "run.jsonl"
    path.write_bytes(loaded("scenarios", name)["session"]["raw"].encode())

    if "file" in trace:
        with pytest.raises(MalformedTranscript):
            Session.load(path)
        assert path.read_bytes().decode() == trace["file"]
        return
    with Session.load(path) as session:
        told = {
            "warnings": [{"line": warning.line, "raw": warning.raw} for warning in session.warnings],
            "pending": [operation["call-id"] for operation in session.pending_tool_operations()],
        }
        # The original goes on with further lines of its trace; they are replayed one by one.
        for envelope in trace["transcript"][session.elems :]:
            _append(session, envelope)
        replay = shown(session)

    assert told == trace["load"]
    assert replay == expected(trace)
    raw = path.read_bytes()
    crlf = raw.count(b"\r\n")
    assert {"crlf": crlf, "lf": raw.count(b"\n") - crlf, "final": raw.endswith(b"\n")} == trace["line-ends"]


def _append(session: Session, envelope: dict[str, Any]) -> None:
    payload = envelope["payload"]
    match envelope["type"]:
        case "message":
            session.append_message(Message.from_dict(payload), payload)
        case "tool-settled":
            op_id = session.envelopes()[int(payload["op-id"][1:])]["id"]
            session.append_tool_settled(op_id, payload["outcome"])
        case kind:
            raise AssertionError(f"the trace has a {kind} line")


@pytest.mark.skipif(not NAMES, reason="the golden traces are not beside this checkout")
@pytest.mark.parametrize("name", [name for name in NAMES if "replay" in loaded("traces", name)])
def test_a_transcript_of_the_original_replays_as_there(tmp_path: Path, name: str) -> None:
    """The lines of every trace amount to the conversation that the original makes of them."""
    trace = loaded("traces", name)
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(json.dumps(envelope).encode() + b"\n" for envelope in trace["transcript"]))

    with Session.load(path) as session:
        replay = shown(session)

    assert replay == expected(trace)
