"""What is kept of a text that is too large, and where it is cut."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.excerpt import Excerpt, excerpt

CLUSTERS = {
    "an accent": "e\u0301",
    "several marks": "Z\u0351\u036b\u0343\u036a\u0302",
    "a mark that takes room": "\u0915\u093f",
    "a conjunct": "\u0915\u094d\u0937",
    "a variation selector": "\u2764\ufe0f",
    "a keycap": "1\ufe0f\u20e3",
    "a skin tone": "\U0001f44d\U0001f3fd",
    "a family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "a flag": "\U0001f1e9\U0001f1ea",
    "a flag made of tags": "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "a line end of two": "\r\n",
    "a syllable of jamo": "\u1112\u1161\u11ab",
    "a leading jamo and a syllable": "\u1112\uac00",
    "a syllable and a final jamo": "\ud558\u11ab",
    "a Thai vowel": "\u0e19\u0e33",
    "a half-width sound mark": "\uff76\uff9e",
}

# Whatever might stand at a cut, and ordinary letters.
PIECES = st.sampled_from([*"abc \n\r", "\u0301", "\u200d", "\ufe0f", "\U0001f1e9", "\U0001f468", "\u1112", "\u1161"])
TEXTS = st.lists(PIECES, max_size=120).map("".join)


def test_a_text_at_the_limit_is_not_touched() -> None:
    """The limit itself still fits."""
    assert excerpt("a" * 100, 100) is None


def test_a_text_one_over_the_limit_is_excerpted() -> None:
    """Three quarters in front, one behind, and one character in the gap."""
    assert excerpt("a" * 75 + "X" + "z" * 25, 100) == Excerpt("a" * 75, "z" * 25, 1)


@pytest.mark.parametrize("limit", range(1, 10))
def test_the_head_is_rounded_up(limit: int) -> None:
    """Head and tail together are the whole limit."""
    part = excerpt("0123456789", limit)

    assert part is not None
    assert len(part.head) == math.ceil(limit * 3 / 4)
    assert len(part.head) + len(part.tail) == limit


def test_a_limit_of_nothing_keeps_nothing() -> None:
    """All of it is in the gap."""
    assert excerpt("abc", 0) == Excerpt("", "", 3)


def test_the_marker_has_a_line_of_its_own() -> None:
    """One line feed on either side of it."""
    assert Excerpt("head", "tail", 7).joined("[7 left out]") == "head\n[7 left out]\ntail"


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_what_a_reader_sees_as_one_is_not_torn(cluster: str) -> None:
    """Wherever the cuts fall, only whole clusters are kept, and as many as fit."""
    text = cluster * 40
    for limit in range(4 * len(cluster), len(text)):
        part = excerpt(text, limit)

        assert part is not None
        assert part.head == cluster * (math.ceil(limit * 3 / 4) // len(cluster))
        assert part.tail == cluster * (limit // 4 // len(cluster))
        assert part.elided == len(text) - len(part.head) - len(part.tail)


def test_a_mark_on_a_line_end_leans_on_nothing() -> None:
    """After a control character a cut is fine, whatever follows."""
    assert excerpt("abc\n\u0301defghi", 5) == Excerpt("abc\n", "i", 6)


@pytest.mark.parametrize("stuff", ["\u0301", "\u200d", "\u1112", "\U0001f3fd"])
def test_a_text_of_marks_alone_is_cut_all_the_same(stuff: str) -> None:
    """No place is good, so the cut stays where it was asked for: the excerpt is neither empty nor over."""
    part = excerpt(stuff * 1000, 400)

    assert part == Excerpt(stuff * 300, stuff * 100, 600)


def test_a_cluster_as_long_as_the_head_does_not_empty_it() -> None:
    """The beginning of the text is no place for a cut."""
    assert excerpt("e" + "\u0301" * 20, 8) == Excerpt("e" + "\u0301" * 5, "\u0301" * 2, 13)


@given(TEXTS, st.integers(1, 100))
def test_head_gap_and_tail_are_the_text(text: str, limit: int) -> None:
    """Never more than the limit is kept, never nothing, and the gap is counted exactly."""
    part = excerpt(text, limit)

    if len(text) <= limit:
        assert part is None
        return
    assert part is not None
    assert part.head
    assert text.startswith(part.head)
    assert text.endswith(part.tail)
    assert len(part.head) <= math.ceil(limit * 3 / 4)
    assert len(part.tail) <= limit // 4
    assert len(text) == len(part.head) + part.elided + len(part.tail)
