"""Connections: kept, looked up, redirected, proxied, forked, borrowed; and what breaks them."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from raw_server import (
    CHUNKED_HEAD,
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

from llm_agent.backends.connection import Lifeline
from llm_agent.backends.http import PooledExchange
from llm_agent.backends.openai import OpenAIBackend
from llm_agent.messages import Message
from llm_agent.ports import CompletionRequest

Serve = Callable[..., RawServer]


@pytest.mark.parametrize("framing", ["chunked", "length", "chunked+gzip"])
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_one_connection_serves_many_completions(serve: Serve, tls: ssl.SSLContext, framing: str, secure: bool) -> None:
    """Rounds, runs and backends share it, for one key or another."""
    server = serve(answering(HELLO, framing), tls=tls if secure else None)

    for key in ("sk-first", "sk-second", "sk-third"):
        assert complete(server, api_key=key).error is None

    assert server.connections == 1
    assert [headers["authorization"] for _, headers, _ in server.requests] == [
        "Bearer sk-first",
        "Bearer sk-second",
        "Bearer sk-third",
    ]


def test_a_read_error_body_keeps_the_connection(serve: Serve) -> None:
    """A refusal costs no reconnect."""
    server = serve(answering(b"busy", "length", status=503), answering())

    assert complete(server).error is not None
    assert complete(server).error is None
    assert server.connections == 1


def test_a_connection_closed_while_idle_is_replaced(serve: Serve) -> None:
    """The server's FIN is seen before the next request is sent."""
    closed = threading.Event()

    def last(peer: Peer) -> None:
        peer.send(framed(HELLO, "chunked"))
        peer.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    server = serve(last, answering())
    assert complete(server).error is None
    assert closed.wait(PATIENCE)

    assert complete(server).error is None
    assert server.connections == 2


@pytest.mark.parametrize(("threshold", "sent"), [(0.0, 3), (60.0, 2)])
def test_only_a_connection_that_had_been_idle_is_given_a_second_request(
    serve: Serve, threshold: float, sent: int
) -> None:
    """A server that closes as we send gets it again, once; one that had no time to be idle has answered."""
    server = serve(answering(), lambda peer: None, answering())
    assert complete(server).error is None

    exchange = PooledExchange(prepared(server), Lifeline(), resend_after_idle=threshold)
    if sent == 3:
        exchange.open()
    else:
        with pytest.raises(requests.ConnectionError):
            exchange.open()
    exchange.close()

    assert len(server.requests) == sent


def test_a_new_connection_that_breaks_is_not_tried_again(serve: Serve) -> None:
    """Nothing is sent twice without being told."""
    server = serve(lambda peer: None)

    error = complete(server).error

    assert error is not None
    assert error.error_class == "connection"
    assert len(server.requests) == 1


def prepared(server: RawServer) -> requests.PreparedRequest:
    return requests.Request("POST", f"{server.url}/chat/completions", data=b"{}").prepare()


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_refused_connection_is_class_connection() -> None:
    """With the system's own words."""
    error = Collected(OpenAIBackend("m", base_url=f"http://127.0.0.1:{refused_port()}").stream(REQUEST)).error

    assert error is not None
    assert error.error_class == "connection"
    assert "refused" in str(error)


def info(port: int, host: str = "127.0.0.1") -> tuple[Any, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))


def test_every_address_of_a_name_is_tried(serve: Serve) -> None:
    """The first may be dead."""
    server = serve(answering())
    asked = []

    def resolver(host: str, port: int, *_: Any) -> list[tuple[Any, ...]]:
        asked.append((host, port))
        return [info(refused_port()), info(server.port)]

    collected = complete(server, base_url="http://model.test:81/v1", resolver=resolver)

    assert collected.error is None
    assert asked == [("model.test", 81)]


@pytest.mark.parametrize(
    "answer",
    [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long"), []],
    ids=["unknown", "no name", "empty"],
)
def test_a_name_without_an_address_is_class_connection(answer: Any) -> None:
    """Whatever the look-up says."""

    def resolver(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    error = Collected(OpenAIBackend("m", base_url="http://model.test/v1", resolver=resolver).stream(REQUEST)).error

    assert error is not None
    assert error.error_class == "connection"


def test_a_lookup_without_end_is_given_up() -> None:
    """After the connect timeout, as a connect that never stood."""
    released = threading.Event()
    backend = OpenAIBackend(
        "m", base_url="http://model.test/v1", connect_timeout=0.05, resolver=lambda *_: released.wait(PATIENCE)
    )

    error = Reader(backend.stream(REQUEST)).joined().error
    released.set()

    assert error is not None
    assert error.error_class == "connection"


def test_a_handshake_without_end_is_class_connection() -> None:
    """Silence before a connection stands is no answer's silence."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        backend = OpenAIBackend("m", base_url=f"https://127.0.0.1:{listener.getsockname()[1]}", connect_timeout=0.05)
        error = Reader(backend.stream(REQUEST)).joined().error

    assert error is not None
    assert error.error_class == "connection"


@pytest.mark.parametrize("start", [b"", CHUNKED_HEAD + chunks(sse(chunk("x")))], ids=["no headers", "in the body"])
def test_silence_of_a_server_that_accepted_is_class_timeout(serve: Serve, start: bytes) -> None:
    """The read timeout is a backstop, in every phase after the connect."""
    server: RawServer

    def stall(peer: Peer) -> None:
        peer.send(start)
        server.closing.wait(PATIENCE)

    server = serve(stall)

    error = Reader(backend_for(server, read_timeout=0.05).stream(REQUEST)).joined().error
    assert error is not None
    assert error.error_class == "timeout"


def test_an_untrusted_certificate_is_class_connection(
    serve: Serve, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")

    error = complete(serve(answering(), tls=tls)).error

    assert error is not None
    assert error.error_class == "connection"
    assert "certificate verify failed" in str(error)


def test_a_process_wide_default_timeout_changes_nothing(serve: Serve) -> None:
    """The second descriptor must not make the first one non-blocking."""
    reached = threading.Event()

    def pausing(peer: Peer) -> bool:
        peer.send(CHUNKED_HEAD + chunks(sse(chunk("a"))))
        reached.wait(PATIENCE)
        peer.send(chunks(sse(chunk("b"), "[DONE]")) + b"0\r\n\r\n")
        return True

    server = serve(answering(), pausing)
    socket.setdefaulttimeout(60)
    try:
        assert complete(server, read_timeout=None, connect_timeout=None).error is None
        reader = Reader(backend_for(server, read_timeout=None).stream(REQUEST))
        assert reader.got_piece.wait(PATIENCE)
        reached.set()
        assert reader.joined().text == "ab"
    finally:
        socket.setdefaulttimeout(None)


def test_a_large_request_may_take_longer_than_a_connect(serve: Serve) -> None:
    """The connect timeout ends with the connect; a slow line may still be sending."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        backend = OpenAIBackend("m", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", connect_timeout=0.1)
        reader = Reader(backend.stream(CompletionRequest(messages=(Message.user("x" * 20_000_000),))))
        sock, _ = listener.accept()
        with sock:
            reader.thread.join(0.3)  # three times as long as a connect may take
            peer = Peer(sock)
            assert peer.next_request()
            peer.send(framed(HELLO, "close"))

    assert reader.joined().error is None


def test_one_read_returns_all_that_one_packet_brought(serve: Serve) -> None:
    """Many chunks at once are one read: a chunk per token costs no read per token."""
    server = serve(answering())
    server.handlers = [lambda peer: peer.send(CHUNKED_HEAD + chunks(b"one ") + chunks(b"two ") + chunks(b"three"))]
    exchange = PooledExchange(prepared(server), Lifeline())

    exchange.open()

    assert exchange.read() == b"one two three"
    exchange.close()


def redirecting(target: str, status: int = 307) -> Callable[[Peer], bool]:
    return answering(b"moved", "length", status=status, headers={"Location": target})


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_on_the_same_host_is_followed_with_the_key(serve: Serve, status: int) -> None:
    """The same POST, the same body."""
    server = serve(redirecting("/v2/chat/completions", status), answering())

    assert complete(server).error is None
    (_, _, first_body), (target, headers, body) = server.requests
    assert (target, body) == ("/v2/chat/completions", first_body)
    assert headers["authorization"] == "Bearer sk-secret-key"


def test_a_redirect_to_another_host_never_receives_a_secret(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither key nor headers of the user; and no password of ~/.netrc in their place."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other-secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    other = serve(answering())
    server = serve(redirecting(f"{other.url}/chat/completions"))

    collected = complete(server, headers={"X-Token": "my-own-token"})

    assert collected.error is None
    ((_, headers, _),) = other.requests
    assert "authorization" not in headers
    assert "x-token" not in headers


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_would_lose_the_post_is_an_error_that_says_so(serve: Serve, status: int) -> None:
    """With the address it names."""
    error = complete(serve(redirecting("https://new.test/v1", status))).error

    assert error is not None
    assert (error.error_class, error.status) == ("http", status)
    assert "https://new.test/v1" in str(error)


def test_a_circle_of_redirects_ends(serve: Serve) -> None:
    """After five."""
    server = serve(redirecting("/v1/chat/completions"))

    error = complete(server).error

    assert error is not None
    assert (error.error_class, len(server.requests)) == ("http", 6)


def test_netrc_never_replaces_the_key(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor supplies one, nor with a session of the user's."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other-secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    server = serve(answering())

    complete(server)
    complete(server, api_key="")
    with requests.Session() as session:
        complete(server, http=session)
        complete(server, http=session, api_key="")

    keys = [headers.get("authorization") for _, headers, _ in server.requests]
    assert keys == ["Bearer sk-secret-key", None, "Bearer sk-secret-key", None]


def test_a_proxy_of_the_environment_is_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """For http it gets the whole address, over a connection that is kept."""
    proxy = serve(answering())
    monkeypatch.setenv("HTTP_PROXY", f"http://user:proxy-password@127.0.0.1:{proxy.port}")

    for _ in range(2):
        assert complete(proxy, base_url="http://model.test/v1").error is None

    assert proxy.connections == 1
    assert {target for target, _, _ in proxy.requests} == {"http://model.test/v1/chat/completions"}
    assert "proxy-authorization" in proxy.requests[0][1]


def test_no_proxy_of_the_environment_is_obeyed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts named there are asked directly."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{refused_port()}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    assert complete(serve(answering())).error is None


def test_https_goes_through_a_tunnel(serve: Serve, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS to the server, through the proxy, twice over one connection."""
    server = serve(answering(), tls=tls)

    def tunnel(peer: Peer) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as onward:
            peer.send(b"HTTP/1.1 200 Connected\r\n\r\n")
            back = threading.Thread(target=copy, args=(onward, peer.sock), daemon=True)
            back.start()
            copy(peer.sock, onward)
            back.join(PATIENCE)

    proxy = serve(tunnel)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")

    for _ in range(2):
        assert complete(server, base_url=f"https://localhost:{server.port}/v1").error is None

    assert (proxy.connections, server.connections) == (1, 1)
    assert proxy.requests[0][0] == f"localhost:{server.port}"


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_a_proxy_that_refuses_the_tunnel_is_class_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was never reached."""
    proxy = serve(answering(b"no", "length", status=403))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")

    error = complete(proxy, base_url="https://model.test/v1").error

    assert error is not None
    assert error.error_class == "connection"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_connections_of_its_own(serve: Serve) -> None:
    """Two processes on one connection would read each other's answers."""
    server = serve(answering())
    backend = backend_for(server)
    assert Collected(backend.stream(REQUEST)).error is None

    child = os.fork()
    if child == 0:
        collected = Collected(backend.stream(REQUEST))
        os._exit(0 if collected.text == "Hello" else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert Collected(backend.stream(REQUEST)).error is None
    assert server.connections == 2


def test_a_session_of_the_users_is_used_as_it_is(serve: Serve) -> None:
    """With its headers, and its connection kept."""
    server = serve(answering())
    with requests.Session() as session:
        session.headers["X-Mine"] = "yes"
        backend = backend_for(server, http=session)

        assert [Collected(backend.stream(REQUEST)).text for _ in range(2)] == ["Hello", "Hello"]

    assert server.connections == 1
    assert server.requests[0][1]["x-mine"] == "yes"
    assert server.requests[0][1]["authorization"] == "Bearer sk-secret-key"


def test_a_session_with_its_own_auth_keeps_it_when_no_key_is_given(serve: Serve) -> None:
    """A key that is given goes before it."""
    server = serve(answering())
    with requests.Session() as session:
        session.auth = ("me", "password")
        complete(server, http=session, api_key="")
        complete(server, http=session)

    basic, bearer = (headers["authorization"] for _, headers, _ in server.requests)
    assert basic.startswith("Basic ")
    assert bearer == "Bearer sk-secret-key"


@pytest.mark.parametrize(
    ("handler", "error_class"),
    [(lambda peer: None, "connection"), (answering(sse(chunk("half"))), "connection"), (answering(b""), "response")],
)
def test_failures_over_a_session_of_the_users_have_the_same_classes(
    serve: Serve, handler: Any, error_class: str
) -> None:
    """Whoever owns the connection."""
    with requests.Session() as session:
        error = complete(serve(handler), http=session).error

    assert error is not None
    assert error.error_class == error_class


def test_what_a_session_of_the_users_raises_is_class_unknown() -> None:
    """Its own bugs are not the network's."""

    class Broken(requests.Session):
        def post(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("oops")

    with Broken() as session:
        error = Collected(OpenAIBackend("m", base_url="http://x.test", http=session).stream(REQUEST)).error

    assert error is not None
    assert error.error_class == "unknown"
    assert "ZeroDivisionError" in str(error)


@pytest.mark.parametrize(
    "answer",
    [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", head(200)[:-4]],
    ids=["no status line", "no chunk size", "cut headers"],
)
def test_a_broken_answer_is_class_connection(serve: Serve, answer: bytes) -> None:
    """What is no HTTP came over a connection that cannot be trusted."""
    error = complete(serve(lambda peer: peer.send(answer))).error

    assert error is not None
    assert error.error_class in ("connection", "response")
