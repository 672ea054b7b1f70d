"""Crashes that really happen: a killed process, a full disk, an interrupted append."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llm_agent.errors import TranscriptError
from llm_agent.jsonl import JsonlFile
from llm_agent.messages import Message
from llm_agent.session.session import Session

WRITE = """
import sys
from llm_agent.messages import Message
from llm_agent.session.session import Session
session = Session.create(sys.argv[1])
while True:
    print(session.append_message(Message.user("x" * int(sys.argv[2]))), flush=True)
"""

FULL = """
import resource, sys
from pathlib import Path
from llm_agent.errors import TranscriptError
from llm_agent.messages import Message
from llm_agent.session.session import Session

path = Path(sys.argv[1])
session = Session.create(path)
session.append_message(Message.user("kept"))
before, held = path.read_bytes(), session.messages
limit = len(before) + 100
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        session.append_message(Message.user("y" * 1000))
    except TranscriptError as exc:
        assert isinstance(exc.__cause__, OSError) and str(path) in str(exc), exc
    else:
        raise AssertionError("a full disk went unnoticed")
    assert path.read_bytes() == before and session.messages == held
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
session.append_message(Message.user("later"))
session.close()
print([message.text for message in Session.load(path).messages])
"""


@pytest.mark.parametrize("count", [1, 20, 300])
def test_a_killed_process_loses_nothing_that_append_returned(tmp_path: Path, count: int) -> None:
    """kill -9 at some moment: every id that was handed out is in the file, and the file loads."""
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", WRITE, str(path), "30000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        handed_out = [writer.stdout.readline().strip() for _ in range(count)]
        writer.send_signal(signal.SIGKILL)
        handed_out += [line.strip() for line in writer.stdout if line.endswith("\n")]

    with Session.load(path) as session:
        assert session.message_ids[: len(handed_out)] == tuple(handed_out)
        assert len(session.message_ids) <= len(handed_out) + 1


def test_a_full_disk_changes_nothing_and_can_be_survived(tmp_path: Path) -> None:
    """Part of a line landed, twice: neither memory nor file has changed, and the next append works."""
    path = tmp_path / "run.jsonl"

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=30, check=False
    )

    assert (done.stdout, done.stderr) == ("['kept', 'later']\n", "")


def test_a_write_that_never_works_is_refused_every_time() -> None:
    """A device that takes nothing: a TranscriptError that names it, with the OSError as its cause."""
    full = JsonlFile(Path("/dev/full"))

    for _ in range(2):
        with pytest.raises(TranscriptError, match="/dev/full") as caught:
            full.append(b"{}\n")
        assert isinstance(caught.value.__cause__, OSError)
    full.close()


def test_a_tail_that_cannot_be_cut_back_refuses_further_lines(tmp_path: Path) -> None:
    """Half a line that stays must not be written behind: only a load repairs it."""
    path = tmp_path / "run.jsonl"
    file = JsonlFile(path, create=True)
    file.append(b"{}\n")
    reading_only = os.open(path, os.O_RDONLY)
    os.dup2(reading_only, file._handle)  # every write and every cut fails from here on
    path.write_bytes(b'{}\n{"ha')

    with pytest.raises(TranscriptError):
        file.append(b"[]\n")
    with pytest.raises(TranscriptError, match="load it again"):
        file.append(b"[]\n")

    assert path.read_bytes() == b'{}\n{"ha'
    file.close()
    os.close(reading_only)


def test_a_short_write_is_finished(tmp_path: Path) -> None:
    """A signal in the middle of a long write cuts it short; the rest of the line follows."""
    line = b'"' + b"x" * 300_000 + b'"\n'
    reading, writing = os.pipe()
    file = JsonlFile(tmp_path / "run.jsonl", create=True)
    os.dup2(writing, file._handle)
    os.close(writing)
    interrupted = threading.Event()
    arrived: list[bytes] = []
    writer = threading.main_thread().ident
    assert writer is not None

    def read() -> None:
        # To the writing thread itself: a signal for the process may land on any other one.
        while not interrupted.wait(0.05):
            signal.pthread_kill(writer, signal.SIGALRM)
        with open(reading, "rb") as source:
            arrived.append(source.read())

    before = signal.signal(signal.SIGALRM, lambda *_: interrupted.set())
    reader = threading.Thread(target=read)
    reader.start()
    try:
        file.append(line)
    finally:
        interrupted.set()
        signal.signal(signal.SIGALRM, before)
        file.close()
    reader.join(5)

    assert arrived == [line]


class Interrupted:
    """Lines that a Ctrl-C interrupts once, after the line was written."""

    def __init__(self, lines: JsonlFile) -> None:
        self.lines = lines

    def append(self, line: bytes) -> None:
        self.lines.append(line)
        raise KeyboardInterrupt

    def close(self) -> None:
        self.lines.close()


def test_after_an_interrupted_append_nothing_is_appended_until_the_next_load(tmp_path: Path) -> None:
    """Memory and file may disagree by one line: the session says so, and the file is what counts."""
    path = tmp_path / "run.jsonl"
    session = Session.create(path)
    opened = session._opened
    whole = opened.lines
    assert isinstance(whole, JsonlFile)
    opened.lines = Interrupted(whole)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        session.append_message(Message.user("a"))
    opened.lines = whole

    with pytest.raises(TranscriptError, match="interrupted"):
        session.append_message(Message.user("b"))
    session.close()

    assert [message.text for message in Session.read(path).messages] == ["a"]
