"""The transport over HTTP, and the news that the server behind it is gone.

The SDK resumes a broken stream with patience, since a proxy may have cut it. A server that was
killed breaks it too; so when a stream breaks, one look at the address tells the two apart, at
once. What the SDK's errors leave out, the status of an answer, is noted here too. The streams
themselves are the SDK's.

Imports the SDK; only ever imported by those who need it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import httpx2
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from llm_agent.mcp.wire import MAX_MESSAGE

# How long the look at the address of a broken stream may take, in seconds.
_LOOK_PATIENCE: Final = 0.5
# The pause before another look at an address that took the connection and dropped it, in seconds.
_LOOK_AGAIN: Final = 0.02

_NOT_FOUND: Final = 404
_ERRORS: Final = 400  # and above


@asynccontextmanager
async def http_streams(
    url: str,
    headers: Mapping[str, str],
    connect_timeout: float,
    on_gone: Callable[[str], None],
    on_status: Callable[[str | None], None],
) -> AsyncIterator[Any]:
    """Yield the SDK's two streams to *url*.

    Args:
        on_gone: told why, once nobody listens there any more, or nobody who knows our session.
        on_status: told how each message was received: the status of an error, `None` for fine.
    """
    # Reading has no clock here: a call has one of its own, which stands still while a human thinks.
    timeout = httpx2.Timeout(connect_timeout, read=None)
    # Each call that is out has a connection of its own, and how many are out is the caller's to say.
    limits = httpx2.Limits(max_connections=None)
    async with AsyncExitStack() as stack:
        looker = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        hooks = {"response": [_Watch(url, looker, on_gone, on_status).note]}
        client = httpx2.AsyncClient(headers=headers, timeout=timeout, limits=limits, event_hooks=hooks)
        await stack.enter_async_context(client)
        yield await stack.enter_async_context(
            streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE)
        )


@attrs.frozen(eq=False)
class _Watch:
    """Notes how messages are received, and looks after the server when a body breaks off."""

    _url: str
    _looker: httpx2.AsyncClient
    """A client of its own: its requests are not noted."""
    _on_gone: Callable[[str], None]
    _on_status: Callable[[str | None], None]

    async def note(self, response: httpx2.Response) -> None:
        """Take note of a response whose body has not been read yet."""
        if response.request.method == "POST":
            status = f"{response.status_code} {response.reason_phrase}".strip()
            self._on_status(status if response.status_code >= _ERRORS else None)
            if response.status_code == _NOT_FOUND and MCP_SESSION_ID in response.request.headers:
                self._on_gone(f"it does not know the session any more ({status})")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            response.stream = _WatchedStream(response.stream, self._look, is_stream)

    async def _look(self) -> None:
        """Find out whether somebody still listens there, and say so where nobody does."""
        with anyio.move_on_after(_LOOK_PATIENCE):
            while not await self._has_found_out():
                await anyio.sleep(_LOOK_AGAIN)

    async def _has_found_out(self) -> bool:
        try:
            async with self._looker.stream("HEAD", self._url):
                return True
        except httpx2.ConnectError as problem:
            self._on_gone(f"nobody listens there any more ({problem})")
            return True
        except httpx2.HTTPError:  # of what a killed process leaves, the open door may be the last to close
            return False


class _WatchedStream(httpx2.AsyncByteStream):
    """A response body that is not read for ever, and has somebody look after the server when it breaks off.

    A stream of events that ends by itself has broken off as well: nobody reads one to its end who
    has found an answer in there.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, look: Callable[[], Any], is_stream: bool) -> None:
        self._inner = inner
        self._look = look
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        try:
            async for chunk in self._inner:
                length += len(chunk)
                if length > MAX_MESSAGE and not self._is_stream:
                    raise httpx2.StreamError(f"it is longer than {MAX_MESSAGE} bytes")
                yield chunk
        except httpx2.TransportError:
            await self._look()
            raise
        if self._is_stream:
            await self._look()

    async def aclose(self) -> None:
        await self._inner.aclose()
