"""Files that are whole or not there, each under a name of its own."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llm_agent.errors import ConfigError
from llm_agent.ports import Stored
from llm_agent.tools.artifacts import ArtifactFolder, file_name

IDS = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="aAbB.-_/~0", max_size=4),
    st.text(min_size=90, max_size=120),
    st.text(alphabet=st.characters(categories=["Cs", "Lu"]), max_size=3),
)


@pytest.fixture
def folder(tmp_path: Path) -> ArtifactFolder:
    return ArtifactFolder(tmp_path / "run.artifacts")


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """The kernel refuses whatever would make a file larger than *size* bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heeded = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:  # at once: whoever runs the tests writes files of his own
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heeded)


def test_nothing_is_made_before_the_first_write(folder: ArtifactFolder) -> None:
    """A run without large results leaves no folder."""
    assert not folder.path.exists()

    folder.write("op-1", "text")

    assert os.listdir(folder.path) == ["op-1.txt"]


def test_the_bytes_are_the_text_in_utf_8(folder: ArtifactFolder) -> None:
    """Line ends stay what they are, and the digest is what a shell says of the file."""
    text = "ä\r\nb\rc\n\u2028d\ufeff"

    stored = folder.write("op-1", text)

    data = (folder.path / "op-1.txt").read_bytes()
    assert text.encode() == data
    assert Stored(file="op-1.txt", digest=hashlib.sha256(data).hexdigest(), bytes=len(data)) == stored


def test_text_that_utf_8_cannot_say_is_kept(folder: ArtifactFolder) -> None:
    """Half a character becomes the replacement character."""
    folder.write("op-1", "a\ud800b")

    assert (folder.path / "op-1.txt").read_text("utf-8") == "a\ufffdb"


def test_an_artifact_is_as_readable_as_the_transcript_beside_it(folder: ArtifactFolder) -> None:
    """The umask decides, and nothing else."""
    before = os.umask(0o027)
    try:
        folder.write("op-1", "text")
    finally:
        os.umask(before)

    assert stat.S_IMODE((folder.path / "op-1.txt").stat().st_mode) == 0o640


def test_another_working_directory_changes_nothing(tmp_path: Path) -> None:
    """A relative folder counts from where we were when it was named."""
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        folder = ArtifactFolder("kept")
        os.chdir("/")
        folder.write("op-1", "text")
    finally:
        os.chdir(before)

    assert (tmp_path / "kept" / "op-1.txt").exists()


@pytest.mark.parametrize(
    ("transcript", "expected"),
    [
        ("run.jsonl", "run.artifacts"),
        ("run.2024.jsonl", "run.2024.artifacts"),
        ("run", "run.artifacts"),
        (".run", ".run.artifacts"),
        ("a.b/run", "a.b/run.artifacts"),
    ],
)
def test_the_folder_stands_beside_the_transcript(tmp_path: Path, transcript: str, expected: str) -> None:
    """Only the last extension is replaced, and a name without one gets ours."""
    assert tmp_path / expected == ArtifactFolder.beside(tmp_path / transcript).path


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "..", ".", "", ".hidden", "-rf", "~root", "a/b", "a\0b", "x" * 5000, "Ä"],
)
def test_no_name_leads_out_of_the_folder(folder: ArtifactFolder, name: str) -> None:
    """It is one flat file, with a name that no shell takes for anything else."""
    stored = folder.write(name, "text")

    assert [stored.file] == os.listdir(folder.path)
    assert len(stored.file) < 128
    assert stored.file[0].isalnum()
    assert stored.file.endswith(".txt")


@given(st.sets(IDS, max_size=12))
@example({"call_A", "call_a", "call-a", "\ud800"})
def test_two_names_never_share_a_file(names: set[str]) -> None:
    """Not even where the file system ignores case."""
    assert len(names) == len({file_name(name).casefold() for name in names})


@given(IDS)
def test_a_made_up_name_is_no_other_name(name: str) -> None:
    """Whoever is called what another's file is called gets a file of his own."""
    taken = file_name(name)

    assert taken != file_name(taken.removesuffix(".txt")) or taken == name + ".txt"


def test_the_same_name_again_replaces_the_file(folder: ArtifactFolder) -> None:
    """And nothing else is left of it."""
    folder.write("op-1", "first")
    folder.write("op-1", "second")

    assert (folder.path / "op-1.txt").read_text() == "second"
    assert os.listdir(folder.path) == ["op-1.txt"]


def test_a_link_is_replaced_and_not_followed(folder: ArtifactFolder, tmp_path: Path) -> None:
    """What it pointed to stays as it was."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder.path.mkdir()
    (folder.path / "op-1.txt").symlink_to(outside)

    folder.write("op-1", "text")

    assert outside.read_text() == "mine"
    assert not (folder.path / "op-1.txt").is_symlink()


def test_a_full_disk_leaves_nothing_half_written(folder: ArtifactFolder) -> None:
    """The older file is as it was, and the draft is gone."""
    folder.write("op-1", "old")

    with small_disk(100_000), pytest.raises(OSError, match="File too large"):
        folder.write("op-1", "x" * 200_000)

    assert (folder.path / "op-1.txt").read_text() == "old"
    assert os.listdir(folder.path) == ["op-1.txt"]


def test_a_folder_that_cannot_be_made_is_an_oserror(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "run.artifacts").write_text("not a folder")

    with pytest.raises(OSError, match=r"run\.artifacts"):
        ArtifactFolder.beside(tmp_path / "run.jsonl").write("op-1", "text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_a_read_only_folder_is_an_oserror(folder: ArtifactFolder) -> None:
    """And says so, rather than that a draft is missing."""
    folder.path.mkdir(mode=0o500)

    with pytest.raises(PermissionError):
        folder.write("op-1", "text")


def test_a_name_that_is_taken_by_a_folder_is_an_oserror(folder: ArtifactFolder) -> None:
    """The draft does not stay behind."""
    (folder.path / "op-1.txt").mkdir(parents=True)

    with pytest.raises(OSError, match=r"op-1\.txt"):
        folder.write("op-1", "text")

    assert os.listdir(folder.path) == ["op-1.txt"]


def _write_for_ever(path: Path, has_begun: Event) -> None:
    folder = ArtifactFolder(path)
    for number in range(1_000_000):
        folder.write(f"op-{number}", "x" * 300_000)
        has_begun.set()


def test_a_killed_process_leaves_no_half_file(folder: ArtifactFolder) -> None:
    """Whatever has an artifact's name is whole; a draft is no artifact."""
    context = multiprocessing.get_context("spawn")
    has_begun = context.Event()
    writer = context.Process(target=_write_for_ever, args=(folder.path, has_begun))
    writer.start()
    try:
        assert has_begun.wait(30)
    finally:
        writer.kill()
        writer.join(5)

    artifacts = list(folder.path.glob("[!.]*"))
    assert artifacts
    assert {300_000} == {artifact.stat().st_size for artifact in artifacts}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": 7}, "path must be a path, got int"),
        ({"path": "x", "page_limit": 0}, "page_limit must be a number of characters above 0, got 0"),
        ({"path": "x", "page_limit": True}, "page_limit must be a number"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, object], message: str) -> None:
    """In the caller's thread, by name."""
    with pytest.raises(ConfigError, match=message):
        ArtifactFolder(**arguments)  # type: ignore[arg-type]
