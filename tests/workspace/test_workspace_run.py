"""`run`: no shell, bounded output, and nothing left of a command when the answer is there."""

from __future__ import annotations

import os
import resource
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_agent import ArtifactFolder
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.process_table import HAS_TABLE, row_of
from llm_agent.testing.tools import call_context
from llm_agent.tools import Workspace

pytestmark = pytest.mark.skipif(not HAS_TABLE, reason="survivors are looked up in /proc")


def alive_with(token: str) -> list[int]:
    """Living processes that have *token* in their environment or their command line."""
    alive = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        row = row_of(int(name))
        if row is None or not row.is_alive or row.pid == os.getpid():
            continue
        try:
            text = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if token.encode() in text:
            alive.append(row.pid)
    return alive


@pytest.fixture
def token() -> str:
    """A word of one test's own."""
    return uuid.uuid4().hex


@pytest.fixture
def workspace(tmp_path: Path, token: str) -> Iterator[Workspace]:
    """Commands of this one carry the word; nothing that carries it survives a test."""
    yield Workspace(tmp_path, run=True, env={**os.environ, "TOKEN_OF_TEST": token})
    assert alive_with(token) == []


def answered(workspace: Workspace, command: str, *args: str, **more: Any) -> ToolAnswer:
    request = ToolRequest("call-1", "run", {"command": command, "args": list(args), **more})
    (answer,) = workspace.execute_tool_calls([request])
    return answer


def test_without_run_there_is_no_command(tmp_path: Path) -> None:
    """It has to be asked for."""
    assert Workspace(tmp_path).names == ("read", "list", "glob", "grep", "write", "edit")
    assert Workspace(tmp_path, run=True).names[-1] == "run"


def test_output_and_status_are_told(workspace: Workspace) -> None:
    """Both streams in their order, the status as text and as data; a status is no failure of the tool."""
    answer = answered(workspace, "sh", "-c", "echo out; echo err >&2; exit 3")

    assert answer.content == "out\nerr\n[exit status 3]"
    assert answer.structured is not None
    assert (answer.is_error, answer.structured["exit-status"]) == (False, 3)


def test_silence_is_said_to_be_silence(workspace: Workspace) -> None:
    """An empty answer might be taken for a mistake."""
    assert answered(workspace, "true").content == "[no output]\n[exit status 0]"


def test_a_signal_is_told_by_its_name(workspace: Workspace) -> None:
    """Who was killed did not exit."""
    assert answered(workspace, "sh", "-c", "kill -SEGV $$").content == "[no output]\n[it was ended by SIGSEGV]"


def test_no_shell_reads_the_arguments(workspace: Workspace) -> None:
    """What would be a command, a variable or a pattern to a shell is text."""
    hostile = ["$HOME", "`id`", "$(id)", "*", ";", "id", "|", "a b"]

    assert answered(workspace, "printf", "%s\\n", *hostile).content == "\n".join([*hostile, "[exit status 0]"])


def test_a_command_line_in_one_piece_is_refused_with_the_way_out(workspace: Workspace) -> None:
    """What a policy judged is what is run: nothing is split on the way."""
    answer = answered(workspace, "echo hello")

    assert answer.is_error
    assert "give the program alone as command" in str(answer.content)


@pytest.mark.parametrize(
    ("command", "args", "hint"),
    [
        ("", [], "command is empty"),
        ("python -c 'print(1)'", ["x"], "give the program alone as command"),
        ("no-such-program", [], "a file of the workspace is run as ./name"),
        ("cd", ["src"], "a command of the shell by sh with the args -c and the line"),
        ("./plain.txt", [], "a script can be given to its interpreter"),
        (".", [], "no file that can be executed"),
        ("./bare", [], "give its interpreter as command"),
        ("echo", ["x" * 300_000], "put the text into a file"),
        ("echo", ["a\0b"], "cannot have NUL"),
    ],
)
def test_what_cannot_be_started_says_the_way_out(
    tmp_path: Path, workspace: Workspace, command: str, args: list[str], hint: str
) -> None:
    """In words for a model: no number of an error, no name of ours."""
    (tmp_path / "plain.txt").write_text("text")
    (tmp_path / "bare").write_bytes(b"\0\1")
    (tmp_path / "bare").chmod(0o755)

    answer = answered(workspace, command, *args)

    assert answer.is_error
    assert hint in str(answer.content)
    assert "Errno" not in str(answer.content)


def test_the_declaration_tells_how_long_a_command_may_take(tmp_path: Path) -> None:
    """A model need not try it out."""
    (declared,) = [
        declaration["function"]
        for declaration in Workspace(tmp_path, run=True, run_timeout=90).tools_for_llm()
        if declaration["function"]["name"] == "run"
    ]

    assert "90 by default and at most" in declared["parameters"]["properties"]["timeout"]["description"]


def test_commands_run_in_the_root(workspace: Workspace) -> None:
    """Wherever this process works, and also for programs of the workspace itself."""
    script = workspace.root / "script.sh"
    script.write_text("#!/bin/sh\npwd -P\n")
    script.chmod(0o755)

    assert answered(workspace, "./script.sh").content == f"{workspace.root}\n[exit status 0]"


def test_the_key_of_the_model_is_not_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default everything else of it is."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("KEPT", "kept")

    content = answered(Workspace(tmp_path, run=True), "env").content

    assert "sk-secret" not in str(content)
    assert "KEPT=kept" in str(content)


HARD_TO_END = {
    "background": "sleep 60 & sleep 60",
    "holds the pipe": "sleep 60 & echo started",
    "own session": "setsid sleep 60 & sleep 60",
    "own session, left behind": "setsid sleep 60 & echo started",
    "flood": "yes | head -c 2G",
    "deaf to SIGTERM": "trap '' TERM; while :; do sleep 1; done",
    "children deaf to SIGTERM": "for i in 1 2 3; do sh -c \"trap '' TERM; while :; do sleep 1; done\" & done; wait",
    "own session, left behind, without its environment": "env -i setsid sh -c 'sleep 60; : {token}' & echo started",
    "double fork": "(setsid sh -c 'sleep 60 & exit' &) ; sleep 60",
}


@pytest.mark.parametrize("script", HARD_TO_END.values(), ids=HARD_TO_END.keys())
def test_nothing_of_a_command_survives_its_time(workspace: Workspace, token: str, script: str) -> None:
    """However it tries to stay: background, a pipe held open, a session of its own, a flood, a deaf ear."""
    answer = answered(workspace, "sh", "-c", script.replace("{token}", token), timeout=0.5)

    assert answer.structured is not None
    assert answer.structured["duration-s"] < 5  # they would take a minute
    if "echo started" not in script:
        assert answer.is_error
        assert "its time was over" in str(answer.content)


def test_a_cancel_kills_the_command(workspace: Workspace) -> None:
    """With all it had started."""
    cancelled = threading.Event()
    threading.Timer(0.2, cancelled.set).start()

    with call_context(cancelled=cancelled):
        answer = answered(workspace, "sh", "-c", HARD_TO_END["own session"])

    assert answer.is_error
    assert "the call was cancelled" in str(answer.content)


def test_the_deadline_of_the_call_still_leaves_an_answer(workspace: Workspace) -> None:
    """A command is killed before the engine stops waiting, so what it wrote is not lost."""
    with call_context(deadline=3.0):
        answer = answered(workspace, "sh", "-c", "echo so far; sleep 60")

    assert str(answer.content).startswith("so far\n[killed after ")


def test_a_flood_is_taken_in_bounded_memory(workspace: Workspace) -> None:
    """300 MB of output cost some MB, and its two ends are shown."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = answered(workspace, "sh", "-c", "echo first; yes | head -c 300000000; echo last")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert grown < 64_000  # KiB
    assert len(answer.content) < 16_384
    assert str(answer.content).startswith("first\n")
    assert str(answer.content).endswith("last\n[exit status 0]")


def test_long_output_is_kept_as_an_artifact(tmp_path: Path) -> None:
    """The answer names the file, and the model's own tool reads on in it."""
    store = ArtifactFolder(tmp_path / "artifacts")
    (tmp_path / "root").mkdir()
    workspace = Workspace(tmp_path / "root", run=True, artifacts=store)

    answer = answered(workspace, "seq", "100000")

    assert "is kept as artifact" in str(answer.content)
    (file,) = os.listdir(store.path)
    assert file in str(answer.content)
    assert (store.path / file).read_text() == "".join(f"{number}\n" for number in range(1, 100_001))


def test_an_artifact_that_cannot_be_kept_costs_no_answer(tmp_path: Path) -> None:
    """The command has run; its two ends and its status are told all the same."""
    (tmp_path / "blocked").write_text("a file where the folder would be")
    workspace = Workspace(tmp_path, run=True, artifacts=ArtifactFolder(tmp_path / "blocked" / "artifacts"))

    answer = answered(workspace, "seq", "100000")

    assert not answer.is_error
    assert "not kept" in str(answer.content)


def test_a_store_that_raises_costs_no_answer(tmp_path: Path) -> None:
    """Whatever it raises: it is somebody else's."""

    class Broken:
        def write(self, name: str, text: str) -> Any:
            raise TypeError("no such bucket")

    answer = answered(Workspace(tmp_path, run=True, artifacts=Broken()), "seq", "100000")

    assert not answer.is_error
    assert "not kept: TypeError: no such bucket" in str(answer.content)
    assert str(answer.content).endswith("100000\n[exit status 0]")


@pytest.mark.parametrize("timeout", [0, -1, 121])
def test_a_timeout_out_of_bounds_is_refused(workspace: Workspace, timeout: float) -> None:
    """The answer says what is possible."""
    answer = answered(workspace, "true", timeout=timeout)

    assert answer.is_error
    assert "at most 120" in str(answer.content)


@pytest.mark.parametrize(
    "options",
    [
        {"run_timeout": 0},
        {"run_timeout": "1"},
        {"run_timeout": True},
        {"artifacts": 1},
        {"run": "yes"},
        {"write": None},
        {"env": ["PATH"]},
        {"env": {"PATH": 1}},
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """The caller's fault, before anything starts."""
    with pytest.raises(ConfigError, match="Workspace: "):
        Workspace(tmp_path, **options)


def test_each_tool_says_what_a_repetition_would_do(tmp_path: Path) -> None:
    """A resumed run asks this before it repeats a call."""
    workspace = Workspace(tmp_path, run=True)

    assert {name: workspace.idempotency_of(name) for name in workspace.names} == {
        "read": "read-only",
        "list": "read-only",
        "glob": "read-only",
        "grep": "read-only",
        "write": "idempotent",
        "edit": "unknown",
        "run": "unknown",
    }


def test_importing_the_tools_does_not_import_the_workspace() -> None:
    """Who does not use it does not pay for it."""
    import subprocess

    script = "import sys, llm_agent.tools; print('llm_agent.tools.workspace' in sys.modules, 'pathspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)

    assert (done.stdout, done.stderr) == ("False False\n", "")
