"""A message as a line, and a line as a message, as much of it as can be read. Pure functions.

Whoever waits for an answer shall hear of it, also when the answer is not what the protocol says:
what strict parsers refuse and the standard one reads (half a character, a wide nesting) is
cleaned, and an answer that makes no sense is an error under its own id.

Imports the SDK; only ever imported by those who need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mcp_types

from llm_agent.codec import clean_value, dumps, loads

# The longest message that is taken, in bytes: images arrive in one.
MAX_MESSAGE: Final = 64 * 1024 * 1024

Message = mcp_types.JSONRPCMessage


def line_of(message: Message) -> bytes:
    """Return *message* as a line that any server can read."""
    try:
        document = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError:  # half a character: whoever it came from, the connection outlives it
        document = dumps(clean_value(message.model_dump(by_alias=True, exclude_unset=True)))
    return document + b"\n"


def message_of(line: bytes) -> Message | None:
    """Return the message in *line*; `None` where it holds none."""
    try:
        return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        value = clean_value(loads(line))
    except ValueError:
        return None
    try:
        return mcp_types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        return _unreadable(value)


def _unreadable(value: Any) -> Message | None:
    """The error that stands for an answer of no known form; `None` for what is no answer."""
    if not isinstance(value, Mapping) or "method" in value or not isinstance(value.get("id"), int | str):
        return None
    error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message="it is neither a result nor an error")
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=value["id"], error=error)
