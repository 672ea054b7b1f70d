"""A compaction besides the summariser, and asking whether one is due: wall time, in one process.

The summariser answers at once, refuses at once (then the middle is trimmed), or is not needed
(old results become stubs). The conversation is one of tool rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import measure

from llm_agent import Message, ToolRequest
from llm_agent.compactor import Compactor
from llm_agent.errors import BackendError
from llm_agent.ports import CompletionRequest, TokenCounter
from llm_agent.token_count import HeuristicCounter, UsageCounter

COUNTERS: dict[str, Callable[[], TokenCounter]] = {"HeuristicCounter": HeuristicCounter, "UsageCounter": UsageCounter}
NEVER_FULL = 10**9


class Summariser:
    """Says the same at once, or refuses."""

    model, max_tokens = "summariser", None

    def __init__(self, *, refuses: bool = False) -> None:
        self._refuses = refuses

    def stream(self, request: CompletionRequest) -> Iterable[str]:
        if self._refuses:
            raise BackendError("bad key", "http", 401)
        return ["They talked."]


def conversation(count: int) -> list[Message]:
    """Return *count* messages: a prompt, then turns with one call and its result."""
    messages = [Message.system("You are a coding assistant."), Message.user("Make the tests pass.")]
    for number in range(count // 2 - 1):
        call = ToolRequest(f"call_{number}", "read_file", f'{{"path": "src/module_{number}.py"}}')
        messages += [Message.assistant("I read it.", [call]), Message.tool(call.id, "line of code\n" * 40)]
    return messages


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    asked = measure.options(__doc__, n=15, messages=5_000, asked=2_000)
    figures = compacting(asked.n, asked.messages) + asking(asked.n, asked.asked)
    measure.report(figures, as_json=asked.json)


def compacting(repeat: int, count: int) -> list[measure.Figure]:
    def once(subject: str) -> dict[str, Any]:
        counter, way = subject.split(", ")
        messages = conversation(count)
        compactor = Compactor(
            Summariser(refuses=way == "trimmed"),
            COUNTERS[counter](),
            count * 100,
            age_observations=way == "aged",
            age_min_chars=100,
        )
        return {"ms": milliseconds(lambda: compactor.compact(messages))}

    subjects = [f"{counter}, {way}" for counter in COUNTERS for way in ("summarised", "trimmed", "aged")]
    records = measure.interleaved(subjects, repeat, once)
    return [
        measure.figure(
            "compaction",
            subject,
            f"compact {count} messages",
            "ms",
            [record["ms"] for record in records[subject]],
            target="<= 50 ms",
        )
        for subject in subjects
    ]


def asking(repeat: int, count: int) -> list[measure.Figure]:
    """Ask after every round, as a loop does: the conversation has grown by two messages."""

    def once(subject: str) -> dict[str, Any]:
        messages = conversation(count)
        compactor = Compactor(Summariser(), HeuristicCounter(), NEVER_FULL, age_observations=subject == "with aging")
        compactor.needs_compaction(messages[:-2], tokens=1)
        return {"ms": milliseconds(lambda: compactor.needs_compaction(messages, tokens=1))}

    records = measure.interleaved(["without aging", "with aging"], repeat, once)
    return [
        measure.figure(
            "compaction",
            subject,
            f"needs_compaction, {count} messages",
            "ms",
            [record["ms"] for record in rows],
            target="<= 2 ms" if subject == "with aging" else "<= 1 ms",
        )
        for subject, rows in records.items()
    ]


if __name__ == "__main__":
    main()
