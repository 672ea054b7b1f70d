"""A completion as an OpenAI-compatible server spells it: streamed events, or one JSON document.

Pure functions from values to bytes. How the bytes travel is `answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llm_agent import codec
from llm_agent.messages import ToolRequest, Usage

# Any instant will do; a fixed one keeps the bytes of two servers equal.
_CREATED: Final = 1_700_000_000
_ID: Final = "chatcmpl-scripted"

DONE: Final = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event that carries *data*."""
    return b"data: " + codec.dumps(data) + b"\n\n"


@attrs.frozen(kw_only=True)
class Completion:
    """What the scripted model says in one answer."""

    texts: tuple[str, ...] = ()
    """One delta each."""
    reasoning: str = ""
    calls: tuple[ToolRequest, ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    model: str = "scripted"

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        """Return the event of one delta."""
        return event(
            {
                "id": _ID,
                "object": "chat.completion.chunk",
                "created": _CREATED,
                "model": self.model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
            }
        )

    def opening(self) -> list[bytes]:
        """The events up to the last delta of text."""
        events = [self.chunk({"role": "assistant", "content": ""})]
        if self.reasoning:
            events.append(self.chunk({"reasoning_content": self.reasoning}))
        return events + [self.chunk({"content": text}) for text in self.texts]

    def closing(self) -> list[bytes]:
        """The events behind the text: calls, the finish reason, usage, the end marker."""
        events = [self.chunk({"tool_calls": [delta]}) for delta in self._call_deltas()]
        if self.finish_reason is not None:
            events.append(self.chunk({}, self.finish_reason))
        if self.usage is not None:
            tail = {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": self.model}
            events.append(event({**tail, "choices": [], "usage": self.usage}))
        return [*events, DONE]

    def _call_deltas(self) -> list[dict[str, Any]]:
        """Each call as servers send it: its head first, then its arguments in two halves."""
        deltas: list[dict[str, Any]] = []
        for index, call in enumerate(self.calls):
            head = {"name": call.name, "arguments": ""}
            deltas.append({"index": index, "id": call.id, "type": "function", "function": head})
            text = _argument_text(call)
            half = len(text) // 2
            deltas += [{"index": index, "function": {"arguments": part}} for part in (text[:half], text[half:]) if part]
        return deltas

    def document(self) -> bytes:
        """The whole completion as one JSON document, for a request that does not stream."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.texts)}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.to_dict() for call in self.calls]
            message["content"] = message["content"] or None
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        body = {"id": _ID, "object": "chat.completion", "created": _CREATED, "model": self.model, "choices": [choice]}
        return codec.dumps(body if self.usage is None else {**body, "usage": self.usage})


def _argument_text(call: ToolRequest) -> str:
    if isinstance(call.arguments, str):
        return call.arguments
    return "" if call.arguments is None else codec.dumps(call.arguments).decode()


def usage_on_the_wire(usage: Usage | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *usage* as servers report it; a mapping is taken to be in that shape."""
    if not isinstance(usage, Usage):
        return usage
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.billed_total,
        "cost": usage.cost,
    }
    if usage.cached_prompt_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_prompt_tokens}
    return {key: value for key, value in told.items() if value is not None}


def error_document(
    message: str, *, kind: str = "invalid_request_error", code: str | None = None, param: str | None = None
) -> bytes:
    """Return an error body in OpenAI's form."""
    return codec.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def split_parts(
    parts: Sequence[str | ToolRequest],
) -> tuple[str, tuple[ToolRequest, ...]]:
    """Return the text and the calls of a turn that is written as a list of both."""
    text = "".join(part for part in parts if isinstance(part, str))
    return text, tuple(part for part in parts if isinstance(part, ToolRequest))
