"""What enters at the top of a round: words from outside, each one user turn.

Nothing is in flight then, so a user turn can never come between a call and its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_agent.loop.state import RunState
from llm_agent.messages import Message


def admit(state: RunState) -> None:
    """Append what the steer source and `run.steer` have, in this order."""
    dropped: list[str] = []
    for text in [*_pull(state), *state.core.take_steers()]:
        if isinstance(text, str) and text.strip():
            state.conversation.append(Message.user(text))
        else:
            dropped.append("blank text" if isinstance(text, str) else type(text).__name__)
    if dropped:
        state.log("error", f"steers were dropped: expected text that is not blank, got {', '.join(dropped)}")


def _pull(state: RunState) -> list[Any]:
    source = state.config.steer_source
    if source is None:
        return []
    try:
        return _taken(source)
    except Exception as exc:  # a shield: a broken source costs its words, not the run
        state.log("error", f"the steer source failed: {type(exc).__name__}: {exc}")
        return []


def _taken(source: Callable[[], Any]) -> list[Any]:
    """Take one pull in full, or nothing of it: a generator may fail half-way."""
    pulled = source()
    if pulled is None:
        return []
    return [pulled] if isinstance(pulled, str) else list(pulled)
