"""A command in a workspace, as an answer: what it wrote, how it ended, and where the rest is.

The law: no shell stands between what was asked and what is run, memory stays bounded whatever
is written, and when the answer is there nothing of the command is left (`tools.process`). A
command is not confined: it may do whatever this process's user may.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llm_agent import notices
from llm_agent.call_context import current_call
from llm_agent.codec import error_text
from llm_agent.excerpt import excerpt
from llm_agent.messages import ToolAnswer
from llm_agent.ports import ArtifactStore
from llm_agent.process_table import signal_name
from llm_agent.tools.process import CommandResult, run_command
from llm_agent.tools.workspace.call import answer_chars
from llm_agent.tools.workspace.confinement import Root

# Bytes of output that are held in memory, and so the most an artifact has: the beginning and the end.
_KEPT_BYTES: Final = 4 << 20
_COMMAND_CHARS: Final = 200
# Seconds before the engine's own deadline at which a command is killed, so that there is an answer.
_BEFORE_DEADLINE: Final = 0.5
# What our own backends read: a model could print it.
_OUR_SECRETS: Final = frozenset({"OPENAI_API_KEY"})


@attrs.frozen(eq=False, kw_only=True)
class Commands:
    """How commands are run in one workspace. Immutable; any thread."""

    root: Root
    env: Mapping[str, str] | None
    longest: float
    """Seconds a command may take when nothing shorter is asked for."""
    artifacts: ArtifactStore | None

    def run(self, command: str, args: Sequence[str], timeout: float | None) -> ToolAnswer:
        """Run one program to its end and answer with its output.

        Raises:
            ValueError: the timeout is no number of seconds above 0, or this can be no command.
            OSError: the program cannot be started; says what to do instead.
        """
        seconds = self._seconds(timeout)
        _check(command, args)
        env = _environment() if self.env is None else self.env
        with self.root.as_working_folder() as folder:
            try:
                done = run_command([command, *args], cwd=folder, env=env, timeout=seconds, max_output=_KEPT_BYTES)
            except OSError as problem:
                raise type(problem)(_not_started(command, problem)) from problem
        facts = {"exit-status": done.returncode, "timed-out": done.timed_out, "duration-s": round(done.duration_s, 3)}
        text = self._shown(done.output)
        ending = f"[{_ending(done)}]"
        content = f"{text.removesuffix(chr(10))}\n{ending}" if text else f"[no output]\n{ending}"
        return ToolAnswer("", content, is_error=done.timed_out or done.cancelled, structured=facts)

    def _seconds(self, timeout: float | None) -> float:
        wanted = self.longest if timeout is None else timeout
        if not 0 < wanted <= self.longest:
            raise ValueError(f"timeout is a number of seconds above 0, at most {self.longest:g}; got {wanted:g}")
        call = current_call()
        left = None if call is None else call.deadline
        return wanted if left is None else min(wanted, max(left / 2, left - _BEFORE_DEADLINE))

    def _shown(self, output: str) -> str:
        """The output, or its two ends with the whole of it in an artifact."""
        cut = excerpt(output, answer_chars())
        if cut is None:
            return output
        start = len(cut.head)
        places = {"elided": cut.elided, "start": start, "end": start + cut.elided}
        if self.artifacts is None:
            return cut.joined(f"[... characters {start} to {start + cut.elided} are left out; print less ...]")
        call = current_call()
        name = f"run-{uuid.uuid4().hex if call is None else call.id}"
        try:
            kept = self.artifacts.write(name, output)
        except Exception as problem:  # a shield: the command has run, its answer is not lost over a store
            why = error_text(problem)
            return cut.joined(f"[... characters {start} to {start + cut.elided} are left out, not kept: {why} ...]")
        marker = notices.EXCERPT_STORED.format(bytes=kept.bytes, file=kept.file, digest=kept.digest, **places)
        return cut.joined(marker)


def _check(command: str, args: Sequence[str]) -> None:
    if not command.strip():
        raise ValueError("command is empty; give the program to run")
    if any("\0" in text for text in (command, *args)):
        raise ValueError("command and args cannot have NUL characters")


def _not_started(command: str, problem: OSError) -> str:
    shown = repr(command if len(command) <= _COMMAND_CHARS else f"{command[:_COMMAND_CHARS]}[...]")
    match problem.errno:
        case errno.ENOENT if len(command.split()) > 1:
            return (
                f"there is no program {shown}; give the program alone as command, and each of its arguments "
                "as one item of args"
            )
        case errno.ENOENT:
            return (
                f"there is no program {shown}; a file of the workspace is run as ./name, "
                "and a command of the shell by sh with the args -c and the line"
            )
        case errno.EACCES:
            return f"{shown} is no file that can be executed; a script can be given to its interpreter, as args"
        case errno.ENOEXEC:
            return f"{shown} is no program, or a script without #!; give its interpreter as command"
        case errno.E2BIG:
            return "args are too long for a command; put the text into a file and give its name"
    return str(problem)


def _ending(done: CommandResult) -> str:
    if done.timed_out:
        return f"killed after {done.duration_s:.1f} s, with all it had started: its time was over"
    if done.cancelled:
        return "killed, with all it had started: the call was cancelled"
    if done.returncode is None:
        return "it has ended; its exit status is not known"
    if done.returncode < 0:
        return f"it was ended by {signal_name(-done.returncode)}"
    return f"exit status {done.returncode}"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OUR_SECRETS}
