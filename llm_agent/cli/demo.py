"""The demo: two processes, one transcript, and everything that can go wrong in between.

This process only sets the stage. It serves the scripted models over real HTTP, starts the
agent, sees it die, starts it again, and says where the transcript lies. It needs no key and no
network, writes only below the system's folder for temporary files, and leaves no process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import attrs

from llm_agent import Session
from llm_agent.cli import demo_script
from llm_agent.cli.demo_agent import PROJECT_FOLDER, TRANSCRIPT, Act
from llm_agent.cli.screen import Screen, is_coloured
from llm_agent.testing import FakeServer

# How long one process of the agent may take, in seconds. It takes 3; this is for a machine that hangs.
_ACT_TIMEOUT: Final = 60.0
# How long the agent may take to end itself, in seconds, before it is told more clearly.
_END_GRACE: Final = 1.0
_KILLED: Final = -signal.SIGKILL


@attrs.frozen
class Stage:
    """Where the demo plays: a folder, the servers' addresses, and who watches."""

    folder: Path
    servers: tuple[str, ...]
    screen: Screen

    def play(self, act: Act) -> int:
        """Play one act in a process of its own and return its exit status; a signal's number is negative."""
        command = [sys.executable, "-m", "llm_agent", "demo", "--act", act, "--folder", str(self.folder)]
        for server in self.servers:
            command += ["--server", server]
        self.screen.stream.flush()
        with subprocess.Popen(command, env=_environment(), stdin=subprocess.DEVNULL) as process:
            try:
                return process.wait(_ACT_TIMEOUT)
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End *process* if it still works; asked first, since only itself can end what it has started."""
    # The terminal's Ctrl-C reaches both of us, `kill -INT` only one: so first wait, then pass it on.
    for signal_number in (None, signal.SIGINT, signal.SIGKILL):
        if signal_number is not None:
            process.send_signal(signal_number)
        try:
            process.wait(_END_GRACE)
            return
        except subprocess.TimeoutExpired:
            continue


def play() -> int:
    """Play the whole demo and return its exit status."""
    screen = Screen(sys.stdout, colour=is_coloured(sys.stdout))
    folder = Path(tempfile.mkdtemp(prefix="llm-agent-demo-"))
    demo_script.write_project(folder / PROJECT_FOLDER)
    _open(screen, folder)
    with (
        FakeServer(demo_script.primary_script(), strict=True) as primary,
        FakeServer(demo_script.fallback_script(), strict=True) as fallback,
    ):
        return _story(Stage(folder, (primary.url, fallback.url), screen))


def _open(screen: Screen, folder: Path) -> None:
    screen.line(
        "llm_agent demo: a scripted model behind real HTTP servers on this machine; no key, no network.", "bold"
    )
    screen.line(f"The project in {folder / PROJECT_FOLDER} has a failing test.", "dim")


def _story(stage: Stage) -> int:
    screen = stage.screen
    _head(screen, "First process")
    status = stage.play("begin")
    if status != _KILLED:
        screen.line(f"the first process was to be killed in mid-call; it ended with {status}", "red")
        return 1
    screen.line()
    screen.line("kill -9: the first process is gone, in the middle of a tool call.", "red")
    _head(screen, "Second process, from the transcript")
    status = stage.play("resume")
    _close(screen, stage.folder / TRANSCRIPT)
    return status


def _head(screen: Screen, title: str) -> None:
    screen.line()
    screen.line(f"-- {title} --", "bold")


def _close(screen: Screen, transcript: Path) -> None:
    session = Session.read(transcript)
    screen.line(f"transcript: {transcript} ({len(session.messages)} messages)")
    screen.line(f"read it:    python -m llm_agent transcript {transcript}", "dim")


def _environment() -> dict[str, str]:
    # A proxy of the user's cannot reach the servers of this machine.
    return {**os.environ, "no_proxy": "*", "NO_PROXY": "*"}
