"""A tool server as a child process: its pipes, its last words, and an end that nobody can refuse.

It leads a process group of its own, and whatever it starts can be told by a mark; all of that is
killed. The first process is buried last, so that its number, which names the group, cannot become
somebody else's while signals are sent. The messages in its pipes do not live here (`stdio`), nor
does the asynchronous waiting for them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from llm_agent.child_processes import Children, InterpreterExiting, why_not_started
from llm_agent.errors import McpError
from llm_agent.process_table import (
    HAS_TABLE,
    KILL_ROUNDS,
    exit_of,
    family,
    leader_of,
    marked,
    pidfd_of,
    send,
    signal_name,
)

# What a server inherits of our environment: enough to find programs and to write in the user's
# language, and no secret.
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")

# How much is kept of what a server writes to standard error: the last lines, each cut.
_KEPT_LINES: Final = 50
_KEPT_LINE_BYTES: Final = 1_000
# How much of that an error quotes, and a model reads.
_QUOTED_CHARACTERS: Final = 2_000
# How long a killed process may take to be gone, in seconds; only one stuck in the kernel needs more.
KILL_PATIENCE: Final = 1.0
# How long servers may take to follow a SIGTERM at interpreter exit, all together, in seconds.
_EXIT_GRACE: Final = 0.25
# The pause between two looks at a process that was killed, in seconds.
_LOOK: Final = 0.005


class LastWords:
    """The end of a stream of lines, in bounded memory. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._open = b""

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._open + data).split(b"\n")
        self._lines.extend(line[:_KEPT_LINE_BYTES] for line in whole[-_KEPT_LINES:])
        self._open = rest[:_KEPT_LINE_BYTES]

    @property
    def excerpt(self) -> str:
        """The end of the end: what an error quotes."""
        return self.text[-_QUOTED_CHARACTERS:]

    @property
    def text(self) -> str:
        lines = [*self._lines.copy(), *([self._open] if self._open else [])]
        return b"\n".join(lines[-_KEPT_LINES:]).decode("utf-8", "replace").strip()


class ServerProcess:
    """A started server. Signals and the burial from any thread; its pipes belong to the portal's."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | os.PathLike[str] | None
    ) -> None:
        """Start *command*.

        Raises:
            McpError: it was not found or cannot be executed, or *cwd* is no folder.
        """
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._mark = uuid.uuid4().hex
        # Guards the burial: no signal is sent to a number that is not ours any more. Re-entrant,
        # because a signal handler may close the server while its own thread is in here.
        self._burial = threading.RLock()
        self._is_buried = False
        self._returncode: int | None = None
        self.last_words = LastWords()
        self._child = _spawn(command, marked({**inherited, **(env or {})}, self._mark), cwd)
        self.pid = self._child.pid
        self._leader = leader_of(self.pid)
        self.pidfd = pidfd_of(self.pid)

    def pipes(self) -> tuple[int, int, int]:
        """The descriptors of its standard input, output and error, none of which blocks."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        numbers = (child.stdin.fileno(), child.stdout.fileno(), child.stderr.fileno())
        for number in numbers:
            os.set_blocking(number, False)
        return numbers

    def close_input(self) -> None:
        """Let the server read the end of its input: the polite way to ask it to go."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    @property
    def has_exited(self) -> bool:
        """Whether the first process is over; it is not waited for, so its number stays ours."""
        if self._is_buried:
            return True
        try:
            return exit_of(self.pid) is not None
        except ChildProcessError:  # buried in this instant, or by somebody else
            return True

    @property
    def status(self) -> str:
        """How it ended, as far as that is known: `exit status 3`, `killed by SIGKILL`."""
        code = self._returncode
        if not self._is_buried:
            try:
                seen = exit_of(self.pid)
            except ChildProcessError:
                return "its exit status is not known"
            if seen is None:
                return "it still runs"
            code = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
        if code is None:
            return "its exit status is not known"
        return f"exit status {code}" if code >= 0 else f"killed by {signal_name(-code)}"

    def signal_group(self, number: signal.Signals) -> None:
        """Signal whoever is in the group. Any thread; never raises."""
        with self._burial:
            if not self._is_buried:
                send([], self.pid, number)

    def bury(self) -> bool:
        """Kill what is left behind by a server that has exited, and wait for it; True when it is done.

        Any thread; never waits, never raises; again is fine.
        """
        with self._burial:
            if self._is_buried:
                return True
            if not self.has_exited:
                return False
            self._kill_the_rest()
            try:
                exit_of(self.pid)
                self._returncode = self._child.wait()
            except ChildProcessError:  # somebody else has waited for it: Popen would invent a status
                self._child.returncode = 0
            self._is_buried = True
        _SERVERS.strike(self)
        return True

    def _kill_the_rest(self) -> None:
        """Kill the group, and whoever has left it; looks again for who was forked meanwhile."""
        send([], self.pid, signal.SIGKILL)
        for _ in range(KILL_ROUNDS if HAS_TABLE else 0):
            left = family(self._leader, self._mark)
            if not left:
                break
            send(left, self.pid, signal.SIGKILL)

    def kill(self, patience: float = KILL_PATIENCE) -> None:
        """Kill all of it, and wait up to *patience* seconds for the burial. Any thread; never raises."""
        self.signal_group(signal.SIGKILL)
        give_up = monotonic() + patience
        pause = threading.Event()
        while not self.bury() and monotonic() < give_up:
            pause.wait(_LOOK)

    def close_pipes(self) -> None:
        """Free the descriptors; for the thread that uses them, when it is done with them."""
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def disown(self) -> None:
        """In a forked child: an inherited end of the server's input would keep it reading."""
        self.close_pipes()
        self._child.returncode = 0  # so that Popen does not look after it either
        self._is_buried = True


def _spawn(
    command: Sequence[str], env: Mapping[str, str], cwd: str | os.PathLike[str] | None
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
    except OSError as problem:
        raise McpError(why_not_started(problem, command[0], cwd)) from problem


def _end(servers: Sequence[ServerProcess]) -> None:
    """At interpreter exit: SIGTERM, a moment, SIGKILL."""
    for server in servers:
        server.signal_group(signal.SIGTERM)
    give_up = monotonic() + _EXIT_GRACE
    pause = threading.Event()
    while not all(server.bury() for server in servers) and monotonic() < give_up:
        pause.wait(_LOOK)
    for server in servers:
        server.kill(_EXIT_GRACE)


_SERVERS: Final = Children("server", _end)


def start_server(
    command: Sequence[str], env: Mapping[str, str] | None, cwd: str | os.PathLike[str] | None
) -> ServerProcess:
    """Start a server that the exit of this process ends.

    Raises:
        McpError: it was not found or cannot be executed, *cwd* is no folder, or the interpreter is exiting.
    """
    try:
        return _SERVERS.start(lambda: ServerProcess(command, env, cwd))
    except InterpreterExiting as problem:
        raise McpError(str(problem)) from None
