"""Runs that are killed at random moments, each in a forked child; driven by test_kill.py.

Usage: killed.py FOLDER COUNT SEED. Prints one JSON object. A process of its own, with one
thread only, so that forking it is safe.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
from pathlib import Path
from typing import Any

from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, ToolRequest
from llm_agent.ports import CompletionRequest
from llm_agent.session.session import Session
from llm_agent.testing import check_conversation
from llm_agent.testing.conversation import conversation_fault
from llm_agent.wire_view import WireView

ROUNDS = 8


class Model:
    """Asks for two tools per round, told apart by how many turns there are; then answers."""

    model = "model"
    max_tokens = None

    def stream(self, request: CompletionRequest) -> list[Delta | str]:
        check_conversation(request.messages)
        round_no = sum(bool(message.tool_calls) for message in request.messages)
        if round_no == ROUNDS:
            return ["All ", "done."]
        calls = (ToolRequest(f"a{round_no}", "note", f'{{"n":{round_no}}}'), ToolRequest(f"b{round_no}", "note", "{}"))
        return ["Round ", str(round_no), Delta(tool_calls=calls, finish_reason="tool_calls")]


class Notes:
    """A tool with a side effect: one line per execution."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tools_for_llm(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "note"}}]

    def execute_tool_calls(self, calls: list[ToolRequest]) -> list[str]:
        for call in calls:
            os.write(self._fd, f"{call.id}\n".encode())
        return ["noted"] * len(calls)


def work(folder: Path, report: int) -> None:
    """The child: run, or go on; report every message id that is announced as committed."""
    session = Session.open(folder / "run.jsonl")
    loop = Loop(Model(), provider=Notes(folder), session=session)
    run = loop.resume() if session.needs_reply else loop.run("go")
    for event in run.events():
        if event.kind in ("turn-committed", "tool-result"):
            os.write(report, f"{event.to_dict().get('message-id') or 'result ' + event.to_dict()['id']}\n".encode())
    os._exit(0 if run.result().ok else 1)


def spawn(folder: Path) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        try:
            work(folder, write_end)
        except BaseException as error:
            os.write(2, f"child: {type(error).__name__}: {error}\n".encode())
            os._exit(3)
    os.close(write_end)
    return pid, read_end


def one(folder: Path, dice: random.Random) -> dict[str, Any]:
    """Kill a run at a random moment, look at what it left, then let another process finish it."""
    folder.mkdir()
    pid, pipe = spawn(folder)
    # A moment is a number of reports, and then a fraction of what one round takes.
    reports = b""
    for _ in range(dice.randrange(0, 3 * ROUNDS)):
        ready, _, _ = select.select([pipe], [], [], 10)
        block = os.read(pipe, 40) if ready else b""
        if not block:
            break
        reports += block
    select.select([], [], [], dice.random() * 0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(pipe, "rb") as rest:
        reports += rest.read()
    told = reports.decode().splitlines()
    return {"told": told} | inspect(folder, told)


def inspect(folder: Path, told: list[str]) -> dict[str, Any]:
    path = folder / "run.jsonl"
    if not path.exists() or path.stat().st_size == 0:
        return {"early": True, "missing": told, "fault": None, "twice": [], "unannounced": []}
    before = effects(folder)
    with Session.open(path) as session:
        results = {message.tool_call_id for message in session.messages if message.role == "tool"}
        known = set(session.message_ids) | {f"result {call_id}" for call_id in results}
        repairs = session.repair()
        verdicts = {repair.call_id: repair.verdict for repair in repairs}
        fault = conversation_fault([m.to_wire() for m in WireView.of(session.messages).messages])
        answered = results - set(verdicts)
    # A side effect without an answer must be announced as unknown, never as not run.
    unannounced = [
        c for c in before if c not in answered and verdicts.get(c) not in ("unknown", "only-settle-was-lost")
    ]
    pid, pipe = spawn(folder)
    with os.fdopen(pipe, "rb") as rest:
        rest.read()
    _, status = os.waitpid(pid, 0)
    after = effects(folder)
    return {
        "early": False,
        "missing": [entry for entry in told if entry not in known],
        "fault": None if fault is None else str(fault),
        "twice": sorted({c for c in after if after.count(c) > 1}),
        "unannounced": unannounced,
        "repairs": sorted(verdicts.values()),
        "finished": status == 0,
    }


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


if __name__ == "__main__":
    base, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dice = random.Random(seed)
    print(json.dumps([one(base / str(number), dice) for number in range(count)]))
