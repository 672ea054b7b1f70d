"""What enters at the top of a round: words from outside, each one user turn.

Nothing is in flight then, so a user turn can never come between a call and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llm_agent.codec import error_text
from llm_agent.loop.state import RunState
from llm_agent.messages import Message


def admit(state: RunState) -> None:
    """Append what the steer source and `run.steer` have, in this order."""
    texts = [*_pull(state), *state.core.take_steers()]
    try:
        dropped = _append(state, texts)
    finally:  # what a transcript refuses is told as undelivered
        state.core.give_back_steers([text for text in texts if isinstance(text, str)])
    if dropped:
        state.log("error", f"steers were dropped: expected text that is not blank, got {', '.join(dropped)}")


def _append(state: RunState, texts: list[Any]) -> list[str]:
    """Append the texts and take each from the list as it is; returns what was no text instead."""
    dropped: list[str] = []
    while texts:
        text = texts[0]
        if isinstance(text, str) and text.strip():
            state.conversation.append(Message.user(text))
        else:
            dropped.append("blank text" if isinstance(text, str) else type(text).__name__)
        del texts[0]
    return dropped


def _pull(state: RunState) -> list[Any]:
    source = state.config.steer_source
    if source is None:
        return []
    try:
        return _taken(source)
    except BaseException as exc:  # a shield: a broken source costs its words, not the run
        state.log("error", f"the steer source failed: {error_text(exc)}")
        return []


def _taken(source: Callable[[], Any]) -> list[Any]:
    """Take one pull in full, or nothing of it: a generator may fail half-way."""
    pulled = source()
    if pulled is None:
        return []
    # Of these, a list would be made of keys or numbers.
    return [pulled] if isinstance(pulled, str | bytes | bytearray | Mapping) else list(pulled)
