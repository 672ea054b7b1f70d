"""Canonical JSON and stable digests: one spelling for equal data.

Total: nothing here raises, whatever comes in. Digests are lower-case hex SHA-256 over UTF-8.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from llm_agent.codec import clean_value, loads


def canonical_json(value: Any) -> str:
    """Return *value* as JSON with sorted keys, no white space, on one line.

    What JSON has no word for (sets, dates, NaN) goes through `str`; the result always parses.
    """
    plain = clean_value(value)
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        # Integers beyond 64 bits. The two encoders agree on everything but the spelling of
        # floats, which reaches this line only beside such an integer.
        return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def canonical_arguments(arguments: Any) -> str:
    """Return one spelling for tool arguments, so that equal calls compare equal.

    `None` is `""`. A mapping or list is canonical JSON, and so is text that holds one; any
    other text is its own key, verbatim.
    """
    if arguments is None:
        return ""
    if isinstance(arguments, Mapping | list | tuple):
        return canonical_json(arguments)
    text = arguments if isinstance(arguments, str) else str(clean_value(arguments))
    if text.strip()[:1] in ("{", "["):
        try:
            return canonical_json(loads(text))
        except ValueError:
            return text
    return text


def data_digest(value: Any) -> str:
    """Return the digest of *value*'s canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_of_digests(digests: Iterable[str]) -> str:
    """Return the digest of several, joined by line ends; of nothing: the digest of `""`."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
