"""MCP servers that are killed, stopped, or do not want to go: how late the answer is, and what is left.

Each try is a process of its own with a server of its own: a few lines of Python, or, where it is
installed (through PATH, or in a folder of LLM_AGENT_MCP_SERVERS), the reference implementation's
"everything" server. `call` is what an answered call costs; `killed` has one call out when the
server gets SIGKILL, and is then used again; the others are closed. Told besides: the processes that are
alive or zombies afterwards, and threads other than the portal, of which a process has one.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

CALLS = 200

STUB = """
import json, signal, subprocess, sys
habit = sys.argv[1]
if habit in ("deaf", "fled"): signal.signal(signal.SIGTERM, signal.SIG_IGN)
if habit == "fled": subprocess.Popen(["setsid", "sleep", "60"])
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        info = {"name": "stub", "version": "1"}
        version = message["params"]["protocolVersion"]
        say(id=number, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        names = ("echo", "hang")
        say(id=number, result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
    elif method == "tools/call" and message["params"]["name"] == "echo":
        say(id=number, result={"content": [{"type": "text", "text": "hi"}]})
    elif method != "tools/call" and number is not None:
        say(id=number, error={"code": -32601, "message": "Method not found"})
while habit in ("deaf", "fled"): signal.pause()
"""

HABITS = ("call", "killed", "plain", "deaf", "fled", "stopped")


def child(habit: str, program: str) -> dict[str, Any]:
    """One try with the server *program*, or with the stub where that is empty."""
    from llm_agent.mcp import connect_stdio

    mark = f"bench-{os.getpid()}"
    command = [program, "stdio"] if program else [sys.executable, "-c", STUB, habit]
    environment = {"LLM_AGENT_BENCH_MCP": mark}
    server = connect_stdio(command[0], command[1:], env=environment, restart=True)
    server.tools_for_llm()
    times: dict[str, float] = {}
    if habit == "call":
        times["answered_us"] = clocked(lambda: [ask(server, "echo") for _ in range(CALLS)]) * 1e6 / CALLS
    if habit == "killed":
        times = killed(server, "trigger-long-running-operation" if program else "hang")
    if habit == "stopped":
        os.kill(children()[0], signal.SIGSTOP)
    times["closed_ms"] = clocked(server.close) * 1e3
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    threads_left = len([name for name in threads if name != "llm-agent-mcp"])
    return {**times, "left": alive_with(mark) + len(children()), "threads": threads_left}


def killed(server: Any, slow: str) -> dict[str, float]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask(server, slow, duration=30, steps=300)))
    thread.start()
    time.sleep(0.2)  # until the call is out
    started = time.monotonic()
    os.kill(children()[0], signal.SIGKILL)
    thread.join()
    lost = time.monotonic() - started
    assert answers[0].structured == {"mcp": {"failed": "gone"}}, answers
    again = clocked(lambda: ask(server, "echo"))
    return {"lost_ms": lost * 1e3, "again_ms": again * 1e3}


def ask(server: Any, name: str, **arguments: Any) -> Any:
    from llm_agent import ToolRequest

    (answer,) = server.execute_tool_calls([ToolRequest("c", name, arguments or {"message": "hi"})])
    assert name != "echo" or not answer.is_error, answer.content
    return answer


def clocked(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def children() -> list[int]:
    """Children of this process, zombies among them."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split() if Path(f"/proc/{pid}").exists()]


def alive_with(mark: str) -> int:
    """Processes that have *mark* in their environment; whoever was killed has a moment to be gone."""
    give_up = time.monotonic() + 0.5
    while True:
        alive = sum(carries(process, mark) for process in Path("/proc").glob("[0-9]*"))
        if not alive or time.monotonic() > give_up:
            return alive
        time.sleep(0.01)


def carries(process: Path, mark: str) -> bool:
    try:
        return mark.encode() in (process / "environ").read_bytes()
    except OSError:  # it has just ended, or is another user's
        return False


def main() -> None:
    measure.serve_as_child({habit: functools.partial(child, habit) for habit in HABITS})
    asked = measure.options(__doc__, n=5)
    folders = os.environ.get("LLM_AGENT_MCP_SERVERS", "")
    real = shutil.which("mcp-server-everything", path=f"{folders}{os.pathsep}{os.environ.get('PATH', '')}")
    subjects = {habit: ("", habit) for habit in HABITS}
    if real is not None and not os.environ.get(measure.OWN_SERVER):
        subjects |= {f"everything, {habit}": (real, habit) for habit in ("call", "killed", "plain", "stopped")}
    records = measure.interleaved(
        list(subjects), asked.n, lambda name: measure.in_child(__file__, subjects[name][1], subjects[name][0])
    )
    figures = []
    for name, rows in records.items():
        for key, what, unit, target in (
            ("answered_us", "an answered call", "us", ""),
            ("lost_ms", "kill -9 to answer", "ms", "<= 1000 ms"),
            ("again_ms", "next use, restart included", "ms", ""),
            ("closed_ms", "close", "ms", "<= 5000 ms"),
            ("left", "processes left", "processes", "= 0"),
            ("threads", "threads left", "threads", "= 0"),
        ):
            if key in rows[0]:
                values = [row[key] for row in rows]
                figures.append(measure.figure("mcp_faults", name, what, unit, values, target=target))
    measure.report(figures, as_json=asked.json)


if __name__ == "__main__":
    main()
