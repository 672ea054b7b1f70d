"""The whole wiring, killed at random moments, each run in a forked child; driven by test_wiring_kill.py.

Usage: killed_wiring.py FOLDER COUNT SEED. Prints one JSON object. A process of its own, with one
thread only, so that forking it is safe. Every call has a mark, which is its id, and leaves the mark
where it has had its effect.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import mcp.client  # noqa: F401  # once, and not in every child

from llm_agent import Loop, OpenAIBackend, Policy, Session
from llm_agent.mcp import connect_stdio
from llm_agent.policy import danger_floor, default_rules
from llm_agent.testing import FakeServer, call
from llm_agent.testing.conversation import conversation_fault
from llm_agent.tools import Workspace, stacked
from llm_agent.wire_view import WireView

ROUNDS = 5
CALLS = ROUNDS * 4
SERVER = Path(__file__).with_name("wiring_server.py")
# From this round on, a call of the tool is answered "always".
ALWAYS = {"fs_write": 1, "fs_edit": 2, "mcp_note": 3}


def turn(number: int) -> list[Any]:
    """What the model asks for in a round: one call of each kind, in another order each time."""
    write, edit, run, note = (f"{kind}{number}" for kind in ("write", "edit", "run", "note"))
    calls = [
        call("fs_write", _id=write, path=f"out/{write}", content=write),
        call("fs_edit", _id=edit, path="edited", old="END", new=f"{edit}\nEND"),
        call("fs_run", _id=run, command="sh", args=["-c", f"echo {run} >> ran"], reason="to see it"),
        call("mcp_note", _id=note, mark=note),
    ]
    return calls[number % 4 :] + calls[: number % 4]


def model(request: Any) -> Any:
    number = sum(bool(message.get("tool_calls")) for message in request.body["messages"])
    return "All done." if number == ROUNDS else turn(number)


def work(folder: Path, report: int) -> None:
    """The child: run, or go on; tell what the human answered, and what the run announced."""

    def tell(*words: str) -> None:
        os.write(report, f"{' '.join(words)}\n".encode())

    def ask(request: Mapping[str, Any]) -> Any:
        mark, tool = request["call"]["id"], request["tool"]
        is_always = int(mark[-1]) >= ALWAYS.get(tool, ROUNDS)
        tell("always" if is_always else "once", mark)
        return "always-allow" if is_always else "allow-once"

    root = folder / "work"
    floor = danger_floor()
    env = {"KILLED_WIRING": str(folder)}
    os.environ.update(env)
    with (
        FakeServer(model, strict=True) as vendor,
        connect_stdio(sys.executable, ["-S", SERVER, folder / "noted"], env, protocol="handshake") as server,
        Session.open(folder / "run.jsonl") as session,
    ):
        policy = Policy(
            stacked({"fs": Workspace(root, run=True), "mcp": server}),
            [*floor, *default_rules("fs_")],
            session.grants,
            roots={"fs_": root},
            local_tools=["fs_*"],
            checks=floor.checks,
            on_ask=ask,
            on_grant=lambda grants: tell("granted", *sorted({grant["rule"]["tool"] for grant in grants})),
        )
        loop = Loop(
            OpenAIBackend("m", base_url=vendor.url, api_key="k"),
            provider=policy,
            session=session,
            concurrent_tools=["*"] if int(folder.name) % 2 else (),  # half of the runs hand over whole turns
        )
        run = loop.resume() if session.needs_reply else loop.run("go")
        for event in run.events():
            if event.kind in ("turn-committed", "tool-result"):
                told = event.to_dict()
                tell("committed", told.get("message-id") or told["id"])
        outcome = run.result()
        if not outcome.ok or vendor.refusals:
            raise RuntimeError(outcome.error or str(vendor.refusals))


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
        os._exit(0)
    os.close(write_end)
    return pid, read_end


def left_alone(folder: Path) -> list[str]:
    """Wait until nothing that the child had started lives any more, and name what still does after 5 s."""
    give_up = monotonic() + 5
    sought = f"KILLED_WIRING={folder}\0".encode()
    while found := [pid for pid in os.listdir("/proc") if pid.isdigit() and sought in environment_of(pid)]:
        if monotonic() > give_up:
            return found
        select.select([], [], [], 0.005)
    return []


def environment_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return b""


def one(folder: Path, dice: random.Random) -> dict[str, Any]:
    """Kill a run at a random moment, look at what it left, then let another process finish it."""
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "edited").write_text("END\n")
    pid, pipe = spawn(folder)
    # A moment is a number of reports, and then a fraction of what one call takes.
    reports = b""
    for _ in range(dice.randrange(0, 2 * CALLS + 8)):
        ready, _, _ = select.select([pipe], [], [], 10)
        block = os.read(pipe, 30) if ready else b""
        if not block:
            break
        reports += block
    select.select([], [], [], dice.random() * 0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    orphans = left_alone(folder)
    told = [line.split() for line in (reports + rest_of(pipe)).decode().splitlines()]
    found = inspect(folder, told)
    pid, pipe = spawn(folder)
    later = [line.split() for line in rest_of(pipe).decode().splitlines()]
    _, status = os.waitpid(pid, 0)
    after = effects(folder)
    granted = set(found["grants"])
    answers = {words[1]: words[0] for words in told + later if words[0] in ("always", "once")}
    asked_later = {words[1] for words in later if words[0] in ("always", "once")}
    return found | {
        "orphans": orphans + left_alone(folder),
        "finished": status == 0,
        "twice": sorted(mark for mark, count in after.items() if count > 1),
        "asked-again": sorted(mark for mark in asked_later if tool_of(mark) in granted),
        "unpermitted": sorted(mark for mark in after if not is_permitted(mark, answers)),
        "drafts": len(list((folder / "work").rglob(".*.tmp"))),
    }


def rest_of(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as rest:
        return rest.read()


def tool_of(mark: str) -> str:
    return {"write": "fs_write", "edit": "fs_edit", "run": "fs_run", "note": "mcp_note"}[mark[:-1]]


def is_permitted(mark: str, answers: Mapping[str, str]) -> bool:
    """Whether a human was asked about the call, or about another one of its tool for good."""
    tool = tool_of(mark)
    return mark in answers or any(answer == "always" and tool_of(other) == tool for other, answer in answers.items())


def inspect(folder: Path, told: list[list[str]]) -> dict[str, Any]:
    """What the first process has left: in the transcript, and in the world."""
    path = folder / "run.jsonl"
    if not path.exists() or path.stat().st_size == 0:
        return {"early": True, "grants": [], "lost-grants": [], "missing": told, "unannounced": [], "fault": None}
    before = effects(folder)
    with Session.open(path) as session:
        results = {message.tool_call_id for message in session.messages if message.role == "tool"}
        known = {*session.message_ids, *results}
        verdicts = {repair.call_id: repair.verdict for repair in session.repair()}
        fault = conversation_fault([m.to_wire() for m in WireView.of(session.messages).messages])
        grants = sorted({grant["rule"]["tool"] for grant in session.grants})
    answered = results - set(verdicts)
    honest = ("unknown", "only-settle-was-lost")
    # Told as remembered, or acted upon: then it is on disk.
    promised = {tool for words in told if words[0] == "granted" for tool in words[1:]}
    promised |= {tool_of(words[1]) for words in told if words[0] == "always" and words[1] in before}
    return {
        "early": False,
        "grants": grants,
        "lost-grants": sorted(promised - set(grants)),
        "missing": [words for words in told if words[0] == "committed" and words[1] not in known],
        "unannounced": [mark for mark in before if mark not in answered and verdicts.get(mark) not in honest],
        "fault": None if fault is None else str(fault),
        "repairs": sorted(verdicts.values()),
    }


def effects(folder: Path) -> Counter[str]:
    """Every mark that a call has left in the world, and how often."""
    files = [folder / "noted", folder / "work" / "ran", folder / "work" / "edited"]
    marks = [mark for file in files if file.exists() for mark in file.read_text().split() if mark != "END"]
    out = folder / "work" / "out"
    marks += [path.name for path in out.iterdir() if not path.name.startswith(".")] if out.exists() else []
    return Counter(marks)


if __name__ == "__main__":
    base, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dice = random.Random(seed)
    print(json.dumps([one(base / str(number), dice) for number in range(count)]))
