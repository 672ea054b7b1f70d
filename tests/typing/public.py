"""What a type checker must know about the names a user types. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

from llm_agent import (
    Event,
    Loop,
    Message,
    OpenAIBackend,
    Outcome,
    PendingAsk,
    Repair,
    Run,
    RunStatus,
    Session,
    ToolAnswer,
    Toolbox,
    ToolCallContext,
    ToolRequest,
    current_call,
    live_runs,
    tool,
)
from llm_agent.channel import EventReader
from llm_agent.ports import Backend, ToolProvider


@tool
def plain(path: str) -> str:
    return path


@tool(name="renamed", idempotency="read-only")
def configured(path: str, count: int = 1) -> int:
    return count


def a_tool_is_still_the_function() -> None:
    assert_type(plain("x"), str)
    assert_type(configured("x", count=2), int)


class MyProvider:
    """Any object with the two methods: no base class."""

    def tools_for_llm(self) -> list[dict[str, Any]]:
        return []

    def execute_tool_calls(self, calls: list[ToolRequest]) -> list[ToolAnswer]:
        return [ToolAnswer(call.id, "") for call in calls]


def ports_are_duck_types() -> None:
    provider: ToolProvider = MyProvider()
    provider = Toolbox([plain, configured, lambda: "x"])
    backend: Backend = OpenAIBackend(model="m", api_key="k")
    Loop(backend, provider=provider)
    Loop([backend], tools=[plain, provider], on_ask="run", tool_deadline={"run_*": None})


def running(loop: Loop) -> None:
    run = loop.run("go")
    assert_type(run, Run)
    assert_type(loop.run([Message.user("go")], context="now", data=object(), timeout=5), Run)
    assert_type(loop.resume(), Run)
    assert_type(run.result(timeout=1), Outcome)
    assert_type(run.events(after=3, timeout=1), EventReader)
    for event in run.events():
        assert_type(event, Event)
    assert_type(run.drained(1), bool)
    assert_type(run.status, RunStatus)
    assert_type(run.steer("x"), bool)
    assert_type(run.answer("id", True), bool)
    assert_type(run.pending_asks(), tuple[PendingAsk, ...])
    assert_type(live_runs(), tuple[Run, ...])
    with run as same:
        assert_type(same, Run)


def sessions() -> None:
    with Session.open("run.jsonl", meta={"who": "me"}) as session:
        assert_type(session, Session)
        assert_type(session.messages, tuple[Message, ...])
        assert_type(session.repair(), list[Repair])
    opened: Callable[..., Session] = Session.read
    opened("x")


def in_a_call() -> None:
    context = current_call()
    assert_type(context, ToolCallContext | None)
    if context is not None:
        assert_type(context.deadline, float | None)
        context.progress(1, total=2)
