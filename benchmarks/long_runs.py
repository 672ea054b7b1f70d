"""A run of 1,000 rounds in a window of 32,000 tokens: whether it ends well, and what it costs.

A scripted model reads files, some of them again and again: six of ten have a few hundred
characters, three a few thousand, one up to 12,000. Its bills are those of a tokenizer that
differs from the loop's estimate. The summariser answers in 400 words. Nothing is sent over a
network: sizes and counts are what matters here.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import measure

from llm_agent import Compactor, HeuristicCounter, Loop, Message, Session, UsageCounter, tool
from llm_agent.messages import Delta, ToolRequest, Usage
from llm_agent.ports import CompletionRequest
from llm_agent.tools.toolbox import Toolbox

FILES = 80
SIZES = [(200, 1_000)] * 6 + [(1_000, 4_000)] * 3 + [(4_000, 12_000)]
"""Characters of a file, one of these ten ranges each."""
# What the "server" counts with; the loop's own estimate divides by 4.
BILLED = HeuristicCounter(chars_per_token=3.6, per_message_overhead=5)
NOTES = "GOALS\nread everything once, report what is wrong\nDECISIONS\n" + "kept the old format of file_12; " * 60


def contents() -> list[str]:
    """The files, the same in every process."""
    dice = random.Random(7)
    words = ["return", "value", "def", "for", "index", "not", "None", "path", "=", "(self,", "message)"]
    sizes = [dice.randint(*dice.choice(SIZES)) for _ in range(FILES)]
    return [" ".join(dice.choices(words, k=size // 5))[:size] for size in sizes]


@attrs.define
class Model:
    """Reads one file per round, and then has its last word."""

    rounds: int
    model: str = "scripted"
    max_tokens: int | None = None
    sizes: list[int] = attrs.field(factory=list)
    """Tokens of each request, as billed."""
    repeated: list[int] = attrs.field(factory=list)
    """How many of them stood in the same place in the request before: what a prompt cache has."""
    _dice: random.Random = attrs.field(factory=lambda: random.Random(11))
    _last: tuple[Message, ...] = ()

    def stream(self, request: CompletionRequest) -> Iterator[Delta]:
        prompt = BILLED.count_request(request.messages, request.tools)
        cached = BILLED.count_messages(request.messages[: self._common(request.messages)])
        self.sizes.append(prompt)
        self.repeated.append(cached)
        self._last = request.messages
        usage = Usage(prompt_tokens=prompt, completion_tokens=40, cached_prompt_tokens=cached)
        number = len(self.sizes)
        if number > self.rounds:
            yield Delta("Nothing is wrong.")
            yield Delta(finish_reason="stop", usage=usage)
            return
        yield Delta(f"I look at the next file, number {number} of my list.")
        name = f'{{"number": {self._dice.randrange(FILES)}}}'
        yield Delta(
            tool_calls=(ToolRequest(f"call_{number}", "read_file", name),), finish_reason="tool_calls", usage=usage
        )

    def _common(self, messages: tuple[Message, ...]) -> int:
        pairs = zip(messages, self._last, strict=False)
        return next(
            (place for place, (new, old) in enumerate(pairs) if new is not old), min(len(messages), len(self._last))
        )


@attrs.define
class Summariser:
    """Writes the same notes every time; counts what it was asked."""

    model: str = "summariser"
    max_tokens: int | None = None
    asked: int = 0

    def stream(self, request: CompletionRequest) -> Iterator[Delta]:
        self.asked += 1
        usage = Usage(prompt_tokens=BILLED.count_messages(request.messages), completion_tokens=len(NOTES) // 4)
        yield Delta(NOTES)
        yield Delta(finish_reason="stop", usage=usage)


def toolbox() -> Toolbox:
    files = contents()

    @tool(idempotency="read-only")
    def read_file(number: int) -> str:
        """Read a file.

        Args:
            number: which one
        """
        return files[number]

    return Toolbox([read_file])


def played(model: Model, path: Path, compactor: Compactor | None) -> Any:
    """Run *model* to its last word with a session on *path*; returns the outcome."""
    with Session.create(path) as session:
        loop = Loop(
            model,
            tools=toolbox(),
            session=session,
            system_prompt="You read source code and report what is wrong. " * 30,
            compactor=compactor,
            max_tool_rounds=10_000,
            max_identical_calls=10_000,
        )
        outcome = loop.run("Read every file and tell me what is wrong.").result()
    if not outcome.ok:
        raise RuntimeError(f"the run did not end well: {outcome.error}")
    return outcome


def compactor(window: int, summariser: Any, *, ages: bool) -> Compactor:
    return Compactor(summariser, UsageCounter(), window, age_observations=ages, keep_recent=6)


def long_run(rounds: str, window: str, ages: str) -> dict[str, Any]:
    """One run in this process: what was sent, what it took."""
    model, summariser = Model(int(rounds)), Summariser()
    empty = peak_mib()
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        played(model, path, compactor(int(window), summariser, ages=ages == "ages"))
        written = path.stat().st_size
    return {
        "requests": len(model.sizes),
        "largest": max(model.sizes),
        "over": sum(size > int(window) for size in model.sizes),
        "summaries": 100 * summariser.asked / (len(model.sizes) + summariser.asked),
        "cached": 100 * sum(model.repeated) / sum(model.sizes),
        "billed": sum(model.sizes) / 1e6,
        "memory": peak_mib() - empty,
        "transcript": written / 2**20,
        "cpu": (time.process_time() - cpu) * 1000 / int(rounds),
    }


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


TOLD = (
    ("requests", "requests that ended well", "requests", ""),
    ("largest", "largest request", "tokens", "at most the window"),
    ("over", "requests over the window", "requests", "= 0"),
    ("summaries", "share of summaries", "%", "at most 2"),
    ("cached", "share of the prompt that a cache has", "%", ""),
    ("billed", "prompt tokens in all", "M", ""),
    ("memory", "peak memory above the start", "MiB", ""),
    ("transcript", "size of the transcript", "MiB", ""),
    ("cpu", "CPU per round", "ms", ""),
)


def main() -> None:
    measure.serve_as_child({"long_run": long_run})
    asked = measure.options(__doc__, n=1, rounds=1000, window=32_000)
    subjects = ("summaries", "ages")
    records = measure.interleaved(
        subjects, asked.n, lambda name: measure.in_child(__file__, "long_run", asked.rounds, asked.window, name)
    )
    names = {"summaries": "summaries only", "ages": "aging first"}
    figures = [
        measure.figure(
            "long_runs", names[subject], what, unit, [record[key] for record in records[subject]], target=target
        )
        for subject in subjects
        for key, what, unit, target in TOLD
    ]
    measure.report(figures, as_json=asked.json)


if __name__ == "__main__":
    main()
