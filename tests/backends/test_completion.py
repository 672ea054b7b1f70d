"""When a streamed completion is whole, and what each way of not being whole is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from raw_server import (
    CHUNKED_HEAD,
    CLOSE_HEAD,
    HELLO,
    PATIENCE,
    REQUEST,
    Collected,
    Peer,
    RawServer,
    Reader,
    answering,
    backend_for,
    chunk,
    chunks,
    complete,
    framed,
    head,
    sse,
)

from llm_agent.messages import Delta, ToolRequest

Serve = Callable[..., RawServer]
FRAMINGS = pytest.mark.parametrize("framing", ["chunked", "close", "length", "chunked+gzip", "close+gzip"])


@FRAMINGS
def test_text_arrives_as_plain_strings_and_the_rest_as_deltas(serve: Serve, framing: str) -> None:
    """One piece per delta; the finish reason comes last."""
    collected = complete(serve(answering(HELLO, framing)))

    assert collected.error is None
    assert collected.pieces == [Delta("Hel", model="served"), "lo", Delta(), Delta(finish_reason="stop")]


@pytest.mark.parametrize("end", [[chunk(finish="stop")], ["[DONE]"], [chunk(finish="stop"), "[DONE]"]])
@FRAMINGS
def test_a_finish_reason_or_done_makes_it_whole(serve: Serve, framing: str, end: list[Any]) -> None:
    """Either suffices."""
    collected = complete(serve(answering(sse(chunk("all"), *end), framing)))

    assert (collected.error, collected.text) == (None, "all")


@FRAMINGS
def test_an_end_without_either_is_a_broken_connection(serve: Serve, framing: str) -> None:
    """Half an answer never passes for one; what came is handed on, half a call is not."""
    call = {"index": 0, "id": "A", "function": {"name": "f", "arguments": "{}"}}
    collected = complete(serve(answering(sse(chunk("half"), chunk(tool_calls=[call])), framing)))

    assert collected.error is not None
    assert collected.error.error_class == "connection"
    assert (collected.text, collected.calls) == ("half", [])


@pytest.mark.parametrize("last", [sse(chunk(finish="stop"))[:-2], sse(chunk(finish="stop"))[:-1], b"data: [DONE]"])
def test_a_whole_last_event_without_its_blank_line_counts(serve: Serve, last: bytes) -> None:
    """Some servers forget it."""
    collected = complete(serve(answering(sse(chunk("all")) + last, "close")))

    assert (collected.error, collected.text) == (None, "all")


def test_half_a_last_event_does_not_count(serve: Serve) -> None:
    """A cut event is a cut stream, however plausible."""
    collected = complete(serve(answering(sse(chunk("all"), chunk(finish="stop"))[:-4], "close")))

    assert collected.error is not None
    assert collected.error.error_class == "connection"


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("start", [CHUNKED_HEAD, head(200, {"Content-Length": "900"})], ids=["chunked", "length"])
def test_a_cut_inside_the_body_is_a_broken_connection(serve: Serve, start: bytes, reset: bool) -> None:
    """FIN or RST, inside a chunk or short of the length: one class, and what came before is kept."""
    is_read = threading.Event()

    def cut(peer: Peer) -> None:
        body = sse(chunk("kept"))
        peer.send(start + (chunks(body) + b"40\r\ndata: {" if start is CHUNKED_HEAD else body))
        is_read.wait(PATIENCE)  # a reset throws away what has not been read
        if reset:
            peer.reset()

    reader = Reader(backend_for(serve(cut)).stream(REQUEST))
    assert reader.got_piece.wait(PATIENCE)
    is_read.set()

    collected = reader.joined()
    assert collected.error is not None
    assert (collected.error.error_class, collected.text) == ("connection", "kept")


def test_a_cut_after_the_finish_reason_costs_nothing(serve: Serve) -> None:
    """The completion was whole."""

    def cut(peer: Peer) -> None:
        peer.send(CHUNKED_HEAD + chunks(sse(chunk("all", finish="stop"))) + b"40\r\nda")

    collected = complete(serve(cut))

    assert (collected.error, collected.text) == (None, "all")


@pytest.mark.parametrize("start", [CHUNKED_HEAD, CLOSE_HEAD], ids=["chunked", "close"])
def test_a_body_kept_open_after_done_does_not_delay_the_end(serve: Serve, start: bytes) -> None:
    """`[DONE]` ends it, whatever the server does with its connection."""
    server: RawServer

    def linger(peer: Peer) -> None:
        peer.send(start + (chunks(HELLO) if start is CHUNKED_HEAD else HELLO))
        server.closing.wait(PATIENCE)

    server = serve(linger)

    assert Reader(backend_for(server).stream(REQUEST)).joined(2).error is None


def test_silence_after_the_finish_reason_ends_it(serve: Serve) -> None:
    """Only a usage report can follow, and it is not waited for without end."""
    server: RawServer

    def linger(peer: Peer) -> None:
        peer.send(CHUNKED_HEAD + chunks(sse(chunk("all", finish="stop"))))
        server.closing.wait(PATIENCE)

    server = serve(linger)

    stream = backend_for(server).stream(REQUEST)
    stream.finish_grace = 0.05

    collected = Reader(stream).joined(2)
    assert (collected.error, collected.text, collected.finish_reason) == (None, "all", "stop")


def test_usage_after_the_finish_reason_is_reported(serve: Serve) -> None:
    """In a chunk without choices, before `[DONE]`."""
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    collected = complete(serve(answering(sse(chunk("all", finish="stop"), usage, "[DONE]"))))

    assert collected.usage.prompt_tokens == 3


def test_calls_come_whole_and_once_at_the_end(serve: Serve) -> None:
    """Fragments are signs of life and nothing more."""
    first = chunk(tool_calls=[{"index": 0, "id": "A", "function": {"name": "f", "arguments": '{"x":'}}])
    second = chunk(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}])

    collected = complete(serve(answering(sse(first, second, chunk(finish="tool_calls"), "[DONE]"))))

    calls = (ToolRequest("A", "f", '{"x":1}'),)
    assert collected.pieces[1:] == [Delta(), Delta(), Delta(tool_calls=calls, finish_reason="tool_calls")]


def test_a_truncated_completion_is_passed_on_with_its_reason(serve: Serve) -> None:
    """`length` is for the engine to judge."""
    collected = complete(serve(answering(sse(chunk("ha"), chunk(finish="length"), "[DONE]"))))

    assert (collected.error, collected.finish_reason) == (None, "length")


@pytest.mark.parametrize("start", [CHUNKED_HEAD, CLOSE_HEAD], ids=["chunked", "close"])
def test_an_event_is_delivered_before_the_next_is_sent(serve: Serve, start: bytes) -> None:
    """Whatever the framing, nothing waits for a buffer to fill."""
    is_read = threading.Event()
    delivered = []

    def slow(peer: Peer) -> bool:
        first, rest = sse(chunk("one")), sse(chunk("two"), "[DONE]")
        is_chunked = start is CHUNKED_HEAD
        peer.send(start + (chunks(first) if is_chunked else first))
        delivered.append(is_read.wait(PATIENCE))
        peer.send(chunks(rest) + b"0\r\n\r\n" if is_chunked else rest)
        return is_chunked

    reader = Reader(backend_for(serve(slow)).stream(REQUEST))
    assert reader.got_piece.wait(PATIENCE)
    is_read.set()

    assert reader.joined().text == "onetwo"
    assert delivered == [True]


def test_a_stream_sent_byte_by_byte_is_the_same_stream(serve: Serve) -> None:
    """Chunks of one byte, CRLF, a BOM, comments, characters cut in the middle."""
    body = b"\xef\xbb\xbf: hello\r\n\r\n" + sse(chunk("你好😀"), "[DONE]").replace(b"\n", b"\r\n")

    def dribble(peer: Peer) -> bool:
        peer.send(CHUNKED_HEAD + b"".join(chunks(body[at : at + 1]) for at in range(len(body))) + b"0\r\n\r\n")
        return True

    collected = complete(serve(dribble))

    assert (collected.error, collected.text) == (None, "你好😀")


def test_what_is_no_event_for_us_is_passed_over(serve: Serve) -> None:
    """Comments (also inside data), empty data, ids, retries, other event names, bad UTF-8."""
    odd = b": OPENROUTER PROCESSING\n\ndata: : OPENROUTER PROCESSING\n\ndata:\n\nid: 1\nretry: 5\n\n"
    named = b'event: chunk\nid: 3\ndata: {"choices":[{"delta":\ndata: {"content":"b"}}]}\n\n'
    bad = b'data: {"choices":[{"index":0,"delta":{"content":"\xff"},"finish_reason":null}]}\n\n'

    collected = complete(serve(answering(odd + sse(chunk("a")) + named + bad + sse("[DONE]"))))

    assert (collected.error, collected.text) == (None, "ab\ufffd")


def test_events_without_a_blank_line_between_them_are_told_apart(serve: Serve) -> None:
    """When each data line is JSON by itself, each is an event."""
    body = sse(chunk("a"), chunk("b"), "[DONE]").replace(b"\n\n", b"\n") + b"\n"

    collected = complete(serve(answering(body)))

    assert (collected.error, collected.text) == (None, "ab")


def test_lone_surrogates_are_made_fit_for_the_conversation(serve: Serve) -> None:
    """Escapes that only the standard parser reads; a pair cut in two is joined."""
    cut = [
        b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % half for half in (b"a\\ud83d", b"\\ude00", b"b\\ud83d")
    ]

    collected = complete(serve(answering(b"".join(cut) + sse("[DONE]"))))

    assert (collected.error, collected.text) == (None, "a😀b\ufffd")


def test_what_is_held_back_keeps_its_place(serve: Serve) -> None:
    """Half a character, then plain text: in the order of the stream."""
    half = b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n'

    collected = complete(serve(answering(half + sse(chunk("b"), "[DONE]"))))

    assert (collected.error, collected.text) == (None, "a\ufffdb")


def test_a_model_named_late_is_reported(serve: Serve) -> None:
    """Azure leaves it empty at first; the text beside it is not lost."""
    collected = complete(serve(answering(sse({"model": "", "choices": []}, chunk("a"), chunk("b"), "[DONE]"))))

    assert (collected.model, collected.text) == ("served", "ab")


ERROR = {"message": "out of luck", "type": "server_error"}


@pytest.mark.parametrize(
    ("event", "error_class", "status"),
    [
        ({"error": {**ERROR, "code": 502}}, "http", 502),
        ({"error": {**ERROR, "code": "429"}}, "http", 429),
        ({"error": {**ERROR, "code": None}}, "response", None),
        ({"error": {**ERROR, "code": "insufficient_quota"}}, "response", None),
        ({"error": {**ERROR, "code": 200}}, "response", None),
        ({"error": {**ERROR, "status": 400}}, "http", 400),
        ({"error": "out of luck"}, "response", None),
        ({"error": "out of luck", "code": 503}, "http", 503),
        ({"error": ERROR, "choices": []}, "response", None),
        ({"error": ERROR, **chunk("")}, "response", None),
        ([{"error": {**ERROR, "code": 500}}], "http", 500),
        ({"object": "error", "message": "out of luck", "code": 404}, "http", 404),
        ({"choices": [{"delta": {}, "error": {**ERROR, "code": 502}}]}, "http", 502),
        ({"x_groq": {"error": "out of luck"}, "choices": []}, "response", None),
        (b'event: error\ndata: {"message": "out of luck", "code": 500}\n\n', "http", 500),
        (b"event: error\ndata: out of luck\n\n", "response", None),
        ('"out of luck"', "response", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [[], [chunk("some "), chunk("text")]], ids=["first", "after text"])
def test_an_error_inside_a_200_is_an_error(
    serve: Serve, before: list[Any], event: Any, error_class: str, status: int | None
) -> None:
    """Class http when it names a status, else response; the text before it is kept."""
    collected = complete(serve(answering(sse(*before, event, "[DONE]"))))

    error = collected.error
    assert error is not None
    assert (error.error_class, error.status) == (error_class, status)
    assert "reports an error: out of luck" in str(error)
    assert collected.text == ("some text" if before else "")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"\r\n\r\n", "empty"),
        (b"upstream is gone\n", "upstream is gone"),
        (b"<!doctype html><title>Oops</title><script>x</script><p>Down &amp; out", "Oops Down & out"),
        (b'{"id": "x", "message": "nothing here"}', "nothing here"),
        (b'{"done": false}\n{"done": true}\n', "done"),
        (b"data: {nonsense}\n\n", "nonsense"),
        (b"[]", "[]"),
    ],
)  # fmt: skip
def test_a_200_that_is_no_completion_is_told_as_what_it_is(serve: Serve, body: bytes, words: str) -> None:
    """Class response, with an excerpt that a person can read."""
    collected = complete(serve(answering(body)))

    assert collected.error is not None
    assert collected.error.error_class == "response"
    assert words in str(collected.error)


def test_a_document_that_is_an_error_keeps_its_status(serve: Serve) -> None:
    """An error object as the whole body of a 200."""
    collected = complete(serve(answering(b'{"error": {"message": "no", "code": 400}}', "length")))

    assert collected.error is not None
    assert (collected.error.error_class, collected.error.status) == ("http", 400)


def test_a_document_arriving_slowly_shows_signs_of_life(serve: Serve) -> None:
    """Each piece resets the engine's clock; white space, a keepalive, does not."""
    body = b'{"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}'
    is_alive = threading.Event()
    heard = []

    def slow(peer: Peer) -> bool:
        peer.send(CHUNKED_HEAD + chunks(b" \n") + chunks(body[:9]))
        heard.append(is_alive.wait(PATIENCE))
        peer.send(chunks(body[9:]) + b"0\r\n\r\n")
        return True

    reader = Reader(backend_for(serve(slow)).stream(REQUEST))
    assert reader.got_piece.wait(PATIENCE)
    is_alive.set()

    collected = reader.joined()
    assert heard == [True]
    assert (collected.error, collected.text, collected.finish_reason) == (None, "whole", "stop")


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_a_refusal_keeps_status_words_and_wait(serve: Serve, status: int) -> None:
    """Class http; Retry-After is read on every status."""
    server = serve(
        answering(b'{"error": {"message": "too many tokens"}}', "length", status=status, headers={"Retry-After": "7"})
    )

    error = complete(server).error

    assert error is not None
    assert (error.error_class, error.status, error.retry_after) == ("http", status, 7.0)
    assert "too many tokens" in str(error)


def test_an_endless_error_body_is_not_read_to_its_end(serve: Serve) -> None:
    """So much is enough to say what happened."""

    def endless(peer: Peer) -> None:
        peer.send(head(500, {"Connection": "close"}))
        while True:
            peer.send(b"no " * 10_000)

    error = Reader(backend_for(serve(endless)).stream(REQUEST)).joined().error

    assert error is not None
    assert error.status == 500
    assert len(str(error)) < 3_000


def test_an_error_body_that_never_comes_still_has_its_status(serve: Serve) -> None:
    """The status is the news; its words are waited for only so long."""
    server: RawServer

    def stall(peer: Peer) -> None:
        peer.send(head(503, {"Content-Length": "100"}) + b"busy")
        server.closing.wait(PATIENCE)

    server = serve(stall)

    stream = backend_for(server).stream(REQUEST)
    stream.error_silence = 0.05

    error = Reader(stream).joined(2).error
    assert error is not None
    assert (error.status, error.error_class) == (503, "http")
    assert "busy" in str(error)


def test_a_stream_is_an_iterator_that_can_be_closed_early(serve: Serve) -> None:
    """Closing after one piece frees the connection, and nothing follows."""
    stream = backend_for(serve(answering())).stream(REQUEST)

    first = next(stream)
    stream.close()
    stream.close()

    assert first == Delta("Hel", model="served")
    assert list(stream) == []


def test_the_error_carries_no_trace_of_the_request(serve: Serve) -> None:
    """No cause and no context: they would hold the headers, and with them the key."""
    server = serve(answering())
    server.close()

    error = Collected(backend_for(server).stream(REQUEST)).error

    assert error is not None
    assert (error.__cause__, error.__context__) == (None, None)


def test_a_gzip_body_that_is_none_is_a_broken_answer(serve: Serve) -> None:
    """What cannot be decoded arrived, and is no completion."""
    body = framed(b"x" * 100, "close", headers={"Content-Encoding": "gzip"})

    def garbage(peer: Peer) -> None:
        peer.send(body)

    error = complete(serve(garbage)).error

    assert error is not None
    assert error.error_class == "response"
