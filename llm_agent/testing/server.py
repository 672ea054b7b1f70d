"""A real HTTP server on the loopback that plays a script: for tests of whatever talks to one.

One thread accepts, one serves each connection; `close` ends them all. What an answer is lives
in `answers`, how it is played in `connection`.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self

from llm_agent.testing.answers import Answer, Scripted, as_answer, document, error
from llm_agent.testing.completions import error_document
from llm_agent.testing.connection import Connection, RecordedRequest
from llm_agent.testing.conversation import Fault, request_fault

Entry = Scripted | Callable[[RecordedRequest], Scripted]

# How long closing waits for the threads, in seconds; they end at once unless a script blocks.
CLOSE_GRACE: Final = 5.0


class FakeServer:
    """An OpenAI-compatible server whose every answer is written down beforehand.

    Use it as a context manager, or call `close`; the threads are daemons either way.

    Args:
        script: one entry per request, in the order they arrive; any iterable, so an endless
            one too. A callable in its place writes every answer. An entry is an answer
            (`reply`, `sse`, `error`, `document`, `raw`), a `Gate` or `hang()`, a `str` or
            `call(...)` or a list of these as a `ScriptedBackend` takes them, or a callable
            `(request) -> entry`.
        strict: refuse what vendors refuse: status 400 and an error object that names the
            place, and the script is not advanced; see `refusals`.
        tls: a server-side `SSLContext`, or (certificate file, key file).
        silent: accept connections and never read or write: a TLS handshake gets stuck.

    A script that has run out answers 400, `script exhausted after N`.
    """

    def __init__(
        self,
        script: Iterable[Entry] | Callable[[RecordedRequest], Scripted] = (),
        *,
        strict: bool = False,
        tls: ssl.SSLContext | tuple[str, str] | None = None,
        silent: bool = False,
    ) -> None:
        self.requests: list[RecordedRequest] = []
        """Every request, in the order they arrived, refused ones included."""
        self.refusals: list[Fault] = []
        """What a strict server refused."""
        self._entries: Iterator[Entry] = _endless(script) if callable(script) else iter(script)
        self._served = 0
        self._is_strict = strict
        self._is_silent = silent
        self._tls = _context(tls) if isinstance(tls, tuple) else tls
        self._is_closed = False
        # Guards all of the above and the connections; notified at each request. Scripts that are
        # iterators run under it, callables do not.
        self._changed = threading.Condition()
        self._connections: list[Connection] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="fake-server", daemon=True)
        self._acceptor.start()

    @property
    def url(self) -> str:
        """The base URL, ending in `/v1`; what a backend takes as `base_url`."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}/v1"

    @property
    def connections(self) -> int:
        """How many connections have been accepted so far."""
        with self._changed:
            return len(self._connections)

    def wait_requests(self, count: int = 1, timeout: float = 5.0) -> list[RecordedRequest]:
        """Wait until *count* requests have arrived, and return all there are.

        Raises:
            TimeoutError: fewer came within *timeout* seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, timeout):
                raise TimeoutError(f"fake server: expected {count} requests, got {len(self.requests)}")
            return list(self.requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout: float = CLOSE_GRACE) -> None:
        """End every connection and every thread; idempotent.

        Args:
            timeout: seconds to wait for each thread.

        Raises:
            RuntimeError: a callable of the script does not return.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            connections = list(self._connections)
        self._wake_acceptor()
        for connection in connections:
            connection.stop()
        for thread in [self._acceptor, *(connection.thread for connection in connections)]:
            thread.join(timeout)
            if thread.is_alive():
                raise RuntimeError(f"fake server: {thread.name} is still busy; does its script block?")

    def _wake_acceptor(self) -> None:
        # A connection is the one thing that wakes `accept` on every system.
        try:
            socket.create_connection(("127.0.0.1", self.port), CLOSE_GRACE).close()
        except OSError:
            pass  # the listener is gone already

    def _accept(self) -> None:
        with self._listener:
            while True:
                sock, _ = self._listener.accept()
                if not self._take(sock):
                    sock.close()
                    return

    def _take(self, sock: socket.socket) -> bool:
        with self._changed:
            if self._is_closed:
                return False
            connection = Connection(
                len(self._connections) + 1, sock, tls=self._tls, answer=self._answer, is_silent=self._is_silent
            )
            self._connections.append(connection)
            connection.thread.start()
            return True

    def _answer(self, request: RecordedRequest) -> Answer:
        """Return what is played to *request*. On the thread of its connection."""
        fault = _fault(request) if self._is_strict else None
        with self._changed:
            self.requests.append(request)
            if fault is not None:
                self.refusals.append(fault)
            self._changed.notify_all()
        if fault is not None:
            return _refusal(fault)
        try:
            return self._next_answer(request)
        except Exception as failure:  # a shield: a script that raises is told to whoever runs the test
            return error(400, f"the script raised {type(failure).__name__}: {failure}", code="script_failed")

    def _next_answer(self, request: RecordedRequest) -> Answer:
        with self._changed:
            entry = next(self._entries, None)
            if entry is None:
                return error(400, f"script exhausted after {self._served}", code="script_exhausted")
            self._served += 1
        while callable(entry):
            entry = entry(request)
        return as_answer(entry)


def _endless(write: Callable[[RecordedRequest], Scripted]) -> Iterator[Entry]:
    while True:
        yield write


def _context(files: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


def _fault(request: RecordedRequest) -> Fault | None:
    if request.method != "POST" or not request.path.endswith("/chat/completions"):
        return Fault("url", f"expected POST .../chat/completions, got {request.method} {request.path}")
    if request.body is None:
        return Fault("body", "expected JSON, got something else")
    return request_fault(request.body)


def _refusal(fault: Fault) -> Answer:
    body = error_document(str(fault), code="invalid_value", param=fault.param)
    return document(body, status=400, content_type="application/json")
