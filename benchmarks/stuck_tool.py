"""A tool that never returns: when the run goes on, and when the interpreter exits.

Each try is a process of its own. The tool has a deadline of 0.2 s; told is the time from its
dispatch to the next round, and from the end of the main thread to the end of the process,
beside that of a tool that returns (`quick`). `sleep` is `time.sleep(3600)`; `grandchild` a
shell command whose child holds the pipe, `setsid` the same with the child in a session of its
own; `leftover` a command that has ended and left such a child behind.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

DEADLINE = 0.2
# How long the sleeping commands sleep, in seconds; the fraction, our own process id, is how they
# are found among all processes.
MARK = sys.argv[3] if sys.argv[1:2] == ["--child"] else f"3599.{os.getpid():08d}"
# Ended processes need a moment to leave, in seconds.
LEAVING = 0.5


def quick() -> str:
    """Return at once."""
    return "done"


def sleep() -> str:
    """Never return."""
    time.sleep(3600)
    return ""


def grandchild() -> str:
    """Run a command that waits for its child."""
    return command(f"sleep {MARK} & wait")


def setsid() -> str:
    """Run a command that waits for a child in a session of its own."""
    return command(f"setsid sleep {MARK} & wait")


def leftover() -> str:
    """Run a command that ends and leaves a child behind."""
    return command(f"sleep {MARK} & echo started")


def command(line: str) -> str:
    from llm_agent.tools.process import run_command

    return str(run_command(["sh", "-c", line]))


TOOLS: dict[str, Callable[[], str]] = {one.__name__: one for one in (quick, sleep, grandchild, setsid, leftover)}

COMMANDS = ("grandchild", "setsid", "leftover")


def child(name: str, _: str) -> dict[str, Any]:
    """One run with the tool *name*; the moment its main thread ends is told too."""
    from llm_agent import Loop
    from llm_agent.events import RoundStarted, ToolStarted
    from llm_agent.testing import ScriptedBackend, call

    backend = ScriptedBackend([call(name), "done"])
    run = Loop(backends=[backend], tools=[TOOLS[name]], tool_deadline=DEADLINE).run(measure.PROMPT)
    dispatched = went_on = 0
    for event in run.events():
        match event:
            case ToolStarted(at_us=at_us):
                dispatched = at_us
            case RoundStarted(round=2, at_us=at_us):
                went_on = at_us
    assert run.result().ok, run.result().error
    return {"went_on_ms": (went_on - dispatched) / 1e3, "left_at": time.monotonic()}


def tried(name: str) -> dict[str, Any]:
    process = subprocess.Popen([sys.executable, __file__, "--child", name, MARK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # a pipe was asked for
    line = process.stdout.readline()
    process.wait()
    ended = time.monotonic()
    process.stdout.close()
    if process.returncode != 0:
        raise RuntimeError(f"the process with the tool {name} ended with {process.returncode}")
    record: dict[str, Any] = json.loads(line)
    return record | {"exit_ms": (ended - record["left_at"]) * 1e3, "survivors": survivors()}


def survivors() -> int:
    """How many of the sleeping commands stay alive."""
    give_up = time.monotonic() + LEAVING
    while True:
        alive = sum(MARK in command_line(process) for process in Path("/proc").glob("[0-9]*"))
        if not alive or time.monotonic() > give_up:
            return alive
        time.sleep(0.02)


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has just ended
        return ""


def main() -> None:
    measure.serve_as_child({name: functools.partial(child, name) for name in TOOLS})
    asked = measure.options(__doc__, n=5)
    records = measure.interleaved(list(TOOLS), asked.n, tried)
    figures = []
    for name, rows in records.items():
        targets = ("", "", "") if name == "quick" else ("<= 300 ms", "<= 500 ms", "= 0")
        figures += [
            figure(name, "dispatch to next round", "ms", [row["went_on_ms"] for row in rows], target=targets[0]),
            figure(name, "main's end to exit", "ms", [row["exit_ms"] for row in rows], target=targets[1]),
        ]
        if name in COMMANDS:
            left = [row["survivors"] for row in rows]
            figures.append(figure(name, "children left alive", "processes", left, target=targets[2]))
    measure.report(figures, as_json=asked.json)


def figure(name: str, what: str, unit: str, values: list[float], **rest: Any) -> measure.Figure:
    return measure.figure("stuck_tool", name, what, unit, values, **rest)


if __name__ == "__main__":
    main()
