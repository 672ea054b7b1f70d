"""MCP servers behind a loop: deadlines, cancels, questions of the run, recorded classes. Real processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from llm_agent import Loop, Policy, Registry, Session
from llm_agent.errors import ConfigError
from llm_agent.events import AskAnswered, AskPending, Log, ToolProgress, ToolResult, ToolStarted
from llm_agent.mcp import McpServer
from llm_agent.testing import ScriptedBackend, call

Raw = Callable[..., McpServer]
Seen = Callable[[str], list[dict[str, Any]]]


def looped(server: McpServer, script: list[Any], **options: Any) -> Loop:
    return Loop(backends=[ScriptedBackend(script)], tools=[server], **options)


def test_a_run_calls_a_server(raw: Raw, finished: Callable[..., Any]) -> None:
    """The answer is the tool's result; progress and logs of the call are events of the run."""
    done = finished(looped(raw(), [call("news"), "done"]).run("go"))

    assert [event.content for event in done.events if isinstance(event, ToolResult)] == ["told"]
    assert [event.progress for event in done.events if isinstance(event, ToolProgress)] == [1, 2.5]
    assert ({"disk": "full"}, "raw.disk") in [(log.data, log.logger) for log in done.events if isinstance(log, Log)]


def test_a_deadline_reaches_the_server(
    raw: Raw, seen: Seen, until: Callable[[Callable[[], bool]], bool], finished: Callable[..., Any]
) -> None:
    """A call past the run's deadline is cancelled at the server, and its effect is unknown."""
    done = finished(looped(raw(), [call("hang"), "done"], tool_deadline=0.3).run("go"))

    assert (done.outcome.ok, len(done.outcome.unknown)) == (True, 1)
    assert until(lambda: len(seen("notifications/cancelled")) == 1)


def test_a_call_whose_server_dies_is_unknown_to_the_run(raw: Raw, finished: Callable[..., Any]) -> None:
    """The model is told why, and whoever would ask again is told that it may repeat something."""
    done = finished(looped(raw(), [call("die"), "done"]).run("go"))

    [result] = [event for event in done.events if isinstance(event, ToolResult)]
    assert "Whether it took effect is unknown" in result.content
    assert [(op.tool, op.reason) for op in done.outcome.unknown] == [("die", "answer-lost")]


def test_a_call_that_was_refused_is_not_unknown(raw: Raw, finished: Callable[..., Any]) -> None:
    """The server itself says that it failed, or nothing was sent at all."""
    done = finished(
        looped(raw(), [[call("answer", fail=True), call("refuse"), call("no_such_tool")], "done"]).run("go")
    )

    assert done.outcome.unknown == ()


def test_a_cancel_of_the_run_reaches_the_server(raw: Raw, seen: Seen) -> None:
    """The run ends at once, the provider's call returns soon, and the server is told."""
    run = looped(raw(), [call("hang"), "done"]).run("go")
    next(event for event in run.events(timeout=5) if isinstance(event, ToolStarted))
    started = monotonic()
    run.cancel("enough")

    assert (run.result(5).status, run.drained(5), monotonic() - started < 2) == ("cancelled", True, True)


def test_a_question_of_a_server_waits_for_the_run_to_be_answered(raw: Raw) -> None:
    """With `on_ask="run"` the question is an AskPending, and `run.answer` answers the server."""
    run = looped(raw(), [call("ask"), "done"], on_ask="run").run("go")
    for event in run.events(timeout=5):
        if isinstance(event, AskPending):
            assert (event.tool, event.request["kind"]) == ("ask", "server-elicit")
            run.answer(event.ask_id, {"action": "accept", "content": {"name": "Ada"}})
        if isinstance(event, ToolResult):
            assert json.loads(event.content)["content"] == {"name": "Ada"}

    assert run.result(5).ok


def test_a_question_goes_through_a_policy(raw: Raw, finished: Callable[..., Any]) -> None:
    """With the policy's hook the question is one of its own: asked once, told once."""
    asked: list[Any] = []

    def human(request: Any) -> dict[str, Any]:
        asked.append((request["kind"], request.get("server")))
        return {"action": "accept", "content": {"name": "Ada"}}

    server = raw(on_elicit=lambda request: policy.elicit_hook(request))
    policy = Policy(server, [{"tool": "*", "decision": "allow"}], on_ask=human)
    done = finished(Loop(backends=[ScriptedBackend([call("ask"), "done"])], provider=policy).run("go"))

    told = [event.request["kind"] for event in done.events if isinstance(event, AskPending)]
    answers = [event.content for event in done.events if isinstance(event, ToolResult)]
    assert (asked, told) == ([("server-elicit", "raw")], ["server-elicit"])
    assert json.loads(answers[0])["content"] == {"name": "Ada"}


@pytest.mark.parametrize("protocol", ["auto", "handshake"])
def test_the_hook_of_a_policy_is_all_it_takes(
    sdk: Callable[..., McpServer], finished: Callable[..., Any], protocol: str
) -> None:
    """`on_elicit=policy.elicit_hook`, over a registry that gets its server later: AskPending, AskAnswered, answer."""
    registry = Registry()
    policy = Policy(registry, [{"tool": "*", "decision": "allow"}])
    registry.add(sdk(on_elicit=policy.elicit_hook, protocol=protocol), "who")
    accepted = {"action": "accept", "content": {"name": "Ada"}}
    backend = ScriptedBackend([call("who_ask"), "done"])
    done = finished(Loop(backends=[backend], provider=policy, on_ask=lambda _: accepted).run("go"))

    told = [(event.request["kind"], event.tool) for event in done.events if isinstance(event, AskPending)]
    answered = [event.answer for event in done.events if isinstance(event, AskAnswered)]
    results = [event.content for event in done.events if isinstance(event, ToolResult)]
    assert (told, answered, results) == ([("server-elicit", "ask")], [accepted], ["Ada"])


def test_a_policy_that_claims_answers_for_a_shared_server(raw: Raw, finished: Callable[..., Any]) -> None:
    """The claim is on the thread of the call: a question finds the policy whose call it is about."""
    shared = Policy(Registry(), [], on_ask=lambda _: {"action": "accept", "content": {"name": "nobody"}})
    server = raw(on_elicit=shared.elicit_hook)
    own = Policy(
        server,
        [{"tool": "*", "decision": "allow"}],
        on_ask=lambda _: {"action": "accept", "content": {"name": "Ada"}},
        claim_elicits=True,
    )
    done = finished(Loop(backends=[ScriptedBackend([call("ask"), "done"])], provider=own).run("go"))

    [answer] = [event.content for event in done.events if isinstance(event, ToolResult)]
    assert json.loads(answer)["content"] == {"name": "Ada"}


def test_a_claim_needs_no_other_wiring(raw: Raw, finished: Callable[..., Any]) -> None:
    """A server that was given nobody: its question goes to the human of the policy in front, not to the loop's."""
    policy = Policy(
        raw(),
        [{"tool": "*", "decision": "allow"}],
        on_ask=lambda _: {"action": "accept", "content": {"name": "Ada"}},
        claim_elicits=True,
    )
    backend = ScriptedBackend([call("ask"), "done"])
    done = finished(Loop(backends=[backend], provider=policy, on_ask=lambda _: {"action": "decline"}).run("go"))

    [answer] = [event.content for event in done.events if isinstance(event, ToolResult)]
    assert json.loads(answer)["content"] == {"name": "Ada"}
    assert [event.request["kind"] for event in done.events if isinstance(event, AskPending)] == ["server-elicit"]


def test_a_call_of_a_run_has_no_thread_that_watches_its_cancel(raw: Raw) -> None:
    """The event of the engine calls; only somebody else's must be looked at."""
    run = looped(raw(), [call("ask"), "done"], on_ask="run").run("go")
    asked = next(event for event in run.events(timeout=5) if isinstance(event, AskPending))

    names = {thread.name for thread in threading.enumerate()}
    run.answer(asked.ask_id, "decline")

    assert (run.result(5).ok, "llm-agent-cancel" in names) == (True, False)


def test_a_question_does_not_eat_the_deadline(raw: Raw) -> None:
    """The deadline of the call, and the clock of the request, stand still while a human thinks."""
    server = raw(request_timeout=0.4)
    run = looped(server, [call("ask"), "done"], on_ask="run", tool_deadline=0.4).run("go")
    asked = next(event for event in run.events(timeout=5) if isinstance(event, AskPending))
    with pytest.raises(TimeoutError):
        run.result(0.8)
    run.answer(asked.ask_id, "cancel")

    results = [event.content for event in run.events(timeout=5) if isinstance(event, ToolResult)]
    assert results == ['{"action": "cancel"}']


def test_the_transcript_knows_what_a_repeat_would_do(raw: Raw, finished: Callable[..., Any]) -> None:
    """The class of a call, by the server's annotation, is on its dispatched line."""
    session = Session.in_memory()
    finished(looped(raw(), [call("again"), call("drop"), "done"], session=session).run("go"))

    classes = [line["idempotency"] for line in map(flat, session.envelopes()) if "idempotency" in line]
    assert classes == ["idempotent", "destructive"]


def flat(envelope: Any) -> dict[str, Any]:
    """An envelope and what is in it as one mapping."""
    inner = {key: value for part in envelope.values() if isinstance(part, dict) for key, value in part.items()}
    return {**envelope, **inner}


def test_a_server_that_cannot_list_fails_the_run(raw: Raw, finished: Callable[..., Any]) -> None:
    """A shorter catalogue would be a lie: the run fails and says why."""
    done = finished(looped(raw("lists-nothing"), ["never asked"]).run("go"))

    assert "the shelf is on fire" in (done.outcome.error or "")


def test_a_class_is_no_server() -> None:
    """The class in the place of a connection is refused as any class is."""
    with pytest.raises(ConfigError, match="class"):
        Loop(backends=[ScriptedBackend([])], tools=[McpServer])
