"""The transport over HTTP, and the news that the server behind it is gone.

The SDK resumes a broken stream with patience, since a proxy may have cut it. A server that was
killed breaks it too; so when a stream breaks, one look at the address tells the two apart, at
once. The streams themselves are the SDK's.

Imports the SDK; only ever imported by those who need it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

# How long the look at the address of a broken stream may take, in seconds.
_LOOK_PATIENCE: Final = 0.5


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], connect_timeout: float, on_gone: Callable[[str], None]
) -> AsyncIterator[Any]:
    """Yield the SDK's two streams to *url*.

    Args:
        on_gone: told why, once nobody listens there any more.
    """

    async def watch(response: httpx2.Response) -> None:
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _WatchedStream(response.stream, look)

    async def look() -> None:
        with anyio.move_on_after(_LOOK_PATIENCE):
            try:
                async with looker.stream("HEAD", url):
                    pass
            except httpx2.ConnectError as problem:
                on_gone(f"nobody listens there any more ({problem})")
            except httpx2.HTTPError:
                pass  # somebody is there

    # Reading has no clock here: a call has one of its own, which stands still while a human thinks.
    timeout = httpx2.Timeout(connect_timeout, read=None)
    async with AsyncExitStack() as stack:
        looker = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        hooks = {"response": [watch]}
        client = httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks)
        await stack.enter_async_context(client)
        yield await stack.enter_async_context(streamable_http_client(url, http_client=client))


class _WatchedStream(httpx2.AsyncByteStream):
    """A response body that has somebody look after the server when it breaks off."""

    def __init__(self, inner: httpx2.AsyncByteStream, look: Callable[[], Any]) -> None:
        self._inner = inner
        self._look = look

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except httpx2.TransportError:
            await self._look()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()
