"""What a summariser reads: the replaced part of a conversation, as text.

Tool traffic is cut to a size, and says so; everything else is there in full, earlier notes
first, so that their facts reach the next notes. Nothing in it can close the wrapper. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from llm_agent import codec, notices
from llm_agent.compactor.plan import is_summary
from llm_agent.messages import Message, ToolRequest

_LEAST_CAP: Final = 50
EARLIER_NOTES: Final = "earlier notes"
# Read leniently, as a model does: spaces and case do not make it another tag.
_CLOSING_TAG: Final = re.compile(r"<(?=\s*/\s*transcript)", re.IGNORECASE)


def condensed(messages: Sequence[Message], cap: int, share: float) -> str:
    """Return the same with what each message says cut, evenly, to about *share* of the whole.

    For a summariser that cannot take it all: a little of everything tells more than some of it.
    """
    most = len(rendered(messages, cap)) * share
    text = rendered(messages, cap, is_body_capped=True)
    while len(text) > most and cap > _LEAST_CAP:
        cap //= 2
        text = rendered(messages, cap, is_body_capped=True)
    return text


def rendered(messages: Iterable[Message], cap: int, *, is_body_capped: bool = False) -> str:
    """Return *messages* as one text in a `<transcript>`.

    Args:
        messages: in their order.
        cap: characters of one tool result, and of one call's arguments, that are shown.
        is_body_capped: whether it holds for everything that is said.
    """
    notes: list[str] = []
    turns: list[str] = []
    for message in messages:
        if is_summary(message):
            notes.append(f"[{EARLIER_NOTES}]\n{message.text.removeprefix(notices.SUMMARY_HEADER).strip()}")
        else:
            turns.append(_turn(message, cap, is_body_capped))
    material = _CLOSING_TAG.sub("&lt;", "\n\n".join([*notes, *turns]))
    return f"<transcript>\n{material}\n</transcript>"


def _turn(message: Message, cap: int, is_body_capped: bool) -> str:
    body = _body(message)
    if message.role == "tool" or is_body_capped:
        body = _capped(body, cap, notices.TRUNCATED_OUTPUT)
    lines = [f"[{message.role}]", body, *(_call(call, cap) for call in message.tool_calls)]
    return "\n".join(line for line in lines if line)


def _body(message: Message) -> str:
    """The text; a part that has none is named in its place."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(
        part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type', 'part')}]"
        for part in message.content
    )


def _call(call: ToolRequest, cap: int) -> str:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else "" if arguments is None else codec.dumps(arguments).decode()
    return f"-> {call.name} {_capped(text, cap, notices.TRUNCATED_ARGUMENTS)}".rstrip()


def _capped(text: str, cap: int, marker: str) -> str:
    if len(text) <= cap:
        return text
    return f"{text[:cap]}\n{marker.format(count=len(text) - cap)}"
