"""What a tool answered, as text for a model and data for a machine. Pure functions on plain data.

Bytes never become text here: an image is a placeholder with its media type, since base64 in a
conversation costs a window and says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llm_agent import notices
from llm_agent.codec import dumps_line

KNOWN_BLOCKS: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})


def text_of_result(result: Mapping[str, Any]) -> str:
    """Return what the model reads of a tool's result.

    Args:
        result: the wire's `CallToolResult`. Without a list of content it is written out whole.
    """
    blocks = result.get("content")
    if not isinstance(blocks, list):
        return _compact(result) if result else ""
    return "\n".join(text_of_block(block) for block in blocks)


def text_of_block(block: Any) -> str:
    """Return one content block as text; one of an unknown kind as its JSON."""
    if not isinstance(block, Mapping):
        return str(block)
    match block.get("type"):
        case "text" if isinstance(block.get("text"), str):
            return str(block["text"])
        case "image" | "audio" as kind:
            return notices.MCP_MEDIA.format(kind=kind, media_type=block.get("mimeType") or "unknown type")
        case "resource" if isinstance(block.get("resource"), Mapping):
            return _text_of_resource(block["resource"])
        case "resource_link":
            return notices.MCP_RESOURCE.format(uri=block.get("uri"))
        case _:
            return _compact(block)


def structured_of(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the machine's half of a result; `None` where the server sent none."""
    structured = result.get("structuredContent")
    return dict(structured) if isinstance(structured, Mapping) else None


def _text_of_resource(resource: Mapping[str, Any]) -> str:
    text = resource.get("text")
    return text if isinstance(text, str) else notices.MCP_RESOURCE.format(uri=resource.get("uri"))


def _compact(value: Any) -> str:
    return dumps_line(value).decode().rstrip("\n")
