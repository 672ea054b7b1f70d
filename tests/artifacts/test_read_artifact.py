"""The model reads back what it was shown an excerpt of, and reaches nothing else."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.tools import Toolbox
from llm_agent.tools.artifacts import ArtifactFolder

# From this size on the loop makes an excerpt of a tool's answer, unless it is told otherwise.
OBSERVATION_SIZE = 16_384


@pytest.fixture
def folder(tmp_path: Path) -> ArtifactFolder:
    return ArtifactFolder(tmp_path / "run.artifacts")


def asked(folder: ArtifactFolder, **arguments: object) -> ToolAnswer:
    """What the model gets for a call with *arguments*."""
    return Toolbox([folder.read_artifact]).execute_tool_calls([ToolRequest("c1", "read_artifact", arguments)])[0]


def walked(folder: ArtifactFolder, name: str, limit: int) -> str:
    """The whole text, by following what each answer says about reading on."""
    text, offset = "", 0
    while True:
        head, _, page = folder.read_artifact(name, offset, limit).partition("\n")
        text += page
        onwards = re.search(r"read on with offset (\d+)\]", head)
        if onwards is None:
            assert "this is the end" in head
            return text
        offset = int(onwards[1])


def test_the_tool_is_declared_with_its_three_parameters(folder: ArtifactFolder) -> None:
    """Only the name must be given, and reading twice does no harm."""
    box = Toolbox([folder.read_artifact])

    parameters = box.tools_for_llm()[0]["function"]["parameters"]

    assert list(parameters["properties"]) == ["name", "offset", "limit"]
    assert parameters["required"] == ["name"]
    assert all(one["description"] for one in parameters["properties"].values())
    assert box.idempotency_of("read_artifact") == "read-only"


def test_an_answer_says_where_it_is_and_how_to_read_on(folder: ArtifactFolder) -> None:
    """In characters, from the first that is shown to the one after the last."""
    folder.write("op-1", "äöü0123456789")

    assert asked(folder, name="op-1.txt", offset=2, limit=4) == ToolAnswer(
        "c1", "[op-1.txt: characters 2 to 6 of 13; read on with offset 6]\nü012"
    )


def test_the_last_page_says_that_it_is_the_last(folder: ArtifactFolder) -> None:
    """Also when more was asked for than there is."""
    folder.write("op-1", "0123456789")

    assert folder.read_artifact("op-1.txt", 7, 100) == "[op-1.txt: characters 7 to 10 of 10; this is the end]\n789"


def test_reading_on_at_the_end_is_no_error(folder: ArtifactFolder) -> None:
    """There is nothing more, and the answer says that."""
    folder.write("op-1", "0123")

    assert folder.read_artifact("op-1.txt", 4) == "[op-1.txt: characters 4 to 4 of 4; this is the end]\n"


@pytest.mark.parametrize("offset", [0, 500_000])
def test_an_answer_is_never_excerpted_again(folder: ArtifactFolder, offset: int) -> None:
    """However much is asked for, of a file with however long a name."""
    stored = folder.write("A" * 5000, "x" * 1_000_000)

    answer = asked(folder, name=stored.file, offset=offset, limit=10**12)

    assert 16_000 < len(answer.content) < OBSERVATION_SIZE


def test_a_smaller_page_may_be_demanded(tmp_path: Path) -> None:
    """For a loop that makes excerpts earlier."""
    folder = ArtifactFolder(tmp_path, page_limit=100)
    folder.write("op-1", "x" * 1000)

    assert folder.read_artifact("op-1.txt").startswith("[op-1.txt: characters 0 to 100 of 1000;")


def test_following_the_answers_reads_the_whole(folder: ArtifactFolder) -> None:
    """No character is lost or doubled, also where one lies across two pieces of the file."""
    text = "a" + "€" * 700_000 + "\r\n\U0001f468\u200d\U0001f469 end"
    folder.write("op-1", text)

    assert text == walked(folder, "op-1.txt", 16_000)


@given(text=st.text(max_size=60), limit=st.integers(1, 20))
def test_pages_are_the_text(tmp_path_factory: pytest.TempPathFactory, text: str, limit: int) -> None:
    """For every text and every size of page."""
    folder = ArtifactFolder(tmp_path_factory.getbasetemp() / "pages")
    folder.write("op-1", text)

    assert text == walked(folder, "op-1.txt", limit)


def test_a_page_of_a_large_file_costs_little_memory(folder: ArtifactFolder) -> None:
    """A few pieces of it are held at a time."""
    folder.write("op-1", "0123456789\n" * 2_000_000)
    tracemalloc.start()
    try:
        folder.read_artifact("op-1.txt", 20_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 5_000_000


@pytest.mark.parametrize(
    ("offset", "limit", "problem"),
    [
        (-1, 10, "offset must be 0 or more"),
        (0, 0, "limit 1 or more"),
        (11, 10, "offset 11 is behind the end: op-1.txt has 10 characters"),
    ],
)
def test_a_page_that_is_none_is_refused(folder: ArtifactFolder, offset: int, limit: int, problem: str) -> None:
    """The model learns what it may ask for."""
    folder.write("op-1", "0123456789")

    answer = asked(folder, name="op-1.txt", offset=offset, limit=limit)

    assert answer.is_error
    assert problem in answer.content


def test_an_unknown_name_is_answered_with_the_known_ones(folder: ArtifactFolder) -> None:
    """In order, and no more than a few of them."""
    for number in range(30):
        folder.write(f"op-{number:02}", "text")

    answer = asked(folder, name="op-99.txt")

    assert answer.is_error
    assert "there is no artifact named 'op-99.txt'; there are op-00.txt, op-01.txt, " in answer.content
    assert answer.content.endswith("op-19.txt and 10 more")


def test_without_a_folder_there_are_no_artifacts(folder: ArtifactFolder) -> None:
    """Asking does not make one."""
    answer = asked(folder, name="op-1.txt")

    assert answer.content == "FileNotFoundError: there is no artifact named 'op-1.txt'; there are none yet"
    assert not folder.path.exists()


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "{root}/secret.txt",
        "link.txt",
        "sub",
        "sub/inner.txt",
        "./op-1.txt",
        "..",
        "",
        "a\0b",
        "pipe.txt",
    ],
)
def test_no_name_reaches_out_of_the_folder(folder: ArtifactFolder, tmp_path: Path, name: str) -> None:
    """Neither a path nor a link nor anything that is no plain file."""
    folder.write("op-1", "text")
    (tmp_path / "secret.txt").write_text("secret")
    (folder.path / "link.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(folder.path / "pipe.txt")
    (folder.path / "sub").mkdir()
    (folder.path / "sub" / "inner.txt").write_text("secret")

    answer = asked(folder, name=name.format(root=tmp_path))

    assert answer.is_error
    assert "there is no artifact named" in answer.content
    assert answer.content.endswith("; there are op-1.txt")


@pytest.mark.parametrize("name", [".0123.tmp", ".hidden.txt", "notes.md"])
def test_what_is_not_ours_is_no_artifact(folder: ArtifactFolder, name: str) -> None:
    """Drafts of a killed process and foreign files are neither listed nor read."""
    folder.path.mkdir()
    (folder.path / name).write_text("half")

    assert asked(folder, name=name).content.endswith("there are none yet")
