"""Chunks of a streamed chat completion, made into deltas and, at the end, complete calls.

The law: what the model sent is put together, never invented or repaired. Vendors disagree on
what marks a call's fragments (an index, an id, a name, nothing); the rules are `_slot_for`.
Errors inside chunks are the caller's business. Not shared between threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from llm_agent import codec
from llm_agent.backends.wire import content_of, usage_from
from llm_agent.messages import Delta, ToolRequest, Usage

_NOTHING = Delta()


def plain_text(chunk: Any) -> str | None:
    """Return the text of a chunk that brings text and nothing else, else `None`.

    Nearly every chunk of a live stream is one of these; the rest takes the long way.
    """
    try:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        text = delta["content"]
        fields = len(delta)
        if (
            type(text) is str
            and text
            and (fields == 1 or (fields == 2 and ("role" in delta or delta.get("reasoning_content", 0) is None)))
            and choice.get("finish_reason") is None
            and not choice.get("index")
            and chunk.get("usage") is None
            and "error" not in chunk
            and "error" not in choice
            and "x_groq" not in chunk
        ):
            return text
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    return None


@attrs.define(eq=False)
class _Slot:
    """One call in the making."""

    id: str = ""
    name: str = ""
    pieces: list[Any] = attrs.field(factory=list)

    @property
    def text(self) -> str:
        return "".join(piece if isinstance(piece, str) else codec.dumps(piece).decode() for piece in self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a JSON object already: nothing that follows can belong to them."""
        text = self.text
        if text[-1:] != "}":  # nearly always decided here, without parsing what is still growing
            return False
        try:
            return isinstance(codec.loads(text), dict)
        except ValueError:
            return False

    def take(self, call_id: str, name: str, arguments: Any) -> None:
        # The first id and name stand: servers repeat them in full, or empty, or change the id.
        self.id = self.id or call_id
        self.name = self.name or name
        if isinstance(arguments, str | Mapping | list):
            self.pieces.append(arguments)

    def request(self) -> ToolRequest:
        if not self.pieces:
            return ToolRequest(self.id, self.name, None)
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Mapping):
            return ToolRequest(self.id, self.name, self.pieces[0])
        return ToolRequest(self.id, self.name, self.text)


@attrs.define(eq=False)
class Assembler:
    """One completion in the making. Only the choice with index 0 counts."""

    finish_reason: str | None = None
    """The last one that says something: a later null, `""` or `"null"` does not take it back."""

    _slots: list[_Slot] = attrs.field(factory=list, init=False)
    _slot_by_index: dict[int, _Slot] = attrs.field(factory=dict, init=False)
    _last: _Slot | None = attrs.field(default=None, init=False)
    _legacy: _Slot | None = attrs.field(default=None, init=False)
    _model: str | None = attrs.field(default=None, init=False)
    _model_pending: bool = attrs.field(default=True, init=False)
    _usage_rank: int = attrs.field(default=0, init=False)
    _held: str = attrs.field(default="", init=False)

    @property
    def allows_shortcut(self) -> bool:
        """Whether a chunk of plain text may go by without being fed."""
        return not self._held and not self._model_pending

    def feed(self, chunk: Mapping[str, Any]) -> Delta:
        """Take one parsed chunk and return what it brings now; an empty delta when that is nothing yet."""
        model = self._new_model(chunk)
        choice = self._choice_of(chunk)
        usage = self._usage_of(chunk, choice)
        text = reasoning = ""
        if choice is not None:
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, Mapping):
                text, reasoning = content_of(delta)
                self._take_calls(delta)
            elif isinstance(choice.get("text"), str):  # the older completions shape
                text = choice["text"]
            self._take_finish(choice)
        if text or self._held:
            text, self._held = codec.split_held(self._held + text)
        if not (text or reasoning or usage or model):
            return _NOTHING
        return Delta(text, codec.clean_text(reasoning), usage=usage, model=model)

    def result(self) -> Delta:
        """Return what only the end makes certain: the calls, the finish reason, a text held back."""
        slots = self._slots or ([self._legacy] if self._legacy else [])
        calls = tuple(slot.request() for slot in slots if slot.id or slot.name or slot.text)
        return Delta(codec.clean_text(self._held), tool_calls=calls, finish_reason=self.finish_reason)

    def _new_model(self, chunk: Mapping[str, Any]) -> str | None:
        if self._model is not None:
            return None
        model = chunk.get("model")
        if isinstance(model, str) and model:
            self._model = codec.clean_text(model)
        # A server that names no model is not asked again with each chunk.
        self._model_pending = self._model is None and "model" in chunk
        return self._model

    def _choice_of(self, chunk: Mapping[str, Any]) -> Mapping[str, Any] | None:
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return None
        return next((one for one in choices if isinstance(one, Mapping) and one.get("index") in (None, 0)), None)

    def _usage_of(self, chunk: Mapping[str, Any], choice: Mapping[str, Any] | None) -> Usage | None:
        """The usage to report: the last one wins, but a lesser place never overrides a better one."""
        groq = chunk.get("x_groq")
        places = (
            (3, chunk.get("usage")),
            (2, groq.get("usage") if isinstance(groq, Mapping) else None),
            (1, choice.get("usage") if choice is not None else None),
        )
        for rank, raw in places:
            if raw and rank >= self._usage_rank:
                usage = usage_from(raw, chunk)
                if usage is not None:
                    self._usage_rank = rank
                    return usage
        return None

    def _take_finish(self, choice: Mapping[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason not in ("", "null"):
            self.finish_reason = codec.clean_text(reason)

    def _take_calls(self, delta: Mapping[str, Any]) -> None:
        calls = delta.get("tool_calls")
        for raw in calls if isinstance(calls, list) else ():
            if isinstance(raw, Mapping):
                self._take_call(raw)
        legacy = delta.get("function_call")
        if isinstance(legacy, Mapping):
            self._legacy = self._legacy or _Slot()
            self._legacy.take("", _text(legacy.get("name")), legacy.get("arguments"))

    def _take_call(self, raw: Mapping[str, Any]) -> None:
        function, arguments = raw.get("function"), "arguments"
        if not isinstance(function, Mapping):
            function, arguments = raw.get("custom"), "input"
        if not isinstance(function, Mapping):
            function = {}
        call_id, name = _text(raw.get("id")), _text(function.get("name"))
        slot = self._slot_for(_index(raw.get("index")), call_id, name, function.get(arguments))
        slot.take(call_id, name, function.get(arguments))
        self._last = slot

    def _slot_for(self, index: int | None, call_id: str, name: str, arguments: Any) -> _Slot:
        """Find the call a fragment belongs to, or open one.

        By index where there is one, else by id, else the call spoken of last. A fragment with
        a name opens a new call when the one it would join has another id, or complete arguments
        while it begins some of its own (servers that number every call 0, or give each the same id).
        """
        if index is not None:
            slot = self._slot_by_index.get(index)
            if slot is None and not name:
                slot = self._by_id(call_id) if call_id else self._last  # a tail that lost its number
        else:
            slot = self._by_id(call_id) if call_id else self._last
        if slot is not None and name and slot.name:
            is_other = call_id != slot.id if call_id and slot.id else index is None and name != slot.name
            if is_other or (_begins_object(arguments) and slot.is_whole):
                slot = None
        if slot is None:
            slot = _Slot()
            self._slots.append(slot)
        if index is not None:
            self._slot_by_index[index] = slot
        return slot

    def _by_id(self, call_id: str) -> _Slot | None:
        # The newest of that id: an id given twice is two calls, and the first is complete.
        return next((slot for slot in reversed(self._slots) if slot.id == call_id), None)


def _begins_object(arguments: Any) -> bool:
    return isinstance(arguments, Mapping) or (isinstance(arguments, str) and arguments.lstrip()[:1] == "{")


def _index(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
