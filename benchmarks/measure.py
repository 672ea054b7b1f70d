"""What the benchmarks share: children, servers, interleaving, medians, one way to print.

The law: ratios within one run count, absolute figures stand beside them. So subjects take
turns, CPU is measured in a process of its own, and every median is told with its range. What
is measured lives in the scripts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).resolve().parent
# The server of the project's comparison with other libraries, where its folder is there.
SHARED_SERVER = HERE.parent.parent / "shared" / "bench" / "server.py"
# Set it to anything, and the server beside this file is used in any case.
OWN_SERVER = "LLM_AGENT_BENCH_OWN_SERVER"

PROMPT = "Please do the task."
API_KEY = "sk-benchmark"

Child = Callable[..., dict[str, Any]]


@attrs.frozen(kw_only=True)
class Figure:
    """One number of one subject: a median, its range, and what it is compared with."""

    benchmark: str
    subject: str
    what: str
    unit: str
    values: Sequence[float]
    floor: float | None = None
    """The median of what this is a multiple of, in the same unit and from the same run."""
    target: str = ""
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        return None if not self.floor else self.median / self.floor

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"benchmark": self.benchmark, "subject": self.subject, "what": self.what}
        told |= {"unit": self.unit, "median": self.median, "min": min(self.values), "max": max(self.values)}
        told |= {"n": len(self.values), "ratio": self.ratio, "target": self.target, "note": self.note}
        return {key: value for key, value in told.items() if value not in (None, "")}


def figure(benchmark: str, subject: str, what: str, unit: str, values: Sequence[float], **rest: Any) -> Figure:
    """Return a `Figure` of *values*."""
    return Figure(benchmark=benchmark, subject=subject, what=what, unit=unit, values=values, **rest)


# -- the command line ------------------------------------------------------------------------


def options(description: str | None, **defaults: int | float) -> argparse.Namespace:
    """Read the command line: `--json`, and a number for each of *defaults*."""
    os.environ |= {"NO_PROXY": "*", "no_proxy": "*"}  # the loopback, for the children too
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout, the table on stderr")
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"({default})")
    return parser.parse_args()


def report(figures: Sequence[Figure], *, as_json: bool) -> None:
    """Print the table, and JSON lines where they were asked for."""
    table = sys.stderr if as_json else sys.stdout
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {cores} cores, load {load:.1f}", file=table)
    rows: list[tuple[str, ...]] = [("subject", "what", "median", "min", "max", "unit", "n", "ratio", "target")]
    rows += [_row(one) for one in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=table)
    for note in dict.fromkeys(one.note for one in figures if one.note):
        print(f"  {note}", file=table)
    if as_json:
        for one in figures:
            print(json.dumps(one.to_dict()))


def _row(one: Figure) -> tuple[str, ...]:
    numbers = [_rounded(value) for value in (one.median, min(one.values), max(one.values))]
    ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
    return (one.subject, one.what, *numbers, one.unit, str(len(one.values)), ratio, one.target)


def _rounded(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


# -- children --------------------------------------------------------------------------------


def serve_as_child(children: Mapping[str, Child]) -> None:
    """Be the child that `in_child` started, if this process is one: measure, print, leave."""
    if len(sys.argv) < 3 or sys.argv[1] != "--child":
        return
    record = children[sys.argv[2]](*sys.argv[3:])
    print(json.dumps(record))
    sys.exit(0)


def in_child(script: str, name: str, *arguments: object) -> dict[str, Any]:
    """Run one measure of *script* in a process of its own, and return its record.

    Raises:
        RuntimeError: the child failed; its words are in the message.
    """
    record: dict[str, Any] = run_python(script, "--child", name, *map(str, arguments))
    return record


def run_python(*arguments: str) -> Any:
    """Run a Python of its own with *arguments*; returns the JSON of its last line.

    Raises:
        RuntimeError: it failed; its words are in the message.
    """
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def interleaved(
    subjects: Sequence[str], repeat: int, measure: Callable[[str], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Measure every subject *repeat* times, taking turns, each turn in another order."""
    records: dict[str, list[dict[str, Any]]] = {subject: [] for subject in subjects}
    for turn in range(repeat):
        shift = turn % len(subjects)
        for subject in (*subjects[shift:], *subjects[:shift]):
            records[subject].append(measure(subject))
    return records


# -- servers ---------------------------------------------------------------------------------


@contextmanager
def scripted_server() -> Iterator[str]:
    """A server in a process of its own whose model names are scripts; yields its base URL.

    The shared one where it is there, else the one beside this file, which knows the same names.
    """
    is_shared = SHARED_SERVER.exists() and not os.environ.get(OWN_SERVER)
    with _server(SHARED_SERVER if is_shared else HERE / "scripted_server.py") as url:
        yield url


@contextmanager
def paced_server() -> Iterator[str]:
    """The server of `paced_server.py` in a process of its own; yields its base URL."""
    with _server(HERE / "paced_server.py") as url:
        yield url


@contextmanager
def _server(program: Path) -> Iterator[str]:
    server = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None  # a pipe was asked for
    try:
        hello = json.loads(server.stdout.readline())
        yield f"http://127.0.0.1:{hello['port']}/v1"
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def expected_text(count: int) -> str:
    """What the model `text-N` says."""
    return "".join(f"{number % 1000:03d} " for number in range(count))
