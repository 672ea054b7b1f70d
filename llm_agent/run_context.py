"""What is true now, said beside the conversation: in each request of a run, never in its history.

The law: equal values give equal bytes, in every process. Nothing here reads a clock, a disk or
the environment; the caller says what is true. Where a request carries it is decided in one
place, `placed`; the fixed sentences are in `notices`, and how a transcript keeps it is in
`session.records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import attrs

from llm_agent import notices
from llm_agent.canonical import data_digest
from llm_agent.codec import clean_text
from llm_agent.errors import ConfigError
from llm_agent.messages import Message

Pairs = Mapping[str, str | None] | Iterable[tuple[str, str | None]]
"""A dict, or (name, text) pairs; the order is kept, and a text of `None` is left out."""

Part = Literal["head", "tail"]
HeadPlace = Literal["system", "merged"]
TailPlace = Literal["system", "user", "merged"]


def _head_sections(given: Pairs) -> tuple[tuple[str, str], ...]:
    return _pairs("head_sections", given)


def _facts(given: Pairs) -> tuple[tuple[str, str], ...]:
    return _pairs("facts", given)


def _tail_sections(given: Pairs) -> tuple[tuple[str, str], ...]:
    return _pairs("tail_sections", given)


def _pairs(option: str, given: Any) -> tuple[tuple[str, str], ...]:
    entries = given.items() if isinstance(given, Mapping) else given
    # Text is no list of pairs, and a set has another order in every process.
    if isinstance(entries, str | bytes | set | frozenset) or not isinstance(entries, Iterable):
        raise ConfigError(f"RunContext: {option} must be a dict or (name, text) pairs, got {type(given).__name__}")
    named = [_name_and_text(option, place, entry) for place, entry in enumerate(entries)]
    return tuple((name, text) for name, text in named if text is not None)


def _name_and_text(option: str, place: int, entry: Any) -> tuple[str, str | None]:
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise ConfigError(f"RunContext: {option}[{place}] must be a (name, text) pair, got {entry!r}")
    name, text = entry
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"RunContext: the name of {option}[{place}] must be text and not blank, got {name!r}")
    if text is None:
        return name, None
    if not isinstance(text, str):
        raise ConfigError(f"RunContext: {option} {name!r} must be text or None, got {type(text).__name__}")
    return clean_text(name), clean_text(text).rstrip()


@attrs.frozen(kw_only=True)
class Section:
    """One section of a context, as a transcript keeps it."""

    part: Part
    name: str
    text: str

    @cached_property
    def digest(self) -> str:
        """Identity of name and text, 64 hex digits: the same wherever the section stands."""
        return data_digest([self.name, self.text])


@attrs.frozen(kw_only=True)
class RunContext:
    """What a run is told about the present: instructions, the date, a branch, a plan.

    It rides along in every request and is part of no conversation. Immutable; share it freely
    between threads and runs. The model reads texts, not names: a section that wants a heading
    brings it along. What is empty is not shown; with nothing to show there is no message.
    """

    head_sections: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_head_sections)
    """What rarely changes, in front of everything. A change here makes every cached prefix void."""
    facts: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_facts)
    """One line each, `- name: value`, behind everything."""
    tail_sections: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_tail_sections)
    """What changes from run to run, behind the facts."""
    tail_as: TailPlace = "system"
    """`system`: a system message at the end. `user`: a user message at the end, for vendors that
    take no late system message. `merged`: behind the text of the last user message."""
    head_as: HeadPlace = "system"
    """`system`: a system message at the beginning. `merged`: behind the text of the system
    message that the conversation begins with, for vendors that take only one."""

    def __attrs_post_init__(self) -> None:
        for option, places in (("tail_as", get_args(TailPlace)), ("head_as", get_args(HeadPlace))):
            if getattr(self, option) not in places:
                raise ConfigError(
                    f"RunContext: {option} must be one of {', '.join(places)}, got {getattr(self, option)!r}"
                )

    @classmethod
    def of(cls, value: RunContext | str) -> RunContext:
        """Return *value* as a context: a text is one tail section; a blank one says nothing.

        Raises:
            ConfigError: it is neither.
        """
        match value:
            case RunContext():
                return value
            case str():
                return cls(tail_sections=[("context", value)])
            case _:
                raise ConfigError(f"context: expected text or a RunContext, got {type(value).__name__}")

    @cached_property
    def digest(self) -> str:
        """Identity of everything said, empty sections and the order included; 64 hex digits.

        Where it is placed is no part of it.
        """
        return data_digest({"head": self.head_sections, "facts": self.facts, "tail": self.tail_sections})

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Every section, empty ones included, those of the head first."""
        head = [Section(part="head", name=name, text=text) for name, text in self.head_sections]
        tail = [Section(part="tail", name=name, text=text) for name, text in self.tail_sections]
        return (*head, *tail)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Head and tail as messages of their own, n = 0 to 2: what a request carries beside the conversation."""
        return tuple(message for message in (self.head, self.tail) if message is not None)

    # Both are made once, so that their bytes are made once, too: they go out in every round.
    @cached_property
    def head(self) -> Message | None:
        """The head's sections as one system message; `None` when there is nothing to say."""
        text = _joined(text for _, text in self.head_sections)
        return Message.system(text) if text else None

    @cached_property
    def tail(self) -> Message | None:
        """Facts and the tail's sections as one message; `None` when there is nothing to say."""
        facts = "\n".join(_bullet(name, value) for name, value in self.facts if value)
        said = _joined([facts, *(text for _, text in self.tail_sections)])
        if not said:
            return None
        fixed = f"{notices.CONTEXT_OUTRANKS}\n{notices.CONTEXT_NO_REPLY}"
        text = _joined([notices.CONTEXT_HEADING, said, fixed])
        return Message.system(text) if self.tail_as == "system" else Message.user(text)


def _bullet(name: str, value: str) -> str:
    # Further lines of a value are indented, or they would read as facts of their own.
    indented = value.replace("\n", "\n  ")
    return f"- {name}: {indented}"


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def placed(messages: Sequence[Message], context: RunContext | None) -> tuple[Message, ...]:
    """Return *messages* as a request carries them, *context* around them or within.

    Args:
        messages: a conversation that a server accepts, n >= 0; shared with the result, never changed.
        context: `None` is nothing to say.

    Returns:
        A conversation that a server accepts: nothing ever stands between calls and their
        results. A tail that is to be merged and finds no user message is one itself; a head
        that finds no system message at the beginning, likewise.
    """
    request = list(messages)
    if context is None:
        return tuple(request)
    head, tail = context.head, context.tail
    if head is not None:  # first: in an empty conversation it must not take the tail for a prompt
        _place_head(request, head, context.head_as)
    if tail is not None:
        _place_tail(request, tail, context.tail_as)
    return tuple(request)


def _place_head(request: list[Message], head: Message, place: HeadPlace) -> None:
    if place == "merged" and request and request[0].role == "system":
        # Behind the prompt: it changes even less, and caches know a request by its beginning.
        request[0] = _extended(request[0], head.text)
    else:
        request.insert(0, head)


def _place_tail(request: list[Message], tail: Message, place: TailPlace) -> None:
    last_user = next((at for at in reversed(range(len(request))) if request[at].role == "user"), None)
    if place == "merged" and last_user is not None:
        request[last_user] = _extended(request[last_user], tail.text)
    else:
        request.append(tail)


def _extended(message: Message, text: str) -> Message:
    """Return *message* with *text* behind its content, which may be parts."""
    content = message.content
    if isinstance(content, str):
        return attrs.evolve(message, content=_joined([content, text]))
    return attrs.evolve(message, content=(*content, {"type": "text", "text": text}))
