"""One POST whose answer is read as it comes, and which any thread can end.

The law: only `cancel` may be called from another thread, and it never waits. `open`, `read`,
`finish` and `close` belong to the thread that reads. Bytes are handed on as the network
delivers them, whatever the framing. What they mean is not decided here, and exceptions of
the network are passed on as they are: `failures` finds the words.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from http.client import RemoteDisconnected
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

import requests
from requests.auth import AuthBase

from llm_agent.backends.connection import Lifeline, WakeableAdapter, in_use
from llm_agent.backends.failures import causes
from llm_agent.errors import BackendError

# What one read returns at most; of a live stream it returns one packet.
READ_BYTES = 65_536
# Connections kept per host and hosts kept; whatever goes beyond is opened and closed per request.
_POOL_SIZE = 256
_POOL_HOSTS = 64
# The end of a body follows `[DONE]` directly. A server that keeps the body open instead costs
# so many seconds, and its connection.
END_GRACE = 0.05
# Servers close what has been idle for seconds, now and then just as it is used again. Below
# that, a broken connection is the server's answer to this request, and not sent twice.
RESEND_AFTER_IDLE = 1.0
_MAX_REDIRECTS = 5
_KEPT_ACROSS_HOSTS = {"content-type", "content-length", "accept", "accept-encoding", "user-agent"}


class Exchange(Protocol):
    """One request and its answer."""

    status: int
    headers: Mapping[str, str]

    @property
    def cancelled(self) -> bool: ...

    @property
    def is_connected(self) -> bool:
        """Whether a connection stood, so that what failed was the answer."""
        ...

    def open(self) -> None:
        """Send the request and wait for the answer's head."""
        ...

    def read(self) -> bytes:
        """Return what has come of the decoded body, waiting for something; `b""` at its end."""
        ...

    def expect_end(self, seconds: float) -> None:
        """From here on, so many seconds without a byte raise."""
        ...

    def finish(self) -> None:
        """Nothing more is wanted: keep the connection if the body ends here, else drop it."""
        ...

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        ...

    def cancel(self) -> None:
        """Wake the thread blocked in any of these, at once; it raises, or reads an end. Never raises."""
        ...


class _Sessions:
    """The one session of this process; its pool is what lets rounds and runs share connections."""

    def __init__(self) -> None:
        # Guards the session; a leaf. Made anew in a forked child.
        self.lock = threading.Lock()
        self.session: requests.Session | None = None
        self.inherited: list[requests.Session | None] = []

    def get(self) -> requests.Session:
        with self.lock:
            if self.session is None:
                self.session = new_session()
            return self.session

    def start_over(self) -> None:
        # Kept and not freed: freeing takes the pool's locks, which the parent may have held.
        self.inherited.append(self.session)
        self.session = None
        self.lock = threading.Lock()


def new_session() -> requests.Session:
    """Return a session with wakeable connections that obeys the environment's proxies and CA settings."""
    session = requests.Session()
    adapter = WakeableAdapter(pool_connections=_POOL_HOSTS, pool_maxsize=_POOL_SIZE)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


_sessions = _Sessions()
os.register_at_fork(after_in_child=_sessions.start_over)


class PooledExchange:
    """An exchange over the shared session: awake in every phase, its connection kept for the next."""

    def __init__(
        self, request: requests.PreparedRequest, lifeline: Lifeline, resend_after_idle: float = RESEND_AFTER_IDLE
    ) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._request = request
        self._lifeline = lifeline
        self._resend_after_idle = resend_after_idle
        self._response: requests.Response | None = None
        self._read1: Callable[..., bytes] = _nothing_to_read

    @property
    def cancelled(self) -> bool:
        return self._lifeline.cancelled

    @property
    def is_connected(self) -> bool:
        return self._lifeline.is_connected

    def open(self) -> None:
        request = self._request
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._response = self._send(request)
            target = response.headers.get("location")
            if response.status_code not in (307, 308) or not target:
                break
            response.close()
            request = _redirected(request, urljoin(str(request.url), target))
        else:
            raise BackendError(f"redirected more than {_MAX_REDIRECTS} times", "http", response.status_code)
        self.status = response.status_code
        self.headers = response.headers
        self._read1 = response.raw.read1

    def _send(self, request: requests.PreparedRequest) -> requests.Response:
        try:
            return self._send_once(request)
        except requests.ConnectionError as exc:
            if not self._was_closed_while_idle(exc):
                raise
        return self._send_once(request)

    def _send_once(self, request: requests.PreparedRequest) -> requests.Response:
        session = _sessions.get()
        # Asked for every request: proxies and CA bundles of the environment, as requests reads
        # them. The adapter is called directly: a session would add cookies of other runs, the
        # password of ~/.netrc, and would read a redirect's whole body.
        settings: dict[str, Any] = dict(session.merge_environment_settings(request.url, {}, True, None, None))
        timeout: Any = (self._lifeline.connect_timeout, self._lifeline.read_timeout)
        with in_use(self._lifeline):
            return session.get_adapter(str(request.url)).send(request, timeout=timeout, **settings)

    def _was_closed_while_idle(self, exc: Exception) -> bool:
        idle = self._lifeline.idle_before
        if self.cancelled or idle is None or idle < self._resend_after_idle:
            return False
        # These say that not one byte came back; what else can break does so later.
        return any(isinstance(cause, RemoteDisconnected | ConnectionResetError) for cause in causes(exc))

    def read(self) -> bytes:
        # The only call of urllib3 that returns what one packet brought, for every framing.
        data = self._read1(READ_BYTES, True)
        # A shut down TLS socket may still yield bytes, and they would not be text.
        if self._lifeline.cancelled:
            raise ConnectionAbortedError("cancelled")
        return data

    def expect_end(self, seconds: float) -> None:
        sock = self._lifeline.socket
        if sock is not None:
            sock.settimeout(seconds)

    def finish(self) -> None:
        connection = self._response.raw.connection if self._response is not None else None
        # Gone already, or not to be kept: the body ends with the connection.
        if connection is not None and connection.sock is not None:
            self.expect_end(END_GRACE)
            try:
                self.read()  # the end gives the connection back; anything else has it closed below
            except Exception:  # a shield: the completion is whole, whatever follows it
                pass
        self.close()

    def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()
        self._lifeline.release()
        self._read1 = _nothing_to_read

    def cancel(self) -> None:
        self._lifeline.cancel()


def _nothing_to_read(*_: Any) -> bytes:
    return b""


def _redirected(request: requests.PreparedRequest, target: str) -> requests.PreparedRequest:
    """The same POST to *target*; to another origin without anything that could be a secret."""
    again = request.copy()
    again.prepare_url(target, None)
    if _origin(str(request.url)) != _origin(str(again.url)):
        for name in list(again.headers):
            if name.lower() not in _KEPT_ACROSS_HOSTS:
                del again.headers[name]
    return again


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class _AsGiven(AuthBase):
    """Keeps requests from looking for a password: the headers are what they are."""

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        return r


class GuestExchange:
    """An exchange over a session of the user's, used as it is.

    Its connections cannot be woken in every phase, so all its I/O is on a thread of its own
    that a cancel leaves behind; `raw.shutdown` then ends it where that works.
    """

    is_connected = True
    """Not known here: what failed is told from the exception alone."""

    def __init__(
        self,
        session: requests.Session,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout: tuple[float | None, float | None],
    ) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.cancelled: bool = False
        self._session = session
        self._ask_for: dict[str, Any] = {"url": url, "headers": dict(headers), "data": body, "timeout": timeout}
        self._silence: float | None = None
        self._response: requests.Response | None = None
        self._wanted: queue.SimpleQueue[Callable[[], bytes] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def open(self) -> None:
        threading.Thread(target=self._work, name="llm-agent-guest-session", daemon=True).start()
        self._want(self._post)

    def read(self) -> bytes:
        return self._want(self._read)

    def expect_end(self, seconds: float) -> None:
        self._silence = seconds

    def finish(self) -> None:
        self.expect_end(END_GRACE)
        try:
            self.read()
        except Exception:  # a shield: the completion is whole, whatever follows it
            self._shut_down()
        self.close()

    def close(self) -> None:
        self._wanted.put(None)

    def cancel(self) -> None:
        self.cancelled = True
        self._answers.put(ConnectionAbortedError("cancelled"))
        self._shut_down()

    def _shut_down(self) -> None:
        try:
            if self._response is not None:
                self._response.raw.shutdown()
        except Exception:  # a shield: no socket, a foreign adapter, or over already
            pass

    def _want(self, step: Callable[[], bytes]) -> bytes:
        self._wanted.put(step)
        try:
            answer = self._answers.get(timeout=self._silence)
        except queue.Empty:
            raise TimeoutError(f"nothing came for {self._silence} s") from None
        if self.cancelled:
            raise ConnectionAbortedError("cancelled")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _work(self) -> None:
        while (step := self._wanted.get()) is not None:
            try:
                self._answers.put(step())
            except Exception as exc:  # carried to the thread that asked
                self._answers.put(exc)
        if self._response is not None:
            self._response.close()

    def _post(self) -> bytes:
        # Without an `auth` object, requests would replace the key by what ~/.netrc says.
        has_key = any(name.lower() == "authorization" for name in self._ask_for["headers"])
        auth = None if self._session.auth and not has_key else _AsGiven()
        response = self._session.post(**self._ask_for, auth=auth, stream=True, allow_redirects=False)
        self.status, self.headers, self._response = response.status_code, response.headers, response
        return b""

    def _read(self) -> bytes:
        if self._response is None:
            return b""
        data: bytes = self._response.raw.read1(READ_BYTES, True)
        return data
