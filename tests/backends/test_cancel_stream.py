"""Cancel ends a completion at once in whatever it is blocked, and never blocks itself."""

from __future__ import annotations

import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import requests
from raw_server import (
    CHUNKED_HEAD,
    CLOSE_HEAD,
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
    head,
    sse,
)

from llm_agent.backends.connection import Lifeline
from llm_agent.backends.http import PooledExchange
from llm_agent.backends.openai import OpenAIBackend
from llm_agent.messages import Message
from llm_agent.ports import CancellableStream, CompletionRequest

Serve = Callable[..., RawServer]
ONE = sse(chunk("one"))


def assert_ends_at_once(reader: Reader, cancel: Callable[[], None] | None = None) -> None:
    started = monotonic()
    (cancel or reader.stream.cancel)()
    returned = monotonic()
    collected = reader.joined()

    assert returned - started < 1.0
    assert monotonic() - started < 1.0
    assert collected.error is not None
    assert collected.error.error_class == "connection"


def gzip_start(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(body) + packer.flush(zlib.Z_SYNC_FLUSH)


BODIES = {
    "chunked": CHUNKED_HEAD + chunks(ONE),
    "close": CLOSE_HEAD + ONE,
    "gzip": head(200, {"Connection": "close", "Content-Encoding": "gzip"}) + gzip_start(ONE),
    "error body": head(500, {"Content-Length": "100"}) + b"oh",
    "document": CLOSE_HEAD + b'{"choices": [',
    "before headers": b"",
    "inside headers": b"HTTP/1.1 200 OK\r\nContent-",
}


def stalling(start: bytes, reached: threading.Event, left: threading.Event | None = None) -> Callable[[Peer], None]:
    """Send *start*, then nothing until the client leaves."""

    def handle(peer: Peer) -> None:
        peer.send(start)
        reached.set()
        peer.sock.settimeout(PATIENCE)
        if peer.sock.recv(1) == b"" and left is not None:
            left.set()

    return handle


@pytest.mark.parametrize("kept_alive", [False, True], ids=["new", "kept alive"])
@pytest.mark.parametrize("phase", BODIES)
def test_cancel_wakes_a_reader_of_plain_http(serve: Serve, phase: str, kept_alive: bool) -> None:
    """Before and inside the headers, in each kind of body, on new and reused connections."""
    reached = threading.Event()
    server = serve(*[answering()] * kept_alive, stalling(BODIES[phase], reached))
    backend = backend_for(server)
    for _ in range(kept_alive):
        assert Collected(backend.stream(REQUEST)).error is None

    reader = Reader(backend.stream(REQUEST))
    assert reached.wait(PATIENCE)

    assert_ends_at_once(reader)
    assert server.connections == 1


@pytest.mark.parametrize("phase", ["chunked", "close", "before headers"])
def test_cancel_wakes_a_reader_of_tls(serve: Serve, tls: ssl.SSLContext, phase: str) -> None:
    """The TLS object stays whole: no ciphertext is taken for text."""
    reached = threading.Event()
    reader = Reader(backend_for(serve(stalling(BODIES[phase], reached), tls=tls)).stream(REQUEST))
    assert reached.wait(PATIENCE)
    if phase != "before headers":
        assert reader.got_piece.wait(PATIENCE)

    assert_ends_at_once(reader)
    assert reader.joined().text in ("one", "")


@contextmanager
def silent_listener(backlog: int = 5) -> Iterator[socket.socket]:
    """A port whose connections nobody serves."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        yield listener


def test_cancel_wakes_a_tls_handshake(tls: ssl.SSLContext) -> None:
    """The server takes the first packet and never answers it."""
    with silent_listener() as listener:
        reader = Reader(OpenAIBackend("m", base_url=f"https://127.0.0.1:{listener.getsockname()[1]}").stream(REQUEST))
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(PATIENCE)
            assert peer.recv(1)

            assert_ends_at_once(reader)


def full_listener(stack: ExitStack) -> socket.socket:
    """A port whose queue is full: a connect to it is not answered."""
    listener = stack.enter_context(silent_listener(0))
    for _ in range(3):
        filler = stack.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    return listener


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net/tcp to see a connect in progress")
def test_cancel_wakes_a_connect() -> None:
    """The queue of the listener is full: the kernel asks again and again."""
    with ExitStack() as stack:
        port = full_listener(stack).getsockname()[1]
        before = connects_in_progress(port)

        reader = Reader(OpenAIBackend("m", base_url=f"http://127.0.0.1:{port}").stream(REQUEST))
        wait_until(lambda: connects_in_progress(port) > before)

        assert_ends_at_once(reader)


def connects_in_progress(port: int) -> int:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "02")


def wait_until(holds: Callable[[], bool]) -> None:
    """Look again every few milliseconds: for what has no event to wait on."""
    tick = threading.Event()
    deadline = monotonic() + PATIENCE
    while not holds():
        assert monotonic() < deadline
        tick.wait(0.005)


def test_cancel_leaves_a_stuck_name_lookup_behind() -> None:
    """A look-up cannot be woken; nobody waits for it any longer."""
    asked, released = threading.Event(), threading.Event()

    def stuck(*_: Any) -> list[Any]:
        asked.set()
        released.wait(PATIENCE)
        return []

    reader = Reader(OpenAIBackend("m", base_url="http://model.test/v1", resolver=stuck).stream(REQUEST))
    assert asked.wait(PATIENCE)

    assert_ends_at_once(reader)
    released.set()


def test_cancel_wakes_a_reader_behind_a_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the proxy thinks about the tunnel."""
    reached = threading.Event()
    proxy = serve(stalling(b"", reached))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")

    reader = Reader(OpenAIBackend("m", base_url="https://model.test/v1").stream(REQUEST))
    assert reached.wait(PATIENCE)

    assert_ends_at_once(reader)


def test_cancel_wakes_a_request_that_nobody_reads() -> None:
    """A large body fills the buffers of a server that does not take it."""
    with silent_listener() as listener:
        backend = OpenAIBackend("m", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        reader = Reader(backend.stream(CompletionRequest(messages=(Message.user("x" * 30_000_000),))))
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(PATIENCE)
            assert peer.recv(1)

            assert_ends_at_once(reader)


@pytest.mark.parametrize("connect_timeout", [10.0, None])
def test_a_cancel_just_before_the_connect_is_not_lost(connect_timeout: float | None) -> None:
    """Between holding the socket and connecting it: neither the connect nor the send may block."""

    class CancelledAsItAttaches(Lifeline):
        def attach(self, sock: socket.socket) -> None:
            super().attach(sock)
            self.cancel()

    with ExitStack() as stack:
        listener = full_listener(stack)
        request = requests.Request("POST", f"http://127.0.0.1:{listener.getsockname()[1]}", data=b"x").prepare()
        exchange = PooledExchange(request, CancelledAsItAttaches(connect_timeout=connect_timeout))
        opened: list[Exception] = []
        thread = threading.Thread(target=lambda: opened.append(raised_by(exchange.open)), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        exchange.close()

    assert isinstance(opened[0], requests.ConnectionError)


def raised_by(action: Callable[[], Any]) -> Any:
    try:
        action()
    except Exception as exc:
        return exc
    return None


def test_what_is_attached_or_looked_up_after_a_cancel_ends_at_once() -> None:
    """A cancel is never unset, and never too early."""
    lifeline = Lifeline(resolver=lambda *_: threading.Event().wait(PATIENCE))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lifeline.cancel()
        lifeline.attach(ours)
        theirs.settimeout(PATIENCE)
        assert theirs.recv(1) == b""
        lifeline.release()

    started = monotonic()
    with pytest.raises(ConnectionAbortedError):
        lifeline.resolve("model.test", 80)
    assert monotonic() - started < 1.0


def test_nothing_is_read_after_a_cancel(serve: Serve) -> None:
    """Not even bytes that are here already: of a TLS connection they might not be text."""
    server = serve(answering())
    request = requests.Request("POST", f"{server.url}/chat/completions", data=b"{}").prepare()
    exchange = PooledExchange(request, Lifeline())
    exchange.open()

    exchange.cancel()

    with pytest.raises(ConnectionAbortedError):
        exchange.read()
    exchange.close()


def test_cancel_before_the_first_piece_means_nothing_is_sent(serve: Serve) -> None:
    """Neither a connection nor a request."""
    server = serve(answering())
    stream = backend_for(server).stream(REQUEST)

    stream.cancel()
    stream.cancel()

    assert Collected(stream).error is not None
    assert server.connections == 0


def test_a_request_nobody_wants_any_more_is_not_sent(serve: Serve) -> None:
    """The request's own event counts as a cancel."""
    server = serve(answering())
    request = CompletionRequest(messages=REQUEST.messages)
    request.cancelled.set()

    assert Collected(backend_for(server).stream(request)).error is not None
    assert server.connections == 0


def test_a_late_cancel_does_not_hit_the_next_exchange(serve: Serve) -> None:
    """The connection is in other hands, and stays whole."""
    reached, go_on = threading.Event(), threading.Event()

    def slow(peer: Peer) -> bool:
        peer.send(CHUNKED_HEAD + chunks(ONE))
        reached.set()
        go_on.wait(PATIENCE)
        peer.send(chunks(sse("[DONE]")) + b"0\r\n\r\n")
        return True

    server = serve(answering(), slow)
    backend = backend_for(server)
    first = backend.stream(REQUEST)
    assert Collected(first).error is None

    reader = Reader(backend.stream(REQUEST))
    assert reached.wait(PATIENCE)
    first.cancel()
    first.close()
    go_on.set()

    assert reader.joined().error is None
    assert server.connections == 1


def test_a_connection_in_the_pool_is_out_of_reach_at_once(serve: Serve) -> None:
    """With the last byte of the body, not only when its exchange is closed."""
    go_on = threading.Event()

    def slow(peer: Peer) -> bool:
        peer.send(CHUNKED_HEAD)
        go_on.wait(PATIENCE)
        peer.send(chunks(ONE) + b"0\r\n\r\n")
        return True

    server = serve(answering(), slow)
    request = requests.Request("POST", f"{server.url}/chat/completions", data=b"{}").prepare()
    first, second = (PooledExchange(request, Lifeline()) for _ in range(2))
    first.open()
    while first.read():
        pass

    second.open()
    first.cancel()
    go_on.set()

    assert second.read() == ONE
    first.close()
    second.close()
    assert server.connections == 1


def test_a_cancelled_connection_is_not_used_again(serve: Serve) -> None:
    """The next exchange opens its own."""
    reached = threading.Event()
    server = serve(stalling(BODIES["chunked"], reached), answering())
    backend = backend_for(server)
    reader = Reader(backend.stream(REQUEST))
    assert reached.wait(PATIENCE)
    assert_ends_at_once(reader)

    assert Collected(backend.stream(REQUEST)).error is None
    assert server.connections == 2


def test_close_from_another_thread_wakes_the_reader(serve: Serve) -> None:
    """As cancel does; it never waits for the reader."""
    reached = threading.Event()
    reader = Reader(backend_for(serve(stalling(BODIES["chunked"], reached))).stream(REQUEST))
    assert reached.wait(PATIENCE)

    assert_ends_at_once(reader, reader.stream.close)


@pytest.mark.parametrize("phase", ["chunked", "close", "before headers"])
def test_cancel_wakes_a_reader_over_a_session_of_the_users(serve: Serve, phase: str) -> None:
    """Its I/O is on a thread that can be left behind."""
    reached = threading.Event()
    server = serve(stalling(BODIES[phase], reached))
    with requests.Session() as session:
        reader = Reader(backend_for(server, http=session).stream(REQUEST))
        assert reached.wait(PATIENCE)
        if phase != "before headers":
            assert reader.got_piece.wait(PATIENCE)

        assert_ends_at_once(reader)


@pytest.mark.parametrize("is_guest", [False, True], ids=["ours", "the user's"])
def test_the_server_learns_of_a_cancel(serve: Serve, is_guest: bool) -> None:
    """Its connection ends: it need not go on generating."""
    reached, left = threading.Event(), threading.Event()
    server = serve(stalling(BODIES["chunked"], reached, left))
    with requests.Session() as session:
        reader = Reader(backend_for(server, http=session if is_guest else None).stream(REQUEST))
        assert reader.got_piece.wait(PATIENCE)

        reader.stream.cancel()

        assert left.wait(PATIENCE)
        reader.joined()


def test_the_stream_keeps_the_promise_of_the_port(serve: Serve) -> None:
    """The engine recognises that it can be cancelled."""
    assert isinstance(backend_for(serve(answering())).stream(REQUEST), CancellableStream)
