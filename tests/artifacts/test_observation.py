"""One text for the conversation, made once, and the whole kept first where somebody keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from llm_agent.cancel import CancelToken
from llm_agent.loop.observation import Observation, observe
from llm_agent.loop.state import RunState
from llm_agent.ports import Stored
from llm_agent.slot import Slot
from llm_agent.tool_operation import ToolOperation
from llm_agent.tools.artifacts import ArtifactFolder


@attrs.frozen
class Config:
    observation_limit: int | None
    artifact_store: Any = None


@attrs.frozen
class Core:
    cancel: CancelToken = attrs.field(factory=CancelToken)


@attrs.frozen
class State:
    """As much of a run as an observation needs."""

    config: Config
    logs: list[tuple[str, Any]] = attrs.field(factory=list)
    core: Core = attrs.field(factory=Core)
    slot: Slot = attrs.field(factory=lambda: Slot("llm-agent-tools-test"))

    def log(self, level: str, data: str | Mapping[str, Any]) -> None:
        self.logs.append((level, data))


class BrokenStore:
    def write(self, name: str, text: str) -> Stored:
        raise OSError(28, "No space left on device")


class OddStore:
    def write(self, name: str, text: str) -> Any:
        return name


def observed(state: State, content: str) -> Observation:
    operation = ToolOperation(call_id="c1", tool="read", op_id="op-1")
    try:
        return observe(cast("RunState", state), operation, content)
    finally:
        state.slot.close()


@pytest.mark.parametrize(("limit", "size"), [(None, 100_000), (100, 100)])
def test_what_fits_is_not_touched(tmp_path: Path, limit: int | None, size: int) -> None:
    """Nothing is stored of it either; without a limit everything fits."""
    folder = ArtifactFolder(tmp_path / "kept")

    assert Observation("x" * size) == observed(State(Config(limit, folder)), "x" * size)
    assert not folder.path.exists()


def test_an_excerpt_names_the_file_that_has_the_whole(tmp_path: Path) -> None:
    """The facts are those of the file on disk, and no path is among them."""
    folder = ArtifactFolder(tmp_path / "kept")
    text = "ä" * 80 + "b" * 90

    observation = observed(State(Config(100, folder)), text)

    data = (folder.path / "op-1.txt").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert text.encode() == data
    assert observation.artifact == {
        "file": "op-1.txt",
        "digest": digest,
        "bytes": 250,
        "chars": 170,
        "elided-chars": 70,
    }
    head, marker, tail = observation.content.split("\n")
    assert (head, tail) == ("ä" * 75, "b" * 25)
    for fact in ("70 characters", "from 75 to 145", "250 bytes", "op-1.txt", digest):
        assert fact in marker
    assert str(tmp_path) not in observation.content


def test_the_marker_says_where_to_read_on(tmp_path: Path) -> None:
    """With its numbers the tool gives exactly what was left out."""
    folder = ArtifactFolder(tmp_path)
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))

    observation = observed(State(Config(100, folder)), text)

    assert observation.artifact is not None
    page = folder.read_artifact("op-1.txt", 75, observation.artifact["elided-chars"]).partition("\n")[2]
    assert text[75:975] == page


def test_without_a_store_the_excerpt_says_that_the_rest_is_gone() -> None:
    """The digest is there all the same, and nobody is warned: nothing has failed."""
    state = State(Config(100))

    observation = observed(state, "x" * 150)

    assert observation.artifact is None
    assert "(150 bytes, sha256 " + hashlib.sha256(b"x" * 150).hexdigest() in observation.content
    assert "was not kept" in observation.content
    assert state.logs == []


@pytest.mark.parametrize(
    ("store", "error"),
    [
        (BrokenStore(), "OSError: [Errno 28] No space left on device"),
        (OddStore(), "write() must return a Stored, got str"),
    ],
)
def test_a_store_that_fails_costs_a_warning_and_not_the_call(store: Any, error: str) -> None:
    """The excerpt is given, and says that the whole was not kept."""
    state = State(Config(100, store))

    observation = observed(state, "x" * 150)

    assert observation.artifact is None
    assert "was not kept" in observation.content
    [(level, data)] = state.logs
    assert level == "warning"
    assert (error, "read", "c1") == (data["error"], data["tool"], data["call-id"])


def test_half_a_character_is_measured_as_the_conversation_has_it(tmp_path: Path) -> None:
    """File, digest and excerpt speak of the same text."""
    folder = ArtifactFolder(tmp_path)

    observation = observed(State(Config(4, folder)), "\ud83d\ude00ab\ud800cd")

    assert (tmp_path / "op-1.txt").read_text("utf-8") == "\U0001f600ab\ufffdcd"
    assert observation.artifact is not None
    assert (observation.artifact["chars"], observation.artifact["bytes"]) == (6, 11)
