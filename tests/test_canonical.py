"""Equal data has one spelling and one digest; nothing makes these functions raise."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.canonical import canonical_arguments, canonical_json, data_digest, digest_of_digests

ANY_TEXT = st.text(st.characters(), max_size=20)
JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(ANY_TEXT, inner, max_size=4)),
    max_leaves=12,
)


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": {"d": 1, "c": 2}}, '{"a":{"c":2,"d":1},"b":1}'),
        ([1, "two", True, None], '[1,"two",true,null]'),
        ((1, (2,)), "[1,[2]]"),
        ({3: "x"}, '{"3":"x"}'),
        ("é\n", '"é\\n"'),
        (datetime(2026, 8, 9, tzinfo=UTC), '"2026-08-09 00:00:00+00:00"'),
        ({7}, '"{7}"'),
        (math.nan, '"nan"'),
        (-math.inf, '"-inf"'),
        (2**70, "1180591620717411303424"),
        ("\ud800", '"\ufffd"'),
        ({}, "{}"),
    ],
)
def test_canonical_spelling(value: Any, text: str) -> None:
    """Keys sorted at every level, no white space, one line; what JSON has no word for is text."""
    assert canonical_json(value) == text


@given(JSON_VALUE)
def test_canonical_json_always_parses_and_is_one_line(value: Any) -> None:
    """Total, valid, encodable, one line."""
    text = canonical_json(value)

    json.loads(text)
    assert "\n" not in text
    text.encode()


@given(st.dictionaries(ANY_TEXT, st.integers(), max_size=6), st.randoms())
def test_the_order_of_keys_is_no_difference(value: dict[str, int], random: Any) -> None:
    """Two mappings with the same items spell the same."""
    shuffled = list(value.items())
    random.shuffle(shuffled)

    # Keys that differ in lone surrogates only become one; then the last one given counts.
    if len({key.encode("utf-8", "replace") for key in value}) == len(value):
        assert canonical_json(dict(shuffled)) == canonical_json(value)


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [cyclic(), deep(2_000), Mute(), {Mute(): Mute()}, 10**6_000, {"\ud800": b"\xff"}],
    ids=["cycle", "depth", "mute", "mute-items", "long-integer", "bytes"],
)
def test_canonical_json_never_raises(value: Any) -> None:
    """Cycles, depth, mute objects and endless numbers are spelled somehow."""
    json.loads(canonical_json(value))


# -- arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (None, ""),
        ("", ""),
        ('{"b": 1, "a": 2}', '{"a":2,"b":1}'),
        (' \n{"b":1,\t"a":2} ', '{"a":2,"b":1}'),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ("[2, 1]", "[2,1]"),
        ([2, 1], "[2,1]"),
        (' {"a": ', ' {"a": '),
        ("prose", "prose"),
        (" prose ", " prose "),
        ("null", "null"),
        ("5", "5"),
        (5, "5"),
        ("   ", "   "),
    ],
)
def test_arguments_have_one_spelling(arguments: Any, text: str) -> None:
    """Decoded or not, spaced or not; what is no object or list is its own key, verbatim."""
    assert canonical_arguments(arguments) == text


def test_long_numbers_in_arguments_stay_apart() -> None:
    """Two ids that a float cannot tell apart are two different calls."""
    assert canonical_arguments('{"id":18446744073709551616}') != canonical_arguments('{"id":18446744073709551617}')


@pytest.mark.parametrize(
    "arguments",
    ["[" * 50_000, '{"a":' * 900 + "1" + "}" * 900, Mute(), 10**6_000, "{\ud800"],
    ids=["too-deep", "deep", "mute", "long-integer", "surrogate"],
)
def test_canonical_arguments_never_raises(arguments: Any) -> None:
    """Whatever a model sends as arguments has a key."""
    assert isinstance(canonical_arguments(arguments), str)


@given(JSON_VALUE)
def test_a_decoded_value_and_its_text_have_the_same_key(value: Any) -> None:
    """A provider that decodes and one that does not count as the same call."""
    if isinstance(value, dict | list):
        assert canonical_arguments(canonical_json(value)) == canonical_arguments(value)


# -- digests --------------------------------------------------------------------------------


def test_data_digest_is_sha256_of_the_canonical_text() -> None:
    """64 lower-case hex digits, computed over UTF-8."""
    assert data_digest({"b": 1, "a": "é"}) == hashlib.sha256('{"a":"é","b":1}'.encode()).hexdigest()


def test_digest_of_nothing_is_that_of_empty_text() -> None:
    """An empty conversation has a digest too."""
    assert digest_of_digests([]) == hashlib.sha256(b"").hexdigest()


def test_digests_are_joined_by_line_ends() -> None:
    """The order counts, and so does where one ends."""
    assert digest_of_digests(["ab", "c"]) == hashlib.sha256(b"ab\nc").hexdigest()
    assert digest_of_digests(["ab", "c"]) != digest_of_digests(["a", "bc"])
