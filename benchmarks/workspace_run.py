"""Commands that do not want to end, run by a workspace: how late the answer is, and what is left.

Each try is a process of its own in which one `run` call has a timeout of 0.5 s. Told are the
time from the call to its answer beyond that timeout (or, for `leftover`, which ends at once,
beyond nothing), how many processes of the command are alive afterwards, and for the floods how
much the peak of the process's memory rose. `plain` is a command that sleeps and can be killed.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure

TIMEOUT = 0.5
MARK = "LLM_AGENT_BENCH_WORKSPACE"

SCRIPTS = {
    "plain": "sleep 60",
    "background": "sleep 60 & sleep 60",
    "setsid": "setsid sleep 60 & sleep 60",
    "leftover": "setsid sleep 60 & sleep 60 & echo started",
    "deaf": "trap '' TERM; while :; do sleep 1; done",
    "flood": "yes | head -c 2G",
    "read whole": "yes | head -c {megabytes}M",
}
# These end by themselves; the timeout is not what is measured.
UNTIMED = ("leftover", "read whole")


def child(name: str, megabytes: str) -> dict[str, Any]:
    """One call of `run` with the script *name*."""
    from llm_agent import ToolRequest
    from llm_agent.tools import Workspace

    mark = f"{MARK}={os.getpid()}"
    environment = {**os.environ, MARK: str(os.getpid())}
    with tempfile.TemporaryDirectory() as root:
        workspace = Workspace(root, run=True, env=environment)
        workspace.execute_tool_calls(
            [ToolRequest("0", "run", {"command": "true"})]
        )  # what is imported once is not measured
        script = SCRIPTS[name].format(megabytes=megabytes)
        arguments: dict[str, Any] = {"command": "sh", "args": ["-c", script]}
        if name not in UNTIMED:
            arguments["timeout"] = TIMEOUT
        before = peak_mib()
        started = time.monotonic()
        (answer,) = workspace.execute_tool_calls([ToolRequest("1", "run", arguments)])
        took = time.monotonic() - started
    assert answer.is_error == (name not in UNTIMED), answer.content
    late = took - (0 if name in UNTIMED else TIMEOUT)
    return {"late_ms": late * 1e3, "survivors": survivors(mark), "memory_mib": peak_mib() - before}


def peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def survivors(mark: str) -> int:
    """Processes that have *mark* in their environment, zombies not counted; whoever is killed has gone by now."""
    alive = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            carries = mark.encode() in (process / "environ").read_bytes()
            alive += carries and b") Z " not in (process / "stat").read_bytes()
        except OSError:  # it has just ended, or is another user's
            continue
    return alive


def main() -> None:
    measure.serve_as_child({name: functools.partial(child, name) for name in SCRIPTS})
    asked = measure.options(__doc__, n=5, megabytes=2_000)
    records = measure.interleaved(
        list(SCRIPTS), asked.n, lambda name: measure.in_child(__file__, name, str(asked.megabytes))
    )
    figures = []
    for name, rows in records.items():
        if name == "read whole":
            what, target = f"{asked.megabytes} MB of output, call to answer", ""
        else:
            what, target = "answer after the timeout" if name not in UNTIMED else "call to answer", "<= 300 ms"
        figures += [
            figure(name, what, "ms", [row["late_ms"] for row in rows], target=target),
            figure(name, "left alive", "processes", [row["survivors"] for row in rows], target="= 0"),
        ]
        if name in ("flood", "read whole"):
            grown = [row["memory_mib"] for row in rows]
            figures.append(figure(name, "peak memory rose by", "MiB", grown, target="<= 64 MiB"))
    measure.report(figures, as_json=asked.json)


def figure(name: str, what: str, unit: str, values: list[float], **rest: Any) -> measure.Figure:
    return measure.figure("workspace_run", name, what, unit, values, **rest)


if __name__ == "__main__":
    main()
