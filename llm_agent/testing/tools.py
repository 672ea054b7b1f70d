"""Tools that answer from a script, and a call to test one tool in.

`ScriptedProvider` is a whole provider for a loop; `call_context` is what a tool sees of a
run when there is none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, cast

import attrs

from llm_agent.asks import asked_within
from llm_agent.call_context import Asker, ToolCallContext, entered
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.testing.script import Gate

Answer = str | Mapping[str, Any] | ToolAnswer | Gate | BaseException | None
Spoken = Answer | Callable[..., Answer]
Scripted = Spoken | list[Spoken]


class ScriptedProvider:
    """A tool provider whose every answer is written down beforehand.

    Args:
        tools: what each tool does: a `str` (the answer), a mapping (the answer's wire form,
            its id filled in), a `ToolAnswer` (its id filled in when empty), an exception
            (raised), a `Gate` (its text, once it is open; deaf to every cancel before), a
            callable (called with the call's arguments by keyword, returning any of these),
            or a list of these: one per call, the last one again and again.
        latency: seconds each call takes before it answers.
        gates: gates to stop at before the answer, by tool.

    A tool that is not scripted is answered with an error. May be shared by runs and threads.
    """

    def __init__(
        self,
        tools: Mapping[str, Scripted],
        *,
        latency: float = 0.0,
        gates: Mapping[str, Gate] | None = None,
    ) -> None:
        self._tools = {name: _answers(name, scripted) for name, scripted in tools.items()}
        self._latency = latency
        self._gates = dict(gates or {})
        unknown = sorted(self._gates.keys() - self._tools.keys())
        if unknown:
            raise ConfigError(f"ScriptedProvider: gates must name scripted tools, got {', '.join(unknown)}")
        self.batches: list[tuple[ToolRequest, ...]] = []
        """What each provider call was given, in the order of the calls."""
        # Guards the batches and the tally; a leaf.
        self._lock = threading.Lock()
        self._tally: dict[str, int] = {}

    @property
    def calls(self) -> list[ToolRequest]:
        """Every call that reached this provider, in order."""
        with self._lock:
            return [call for batch in self.batches for call in batch]

    def tools_for_llm(self) -> list[dict[str, Any]]:
        """Return one declaration per scripted tool; any arguments are welcome."""
        return [_declaration(name) for name in self._tools]

    def execute_tool_calls(self, calls: list[ToolRequest]) -> list[ToolAnswer | Mapping[str, Any] | str]:
        """Answer each of *calls*, one after the other.

        Raises:
            Whatever the script raises.
        """
        with self._lock:
            self.batches.append(tuple(calls))
        return [self._answer(call) for call in calls]

    def _answer(self, call: ToolRequest) -> ToolAnswer | Mapping[str, Any] | str:
        if call.name not in self._tools:
            return ToolAnswer(call.id, f"no tool is scripted under the name {call.name!r}", is_error=True)
        scripted = self._next_answer(call.name)
        if self._latency:
            threading.Event().wait(self._latency)
        if call.name in self._gates:
            self._gates[call.name].wait()
        return _spoken(call, scripted)

    def _next_answer(self, name: str) -> Spoken:
        with self._lock:
            turn = self._tally.get(name, 0)
            self._tally[name] = turn + 1
        answers = self._tools[name]
        return answers[min(turn, len(answers) - 1)]


def _answers(name: str, scripted: Scripted) -> list[Spoken]:
    if not isinstance(scripted, list):
        return [scripted]
    if not scripted:
        raise ConfigError(f"ScriptedProvider: tool {name!r} needs at least one answer, got an empty list")
    return cast("list[Spoken]", list(scripted))


def _declaration(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, "additionalProperties": True}
    function = {"name": name, "description": f"The scripted tool {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


def _spoken(call: ToolRequest, scripted: Spoken) -> ToolAnswer | Mapping[str, Any] | str:
    if isinstance(scripted, BaseException) or (isinstance(scripted, type) and issubclass(scripted, BaseException)):
        raise scripted
    if callable(scripted):
        return _spoken(call, cast("Callable[..., Answer]", scripted)(**call.args))
    match scripted:
        case None:
            return ""
        case Gate():
            scripted.wait()
            return scripted.text
        case ToolAnswer(tool_call_id=""):
            return attrs.evolve(scripted, tool_call_id=call.id)
        case Mapping():
            return {"role": "tool", "tool_call_id": call.id, **scripted}
        case _:
            return scripted


# -- one call, without a run ----------------------------------------------------------


@attrs.frozen
class Progress:
    """What a tool told about how far it is."""

    done: float
    total: float | None = None
    message: str | None = None


@attrs.define(eq=False)
class RecordedCall:
    """A call that a test made up, and what the tool said during it."""

    _on_ask: Asker | None = attrs.field(repr=False)
    _deadline: float | None
    progress_told: list[Progress] = attrs.field(factory=list, init=False)
    logged: list[tuple[str, str | Mapping[str, Any]]] = attrs.field(factory=list, init=False)
    """(level, data), in order."""
    asked: list[Mapping[str, Any]] = attrs.field(factory=list, init=False)
    """The requests, in order."""

    grants_told: int = attrs.field(default=0, init=False)
    """How often it was said that grants have changed."""

    # What a context calls; see `call_context.CallHost`.

    def seconds_left(self) -> float | None:
        return self._deadline

    def progress(self, call_id: str, done: float, total: float | None, message: str | None) -> None:
        self.progress_told.append(Progress(done, total, message))

    def log(self, level: str, data: str | Mapping[str, Any], logger: str | None = None) -> None:
        self.logged.append((level, data))

    @property
    def asker(self) -> Asker | None:
        return self._on_ask

    def ask(
        self,
        call_id: str,
        request: Mapping[str, Any],
        asker: Asker | Literal["run"] | None,
        timeout: float | None = None,
    ) -> Any:
        self.asked.append(dict(request))
        chosen = self._on_ask if asker is None or asker == "run" else asker
        if chosen is None:
            raise ConfigError("call_context: the tool asks, but there is no asker; give answer= or on_ask=")
        return asked_within(chosen, request, timeout)

    def pausing(self, call_id: str) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def observation_limit(self) -> None:
        return None

    def grants_changed(self) -> bool:
        self.grants_told += 1
        return False


_NO_ANSWER: Any = object()


@contextmanager
def call_context(
    *,
    id: str = "call_1",
    name: str = "tool",
    run_id: str = "run-of-a-test",
    data: Any = None,
    cancelled: threading.Event | None = None,
    deadline: float | None = None,
    calls: Sequence[ToolRequest] = (),
    answer: Any = _NO_ANSWER,
    on_ask: Asker | None = None,
) -> Iterator[RecordedCall]:
    """Set `current_call()` on this thread, so that a tool can be tested alone.

    Args:
        id, name, run_id, data, calls: what the tool sees; *calls* is one call of *id* and
            *name* unless given.
        cancelled: set it to see what the tool makes of a cancel.
        deadline: seconds left, as the tool is told; the time does not run.
        answer: what every ask is answered.
        on_ask: `(request) -> answer`, in place of *answer*.

    Returns:
        What the tool said: `.progress_told`, `.logged`, `.asked`.
    """
    if answer is not _NO_ANSWER and on_ask is not None:
        raise ConfigError("call_context: give answer= or on_ask=, not both")
    if answer is not _NO_ANSWER:
        on_ask = lambda request: answer  # noqa: E731  # a name would say no more
    recorded = RecordedCall(on_ask, deadline)
    context = ToolCallContext(
        id=id,
        name=name,
        run_id=run_id,
        data=data,
        cancelled=cancelled or threading.Event(),
        calls=tuple(calls) or (ToolRequest(id, name),),
        host=recorded,
    )
    with entered(context):
        yield recorded
