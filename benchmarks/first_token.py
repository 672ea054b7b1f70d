"""From the server's write to the consumer, for the first token and for later ones.

The server waits, then writes headers, role and first token at once; later tokens come alone,
at a pace, to a reader that is blocked. Each token carries the moment it was written. Against
a reader of `raw.read1` on its own thread's stack, which is the least a client of `requests`
can do. Interleaved answer by answer in one process, over warm connections.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import monotonic_ns

import measure
import orjson
import requests

from llm_agent import Loop, OpenAIBackend
from llm_agent.events import Token

FRAMINGS = ("chunked", "close", "gzip")
TOKENS = 6

Reader = Callable[[str], list[float]]


def bare(url: str) -> Reader:
    session = requests.Session()
    headers = {"Authorization": f"Bearer {measure.API_KEY}", "Content-Type": "application/json"}

    def read(model: str) -> list[float]:
        ask = {"model": model, "stream": True, "messages": [{"role": "user", "content": measure.PROMPT}]}
        late: list[float] = []
        rest = b""
        with session.post(f"{url}/chat/completions", data=orjson.dumps(ask), headers=headers, stream=True) as response:
            while data := response.raw.read1(65_536, decode_content=True):
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    text = content_of(event)
                    if text:
                        late.append(lateness(text))
        return late

    return read


def content_of(event: bytes) -> str:
    if event == b"data: [DONE]":
        return ""
    content: str = orjson.loads(event[6:])["choices"][0]["delta"].get("content", "")
    return content


def lateness(text: str) -> float:
    """Milliseconds since the server wrote the token *text*."""
    return (monotonic_ns() - int(text)) / 1e6


def engine(url: str) -> Reader:
    def read(model: str) -> list[float]:
        backend = OpenAIBackend(model=model, base_url=url, api_key=measure.API_KEY)
        run = Loop(backends=[backend]).run(measure.PROMPT)
        late = [lateness(event.text) for event in run.events() if isinstance(event, Token)]
        assert run.result().ok, run.result().error
        return late

    return read


def main() -> None:
    asked = measure.options(__doc__, n=60, pace_ms=10)
    figures = []
    with measure.paced_server() as url:
        readers = {"bare read1": bare(url), "llm_agent": engine(url)}
        for framing in FRAMINGS:
            model = f"paced-{TOKENS}-{asked.pace_ms}-{framing}"
            figures += of_framing(framing, lateness_of(readers, model, asked.n))
    measure.report(figures, as_json=asked.json)


def lateness_of(readers: dict[str, Reader], model: str, repeat: int) -> dict[str, list[list[float]]]:
    for read in readers.values():
        read(model)
    records = measure.interleaved(list(readers), repeat, lambda name: {"late": readers[name](model)})
    return {name: [row["late"] for row in rows] for name, rows in records.items()}


def of_framing(framing: str, late: dict[str, list[list[float]]]) -> list[measure.Figure]:
    figures = []
    base: dict[str, float] = {}
    for name, answers in late.items():
        assert all(len(answer) == TOKENS for answer in answers)
        first = [answer[0] for answer in answers]
        later = [one for answer in answers for one in answer[1:]]
        for what, values in ((f"first token, {framing}", first), (f"later tokens, {framing}", later)):
            floor = base.setdefault(what, statistics.median(values))
            target = "<= 1.6 x and < 1.5 ms" if name == "llm_agent" and what.startswith("first") else ""
            told = None if name == "bare read1" else floor
            figures.append(measure.figure("first_token", name, what, "ms", values, floor=told, target=target))
    return figures


if __name__ == "__main__":
    main()
