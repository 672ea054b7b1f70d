"""CPU per token in bulk: one answer of 20,000 deltas, one consumer, a session attached.

Against the least that `requests` can do: `iter_lines`, `orjson.loads`, a list. Each measure
is a process of its own (CPU of all its threads, after a small warm-up request), interleaved.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import orjson
import requests

TARGET = "<= 4 x floor"


def floor(url: str, count: str) -> dict[str, Any]:
    """A bare loop over `requests`."""
    session = requests.Session()
    return timed(lambda model: bare(session, url, model), int(count))


def bare(session: requests.Session, url: str, model: str) -> list[str]:
    ask = {"model": model, "stream": True, "messages": [{"role": "user", "content": measure.PROMPT}]}
    texts: list[str] = []
    headers = {"Authorization": f"Bearer {measure.API_KEY}", "Content-Type": "application/json"}
    with session.post(f"{url}/chat/completions", data=orjson.dumps(ask), headers=headers, stream=True) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line[:6] != b"data: " or line == b"data: [DONE]":
                continue
            choices = orjson.loads(line[6:])["choices"]
            if choices and (text := choices[0]["delta"].get("content")):
                texts.append(text)
    return texts


def engine(url: str, count: str) -> dict[str, Any]:
    """A run of ours, its events consumed on the main thread."""
    from llm_agent import Loop, OpenAIBackend, Session
    from llm_agent.events import Token

    def consume(model: str) -> list[str]:
        backend = OpenAIBackend(model=model, base_url=url, api_key=measure.API_KEY)
        with Session.create(Path(folder) / f"{model}.jsonl") as session:
            run = Loop(backends=[backend], session=session).run(measure.PROMPT)
            texts = [event.text for event in run.events() if isinstance(event, Token)]
        assert run.result().final == "".join(texts)
        return texts

    with tempfile.TemporaryDirectory() as folder:
        return timed(consume, int(count))


def timed(consume: Callable[[str], list[str]], count: int) -> dict[str, Any]:
    consume("text-20")
    cpu, wall = time.process_time(), time.perf_counter()
    texts = consume(f"text-{count}")
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert "".join(texts) == measure.expected_text(count)
    assert len(texts) == count
    return {"cpu_us": cpu / count * 1e6, "tokens_per_s": count / wall}


def main() -> None:
    measure.serve_as_child({"floor": floor, "engine": engine})
    asked = measure.options(__doc__, n=7, count=20_000)
    with measure.scripted_server() as url:
        records = measure.interleaved(
            ["floor", "engine"], asked.n, lambda name: measure.in_child(__file__, name, url, asked.count)
        )
    cpu = {name: [record["cpu_us"] for record in rows] for name, rows in records.items()}
    base = measure.figure("tokens", "bare requests", "CPU per token", "us", cpu["floor"])
    speed = {name: [record["tokens_per_s"] for record in rows] for name, rows in records.items()}
    figures = [
        base,
        measure.figure("tokens", "llm_agent", "CPU per token", "us", cpu["engine"], floor=base.median, target=TARGET),
        measure.figure("tokens", "bare requests", "speed", "tokens/s", speed["floor"]),
        measure.figure("tokens", "llm_agent", "speed", "tokens/s", speed["engine"]),
    ]
    measure.report(figures, as_json=asked.json)


if __name__ == "__main__":
    main()
