"""What the tests of the compactor share: conversations, a flat counter, and a compactor to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_agent import Message, Session, ToolRequest
from llm_agent.compactor import Compactor
from llm_agent.folding import folded, with_stubs
from llm_agent.ports import Compaction
from llm_agent.testing import ScriptedBackend, check_conversation
from llm_agent.wire_view import WireView


class FlatCounter:
    """Ten tokens a message, whatever it says; remembers how often it was told to forget."""

    def __init__(self, per_message: int = 10) -> None:
        self.per_message = per_message
        self.invalidations = 0

    def count_messages(self, messages: Sequence[Message]) -> int:
        return self.per_message * len(messages)

    def count_text(self, text: str) -> int:
        return self.per_message

    def count_request(self, messages: Sequence[Message], tools: Any, context: Any = ()) -> int:
        return self.count_messages([*messages, *context])

    def record_usage(self, **_: object) -> None:
        """Nothing is learned."""

    def invalidate(self) -> None:
        self.invalidations += 1


def dialogue(turns: int) -> list[Message]:
    """Return a sticky system prompt and *turns* messages, a user's and an assistant's in turn."""
    said = [
        Message.user(f"question {number}") if number % 2 else Message.assistant(f"answer {number}")
        for number in range(1, turns + 1)
    ]
    return [Message("system", "You are terse.", sysprompt=True), *said]


def batch(number: int, *results: str, name: str = "read", arguments: str | None = None) -> list[Message]:
    """Return a turn that calls a tool once per result, and the results."""
    calls = [
        ToolRequest(f"c{number}_{place}", name, arguments or f'{{"n": "{number}.{place}"}}')
        for place in range(len(results))
    ]
    answers = [Message.tool(call.id, result) for call, result in zip(calls, results, strict=True)]
    return [Message.assistant("", calls), *answers]


def compactor(script: Any, budget: int = 100, **options: Any) -> Compactor:
    """Return a compactor over a flat counter; *script* is a backend, or what a scripted one says."""
    backend = script if hasattr(script, "stream") or _holds_backends(script) else ScriptedBackend(script)
    counter = options.pop("counter", None) or FlatCounter()
    return Compactor(backend, counter, budget, **{"keep_recent": 2, **options})


def _holds_backends(script: Any) -> bool:
    return isinstance(script, list) and bool(script) and all(hasattr(one, "stream") for one in script)


def check_fold(messages: Sequence[Message], result: Compaction) -> None:
    """Assert that *result* is what folding makes of *messages*, and that servers take it."""
    aged = with_stubs(messages, {one.index: one.stub for one in result.elisions})
    expected = folded(aged, result.summary, result.cut_index, result.kept) if result.dropped else aged
    assert expected == list(result.messages)
    check_conversation(WireView.of(result.messages).messages)


def write(session: Session, messages: Sequence[Message]) -> None:
    for message in messages:
        session.append_message(message)


def write_result(session: Session, result: Compaction) -> None:
    """Write what a loop writes: the elisions first, then the fold."""
    ids = session.message_ids
    if result.elisions:
        session.append_elision([{"id": ids[one.index], "stub": one.stub} for one in result.elisions])
    if result.dropped:
        session.append_compaction(
            result.summary,
            ids[result.cut_index],
            tokens_before=result.tokens_before,
            tokens_after=result.tokens_after,
            fallback=result.fallback,
            kept_ids=[ids[index] for index in result.kept],
        )
