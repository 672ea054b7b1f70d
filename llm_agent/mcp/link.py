"""One connection to a server, from its start to its end; then another one is made, or none.

Its life is one task on the portal: reach the server, agree on a version, serve until it is over,
take everything down. Every other thread only ever waits for news of it, with a clock. When it is
over, for whatever reason, every call that is out hears the reason at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import attrs

from llm_agent import notices
from llm_agent.codec import error_text
from llm_agent.errors import McpError
from llm_agent.mcp.catalogue import Catalogue
from llm_agent.mcp.exchange import Exchange, Fate, Lost, Returned
from llm_agent.mcp.portal import PORTAL
from llm_agent.mcp.question import DECLINED
from llm_agent.mcp.waiting import result_of
from llm_agent.mcp.ways import Reach
from llm_agent.messages import ToolRequest

if TYPE_CHECKING:
    from llm_agent.mcp.session import SdkSession

_log = logging.getLogger("llm_agent.mcp")

# How long what follows a polite end may take, in seconds.
_KILL_PATIENCE: Final = 0.6
# How long the taking down of a server that did not answer may hold up the error, in seconds.
_CLEANUP_PATIENCE: Final = 1.5
# How long a thread waits to hear why a connection is over, in seconds.
_REASON_PATIENCE: Final = 0.5

# Which call the portal's current task serves: over HTTP it travels with the request it belongs to.
_ABOUT: ContextVar[tuple[Exchange, int] | None] = ContextVar("llm_agent_mcp_about", default=None)


@attrs.frozen(kw_only=True)
class LinkOptions:
    """What a connection is made with, beside the way to the server."""

    protocol: str
    connect_timeout: float
    request_timeout: float | None
    elicitation: bool
    log_level: str | None


class Link:
    """A connection that is being made, lives, or is over. `async` methods run on the portal, all others anywhere."""

    def __init__(self, reach: Reach, label: str, options: LinkOptions) -> None:
        self.label = label
        self._reach = reach
        self._options = options
        self._session: SdkSession | None = None
        self._catalogue: Catalogue | None = None
        self._changes = 0  # of the catalogue, as far as the server says so
        self._ready: Future[None] = Future()
        self._is_over = threading.Event()
        self._is_explained = threading.Event()
        self._is_down = threading.Event()
        self._reason = f"the connection to {label} is over"
        # The batches that have calls out, and how many. The portal's.
        self._exchanges: Counter[Exchange] = Counter()
        self._over: asyncio.Event | None = None
        try:
            self._life = PORTAL.start(self._live())
        except BaseException:
            reach.kill()
            raise

    # -- for other threads -------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    @property
    def reason(self) -> str:
        """Why it is over."""
        self._is_explained.wait(_REASON_PATIENCE)
        return self._reason

    @property
    def last_words(self) -> str:
        return self._reach.last_words

    @property
    def session(self) -> SdkSession:
        assert self._session is not None  # `wait_ready` has returned
        return self._session

    def wait_ready(self) -> None:
        """Wait until calls can be sent.

        Raises:
            McpError: it did not come to that, and nothing of it is left; or the call this thread
                executes was cancelled.
        """
        try:
            result_of(self._ready, self._options.connect_timeout + _CLEANUP_PATIENCE)
        except TimeoutError:
            self.close()
            raise McpError(self._not_answered()) from None

    def catalogue(self) -> Catalogue:
        """Return the server's tools, asked for again when it said that they changed.

        Raises:
            McpError: it cannot say, or the call this thread executes was cancelled.
        """
        if self._catalogue is not None:
            return self._catalogue
        listing = PORTAL.start(self._list_tools())
        try:
            return result_of(listing, self._options.request_timeout)
        except TimeoutError:
            raise McpError(f"{self.label} did not list its tools within {self._options.request_timeout:g} s") from None
        finally:
            listing.cancel()

    @property
    def known_catalogue(self) -> Catalogue | None:
        """The catalogue as far as it is known, without asking for it."""
        return self._catalogue

    def send(self, exchange: Exchange, place: int, call: ToolRequest) -> Future[None]:
        """Start a call; see `Carrier`."""
        return PORTAL.start(self._carry(exchange, place, call))

    def close(self) -> None:
        """End the connection and the server process, in less than 5 s; again is fine. Never raises."""
        self.end()
        if PORTAL.is_here:
            return
        if not self._is_down.wait(self._reach.patience):
            self._reach.kill()
            self._life.cancel()
            self._is_down.wait(_KILL_PATIENCE)

    def end(self) -> None:
        """Begin what `close` waits for."""
        self._explain(f"the connection to {self.label} was closed")

    def _explain(self, reason: str) -> None:
        """Say why the connection is over; the first reason stays. It is taken down from here on."""
        if not self._is_explained.is_set():
            self._reason = reason
            self._is_explained.set()
        self._is_over.set()
        PORTAL.call_soon(self._wake)

    def _not_answered(self) -> str:
        words = self._reach.excerpt
        said = f"; the last it wrote:\n{words}" if words else ""
        return f"{self.label} did not answer within {self._options.connect_timeout:g} s{said}"

    # -- its life, on the portal -------------------------------------------------------------------

    async def _live(self) -> None:
        self._over = asyncio.Event()
        if self.is_over:  # closed before this began
            self._over.set()
        try:
            async with self._reach.streams(self._note_end) as streams:
                session = self._new_session(streams)
                async with session.running():
                    if await self._greet(session):
                        self._session = session
                        self._ready.set_result(None)
                        await self._over.wait()
                        await self._find_reason(None)
        except BaseException as problem:  # of the SDK's tasks: groups of whatever went wrong, cancellations among it
            await self._find_reason(problem)
        finally:
            self._is_over.set()
            self._is_explained.set()
            self._is_down.set()
            if not self._ready.done():
                self._ready.set_exception(McpError(self._reason))

    def _new_session(self, streams: Any) -> SdkSession:
        from llm_agent.mcp.session import SdkSession

        return SdkSession(
            streams,
            elicit=self._elicit if self._options.elicitation else None,
            tell=self._tell,
            on_tools_changed=self._note_change,
            log_level=self._options.log_level,
        )

    async def _greet(self, session: SdkSession) -> bool:
        """Agree on a version; False when that failed, or when the connection was closed meanwhile."""
        assert self._over is not None
        greeting = asyncio.ensure_future(session.greet(self._options.protocol, self._options.connect_timeout))
        greeting.add_done_callback(lambda task: task.cancelled() or task.exception())  # asked for, so never reported
        closing = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait(
                (greeting, closing), timeout=self._options.connect_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if greeting.done() and greeting.exception() is None:
                return True
            self._reach.hurry()
            if greeting.done() or self.is_over:
                await self._find_reason(greeting.exception() if greeting.done() else None)
            else:
                self._explain(self._not_answered())
            return False
        finally:
            for task in (greeting, closing):
                task.cancel()
            await asyncio.wait((greeting, closing), timeout=_KILL_PATIENCE)

    def _wake(self) -> None:
        if self._over is not None:
            self._over.set()

    def _note_end(self) -> None:
        """The transport is dead; why is found out by whoever needs it first."""
        self._is_over.set()
        self._wake()

    async def _find_reason(self, problem: BaseException | None) -> None:
        if self._is_explained.is_set():
            return
        known = await self._reach.why()
        if known is None and problem is not None:
            known = _text_of(problem)
        happened = "cannot be used" if self._session is None else "is gone"
        self._explain(f"{self.label} {happened}: {known or 'it has ended the connection'}")

    def _note_change(self) -> None:
        self._changes += 1
        self._catalogue = None

    async def _list_tools(self) -> Catalogue:
        before = self._changes
        try:
            catalogue = Catalogue.of(await self.session.list_tools())
        except Exception as problem:  # whatever the SDK raises
            if self.is_over:
                await self._find_reason(problem)
                raise McpError(self._reason) from None
            raise McpError(f"{self.label} did not list its tools: {_text_of(problem)}") from problem
        if before == self._changes:
            self._catalogue = catalogue
        return catalogue

    # -- a call, on the portal ---------------------------------------------------------------------

    async def _carry(self, exchange: Exchange, place: int, call: ToolRequest) -> None:
        _ABOUT.set((exchange, place))
        self._exchanges[exchange] += 1
        try:
            exchange.settle(place, await self._fate_of(exchange, place, call))
        finally:
            self._exchanges[exchange] -= 1
            if not self._exchanges[exchange]:
                del self._exchanges[exchange]

    async def _fate_of(self, exchange: Exchange, place: int, call: ToolRequest) -> Fate:
        def report(done: float, total: float | None, message: str | None) -> None:
            exchange.report(place, done, total, message)

        try:
            return Returned(await self.session.call_tool(call.name, call.args, report))
        except Exception as problem:  # whatever the SDK raises: a call is answered
            return await self._lost(problem)

    async def _lost(self, problem: Exception) -> Lost:
        error = getattr(problem, "error", None)  # an `MCPError` has the server's
        if error is not None and self._reach.is_ended_by(error.code, error.message):
            self._is_over.set()
        if self.is_over:
            await self._find_reason(problem)
            return Lost("gone", notices.MCP_GONE.format(reason=self._reason))
        unreadable = _text_of(problem) if error is None else self._reach.unreadable(error.code, error.message)
        if error is None or unreadable is not None:
            return Lost("unreadable", notices.MCP_UNREADABLE.format(server=self.label, problem=unreadable))
        return Lost("refused", notices.MCP_REFUSED.format(server=self.label, problem=error.message))

    # -- what the server says on its own, on the portal ----------------------------------------------

    def _about(self) -> tuple[Exchange, int | None] | None:
        """The batch that a message belongs to; of several that could be meant, none."""
        about = _ABOUT.get()
        if about is not None:
            return about
        return (next(iter(self._exchanges)), None) if len(self._exchanges) == 1 else None

    async def _elicit(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        about = self._about()
        if about is None:  # the wrong human must never be asked
            _log.info("a question of %s belongs to no call that is known; it was declined", self.label)
            return DECLINED
        loop = asyncio.get_running_loop()
        said: asyncio.Future[Mapping[str, Any]] = loop.create_future()

        def settle(answer: Mapping[str, Any]) -> None:
            if not said.done():
                said.set_result(answer)

        def answer(answered: Mapping[str, Any]) -> None:
            loop.call_soon_threadsafe(settle, answered)

        exchange, place = about
        exchange.ask(place, question, answer)
        return await said

    def _tell(self, level: str, data: Any, logger: str | None) -> None:
        about = self._about()
        if about is None:
            _log.debug("%s logs, while no one call is out: %s %s", self.label, level, data)
            return
        about[0].tell(level, data, logger)


def _text_of(problem: BaseException) -> str:
    """What went wrong, out of however many groups the SDK has wrapped it in."""
    for leaf in _leaves(problem):
        if not isinstance(leaf, asyncio.CancelledError):
            error = getattr(leaf, "error", None)  # an `MCPError` has the server's
            return error_text(leaf) if error is None else str(error.message)
    return error_text(problem)


def _leaves(problem: BaseException) -> list[BaseException]:
    if not isinstance(problem, BaseExceptionGroup):
        return [problem]
    return [leaf for inner in problem.exceptions for leaf in _leaves(inner)]
