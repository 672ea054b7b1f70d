"""Appending to a transcript and loading it, against the same bytes without any rules.

The floor of appending is `orjson.dumps` and one `os.write` per line; that of loading is
`orjson.loads` of each line. CPU time, interleaved in one process.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import orjson

from llm_agent import Message, Session

# With its envelope a line of about 300 bytes.
TEXT = "The tests pass now. " * 8


def append_bare(path: Path, lines: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(lines):
        line = {
            "type": "message",
            "id": f"{number:032x}",
            "ts": "2026-01-01T00:00:00.000000Z",
            "message": {"role": "user", "content": TEXT},
        }
        os.write(handle, orjson.dumps(line, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE))
    os.close(handle)


def append_session(path: Path, lines: int) -> None:
    with Session.create(path) as session:
        for _ in range(lines):
            session.append_message(Message.user(TEXT))


def load_bare(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(1 for line in lines if orjson.loads(line))


def load_session(path: Path) -> int:
    with Session.load(path) as session:
        return len(session.messages)


def read_session(path: Path) -> int:
    return len(Session.read(path).messages)


def seconds(work: Callable[[], Any]) -> float:
    """CPU of *work*: nothing here waits, and other processes shall not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    asked = measure.options(__doc__, n=7, lines=20_000)
    with tempfile.TemporaryDirectory() as folder:
        figures = appending(Path(folder), asked.n, asked.lines) + loading(Path(folder), asked.n, asked.lines)
    measure.report(figures, as_json=asked.json)


def appending(folder: Path, repeat: int, lines: int) -> list[measure.Figure]:
    appenders = {"bare": append_bare, "session": append_session}
    numbers = iter(range(10**9))

    def append(subject: str) -> dict[str, Any]:
        path = folder / f"append-{next(numbers)}.jsonl"
        took = seconds(lambda: appenders[subject](path, lines))
        size = path.stat().st_size
        path.unlink()
        return {"us": took / lines * 1e6, "bytes": size / lines}

    records = measure.interleaved(list(appenders), repeat, append)
    took = {subject: [record["us"] for record in rows] for subject, rows in records.items()}
    base = measure.figure("transcript", "orjson and os.write", "append a line", "us", took["bare"])
    note = f"lines of {records['session'][0]['bytes']:.0f} bytes; bare ones of {records['bare'][0]['bytes']:.0f}"
    ours = measure.figure(
        "transcript", "Session", "append a line", "us", took["session"], floor=base.median, target="<= 10 us", note=note
    )
    return [base, ours]


def loading(folder: Path, repeat: int, lines: int) -> list[measure.Figure]:
    loaders = {"bare": load_bare, "load": load_session, "read": read_session}
    path = folder / "load.jsonl"
    append_session(path, lines)
    megabytes = path.stat().st_size / 1e6

    def load(subject: str) -> dict[str, Any]:
        return {"speed": megabytes / seconds(lambda: loaders[subject](path))}

    records = measure.interleaved(list(loaders), repeat, load)
    speed = {subject: [record["speed"] for record in rows] for subject, rows in records.items()}
    base = measure.figure("transcript", "orjson.loads per line", "load", "MB/s", speed["bare"])
    ours = [
        measure.figure("transcript", f"Session.{name}", "load", "MB/s", speed[name], floor=base.median)
        for name in ("load", "read")
    ]
    return [base, *ours]


if __name__ == "__main__":
    main()
