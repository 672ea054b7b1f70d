"""JSON in and out is total: nothing a model, a server or a tool sends costs us a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent import codec

ANY_TEXT = st.text(st.characters(), max_size=20)  # lone surrogates included
ANY_KEY = st.one_of(ANY_TEXT, st.none(), st.booleans(), st.integers(), st.floats())
ANY_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT, st.binary(max_size=5), st.dates()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(ANY_KEY, inner, max_size=4)
    ),
    max_leaves=12,
)


def nested(levels: int) -> Any:
    value: Any = "the bottom"
    for _ in range(levels):
        value = {"a": value}
    return value


class Mute:
    """An object whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class BrokenMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise OSError("the backing store is gone")

    def __len__(self) -> int:
        return 1


# -- text -----------------------------------------------------------------------------------


@given(ANY_TEXT)
def test_clean_text_survives_utf8(text: str) -> None:
    """Whatever comes in, what comes out can be encoded."""
    codec.clean_text(text).encode()


@given(ANY_TEXT)
def test_clean_text_is_idempotent(text: str) -> None:
    """Cleaning twice is cleaning once."""
    once = codec.clean_text(text)

    assert codec.clean_text(once) == once


def test_clean_text_keeps_what_is_sound() -> None:
    """Sound text is the very same object."""
    text = "naïve 日本 😀"

    assert codec.clean_text(text) is text


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        ("\ud83d\ude00", "😀"),
        ("\ud83d", "\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("a\ud83d\ud83d\ude00b", "a\ufffd😀b"),
    ],
)
def test_surrogate_halves_are_joined_and_lone_ones_replaced(cut: str, whole: str) -> None:
    """Two halves in order were one character; a lone half becomes U+FFFD."""
    assert codec.clean_text(cut) == whole


# -- values ---------------------------------------------------------------------------------


@given(ANY_VALUE)
def test_clean_value_is_plain_json_for_any_encoder(value: Any) -> None:
    """The strict standard encoder and UTF-8 take what was cleaned."""
    json.dumps(codec.clean_value(value), allow_nan=False, ensure_ascii=False).encode()


@given(ANY_VALUE)
def test_clean_value_is_idempotent(value: Any) -> None:
    """Cleaning twice is cleaning once, so live and replayed values agree."""
    once = codec.clean_value(value)

    assert codec.clean_value(once) == once


def test_clean_value_gives_new_containers() -> None:
    """Nobody can change a cleaned value through the original."""
    original: dict[str, Any] = {"list": [{"deep": 1}]}

    cleaned = codec.clean_value(original)
    original["list"][0]["deep"] = 2
    original["list"].append(3)

    assert cleaned == {"list": [{"deep": 1}]}


def test_keys_are_spelled_as_json_spells_them() -> None:
    """The slow way writes the keys that the fast way writes."""
    keys = {None: 1, True: 2, False: 3, 4: 4, 1.5: 5, "text": 6}

    slow = json.loads(codec.dumps(keys | {"wide": 2**70}))

    assert slow == json.loads(codec.dumps(keys)) | {"wide": 2**70}


def test_of_two_keys_that_become_the_same_the_last_one_counts() -> None:
    """JSON has one kind of key; readers of the fast spelling keep the last, and so do we."""
    collision = {1: "number", "1": "text"}

    assert codec.clean_value(collision) == {"1": "text"}
    assert codec.loads(codec.dumps(collision)) == {"1": "text"}


def test_numbers_json_has_no_word_for_become_text() -> None:
    """NaN and the infinities stay visible and stay valid."""
    assert codec.clean_value([math.nan, math.inf, -math.inf]) == ["nan", "inf", "-inf"]


def test_an_integer_too_long_for_decimal_text_is_written_in_hexadecimal() -> None:
    """Python refuses thousands of decimal digits; the number is still told."""
    assert codec.loads(codec.dumps({"n": 10**5000})) == {"n": hex(10**5000)}


def test_nesting_beyond_the_limit_is_cut_and_said() -> None:
    """Containers below the limit become text; those above it stay what they are."""
    value = codec.clean_value(nested(codec.MAX_NESTING + 500))

    for _ in range(codec.MAX_NESTING):
        value = value["a"]
    assert value == "<dict nested too deeply>"


def test_nesting_within_the_limit_is_kept() -> None:
    """The deepest value that is kept whole is kept whole."""
    assert codec.clean_value(nested(codec.MAX_NESTING)) == nested(codec.MAX_NESTING)


def test_a_container_inside_itself_ends() -> None:
    """A cycle is cut at its first return, also where it branches."""
    cycle: list[Any] = []
    cycle += [cycle, cycle]

    assert codec.clean_value(cycle) == ["<list nested too deeply>"] * 2


def test_the_same_container_twice_is_no_cycle() -> None:
    """Shared is not nested."""
    shared = {"a": 1}

    assert codec.clean_value([shared, shared]) == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Mute(), "<Mute without text>"),
        (BrokenMapping(), "<BrokenMapping unreadable>"),
        ({Mute(): 1}, {"<Mute without text>": 1}),
        (b"x", "b'x'"),
    ],
)
def test_foreign_objects_cannot_break_the_writing(value: Any, text: Any) -> None:
    """What raises when asked for its text or its items is named by its type."""
    assert codec.clean_value(value) == text


# -- out ------------------------------------------------------------------------------------


@given(ANY_VALUE)
def test_dumps_never_raises_and_always_parses(value: Any) -> None:
    """Any value is written as JSON that the strict reader takes."""
    codec.loads(codec.dumps(value))


@given(ANY_VALUE)
def test_a_line_is_one_line_and_parses(value: Any) -> None:
    """Exactly one 0x0A, at the end."""
    line = codec.dumps_line(value)

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    codec.loads(line)


@pytest.mark.parametrize("wide", [0, 2**80])
def test_a_line_has_sorted_keys_and_no_white_space(wide: int) -> None:
    """Both writers spell the same line."""
    assert codec.dumps_line({"b": [1, {"d": wide, "c": "é"}], "a": None}) == (
        b'{"a":null,"b":[1,{"c":"\xc3\xa9","d":%d}]}\n' % wide
    )


def test_dumps_keeps_the_order_given() -> None:
    """A request body reads as it was built."""
    assert codec.dumps({"b": 1, "a": 2}) == b'{"b":1,"a":2}'


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\ud800": 1}, ["\ud83d\ude00"], {"a": {"\udcff": "\udcff"}}])
def test_surrogates_do_not_stop_the_writing(value: Any) -> None:
    """Values and keys with surrogates are cleaned, not refused."""
    assert codec.loads(codec.dumps(value)) == codec.clean_value(value)


@pytest.mark.parametrize("levels", [253, 254, 600, 5_000])
def test_deep_nesting_does_not_stop_the_writing(levels: int) -> None:
    """Deeper than orjson writes, deeper than the stack is: a valid document all the same."""
    codec.loads(codec.dumps(nested(levels)))
    codec.loads(codec.dumps_line(nested(levels)))


# -- in -------------------------------------------------------------------------------------


@given(st.one_of(st.binary(max_size=60), ANY_TEXT, st.from_regex(r"[\[\]{}:,\"0-9eE.\-\\u d8]*", fullmatch=True)))
def test_loads_raises_value_errors_only(data: bytes | str) -> None:
    """Garbage has one way out."""
    try:
        codec.loads(data)
    except ValueError:
        pass


@pytest.mark.parametrize("wide", [2**63, 2**64, -(2**63) - 1, 10**30, 123456789012345678901])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_wide_integers_stay_exact(wide: int, as_bytes: bool) -> None:
    """An id of twenty digits is not rounded to a float."""
    text = f'{{"id": {wide}}}'

    assert codec.loads(text.encode() if as_bytes else text) == {"id": wide}


def test_lone_surrogate_escapes_are_read() -> None:
    """What the standard parser reads is JSON."""
    assert codec.loads(rb'{"a":"\ud800"}') == {"a": "\ud800"}


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "[1, NaN]"])
def test_constants_of_javascript_are_not_json(constant: str) -> None:
    """The standard parser's leniency is switched off."""
    with pytest.raises(ValueError, match=r"."):
        codec.loads(constant)


@pytest.mark.parametrize(
    "document",
    ["[" * 100_000, b'{"a":' * 100_000, "[" * 2_000 + "]" * 2_000],
    ids=["open-lists", "open-objects", "closed-lists"],
)
def test_too_deep_a_document_is_a_value_error(document: bytes | str) -> None:
    """Neither parser's limit shows as anything else."""
    with pytest.raises(ValueError, match="nested too deeply"):
        codec.loads(document)


def test_text_that_strict_parsers_read_is_kept_byte_for_byte() -> None:
    """Caches on servers depend on the spelling."""
    text = ' { "b" : 1.0, "a":"\\u00e9" } '

    assert codec.strict_text(text) is text


def test_text_with_lone_surrogate_escapes_is_written_anew() -> None:
    """A server's parser would refuse the escape."""
    assert codec.strict_text(r'{"a": "\ud800", "b": 1}') == '{"a":"\ufffd","b":1}'


@pytest.mark.parametrize(
    ("text", "whole", "held"),
    [
        ("", "", ""),
        ("ab", "ab", ""),
        ("a\ud83d", "a", "\ud83d"),
        ("\ud83d\ude00", "\N{GRINNING FACE}", ""),
        ("\ude00", "\ufffd", ""),
    ],
)
def test_a_first_half_at_the_end_is_held_back(text: str, whole: str, held: str) -> None:
    """Only there may the second half still come."""
    assert codec.split_held(text) == (whole, held)
