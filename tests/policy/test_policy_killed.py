"""A process killed at the worst moment, and what the next one finds: real processes, real files."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from judging import Human, tools

from llm_agent import Loop, Session
from llm_agent.events import ToolResult
from llm_agent.policy import Policy
from llm_agent.testing import ScriptedBackend, call, finished

# A run with one call, whose process is killed where the name in `sys.argv[2]` says.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from llm_agent import Loop, Session
from llm_agent.policy import Policy
from llm_agent.testing import ScriptedBackend, ScriptedProvider, call

folder, moment = Path(sys.argv[1]), sys.argv[2]

def here(name):
    if moment == name:
        os.kill(os.getpid(), signal.SIGKILL)

def ask(_):
    here("asking")
    return {"action": "always-allow"}

def tool(**_):
    (folder / "ran").touch()
    here("running")
    return "done"

session = Session.create(folder / "t.jsonl")
policy = Policy(ScriptedProvider({"fs_read": tool}), on_ask=ask, on_grant=lambda _: here("answered"))
Loop(ScriptedBackend([call("fs_read", path="/srv/x"), "done"]), tools=policy, session=session).run("go").result(5)
"""


def killed(folder: Path, moment: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder), moment], capture_output=True, timeout=30)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def resumed(folder: Path, human: Human) -> tuple[Any, list[Any], bool]:
    """Go on as a host does: what the run came to, the grants it began with, whether the tool had run before."""
    had_run = (folder / "ran").exists()
    with Session.open(folder / "t.jsonl") as session:
        grants = session.grants
        policy = Policy(tools(), grants=grants, on_ask=human)
        again = ScriptedBackend([call("fs_read", path="/srv/x"), "done"])
        done = finished(Loop(again, tools=policy, session=session).resume())
    return done, grants, had_run


@pytest.mark.parametrize("moment", ["answered", "running"])
def test_an_always_survives_a_kill_right_after_it_was_given(tmp_path: Path, moment: str) -> None:
    """It is on disk before the tool runs: tomorrow nobody is asked again."""
    killed(tmp_path, moment)
    human = Human(False)

    done, grants, had_run = resumed(tmp_path, human)

    assert [grant["rule"] for grant in grants] == [{"tool": "fs_read", "decision": "allow", "under": "/srv"}]
    assert had_run is (moment == "running")
    assert human.asked == []
    assert done.of(ToolResult)[-1].content == "done"


def test_a_kill_while_somebody_is_asked_ran_nothing_and_is_asked_again(tmp_path: Path) -> None:
    """The model learns that the call came to nothing certain, and its next try is a new question."""
    killed(tmp_path, "asking")
    human = Human(True)

    done, grants, had_run = resumed(tmp_path, human)

    assert not had_run
    assert grants == []
    assert [asked["tool"] for asked in human.asked] == ["fs_read"]
    assert done.outcome.ok
    assert done.of(ToolResult)[-1].content == "done"
