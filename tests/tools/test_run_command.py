"""Real child processes: killed whole, read in bounded memory, never waited for in vain."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_agent.errors import ConfigError
from llm_agent.messages import ToolRequest
from llm_agent.process_table import HAS_TABLE, row_of
from llm_agent.testing.tools import call_context
from llm_agent.tools import Toolbox
from llm_agent.tools.process import CommandResult, run_command

pytestmark = pytest.mark.skipif(not HAS_TABLE, reason="survivors are looked up in /proc")

# What is not ended in time here is not ended at all: the commands would take a minute.
SOON = 5.0


def alive_with(token: str) -> list[int]:
    """Living processes that have *token* in their environment or their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        row = row_of(int(name))
        if row is None or not row.is_alive or row.pid == os.getpid():
            continue
        try:
            text = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if token.encode() in text:
            found.append(row.pid)
    return found


@pytest.fixture
def token() -> Iterator[str]:
    """A word that marks processes of this test; nothing that carries it survives."""
    word = uuid.uuid4().hex
    yield word
    assert alive_with(word) == []


def shell(script: str, token: str, **options: Any) -> CommandResult:
    return run_command(script, shell=True, env={**os.environ, "TOKEN_OF_TEST": token}, **options)


@pytest.fixture
def gate(tmp_path: Path) -> str:
    """A named pipe, quoted for a shell: whoever writes to it waits for a reader."""
    os.mkfifo(tmp_path / "gate")
    return shlex.quote(str(tmp_path / "gate"))


def set_when_written(gate: str) -> threading.Event:
    """An event that is set, from another thread, once the command has written to the gate."""
    event = threading.Event()

    def wait() -> None:
        Path(gate.strip("'")).read_bytes()
        event.set()

    threading.Thread(target=wait, daemon=True).start()
    return event


# -- plain commands ------------------------------------------------------------------------------


def test_a_command_runs_without_a_shell() -> None:
    """Arguments are passed as they are."""
    result = run_command(["printf", "%s|", "a b", "$HOME", "*"])

    assert result.output == "a b|$HOME|*|"
    assert result.ok
    assert result.returncode == 0


def test_a_shell_is_used_when_asked_for() -> None:
    """Its exit code is the command's."""
    result = run_command("echo $((1 + 1)); exit 3", shell=True)

    assert (result.output, result.returncode, result.ok) == ("2\n", 3, False)


def test_standard_error_is_mixed_in_or_kept_apart() -> None:
    """Mixed, the order is the order of writing."""
    script = "echo one; echo two >&2; echo three"

    assert run_command(script, shell=True).output == "one\ntwo\nthree\n"
    apart = run_command(script, shell=True, merge_stderr=False)
    assert (apart.output, apart.stderr) == ("one\nthree\n", "two\n")


def test_folder_and_environment_are_the_given_ones(tmp_path: Path) -> None:
    """The environment is replaced as a whole, but for the mark."""
    result = run_command(["/usr/bin/env"], cwd=tmp_path, env={"ONLY": "this"})

    assert sorted(line.split("=")[0] for line in result.output.splitlines()) == ["LLM_AGENT_COMMAND_ID", "ONLY"]
    assert run_command(["pwd"], cwd=tmp_path).output == f"{tmp_path.resolve()}\n"


def test_input_larger_than_a_pipe_is_written_while_output_is_read() -> None:
    """Neither side waits for the other."""
    text = "0123456789" * 100_000

    result = run_command(["cat"], input=text, max_output=2_000_000, timeout=30)

    assert result.output == text
    assert result.dropped_bytes == 0


def test_a_command_that_does_not_read_its_input_is_no_error() -> None:
    """The rest is dropped."""
    assert run_command(["head", "-c", "3"], input=b"x" * 1_000_000, timeout=30).output == "xxx"


def test_without_input_there_is_none() -> None:
    """A command that asks gets the end of the file, never the terminal."""
    assert run_command(["cat"], timeout=30).output == ""


def test_binary_output_is_replaced() -> None:
    """What is no text does not raise."""
    assert run_command(["printf", r"a\377\000b"]).output == "a\ufffd\x00b"


def test_a_huge_line_is_cut_in_the_middle() -> None:
    """Head, tail and an exact count."""
    result = run_command("head -c 1000000 /dev/zero | tr '\\0' x; echo end", shell=True, max_output=1_000, timeout=30)

    assert result.dropped_bytes == 1_000_004 - 1_000
    assert result.output.startswith("x" * 500 + "\n[... 999004 bytes left out ...]\n")
    assert result.output.endswith("xend\n")


def test_endless_output_takes_bounded_memory(token: str) -> None:
    """200 MB pass through; the command is not held up, and the process does not grow by more than a few."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = shell("yes | head -c 200M", token, timeout=60)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert result.returncode == 0
    assert result.dropped_bytes == 200 * 1024 * 1024 - 65_536
    assert grown_kib < 20_000


# -- what cannot be started -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "kind", "name"),
    [
        (["no-such-program-here"], FileNotFoundError, "no-such-program-here"),
        (["/"], PermissionError, "'/'"),
        (["/etc/hostname-not-there"], FileNotFoundError, "/etc/hostname-not-there"),
    ],
)
def test_a_command_that_cannot_be_run_is_named(command: list[str], kind: type[OSError], name: str) -> None:
    """The exception's type says what is wrong, its text with what."""
    with pytest.raises(kind, match=name):
        run_command(command)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    """It is not mistaken for the command."""
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(FileNotFoundError, match=r"working directory.*nowhere"):
        run_command(["true"], cwd=tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError, match=r"working directory.*file"):
        run_command(["true"], cwd=file)


@pytest.mark.parametrize(
    ("command", "options", "word"),
    [
        ("ls -l", {}, "shell=True"),
        (["ls"], {"shell": True}, "one text"),
        ([], {}, "list"),
        ([5], {}, "parts"),
        (b"ls", {}, "list"),
        (["a\0b"], {}, "null"),
        (["true"], {"timeout": 0}, "timeout"),
        (["true"], {"timeout": -1}, "timeout"),
        (["true"], {"max_output": -1}, "max_output"),
        (["true"], {"grace": -1}, "grace"),
    ],
)
def test_arguments_that_cannot_work_are_refused(command: Any, options: dict[str, Any], word: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match=word):
        run_command(command, **options)


# -- killed whole ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "background",
    [
        "sleep 60 &",
        "sleep 60 </dev/null >/dev/null 2>&1 &",
        "setsid sleep 60 &",
        "setsid sleep 60 </dev/null >/dev/null 2>&1 &",
        "(setsid sleep 60 &);",
        "setsid sh -c 'setsid sleep 60 & sleep 60' &",
        "nohup sleep 60 >/dev/null 2>&1 &",
    ],
)
def test_what_is_left_in_the_background_holds_nobody_up(background: str, token: str) -> None:
    """The result is there as soon as the command has exited, and nothing of it survives."""
    started = time.monotonic()

    result = shell(f"{background} echo done", token)

    assert result.output == "done\n"
    assert result.returncode == 0
    assert not result.timed_out
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60",
        "sleep 60 & wait",
        "sleep 60 | sleep 60",
        "setsid sleep 60 & sleep 60",
        "trap '' TERM; sleep 60 & wait; sleep 60",
        "yes",
    ],
)
def test_a_timeout_ends_everything(script: str, token: str) -> None:
    """Soon after the deadline, and with the word `timed_out`."""
    result = shell(script, token, timeout=0.3)

    assert result.timed_out
    assert not result.cancelled
    assert not result.ok
    assert 0.3 <= result.duration_s < SOON


def test_what_was_written_before_the_timeout_is_kept(token: str) -> None:
    """Also by a pipe that somebody still holds."""
    assert shell("echo early; sleep 60 & sleep 60", token, timeout=0.5).output == "early\n"


def test_a_cancel_from_another_thread_ends_everything(gate: str, token: str) -> None:
    """A grandchild in a session of its own included."""
    cancelled = set_when_written(gate)

    result = shell(f"setsid sh -c 'echo > {gate}; sleep 60' & sleep 60", token, cancelled=cancelled, timeout=60)

    assert result.cancelled
    assert not result.timed_out
    assert result.duration_s < SOON


def test_the_current_call_cancels_its_command(gate: str, token: str) -> None:
    """What the engine sets at its deadline is seen without being passed."""
    with call_context(cancelled=set_when_written(gate)):
        result = shell(f"echo > {gate}; sleep 60", token, timeout=60)

    assert result.cancelled
    assert result.returncode == -15


def test_a_cancelled_call_starts_nothing(tmp_path: Path) -> None:
    """The command is never begun."""
    cancelled = threading.Event()
    cancelled.set()

    result = run_command(["touch", str(tmp_path / "made")], cancelled=cancelled)

    assert (result.cancelled, result.returncode) == (True, None)
    assert list(tmp_path.iterdir()) == []


def test_a_command_may_put_itself_in_order(gate: str, token: str) -> None:
    """SIGTERM first: what it says and returns then is in the result."""
    cancelled = set_when_written(gate)

    script = f"trap 'echo bye; exit 5' TERM; echo > {gate}; while :; do sleep 0.01; done"
    result = shell(script, token, cancelled=cancelled, grace=SOON, timeout=60)

    assert result.output.endswith("bye\n")  # a shell may say first what became of its `sleep`
    assert result.returncode == 5


def test_a_command_that_ignores_sigterm_is_killed(gate: str, token: str) -> None:
    """After the grace, with what it started."""
    cancelled = set_when_written(gate)

    script = f"trap '' TERM; setsid sleep 60 & echo > {gate}; while :; do sleep 1; done"
    result = shell(script, token, cancelled=cancelled, grace=0.05, timeout=60)

    assert result.returncode == -9
    assert result.duration_s < SOON


def test_a_child_without_environment_is_found_by_its_parent(gate: str) -> None:
    """It left the group and lost the mark, but not its parent."""
    nap = f"60.{uuid.uuid4().int % 10**12:012d}"
    cancelled = set_when_written(gate)

    script = f"setsid -w env -i sh -c 'echo > {gate}; sleep {nap}; :'"
    result = run_command(script, shell=True, cancelled=cancelled, timeout=60)

    assert result.cancelled
    assert alive_with(nap) == []


def test_an_orphan_without_environment_is_found_by_its_session() -> None:
    """It left the group, lost its parent and the mark, but not the session."""
    nap = f"60.{uuid.uuid4().int % 10**12:012d}"
    leave = f"import os; os.setpgrp(); os.execve('/bin/sleep', ['sleep', '{nap}'], {{}})"

    result = run_command(f'{sys.executable} -c "{leave}" & echo done', shell=True, timeout=60)

    assert result.output == "done\n"
    assert alive_with(nap) == []


def test_commands_within_commands_carry_both_marks() -> None:
    """Whoever kills the outer one finds what the inner one left."""
    script = "from llm_agent.tools.process import run_command; print(run_command(['env']).output)"

    result = run_command([sys.executable, "-c", script], timeout=60)

    marks = next(line for line in result.output.splitlines() if line.startswith("LLM_AGENT_COMMAND_ID="))
    assert len(marks.partition("=")[2].split(":")) == 2


# -- nothing is left ------------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def zombies() -> list[int]:
    rows = [row_of(int(name)) for name in filter(str.isdigit, os.listdir("/proc"))]
    return [row.pid for row in rows if row is not None and row.parent == os.getpid() and not row.is_alive]


def test_no_zombie_and_no_descriptor_is_left(token: str) -> None:
    """However the command ended."""
    before = open_descriptors()

    shell("echo x", token, merge_stderr=False, input="y")
    shell("sleep 60 & echo x", token)
    shell("sleep 60", token, timeout=0.1)
    with pytest.raises(FileNotFoundError):
        run_command(["no-such-program-here"], input="x")

    assert open_descriptors() == before
    assert zombies() == []


def test_many_commands_run_at_once(token: str) -> None:
    """Each on its own thread, none mistaking another's output or children."""
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = shell(f"sleep 60 & echo {number}", token, timeout=60).output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert results == {number: f"{number}\n" for number in range(12)}


def test_many_open_descriptors_do_not_matter() -> None:
    """Beyond the 1024 that select() can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip("this system allows fewer than 2048 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    null = os.open(os.devnull, os.O_RDONLY)
    copies = [os.dup(null) for _ in range(1_100)]
    try:
        assert run_command(["cat"], input="x", timeout=30).output == "x"
    finally:
        for descriptor in (*copies, null):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def python(script: str, *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "TOKEN_OF_TEST": token},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("child", ["sleep 60", "trap '' TERM; sleep 60; sleep 60", "setsid sleep 60 & sleep 60"])
def test_interpreter_exit_kills_running_commands(child: str, gate: str, token: str) -> None:
    """The end of the main thread is the end of every command, without waiting for any."""
    script = """
import sys, threading, time
from llm_agent.tools.process import run_command
gate, child = sys.argv[1:]
threading.Thread(target=run_command, args=[f"echo > {gate}; {child}"], kwargs={"shell": True}, daemon=True).start()
open(gate).read()
"""

    done = python(script, gate.strip("'"), child, token=token)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_cannot_be_started_while_the_interpreter_exits() -> None:
    """It would be left behind."""
    script = """
import atexit
@atexit.register
def late():
    try:
        run_command(["true"])
    except RuntimeError as error:
        print(error)
from llm_agent.tools.process import run_command
"""

    assert "exiting" in python(script).stdout


def test_a_forked_child_does_not_hold_the_parents_pipes(tmp_path: Path) -> None:
    """The command sees the end of its input although a fork has inherited the other end."""
    script = """
import os, sys, threading
from llm_agent.tools.process import run_command
ready, go = sys.argv[1:]
results = []
command = f"echo > {ready}; read x < {go}; cat | wc -c"
work = lambda: results.append(run_command(command, shell=True, input="x" * 1_000_000, timeout=10))
thread = threading.Thread(target=work)
thread.start()
open(ready).read()
hold, release = os.pipe()
child = os.fork()
if child == 0:
    os.close(release)
    os.read(hold, 1)
    os._exit(0)
os.close(hold)
print("go", file=open(go, "w"))
thread.join()
print(results[0].output.strip(), results[0].timed_out)
os.close(release)
os.waitpid(child, 0)
"""
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)

    done = python(script, str(tmp_path / "ready"), str(tmp_path / "go"))

    assert done.stdout == "1000000 False\n", done.stderr


def test_a_process_that_has_others_bury_its_children_is_told_so() -> None:
    """The exit code is unknown then, not invented; output and end are as ever."""
    script = """
import signal
from llm_agent.tools.process import run_command
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
result = run_command("sleep 60 & echo x; exit 3", shell=True, timeout=20)
print(result.returncode, result.output.strip(), result.timed_out)
"""

    done = python(script)

    assert (done.stdout, done.stderr) == ("None x False\n", "")


def test_an_exception_on_the_calling_thread_kills_the_command(gate: str, token: str) -> None:
    """Ctrl-C in the main thread leaves nothing behind."""
    script = """
import os, signal, sys, threading
from llm_agent.tools.process import run_command
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
gate = sys.argv[1]
def interrupt():
    open(gate).read()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    run_command(f"echo > {gate}; sleep 60", shell=True)
except KeyboardInterrupt:
    print("interrupted")
"""

    done = python(script, gate.strip("'"), token=token)

    assert done.stdout == "interrupted\n"


def test_a_result_tells_its_fields_as_a_dict() -> None:
    """Kebab-case, as everywhere."""
    fields = CommandResult(returncode=0, output="x").to_dict()

    assert fields["output"] == "x"
    assert fields["timed-out"] is False
    assert fields["dropped-bytes"] == 0


def test_a_command_as_a_tool_is_json() -> None:
    """A function may return the result as it is, and what could not be started is an error answer."""

    def run(program: str) -> CommandResult:
        return run_command([program])

    done, failed = Toolbox([run]).execute_tool_calls(
        [ToolRequest("a", "run", {"program": "true"}), ToolRequest("b", "run", {"program": "no-such-program-here"})]
    )

    assert '"returncode":0' in done.content
    assert failed.is_error
    assert failed.content.startswith("FileNotFoundError: ")
