"""Which old tool results a short stub can stand for.

A stub says how long the result was, which tool gave it, and that the call can be repeated. It
follows from these alone, so the same conversation ages the same way in every process, and is
left alone between two passes: every change to it costs the prompt cache. The law: the newest
answer to a repeated call is never stubbed, nor is a stub. Pure; when to age is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_

import attrs

from llm_agent import notices
from llm_agent.canonical import canonical_arguments
from llm_agent.messages import Message, ToolRequest

_CallKey = tuple[str, str]


def stub_for(length: int, tool: str | None) -> str:
    """Return what stands for a result of *length* characters; *tool* where it is known."""
    return notices.ELIDED_RESULT.format(count=length, kind=f"{tool} result" if tool else "result")


@attrs.frozen
class Rules:
    """When a result that nobody asked for twice is old enough."""

    min_chars: int
    """It is longer than this,"""
    reclaim_min: int
    """and at least as many characters of content came after it."""


@attrs.frozen
class _Result:
    """A tool result that a stub may one day stand for."""

    index: int
    length: int
    chars_through: int
    """Characters of content up to and including it."""
    tool: str | None
    key: _CallKey | None
    """Which call it answers, by what that means; `None` when no call of the turn before it."""
    stub: str


class Observations:
    """The tool results of one conversation, kept up to date as it grows.

    `follow` looks at the messages that were added since; one that was shortened or rewritten is
    read again. One owner.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._start()

    def _start(self) -> None:
        self._seen: list[Message] = []
        self._chars = 0
        self._results: list[_Result] = []
        self._answers: dict[_CallKey, int] = {}
        self._newest: dict[_CallKey, int] = {}
        self._asked: dict[str, ToolRequest] = {}

    def follow(self, messages: Sequence[Message]) -> None:
        """Take the conversation as it is now."""
        known = len(self._seen)
        if known > len(messages) or not all(map(is_, self._seen, messages)):
            self._start()
            known = 0
        for index in range(known, len(messages)):
            self._take(index, messages[index])

    def _take(self, index: int, message: Message) -> None:
        length = len(message.text)
        self._seen.append(message)
        self._chars += length
        if message.role == "tool":
            self._take_result(index, message, length)
        elif message.tool_calls:
            # Only the turn before a result counts: ids may come again in a later one. Within a
            # turn, the first call of an id has it.
            self._asked = {call.id: call for call in reversed(message.tool_calls)}

    def _take_result(self, index: int, message: Message, length: int) -> None:
        call = self._asked.get(message.tool_call_id or "")
        key = None if call is None else (call.name, canonical_arguments(call.arguments))
        if key is not None:
            self._answers[key] = self._answers.get(key, 0) + 1
            self._newest[key] = index
        if message.is_sticky or message.text.startswith(notices.ELIDED_PREFIX):
            return
        tool = call.name if call is not None else None
        stub = stub_for(length, tool)
        if len(stub) < length:  # a stub that is longer than what it stands for gains nothing
            self._results.append(_Result(index, length, self._chars, tool, key, stub))

    def stubs(self, cut: int) -> dict[int, str]:
        """Return the stubs for all results up to index *cut* that may be replaced, by their index."""
        return {result.index: result.stub for result in self._eligible(cut)}

    def pool(self, cut: int) -> int:
        """Return how many characters `stubs` would replace."""
        return sum(result.length for result in self._eligible(cut))

    def _eligible(self, cut: int) -> Iterator[_Result]:
        for result in self._results:
            if result.index > cut:
                return
            if self._is_eligible(result):
                yield result

    def _is_eligible(self, result: _Result) -> bool:
        if result.key is not None and self._answers[result.key] > 1:
            return result.index != self._newest[result.key]
        is_old = self._chars - result.chars_through >= self._rules.reclaim_min
        return is_old and result.length > self._rules.min_chars
