"""What a scenario scripts around a loop: backends, a summariser, a provider, steers, a counter, cancels.

Every part plays one section of the scenario format and tells the stage what it was asked. The
law: a scripted part waits only where its script says so, and every wait can be woken or is
bounded. Nothing here knows how a trace looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, Literal

import attrs

from llm_agent import BackendError, CompletionRequest, Delta, Loop, Message, Run, ToolRequest, Usage
from llm_agent.ports import ToolDeclaration

# The longest wait for something that the scenario says will come, in seconds.
PATIENCE: Final = 20.0
EXHAUSTED: Final = "script exhausted"

_ANSWER_KEYS: Final = ("role", "tool_call_id", "content", "is_error")
_USAGE_KEYS: Final = {
    "prompt": "prompt_tokens",
    "completion": "completion_tokens",
    "total": "total_tokens",
    "cached": "cached_prompt_tokens",
    "cost": "cost",
    "generation_id": "generation_id",
    "provider_name": "provider_name",
}


class ScriptedError(Exception):
    """What a script raises."""


@attrs.define(eq=False)
class Stage:
    """What all scripted parts of one scenario share: the run that plays, and what was seen."""

    play: Play | None = None
    loop: Loop | None = None
    all_attempted: threading.Event = attrs.field(factory=threading.Event)
    """Set once every run of the scenario was started or refused."""
    script_exhausted: bool = False

    @property
    def now(self) -> Play:
        assert self.play is not None  # a loop asks nothing before a run
        return self.play

    @property
    def playing_loop(self) -> Loop:
        assert self.loop is not None  # the provider is called by a loop
        return self.loop


@attrs.define(eq=False)
class Play:
    """One run of the scenario while it plays."""

    script: Mapping[str, Any]
    handle: Future[Run] = attrs.field(factory=Future)
    """The run, as soon as `Loop.run` has returned it; the worker may be faster."""
    requests: list[dict[str, Any]] = attrs.field(factory=list)
    batches: list[list[str]] = attrs.field(factory=list)
    calls_returned: int = 0
    steer_pulls: int = 0
    summaries_asked: int = 0
    _seen: dict[str, int] = attrs.field(factory=dict, init=False)

    def event(self, kind: str) -> None:
        """An event has reached the subscriber."""
        self._seen[kind] = number = self._seen.get(kind, 0) + 1
        self._cancel_where(lambda t: t["on"] == "event" and t["kind"] == kind and t.get("n", 1) == number)

    def catalogue(self) -> None:
        self._cancel_where(lambda t: t["on"] == "catalogue")

    def pulled(self) -> int:
        """The steer source is asked; returns how many times it was before."""
        self.steer_pulls += 1
        self._cancel_where(lambda t: t["on"] == "steer" and t.get("n", 1) == self.steer_pulls)
        return self.steer_pulls - 1

    def summarizer(self) -> None:
        self.summaries_asked += 1
        self._cancel_where(lambda t: t["on"] == "summarizer" and t.get("n", 1) == self.summaries_asked)

    def grants(self) -> None:
        self._cancel_where(lambda t: t["on"] == "grants" and t["calls"] == self.calls_returned)

    def _cancel_where(self, matches: Callable[[Mapping[str, Any]], bool]) -> None:
        if any(matches(trigger) for trigger in self.script.get("cancel", ())):
            self.run().cancel()

    def run(self) -> Run:
        return self.handle.result(PATIENCE)


# -- backends ----------------------------------------------------------------------------


class ScriptedBackend:
    """A backend of the chain, or the summariser, whose every call consumes one step.

    With *is_cancellable* its streams have `cancel()`, so that the run's worker reads them;
    without, they are generators that the abandonable thread reads.
    """

    def __init__(
        self, stage: Stage, place: int | Literal["summarizer"], script: Mapping[str, Any], *, is_cancellable: bool
    ) -> None:
        self.model: str = script.get("model", f"m{place}")
        self.max_tokens: int | None = script.get("max_tokens")
        self._stage = stage
        self._place = place
        self._is_cancellable = is_cancellable
        self._steps: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        for step in script.get("steps", ()):
            self._steps.put(step)

    def stream(self, request: CompletionRequest) -> Iterator[Delta | str]:
        is_summarizer = self._place == "summarizer"
        self._stage.now.requests.append(
            {
                "backend": self._place,
                "kind": "blocking" if is_summarizer else "stream",
                "tools": sorted(tool["function"]["name"] for tool in request.tools),
                "messages": [message.to_dict() for message in request.messages],
            }
        )
        if is_summarizer:
            self._stage.now.summarizer()
        if self._steps.empty():
            self._stage.script_exhausted = True
            raise BackendError(EXHAUSTED, "response")
        step = self._steps.get()
        if "raise" in step:
            raise ScriptedError(step["raise"])
        if not self._is_cancellable:
            return self._pieces(step, request.cancelled)
        woken = threading.Event()
        return WakeableStream(self._pieces(step, woken), woken)

    def _pieces(self, step: Mapping[str, Any], cancelled: threading.Event) -> Iterator[Delta | str]:
        """Play one step; *cancelled* ends every wait in it."""
        fragments, error = step.get("text", []), step.get("error")
        if cancelled.wait(step.get("delay", 0)):
            return
        for fragment in fragments if error is None else fragments[: error.get("after")]:
            yield fragment
            if cancelled.wait(step.get("fragment_delay", 0)):
                return
        if step.get("stall"):
            cancelled.wait(PATIENCE)
            return
        yield self._settling(step)
        if error is not None:
            raise BackendError(error["message"], error.get("class", "unknown"), error.get("status"))

    def _settling(self, step: Mapping[str, Any]) -> Delta:
        """Everything that is recorded when the response settles, however it does."""
        calls = tuple(ToolRequest.from_raw(_raw_call(call)) for call in step.get("tool_calls", ()))
        finish_reason = step.get("finish_reason")
        if finish_reason is None and "error" not in step:
            finish_reason = "tool_calls" if calls else "stop"
        usage = step.get("usage")
        return Delta(
            reasoning=step.get("reasoning", ""),
            tool_calls=calls,
            finish_reason=finish_reason,
            usage=None if usage is None else _usage(usage),
            model=None if usage is None else usage.get("model", self.model),
        )


@attrs.define(eq=False)
class WakeableStream:
    """A stream that the run's worker reads, and that `cancel` wakes."""

    _pieces: Iterator[Delta | str]
    _woken: threading.Event

    def __iter__(self) -> Iterator[Delta | str]:
        return self

    def __next__(self) -> Delta | str:
        return next(self._pieces)

    def cancel(self) -> None:
        self._woken.set()


def _raw_call(call: Mapping[str, Any]) -> Any:
    if "raw" in call:
        return call["raw"]
    function = {key: call[key] for key in ("name", "arguments") if key in call}
    return {"id": call["id"], "type": "function", "function": function}


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(**{name: usage.get(key) for key, name in _USAGE_KEYS.items()})


# -- the provider ------------------------------------------------------------------------


class ScriptedProvider:
    """A provider that answers, speaks and waits as its script says."""

    def __init__(self, stage: Stage, script: Mapping[str, Any]) -> None:
        self._stage = stage
        self._script = script
        self._snapshot: list[Any] = list(script.get("grants") or ())
        self._used: dict[str, int] = {}

    def tools_for_llm(self) -> list[dict[str, Any]]:
        self._stage.now.catalogue()
        if "catalogue" in self._script:
            raise ScriptedError(self._script["catalogue"]["raise"])
        return [{"type": "function", "function": _declared(tool)} for tool in self._script["tools"]]

    def execute_tool_calls(self, calls: list[ToolRequest]) -> Any:
        play = self._stage.now  # a late call still belongs to the run that made it
        play.batches.append([call.id for call in calls])
        answers = self._answers(play, calls)
        return answers if self._script.get("lazy") else list(answers)

    def _answers(self, play: Play, calls: Sequence[ToolRequest]) -> Iterator[Any]:
        try:
            for call in calls:
                yield from self._answer(play, call)
            yield from self._script.get("surplus", ())
        finally:
            play.calls_returned += 1

    def _answer(self, play: Play, call: ToolRequest) -> Iterator[Any]:
        answer = self._next_answer(call)
        for action in answer.get("do", ()):
            self._act(play, action)
        if "raise" in answer:
            raise ScriptedError(answer["raise"])
        if answer.get("omit"):
            return
        if "bare" in answer:
            yield answer["bare"]
            return
        plain = {"role": "tool", "tool_call_id": call.id, "content": "", "is_error": False}
        yield plain | {key: answer[key] for key in _ANSWER_KEYS if key in answer}

    def _next_answer(self, call: ToolRequest) -> Mapping[str, Any]:
        results = self._script.get("results", {})
        key = call.id if call.id in results else call.name
        if key not in results:
            return {"content": f"ok: {call.name}"}
        answer = results[key]
        if isinstance(answer, list):
            turn = self._used.get(key, 0)
            self._used[key] = turn + 1
            answer = answer[min(turn, len(answer) - 1)]
        return {"content": answer} if isinstance(answer, str) else answer

    def _act(self, play: Play, action: Mapping[str, Any]) -> None:
        loop = self._stage.playing_loop
        match action:
            case {"sleep": seconds}:
                threading.Event().wait(seconds)
            case {"hold": "run-done"}:
                play.run().result(PATIENCE)
            case {"hold": "scenario-end"}:
                self._stage.all_attempted.wait(PATIENCE)
            case {"ask": request}:
                _ask(loop, request, action)
            case {"progress": params}:
                loop.progress_hook(params)
            case {"log": params}:
                loop.log_hook(params)
            case {"grants": snapshot}:
                self._snapshot = list(snapshot)
            case {"grant_hook": _}:
                loop.grant_hook()
            case _:
                raise ValueError(f"the scenario has an action that nobody knows: {action!r}")


class GrantingProvider(ScriptedProvider):
    """The same with grants; a provider without them lacks the method."""

    def grants(self) -> list[Any]:
        self._stage.now.grants()
        return list(self._snapshot)


def provider_for(stage: Stage, script: Mapping[str, Any] | None) -> ScriptedProvider | None:
    """Return the provider of a scenario, if it has one."""
    if script is None:
        return None
    return (GrantingProvider if "grants" in script else ScriptedProvider)(stage, script)


def _declared(tool: Any) -> Mapping[str, Any]:
    if not isinstance(tool, str):
        return dict(tool)
    return {"name": tool, "description": f"tool {tool}", "parameters": {"type": "object", "properties": {}}}


def _ask(loop: Loop, request: Mapping[str, Any], action: Mapping[str, Any]) -> None:
    def asker(_: Mapping[str, Any]) -> Any:
        threading.Event().wait(action.get("takes", 0))
        if "raises" in action:
            raise ScriptedError(action["raises"])
        return action.get("answer")

    try:
        loop.wrap_ask(asker)(request)
    except ScriptedError:  # the provider goes on either way
        pass


# -- steers and sizes --------------------------------------------------------------------


def steer_source_for(stage: Stage) -> Callable[[], Any]:
    """Return the steer source of a scenario: the n-th pull of a run gets its n-th entry."""

    def pull() -> Any:
        play = stage.now
        entries, turn = play.script.get("steers", []), play.pulled()
        entry = entries[turn] if turn < len(entries) else []
        if isinstance(entry, Mapping):
            raise ScriptedError(entry["raise"])
        return entry

    return pull


@attrs.frozen(kw_only=True)
class FlatCounter:
    """Every message costs the same, and so does any lump of text; nothing is learned."""

    per_message: int = 10

    def count_messages(self, messages: Sequence[Message]) -> int:
        return self.per_message * len(messages)

    def count_text(self, text: str) -> int:
        return self.per_message

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        return self.count_messages([*messages, *context]) + (self.per_message if tools else 0)

    def record_usage(self, **_: Any) -> None:
        """Nothing is learned."""

    def invalidate(self) -> None:
        """Nothing was learned."""
