"""200 requests to a server that fails every fifth: errors, cut sockets, clean ends in mid-answer.

A run ended well when its answer is the whole text, and when what a terminal would show after
taking back what was retracted is the same text. Lost: less than that without an error.
Doubled: more.
"""

from __future__ import annotations

import collections
import time
from typing import Any

import measure

from llm_agent import Loop, OpenAIBackend, Run
from llm_agent.events import AttemptFailed, Token, TurnDiscarded

TOKENS = 40


def shown(run: Run) -> str:
    """What is left on a terminal that obeys retractions."""
    parts: list[str] = []
    for event in run.events():
        match event:
            case Token(text=text):
                parts.append(text)
            case AttemptFailed() | TurnDiscarded():
                parts.clear()
    return "".join(parts)


def ending(run: Run, expected: str) -> str:
    text = shown(run)
    outcome = run.result()
    if not outcome.ok:
        return "raised"
    if text == expected and outcome.final == expected:
        return "well"
    return "doubled" if len(text) > len(expected) or len(outcome.final or "") > len(expected) else "lost"


def requests_ended(url: str, percent: int, count: int) -> collections.Counter[str]:
    backend = OpenAIBackend(model=f"flaky-{percent}", base_url=url, api_key=measure.API_KEY)
    expected = measure.expected_text(TOKENS)
    return collections.Counter(
        ending(Loop(backends=[backend], backoff_cap=0.05).run(measure.PROMPT), expected) for _ in range(count)
    )


def main() -> None:
    asked = measure.options(__doc__, requests=200, percent=20)
    started = time.perf_counter()
    with measure.scripted_server() as url:
        counts = requests_ended(url, asked.percent, asked.requests)
    took = time.perf_counter() - started
    figures = [told("ended well", counts["well"], target=f"= {asked.requests}")]
    figures += [told(name, counts[name], target="= 0") for name in ("raised", "lost", "doubled")]
    figures.append(measure.figure("flaky", "llm_agent", "time of all", "s", [took]))
    measure.report(figures, as_json=asked.json)


def told(what: str, count: int, **rest: Any) -> measure.Figure:
    return measure.figure("flaky", "llm_agent", what, "requests", [count], **rest)


if __name__ == "__main__":
    main()
