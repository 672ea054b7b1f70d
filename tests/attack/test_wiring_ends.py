"""However a process ends, and whenever its runs are cancelled: nothing hangs, and nothing is left of the wiring."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from llm_agent import Loop, Policy, Session
from llm_agent.mcp import McpServer, connect_stdio
from llm_agent.policy import AskLock, Grants
from llm_agent.testing import ScriptedBackend, call, finished
from llm_agent.tools import Workspace, stacked

WAIT = 5.0
SERVERS = Path(__file__).parents[1] / "mcp" / "servers"
ALLOW_ALL = {"tool": "*", "decision": "allow"}

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="what is left is found in /proc")


def environment_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return b""


def still_there(mark: str) -> list[str]:
    """Wait until no process carries *mark*, and name those that still do after 5 s."""
    give_up = monotonic() + WAIT
    sought, pause = f"WIRING_MARK={mark}\0".encode(), threading.Event()
    while found := [pid for pid in os.listdir("/proc") if pid.isdigit() and sought in environment_of(pid)]:
        if monotonic() > give_up:
            return found
        pause.wait(0.01)
    return []


# -- the end of a process --------------------------------------------------------------------------

_PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
from llm_agent import Loop, Policy, Session
from llm_agent.mcp import connect_stdio
from llm_agent.testing import ScriptedBackend, call
from llm_agent.tools import Workspace, stacked

folder, mark, situation, ending = Path(sys.argv[1]), *sys.argv[2:5]
entered = threading.Event()

def asking(_):
    entered.set()
    threading.Event().wait()

calls = {
    "an open question": call("fs_write", path="a", content="1"),
    "a command that runs": call("fs_run", command="sleep", args=["1000"]),
    "a server that never answers": call("mcp_hang"),
    "a server that is stopped": call("mcp_answer", text="never"),
    "a server that is stopped before it lists": call("mcp_answer", text="never"),
}
server = connect_stdio(sys.executable, [SERVER], {"WIRING_MARK": mark}, name="raw", protocol="handshake")
tools = stacked({"fs": Workspace(folder, run=True, env={**os.environ, "WIRING_MARK": mark}), "mcp": server})
rules = [{"tool": name, "decision": "allow"} for name in ("fs_run", "mcp_*")]
policy = Policy(tools, rules)
session = Session.create(folder / "t.jsonl")
loop = Loop(ScriptedBackend([calls[situation], "done"]), tools=policy, session=session, on_ask=asking)
if situation == "a server that is stopped":
    server.tools_for_llm()
if "stopped" in situation:
    os.kill(server._client.link._reach._process.pid, signal.SIGSTOP)
run = loop.run("go")
if situation == "an open question":
    entered.wait(5)
else:
    awaited = "run-started" if "before it lists" in situation else "tool-started"
    next(event for event in run.events(timeout=5) if event.kind == awaited)
if ending == "an exception":
    raise RuntimeError("unhandled")
if ending == "Ctrl-C":
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with session, server, run:
        run.result(30)
if ending == "closing everything":
    with session, server, run:
        pass
    assert run.drained(0.1) or situation == "an open question"
    assert session.pending_tool_operations() == []
    sys.exit(1)
"""

SITUATIONS = ["an open question", "a command that runs", "a server that never answers", "a server that is stopped"]
SITUATIONS += ["a server that is stopped before it lists"]


@pytest.mark.parametrize("ending", ["an exception", "Ctrl-C", "closing everything"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_process_ends_whatever_is_open_and_leaves_nobody(situation: str, ending: str, tmp_path: Path) -> None:
    """Within seconds, with its own exit code; the server and the command are gone."""
    mark = f"{os.getpid()}-{tmp_path.name}"
    program = _PROGRAM.replace("SERVER", repr(str(SERVERS / "raw.py")))
    started = monotonic()

    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), mark, situation, ending],
        capture_output=True,
        timeout=30,
        text=True,
    )

    assert monotonic() - started < 15
    assert ended.returncode == (-signal.SIGINT if ending == "Ctrl-C" else 1), ended.stderr
    assert "Traceback" not in ended.stderr or ending in ("an exception", "Ctrl-C"), ended.stderr
    assert still_there(mark) == []


# -- cancels, deadlines and timeouts at any moment -------------------------------------------------


@pytest.fixture
def marked(tmp_path: Path) -> str:
    return f"{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def server(marked: str) -> Iterator[McpServer]:
    with connect_stdio(
        sys.executable, [SERVERS / "raw.py"], {"WIRING_MARK": marked}, name="raw", protocol="handshake", restart=True
    ) as connected:
        yield connected


def scripts(dice: random.Random, number: int) -> list[Any]:
    """A few turns of calls that end soon, late, badly, or never."""
    kinds = [
        call("fs_write", path=f"{number}/a", content="1"),
        call("fs_edit", path="missing", old="a", new="b"),
        call("fs_run", command="sh", args=["-c", "sleep 60 & setsid sleep 60 & wait"]),
        call("fs_run", command="true"),
        call("mcp_answer", text="yes"),
        call("mcp_hang"),
        call("mcp_ask"),
        call("mcp_die"),
        call("mcp_again"),
        call("mcp_meet", company=1),
    ]
    return [[dice.choice(kinds) for _ in range(dice.randrange(1, 4))] for _ in range(3)]


@pytest.mark.parametrize("seed", range(int(os.environ.get("LLM_AGENT_CANCELS", "3"))))
@pytest.mark.usefixtures("no_thread_of_a_run_left")
def test_runs_that_share_everything_end_whenever_they_are_cancelled(
    seed: int, server: McpServer, marked: str, tmp_path: Path
) -> None:
    """One server, one workspace, one book, one lock; each run ends, is drained, and has answered every call."""
    dice = random.Random(seed)
    root = tmp_path / "work"
    root.mkdir()
    workspace = Workspace(root, run=True, env={"PATH": os.environ["PATH"], "WIRING_MARK": marked})
    store, lock = Grants(), AskLock()
    answers = ["allow-once", "deny-once", "always-allow", None, "nonsense", {"action": "accept", "content": {}}]

    def ask(request: Any) -> Any:
        if dice.random() < 0.2:  # a human who thinks until nobody waits any more
            give_up, pause = monotonic() + 1, threading.Event()
            while not request.cancelled.is_set() and monotonic() < give_up:
                pause.wait(0.01)
        return dice.choice(answers)

    runs, sessions = [], []
    for number in range(6):
        session = Session.create(tmp_path / f"{number}.jsonl")
        policy = Policy(
            stacked({"fs": workspace, "mcp": server}),
            [{"tool": name, "decision": "allow"} for name in dice.sample(["fs_*", "mcp_*", "fs_run"], 2)],
            store=store,
            ask_lock=lock,
            on_ask=dice.choice([ask, "run"]),
            ask_timeout=dice.choice([None, 0.2]),
            claim_elicits=dice.random() < 0.5,
        )
        loop = Loop(
            ScriptedBackend([*scripts(dice, number), "done"]),
            tools=policy,
            session=session,
            on_ask=ask,
            concurrent_tools=dice.choice([(), ("*",), ("mcp_*",)]),
            tool_deadline=dice.choice([None, 0.3]),
        )
        runs.append(loop.run("go", timeout=dice.choice([None, 0.4])))
        sessions.append(session)
    pause = threading.Event()
    for run in dice.sample(runs, len(runs)):
        pause.wait(dice.random() * 0.2)
        run.cancel()

    for run, session in zip(runs, sessions, strict=True):
        finished(run, 10.0)
        assert session.pending_tool_operations() == []
        session.close()
    server.close()
    assert still_there(marked) == []


# The threads that a process has once it has used a server, or a timeout of a run.
_FOR_GOOD = ("llm-agent-mcp", "llm-agent-watchdog")


@pytest.fixture
def no_thread_of_a_run_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in before and thread.name not in _FOR_GOOD]
    for thread in started:
        thread.join(WAIT)
    assert [thread.name for thread in started if thread.is_alive()] == []


# -- forks -----------------------------------------------------------------------------------------

_FORK = """
import os, sys, threading
from pathlib import Path
from llm_agent import Loop, Policy, Session
from llm_agent.mcp import connect_stdio
from llm_agent.policy import AskLock, Grants
from llm_agent.testing import Gate, ScriptedBackend, call, finished
from llm_agent.tools import Workspace, stacked

folder, mark = Path(sys.argv[1]), sys.argv[2]
gate = Gate("x")

def ask(request):
    if request["arguments"].get("path") == "parent":
        gate.wait()
    return "always-allow"

server = connect_stdio(sys.executable, [SERVER], {"WIRING_MARK": mark}, name="raw", protocol="handshake", restart=True)
workspace = Workspace(folder, run=True, env={**os.environ, "WIRING_MARK": mark})
tools = Policy(stacked({"fs": workspace, "mcp": server}), store=Grants(), ask_lock=AskLock(), on_ask=ask)

def ran(path, session):
    script = [call("fs_write", path=path, content="1"), call("fs_run", command="true"), call("mcp_again"), "done"]
    return Loop(ScriptedBackend(script), tools=tools, session=session).run("go")

with Session.create(folder / "parent.jsonl") as session:
    run = ran("parent", session)
    gate.wait_entered()  # a question is open, the server runs, the lock is taken
    pid = os.fork()
    if pid == 0:
        with Session.create(folder / "child.jsonl") as own:
            outcome = finished(ran("child", own), 10).outcome
        server.close()
        os._exit(0 if outcome.ok and (folder / "child").exists() else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    gate.open()
    outcome = finished(run, 10).outcome
server.close()
sys.exit(status or not outcome.ok)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_a_question_is_open_works_and_disturbs_nobody(tmp_path: Path) -> None:
    """Same policy, book, lock, workspace and server; the child has a server of its own, and both end whole."""
    mark = f"{os.getpid()}-{tmp_path.name}"
    program = _FORK.replace("SERVER", repr(str(SERVERS / "raw.py")))

    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path), mark], capture_output=True, timeout=30, text=True
    )

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "parent").exists()
    assert still_there(mark) == []
    for name in ("parent", "child"):
        transcript = Session.read(tmp_path / f"{name}.jsonl")
        assert (transcript.needs_reply, len(transcript.grants) >= 3) == (False, True)
