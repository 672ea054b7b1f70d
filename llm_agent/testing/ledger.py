"""The calls of one turn, as their events tell them: announced, started, ended, each once.

Part of `check_events`. Every rule is about one turn; the order of turns is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from llm_agent import events as told
from llm_agent.events import Event
from llm_agent.messages import ToolRequest


class Violation(Exception):
    """A rule of the grammar, broken; says the rule and what came. Never leaves this package."""


@attrs.define(eq=False)
class CallLedger:
    """What has happened to each call of a turn."""

    turn: Sequence[ToolRequest] = ()
    """The calls the turn asks for, in the model's order."""
    announced: list[str] = attrs.field(factory=list, init=False)
    """Ids, in order; the lists below are in the order of their events."""
    started: list[str] = attrs.field(factory=list, init=False)
    ended: list[str] = attrs.field(factory=list, init=False)
    group: list[str] = attrs.field(factory=list, init=False)
    """Calls handed over together: they start together, and end before the next group starts."""
    is_at_work: bool = attrs.field(default=False, init=False)
    """Whether the group has been heard of: then all of it has started."""
    open_asks: list[told.AskPending] = attrs.field(factory=list, init=False)
    given_up: told.ToolAbandoned | None = attrs.field(default=None, init=False)
    """The abandoned call that ended the turn's work, if one did. A call that was not run because
    too many older ones still run does not: the next may find room."""

    def read(self, event: Event) -> None:
        """Enter one event about a call or an ask.

        Raises:
            Violation: it may not come now.
        """
        match event:
            case told.ToolCall():
                self._announce(event)
            case told.ToolStarted():
                self._start(event)
            case told.ToolProgress(id=call_id):
                self._check_running(call_id)
                self.is_at_work = True
            case told.AskPending():
                self._open_ask(event)
            case told.AskAnswered():
                self._close_ask(event)
            case told.ToolResult():
                self._answer(event)
            case told.ToolAbandoned():
                self._abandon(event)

    def close(self, event: Event) -> None:
        """The turn is over with *event*: every call must have ended.

        Raises:
            Violation: one has not, or the way calls were given up forbids this event.
        """
        self._check_all_announced()
        missing = [call_id for call_id in self.announced if call_id not in self.ended]
        if missing:
            raise Violation(f"every call ends before the turn is over: {', '.join(missing)} did not")
        reason = self.given_up.reason if self.given_up else None
        if reason == "cancelled" and not isinstance(event, told.RunCancelled):
            raise Violation("calls abandoned as cancelled are followed by run-cancelled")
        if reason == "budget-exhausted" and not isinstance(event, told.RunFailed):
            raise Violation("calls abandoned as budget-exhausted are followed by run-failed")

    def _announce(self, event: told.ToolCall) -> None:
        if self.started or self.ended:
            raise Violation("all calls of a turn are announced before the first starts or ends")
        place = len(self.announced)
        if place >= len(self.turn):
            raise Violation(f"the turn asks for {len(self.turn)} calls, this is one more: {event.id!r}")
        expected = self.turn[place]
        if (event.id, event.name) != (expected.id, expected.name):
            raise Violation(
                f"calls are announced in the model's order: expected {expected.id!r} ({expected.name}), "
                f"got {event.id!r} ({event.name})"
            )
        if event.id in self.announced:
            raise Violation(f"ids are unique within a turn, got {event.id!r} twice")
        self.announced.append(event.id)

    def _start(self, event: told.ToolStarted) -> None:
        self._check_all_announced()
        if self.given_up is not None:
            raise Violation(f"nothing starts behind an abandoned call ({self.given_up.id!r})")
        self._check_next(event, [*self.started, *self.ended], "start")
        if all(call_id in self.ended for call_id in self.group):
            self.group, self.is_at_work = [], False
        elif self.is_at_work:
            raise Violation("a call starts only when the group before it has ended")
        self.started.append(event.id)
        self.group.append(event.id)

    def _answer(self, event: told.ToolResult) -> None:
        self._check_running(event.id)
        self._check_next(event, self.ended, "end")
        asking = [ask.ask_id for ask in self.open_asks if ask.call_id in (None, event.id)]
        if asking:
            raise Violation(f"a call is answered when its asks are, but {asking[0]!r} is still open")
        if self.given_up is not None:
            raise Violation(f"no call is answered behind an abandoned one ({self.given_up.id!r})")
        self.ended.append(event.id)
        self.is_at_work = True

    def _abandon(self, event: told.ToolAbandoned) -> None:
        self._check_all_announced()
        self._check_next(event, self.ended, "end")
        has_started = event.id in self.started
        if event.dispatched != has_started:
            word = "had" if has_started else "had not"
            raise Violation(f"dispatched tells whether the call started: it {word}, got {event.dispatched}")
        if self.given_up is not None and event.reason != self.given_up.reason:
            raise Violation(
                f"a turn's calls are abandoned for one reason: expected {self.given_up.reason}, got {event.reason}"
            )
        if event.dispatched or event.reason != "deadline":
            self.given_up = self.given_up or event
        self.ended.append(event.id)
        self.open_asks = [ask for ask in self.open_asks if ask.call_id != event.id]

    def _open_ask(self, event: told.AskPending) -> None:
        if event.call_id is not None:
            self._check_running(event.call_id)
        elif all(call_id in self.ended for call_id in self.started):
            raise Violation("an ask belongs to a call that runs, and none does")
        if event.ask_id is not None and any(ask.ask_id == event.ask_id for ask in self.open_asks):
            raise Violation(f"an ask is opened once, got {event.ask_id!r} twice")
        self.open_asks.append(event)
        self.is_at_work = True

    def _close_ask(self, event: told.AskAnswered) -> None:
        for ask in self.open_asks:
            if (ask.ask_id, ask.call_id) == (event.ask_id, event.call_id):
                self.open_asks.remove(ask)
                return
        raise Violation(f"an answer closes an open ask: none is open as {event.ask_id!r} of call {event.call_id!r}")

    def _check_all_announced(self) -> None:
        if len(self.announced) < len(self.turn):
            missing = ", ".join(call.id for call in self.turn[len(self.announced) :])
            raise Violation(f"all calls of a turn are announced before the first starts or ends: {missing} is missing")

    def _check_next(self, event: _Named, done: list[str], verb: str) -> None:
        """Calls start, and end, in the order they were announced, each once."""
        if event.id in done:
            raise Violation(f"a call can {verb} once, got {event.id!r} again")
        if event.id not in self.announced:
            raise Violation(f"no call {event.id!r} was announced in this turn")
        expected = next(call for call in self.turn if call.id not in done)
        if event.id != expected.id:
            raise Violation(f"calls {verb} in the order announced: expected {expected.id!r}, got {event.id!r}")
        if event.name not in (None, expected.name):
            raise Violation(f"the call {event.id!r} is of {expected.name!r}, got {event.name!r}")

    def _check_running(self, call_id: str) -> None:
        if call_id not in self.started:
            raise Violation(f"the call {call_id!r} has not started")
        if call_id in self.ended:
            raise Violation(f"the call {call_id!r} is over")


_Named = told.ToolStarted | told.ToolResult | told.ToolAbandoned
