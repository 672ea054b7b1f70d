"""What a human said to a server's question, as the wire wants it. A pure function.

Whatever is not clearly a yes is a no: a server asks for what a user knows, and gets nothing by a
mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llm_agent.codec import clean_value

DECLINED: Final[Mapping[str, Any]] = {"action": "decline"}
_ACTIONS: Final = ("accept", "decline", "cancel")


def answer_of(said: Any) -> dict[str, Any]:
    """Return `{"action", "content"?}` for an asker's answer.

    Args:
        said: a mapping with `action` (`accept`, `decline` or `cancel`) and, for a form that was
            filled in, `content`; a bare action; True for `accept`, False or None for `decline`.
            Anything else declines.
    """
    if said is True:
        said = "accept"
    if isinstance(said, str):
        said = {"action": said}
    if not isinstance(said, Mapping) or said.get("action") not in _ACTIONS:
        return dict(DECLINED)
    answer: dict[str, Any] = {"action": said["action"]}
    content = said.get("content")
    if answer["action"] == "accept" and isinstance(content, Mapping):
        answer["content"] = clean_value(content)
    return answer
