"""CPU per tool round, over 100 and over 400 rounds, a session attached.

A round is one request that carries the whole conversation, one streamed call, one execution,
and four lines of transcript. The floor sends and reads the same with `requests` and keeps
nothing. Each measure is a process of its own (CPU of all its threads), interleaved.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import orjson
import requests


def floor(url: str, rounds: str) -> dict[str, Any]:
    """The same rounds as a bare loop: plain dicts, serialised anew in every request."""
    session = requests.Session()
    bare(session, url, "tools-1")
    cpu, wall = time.process_time(), time.perf_counter()
    made = bare(session, url, f"tools-{rounds}")
    return told(cpu, wall, made, int(rounds))


def bare(session: requests.Session, url: str, model: str) -> int:
    messages: list[dict[str, Any]] = [{"role": "user", "content": measure.PROMPT}]
    headers = {"Authorization": f"Bearer {measure.API_KEY}", "Content-Type": "application/json"}
    made = 0
    while True:
        ask = orjson.dumps({"model": model, "stream": True, "messages": messages})
        with session.post(f"{url}/chat/completions", data=ask, headers=headers, stream=True) as response:
            name, call_id, arguments = read_call(response)
        if not name:
            return made
        made += 1
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        result = echo(**orjson.loads(arguments))
        messages.append({"role": "tool", "tool_call_id": call_id, "content": result})


def read_call(response: requests.Response) -> tuple[str, str, str]:
    name = call_id = arguments = ""
    for line in response.iter_lines():
        if line[:6] != b"data: " or line == b"data: [DONE]":
            continue
        for choice in orjson.loads(line[6:])["choices"][:1]:
            for call in choice["delta"].get("tool_calls", ()):
                name = name or call["function"].get("name", "")
                call_id = call_id or call.get("id", "")
                arguments += call["function"].get("arguments", "")
    return name, call_id, arguments


def echo(text: str, times: int, mode: str) -> str:
    """Echo the text."""
    return f"echo-result: {text}"


def engine(url: str, rounds: str) -> dict[str, Any]:
    """The rounds as a run of ours, its events consumed on the main thread."""
    from llm_agent import Loop, OpenAIBackend, Session
    from llm_agent.events import ToolResult

    def consume(model: str) -> int:
        backend = OpenAIBackend(model=model, base_url=url, api_key=measure.API_KEY)
        with Session.create(Path(folder) / f"{model}.jsonl") as session:
            run = Loop(backends=[backend], tools=[echo], session=session).run(measure.PROMPT)
            made = sum(isinstance(event, ToolResult) for event in run.events())
        assert run.result().status == "completed", run.result().error
        return made

    with tempfile.TemporaryDirectory() as folder:
        consume("tools-1")
        cpu, wall = time.process_time(), time.perf_counter()
        made = consume(f"tools-{rounds}")
        return told(cpu, wall, made, int(rounds))


def told(cpu: float, wall: float, made: int, rounds: int) -> dict[str, Any]:
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert made == rounds
    return {"cpu_ms": cpu / rounds * 1e3, "wall_ms": wall / rounds * 1e3}


def main() -> None:
    measure.serve_as_child({"floor": floor, "engine": engine})
    asked = measure.options(__doc__, n=5, short=100, long=400)
    subjects = {
        f"{name}-{rounds}": (name, rounds) for rounds in (asked.short, asked.long) for name in ("floor", "engine")
    }
    with measure.scripted_server() as url:
        records = measure.interleaved(
            list(subjects),
            asked.n,
            lambda subject: measure.in_child(__file__, subjects[subject][0], url, subjects[subject][1]),
        )
    cpu = {subject: [record["cpu_ms"] for record in rows] for subject, rows in records.items()}
    figures = []
    for rounds in (asked.short, asked.long):
        what = f"CPU per round, {rounds} rounds"
        base = measure.figure("rounds", "bare requests", what, "ms", cpu[f"floor-{rounds}"])
        target = "<= 3 ms" if rounds == asked.short else f"<= {limit(cpu[f'engine-{asked.short}']):.2f} ms"
        ours = measure.figure(
            "rounds", "llm_agent", what, "ms", cpu[f"engine-{rounds}"], floor=base.median, target=target
        )
        figures += [base, ours]
    measure.report(figures, as_json=asked.json)


def limit(short: list[float]) -> float:
    """What the long conversation may cost: 1.5 times the short one, or 0.6 ms more."""
    median = measure.figure("rounds", "", "", "ms", short).median
    return max(1.5 * median, median + 0.6)


if __name__ == "__main__":
    main()
