"""A raw loopback server, and readers on threads: what the tests of the backends stand on."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from llm_agent.backends.openai import OpenAIBackend
from llm_agent.errors import BackendError
from llm_agent.messages import Delta, Message
from llm_agent.ports import CompletionRequest

PATIENCE = 5.0
"""Seconds that run out only in a test that fails."""


class Peer:
    """The server's end of one connection, with the request that has come over it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.head = b""
        self.body = b""
        self._buffer = b""

    def next_request(self) -> bool:
        while b"\r\n\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            if not data:
                return False
            self._buffer += data
        self.head, _, rest = self._buffer.partition(b"\r\n\r\n")
        length = int(self.headers.get("content-length", "0"))
        while len(rest) < length:
            data = self.sock.recv(65536)
            if not data:
                return False
            rest += data
        self.body, self._buffer = rest[:length], rest[length:]
        return True

    @property
    def target(self) -> str:
        return self.head.split(b" ")[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reset(self) -> None:
        """End with a RST instead of a FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Handler = Callable[[Peer], Any]
"""Answers one request; a true result keeps the connection open for the next."""


class RawServer:
    """Plays one handler per request, the last one again and again."""

    def __init__(self, handlers: tuple[Handler, ...], tls: ssl.SSLContext | None = None) -> None:
        self.handlers = list(handlers)
        self.tls = tls
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.closing = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                if self.tls is not None:
                    sock = self.tls.wrap_socket(sock, server_side=True)
                with sock:
                    self._converse(Peer(sock))
            except (OSError, ValueError):  # the client has left
                pass

    def _converse(self, peer: Peer) -> None:
        while peer.next_request():
            self.requests.append((peer.target, peer.headers, peer.body))
            handler = self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0]
            if not handler(peer):
                return

    def close(self) -> None:
        self.closing.set()
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()


def chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chunk of a chat completion."""
    if content is not None:
        delta["content"] = content
    return {"model": "served", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def sse(*events: Any) -> bytes:
    """Events as bytes; what is no bytes or text is sent as JSON."""
    lines = [event if isinstance(event, bytes) else f"data: {_text(event)}\n\n".encode() for event in events]
    return b"".join(lines)


def _text(event: Any) -> str:
    return event if isinstance(event, str) else json.dumps(event)


HELLO = sse(chunk("Hel"), chunk("lo"), chunk(finish="stop"), "[DONE]")


def framed(body: bytes, framing: str, *, status: int = 200, headers: dict[str, str] | None = None) -> bytes:
    """A whole response; *framing* is `length`, `close` or `chunked`, with `+gzip` behind it if wanted."""
    fields = {"Content-Type": "text/event-stream", **(headers or {})}
    if framing.endswith("+gzip"):
        fields["Content-Encoding"] = "gzip"
        packer = zlib.compressobj(wbits=31)
        body = packer.compress(body) + packer.flush()
    match framing.removesuffix("+gzip"):
        case "length":
            fields["Content-Length"] = str(len(body))
        case "close":
            fields["Connection"] = "close"
        case _:
            fields["Transfer-Encoding"] = "chunked"
            body = chunks(body) + b"0\r\n\r\n"
    return head(status, fields) + body


def head(status: int = 200, fields: dict[str, str] | None = None) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (fields or {}).items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode()


CHUNKED_HEAD = head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
CLOSE_HEAD = head(200, {"Content-Type": "text/event-stream", "Connection": "close"})


def chunks(body: bytes) -> bytes:
    """*body* as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def answering(body: bytes = HELLO, framing: str = "chunked", **options: Any) -> Handler:
    """A handler that sends one whole response."""

    def handle(peer: Peer) -> bool:
        peer.send(framed(body, framing, **options))
        return not framing.startswith("close")

    return handle


REQUEST = CompletionRequest(messages=(Message.user("hi"),))


def backend_for(server: RawServer, **options: Any) -> OpenAIBackend:
    return OpenAIBackend("m", **{"base_url": server.url, "api_key": "sk-secret-key", **options})


class Collected:
    """A completion read to its end, or to its failure."""

    def __init__(self, pieces: Any) -> None:
        self.pieces: list[Delta | str] = []
        self.error: BackendError | None = None
        try:
            for piece in pieces:
                self.pieces.append(piece)
        except BackendError as exc:
            self.error = exc

    @property
    def deltas(self) -> list[Delta]:
        return [Delta(piece) if isinstance(piece, str) else piece for piece in self.pieces]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        return "".join(delta.reasoning for delta in self.deltas)

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        return [(call.id, call.name, call.arguments) for delta in self.deltas for call in delta.tool_calls]

    @property
    def finish_reason(self) -> str | None:
        return next((delta.finish_reason for delta in reversed(self.deltas) if delta.finish_reason), None)

    @property
    def usage(self) -> Any:
        return next((delta.usage for delta in reversed(self.deltas) if delta.usage), None)

    @property
    def model(self) -> str | None:
        return next((delta.model for delta in self.deltas if delta.model), None)


def complete(server: RawServer, **options: Any) -> Collected:
    return Collected(backend_for(server, **options).stream(REQUEST))


class Reader:
    """A completion read on a thread of its own."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.got_piece = threading.Event()
        self.collected: Collected | None = None
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        self.collected = Collected(self._seen())

    def _seen(self) -> Iterator[Delta | str]:
        for piece in self.stream:
            self.got_piece.set()
            yield piece

    def joined(self, seconds: float = PATIENCE) -> Collected:
        self.thread.join(seconds)
        assert self.collected is not None, "the reader is still blocked"
        return self.collected
