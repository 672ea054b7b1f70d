"""What a tool can learn and say while it runs: `current_call()`.

A contextvar, set on the thread that executes a provider call; so the port stays two methods,
and a policy deep in a stack of providers can still ask. A provider's own threads see it when
they run under `contextvars.copy_context()`. A second one says who answers the questions of
tool servers, so that a policy and a client of MCP need not know each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import attrs

from llm_agent.cancel import WakingEvent
from llm_agent.messages import ToolRequest

Asker = Callable[[Mapping[str, Any]], Any]


class CallHost(Protocol):
    """Who stands behind a call's context; in a run, the loop."""

    def seconds_left(self) -> float | None:
        """Working seconds until the deadline, `None` without one; never below 0."""
        ...

    def progress(self, call_id: str, done: Any, total: Any, message: Any) -> None:
        """Contract: whatever a tool passes is taken; what is no number counts as 0."""
        ...

    def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Contract: whatever a tool passes is taken; never raises."""
        ...

    @property
    def asker(self) -> Asker | Literal["run"] | None:
        """Who answers where a call names nobody."""
        ...

    def ask(
        self,
        call_id: str,
        request: Mapping[str, Any],
        asker: Asker | Literal["run"] | None,
        timeout: float | None = None,
    ) -> Any:
        """Contract: as `ToolCallContext.ask`, for the call of that id."""
        ...

    def pausing(self, call_id: str) -> AbstractContextManager[None]:
        """The deadline stands still inside."""
        ...

    @property
    def observation_limit(self) -> int | None:
        """Characters of an answer that the conversation takes in full; `None` for all."""
        ...

    def grants_changed(self) -> bool:
        """Contract: returns after what can be written is written; never raises. False: there is no transcript."""
        ...


@attrs.frozen(eq=False, kw_only=True)
class ToolCallContext:
    """The call that this thread is executing.

    Within a group of concurrent calls it is the group's: `calls` has all of them, `id` and
    `name` are the first one's; `for_call` narrows it.
    """

    id: str
    """The call's id in the conversation."""
    name: str
    """The tool's name in the conversation, as the model wrote it: behind a `Registry`, with the prefix."""
    run_id: str
    data: Any = None
    """What was given to `loop.run(data=...)`."""
    cancelled: threading.Event = attrs.field(factory=WakingEvent)
    """Set on cancel, on the deadline, and when nobody waits for the call any more."""
    calls: tuple[ToolRequest, ...] = ()
    _host: CallHost = attrs.field(repr=False, alias="host")

    @property
    def deadline(self) -> float | None:
        """Seconds left before the engine stops waiting; `None` without a deadline. Asks do not count."""
        return self._host.seconds_left()

    @property
    def observation_limit(self) -> int | None:
        """Characters of an answer that the conversation takes in full, the rest being left out; `None` for all."""
        return self._host.observation_limit

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far the call is. Never raises; dropped once nobody waits for the call."""
        self._host.progress(self.id, done, total, message)

    def log(self, level: str, data: str | Mapping[str, Any], logger: str | None = None) -> None:
        """Put a Log event into the run. Never raises; dropped once nobody waits for the call.

        Args:
            logger: whose words these are, where that is not the tool itself.
        """
        self._host.log(level, data, logger)

    @property
    def asker(self) -> Asker | Literal["run"] | None:
        """Who answers an ask that names nobody: the loop's `on_ask`."""
        return self._host.asker

    def ask(
        self,
        request: Mapping[str, Any],
        asker: Asker | Literal["run"] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Ask a human and wait for the answer, the deadline standing still meanwhile.

        Args:
            request: what is asked, as plain data; a key `tool` names the tool it is about.
            asker: called with *request* on this thread; without one, the loop's `on_ask`.
                `"run"`: the question waits for `Run.answer`.
            timeout: seconds after which it is answered `{"action": "expired"}`; a callable is
                then asked on a thread of its own, which sees this call's context.

        Returns:
            The answer, untouched; `None` when the run ended before one came.

        Raises:
            ConfigError: neither an asker nor `on_ask`.
            Anything the asker raises.
        """
        return self._host.ask(self.id, request, asker, timeout)

    def pausing(self) -> AbstractContextManager[None]:
        """Let the deadline stand still inside: for a wait that is a human's, beside the ask itself."""
        return self._host.pausing(self.id)

    def grants_changed(self) -> bool:
        """Have the provider's grants written to the transcript now, if they have changed. Never raises.

        Returns:
            Whether the run has a transcript.
        """
        return self._host.grants_changed()

    @contextmanager
    def for_call(self, request: ToolRequest) -> Iterator[ToolCallContext]:
        """Make *request*, one of the group's calls, the current call of this thread.

        It is known by its id; its name may have become another one on its way here.
        """
        name = next((call.name for call in self.calls if call.id == request.id), request.name)
        with entered(attrs.evolve(self, id=request.id, name=name)) as narrowed:
            yield narrowed


_CURRENT: ContextVar[ToolCallContext | None] = ContextVar("llm_agent_current_call", default=None)


def current_call() -> ToolCallContext | None:
    """Return the context of the tool call this thread executes, or `None` outside of one."""
    return _CURRENT.get()


def is_given_up() -> bool:
    """Whether nobody waits for the call of this thread any more; False outside of one."""
    call = _CURRENT.get()
    return call is not None and call.cancelled.is_set()


# Who answers what tool servers ask, where somebody in front of the tools has claimed it.
_CLAIMED_BY: ContextVar[Asker | None] = ContextVar("llm_agent_claimed_by", default=None)


def claimed_by() -> Asker | None:
    """Return who has claimed the questions of tool servers while the calls of this context run; `None`: nobody."""
    return _CLAIMED_BY.get()


@contextmanager
def claiming(asker: Asker) -> Iterator[None]:
    """Have *asker* answer what tool servers ask meanwhile, if nobody further out does."""
    if _CLAIMED_BY.get() is not None:
        yield
        return
    token = _CLAIMED_BY.set(asker)
    try:
        yield
    finally:
        _CLAIMED_BY.reset(token)


def leave_call() -> None:
    """Make this context one outside of any call."""
    _CURRENT.set(None)


@contextmanager
def entered(context: ToolCallContext) -> Iterator[ToolCallContext]:
    """Make *context* the current call of this thread."""
    token = _CURRENT.set(context)
    try:
        yield context
    finally:
        _CURRENT.reset(token)
