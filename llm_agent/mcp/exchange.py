"""A batch of calls between the thread that makes them and the portal that carries them.

The calling thread waits on one queue for whatever happens: an answer, a question of the server,
progress, a log line, a cancel. It does everything itself, so `current_call()` holds, and a human
is asked on the thread whose deadline stands still for it. Clocks count only while it waits, so
they stand still as well. Nothing here is asynchronous; how a call travels does not live here.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol

import attrs

from llm_agent import notices
from llm_agent.call_context import Asker, ToolCallContext, claimed_by, current_call
from llm_agent.cancel import when_set
from llm_agent.mcp.content import structured_of, text_of_result
from llm_agent.mcp.question import DECLINED, answer_of
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.watchdog import bounded

_log = logging.getLogger("llm_agent.mcp")

# How much news of a call may wait to be passed on; what comes beyond is dropped: news gets old,
# and nobody answers so many questions.
_MOST_NEWS: Final = 1_000


@attrs.frozen
class Returned:
    """The wire's result of a call."""

    result: Mapping[str, Any]


@attrs.frozen
class Lost:
    """A call without a result: what a model is told of it, and the kind for a machine."""

    kind: str
    """`gone`, `refused`, `unreadable`, `timeout`, `cancelled` or `not-run`."""
    text: str

    @property
    def may_have_run(self) -> bool:
        """Whether the call was sent and nobody has said what became of it."""
        return self.kind in ("gone", "unreadable", "timeout", "cancelled")


Fate = Returned | Lost
"""What became of a call."""


def not_run(problem: Exception) -> Lost:
    """What becomes of a call when there is no connection to be had."""
    return Lost("not-run", notices.MCP_NOT_RUN.format(reason=problem))


def answer_to(call: ToolRequest, fate: Fate) -> ToolAnswer:
    """Return the answer to *call*, for the model and for a machine."""
    match fate:
        case Returned(result):
            is_error = result.get("isError") is True
            return ToolAnswer(call.id, text_of_result(result), is_error, structured_of(result))
        case Lost(kind, text):
            facts = {"mcp": {"failed": kind}}
            return ToolAnswer(call.id, text, is_error=True, structured=facts, outcome_unknown=fate.may_have_run)


class Carrier(Protocol):
    """What an exchange needs of a connection."""

    def send(self, exchange: Exchange, place: int, call: ToolRequest) -> Future[None]:
        """Start a call; its fate goes to `exchange.settle(place, ...)`. Cancelling tells the server."""
        ...


@attrs.define(eq=False)
class _InFlight:
    future: Future[None]
    left: float
    """Seconds it may still be waited for."""


class Exchange:
    """One batch. `run` belongs to the calling thread; the portal hands in what happens."""

    def __init__(self, name: str, calls: Sequence[ToolRequest], timeout: float | None, asker: Asker | None) -> None:
        self._name = name
        self._server = f"the MCP server {name!r}"
        self._calls = calls
        self._timeout = math.inf if timeout is None else timeout
        self._asker = asker
        self._context: ToolCallContext | None = current_call()
        self._cancelled = threading.Event() if self._context is None else self._context.cancelled
        self._news: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._in_flight: dict[int, _InFlight] = {}
        self._fates: dict[int, Fate] = {}
        self._unreachable: Lost | None = None
        # Guards the one below: a question is either asked or declined, never left alone.
        self._lock = threading.Lock()
        self._is_over = False

    # -- the calling thread ------------------------------------------------------------------------

    def run(self, carrier: Callable[[], Carrier], width: int) -> list[ToolAnswer]:
        """Make every call and return the answers, in order. Never raises, but for Ctrl-C.

        Args:
            carrier: gives the connection for the next call; raises `McpError` where there is none.
            width: how many calls may be out at the same time.
        """
        forget = None if self._context is None else when_set(self._cancelled, lambda: self._news.put(None))
        waiting = list(reversed(range(len(self._calls))))
        try:
            while waiting or self._in_flight:
                while waiting and len(self._in_flight) < width:
                    self._start(waiting.pop(), carrier)
                if self._in_flight:
                    self._hear()
        finally:
            if forget is not None:
                forget()
            self._end()
        return [answer_to(call, self._fates[place]) for place, call in enumerate(self._calls)]

    def _start(self, place: int, carrier: Callable[[], Carrier]) -> None:
        if self._cancelled.is_set():
            self._fates[place] = Lost("not-run", notices.ABANDONED_CANCELLED)
            return
        if self._unreachable is not None:
            self._fates[place] = self._unreachable
            return
        try:
            future = carrier().send(self, place, self._calls[place])
        except Exception as problem:  # McpError; and whatever else it is, an answer says so
            # For the rest of the batch too: a server that does not come up is not started once per call.
            self._fates[place] = self._unreachable = not_run(problem)
            return
        self._in_flight[place] = _InFlight(future, self._timeout)

    def _hear(self) -> None:
        """Wait for the next news and act on it."""
        started = monotonic()
        try:
            act = self._news.get(timeout=bounded(max(0.0, min(call.left for call in self._in_flight.values()))))
        except Empty:
            act = None
        waited = monotonic() - started
        if act is not None:
            act()
        for place, call in list(self._in_flight.items()):
            call.left -= waited
            if self._cancelled.is_set():
                self._give_up(place, Lost("cancelled", notices.MCP_CANCELLED.format(server=self._server)))
            elif call.left <= 0:
                text = notices.MCP_TIMEOUT.format(server=self._server, seconds=self._timeout)
                self._give_up(place, Lost("timeout", text))

    def _give_up(self, place: int, fate: Lost) -> None:
        self._in_flight.pop(place).future.cancel()
        self._fates[place] = fate

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
        for place in list(self._in_flight):  # Ctrl-C: the calls are not left running
            self._in_flight.pop(place).future.cancel()
        while not self._news.empty():  # every question gets its answer, be it that nobody is here
            act = self._news.get()
            if isinstance(act, _Question):
                act.answer(DECLINED)

    def _within(self, place: int) -> Any:
        """A context manager: this thread executes the call at *place*."""
        context = self._context
        return nullcontext() if context is None else context.for_call(self._calls[place])

    # -- the portal --------------------------------------------------------------------------------

    def settle(self, place: int, fate: Fate) -> None:
        """A call has ended. One that was given up before keeps what was said of it then."""

        def act() -> None:
            if self._in_flight.pop(place, None) is not None:
                self._fates[place] = fate

        self._news.put(act)

    def report(self, place: int, done: float, total: float | None, message: str | None) -> None:
        """A call has made progress; dropped when it is over, or when nobody keeps up."""

        def act() -> None:
            if place in self._in_flight and self._context is not None:
                with self._within(place):
                    call = current_call()
                    assert call is not None
                    call.progress(done, total, message)

        if self._news.qsize() < _MOST_NEWS:
            self._news.put(act)

    def tell(self, level: str, data: Any, logger: str | None) -> None:
        """The server logs something while this batch is out."""

        def act() -> None:
            if self._context is not None:
                self._context.log(level, data, logger)

        if self._news.qsize() < _MOST_NEWS:
            self._news.put(act)

    def ask(self, place: int | None, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
        """Have the calling thread put a question to a human; *answer* is called once, on any thread.

        Args:
            place: the call that the question is about, where that is known.
        """
        with self._lock:
            if not self._is_over and self._news.qsize() < _MOST_NEWS:
                self._news.put(_Question(self, place, request, answer))
                return
        answer(DECLINED)

    def put_question(self, place: int | None, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """On the calling thread: ask, within the call it is about. Never raises."""
        about = place if place is not None else next(iter(self._in_flight), None)
        if about not in self._in_flight or self._cancelled.is_set():
            return DECLINED
        try:
            with self._within(about):
                call = current_call()
                named = {"kind": "server-elicit", "tool": self._calls[about].name, "server": self._name}
                asked = {**named, "request": dict(request)}
                asker = self._asker or claimed_by()
                if asker is None:
                    return DECLINED if call is None else answer_of(call.ask(asked))
                # Not through the ask of the call: a policy's hook makes one of its own.
                with nullcontext() if call is None else call.pausing():
                    return answer_of(asker(asked))
        except Exception as problem:  # nobody to ask (ConfigError), or an asker that raises: both mean no
            _log.info("a question of %s was declined: %s", self._server, problem)
            return DECLINED


@attrs.frozen(eq=False)
class _Question:
    """A question on its way to the calling thread."""

    exchange: Exchange
    place: int | None
    request: Mapping[str, Any]
    answer: Callable[[Mapping[str, Any]], None]

    def __call__(self) -> None:
        answer = DECLINED
        try:
            answer = self.exchange.put_question(self.place, self.request)
        finally:  # Ctrl-C in a prompt: the server is told no, and the calls are given up
            self.answer(answer)
