"""A run with a tool result that is too large: the same excerpt everywhere, the whole in a file."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from llm_agent import Loop, Session
from llm_agent.budget import RequestBudget
from llm_agent.canonical import data_digest
from llm_agent.events import Log, ToolResult
from llm_agent.ports import Stored
from llm_agent.testing import FinishedRun, ScriptedBackend, ScriptedProvider, call, finished
from llm_agent.tools.artifacts import ArtifactFolder

BUDGET = RequestBudget(max_observation_size=1000)
LARGE = "first line\n" + "x" * 2000 + "\nlast line"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


@pytest.fixture
def session(path: Path) -> Iterator[Session]:
    with Session.open(path) as opened:
        yield opened


def asked(result: str, **options: Any) -> FinishedRun:
    """A run whose only call is answered by *result*."""
    backend = ScriptedBackend([call("dump"), "done"])
    tools = ScriptedProvider({"dump": result})
    return finished(Loop(backend, tools=tools, request_budget=BUDGET, **options).run("go"))


def result_of(run: FinishedRun) -> ToolResult:
    return next(event for event in run.events if isinstance(event, ToolResult))


def settled(session: Session) -> dict[str, Any]:
    return next(envelope["payload"] for envelope in session.envelopes() if envelope["type"] == "tool-settled")


def test_conversation_transcript_event_and_digest_agree(session: Session) -> None:
    """One text, cut once."""
    event = result_of(asked(LARGE, session=session))

    assert event.content.startswith("first line\nxxx")
    assert event.content.endswith("xxx\nlast line")
    assert session.messages[2].content == event.content
    assert settled(session)["result-digest"] == data_digest(event.content)
    assert settled(session)["artifact"] == event.artifact


def test_the_whole_is_kept_beside_the_transcript(session: Session, path: Path) -> None:
    """Under a bare name that the event, the settle line and the excerpt give."""
    event = result_of(asked(LARGE, session=session))

    assert event.artifact is not None
    file = path.with_suffix(".artifacts") / event.artifact["file"]
    assert file.read_text("utf-8") == LARGE
    assert event.artifact == {
        "file": file.name,
        "digest": hashlib.sha256(LARGE.encode()).hexdigest(),
        "bytes": len(LARGE),
        "chars": len(LARGE),
        "elided-chars": len(LARGE) - 1000,
    }
    assert f"artifact {file.name}," in event.content


@pytest.mark.parametrize(("size", "is_kept"), [(1000, False), (1001, True)])
def test_the_limit_itself_still_fits(session: Session, path: Path, size: int, is_kept: bool) -> None:
    """One more character makes an excerpt, and a folder."""
    event = result_of(asked("x" * size, session=session))

    assert (event.artifact is not None) is is_kept
    assert path.with_suffix(".artifacts").exists() is is_kept


def test_a_result_that_fits_leaves_no_trace(session: Session) -> None:
    """Neither line nor event has a key for what is not there."""
    event = result_of(asked("small", session=session))

    assert "artifact" not in settled(session)
    assert "artifact" not in event.to_dict()


def test_a_transcript_needs_no_artifacts(session: Session, path: Path) -> None:
    """With the folder gone, it loads as it was."""
    run = asked(LARGE, session=session)
    session.close()
    shutil.rmtree(path.with_suffix(".artifacts"))

    with Session.load(path) as again:
        assert tuple(again.messages) == tuple(run.outcome.messages)


def test_without_a_session_nothing_is_kept() -> None:
    """The model is told."""
    event = result_of(asked(LARGE))

    assert event.artifact is None
    assert "was not kept" in event.content


def test_a_store_that_fails_does_not_fail_the_run(session: Session) -> None:
    """A warning says why, and the excerpt is given."""

    class FullStore:
        def write(self, name: str, text: str) -> Stored:
            raise OSError(28, "No space left on device")

    run = asked(LARGE, session=session, artifact_store=FullStore())

    [warning] = [event for event in run.events if isinstance(event, Log)]
    assert warning.level == "warning"
    assert isinstance(warning.data, Mapping)
    assert warning.data["error"] == "OSError: [Errno 28] No space left on device"
    assert "was not kept" in result_of(run).content
    assert run.outcome.ok


def test_the_model_reads_back_what_was_left_out(session: Session, path: Path) -> None:
    """By the name it was given, through a tool of the same folder."""
    store = ArtifactFolder.beside(path)

    def left_out(request: Any) -> Any:
        file = next(store.path.iterdir()).name
        assert file in request.messages[-1].text
        return call("read_artifact", name=file, offset=750, limit=500)

    backend = ScriptedBackend([call("dump"), left_out, "done"])
    tools = [ScriptedProvider({"dump": LARGE}), store.read_artifact]
    run = finished(Loop(backend, tools=tools, session=session, artifact_store=store, request_budget=BUDGET).run("go"))

    answer = [event for event in run.events if isinstance(event, ToolResult)][-1]
    assert not answer.is_error
    assert answer.content.partition("\n")[2] == LARGE[750:1250]
