"""A server to be used for long: connected on first use, again where that is allowed, closed once.

The connection itself lives in `link`. No lock is held while anybody waits, so a close is never
held up by a server that is being started.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Final

from llm_agent.call_context import current_call
from llm_agent.errors import McpError
from llm_agent.mcp.link import Link, LinkOptions
from llm_agent.mcp.portal import PORTAL
from llm_agent.mcp.ways import Address, Command

LOGGER: Final = "llm_agent.mcp"
_log = logging.getLogger(LOGGER)


class Client:
    """The connection of the moment, and the rule by which there is another. Any thread."""

    def __init__(self, way: Command | Address, options: LinkOptions, may_restart: bool, name: str | None) -> None:
        self.name = name or way.name
        self.label = f"the MCP server {self.name!r}"
        self._way = way
        self._options = options
        self._may_restart = may_restart
        # Guards the two below; held while a process is started, never while one is waited for.
        # Re-entrant, because a signal handler may close the server while its own thread is in here.
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._is_closed = False
        _CLIENTS.add(self)

    @property
    def link(self) -> Link | None:
        """The last connection, alive or not."""
        return self._link

    def live(self) -> Link:
        """Return a connection that serves, a new one where the last is over and that is allowed.

        Raises:
            McpError: there is none to be had, or the call this thread executes was cancelled; says which.
        """
        with self._lock:
            if self._is_closed:
                raise McpError(f"the connection to {self.label} was closed")
            link = self._link
            if link is not None and link.is_over and not self._may_restart:
                raise McpError(link.reason)
            over = link if link is not None and link.is_over else None
            if link is None or over is not None:
                link = self._link = Link(self._way.reach(self.label), self.label, self._options)
            is_closed = self._is_closed  # by a signal handler, while the server was started
        if is_closed:
            self.close()
        if over is not None:
            self._tell(over.reason)
        link.wait_ready()
        return link

    def _tell(self, reason: str) -> None:
        """Say that there is another connection: what the server kept in mind for us is lost."""
        said = f"{reason}\nAnother connection to {self.label} is made."
        _log.info("%s", said)
        call = current_call()
        if call is not None:
            call.log("warning", said, LOGGER)

    def close(self) -> None:
        """End the connection for good; bounded, idempotent, never raises."""
        with self._lock:
            self._is_closed = True
            link = self._link
        if link is not None:
            link.close()

    def let_go(self) -> None:
        """Nobody can use or close it any more: end the connection. Waits for nothing, not even a lock."""
        self._is_closed = True
        if self._link is not None:
            PORTAL.call_soon(self._link.end)

    def forget(self) -> None:
        """In a forked child: the connection is the parent's; the child makes its own."""
        self._lock = threading.RLock()
        self._link = None


_CLIENTS: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


def _forget_all() -> None:
    for client in tuple(_CLIENTS):
        client.forget()


os.register_at_fork(after_in_child=_forget_all)
