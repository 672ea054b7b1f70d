"""Connections that any thread can wake: urllib3's own, with a second descriptor held aside.

The law: a lifeline is attached before the first call that may block, and let go before its
connection can serve anybody else. Closing a socket under a blocked reader wakes nobody (it
waits for the reader), so what ends a wait is `shutdown` on a duplicate of the descriptor: it
also leaves the TLS object whole, so no ciphertext is ever taken for text. What is sent over
these connections is not known here.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from llm_agent.backends.chunked import PromptResponse

# A connect without any timeout would not see a shutdown that came just before it.
_UNLIMITED = 1e6

AddressInfo = tuple[Any, ...]
Resolver = Callable[..., Sequence[AddressInfo]]
"""`(host, port, family, type) -> addresses`, as `socket.getaddrinfo`; it may block as long as it likes."""

# Silence is normal while a model thinks, and middle boxes drop what they take for dead.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
for _name, _seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 30), ("TCP_KEEPCNT", 5)):
    if hasattr(socket, _name):  # not on every platform
        _KEEPALIVE.append((socket.IPPROTO_TCP, getattr(socket, _name), _seconds))


class Lifeline:
    """One exchange's hold on whatever it is blocked in: a name look-up, then a socket.

    `cancel` may be called from any thread at any time; everything else belongs to the
    thread that does the exchange.
    """

    def __init__(
        self,
        *,
        resolver: Resolver | None = None,
        connect_timeout: float | None = 10.0,
        read_timeout: float | None = None,
    ) -> None:
        # Looked up here, so that a process that replaces it is heard.
        self.resolver: Resolver = resolver or socket.getaddrinfo
        self.connect_timeout = connect_timeout
        self.read_timeout = read_timeout
        self.cancelled = False
        self.is_connected = False
        """Whether a connection stands, tunnel and TLS included: silence before is no answer's silence."""
        self.idle_before: float | None = None
        """How long, in seconds, the connection had waited in the pool; `None` for a new one."""
        self.socket: socket.socket | None = None
        # Guards `cancelled` and the two below; a leaf.
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        self._answers: queue.SimpleQueue[Any] | None = None

    def cancel(self) -> None:
        """Wake the blocked thread, and let nothing block again. Idempotent, never raises, never waits."""
        with self._lock:
            self.cancelled = True
            if self._answers is not None:
                self._answers.put(None)
            self._shut_down()

    def attach(self, sock: socket.socket) -> None:
        """Hold *sock* from here on, and nothing else; it ends at once if cancel came first."""
        # Under a process-wide default timeout this makes the shared descriptor non-blocking;
        # whoever attaches sets the timeout of its socket afterwards.
        handle = socket.socket(fileno=os.dup(sock.fileno()))
        with self._lock:
            self._drop()
            self._handle = handle
            if self.cancelled:
                self._shut_down()

    def release(self) -> None:
        """Let go of the socket: a cancel no longer reaches it."""
        with self._lock:
            self._drop()
        self.socket = None

    def _drop(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _shut_down(self) -> None:
        if self._handle is not None:
            try:
                self._handle.shutdown(socket.SHUT_RDWR)
            except OSError:  # not connected, or gone already: nobody is left to wake
                pass

    def resolve(self, host: str, port: int) -> Sequence[AddressInfo]:
        """Return the addresses of *host*, waiting at most the connect timeout.

        Raises:
            OSError: no such host, no answer in time (`TimeoutError`), or cancelled.
        """
        host = host.strip("[]")
        if self.resolver is socket.getaddrinfo and _is_numeric(host):
            return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            self._answers = answers
            if self.cancelled:
                answers.put(None)
        # A look-up cannot be interrupted, so it gets a thread that can be left behind.
        threading.Thread(
            target=_look_up, args=(self.resolver, host, port, answers), name="llm-agent-resolve", daemon=True
        ).start()
        try:
            answer = answers.get(timeout=self.connect_timeout)
        except queue.Empty:
            raise TimeoutError(f"no address for {host} within {self.connect_timeout:g} s") from None
        finally:
            with self._lock:
                self._answers = None
        if answer is None:
            raise ConnectionAbortedError("cancelled while looking up an address")
        if isinstance(answer, BaseException):
            raise answer
        return list(answer)


def _look_up(resolver: Resolver, host: str, port: int, answers: queue.SimpleQueue[Any]) -> None:
    try:
        answers.put(resolver(host, port, 0, socket.SOCK_STREAM))
    except BaseException as exc:  # carried to the thread that asked, whatever it is
        answers.put(exc)


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


_this_thread = threading.local()


@contextmanager
def in_use(lifeline: Lifeline) -> Iterator[None]:
    """Have the connections that this thread opens or reuses hang on *lifeline*."""
    _this_thread.lifeline = lifeline
    try:
        yield
    finally:
        _this_thread.lifeline = None


def _lifeline() -> Lifeline | None:
    return getattr(_this_thread, "lifeline", None)


class _Wakeable(HTTPConnection):
    """What both kinds of connection do beside urllib3's own work."""

    response_class = PromptResponse
    lifeline: Lifeline | None = None
    idle_since: float = 0.0

    # Named with an underscore, yet meant to be overridden: urllib3's own SOCKS support does.
    def _new_conn(self) -> socket.socket:
        lifeline = _lifeline()
        if lifeline is None:
            return super()._new_conn()
        self.lifeline = lifeline
        lifeline.idle_before = None
        return self._dial(lifeline)

    def connect(self) -> None:
        super().connect()
        if self.lifeline is not None and self.sock is not None:
            self._stand(self.lifeline)

    def request(self, *args: Any, **kwargs: Any) -> None:
        lifeline = _lifeline()
        if lifeline is not None and self.sock is not None:
            if self.lifeline is not lifeline:  # kept alive from an earlier exchange
                self.lifeline = lifeline
                lifeline.idle_before = monotonic() - self.idle_since
                lifeline.attach(self.sock)
            self._stand(lifeline)
        super().request(*args, **kwargs)

    def _stand(self, lifeline: Lifeline) -> None:
        lifeline.is_connected = True
        lifeline.socket = self.sock
        # urllib3 would send under the connect timeout, which a large body on a slow line exceeds.
        self.timeout = lifeline.read_timeout
        self.sock.settimeout(lifeline.read_timeout)

    def _dial(self, lifeline: Lifeline) -> socket.socket:
        started = monotonic()
        try:
            addresses = lifeline.resolve(self._dns_host, self.port or self.default_port)
        except socket.gaierror as exc:
            raise NameResolutionError(self.host, self, exc) from exc
        except TimeoutError as exc:
            raise ConnectTimeoutError(self, str(exc)) from exc
        except (OSError, UnicodeError) as exc:
            raise NewConnectionError(self, str(exc)) from exc
        failure: OSError = OSError(f"{self.host} has no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            # One address that swallows packets must leave time for the next.
            seconds = _share(lifeline.connect_timeout, started, len(addresses) - position)
            try:
                return self._dial_address(lifeline, (family, kind, protocol), address, seconds)
            except OSError as exc:
                failure = exc
            if lifeline.cancelled:
                break
        if isinstance(failure, TimeoutError):
            raise ConnectTimeoutError(self, f"no connection within {lifeline.connect_timeout} s") from failure
        raise NewConnectionError(self, str(failure)) from failure

    def _dial_address(
        self, lifeline: Lifeline, kind: tuple[int, int, int], address: Any, seconds: float
    ) -> socket.socket:
        sock = socket.socket(*kind)
        try:
            for option in (*_KEEPALIVE, *(self.socket_options or ())):
                sock.setsockopt(*option)
            lifeline.attach(sock)
            sock.settimeout(seconds)
            if self.source_address:
                sock.bind(self.source_address)
            sock.connect(address)
            # A socket that was shut down before its connect seems connected, and then takes no bytes.
            if lifeline.cancelled:
                raise ConnectionAbortedError("cancelled while connecting")
        except BaseException:
            sock.close()
            raise
        return sock


def _share(timeout: float | None, started: float, left: int) -> float:
    if timeout is None:
        return _UNLIMITED
    return max(0.05, (started + timeout - monotonic()) / left)


class WakeableHTTPConnection(_Wakeable):
    """A plain connection on a lifeline."""


class WakeableHTTPSConnection(_Wakeable, HTTPSConnection):
    """A TLS connection on a lifeline, from the first packet of the handshake on."""


def _part(connection: Any) -> None:
    """Part *connection* from its lifeline, so that a late cancel cannot hit the next exchange."""
    lifeline = getattr(connection, "lifeline", None)
    if lifeline is None:
        return
    connection.lifeline = None
    connection.idle_since = monotonic()
    lifeline.release()  # one that was shut down before this is found dead when the pool is asked for it


class WakeableHTTPPool(HTTPConnectionPool):
    ConnectionCls = WakeableHTTPConnection

    def _put_conn(self, conn: Any) -> None:
        _part(conn)
        super()._put_conn(conn)


class WakeableHTTPSPool(HTTPSConnectionPool):
    ConnectionCls = WakeableHTTPSConnection

    def _put_conn(self, conn: Any) -> None:
        _part(conn)
        super()._put_conn(conn)


_POOLS: dict[str, type[ConnectionPool]] = {"http": WakeableHTTPPool, "https": WakeableHTTPSPool}


class WakeableAdapter(HTTPAdapter):
    """requests' adapter with these connections, straight and through HTTP proxies."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **proxy_kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **proxy_kwargs)
        if not proxy.lower().startswith("socks"):  # SOCKS brings connection classes of its own
            manager.pool_classes_by_scheme = _POOLS
        return manager
