"""The agent of the demo: its tools, its loop, and what one process does of the story.

Nothing here knows that the models are scripted. `begin` dies in the middle of a tool call, as
a machine does; `resume` knows of it only what the transcript says.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final, Literal

import attrs

from llm_agent import Loop, OpenAIBackend, Outcome, Run, Session, current_call
from llm_agent.cli.demo_script import SYSTEM_PROMPT, TASK
from llm_agent.cli.screen import Screen, is_coloured
from llm_agent.events import ToolProgress
from llm_agent.tools.process import run_command

Act = Literal["begin", "resume"]

PROJECT_FOLDER: Final = "project"
TRANSCRIPT: Final = "run.jsonl"
MODELS: Final = ("primary-model", "fallback-model")

# Seconds: no test of the project needs as long, and one can wait for it.
SCRIPT_DEADLINE: Final = 1.0
# Seconds; an impatient demo. The default is 30.
BACKOFF_CAP: Final = 0.5

_WRITTEN: Final = "the file is written; the power goes out"


@attrs.frozen
class ProjectTools:
    """What the model may do, within one folder.

    With *dies_after_edit* an edit takes effect and its answer never comes.
    """

    folder: Path
    dies_after_edit: bool = False

    def read_file(self, path: str) -> str:
        """Read a file of the project.

        Args:
            path: relative to the project
        """
        return self._inside(path).read_text()

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once.

        Args:
            path: relative to the project
            old: the text as it is
            new: the text as it shall be
        """
        file = self._inside(path)
        text = file.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{path}: the old text must occur exactly once, it occurs {text.count(old)} times")
        file.write_text(text.replace(old, new))
        if self.dies_after_edit:
            _wait_for_the_end()
        return f"{path}: replaced."

    def run_tests(self) -> str:
        """Run the project's tests."""
        return self._python("-m", "unittest")

    def run_script(self, path: str) -> str:
        """Run a Python file of the project to its end.

        Args:
            path: relative to the project
        """
        return self._python(str(self._inside(path)))

    def _inside(self, path: str) -> Path:
        found = (self.folder / path).resolve()
        if not found.is_relative_to(self.folder.resolve()):
            raise PermissionError(f"{path} is outside of the project")
        return found

    def _python(self, *arguments: str) -> str:
        # -B: a file that is edited within the same second must not meet its old bytecode.
        done = run_command([sys.executable, "-B", *arguments], cwd=self.folder)
        return f"{done.output}\n(exit status {done.returncode})"


def _wait_for_the_end() -> None:
    call = current_call()
    assert call is not None  # only ever called within a run
    call.progress(1, message=_WRITTEN)
    call.cancelled.wait()


def play(act: Act, folder: str, servers: list[str]) -> int:
    """Play one process of the demo and return its exit status."""
    screen = Screen(sys.stdout, colour=is_coloured(sys.stdout))
    tools = ProjectTools(Path(folder, PROJECT_FOLDER), dies_after_edit=act == "begin")
    with Session.open(Path(folder, TRANSCRIPT)) as session:
        loop = Loop(
            backends=[OpenAIBackend(model, base_url=url) for model, url in zip(MODELS, servers, strict=True)],
            tools=[tools.read_file, tools.edit_file, tools.run_tests, tools.run_script],
            session=session,
            system_prompt=SYSTEM_PROMPT,
            tool_deadline={"run_script": SCRIPT_DEADLINE, "*": 30},
            backoff_cap=BACKOFF_CAP,
        )
        with _start(act, loop, session, screen) as run:
            for event in run.events():
                screen.show(event)
                if isinstance(event, ToolProgress) and event.message == _WRITTEN:
                    os.kill(os.getpid(), signal.SIGKILL)
            return _sum_up(run.result(), screen)


def _start(act: Act, loop: Loop, session: Session, screen: Screen) -> Run:
    if act == "begin":
        screen.line(f"  user: {TASK}")
        return loop.run(TASK)
    for repair in session.repair():
        screen.line(f"  repair: {repair}", "yellow")
    return loop.resume()


def _sum_up(outcome: Outcome, screen: Screen) -> int:
    spent = outcome.spent
    screen.line()
    screen.line(
        f"{outcome.status}: {outcome.rounds} rounds, {spent.attempts} requests, {spent.total_tokens} tokens, "
        f"{spent.wall_clock:.1f} s since the resume",
        "green" if outcome.ok else "red",
    )
    return 0 if outcome.ok else 1
