"""Whatever happens in a run, what holds for every run holds.

Random backends that fail anywhere, tools that are slow, raise, answer short or lazily,
cancels at any event, deadlines: the events keep the grammar, every request is one a vendor
accepts, what is on disk is what was live, and no thread stays behind.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_agent.errors import BackendError
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, ToolRequest, Usage
from llm_agent.run import Run
from llm_agent.session.session import Session
from llm_agent.testing import Gate, ScriptedBackend, check_conversation, finished, no_backoff
from llm_agent.wire_view import WireView

EXAMPLES = int(os.environ.get("LLM_AGENT_EXAMPLES", "2000"))
WAIT = 10.0
TOOLS = ("quick", "raises", "short", "lazy", "stuck", "wrong_id", "bare")

_arguments = st.sampled_from(["{}", '{"n":1}', '{"n": 1}', "", '{"n":', "[1]", None])
_ids = st.sampled_from(["", "c1", "c1", "c2"])
_calls = st.builds(ToolRequest, _ids, st.sampled_from((*TOOLS, "", "unknown tool")), _arguments)
_deltas = st.one_of(
    st.sampled_from(["text", " ", "ü\ud83d"]).map(Delta),
    st.just(Delta()),
    st.just(Delta(reasoning="hm")),
    st.lists(_calls, min_size=1, max_size=3).map(lambda calls: Delta(tool_calls=tuple(calls))),
    st.sampled_from(["stop", "tool_calls", "length", "content_filter"]).map(lambda said: Delta(finish_reason=said)),
    st.just(Delta(usage=Usage(prompt_tokens=5, completion_tokens=3))),
)
_failures = st.one_of(
    st.builds(
        BackendError,
        st.just("failed"),
        st.sampled_from(["http", "timeout", "connection", "response", "unknown"]),
        st.sampled_from([None, 400, 401, 429, 500]),
        st.sampled_from([None, 0.0]),
    ),
    st.just(ValueError("bug")),
)
_entries = st.lists(_deltas, min_size=1, max_size=4).flatmap(
    lambda deltas: st.one_of(st.just(deltas), st.just(deltas), _failures.map(lambda error: [*deltas, error]))
)


@attrs.frozen(kw_only=True)
class Plan:
    """One random history: what the backends say, run by run, and when somebody cancels."""

    chain: list[list[Any]]
    cancels: list[int | None]
    """For each run the event at which it is cancelled, if any."""
    deadline: float | None
    concurrent: tuple[str, ...]
    limits: tuple[int, int]


plans = st.builds(
    Plan,
    chain=st.lists(st.lists(_entries, max_size=6), min_size=1, max_size=2),
    cancels=st.lists(st.one_of(st.none(), st.integers(0, 25)), min_size=1, max_size=3),
    deadline=st.sampled_from([None, 0.004]),
    concurrent=st.sampled_from([(), ("*",), ("quick", "s*")]),
    limits=st.sampled_from([(1000, 30), (1, 30), (3, 1)]),
)


class Provider:
    """A tool of every kind; the stuck one waits for its gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    def tools_for_llm(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": name}} for name in TOOLS]

    def execute_tool_calls(self, calls: list[ToolRequest]) -> Any:
        if any(call.name == "raises" for call in calls):
            raise RuntimeError("tool broke")
        if any(call.name == "stuck" for call in calls):
            self.gate.wait()
        if any(call.name == "short" for call in calls):
            return []
        if any(call.name == "lazy" for call in calls):
            return (f"lazy {call.name}" for call in calls)
        if any(call.name == "wrong_id" for call in calls):
            return [{"content": "x", "tool_call_id": "other"} for _ in calls]
        return [call.name for call in calls]


def cancel_at(run: Run, position: int | None, gate: Gate, may_wait_forever: bool) -> None:
    """Follow *run*; cancel it at one event, and whenever nothing else would end a stuck tool."""
    for index, event in enumerate(run.events(timeout=WAIT)):
        if index == position:
            run.cancel()
        if may_wait_forever and event.kind == "tool-started" and event.name == "stuck":
            run.cancel()


def entries(script: list[Any]) -> Iterator[Any]:
    """What was planned, and then an answer for every further attempt."""
    yield from script
    while True:
        yield [Delta("done", finish_reason="stop")]


@pytest.mark.filterwarnings("error")
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(plan=plans)
def test_any_run_keeps_every_promise(plan: Plan) -> None:
    """Grammar, one terminal, valid requests, replay equal to live, no thread left."""
    backends = [ScriptedBackend(entries(script), model=f"m{i}") for i, script in enumerate(plan.chain)]
    provider = Provider()
    with tempfile.TemporaryDirectory() as folder, no_backoff():
        path = Path(folder) / "run.jsonl"
        with Session.open(path) as session:
            loop = Loop(
                backends,
                provider=provider,
                session=session,
                tool_deadline=plan.deadline,
                concurrent_tools=plan.concurrent,
                max_tool_rounds=plan.limits[0],
                max_identical_calls=plan.limits[1],
            )
            for number, position in enumerate(plan.cancels):
                run = loop.run(f"question {number}")
                cancel_at(run, position, provider.gate, plan.deadline is None)
                run.result(WAIT)
                provider.gate.open()
                done = finished(run, WAIT)
                provider.gate = Gate()
                assert tuple(session.messages) == done.outcome.messages
            live = tuple(session.messages)
            assert session.pending_tool_operations() == []
        replayed = Session.read(path)

        assert tuple(replayed.messages) == live
        check_conversation([message.to_wire() for message in WireView.of(live).messages])
        for backend in backends:
            for request in backend.requests:
                check_conversation([message.to_wire() for message in request.messages])
    left = [t for t in threading.enumerate() if t.name.startswith(("llm-agent-run", "llm-agent-tools"))]
    for thread in left:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in left)
