"""Which child processes of one kind there are: ended at exit, left to the parent after a fork.

The law: a fork finds no child half started, and after the exit began none is started any more.
How one of them is ended does not live here; whoever keeps `Children` says so.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

# How long an exit or a fork waits for children that are just being started, in seconds.
_START_PATIENCE: Final = 0.5


class InterpreterExiting(RuntimeError):
    """Too late to start anything."""


class Child(Protocol):
    def disown(self) -> None:
        """In a forked child: it is the parent's, and so are the other ends of its pipes."""


AnyChild = TypeVar("AnyChild", bound=Child)


class Children(Generic[AnyChild]):
    """The living children of one kind, for the end of the process. Any thread."""

    def __init__(self, kind: str, end: Callable[[Sequence[AnyChild]], None]) -> None:
        """Look after them from here on.

        Args:
            kind: what an error calls one of them.
            end: ends those that are left at interpreter exit.
        """
        self._kind = kind
        self._end = end
        self._forget()
        atexit.register(self.end_all)
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._disown)

    def _forget(self) -> None:
        # Guards the three below; told when a start is over. Re-entrant, because a signal handler
        # may fork while its own thread is in here.
        self._changed = threading.Condition(threading.RLock())
        self._living: set[AnyChild] = set()
        self._starting = 0
        self._is_over = False

    def start(self, spawn: Callable[[], AnyChild]) -> AnyChild:
        """Start a child and enter it.

        Raises:
            InterpreterExiting: none is started any more.
        """
        with self._changed:
            if self._is_over:
                raise InterpreterExiting(f"no {self._kind} can be started: the interpreter is exiting")
            self._starting += 1
        try:
            child = spawn()
            self._living.add(child)
            return child
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    def strike(self, child: AnyChild) -> None:
        """Forget one that is over; again is fine."""
        self._living.discard(child)

    def end_all(self) -> None:
        """End every child; none can be started from here on."""
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: not self._starting, _START_PATIENCE)
        self._end(tuple(self._living))

    def _hold(self) -> None:
        """A child forked meanwhile would inherit the pipe on which `Popen` waits for its exec, and others."""
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._starting, _START_PATIENCE)

    def _release(self) -> None:
        self._changed.release()

    def _disown(self) -> None:
        for child in tuple(self._living):
            child.disown()
        self._forget()  # the parent's lock may have been held at the fork


def why_not_started(problem: OSError, program: str, cwd: str | os.PathLike[str] | None) -> str:
    """Say which of the two *problem* is about: the program, or the folder that it was to start in."""
    is_folder = cwd is not None and not os.path.isdir(cwd)
    what = f"the working directory {os.fspath(cwd or '')!r}" if is_folder else f"the command {program!r}"
    return f"{what} cannot be used: {problem.strerror}"
