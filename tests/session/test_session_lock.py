"""One writer per transcript: other sessions, other paths, other processes, forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_agent.errors import SessionInUse, TranscriptError
from llm_agent.messages import Message
from llm_agent.session.session import Session

HOLD = """
import sys
from llm_agent.session.session import Session
session = Session.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""

FORK = """
import os, signal, sys
from llm_agent.session.session import Session
session = Session.open(sys.argv[1])
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


def in_child(work: Callable[[], object]) -> int:
    """Run *work* in a forked child; 0 when it returned, 1 when it raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("enter", [Session.load, Session.open, Session.create])
def test_a_second_session_in_this_process_is_refused(tmp_path: Path, enter: Callable[[Path], Session]) -> None:
    """SessionInUse names the file and who holds it; after close the file is free."""
    path = tmp_path / "run.jsonl"
    with Session.create(path):
        with pytest.raises(SessionInUse, match=rf"run\.jsonl.*process {os.getpid()}"):
            enter(path)
        Session.read(path)

    Session.load(path).close()


@pytest.mark.parametrize("way", ["symlink", "relative", "dots"])
def test_the_same_file_by_another_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The lock belongs to the file, not to its name."""
    path = tmp_path / "run.jsonl"
    (tmp_path / "link.jsonl").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    other = {"symlink": tmp_path / "link.jsonl", "relative": Path("run.jsonl"), "dots": Path("x/../run.jsonl")}[way]

    with Session.create(path), pytest.raises(SessionInUse):
        Session.open(other)


def test_the_lock_file_stays_and_its_content_means_nothing(tmp_path: Path) -> None:
    """A lock file with anybody's id in it, and no lock on it, is free."""
    path = tmp_path / "run.jsonl"
    (tmp_path / "run.jsonl.lock").write_text("1")

    Session.create(path).close()

    assert (tmp_path / "run.jsonl.lock").exists()


def test_a_session_that_nobody_holds_any_more_frees_its_lock(tmp_path: Path) -> None:
    """A session that was dropped without close does not block the file."""
    path = tmp_path / "run.jsonl"
    Session.create(path)

    Session.load(path).close()


def test_the_tail_is_not_touched_without_the_lock(tmp_path: Path) -> None:
    """A second writer that comes in the middle of a line leaves that line alone."""
    path = tmp_path / "run.jsonl"
    with Session.create(path):
        with path.open("ab") as half:
            half.write(b'{"half')
        with pytest.raises(SessionInUse):
            Session.load(path)

        assert path.read_bytes().endswith(b'{"half')


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    """Another process's session holds the file until it ends, also by SIGKILL."""
    path = tmp_path / "run.jsonl"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(SessionInUse, match=f"process {holder.pid}"):
            Session.load(path)
        holder.send_signal(signal.SIGKILL)

    Session.load(path).close()


def test_an_inherited_session_belongs_to_the_parent(tmp_path: Path) -> None:
    """In a forked child every use raises, and leaving the block or closing does not."""
    session = Session.create(tmp_path / "run.jsonl")
    uses: list[Callable[[], object]] = [
        lambda: session.append_message(Message.user("child")),
        lambda: session.messages,
        lambda: session.envelopes(),
        session.repair,
    ]

    def work() -> None:
        for use in uses:
            with pytest.raises(TranscriptError, match="belongs to the parent"):
                use()
        session.close()

    assert in_child(work) == 0
    session.append_message(Message.user("parent"))
    assert [message.text for message in session.messages] == ["parent"]
    session.close()


def test_a_child_cannot_take_what_its_parent_holds(tmp_path: Path) -> None:
    """The child's way out of the fork leaves the parent's lock where it was."""
    path = tmp_path / "run.jsonl"
    session = Session.create(path)

    def work() -> None:
        session.close()
        with pytest.raises(SessionInUse):
            Session.load(path)

    assert in_child(work) == 0
    with pytest.raises(SessionInUse):
        Session.load(path)
    session.close()


def test_a_living_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    """A forked worker that outlives the session does not block the file, not even as it starts."""
    path = tmp_path / "run.jsonl"
    session = Session.create(path)
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(say)
        os.read(said, 1)
        os._exit(0)
    os.close(said)

    session.close()
    Session.load(path).close()

    os.close(say)
    os.waitpid(child, 0)


def test_a_worker_of_a_killed_parent_does_not_hold_the_lock(tmp_path: Path) -> None:
    """The lock is gone with the process that took it, whoever it has forked."""
    path = tmp_path / "run.jsonl"
    holder = subprocess.Popen(
        [sys.executable, "-c", FORK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "forked\n"
        holder.kill()
        holder.wait(5)

        Session.load(path).close()


def test_a_fork_in_the_middle_of_an_append_does_not_block_the_child(tmp_path: Path) -> None:
    """A thread of the parent was busy with the session: the child still gets out of the block."""
    session = Session.create(tmp_path / "run.jsonl")
    entered, leave = threading.Event(), threading.Event()

    def busy() -> None:
        with session._lock:
            entered.set()
            leave.wait(5)

    thread = threading.Thread(target=busy)
    thread.start()
    assert entered.wait(5)

    def work() -> None:
        signal.alarm(5)
        session.close()

    assert in_child(work) == 0
    leave.set()
    thread.join(5)
    session.close()


def test_a_command_that_is_started_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """A child process of another program keeps nothing of ours open."""
    path = tmp_path / "run.jsonl"
    session = Session.create(path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as command:
        session.close()
        Session.load(path).close()
        assert command.stdin is not None
        command.stdin.close()


def test_a_child_may_write_a_transcript_of_its_own(tmp_path: Path) -> None:
    """Sessions made after the fork work."""
    path = tmp_path / "child.jsonl"
    kept = Session.create(tmp_path / "parent.jsonl")

    def work() -> None:
        with Session.create(path) as session:
            session.append_message(Message.user("child"))

    assert in_child(work) == 0
    assert [message.text for message in Session.read(path).messages] == ["child"]
    kept.close()
