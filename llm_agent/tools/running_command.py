"""One running command: its bytes moved, its end brought about, its first process buried.

One thread runs it, in one selector: pipes, and the exit by a pidfd where there is one. The
first process is buried last, so that its pid, which names the group, cannot become somebody
else's while signals are sent. How it was started, and which others run: `process`.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable
from time import monotonic
from typing import IO, Final, Literal

import attrs

from llm_agent.process_table import (
    HAS_TABLE,
    KILL_ROUNDS,
    ProcessRow,
    exit_of,
    family,
    leader_of,
    pidfd_of,
    send,
    writers,
)
from llm_agent.tools.output import HeadAndTail

_log = logging.getLogger("llm_agent.tools.process")

CommandEnd = Literal["exit", "timeout", "cancel"]

_CHUNK: Final = 65_536
# How often events are looked at, in seconds: an event cannot wake a selector.
_LOOK: Final = 0.05
# How long output is still awaited when the command has exited and others hold its pipes, in
# seconds: what `> >(tee log)` needs for its last line.
_LINGER: Final = 0.1
# The first and the longest pause between two looks at what is being killed, in seconds.
_PAUSES: Final = (0.002, 0.02)
# How long SIGKILL may take, in seconds; only a process stuck in the kernel needs more.
_KILL_PATIENCE: Final = 1.0


class RunningCommand:
    """A started process that leads a group of its own, and whatever comes of it.

    Used by the thread that runs it; `kill` by any.
    """

    def __init__(self, process: subprocess.Popen[bytes], mark: str, grace: float) -> None:
        self._process = process
        self._mark = mark
        self._grace = grace
        self._leader = leader_of(process.pid)
        self._selector: selectors.BaseSelector | None = None
        self._pidfd = -1
        self._unwanted: tuple[threading.Event, ...] = ()
        self._has_exited = False
        self._open_outputs = 0
        self._pipes: set[int] = set()
        """Inode numbers of the output pipes."""
        # Guards the burial: no signal is sent to a pid that is not ours any more.
        self._burial = threading.Lock()
        self._is_buried = False

    # -- its life ------------------------------------------------------------------------------

    def run(
        self,
        *,
        input: bytes,
        deadline: float | None,
        unwanted: tuple[threading.Event, ...],
        output: HeadAndTail,
        errors: HeadAndTail,
    ) -> tuple[CommandEnd, int | None]:
        """Move bytes until the command ends or is ended; nothing of it is left then.

        Args:
            deadline: when to end it, in monotonic seconds.
            unwanted: each of these ends it when set.

        Returns:
            What ended it, and the first process's return code; `None` where that is not known.
        """
        self._unwanted = unwanted
        is_gone = False
        try:
            self._open(input, output, errors)
            self._pump(deadline, lambda: self._exited() or self._is_unwanted())
            end = self._what_ended_it()
            if end == "exit":
                self._pump(_earlier(deadline, monotonic() + _LINGER), self._is_quiet)
            is_gone = self._end_gently()
        finally:
            if not is_gone:
                self.kill()
            returncode = self._bury()
            self.close()
        return end, returncode

    def _what_ended_it(self) -> CommandEnd:
        if self._exited():
            return "exit"
        return "cancel" if self._is_unwanted() else "timeout"

    def _open(self, input: bytes, output: HeadAndTail, errors: HeadAndTail) -> None:
        """Have the selector move every byte, and tell the exit."""
        self._selector = selectors.DefaultSelector()
        for pipe, kept in ((self._process.stdout, output), (self._process.stderr, errors)):
            if pipe is not None:
                self._open_outputs += 1
                self._pipes.add(os.fstat(pipe.fileno()).st_ino)
                self._register(pipe, selectors.EVENT_READ, _Reading(self, pipe, kept).move)
        stdin = self._process.stdin
        if stdin is not None:
            self._register(stdin, selectors.EVENT_WRITE, _Writing(self, stdin, input).move)
        self._pidfd = pidfd_of(self._process.pid)
        if self._pidfd >= 0:  # otherwise `_exited` looks
            self._selector.register(self._pidfd, selectors.EVENT_READ, self._note_exit)

    def _register(self, pipe: IO[bytes], event: int, move: Callable[[], None]) -> None:
        assert self._selector is not None
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, event, move)

    def close_pipe(self, pipe: IO[bytes]) -> None:
        """Stop moving the bytes of *pipe*."""
        assert self._selector is not None
        self._selector.unregister(pipe)
        pipe.close()
        if pipe is not self._process.stdin:
            self._open_outputs -= 1

    def _note_exit(self) -> None:
        assert self._selector is not None
        self._selector.unregister(self._pidfd)
        self._has_exited = True

    def _pump(self, until: float | None, is_enough: Callable[[], bool]) -> None:
        """Move bytes until *is_enough* says so, or until that time. The only wait of a command."""
        assert self._selector is not None
        look = None if self._pidfd >= 0 and not self._unwanted else _LOOK
        while not is_enough():
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                return
            for key, _ in self._selector.select(_earlier(look, left)):
                key.data()

    def _exited(self) -> bool:
        """Whether the first process is over; it is not waited for, so its pid stays ours."""
        if not self._has_exited and self._pidfd < 0:
            try:
                self._has_exited = exit_of(self._process.pid) is not None
            except ChildProcessError:
                self._has_exited = True
        return self._has_exited

    def _is_unwanted(self) -> bool:
        return any(event.is_set() for event in self._unwanted)

    def _is_quiet(self) -> bool:
        return self._open_outputs == 0 or self._is_unwanted()

    # -- its end -------------------------------------------------------------------------------

    def _end_gently(self) -> bool:
        """End what is left, first by SIGTERM, and take what it still writes; True when all is gone."""
        left = self._left()
        was_alone = not left
        if left:
            send(left, self._process.pid, signal.SIGTERM)
            self._await_end(monotonic() + self._grace, None)
            self._await_end(monotonic() + _KILL_PATIENCE, signal.SIGKILL)
        self._pump(monotonic() + _LINGER, lambda: self._open_outputs == 0)
        return was_alone or not self._left()

    def _await_end(self, give_up: float, number: signal.Signals | None) -> None:
        """Wait until nothing is left, taking output meanwhile; with a *number*, signal what turns up."""
        pause, longest = _PAUSES
        while monotonic() < give_up and (left := self._left()):
            if number is not None:
                send(left, self._process.pid, number)
            self._pump(min(give_up, monotonic() + pause), lambda: False)
            pause = min(2 * pause, longest)

    def _left(self) -> list[ProcessRow]:
        """Who of the command is alive; where there is no table, only the first process is known."""
        if not HAS_TABLE:
            return [] if self._exited() else [self._leader]
        left = family(self._leader, self._mark)
        if not left and self._open_outputs:  # nobody known is left, and yet somebody could still write
            left = writers(self._pipes, self._leader)
        return left

    def kill_group(self) -> None:
        """Kill the group, which is nearly always all of it, in no time. Any thread; never raises."""
        with self._burial:
            if not self._is_buried:
                send([], self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill whatever is left, at once and without waiting. Any thread; never raises."""
        with self._burial:
            for _ in range(KILL_ROUNDS):
                left = [] if self._is_buried else self._left()
                if not left:
                    break
                send(left, self._process.pid, signal.SIGKILL)

    def _bury(self) -> int | None:
        with self._burial:
            self._is_buried = True
            if not HAS_TABLE:  # nobody could say whether the group is empty
                send([], self._process.pid, signal.SIGKILL)
            try:
                exit_of(self._process.pid)  # raises where a wait would wait for nobody
                return self._process.wait(_KILL_PATIENCE)
            except ChildProcessError:
                self._process.returncode = 0  # Popen would invent the same; we do not pass it on
            except subprocess.TimeoutExpired:
                _log.warning("process %d does not die of SIGKILL; it is left to the system", self._process.pid)
            return None

    def close(self) -> None:
        """Free every file descriptor; again is fine."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        if self._selector is not None:
            self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def disown(self) -> None:
        """In a forked child: the command is the parent's; an inherited end of its input would keep it reading."""
        self.close()
        self._process.returncode = 0  # so that Popen does not look after it either


@attrs.frozen(eq=False)
class _Reading:
    """One output pipe of a command, and where its bytes go."""

    command: RunningCommand
    pipe: IO[bytes]
    kept: HeadAndTail

    def move(self) -> None:
        try:
            data = os.read(self.pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return
        if data:
            self.kept.feed(data)
        else:
            self.command.close_pipe(self.pipe)


@attrs.define(eq=False)
class _Writing:
    """The input pipe of a command, and what is still to be written."""

    command: RunningCommand
    pipe: IO[bytes]
    data: bytes
    _done: int = attrs.field(default=0, init=False)

    def move(self) -> None:
        try:
            self._done += os.write(self.pipe.fileno(), memoryview(self.data)[self._done : self._done + _CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to read on
            self._done = len(self.data)
        if self._done >= len(self.data):
            self.command.close_pipe(self.pipe)


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)
