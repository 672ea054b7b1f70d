"""One accepted connection of a `FakeServer`: read a request, play its answer, again.

Everything here runs on the connection's own thread, except `stop`. The law: every wait can be
ended, by the client leaving and by `stop`.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import attrs

from llm_agent import codec
from llm_agent.testing.answers import Answer, Cut, Keepalives, Pause
from llm_agent.testing.script import Gate

_RECV: Final = 65536
# Linux tells a peer that left apart from one that sent more; elsewhere any byte counts as leaving.
_LEFT: Final = getattr(select, "POLLRDHUP", select.POLLIN)
# Linger for 0 s: closing resets the connection instead of ending it.
_RESET: Final = struct.pack("ii", 1, 0)


class ClientLeft(Exception):
    """The client is gone, or the server closes: there is nobody to play to."""


class Ended(Exception):
    """The answer has ended the connection itself."""


@attrs.define(eq=False, kw_only=True)
class RecordedRequest:
    """A request that a `FakeServer` got."""

    method: str
    path: str
    """As it stood in the request line; for a request through a proxy the whole URL."""
    headers: Mapping[str, str]
    """Names in lower case."""
    raw: bytes = attrs.field(repr=False)
    """The body, as it came."""
    connection: int
    """Which connection carried it, counted from 1."""
    body: Any = attrs.field(init=False, repr=False)
    """The body as JSON; `None` when it is none."""
    answered: threading.Event = attrs.field(factory=threading.Event, init=False, repr=False)
    """Set once the answer was played to its end."""
    client_left: threading.Event = attrs.field(factory=threading.Event, init=False, repr=False)
    """Set when the client closed the connection during the answer."""

    def __attrs_post_init__(self) -> None:
        try:
            self.body = codec.loads(self.raw)
        except ValueError:
            self.body = None

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return isinstance(self.body, Mapping) and self.body.get("stream") is True

    @property
    def asks_to_close(self) -> bool:
        """Whether the client wants no further answer on this connection."""
        return self.headers.get("connection", "").lower() == "close"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation it carried, as wire dicts."""
        return list(self.body["messages"])


class Connection:
    """A connection and the thread that serves it."""

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        *,
        tls: ssl.SSLContext | None,
        answer: Callable[[RecordedRequest], Answer],
        is_silent: bool,
    ) -> None:
        self._number = number
        self._sock = sock
        self._tls = tls
        self._answer = answer
        self._is_silent = is_silent
        self._unread = b""
        self._is_stopped = False
        self._bytes_left: int | None = None
        self._sleeper, self._alarm = socket.socketpair()
        self._alarm.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._sleeper, select.POLLIN)
        self._poll.register(sock, _LEFT)
        self.thread = threading.Thread(target=self._run, name=f"fake-server-{number}", daemon=True)

    def stop(self) -> None:
        """End whatever this connection waits for; from any thread."""
        self._is_stopped = True
        try:
            # Not the TLS socket's own method: that one drops the TLS state under the reader.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass  # it has closed itself meanwhile

    def _wake(self) -> None:
        try:
            self._alarm.send(b"!")
        except OSError:
            pass  # full: the sleeper has been called already; or closed: nobody sleeps

    def _run(self) -> None:
        try:
            self._serve()
        except (OSError, ClientLeft, Ended):
            pass  # however a connection ends, the next one is not concerned
        finally:
            for sock in (self._sock, self._sleeper, self._alarm):
                sock.close()

    def _serve(self) -> None:
        if self._is_silent:
            self._wait(None)
        if self._tls is not None:
            self._start_tls(self._tls)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (request := self._read_request()) is not None:
            answer = self._answer(request).for_request(streams=request.streams)
            if request.asks_to_close:
                answer = answer.closing()
            self._play(request, answer)
            if not answer.keeps_alive:
                break
        self._say_goodbye()

    def _start_tls(self, context: ssl.SSLContext) -> None:
        # The handshake is left to the first read: by then `stop` knows the socket it waits on.
        self._sock = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        if self._is_stopped:
            raise ClientLeft

    def _say_goodbye(self) -> None:
        """End TLS properly: a stream that ends without it is a broken one to a careful client."""
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.setblocking(False)
            try:
                self._sock.unwrap()
            except OSError:
                pass  # our half is said; the client's half is not waited for

    # -- reading ---------------------------------------------------------------------------

    def _read_request(self) -> RecordedRequest | None:
        """Read one request; `None` when the client has no more."""
        head = self._read_until(b"\r\n\r\n")
        if head is None:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = (*first.split(" ", 2), "", "")[:3]
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return RecordedRequest(
            method=method, path=path, headers=headers, raw=self._read_body(headers), connection=self._number
        )

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self._read_exactly(int(headers.get("content-length") or 0))
        body = b""
        while size := int(self._read_until(b"\r\n") or b"0", 16):
            body += self._read_exactly(size)
            self._read_exactly(2)
        self._read_until(b"\r\n")
        return body

    def _read_until(self, mark: bytes) -> bytes | None:
        while mark not in self._unread:
            if not self._receive():
                return None
        found, _, self._unread = self._unread.partition(mark)
        return found

    def _read_exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            if not self._receive():
                raise ClientLeft
        found, self._unread = self._unread[:count], self._unread[count:]
        return found

    def _receive(self) -> bool:
        data = self._sock.recv(_RECV)
        self._unread += data
        return bool(data)

    # -- playing ---------------------------------------------------------------------------

    def _play(self, request: RecordedRequest, answer: Answer) -> None:
        try:
            self._play_steps(answer)
        except (ClientLeft, OSError):
            if not self._is_stopped:
                request.client_left.set()
            raise
        finally:
            if not request.client_left.is_set() and not self._is_stopped:
                request.answered.set()

    def _play_steps(self, answer: Answer) -> None:
        self._bytes_left = None
        due = self._wait_step(answer.before, monotonic())
        if answer.head:
            self._sock.sendall(answer.head)
        self._bytes_left = answer.byte_limit
        for step in answer.steps:
            match step:
                case bytes():
                    self._send(step, answer.byte_limit_cut)
                case Cut():
                    self._end(step)
                case Keepalives(every, block):
                    self._keep_alive(every, block)
                case _:
                    due = self._wait_step(step, due)

    def _send(self, data: bytes, cut: Cut) -> None:
        if self._bytes_left is None:
            self._sock.sendall(data)
            return
        self._sock.sendall(data[: self._bytes_left])
        self._bytes_left -= len(data)
        if self._bytes_left <= 0:
            self._end(cut)

    def _keep_alive(self, every: float, block: bytes) -> None:
        due = monotonic()
        while True:
            due += every
            self._wait(due)
            self._sock.sendall(block)

    def _end(self, cut: Cut) -> None:
        if cut.how == "rst":
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        raise Ended

    # -- waiting ---------------------------------------------------------------------------

    def _wait_step(self, step: Pause | Gate | None, due: float) -> float:
        """Wait out *step*; return the moment from which the next pause counts."""
        match step:
            case Pause(seconds):
                self._wait(due + seconds)
                return due + seconds
            case Gate():
                self._wait(None, step)
                return monotonic()
            case None:
                return due

    def _wait(self, due: float | None, gate: Gate | None = None) -> None:
        """Wait until the moment *due*, or for *gate*, whichever is given; for neither: for ever.

        Raises:
            ClientLeft: the client is gone, or the server closes.
        """
        forget = gate.enter(self._wake) if gate is not None else None
        try:
            while not self._is_over(due, gate):
                patience = None if due is None else max(0.0, due - monotonic()) * 1000
                self._look(patience)
        finally:
            if forget is not None:
                forget()

    def _is_over(self, due: float | None, gate: Gate | None) -> bool:
        if self._is_stopped:
            raise ClientLeft
        if gate is not None:
            return gate.is_open
        return due is not None and monotonic() >= due

    def _look(self, patience: float | None) -> None:
        """Sleep until something happens, at most *patience* milliseconds."""
        for descriptor, _ in self._poll.poll(patience):
            if descriptor == self._sleeper.fileno():
                self._sleeper.recv(_RECV)
            else:
                raise ClientLeft
