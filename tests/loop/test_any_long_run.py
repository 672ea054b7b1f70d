"""However a conversation is folded and aged, it stays one that every vendor accepts, and replays the same.

Random histories with parallel batches, pinned messages and repeated ids; random bills, windows
and summarisers; several runs on one transcript. What goes out is judged as `FakeServer` judges
it when it is strict, over real HTTP for a few and by the same function for the many.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_agent import codec
from llm_agent.backends.openai import OpenAIBackend
from llm_agent.backends.wire import request_body, tools_json
from llm_agent.compactor import Compactor
from llm_agent.errors import BackendError
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Message, ToolRequest, Usage
from llm_agent.ports import CompletionRequest
from llm_agent.session.session import Session
from llm_agent.testing import FakeServer, ScriptedBackend, call, finished, no_backoff
from llm_agent.testing.conversation import request_fault
from llm_agent.token_count import HeuristicCounter, UsageCounter

EXAMPLES = int(os.environ.get("LLM_AGENT_EXAMPLES", "1500"))

_sizes = st.sampled_from([0, 5, 40, 200, 900, 900])
_flags = st.sampled_from([*[{}] * 10, {"sticky": True}, {"depth": 0}])


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """A valid conversation: users, answers, batches of calls with their results in any order."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append(Message("system", "You work.", sysprompt=draw(st.booleans())))
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["user", "assistant", "batch", "batch"]))
        if kind == "batch":
            ids = draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3, unique=True))
            calls = [ToolRequest(call_id, "look", draw(st.sampled_from(["{}", '{"n":1}']))) for call_id in ids]
            messages.append(Message("assistant", draw(st.sampled_from(["", "hm"])), calls, **draw(_flags)))
            messages += [
                Message("tool", "r" * draw(_sizes), tool_call_id=call_id, **draw(_flags))
                for call_id in draw(st.permutations(ids))
            ]
        else:
            text = draw(st.sampled_from(["x", "ü" * 30, "w " * 100, ""])) or ("?" if kind == "user" else "")
            messages.append(Message(kind, text, **draw(_flags)))  # type: ignore[arg-type]
    messages.append(Message.user("and now?"))
    return messages


_usages = st.one_of(
    st.none(),
    st.builds(Usage, prompt_tokens=st.sampled_from([0, 50, 200, 500, 3000]), completion_tokens=st.integers(0, 50)),
)
_batches = st.lists(_sizes, min_size=1, max_size=4)
_rounds = st.lists(
    st.one_of(
        *[st.tuples(_batches, _usages)] * 6,
        st.sampled_from(["prompt is too long", "maximum context length"]).map(lambda m: BackendError(m, "http", 400)),
        st.just(BackendError("down", "http", 500)),
    ),
    min_size=2,
    max_size=12,
)
_summaries = st.sampled_from(
    ["notes", "n" * 400, "n" * 20_000, "  ", "cut", "call", "500", "401", "overflow", "bug"],
)


@attrs.frozen(kw_only=True)
class Plan:
    """One random life of a conversation."""

    history: list[Message]
    runs: list[list[Any]]
    summaries: list[str]
    budget: int
    ratios: tuple[float, float]
    keep_recent: int
    ages: bool
    learns: bool
    context: str | None


plans = st.builds(
    Plan,
    history=histories(),
    runs=st.lists(_rounds, min_size=1, max_size=3),
    summaries=st.lists(_summaries, max_size=5),
    budget=st.sampled_from([400, 1000, 2000]),
    ratios=st.sampled_from([(0.8, 0.4), (0.5, 0.2), (1.0, 0.9)]),
    keep_recent=st.sampled_from([0, 1, 2, 3, 6]),
    ages=st.booleans(),
    learns=st.booleans(),
    context=st.sampled_from([None, "It is Monday."]),
)


def look(n: int, size: int) -> str:
    """Look somewhere."""
    return "r" * size


def played(rounds: list[Any]) -> Iterator[Any]:
    """The planned turns, and then a last word for whoever asks on."""
    for number, entry in enumerate(rounds):
        if isinstance(entry, BackendError):
            yield entry
            continue
        sizes, usage = entry
        calls = [call("look", n=number % 3, size=size) for size in sizes]
        yield [*calls, Delta(finish_reason="tool_calls", usage=usage)]
    yield from repeat("done")


def summary(said: str) -> Any:
    match said:
        case "cut":
            return [Delta("half", finish_reason="length")]
        case "call":
            return call("look", n=1)
        case "500" | "401":
            return BackendError("no", "http", int(said))
        case "overflow":
            return BackendError("input is too long: maximum context length", "http", 400)
        case "bug":
            return ValueError("bug")
        case _:
            return said


def compactor_of(plan: Plan, summariser: Any) -> Compactor:
    trigger, target = plan.ratios
    return Compactor(
        summariser,
        UsageCounter() if plan.learns else HeuristicCounter(),
        plan.budget,
        trigger_ratio=trigger,
        target_ratio=target,
        keep_recent=plan.keep_recent,
        age_observations=plan.ages,
        age_min_chars=30,
        age_reclaim_min=300,
        max_attempts=2,
    )


def live(plan: Plan, path: Path, backend_of: Callable[[list[Any]], Any], summariser: Any) -> tuple[Message, ...]:
    """Play every run of *plan* on one transcript, each in a session of its own; returns the conversation."""
    messages: tuple[Message, ...] = ()
    for number, rounds in enumerate(plan.runs):
        with Session.open(path) as session:
            assert as_bytes(session.messages) == as_bytes(messages)
            loop = Loop(
                backend_of(rounds),
                tools=[look],
                session=session,
                compactor=compactor_of(plan, summariser),
                max_retries=2,
            )
            given: Any = plan.history if number == 0 else f"question {number}"
            run = finished(loop.run(given, context=plan.context), 10.0)
            messages = run.outcome.messages
            assert as_bytes(session.messages) == as_bytes(messages)
    return messages


def as_bytes(messages: Any) -> bytes:
    return b"\n".join(codec.dumps(message.to_dict()) for message in messages)


def fault_of(request: CompletionRequest) -> object:
    return request_fault(codec.loads(request_body(request, {"model": "m"}, tools_json(request.tools), "null")))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(plan=plans)
def test_any_compaction_leaves_a_valid_conversation_that_replays_the_same(plan: Plan) -> None:
    """Every request passes a strict server, the summariser's too; live and loaded are equal, byte for byte."""
    summariser = ScriptedBackend(chain(map(summary, plan.summaries), repeat("notes")))
    asked: list[ScriptedBackend] = []

    def backend_of(rounds: list[Any]) -> ScriptedBackend:
        asked.append(ScriptedBackend(played(rounds)))
        return asked[-1]

    with tempfile.TemporaryDirectory() as folder, no_backoff():
        path = Path(folder) / "run.jsonl"
        messages = live(plan, path, backend_of, summariser)

        assert as_bytes(Session.read(path).messages) == as_bytes(messages)
    for backend in (*asked, summariser):
        for request in backend.requests:
            assert fault_of(request) is None
    assert all(request.tools == () for request in summariser.requests)


@settings(max_examples=max(1, EXAMPLES // 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans)
def test_a_strict_server_accepts_every_request_over_http(plan: Plan) -> None:
    """The same, with real bytes on a real socket."""
    with tempfile.TemporaryDirectory() as folder, no_backoff():
        with FakeServer(lambda _: "notes", strict=True) as notes:
            servers: list[FakeServer] = []

            def backend_of(rounds: list[Any]) -> OpenAIBackend:
                turns = [entry for entry in rounds if not isinstance(entry, BackendError)]
                servers.append(FakeServer(played(turns), strict=True))
                return OpenAIBackend("m", base_url=servers[-1].url)

            try:
                live(plan, Path(folder) / "run.jsonl", backend_of, OpenAIBackend("s", base_url=notes.url))
            finally:
                for server in servers:
                    server.close()
        assert not [refusal for server in (*servers, notes) for refusal in server.refusals]
