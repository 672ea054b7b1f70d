"""The conversation as a server will accept it, kept up to date message by message.

History is never rewritten; what goes out may differ from it in three ways, all of them about
validity: an assistant turn with neither text nor calls is left out, a result that answers no
call of the turn before it is left out, and a call id that an earlier turn has used is
replaced by a fresh one (with its result). Pure, no threads.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from llm_agent.messages import Message, ToolRequest


def unique_id(wanted: str, taken: set[str]) -> str:
    """Return *wanted*, or a variant of it that is not in *taken*; never empty. Adds it to *taken*."""
    number = 1
    if _variant(wanted, 1) in taken:
        # Variants are taken in order, so the first free one is found by halving: a server that
        # gives one id to every call must not make the thousandth call a thousand times dearer.
        taken_one, number = 1, 2
        while _variant(wanted, number) in taken:
            taken_one, number = number, number * 2
        while number - taken_one > 1:
            middle = (taken_one + number) // 2
            if _variant(wanted, middle) in taken:
                taken_one = middle
            else:
                number = middle
    candidate = _variant(wanted, number)
    taken.add(candidate)
    return candidate


def _variant(wanted: str, number: int) -> str:
    if not wanted:
        return f"call_{number}"
    return wanted if number == 1 else f"{wanted}_{number}"


@attrs.define(eq=False)
class WireView:
    """What of a conversation is sent, and what was left out. One writer."""

    messages: list[Message] = attrs.field(factory=list)
    orphans: list[Message] = attrs.field(factory=list)
    """Results that answer no call directly before them."""
    taken_ids: set[str] = attrs.field(factory=set)
    """Every call id that a request carries."""
    _open: list[tuple[str, str]] = attrs.field(factory=list, init=False)
    """Calls of the last turn without a result: (id in the conversation, id on the wire)."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> WireView:
        view = cls()
        for message in messages:
            view.append(message)
        return view

    @property
    def open_calls(self) -> list[str]:
        """Ids, in the conversation, of the last turn's calls that nobody has answered."""
        return [call_id for call_id, _ in self._open]

    def append(self, message: Message) -> None:
        """Take one more message of the conversation."""
        if message.role == "tool":
            self._append_result(message)
            return
        self._open = []
        if message.is_empty_turn:
            return
        if message.tool_calls:
            message = self._with_unique_ids(message)
        self.messages.append(message)

    def _append_result(self, message: Message) -> None:
        for pair in self._open:
            if pair[0] == (message.tool_call_id or ""):
                self._open.remove(pair)
                same = pair[1] == message.tool_call_id
                self.messages.append(message if same else attrs.evolve(message, tool_call_id=pair[1]))
                return
        self.orphans.append(message)

    def _with_unique_ids(self, message: Message) -> Message:
        wire_ids = [unique_id(call.id, self.taken_ids) for call in message.tool_calls]
        self._open = [(call.id, wire_id) for call, wire_id in zip(message.tool_calls, wire_ids, strict=True)]
        if all(call_id == wire_id for call_id, wire_id in self._open):
            return message
        return attrs.evolve(message, tool_calls=renamed(message.tool_calls, wire_ids))


def renamed(calls: Iterable[ToolRequest], ids: Iterable[str]) -> tuple[ToolRequest, ...]:
    """Return *calls* under *ids*, one each."""
    return tuple(attrs.evolve(call, id=call_id) for call, call_id in zip(calls, ids, strict=True))
