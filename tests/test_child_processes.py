"""The book of child processes: what an exit and a fork find in it. Real children have tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from llm_agent import child_processes
from llm_agent.child_processes import Children, InterpreterExiting, why_not_started


class Fake:
    """A child that is none."""

    def disown(self) -> None:
        pass


class Ended:
    """Remembers what was ended."""

    def __init__(self) -> None:
        self.children: list[Fake] = []

    def __call__(self, children: Sequence[Fake]) -> None:
        self.children += children


def test_an_exit_ends_those_that_are_left() -> None:
    """And not the one that was over before."""
    ended = Ended()
    children = Children("fake", ended)
    over, left = children.start(Fake), children.start(Fake)
    children.strike(over)
    children.strike(over)

    children.end_all()

    assert ended.children == [left]


def test_nothing_is_started_after_the_exit_began() -> None:
    """Nobody would end it."""
    children = Children("fake", Ended())
    children.end_all()

    with pytest.raises(InterpreterExiting, match="no fake can be started: the interpreter is exiting"):
        children.start(Fake)


def test_an_exit_waits_for_the_child_that_is_just_being_started() -> None:
    """It is ended with the others, though it came last."""
    ended = Ended()
    children = Children("fake", ended)
    is_starting, may_start = threading.Event(), threading.Event()

    def slow() -> Fake:
        is_starting.set()
        assert may_start.wait(5)
        return Fake()

    starting = threading.Thread(target=lambda: children.start(slow))
    starting.start()
    assert is_starting.wait(5)
    exiting = threading.Thread(target=children.end_all)
    exiting.start()
    may_start.set()
    starting.join(5)
    exiting.join(5)

    assert len(ended.children) == 1


def test_a_start_that_fails_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never there is not waited for, and not ended."""
    monkeypatch.setattr(child_processes, "_START_PATIENCE", 60)
    ended = Ended()
    children = Children("fake", ended)
    with pytest.raises(FileNotFoundError):
        children.start(lambda: open("/no/such/child"))  # type: ignore[arg-type, return-value]  # noqa: SIM115
    exiting = threading.Thread(target=children.end_all, daemon=True)
    exiting.start()
    exiting.join(5)

    assert not exiting.is_alive()
    assert ended.children == []


FORK_IN_A_START = """
import os, threading
from llm_agent import child_processes
from llm_agent.child_processes import Children

class Fake:
    def disown(self):
        os.write(1, b"disowned ")

children = Children("fake", lambda living: os.write(1, b"ended %d " % len(living)))
is_starting, may_start = threading.Event(), threading.Event()

def slow():
    is_starting.set()
    may_start.wait(5)
    return Fake()

thread = threading.Thread(target=children.start, args=(slow,))
thread.start()
is_starting.wait(5)
threading.Thread(target=may_start.set).start()
child = os.fork()  # not before the start is over
if child == 0:
    own = threading.Thread(target=children.start, args=(Fake,), daemon=True)
    own.start()
    own.join(5)  # the lock is nobody's
    os.write(1, b"stuck " if own.is_alive() else b"started ")
else:
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_a_start_and_leaves_the_child_to_the_parent() -> None:
    """The forked process lets go of it and may start its own; each exit ends what is its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK_IN_A_START], capture_output=True, text=True, timeout=20, check=True
    )

    assert done.stdout == "disowned started ended 1 ended 1 "


def test_an_error_tells_the_folder_from_the_program() -> None:
    """The number that the system gives is the same for both."""
    problem = FileNotFoundError(2, "No such file or directory")

    assert why_not_started(problem, "x", None) == "the command 'x' cannot be used: No such file or directory"
    assert why_not_started(problem, "x", ".") == "the command 'x' cannot be used: No such file or directory"
    assert why_not_started(problem, "x", "/no/folder").startswith("the working directory '/no/folder' cannot")
