"""A batch of tool calls while somebody waits for it: what stands behind `current_call()`.

Everything a tool says goes through here, so that it belongs to the call it comes from: once
nobody waits any more (answered, deadline, cancel), progress and logs are dropped, and an ask
neither stops a clock nor shows up in the run.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Literal

from llm_agent.asks import asked_within
from llm_agent.call_context import Asker, ToolCallContext
from llm_agent.codec import text_of
from llm_agent.errors import ConfigError
from llm_agent.events import AskAnswered, AskPending, Event, Log, ToolProgress
from llm_agent.loop.state import RunState
from llm_agent.messages import ToolRequest
from llm_agent.slot import Call
from llm_agent.tool_operation import ToolOperation


class LiveCall:
    """The host of one dispatched batch."""

    def __init__(
        self, state: RunState, operations: Sequence[ToolOperation], calls: Sequence[ToolRequest], data: Any
    ) -> None:
        self._state = state
        self._operations = tuple(operations)
        self._deadline = _shortest(state.config.deadline_of(op.tool) for op in operations)
        self._call: Call | None = None
        # Guards `_is_waited_for`, and orders what a tool says before the batch's end. The
        # channel's lock is taken under it, nothing else. A look without it only saves work: `_say` decides.
        self._lock = threading.Lock()
        self._is_waited_for = True
        self.context = ToolCallContext(
            id=operations[0].call_id,
            name=operations[0].tool,
            run_id=state.core.id,
            data=data,
            calls=tuple(calls),
            host=self,
        )

    def attach(self, call: Call) -> None:
        """Say which call of the slot shall look again when a clock changes."""
        self._call = call

    def end(self) -> None:
        """Nobody waits for the batch any more: it is answered."""
        with self._lock:
            self._is_waited_for = False

    def abandon(self) -> None:
        """Nobody waits any more, and the batch is still out: tell it, and end its questions."""
        self.end()
        self.context.cancelled.set()
        self._state.core.asks.take_back({op.call_id for op in self._operations})

    # -- the clock ---------------------------------------------------------------------------

    def wait_left(self) -> float | None:
        """Seconds the worker may wait before it looks again; `None` while the clock stands."""
        if self._deadline is None or any(op.is_asking for op in self._operations):
            return None
        return self.seconds_left()

    def seconds_left(self) -> float | None:
        if self._deadline is None:
            return None
        now = monotonic()
        worked = max(op.working_seconds(now) for op in self._operations)
        return max(0.0, self._deadline - worked)

    # -- what a tool says ----------------------------------------------------------------------

    def _say(self, event: Event) -> bool:
        with self._lock:
            if not self._is_waited_for:
                return False
            self._state.emit(event)
            return True

    def progress(self, call_id: str, done: Any, total: Any, message: Any) -> None:
        if all(op.call_id != call_id for op in self._operations):
            return
        self._say(
            ToolProgress(
                id=call_id,
                progress=_number(done) or 0.0,
                total=None if total is None else _number(total),
                message=message if isinstance(message, str) else None,
                round=self._operations[0].round,
            )
        )

    def log(self, level: str, data: Any, logger: str | None = None) -> None:
        told = data if isinstance(data, str | Mapping) else text_of(data)
        self._say(Log(level=text_of(level), logger=logger, data=told))

    # -- what a tool asks ------------------------------------------------------------------------

    @property
    def asker(self) -> Asker | Literal["run"] | None:
        return self._state.config.on_ask

    def ask(
        self,
        call_id: str,
        request: Mapping[str, Any],
        asker: Asker | Literal["run"] | None,
        timeout: float | None = None,
    ) -> Any:
        on_ask = asker if asker is not None else self._state.config.on_ask
        if on_ask is None:
            raise ConfigError("an ask needs somebody to answer it: pass an asker, or give the loop on_ask=")
        if not isinstance(request, Mapping):
            raise ConfigError(f"an ask's request must be a mapping, got {type(request).__name__}")
        named = request.get("tool")
        tool = named if isinstance(named, str) else None
        facts: dict[str, Any] = {"request": dict(request), "call_id": call_id}
        if on_ask == "run":
            return self._ask_through_run(call_id, facts, tool, timeout)
        return self._ask_through(on_ask, request, facts, tool, timeout)

    def _ask_through_run(self, call_id: str, facts: dict[str, Any], tool: str | None, timeout: float | None) -> Any:
        if not self._is_waited_for:
            return None
        self._open_ask(call_id)
        try:
            # On the desk first: an answer must find it as soon as the event is seen.
            question = self._state.core.asks.put(call_id, facts["request"])
            facts["ask_id"] = question.ask_id
            if not self._say(AskPending(tool=tool, **facts)):
                self._state.core.asks.answer(question.ask_id, None)
            answer = self._state.core.asks.wait(question, timeout)
            self._say(AskAnswered(answer=answer, **facts))
            return answer
        finally:
            self._close_ask()

    def _ask_through(
        self,
        asker: Asker,
        request: Mapping[str, Any],
        facts: dict[str, Any],
        tool: str | None,
        timeout: float | None,
    ) -> Any:
        if not self._is_waited_for:
            return asked_within(asker, request, timeout)
        self._open_ask(facts["call_id"])
        facts["ask_id"] = str(uuid.uuid4())
        answer = None
        try:
            self._say(AskPending(tool=tool, **facts))
            answer = asked_within(asker, request, timeout)
            return answer
        finally:
            self._say(AskAnswered(answer=answer, **facts))
            self._close_ask()

    @contextmanager
    def pausing(self, call_id: str) -> Iterator[None]:
        if not self._is_waited_for:
            yield
            return
        self._open_ask(call_id)
        try:
            yield
        finally:
            self._close_ask()

    @property
    def observation_limit(self) -> int | None:
        return self._state.config.observation_limit

    def grants_changed(self) -> bool:
        # Also when nobody waits for the call any more: an "always" is for the session, not for the call.
        self._state.write_grants()
        return self._state.config.session is not None

    def _open_ask(self, call_id: str) -> None:
        now = monotonic()
        for op in self._operations:
            op.begin_ask(now)
        core = self._state.core
        core.set_stage("ask", round=self._state.round_no, tool=self.context.name, call_id=call_id)
        core.pause_timeout()
        self._look_again()

    def _close_ask(self) -> None:
        now = monotonic()
        for op in self._operations:
            op.end_ask(now)
        core = self._state.core
        core.resume_timeout()
        if self._is_waited_for:
            core.set_stage("tool", round=self._state.round_no, tool=self.context.name, call_id=self.context.id)
        self._look_again()

    def _look_again(self) -> None:
        if self._call is not None:
            self._call.wake()


def _shortest(deadlines: Any) -> float | None:
    """A group is as patient as its least patient call."""
    return min((seconds for seconds in deadlines if seconds is not None), default=None)


def _number(value: Any) -> float | None:
    """Return *value* as a number that JSON has a word for."""
    try:
        number = float(value)
    except Exception:  # a shield: it is whatever a tool passes
        return None
    return number if math.isfinite(number) else None
