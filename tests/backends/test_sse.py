"""Bytes become events: the front end against a naive reading of the specification."""

from __future__ import annotations

import logging
from collections import deque
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent.backends.sse import MAX_EVENT_BYTES, MAX_EVENT_LINES, EventParser, NamedEvent
from llm_agent.errors import BackendError


def events_by_specification(body: bytes) -> list[tuple[str, str]]:
    """WHATWG's algorithm, word by word and line by line: (type, data) of each dispatched event."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found, name, data = [], "", ""
    for line in lines[:-1]:  # what no line end follows is no line
        if line == "":
            if data:
                found.append((name or "message", data.removesuffix("\n")))
            name, data = "", ""
            continue
        if line.startswith(":"):
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data += value + "\n"
        elif field == "event":
            name = value
    return found


def events_by_parser(chunks: list[bytes]) -> list[tuple[str, str]]:
    parser = EventParser()
    found = [event for chunk in chunks for event in parser.feed(chunk)]
    return [(e.name, e.data.decode()) if isinstance(e, NamedEvent) else ("message", decoded(e)) for e in found]


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def cut(body: bytes, offsets: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(offset % (len(body) + 1) for offset in offsets)})
    return [body[start:end] for start, end in pairwise(places)]


VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
LINES = st.one_of(
    VALUES.map("data: {}".format),
    VALUES.map("data:{}".format),
    VALUES.map("event: {}".format),
    VALUES.map(": {}".format),
    st.sampled_from(["", "", "", "data", "id: 7", "retry: 10", "unknown: x", ":", "datax: y", "event"]),
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(LINES, ENDS), max_size=20),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_any_stream_cut_anywhere_gives_the_events_of_the_specification(
    lines: list[tuple[str, bytes]], mark: bytes, offsets: list[int]
) -> None:
    """Every kind of line end, mark, comment and field, cut at any byte, reads as the specification has it."""
    body = mark + b"".join(line.encode() + end for line, end in lines)

    assert events_by_specification(body) == events_by_parser(cut(body, offsets))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_stream_cut_at_every_byte_loses_nothing(end: bytes, mark: bytes) -> None:
    """Two parts at every offset, and one byte at a time: the same events."""
    body = mark + 'data: {"a":"你好😀"}||: note|data:b||event: error|data: c|data: d||'.encode().replace(b"|", end)
    expected = events_by_specification(body)

    assert len(expected) == 3
    assert all(events_by_parser([body[:at], body[at:]]) == expected for at in range(len(body) + 1))
    assert events_by_parser([body[at : at + 1] for at in range(len(body))]) == expected


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_arbitrary_bytes_never_raise(body: bytes, offsets: list[int]) -> None:
    """Whatever comes, the parser only finds more or fewer events in it."""
    events_by_parser(cut(body, offsets))


def test_an_event_is_handed_on_with_its_last_byte() -> None:
    """The blank line completes it; nothing waits for what comes after."""
    parser = EventParser()

    assert parser.feed(b"data: one\n") == []
    assert parser.feed(b"\n") == [b"one"]
    assert parser.feed(b"data: two\r\n\r") == [b"two"]


def test_bad_utf_8_costs_a_character_and_not_the_stream() -> None:
    """The bytes are passed on or replaced, and the next event is whole."""
    parser = EventParser()

    found = parser.feed(b"data: \xff\n\nevent: x\ndata: \xff\n\ndata: ok\n\n")

    assert found == [b"\xff", NamedEvent("x", "\ufffd".encode()), b"ok"]


def test_an_unterminated_event_is_kept_apart() -> None:
    """It is no event until somebody asks for the tail, and decides."""
    parser = EventParser()

    assert parser.feed(b"data: one\n\ndata: tw") == [b"one"]
    assert parser.finish() == [b"tw"]


def test_comments_alone_are_no_events_but_tell_the_kind_of_body() -> None:
    """Keepalives are heard, and never handed on."""
    parser = EventParser()

    assert parser.feed(b": ping\n\n:\n\n: ping\n\n") == []
    assert parser.is_event_stream


def test_other_text_is_told_from_an_event_stream() -> None:
    """A body without one field or comment is some other kind of text."""
    parser = EventParser()

    assert parser.feed(b"Bad gateway\n\nTry later\n\n") == []
    assert not parser.is_event_stream


def test_a_large_event_in_small_pieces_takes_linear_time() -> None:
    """4 MB in 1 KiB pieces is a matter of milliseconds, not of the square of it."""
    parser = EventParser()
    body = b"data: " + b"x" * 4_000_000 + b"\n\n"
    started = process_time()

    found = [event for at in range(0, len(body), 1024) for event in parser.feed(body[at : at + 1024])]

    assert [len(event) for event in found if isinstance(event, bytes)] == [4_000_000]
    assert process_time() - started < 1.0


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: "] + [b"x" * 1_000_000] * (MAX_EVENT_BYTES // 1_000_000 + 1),
        [b"data: x\n" * (MAX_EVENT_LINES + 1) + b"\n"],
        [(b"data: " + b"x" * 100_000 + b"\n") * 150 + b"\n"],
    ],
    ids=["bytes", "lines", "lines times bytes"],
)
def test_an_event_without_measure_is_refused(pieces: list[bytes]) -> None:
    """A server that never ends its event fails the attempt before it fills memory or time."""
    parser = EventParser()

    with pytest.raises(BackendError) as caught:
        deque((parser.feed(piece) for piece in pieces), maxlen=0)

    assert caught.value.error_class == "response"


def test_what_the_server_sends_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """An echoed key stays out of the debug log of the field parser."""
    with caplog.at_level(logging.DEBUG):
        EventParser().feed(b"sk-secret\nsk-secret: x\nevent: error\ndata: sk-secret\n\n")

    assert "sk-secret" not in caplog.text
