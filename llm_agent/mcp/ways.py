"""How a server is reached: a command that is started, or an address. One `Reach` per connection.

The SDK is imported on the first connection, so that importing this package costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import attrs

from llm_agent.mcp.process import ServerProcess, start_server

# The codes with which the SDK ends a request when the connection is over, and when it cannot read
# the answer. The first is free for a server's own use as well, so its words count too.
_CONNECTION_CLOSED: Final = -32000
_CLOSED: Final = "Connection closed"
_PARSE_ERROR: Final = -32700
# How the SDK's words begin for an answer over HTTP that is neither a result nor an error of the protocol.
_BY_STATUS: Final = "Server returned an error response"
_NO_ANSWER: Final = ("SSE stream ", "Unexpected content type", "server answered a request with 202")


class Reach(Protocol):
    """One attempt at a server, and the connection that comes of it."""

    @property
    def patience(self) -> float:
        """Seconds that a polite end may take."""
        ...

    @property
    def last_words(self) -> str:
        """The end of what it wrote to standard error; `""` where nobody can know."""
        ...

    @property
    def excerpt(self) -> str:
        """As much of that as an error quotes."""
        ...

    def streams(self, on_over: Callable[[], None]) -> Any:
        """An asynchronous context manager over the two streams of a transport; *on_over* once they are dead."""
        ...

    async def why(self) -> str | None:
        """Why the connection ended, where more is known than the SDK's error."""
        ...

    def is_ended_by(self, code: int, message: str) -> bool:
        """Whether an error answer means that the connection is of no more use."""
        ...

    def unreadable(self, code: int, message: str) -> str | None:
        """What is wrong with an error answer that is not the tool's or the server's own word."""
        ...

    def hurry(self) -> None:
        """No courtesy at the end: it was never answered."""
        ...

    def kill(self) -> None:
        """End at once what can be ended. Any thread; never raises."""
        ...


@attrs.frozen(kw_only=True)
class Command:
    """A server that is a child process."""

    command: str
    args: Sequence[str]
    env: Mapping[str, str] | None = attrs.field(repr=False)
    cwd: str | os.PathLike[str] | None

    @property
    def name(self) -> str:
        return os.path.basename(self.command)

    def reach(self, label: str) -> Reach:
        """Start the server.

        Raises:
            McpError: it cannot be started.
        """
        return _CommandReach(start_server([self.command, *self.args], self.env, self.cwd), label)


class _CommandReach:
    # More than the steps of `stdio` take together; with a kill after it, less than 5 s.
    patience = 3.6

    def __init__(self, process: ServerProcess, label: str) -> None:
        self._process = process
        self._label = label
        self._transport: Any = None

    @property
    def last_words(self) -> str:
        return self._process.last_words.text

    @property
    def excerpt(self) -> str:
        return self._process.last_words.excerpt

    def streams(self, on_over: Callable[[], None]) -> Any:
        from llm_agent.mcp.stdio import StdioTransport

        self._transport = StdioTransport(self._process, self._label, on_over)
        return self._transport.streams()

    async def why(self) -> str | None:
        if self._transport is None:
            return None
        await self._transport.settle()
        if not self._process.has_exited:
            return self._transport.problem or "it has closed its standard output"
        words = self.excerpt
        return f"it has ended ({self._process.status})" + (f"; the last it wrote:\n{words}" if words else "")

    def is_ended_by(self, code: int, message: str) -> bool:
        return False  # the pipes tell

    def unreadable(self, code: int, message: str) -> str | None:
        return message if code == _PARSE_ERROR else None

    def hurry(self) -> None:
        if self._transport is not None:
            self._transport.is_unwanted = True

    def kill(self) -> None:
        self._process.kill()


@attrs.frozen(kw_only=True)
class Address:
    """A server that somebody else runs, over streamable HTTP."""

    url: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    connect_timeout: float

    @property
    def name(self) -> str:
        # What stands before an @ or behind a ? may be a secret.
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.split('?')[0].rpartition('@')[2]}"

    def reach(self, label: str) -> Reach:
        return _AddressReach(self)


class _AddressReach:
    # There is a session to sign off from, and nothing to be left behind.
    patience = 1.5
    last_words = ""
    excerpt = ""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reason: str | None = None
        self._status: str | None = None

    @asynccontextmanager
    async def streams(self, on_over: Callable[[], None]) -> AsyncIterator[Any]:
        from llm_agent.mcp.http import http_streams

        def on_gone(reason: str) -> None:
            self._reason = self._reason or reason
            on_over()

        def on_status(status: str | None) -> None:
            self._status = None if status is None else f"it answered {status}"

        address = self._address
        async with http_streams(address.url, address.headers, address.connect_timeout, on_gone, on_status) as streams:
            yield streams

    async def why(self) -> str | None:
        return self._reason or self._status

    def is_ended_by(self, code: int, message: str) -> bool:
        # Servers of the reference implementation answer so to a session they do not know, with a status of 400.
        return code == _CONNECTION_CLOSED and (self._status is not None or message == _CLOSED)

    def unreadable(self, code: int, message: str) -> str | None:
        if message == _BY_STATUS:
            return self._status or message
        return message if code == _PARSE_ERROR or message.startswith(_NO_ANSWER) else None

    def hurry(self) -> None:
        pass

    def kill(self) -> None:
        pass
