"""What one attempt has brought so far: its text, its calls, its facts.

Published piece by piece as it arrives. The law: what a backend hands in is checked here, where
it can still be laid at its door as a failed attempt. Who reads, and why, is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from llm_agent.codec import clean_text, split_held
from llm_agent.messages import Delta, Reply, ToolRequest, Usage


class Scope:
    """The text and facts of one attempt while they arrive."""

    def __init__(self, publish: Callable[[str], object]) -> None:
        self._publish = publish
        self._texts: list[str] = []
        self._held = ""
        self._reasoning: list[str] = []
        self.tool_calls: list[ToolRequest] = []
        self.finish_reason: str | None = None
        self.usage = Usage()
        self.model: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add_text(self, text: str) -> None:
        """Publish a piece of text, never an empty one."""
        if self._held or not text.isascii():
            text, self._held = split_held(self._held + text)
        if text:
            self._texts.append(text)
            self._publish(text)

    def add(self, delta: Delta) -> None:
        """Take a piece that is more than text.

        Raises:
            TypeError: the backend has put something into it that is not what the field says.
        """
        _check(delta)
        if delta.text:
            self.add_text(delta.text)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        self.tool_calls += delta.tool_calls
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.usage = delta.usage or self.usage
        self.model = delta.model or self.model

    def uses_up(self, cap: int | None) -> bool:
        """Whether the completion took all that its *cap* allows: it is cut, whatever it says of its end."""
        used = self.usage.completion_tokens
        return cap is not None and used is not None and used >= cap

    def close(self) -> None:
        """The stream is over: what was held back stands alone."""
        if self._held:
            held, self._held = self._held, ""
            self._texts.append(clean_text(held))
            self._publish(clean_text(held))

    def reply(self) -> Reply:
        return Reply(
            text=self.text,
            reasoning=clean_text("".join(self._reasoning)),
            tool_calls=tuple(self.tool_calls),
            finish_reason=self.finish_reason,
            usage=self.usage,
            model=self.model,
        )


def _check(delta: Delta) -> None:
    """Refuse a delta that would do harm later, where it could no longer be laid at its backend's door."""
    for name in ("text", "reasoning"):
        _need(name, isinstance(getattr(delta, name), str | None), "text", delta)
    for name in ("finish_reason", "model"):
        _need(name, isinstance(getattr(delta, name), str | None), "text or None", delta)
    calls = delta.tool_calls
    is_calls = isinstance(calls, tuple | list) and all(isinstance(call, ToolRequest) for call in calls)
    _need("tool_calls", is_calls, "a tuple of ToolRequests", delta)
    _need("usage", isinstance(delta.usage, Usage | None), "a Usage or None", delta)
    if delta.usage is not None:
        for name in _USAGE_NUMBERS:
            value = getattr(delta.usage, name)
            is_number = value is None or (isinstance(value, int | float) and math.isfinite(value) and value >= 0)
            _need(f"usage.{name}", is_number, "a number of 0 or more, or None", delta)


_USAGE_NUMBERS: Final = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_prompt_tokens", "cost")


def _need(field: str, holds: bool, expected: str, delta: Delta) -> None:
    if not holds:
        value: Any = delta
        for name in field.split("."):
            value = getattr(value, name)
        raise TypeError(f"the backend's Delta.{field} must be {expected}, got {type(value).__name__}")
