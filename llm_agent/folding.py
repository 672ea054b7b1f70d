"""What a compaction makes of a conversation: one rule, for the run that does it and for the file.

The law: whoever folds gets what whoever replays gets. What is worth folding, and what the
summary says, is decided elsewhere. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import attrs

from llm_agent.messages import Message


def folded(messages: Sequence[Message], summary: str, cut: int, kept: Collection[int] = ()) -> list[Message]:
    """Return *messages* with everything up to and including index *cut* replaced by *summary*.

    Sticky messages among them, and those whose index is in *kept*, stay, in their order and in
    front of the summary, which is a user message.
    """
    stays = [messages[index] for index in surviving(messages, cut, kept)]
    return [*stays, Message.user(summary), *messages[cut + 1 :]]


def surviving(messages: Sequence[Message], cut: int, kept: Collection[int] = ()) -> list[int]:
    """Return the indices up to and including *cut* that a summary does not replace."""
    return [index for index in range(cut + 1) if messages[index].is_sticky or index in kept]


def with_stubs(messages: Iterable[Message], stubs: dict[int, str]) -> list[Message]:
    """Return *messages* with the contents at some indices replaced; nothing else of them changes."""
    return [
        attrs.evolve(message, content=stubs[index]) if index in stubs else message
        for index, message in enumerate(messages)
    ]
