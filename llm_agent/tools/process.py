"""A child process that can be killed whole: `run_command`.

The law: when `run_command` returns, nothing of the command is left in the process table, with
whatever it started in the background, however it ended; and no descendant that holds a pipe,
is silent, or left the process group can hold up the return. Whatever must outlive the call is
not a command for this room.

How a command ends: its own exit, the timeout, or a cancel. Then what is left gets SIGTERM,
a short grace, and SIGKILL; `running_command` does that, this room starts commands and knows
which ones run.
"""

from __future__ import annotations

import os
import subprocess
import threading
import uuid
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

import attrs

from llm_agent.call_context import current_call
from llm_agent.child_processes import Children, why_not_started
from llm_agent.errors import ConfigError
from llm_agent.process_table import kill_marked, marked
from llm_agent.tools.output import HeadAndTail
from llm_agent.tools.running_command import RunningCommand


@attrs.frozen(kw_only=True)
class CommandResult:
    """How a command ended, and what it wrote."""

    returncode: int | None
    """Negative: the signal that ended it. `None`: never started, or somebody else in this process waited for it."""
    output: str = ""
    """Standard output, with standard error in it unless they were kept apart."""
    stderr: str = ""
    """Standard error, when kept apart."""
    dropped_bytes: int = 0
    """Bytes of `output` that were left out of its middle."""
    dropped_stderr_bytes: int = 0
    timed_out: bool = False
    cancelled: bool = False
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with 0."""
        return self.returncode == 0 and not self.timed_out and not self.cancelled

    def to_dict(self) -> dict[str, Any]:
        """Every field, kebab-case."""
        return {name.replace("_", "-"): value for name, value in attrs.asdict(self).items()}


def run_command(
    command: Sequence[str | os.PathLike[str]] | str,
    *,
    shell: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: str | bytes | None = None,
    timeout: float | None = None,
    cancelled: threading.Event | None = None,
    max_output: int = 65_536,
    merge_stderr: bool = True,
    grace: float = 0.15,
) -> CommandResult:
    """Run a command to its end, and leave nothing of it behind.

    Args:
        command: the program and its arguments; with `shell=True` one text for `/bin/sh`.
        env: the child's whole environment (a mark is added); this process's by default, with
            whatever secrets are in there.
        input: what the command reads from standard input; nothing by default, never the terminal.
        timeout: seconds until it is killed; the result then says `timed_out`.
        cancelled: kills it when set, beside `current_call().cancelled`, which the engine sets on
            cancel, at the call's deadline and on abandonment. Give a shorter `timeout` to have a
            result before the engine's own deadline: after it nobody reads one.
        max_output: bytes kept of each stream, half of the beginning and half of the end; the
            command itself is never held up by what is dropped.
        merge_stderr: False keeps standard error apart.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        How it ended. What it left in the background is killed; output of that is awaited for
        0.1 s at most.

    Raises:
        ConfigError: an argument that cannot work.
        OSError: the command was not found or cannot be executed, or `cwd` is no folder: the
            subclass that fits (`FileNotFoundError`, `PermissionError`, `NotADirectoryError`), with the
            name in its text.
        RuntimeError: the interpreter is exiting.

    Threads: any number at the same time. A cancel is seen within 0.05 s. At interpreter exit every
    command is killed at once; by SIGKILL of this process, none. After a fork the commands are the parent's.
    """
    arguments = _checked_command(command, shell)
    _check_numbers(timeout, max_output, grace)
    unwanted = _events(cancelled)
    if any(event.is_set() for event in unwanted):
        return CommandResult(returncode=None, cancelled=True)
    mark = uuid.uuid4().hex
    options: dict[str, Any] = {
        "shell": shell,
        "cwd": cwd,
        "env": marked(os.environ if env is None else env, mark),
        "stdin": subprocess.DEVNULL if input is None else subprocess.PIPE,
        "stderr": subprocess.STDOUT if merge_stderr else subprocess.PIPE,
    }
    data = input.encode("utf-8", "replace") if isinstance(input, str) else input or b""
    try:
        running = _COMMANDS.start(lambda: RunningCommand(_spawn(arguments, options), mark, grace))
        return _ran(running, data, timeout, unwanted, max_output)
    except BaseException:  # Ctrl-C at any moment of it: Popen, too, forgets a child that it was making
        kill_marked(mark)
        raise


def _ran(
    running: RunningCommand, input: bytes, timeout: float | None, unwanted: tuple[threading.Event, ...], max_output: int
) -> CommandResult:
    output, errors = HeadAndTail(max_output), HeadAndTail(max_output)
    started = monotonic()
    deadline = None if timeout is None else started + timeout
    try:
        end, returncode = running.run(input=input, deadline=deadline, unwanted=unwanted, output=output, errors=errors)
    finally:
        _COMMANDS.strike(running)
    text, dropped = output.finish()
    stderr, dropped_stderr = errors.finish()
    return CommandResult(
        returncode=returncode,
        output=text,
        stderr=stderr,
        dropped_bytes=dropped,
        dropped_stderr_bytes=dropped_stderr,
        timed_out=end == "timeout",
        cancelled=end == "cancel",
        duration_s=monotonic() - started,
    )


def _checked_command(command: Any, shell: bool) -> str | list[str]:
    if isinstance(command, str):
        if not shell:
            raise ConfigError(
                f"run_command: a command is a list of a program and its arguments, got the text {command!r}; "
                "pass shell=True to have a shell read it"
            )
        return command
    if shell:
        raise ConfigError(f"run_command: with shell=True the command is one text, got {type(command).__name__}")
    if not isinstance(command, Sequence) or isinstance(command, bytes) or not command:
        raise ConfigError(f"run_command: a command is a list of a program and its arguments, got {command!r}")
    try:
        return [os.fsdecode(part) for part in command]
    except TypeError as problem:
        raise ConfigError(f"run_command: a command's parts are text or paths: {problem}") from None


def _check_numbers(timeout: float | None, max_output: int, grace: float) -> None:
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"run_command: timeout must be seconds above 0 or None, got {timeout!r}")
    if isinstance(max_output, bool) or not isinstance(max_output, int) or max_output < 0:
        raise ConfigError(f"run_command: max_output must be a number of bytes, at least 0, got {max_output!r}")
    if not grace >= 0:
        raise ConfigError(f"run_command: grace must be seconds, at least 0, got {grace!r}")


def _events(cancelled: threading.Event | None) -> tuple[threading.Event, ...]:
    call = current_call()
    events = (cancelled, None if call is None else call.cancelled)
    return tuple(event for event in events if event is not None)


def _spawn(arguments: str | list[str], options: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(arguments, bufsize=0, stdout=subprocess.PIPE, start_new_session=True, **options)
    except OSError as problem:
        program = arguments if isinstance(arguments, str) else arguments[0]
        # By its number, OSError makes itself the subclass that fits.
        raise OSError(problem.errno, why_not_started(problem, program, options["cwd"])) from problem
    except ValueError as problem:  # a NUL byte somewhere
        raise ConfigError(f"run_command: {problem}") from problem


def _end(commands: Sequence[RunningCommand]) -> None:
    """At interpreter exit: at once, the groups first, for whoever they may still start."""
    for command in commands:
        command.kill_group()
    for command in commands:
        command.kill()


_COMMANDS: Final = Children("command", _end)
