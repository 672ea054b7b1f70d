"""Chunked framing, cut anywhere, gives the payload and knows its end."""

from __future__ import annotations

from http.client import HTTPException
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.backends.chunked import Dechunker


def framed(pieces: list[bytes]) -> bytes:
    body = b"".join(b"%X;name=value\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return body + b"0\r\nTrailer: x\r\n\r\n"


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=8))
def test_framing_cut_anywhere_gives_the_payload(pieces: list[bytes], offsets: list[int]) -> None:
    """Sizes, extensions, trailers and payload may each be cut at any byte."""
    body = framed(pieces)
    places = sorted({0, len(body), *(offset % len(body) for offset in offsets)})
    dechunker = Dechunker()

    payload = b"".join(dechunker.feed(body[a:b]) for a, b in pairwise(places))

    assert payload == b"".join(pieces)
    assert dechunker.is_over


def test_payload_is_handed_on_before_its_chunk_is_complete() -> None:
    """A large chunk arriving slowly holds nothing back."""
    dechunker = Dechunker()

    assert dechunker.feed(b"10\r\nhal") == b"hal"
    assert dechunker.feed(b"f") == b"f"
    assert not dechunker.is_over


def test_the_body_is_not_over_before_its_trailers_are() -> None:
    """The last chunk alone does not free the connection."""
    dechunker = Dechunker()

    dechunker.feed(b"0\r\n")
    assert not dechunker.is_over
    dechunker.feed(b"\r\n")
    assert dechunker.is_over


@pytest.mark.parametrize("body", [b"zz\r\n", b"-5\r\nhello\r\n", b"5" * 10_000])
def test_what_is_no_framing_is_refused(body: bytes) -> None:
    """A size that is none ends the body as broken."""
    with pytest.raises(HTTPException):
        Dechunker().feed(body)
