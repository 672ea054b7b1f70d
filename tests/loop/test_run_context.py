"""What is true now: in every request of a run, in no history, on record once."""

from __future__ import annotations

from llm_agent.events import RunStarted
from llm_agent.loop.loop import Loop
from llm_agent.run_context import RunContext
from llm_agent.session.session import Session
from llm_agent.testing import ScriptedBackend, ScriptedProvider, call, finished


def test_a_context_stands_around_every_request_and_in_no_history() -> None:
    """Head in front, facts behind; the conversation knows nothing of them."""
    backend = ScriptedBackend([call("look"), "done"])
    context = RunContext(head_sections={"rules": "Be brief."}, facts={"date": "2026-12-02"})
    loop = Loop(backend, provider=ScriptedProvider({"look": "x"}))

    run = finished(loop.run("go", context=context))

    for request in backend.requests:
        assert request.messages[0].text == "Be brief."
        assert "- date: 2026-12-02" in request.messages[-1].text
    assert [message.role for message in run.outcome.messages] == ["user", "assistant", "tool", "assistant"]
    assert [event.context_digest for event in run.of(RunStarted)] == [context.digest]


def test_the_transcript_has_each_context_once_and_a_resumed_run_may_have_another() -> None:
    """The seed is the conversation alone: a context never stands in the way of going on."""
    session = Session.in_memory()
    loop = Loop(ScriptedBackend(["one", "two", "three"]), session=session)

    finished(loop.run("a", context="It is Monday."))
    finished(loop.run("b", context="It is Monday."))
    run = finished(loop.run("c", context="It is Tuesday."))

    assert run.outcome.ok
    lines = [line["payload"] for line in session.envelopes() if line["type"] == "run-context"]
    assert len(lines) == 3
    assert sum("Monday" in str(line) for line in lines) == 1
    assert run.of(RunStarted)[0].context_digest == lines[2]["digest"]
