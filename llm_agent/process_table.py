"""Who belongs to a command or a server: its process group, its session, its descendants, who carries its mark.

A process can leave its group and its session (`setsid`), and loses its parent when that ends;
what it hardly loses is its environment. So every command gets a mark in there, and the kernel's
process table is searched for it. Only Linux has that table as files; elsewhere the answer is
the group alone. Nothing here waits.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator, Mapping
from stat import S_IWUSR
from typing import Final

import attrs

# The variable that carries the marks, outermost command first: a command may run commands.
MARK_VARIABLE: Final = "LLM_AGENT_COMMAND_ID"

HAS_TABLE: Final = os.path.exists("/proc/self/stat")
# How often a kill without waiting looks for processes that were forked under its hands.
KILL_ROUNDS: Final = 5
_DEAD_STATES: Final = frozenset("ZXx")


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the environment of a child that is to carry *mark*."""
    # Inside another command, its mark stays: whoever kills that one must find ours too.
    outer = os.environ.get(MARK_VARIABLE)
    return {**environment, MARK_VARIABLE: mark if outer is None else f"{outer}:{mark}"}


@attrs.frozen
class ProcessRow:
    """One line of the process table."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    """Clock ticks after boot: with the pid, the identity of a process."""
    is_alive: bool
    """Not a zombie, which nobody can kill and only its parent can bury."""


def row_of(pid: int) -> ProcessRow | None:
    """Return a process's line; `None` when it is gone, or there is no table."""
    try:
        stat = _content(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets too. Source: proc_pid_stat(5).
    fields = stat[stat.rindex(b")") + 2 :].split()
    state = fields[0].decode()
    return ProcessRow(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), state not in _DEAD_STATES)


def leader_of(pid: int) -> ProcessRow:
    """Return the line of a child that leads its group and its session."""
    # Without one (no table, or somebody has waited for it already): what is known anyway.
    return row_of(pid) or ProcessRow(pid, os.getpid(), pid, pid, 0, True)


def exit_of(pid: int) -> os.waitid_result | None:
    """Return how a child has ended, `None` while it runs; it is not waited for, so its pid stays ours.

    Raises:
        ChildProcessError: somebody has waited for it, such as a SIGCHLD handler of this process's.
    """
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def pidfd_of(pid: int) -> int:
    """Return a descriptor that becomes readable at a child's exit; -1 where there is none to be had."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or somebody has waited for it already
        return -1


def signal_name(number: int) -> str:
    """Return a signal's name; real-time ones have none but their number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # a hundred files a search: no buffer, no Path
        return file.readall()


def _rows() -> Iterator[ProcessRow]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (row := row_of(int(name))) is not None and row.is_alive:
            yield row


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in _content(f"/proc/{pid}/environ")
    except OSError:  # gone, or another user's
        return False


def family(leader: ProcessRow, mark: str) -> list[ProcessRow]:
    """Return the living processes of a command, its leader included.

    Args:
        leader: the command's first process: it leads its group and its session. It may be dead,
            but must not have been waited for: until then nobody else gets its pid.
        mark: the command's own mark.

    A process that left the session, lost its parent and cleared its environment is not found.
    """
    # What is older than the command cannot be of it: most of the table is not searched.
    rows = [row for row in _rows() if row.started >= leader.started and row.pid != os.getpid()]
    sought = mark.encode()
    found = {
        row.pid: row
        for row in rows
        if leader.pid in (row.pid, row.group, row.session, row.parent) or _carries(row.pid, sought)
    }
    while children := [row for row in rows if row.parent in found and row.pid not in found]:
        found.update({row.pid: row for row in children})
    return list(found.values())


def writers(pipes: Collection[int], leader: ProcessRow) -> list[ProcessRow]:
    """Return the living processes, no older than the leader, that can write into one of these pipes.

    Who cleared its environment, too, is found by the output that it keeps open.

    Args:
        pipes: their inode numbers.
    """
    names = {f"pipe:[{pipe}]" for pipe in pipes}
    rows = [row for row in _rows() if row.started >= leader.started and row.pid != os.getpid()]
    return [row for row in rows if names & set(_written_by(row.pid))]


def _written_by(pid: int) -> Iterator[str]:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{name}"
            # The permissions of the link are those of the descriptor. Source: proc_pid_fd(5).
            if os.lstat(link).st_mode & S_IWUSR:
                yield os.readlink(link)
    except OSError:  # gone, or another user's
        return


def kill_marked(mark: str) -> None:
    """Kill every process that carries *mark*, where nothing else is known of the command. Never raises."""
    nobody = ProcessRow(pid=-1, parent=-1, group=-1, session=-1, started=0, is_alive=False)
    for _ in range(KILL_ROUNDS if HAS_TABLE else 0):
        rows = family(nobody, mark)
        if not rows:
            break
        for row in rows:
            _send_to(row, signal.SIGKILL)


def send(rows: list[ProcessRow], leader: int, number: signal.Signals) -> None:
    """Signal the leader's group as a whole, and every one of *rows* outside of it. Never raises."""
    try:
        os.killpg(leader, number)
    except OSError:  # nobody left in it, or nobody that is ours to signal
        pass
    for row in rows:
        if row.group != leader:
            _send_to(row, number)


def _send_to(row: ProcessRow, number: signal.Signals) -> None:
    present = row_of(row.pid)
    if present is None or present.started != row.started:  # its pid may be somebody else's by now
        return
    try:
        os.kill(row.pid, number)
    except OSError:
        pass
