"""The benchmarks run: tiny, and without a word about time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"

SIZES = {
    "tokens": ("--n", "1", "--count", "50"),
    "rounds": ("--n", "1", "--short", "2", "--long", "4"),
    "transcript": ("--n", "1", "--lines", "20"),
    "cancel": ("--n", "1"),
    "first_token": ("--n", "1", "--pace-ms", "1"),
    "concurrent_runs": ("--runs", "3", "--rate", "100", "--seconds", "0.3", "--stagger", "0.05"),
    "imports": ("--n", "1"),
    "stuck_tool": ("--n", "1"),
    "mcp_faults": ("--n", "1"),
    "workspace_run": ("--n", "1", "--megabytes", "20"),
    "counting": ("--n", "1", "--rounds", "2", "--messages", "40"),
    "flaky": ("--requests", "20"),
    "long_runs": ("--rounds", "40"),
    "compaction": ("--n", "1", "--messages", "60", "--asked", "40"),
    "stack": ("--n", "1", "--calls", "10"),
}


def records(name: str, *, only_ours: bool) -> list[dict[str, object]]:
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "LLM_AGENT_BENCH_OWN_SERVER": "1" * only_ours}
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *SIZES[name], "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_script_is_tried_here() -> None:
    """A new benchmark cannot be forgotten in this file."""
    shared = {"measure", "scripted_server", "paced_server", "plot_long_runs"}
    assert {path.stem for path in FOLDER.glob("*.py")} - shared == set(SIZES)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_script_prints_records(name: str) -> None:
    """Each script runs with its own servers and prints one JSON record per figure."""
    if name == "mcp_faults":
        pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    found = records(name, only_ours=True)
    assert found
    for record in found:
        assert record["benchmark"] == name
        assert {"subject", "what", "unit", "median", "min", "max", "n"} <= record.keys()


def test_flaky_requests_end_well() -> None:
    """Of requests that fail now and then none is lost, doubled or given up."""
    counts = {record["what"]: record["median"] for record in records("flaky", only_ours=True)}
    assert (counts["ended well"], counts["lost"], counts["doubled"], counts["raised"]) == (20, 0, 0, 0)
