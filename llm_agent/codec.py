"""JSON in and out: fast where it can be, never in the way where it cannot.

orjson does the work. What it refuses and the standard library accepts (lone surrogate
escapes, integers beyond 64 bits, deep nesting) is handled here once, so that no other room
has to know. Pure functions on values and bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

# orjson writes NaN as null without a word; both spellings are accepted as null by readers.
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_LINE = _SORTED | orjson.OPT_APPEND_NEWLINE

_SURROGATES = re.compile("[\ud800-\udfff]")
# Surrogates that form a pair were one character cut in two; the rest stand alone.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def clean_text(text: str) -> str:
    """Return *text* without lone surrogates: each becomes U+FFFD, a pair becomes its character.

    What enters the conversation must survive UTF-8, or the live, the replayed and the sent
    text would disagree.
    """
    if text.isascii() or not _SURROGATES.search(text):
        return text
    joined = _PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    return _SURROGATES.sub("\ufffd", joined)


def clean_value(value: Any) -> Any:
    """Return *value* as plain JSON data that any encoder accepts; containers are new.

    Text is cleaned, keys become text, tuples become lists, NaN and infinities become text,
    and whatever JSON has no word for goes through `str`.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return clean_text(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {clean_text(str(key)): clean_value(item) for key, item in value.items()}
        case list() | tuple():
            return [clean_value(item) for item in value]
        case _:
            return clean_text(_text_of(value))


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:  # a shield: somebody else's __str__ must not cost us a transcript line
        return f"<{type(value).__name__} without text>"


def dumps(value: Any) -> bytes:
    """Return *value* as compact UTF-8 JSON, keys in the order given. Never raises for JSON data."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(clean_value(value), ensure_ascii=False, separators=(",", ":")).encode()


def dumps_line(value: Any) -> bytes:
    """Return *value* as one line of compact JSON, keys sorted, ended by one 0x0A."""
    try:
        return orjson.dumps(value, option=_LINE)
    except TypeError:
        text = json.dumps(clean_value(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return text.encode() + b"\n"


def loads(data: bytes | str) -> Any:
    """Parse one JSON document.

    Raises:
        ValueError: neither parser can read it.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Lone surrogate escapes and the like: the standard parser decides what JSON is.
        text = data if isinstance(data, str) else bytes(data).decode("utf-8")
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
