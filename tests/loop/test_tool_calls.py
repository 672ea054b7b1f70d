"""Tool calls: answers of any shape, deadlines, groups, asks, and what is never claimed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_agent import notices
from llm_agent.call_context import current_call
from llm_agent.errors import ConfigError
from llm_agent.events import AskAnswered, AskPending, Log, ToolAbandoned, ToolProgress, ToolResult
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, ToolAnswer, ToolRequest
from llm_agent.session.session import Session
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished

WAIT = 5.0


class Provider:
    """One tool `t`, answered by a function of the calls."""

    def __init__(self, answer: Any, names: tuple[str, ...] = ("t",)) -> None:
        self.answer = answer
        self.names = names
        self.batches: list[list[ToolRequest]] = []

    def tools_for_llm(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": name}} for name in self.names]

    def execute_tool_calls(self, calls: list[ToolRequest]) -> Any:
        self.batches.append(calls)
        return self.answer(calls)


def results(loop: Loop) -> list[ToolResult]:
    return finished(loop.run("go")).of(ToolResult)


def one_call(answer: Any) -> ToolResult:
    return results(Loop(ScriptedBackend([call("t"), "done"]), tools=Provider(answer)))[0]


@pytest.mark.parametrize(
    ("answer", "content", "is_error"),
    [
        (["text"], "text", False),
        ([{"content": "m", "is_error": True}], "m", True),
        ([{"content": None}], "", False),
        ([{"content": [1, 2]}], "[1,2]", False),
        ([ToolAnswer("", "a")], "a", False),
        ([42], "42", False),
        ("lone", "lone", False),
        (["one", "surplus"], "one", False),
        ([], notices.NO_RESULT, True),
        (None, notices.NO_RESULT, True),
        ([None], notices.NO_RESULT, True),
        (["a\ud800"], "a\ufffd", False),
    ],
)
def test_answers_of_any_shape_are_understood(answer: Any, content: str, is_error: bool) -> None:
    """Short, surplus, bare, mapped: one result per call, always."""
    result = one_call(lambda _: answer)

    assert (result.content, result.is_error) == (content, is_error)


def test_a_provider_that_raises_answers_every_call_with_an_error() -> None:
    """The run goes on; the failure's first line is told."""

    def fail(_: Any) -> Any:
        raise RuntimeError("pipe broke\nsecond line")

    result = one_call(fail)

    assert result.is_error
    assert result.content == notices.PROVIDER_RAISED.format(failure="RuntimeError: pipe broke")


def test_a_lazy_answer_is_worked_off_on_the_tool_thread() -> None:
    """Else a deadline could never end it."""
    threads: list[str] = []

    def lazy(_: Any) -> Iterator[str]:
        threads.append(threading.current_thread().name)
        yield "late"

    assert one_call(lazy).content == "late"
    assert threads[0].startswith("llm-agent-tools-")


def test_a_wrong_id_is_corrected_and_logged() -> None:
    """The model's id is the one that counts."""
    provider = Provider(lambda _: [{"content": "x", "tool_call_id": "other"}])

    run = finished(Loop(ScriptedBackend([call("t"), "done"]), tools=provider).run("go"))

    data = run.of(Log)[0].data
    assert isinstance(data, dict)
    assert (data["provider-id"], data["call-index"], data["tool"]) == ("other", 0, "t")
    assert run.of(ToolResult)[0].id == run.outcome.messages[-2].tool_call_id


@pytest.mark.parametrize(
    ("request_", "notice"),
    [
        (ToolRequest("c", "t", '{"path": "a'), "not valid JSON"),
        (ToolRequest("c", "t", "[1]"), "a list"),
        (ToolRequest("c", "", "{}"), notices.NAMELESS_CALL),
    ],
)
def test_an_unreadable_call_is_answered_by_the_engine(request_: ToolRequest, notice: str) -> None:
    """No provider sees half-written arguments; the model is told what was wrong."""
    provider = Provider(lambda calls: ["ran"] * len(calls))
    backend = ScriptedBackend([[Delta(tool_calls=(request_,))], "done"])

    result = results(Loop(backend, tools=provider))[0]

    assert provider.batches == []
    assert result.is_error
    assert notice in result.content


@pytest.mark.parametrize("arguments", [None, "", "  ", "null", "{}"])
def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    """However a model spells that there are none."""
    provider = Provider(lambda calls: [str(call.args) for call in calls])
    backend = ScriptedBackend([[Delta(tool_calls=(ToolRequest("c", "t", arguments),))], "done"])

    assert results(Loop(backend, tools=provider))[0].content == "{}"


def test_a_call_that_was_answered_is_not_unknown() -> None:
    """Whether it worked or failed: its end is known, so asking again repeats nothing unannounced."""
    tools = ScriptedProvider({"works": "1", "fails": OSError("disk full")})

    outcome = finished(Loop(ScriptedBackend([[call("works"), call("fails")], "done"]), tools=tools).run("go")).outcome

    assert outcome.unknown == ()
    assert outcome.safe_to_retry


def test_a_provider_may_say_that_an_outcome_is_unknown(tmp_path: Path) -> None:
    """What it tells goes to the model; the transcript, the outcome and a later load know that nobody knows."""
    lost = ToolAnswer("", "No answer came.", is_error=True, outcome_unknown=True)
    with Session.create(tmp_path / "run.jsonl") as session:
        loop = Loop(ScriptedBackend([call("send"), "done"]), tools=ScriptedProvider({"send": lost}), session=session)
        run = finished(loop.run("go"))
        lines = session.envelopes()

    assert [(op.tool, op.reason) for op in run.outcome.unknown] == [("send", "answer-lost")]
    assert not run.outcome.safe_to_retry
    assert [(result.content, result.is_error) for result in run.of(ToolResult)] == [("No answer came.", True)]
    [settled] = [line["payload"] for line in lines if line["type"] == "tool-settled"]
    assert (settled["outcome"], settled["reason"]) == ("outcome-unknown", "answer-lost")
    assert "result-digest" not in settled
    [told] = [line["payload"] for line in lines if line["type"] == "message" and line["payload"]["role"] == "tool"]
    assert told["outcome-unknown"] is True
    assert "is-error" not in told
    assert Session.read(tmp_path / "run.jsonl").pending_tool_operations() == []


# -- deadlines -----------------------------------------------------------------------------


def test_a_deadline_gives_the_call_up_and_the_run_goes_on() -> None:
    """Its outcome is unknown, never failed; what is behind it did not run."""
    gate = Gate()
    provider = ScriptedProvider({"slow": gate, "next": "ran"})
    backend = ScriptedBackend([[call("slow"), call("next")], "done"])

    run = Loop(backend, tools=provider, tool_deadline=0.05).run("go")
    outcome = run.result(WAIT)

    assert outcome.ok
    assert [c.name for c in provider.calls] == ["slow"]
    assert [m.text for m in outcome.messages if m.role == "tool"] == [
        notices.UNKNOWN_DEADLINE,
        notices.ABANDONED_DEADLINE,
    ]
    assert [(op.tool, op.reason) for op in outcome.unknown] == [("slow", "deadline")]
    assert outcome.safe_to_retry is False
    assert [detached.tool for detached in run.detached] == ["slow"]
    assert run.drained(0) is False
    gate.open()
    abandoned = finished(run).of(ToolAbandoned)
    assert [(e.dispatched, e.reason) for e in abandoned] == [(True, "deadline"), (False, "deadline")]
    assert run.detached == ()


def test_deadlines_may_differ_by_tool() -> None:
    """The first pattern that matches decides; None is no deadline."""
    gate = Gate()
    backend = ScriptedBackend([[call("fast_a")], [call("slow")], "done"])
    provider = ScriptedProvider({"fast_a": gate, "slow": "ran"})

    run = Loop(backend, tools=provider, tool_deadline={"slow": None, "fast_*": 0.05}).run("go")
    outcome = run.result(WAIT)
    gate.open()

    assert [m.text for m in outcome.messages if m.role == "tool"] == [notices.UNKNOWN_DEADLINE, "ran"]


def test_a_tool_is_told_that_nobody_waits_any_more() -> None:
    """A cooperative tool stops by itself."""
    told = threading.Event()

    def stubborn(_: Any) -> Any:
        context = current_call()
        assert context is not None
        assert context.deadline is not None
        if context.cancelled.wait(WAIT):
            told.set()
        return ["late"]

    backend = ScriptedBackend([call("t"), "done"])

    finished(Loop(backend, tools=Provider(stubborn), tool_deadline=0.05).run("go"))

    assert told.is_set()


def test_too_many_stuck_calls_stop_further_ones() -> None:
    """Abandoned threads leak until they return, so their number is bounded."""
    gate = Gate()
    backend = ScriptedBackend([call("t", n=1), call("t", n=2), call("t", n=3), "done"])
    provider = ScriptedProvider({"t": gate})

    run = Loop(backend, tools=provider, tool_deadline=0.02, max_abandoned_calls=2).run("go")
    outcome = run.result(WAIT)
    gate.open()

    texts = [m.text for m in outcome.messages if m.role == "tool"]
    assert texts[2] == notices.NOT_RUN_TOO_MANY_DETACHED.format(running=2)
    assert len(provider.calls) == 2


def test_what_a_given_up_call_says_is_dropped() -> None:
    """Late progress and logs belong to no event of the run."""
    gate, said = Gate(), threading.Event()

    def late(_: Any) -> Any:
        context = current_call()
        assert context is not None
        gate.wait()
        context.progress(1.0)
        context.log("info", "late")
        said.set()
        return ["late"]

    hold = Gate("done")
    run = Loop(ScriptedBackend([call("t"), hold]), tools=Provider(late), tool_deadline=0.05).run("go")
    hold.wait_entered(WAIT)
    gate.open()
    assert said.wait(WAIT)
    hold.open()

    assert not finished(run).of(ToolProgress) + finished(run).of(Log)


# -- asks ----------------------------------------------------------------------------------


def asking(request: dict[str, Any], asker: Any = None) -> Provider:
    def ask(_: Any) -> Any:
        context = current_call()
        assert context is not None
        return [str(context.ask(request, asker))]

    return Provider(ask)


def test_an_ask_is_framed_and_answered_through_the_loop() -> None:
    """AskPending, the asker, AskAnswered."""
    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=asking({"tool": "t"}), on_ask=lambda request: "yes")

    run = finished(loop.run("go"))

    assert run.of(AskPending)[0].tool == "t"
    assert run.of(AskPending)[0].ask_id == run.of(AskAnswered)[0].ask_id is not None
    assert run.of(AskAnswered)[0].answer == "yes"
    assert run.of(ToolResult)[0].content == "yes"


def test_an_asker_of_its_own_wins() -> None:
    """A policy may bring its own; the loop's is only the default."""
    provider = asking({}, lambda request: "mine")

    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=provider, on_ask=lambda request: "the loop's")

    assert results(loop)[0].content == "mine"


def test_an_ask_without_anybody_to_answer_is_an_error_of_the_call() -> None:
    """Headless is said, not guessed."""
    result = results(Loop(ScriptedBackend([call("t"), "done"]), tools=asking({})))[0]

    assert result.is_error
    assert "on_ask" in result.content


def test_an_asker_that_raises_is_seen_as_unanswered() -> None:
    """The event has no answer; the tool gets the exception."""

    def gone(_: Any) -> Any:
        raise KeyError("user went home")

    run = finished(Loop(ScriptedBackend([call("t"), "done"]), tools=asking({}), on_ask=gone).run("go"))

    assert "answer" not in run.of(AskAnswered)[0].to_dict()
    assert run.of(ToolResult)[0].is_error


def test_a_deadline_stands_still_while_a_human_is_asked() -> None:
    """An ask longer than the deadline fires nothing; the same time without an ask would."""
    waited = threading.Event()

    def slow_human(_: Any) -> str:
        waited.wait(0.3)
        return "at last"

    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=asking({}), on_ask=slow_human, tool_deadline=0.1)

    assert results(loop)[0].content == "at last"


def test_an_ask_is_answered_from_another_thread() -> None:
    """With on_ask="run" the question is on the desk before it is announced."""
    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=asking({"tool": "t", "why": "w"}), on_ask="run")
    run = loop.run("go")
    for event in run.events(timeout=WAIT):
        if isinstance(event, AskPending):
            assert event.ask_id is not None
            assert run.status.stage == "ask"
            assert [ask.request["why"] for ask in run.pending_asks()] == ["w"]
            assert run.answer(event.ask_id, {"action": "once"}) is True
            assert run.answer(event.ask_id, "again") is False

    assert finished(run).of(AskAnswered)[0].answer == {"action": "once"}
    assert run.answer("unknown", "x") is False


def test_an_empty_ask_config_is_refused_when_the_loop_is_made() -> None:
    """A typo in on_ask must not surface in the middle of a run."""
    with pytest.raises(ConfigError, match="on_ask"):
        Loop(ScriptedBackend([]), on_ask="Run")  # type: ignore[arg-type]  # the slip under test


# -- groups --------------------------------------------------------------------------------


def test_neighbours_share_one_provider_call() -> None:
    """Consecutive matching calls form a group; order is never changed."""
    provider = Provider(lambda calls: [c.name for c in calls], ("task_a", "task_b", "read"))
    backend = ScriptedBackend([[call("task_a"), call("task_b"), call("read"), call("task_a")], "done"])

    run = finished(Loop(backend, tools=provider, concurrent_tools=["task_*"]).run("go"))

    assert [[c.name for c in batch] for batch in provider.batches] == [["task_a", "task_b"], ["read"], ["task_a"]]
    assert [r.content for r in run.of(ToolResult)] == ["task_a", "task_b", "read", "task_a"]


def test_a_groups_answers_are_paired_by_id_first() -> None:
    """A provider that answers in its own order is understood."""
    provider = Provider(lambda calls: [{"content": c.name, "tool_call_id": c.id} for c in reversed(calls)], ("a", "b"))
    backend = ScriptedBackend([[call("a"), call("b")], "done"])

    run = finished(Loop(backend, tools=provider, concurrent_tools=["*"]).run("go"))

    assert [(r.name, r.content) for r in run.of(ToolResult)] == [("a", "a"), ("b", "b")]


def test_a_short_group_answer_leaves_the_rest_unanswered() -> None:
    """Nothing is invented for a call the provider did not answer."""
    provider = Provider(lambda calls: ["only one"], ("a", "b"))
    backend = ScriptedBackend([[call("a"), call("b")], "done"])

    run = finished(Loop(backend, tools=provider, concurrent_tools=["*"]).run("go"))

    assert [r.content for r in run.of(ToolResult)] == ["only one", notices.NO_RESULT]


# -- hooks for what lives outside a call ---------------------------------------------------------


def test_hooks_speak_for_the_call_in_flight_only() -> None:
    """Before, after and between calls they say nothing; within one they are its events."""
    loop: Loop

    def through_hooks(calls: list[ToolRequest]) -> Any:
        done = threading.Event()

        def outside() -> None:  # a reader thread: no contextvar
            loop.progress_hook({"tool-call-id": calls[0].id, "progress": 1, "total": 4, "message": "quarter"})
            loop.progress_hook({"tool-call-id": "elsewhere", "progress": 2})
            loop.progress_hook({"progress": 2})
            loop.log_hook({"level": "notice", "logger": "srv", "data": {"k": 1}})
            loop.log_hook({})
            done.set()

        threading.Thread(target=outside, daemon=True).start()
        assert done.wait(WAIT)
        return [str(loop.wrap_ask(lambda request: "asked")({"tool": "t"}))]

    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=Provider(through_hooks))
    loop.log_hook({"data": "before any run"})
    assert loop.wrap_ask(lambda request: "alone")({}) == "alone"

    run = finished(loop.run("go"))
    loop.log_hook({"data": "after the run"})

    assert [(p.progress, p.total, p.message) for p in run.of(ToolProgress)] == [(1.0, 4.0, "quarter")]
    assert [(log.level, log.logger, log.data) for log in run.of(Log)] == [
        ("notice", "srv", {"k": 1}),
        ("info", None, ""),
    ]
    assert run.of(AskAnswered)[0].answer == "asked"


def test_data_of_the_run_reaches_the_tool() -> None:
    """What only the application knows needs no global."""
    provider = Provider(lambda _: [current_call().data["user"]])  # type: ignore[union-attr]  # within a call

    run = finished(Loop(ScriptedBackend([call("t"), "done"]), tools=provider).run("go", data={"user": "ada"}))

    assert run.of(ToolResult)[0].content == "ada"
