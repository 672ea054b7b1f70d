"""The chat-completions wire: a request's bytes, and the numbers and parts of what comes back.

The law: pure functions of values and JSON. What a vendor leaves out is `None`, and what it
spells oddly is read if its meaning is plain. How fragments become calls: `assembler`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import orjson

from llm_agent import codec
from llm_agent.messages import Message, Usage
from llm_agent.ports import CompletionRequest, ToolDeclaration

NullContent = Literal["null", "empty", "omit"]
"""How the absent text of a turn that only calls tools is sent: some servers refuse `null`, others `""`."""

# `Message.wire_json` of such a turn begins so: the role, then the content.
_NULL_CONTENT = b'"content":null'
_CONTENT_SPELLED: dict[NullContent, tuple[bytes, bytes]] = {
    "empty": (_NULL_CONTENT, b'"content":""'),
    "omit": (_NULL_CONTENT + b",", b""),
}


_UNREPORTED = Usage()


def request_body(
    request: CompletionRequest, options: Mapping[str, Any], tools: bytes, null_content: NullContent
) -> bytes:
    """Return the JSON of *request* with *options* beside it; `request.extra` has the last word.

    What a message weighs was paid when it was first sent: its bytes are copied, not made again.
    """
    messages = [_message_json(message, null_content) for message in request.messages]
    try:
        return orjson.dumps(_body(request, options, messages, tools, orjson.Fragment), option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an option orjson has no word for, and the encoder that has knows no fragments
        return codec.dumps(_body(request, options, messages, tools, codec.loads))


def _body(
    request: CompletionRequest,
    options: Mapping[str, Any],
    messages: list[bytes],
    tools: bytes,
    embed: Callable[[bytes], Any],
) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [embed(message) for message in messages], **options}
    if request.tools:
        body["tools"] = embed(tools)
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
    return body | dict(request.extra or {})


def _message_json(message: Message, null_content: NullContent) -> bytes:
    wire = message.wire_json
    if null_content == "null" or not message.tool_calls:
        return wire
    written, wanted = _CONTENT_SPELLED[null_content]
    head = wire.find(_NULL_CONTENT, 0, 40)
    return wire if head < 0 else wire[:head] + wire[head:].replace(written, wanted, 1)


def tools_json(tools: Sequence[ToolDeclaration]) -> bytes:
    """Return the declarations as JSON."""
    return codec.dumps(list(tools))


def usage_from(raw: Any, chunk: Mapping[str, Any]) -> Usage | None:
    """Read a usage object of any vendor; `None` when nothing in it is a number."""
    if not isinstance(raw, Mapping):
        return None
    usage = Usage(
        prompt_tokens=_count(raw, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(raw, "completion_tokens", "output_tokens"),
        total_tokens=_count(raw, "total_tokens"),
        cached_prompt_tokens=_cached(raw),
        cost=_amount(raw.get("cost")),
    )
    if usage == _UNREPORTED:
        return None
    return attrs.evolve(usage, generation_id=_name(chunk.get("id")), provider_name=_name(chunk.get("provider")))


def _count(raw: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = _amount(raw.get(key))
        if value is not None:
            return int(value)
    return None


def _amount(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15 else None


def _cached(raw: Mapping[str, Any]) -> int | None:
    for key in ("prompt_tokens_details", "input_tokens_details"):
        details = raw.get(key)
        if isinstance(details, Mapping) and (count := _count(details, "cached_tokens")) is not None:
            return count
    return _count(raw, "prompt_cache_hit_tokens", "cached_tokens")


def _name(value: Any) -> str | None:
    return codec.clean_text(value) if isinstance(value, str) and value else None


def error_in(chunk: Any) -> Any:
    """Return the error a parsed event reports, in whatever shape it does; `None` when it reports none."""
    if isinstance(chunk, list):
        return next((error for item in chunk if (error := error_in(item)) is not None), None)
    if not isinstance(chunk, Mapping):
        return None
    error = chunk.get("error")
    if error:
        # A bare sentence, or an object without a code, may have its code beside it.
        return chunk if isinstance(error, str) or "code" in chunk else error
    if chunk.get("object") == "error":
        return chunk
    groq = chunk.get("x_groq")
    if isinstance(groq, Mapping) and groq.get("error"):
        return groq["error"]
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and choice.get("error"):
            return choice["error"]
    return None


def content_of(delta: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text and the reasoning of a delta or message; a refusal is text."""
    text, reasoning = _parts_of(delta.get("content"))
    refusal = delta.get("refusal")
    if isinstance(refusal, str):
        text += refusal
    return text, reasoning or _reasoning_of(delta)


def _parts_of(content: Any) -> tuple[str, str]:
    match content:
        case str():
            return content, ""
        case Mapping():
            return _part(content)
        case list():
            parts = [_parts_of(part) for part in content]
            return "".join(text for text, _ in parts), "".join(reasoning for _, reasoning in parts)
        case _:
            return "", ""


def _part(part: Mapping[str, Any]) -> tuple[str, str]:
    if part.get("type") in ("thinking", "reasoning"):
        return "", _flat(part.get("thinking", part.get("text")))
    return _flat(part.get("text")), ""


def _flat(value: Any) -> str:
    match value:
        case str():
            return value
        case list():
            return "".join(_flat(item) for item in value)
        case Mapping():
            return _flat(value.get("text"))
        case _:
            return ""


def _reasoning_of(delta: Mapping[str, Any]) -> str:
    # Vendors that send two of these send the same words in both.
    for key in ("reasoning_content", "reasoning"):
        value = delta.get(key)
        if isinstance(value, Mapping):
            value = value.get("content") or value.get("text")
        if isinstance(value, str) and value:
            return value
    details = delta.get("reasoning_details")
    if not isinstance(details, list):
        return ""
    return "".join(
        _flat(item.get("text") or item.get("summary"))
        for item in details
        if isinstance(item, Mapping) and item.get("type") != "reasoning.encrypted"
    )
