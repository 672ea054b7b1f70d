"""What a tool returned, as text for the model.

The law: a result that cannot be written nicely is written somehow; a tool that has run is
never reported as one that failed. Arguments are `shapes`' business.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AnySet
from datetime import date, time
from typing import Any, Final

import attrs

from llm_agent import codec
from llm_agent.messages import ToolAnswer

# A default that is not there, or that JSON cannot say. (`attrs.NOTHING` means "required" to attrs.)
ABSENT: Final = object()


def answer_of(call_id: str, value: Any) -> ToolAnswer:
    """Return the answer that says what a tool returned.

    Text as it is, `None` as `""`, a `ToolAnswer` with its id corrected, anything else as JSON.
    A generator is walked to its end here: pieces of text are joined, other items are a list.

    Raises:
        Whatever a generator raises on the way.
    """
    if isinstance(value, Iterator):
        items = list(value)
        value = "".join(items) if items and all(isinstance(item, str) for item in items) else items
    match value:
        case ToolAnswer():
            return attrs.evolve(value, tool_call_id=call_id)
        case None:
            return ToolAnswer(call_id, "")
        case str():
            return ToolAnswer(call_id, str(value))
        case bytes() | bytearray() | memoryview():
            return ToolAnswer(call_id, _text_of_bytes(value))
        case _:
            return ToolAnswer(call_id, codec.dumps(plain(value)).decode("utf-8", "replace"))


def plain(value: Any) -> Any:
    """Return *value* as plain JSON data. Never raises.

    Dataclasses, attrs values and named tuples become objects, sets become lists (sorted where
    they can be), enums their values, dates ISO text, paths and bytes text; whatever else JSON
    has no word for goes through `str`.
    """
    return codec.clean_value(_opened(value, ()))


def as_default(value: Any) -> Any:
    """Return a default as JSON to show; `ABSENT` for none, or one that JSON cannot say."""
    kinds = (str, int, float, bool, list, tuple, dict, AnySet, enum.Enum, os.PathLike, date, time)
    if value is ABSENT or not (value is None or isinstance(value, kinds)):
        return ABSENT
    return plain(value)


_DEEPEST: Final = codec.MAX_NESTING


def _opened(value: Any, above: tuple[int, ...]) -> Any:
    """Open up what has named parts; containers inside themselves are left for `clean_value` to name."""
    match value:
        case enum.Enum():
            return _opened(value.value, above)
        case None | bool() | int() | float() | str():
            return value
        case date() | time():
            return value.isoformat()
        case os.PathLike():
            return os.fsdecode(value)
        case bytes() | bytearray() | memoryview():
            return _text_of_bytes(value)
    if id(value) in above or len(above) >= _DEEPEST:
        return f"<{type(value).__name__} nested too deeply>"
    try:
        return _opened_container(value, (*above, id(value)))
    except Exception:  # a shield: a foreign container may raise while it is walked
        return f"<{type(value).__name__} unreadable>"


def _opened_container(value: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(value, Mapping):
        return {_opened_key(key): _opened(item, inside) for key, item in value.items()}
    named = _named_parts(value)
    if named is not None:
        return {name: _opened(getattr(value, name), inside) for name in named}
    if isinstance(value, AnySet):
        return [_opened(item, inside) for item in _sorted_if_possible(value)]
    if isinstance(value, list | tuple | range | Iterator) or type(value).__name__ in _VIEWS:
        return [_opened(item, inside) for item in value]
    return value


_VIEWS: Final = frozenset({"dict_keys", "dict_values", "dict_items", "deque", "array"})


def _opened_key(key: Any) -> Any:
    return _opened(key, ()) if isinstance(key, enum.Enum | date | time | os.PathLike | bytes) else key


def _named_parts(value: Any) -> list[str] | None:
    kind = type(value)
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind) if not field.name.startswith("_")]
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return list(kind._fields)
    return None


def _sorted_if_possible(items: AnySet[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:  # a mixture has no order
        return list(items)


def _text_of_bytes(value: bytes | bytearray | memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")
