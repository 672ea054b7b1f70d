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

# orjson writes NaN as null without a word; where it must stay visible, `clean_value` comes first.
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_LINE = _SORTED | orjson.OPT_APPEND_NEWLINE

# Levels of containers that are written: below orjson's own 254, so that what is clean is fast,
# and few enough for a stack that is half used (each level takes three frames of 1000).
MAX_NESTING = 128
# Longer integers have no decimal text in Python (the limit is 640 digits at its lowest).
_MAX_INTEGER_BITS = 2000

# orjson reads integers beyond 64 bits as floats, without a word; the shortest has 19 digits.
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_WIDE_INTEGER = b"0" * 19

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


def split_held(text: str) -> tuple[str, str]:
    """Return streamed *text* cleaned, and apart from it a high surrogate at its end.

    A character beyond 16 bits may be cut in two; its first half is held back until the piece
    that may bring the second.
    """
    if text and "\ud800" <= text[-1] <= "\udbff":
        return clean_text(text[:-1]), text[-1]
    return clean_text(text), ""


def clean_value(value: Any) -> Any:
    """Return *value* as plain JSON data that any encoder accepts; containers are new. Never raises.

    Text is cleaned, keys become text (of two that become the same, the last one counts), tuples
    become lists, NaN and infinities become text, and whatever JSON has no word for goes through
    `str`. A container inside itself, or below `MAX_NESTING` others, becomes text that says so.
    """
    return _cleaned(value, ())


def _cleaned(value: Any, above: tuple[int, ...]) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return value if value.bit_length() <= _MAX_INTEGER_BITS else hex(value)
        case str():
            return clean_text(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping() | list() | tuple():
            return _cleaned_container(value, above)
        case _:
            return text_of(value)


def _cleaned_container(value: Any, above: tuple[int, ...]) -> Any:
    if len(above) >= MAX_NESTING or id(value) in above:
        return f"<{type(value).__name__} nested too deeply>"
    inside = (*above, id(value))
    try:
        if isinstance(value, Mapping):
            return {_key(key): _cleaned(item, inside) for key, item in value.items()}
        return [_cleaned(item, inside) for item in value]
    except Exception:  # a shield: a foreign mapping may raise, and the stack may end before the nesting
        return f"<{type(value).__name__} unreadable>"


def _key(key: Any) -> str:
    match key:
        case str():
            return clean_text(key)
        case None:
            return "null"
        case bool():
            return "true" if key else "false"
        case _:
            return str(_cleaned(key, ()))


def text_of(value: object) -> str:
    """Return `str(value)`, cleaned; whatever somebody's `__str__` does, there is a text. Never raises."""
    try:
        return clean_text(str(value))
    except Exception:  # a shield: somebody else's __str__ must not cost us a transcript line
        return f"<{type(value).__name__} without text>"


def error_text(error: BaseException) -> str:
    """Return an exception as `Type: its words`, or its type alone where it has none. Never raises."""
    words = text_of(error).strip()
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def dumps(value: Any) -> bytes:
    """Return *value* as compact UTF-8 JSON, keys in the order given. Never raises."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(clean_value(value), ensure_ascii=False, separators=(",", ":")).encode()


def dumps_line(value: Any) -> bytes:
    """Return *value* as one line of compact JSON, keys sorted, ended by one 0x0A. Never raises."""
    try:
        return orjson.dumps(value, option=_LINE)
    except TypeError:
        text = json.dumps(clean_value(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return text.encode() + b"\n"


def loads(data: bytes | str) -> Any:
    """Parse one JSON document; integers of any width stay exact.

    Raises:
        ValueError: neither parser can read it.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _WIDE_INTEGER in raw.translate(_DIGITS_AS_ZEROS):
        return _loads_by_standard(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Lone surrogate escapes and the like: the standard parser decides what JSON is.
        return _loads_by_standard(data)


def _loads_by_standard(data: bytes | str) -> Any:
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def strict_text(text: str) -> str:
    """Return JSON *text* as it is where a strict parser reads it, otherwise written anew.

    Strict parsers, those of servers among them, refuse lone surrogate escapes.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return dumps(clean_value(loads(text))).decode()
    return text


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
