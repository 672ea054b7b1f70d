"""A policy in a real run: events, the clock, the transcript, and what a cancel leaves behind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from judging import Human, one, request, tools

from llm_agent import Loop, Session, notices
from llm_agent.call_context import current_call
from llm_agent.events import AskAnswered, AskPending, Log, ToolResult
from llm_agent.policy import Policy
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished

WAIT = 5.0


def asking(*turns: Any) -> ScriptedBackend:
    return ScriptedBackend([*(turns or (call("fs_read", path="/srv/x"),)), "done"])


def first_ask(run: Any) -> AskPending:
    return next(event for event in run.events(timeout=WAIT) if isinstance(event, AskPending))


def test_a_question_stands_between_the_call_and_its_result() -> None:
    """AskPending, AskAnswered, ToolResult; the tool runs after the answer."""
    done = finished(Loop(asking(), tools=Policy(tools()), on_ask=Human("allow-once")).run("go"))

    order = [kind for kind in done.kinds if kind in ("tool-started", "ask-pending", "ask-answered", "tool-result")]
    assert order == ["tool-started", "ask-pending", "ask-answered", "tool-result"]
    assert done.of(AskPending)[0].tool == "fs_read"
    assert done.of(AskPending)[0].request["suggestion"] == {"tool": "fs_read", "decision": "allow", "under": "/srv"}
    assert done.of(ToolResult)[0].content == "done"


@pytest.mark.parametrize("on_ask", ["run", None])
def test_a_question_can_be_answered_from_another_thread(on_ask: Any) -> None:
    """`run.answer`, whether the loop or the policy says "run"."""
    policy = Policy(tools(), on_ask=on_ask)
    run = Loop(asking(), tools=policy, on_ask=None if on_ask else "run").run("go")

    assert run.answer(first_ask(run).ask_id, {"action": "always-allow"})

    assert finished(run).of(ToolResult)[0].content == "done"
    assert len(policy.grants()) == 1


def test_without_anybody_the_run_goes_on_with_a_refusal() -> None:
    """No on_ask anywhere: the model is told, and no question is in the events."""
    done = finished(Loop(asking(), tools=Policy(tools())).run("go"))

    assert "no permission prompt" in done.of(ToolResult)[0].content
    assert done.of(AskPending) == []
    assert done.outcome.ok


def test_the_deadline_stands_still_while_a_human_thinks() -> None:
    """And while a call waits for its turn behind another run's question."""
    gate, entered = Gate("x"), threading.Semaphore(0)

    def ask(_: Any) -> bool:
        entered.release()
        gate.wait()
        return True

    policy = Policy(tools(), on_ask=ask)
    first = Loop(asking(), tools=policy, tool_deadline=0.05).run("go")
    assert entered.acquire(timeout=WAIT)
    second = Loop(asking(), tools=policy, tool_deadline=0.05).run("go")
    threading.Event().wait(0.2)  # four deadlines long
    gate.open()

    assert [finished(run).of(ToolResult)[0].content for run in (first, second)] == ["done", "done"]


def grants_on_disk(path: Path) -> list[Any]:
    return Session.read(path).grants


def test_an_always_is_on_disk_while_its_call_still_runs(tmp_path: Path) -> None:
    """Before the tool is called, with no wiring by anybody; and it is written once."""
    path, found = tmp_path / "t.jsonl", []

    def tool(**_: Any) -> str:
        found.extend(grants_on_disk(path))
        return "done"

    policy = Policy(ScriptedProvider({"fs_read": tool}))
    with Session.create(path) as session:
        finished(Loop(asking(), tools=policy, session=session, on_ask=Human("always-allow")).run("go"))
        kinds = [envelope["type"] for envelope in session.envelopes()]

    assert found == policy.grants()
    assert found[0]["rule"] == {"tool": "fs_read", "decision": "allow", "under": "/srv"}
    assert kinds.count("grants") == 1
    assert kinds.index("grants") < kinds.index("tool-settled")


def test_what_was_answered_always_is_not_asked_tomorrow(tmp_path: Path) -> None:
    """Another policy, seeded from the session, asks nothing and writes nothing."""
    path = tmp_path / "t.jsonl"
    with Session.create(path) as session:
        finished(Loop(asking(), tools=Policy(tools()), session=session, on_ask=Human("always-allow")).run("go"))
    human = Human(False)
    with Session.load(path) as session:
        policy = Policy(tools(), grants=session.grants, on_ask=human)
        done = finished(Loop(asking(), tools=policy, session=session).run("again"))
        kinds = [envelope["type"] for envelope in session.envelopes()]

    assert [result.is_error for result in done.of(ToolResult)] == [False]
    assert human.asked == []
    assert kinds.count("grants") == 1


def test_a_grant_revoked_during_a_run_is_gone_from_the_transcript(tmp_path: Path) -> None:
    """The newest line is what holds."""
    path = tmp_path / "t.jsonl"

    def revoke(**_: Any) -> str:
        return str(policy.revoke(policy.grants()[0]["id"]))

    policy = Policy(ScriptedProvider({"fs_read": revoke}))
    with Session.create(path) as session:
        finished(Loop(asking(), tools=policy, session=session, on_ask=Human("always-allow")).run("go"))
        kinds = [envelope["type"] for envelope in session.envelopes()]

    assert grants_on_disk(path) == []
    assert kinds.count("grants") == 2


def test_an_always_that_comes_after_the_cancel_is_on_disk_too(tmp_path: Path) -> None:
    """The run is over and the tool does not run, but tomorrow nobody is asked again."""
    gate, provider = Gate("held"), tools()

    def ask(_: Any) -> str:
        gate.wait()
        return "always-allow"

    with Session.create(tmp_path / "t.jsonl") as session:
        run = Loop(asking(), tools=Policy(provider, on_ask=ask), session=session).run("go")
        first_ask(run)
        run.cancel()
        status = run.result(WAIT).status
        gate.open()
        assert run.drained(WAIT)

    assert status == "cancelled"
    assert provider.calls == []
    assert [grant["rule"]["tool"] for grant in grants_on_disk(tmp_path / "t.jsonl")] == ["fs_read"]


def test_an_always_that_comes_after_the_session_was_closed_disturbs_nobody(tmp_path: Path) -> None:
    """There is nowhere to write it; the policy has it, and the transcript can be loaded."""
    gate = Gate("held")

    def ask(_: Any) -> str:
        gate.wait()
        return "always-allow"

    policy = Policy(tools(), on_ask=ask)
    with Session.create(tmp_path / "t.jsonl") as session:
        run = Loop(asking(), tools=policy, session=session).run("go")
        first_ask(run)
        run.cancel()
        run.result(WAIT)
    gate.open()

    assert run.drained(WAIT)
    assert len(policy.grants()) == 1
    assert grants_on_disk(tmp_path / "t.jsonl") == []


@pytest.mark.parametrize("on_ask", ["run", "callable"])
def test_a_question_that_expires_is_answered_so_in_the_events(on_ask: str) -> None:
    """The model reads "not in time", the page finds the question closed."""
    gate = Gate("late")
    chosen: Any = "run" if on_ask == "run" else lambda _: gate.wait()
    still_open: list[Any] = []

    def look(_: Any) -> str:
        still_open.extend(run.pending_asks())
        return "done"

    turns = ScriptedBackend([call("fs_read", path="/srv/x"), look])
    run = Loop(turns, tools=Policy(tools(), ask_timeout=0.05), on_ask=chosen).run("go")

    done = finished(run)
    gate.open()

    assert done.of(AskAnswered)[0].answer == {"action": "expired"}
    assert done.of(ToolResult)[0].content == notices.DENIED_EXPIRED.format(tool="fs_read")
    assert still_open == []
    assert not run.answer(done.of(AskPending)[0].ask_id, True)


def test_a_cancel_while_a_page_is_asked_ends_the_run_at_once() -> None:
    """The question is taken back, and the tool never runs."""
    provider = tools()
    run = Loop(asking(), tools=Policy(provider), on_ask="run").run("go")
    first_ask(run)

    run.cancel()
    done = finished(run)

    assert done.outcome.status == "cancelled"
    assert run.pending_asks() == ()
    assert provider.calls == []


def test_a_cancel_while_a_prompt_is_open_ends_the_run_and_the_prompt_can_see_it() -> None:
    """The run does not wait for it; a yes that comes afterwards runs nothing."""
    provider, gate, seen = tools(), Gate("held"), []

    def ask(asked: Any) -> bool:
        gate.wait()
        context = current_call()
        seen.append((asked.cancelled.is_set(), context is not None and context.cancelled.is_set()))
        return True

    run = Loop(asking(), tools=Policy(provider), on_ask=ask).run("go")
    first_ask(run)
    run.cancel()
    outcome = run.result(WAIT)
    gate.open()

    assert run.drained(WAIT)
    assert outcome.status == "cancelled"
    assert seen == [(True, True)]
    assert provider.calls == []


def test_two_runs_that_share_a_policy_never_have_two_questions_open() -> None:
    """Their AskPending and AskAnswered alternate."""
    open_now, most = [], []
    lock = threading.Lock()

    def ask(asked: Any) -> bool:
        with lock:
            open_now.append(asked["call"]["id"])
            most.append(len(open_now))
        threading.Event().wait(0.005)
        with lock:
            open_now.remove(asked["call"]["id"])
        return True

    policy = Policy(tools(), on_ask=ask)
    turns = [call("fs_read", path="/srv/x"), call("web_get", url="http://a.org")]
    runs = [Loop(asking(*turns), tools=policy).run("go") for _ in range(3)]

    assert all(finished(run).outcome.ok for run in runs)
    assert most == [1] * 6


def test_a_group_of_concurrent_calls_is_asked_about_one_by_one() -> None:
    """Each question carries the id of its own call."""
    policy = Policy(tools())
    batch = [call("fs_read", path="/srv/x"), call("fs_read", path="/etc/x")]

    done = finished(Loop(asking(batch), tools=policy, concurrent_tools=["fs_*"], on_ask=Human(True, False)).run("go"))

    asks = done.of(AskPending)
    assert [ask.call_id for ask in asks] == [result.id for result in done.of(ToolResult)]
    assert [result.is_error for result in done.of(ToolResult)] == [False, True]


# -- a policy that is given the session ----------------------------------------------------------


def test_a_revoked_grant_does_not_come_back_with_the_next_run(tmp_path: Path) -> None:
    """Taken back while nothing runs, it is taken back on disk; the other grants stay."""
    path = tmp_path / "run.jsonl"
    with Session.create(path) as session:
        policy = Policy(tools(), grants=session, on_ask=Human("always-allow"))
        one(policy, request(path="/srv/x"))
        one(policy, request(path="/etc/x"))
        first, second = policy.grants()
        assert policy.revoke(first["id"])

    assert Session.read(path).grants == [second]
    with Session.load(path) as session:
        again = Policy(tools(), grants=session)
        assert one(again, request(path="/srv/x")).is_error
        assert not one(again, request(path="/etc/x")).is_error


def test_a_revoke_during_a_run_is_written_at_once(tmp_path: Path) -> None:
    """Also when no call is out, by a thread that has nothing to do with the run."""
    gate = Gate()
    with Session.create(tmp_path / "run.jsonl") as session:
        session.append_grants([{"tool": "fs_read", "decision": "allow"}])
        policy = Policy(tools(), grants=session)
        run = Loop(ScriptedBackend([[gate, "done"]]), provider=policy, session=session).run("go")
        assert policy.revoke(policy.grants()[0]["id"])
        written = session.grants
        gate.open()
        assert run.result(5).ok

    assert written == []


def test_a_session_whose_grants_nobody_was_given_is_a_warning(tmp_path: Path) -> None:
    """They bind nobody, and the first new "always" would stand alone; what expires is not missed."""
    with Session.create(tmp_path / "run.jsonl") as session:
        session.append_grants([{"tool": "fs_read", "decision": "allow"}])
        run = finished(Loop(ScriptedBackend(["done"]), provider=Policy(tools()), session=session).run("go"))
        told = [log.data for log in run.of(Log)]
        session.append_grants([])
        quiet = finished(Loop(ScriptedBackend(["done"]), provider=Policy(tools()), session=session).run("go"))

    assert told == ["the transcript has standing permissions, and the tools know none: give the policy the session"]
    assert quiet.of(Log) == []


def test_a_transcript_that_takes_no_grants_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A closed session: the grant holds in this process, and the log says what is wrong."""
    session = Session.in_memory()
    policy = Policy(tools(), grants=session, on_ask=Human("always-allow"))
    session.close()

    answer = one(policy, request(path="/srv/x"))

    assert not answer.is_error
    assert len(policy.grants()) == 1
    assert "grants could not be told" in caplog.text
