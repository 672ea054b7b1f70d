"""Output of any length in bounded memory."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from llm_agent.notices import OUTPUT_LEFT_OUT
from llm_agent.tools.output import HeadAndTail


def fed(limit: int, *pieces: bytes) -> tuple[str, int]:
    kept = HeadAndTail(limit)
    for piece in pieces:
        kept.feed(piece)
    return kept.finish()


def test_what_fits_is_kept_whole() -> None:
    """Up to the very last byte, across head and tail."""
    assert fed(10, b"01234", b"56789") == ("0123456789", 0)
    assert fed(4, "äö".encode()) == ("äö", 0)


def test_the_middle_is_left_out_and_counted() -> None:
    """The first and the last half stay."""
    assert fed(4, b"ab", b"XXXXXX", b"yz") == ("ab" + OUTPUT_LEFT_OUT.format(count=6) + "yz", 6)


def test_a_cut_character_is_left_out_whole() -> None:
    """No replacement character stands where we cut, and its bytes are counted."""
    text, dropped = fed(8, "aäääääz".encode())

    assert text == "aä" + OUTPUT_LEFT_OUT.format(count=6) + "äz"
    assert dropped == 6


def test_bytes_that_are_no_text_are_replaced() -> None:
    """Binary output does not raise."""
    assert fed(10, b"a\xff\x00b")[0] == "a\ufffd\x00b"


def test_nothing_may_be_kept() -> None:
    """A limit of 0 counts only."""
    assert fed(0, b"abc") == (OUTPUT_LEFT_OUT.format(count=3), 3)


def test_memory_stays_bounded() -> None:
    """A hundred megabytes cost a few hundred kilobytes."""
    piece = b"x" * 65_536
    kept = HeadAndTail(65_536)
    tracemalloc.start()
    try:
        for _ in range(1_600):
            kept.feed(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert kept.finish()[1] == 1_599 * 65_536
    assert peak < 1_000_000


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_kept_and_dropped_are_all_there_is(pieces: list[bytes], limit: int) -> None:
    """The count is exact for every stream and limit."""
    kept = HeadAndTail(limit)
    for piece in pieces:
        kept.feed(piece)
    text, dropped = kept.finish()
    whole = b"".join(pieces)

    assert dropped == 0 if len(whole) <= limit else dropped >= len(whole) - limit
    assert dropped <= max(0, len(whole) - limit) + 6
    if dropped:
        assert OUTPUT_LEFT_OUT.format(count=dropped) in text
    else:
        assert text == whole.decode("utf-8", "replace")
