"""The fake server on the wire: framing, compression, pauses, cuts, as a bare socket sees them."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.testing import FakeServer, Gate, cut, hang, keepalives, pause, raw, reply, sse

Serve = Callable[..., FakeServer]

BODY = b'{"stream":true}'
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
FIRST, SECOND = b"data: 1\n\n", b"data: 2\n\n"


class Client:
    """A bare socket with one request sent, read piece by piece."""

    def __init__(self, server: FakeServer) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), 5)
        self.sock.sendall(REQUEST)
        self.got = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def read_until(self, mark: bytes) -> bytes:
        while mark not in self.got:
            piece = self.sock.recv(65536)
            assert piece, f"the connection ended before {mark!r}: {self.got!r}"
            self.got += piece
        return self.got

    def read_all(self) -> bytes:
        while piece := self.sock.recv(65536):
            self.got += piece
        return self.got

    def body(self) -> bytes:
        return self.read_all().partition(b"\r\n\r\n")[2]


def everything(server: FakeServer) -> bytes:
    with Client(server) as client:
        return client.read_all()


# -- framing ---------------------------------------------------------------------------


def test_chunked_is_one_chunk_per_part(serve: Serve) -> None:
    """Each part is a chunk of its own, and an empty chunk ends the body."""
    with Client(serve([sse([FIRST, b"", SECOND])])) as client:
        got = client.read_until(b"0\r\n\r\n")

    assert b"transfer-encoding: chunked" in got
    assert got.endswith(b"\r\n\r\n9\r\n" + FIRST + b"\r\n9\r\n" + SECOND + b"\r\n0\r\n\r\n")


def test_close_delimited_ends_with_the_connection(serve: Serve) -> None:
    """The body stands as it is, and the connection closes behind it."""
    got = everything(serve([sse([FIRST, SECOND], framing="close")]))

    assert b"connection: close" in got
    assert got.endswith(b"\r\n\r\n" + FIRST + SECOND)


def test_a_length_is_told_beforehand(serve: Serve) -> None:
    """The header counts what is sent."""
    with Client(serve([sse([FIRST, SECOND], framing="length")])) as client:
        got = client.read_until(SECOND)

    assert b"content-length: 18\r\n" in got


def test_raw_has_no_http_around_it(serve: Serve) -> None:
    """The bytes are all there is, and the connection closes."""
    assert everything(serve([raw([b"HTTP/1.1 2", "00 garbage"])])) == b"HTTP/1.1 200 garbage"


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
def test_every_part_can_be_read_as_soon_as_it_is_sent(serve: Serve, framing: Any, gzip: bool) -> None:
    """While the server stands at a gate, all before it is with the client: nothing sits in a buffer."""
    gate = Gate()
    server = serve([sse([FIRST, gate, SECOND], framing=framing, gzip=gzip)])

    with Client(server) as client:
        client.read_until(b"\r\n\r\n")
        before = _read_decoded(client, framing, gzip, len(FIRST))
        gate.wait_entered()
        gate.open()
        after = _read_decoded(client, framing, gzip, len(FIRST + SECOND))

    assert before == FIRST
    assert after == FIRST + SECOND


def _read_decoded(client: Client, framing: str, gzip: bool, size: int) -> bytes:
    """Read until *size* bytes of the body, framing and compression undone, have come."""
    while True:
        data = client.got.partition(b"\r\n\r\n")[2]
        if framing == "chunked":
            data = _dechunked(data)
        if gzip:
            data = zlib.decompressobj(wbits=31).decompress(data)
        if len(data) >= size:
            return data
        piece = client.sock.recv(65536)
        assert piece, f"the connection ended after {data!r}"
        client.got += piece


def _dechunked(data: bytes) -> bytes:
    body = b""
    while b"\r\n" in data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body


@given(st.lists(st.binary(max_size=300), max_size=6), st.sampled_from(["chunked", "close", "length"]))
def test_gzip_decodes_to_the_payload(parts: list[bytes], framing: Any) -> None:
    """Compressed and framed in any way, the body is what was written, and properly ended."""
    answer = sse(parts, framing=framing, gzip=True)
    data = b"".join(step for step in answer.steps if isinstance(step, bytes))
    pen = zlib.decompressobj(wbits=31)

    text = pen.decompress(_dechunked(data) if framing == "chunked" else data)

    assert text == answer.payload == b"".join(parts)
    assert pen.eof


def test_headers_say_what_the_body_is(serve: Serve) -> None:
    """Compression and a script's own headers are in the head."""
    got = everything(serve([sse([FIRST], status=206, gzip=True, framing="close", headers={"x-a": "b"})]))

    assert got.startswith(b"HTTP/1.1 206 Partial Content\r\ncontent-type: text/event-stream")
    assert b"content-encoding: gzip" in got
    assert b"x-a: b" in got


# -- pauses and stalls -----------------------------------------------------------------


def test_a_paused_stream_takes_its_time(serve: Serve) -> None:
    """Pauses add up, whatever lies between them."""
    start = monotonic()

    got = everything(serve([sse([FIRST, pause(0.02), SECOND, pause(0.02)], framing="close", before=pause(0.02))]))

    assert got.endswith(FIRST + SECOND)
    assert monotonic() - start >= 0.06


def test_a_pace_stands_between_all_events() -> None:
    """`every` puts one pause between two events, none behind the last."""
    body = reply("abcd", every=0.02).body

    assert len(body) % 2 == 1
    assert all(isinstance(step, bytes) for step in body[::2])
    assert set(body[1::2]) == {pause(0.02)}


def test_nothing_comes_before_the_headers_are_let_go(serve: Serve) -> None:
    """A bare gate answers nothing at all until it opens, then a completion."""
    gate = hang()
    with Client(serve([gate])) as client:
        gate.wait_entered()
        client.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.sock.recv(1)
        client.sock.setblocking(True)
        client.sock.settimeout(5)
        gate.open()
        got = client.read_until(b"0\r\n\r\n")

    assert got.startswith(b"HTTP/1.1 200 OK")
    assert b'"finish_reason":"stop"' in got


def test_a_gate_with_a_text_stalls_in_mid_sentence(serve: Serve) -> None:
    """The text arrives, then nothing; opened, the completion ends well."""
    gate = hang("Hel")
    with Client(serve([gate])) as client:
        before = client.read_until(b'"Hel"')
        gate.wait_entered()
        gate.open()
        after = client.read_until(b"0\r\n\r\n")

    assert b"[DONE]" not in before
    assert b"[DONE]" in after


def test_a_socket_can_stay_open_behind_the_end_marker(serve: Serve) -> None:
    """`then=[hang()]`: the completion is whole, the body does not end."""
    gate = hang()
    with Client(serve([reply("Hi", then=[gate])])) as client:
        got = client.read_until(b"[DONE]\n\n\r\n")
        gate.wait_entered()

    assert not got.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
def test_keepalives_come_for_ever(serve: Serve, gzip: bool) -> None:
    """Comments keep coming, each readable at once, until the client leaves."""
    # The same comment once before: a compressor would like to refer back to it.
    before = b": keepalive\n\n" + b"data: a longer event than the comment\n\n"
    server = serve([sse([before, keepalives(0.001)], gzip=gzip)])
    expected = before + b": keepalive\n\n" * 20

    with Client(server) as client:
        client.read_until(b"\r\n\r\n")
        got = _read_decoded(client, "chunked", gzip, len(expected))

    assert got.startswith(expected)
    assert server.requests[0].client_left.wait(5)


# -- cuts ------------------------------------------------------------------------------


def test_a_cut_by_fin_looks_like_the_end(serve: Serve) -> None:
    """The client reads what came and then end of file."""
    got = everything(serve([sse([FIRST, cut("fin"), SECOND])]))

    assert got.endswith(FIRST + b"\r\n")


def test_a_cut_by_rst_is_an_error(serve: Serve) -> None:
    """The client gets a reset, not an end of file."""
    gate = Gate()
    with Client(serve([sse([FIRST, gate, cut("rst")])])) as client:
        client.read_until(FIRST)
        gate.open()

        with pytest.raises(ConnectionResetError):
            client.read_all()


@pytest.mark.parametrize("events", [0, 1, 3])
def test_a_reply_can_be_cut_behind_an_event(serve: Serve, events: int) -> None:
    """So many events arrive whole, none after them."""
    whole = reply("abcd")

    with Client(serve([whole.cut(after_events=events)])) as client:
        body = client.body()

    assert _dechunked(body) == b"".join(whole.body[:events])  # type: ignore[arg-type]
    assert not body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
def test_a_reply_can_be_cut_at_any_byte(serve: Serve, framing: Any, gzip: bool) -> None:
    """Counted as framed, exactly so many bytes come behind the headers."""
    answer = sse([FIRST, pause(0), SECOND], framing=framing, gzip=gzip)
    wire = b"".join(step for step in answer.steps if isinstance(step, bytes))
    server = serve([answer.cut(after_bytes=size) for size in range(len(wire) + 1)])

    for size in range(len(wire) + 1):
        with Client(server) as client:
            assert client.body() == wire[:size]


def test_a_cut_needs_one_place() -> None:
    """Neither and both are refused."""
    for places in ({}, {"after_events": 1, "after_bytes": 1}):
        with pytest.raises(ConfigError, match="after_events or after_bytes"):
            reply("x").cut(**places)  # type: ignore[arg-type]


# -- answers are values ----------------------------------------------------------------


def test_an_answer_is_encoded_once_and_sent_in_one_piece() -> None:
    """What no pause divides goes out in one call, and a second play encodes nothing."""
    answer = reply("x" * 1000, pieces=1000)

    assert len(answer.steps) == 1
    assert answer.steps is answer.steps


@given(st.text(max_size=50), st.integers(1, 9))
def test_the_pieces_of_a_reply_join_up_to_its_text(text: str, pieces: int) -> None:
    """However it is cut, no text is lost and no event is split."""
    events = reply(text, pieces=pieces).payload.removesuffix(b"\n\n").split(b"\n\n")

    deltas = [codec.loads(event.removeprefix(b"data: "))["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert len(deltas) <= pieces + 2
    assert events[-1] == b"data: [DONE]"
