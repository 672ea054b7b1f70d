"""A run and its transcript: what is written when, resumed by whom, and refused why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_agent import (
    ConfigError,
    Delta,
    HistoryMismatch,
    Loop,
    Message,
    RunInProgress,
    Session,
    TranscriptError,
    UnansweredCalls,
    notices,
)
from llm_agent.events import Log, TurnCommitted
from llm_agent.messages import ToolRequest, Usage
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished

WAIT = 5.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


@pytest.fixture
def session(path: Path) -> Iterator[Session]:
    with Session.open(path) as opened:
        yield opened


def types(session: Session) -> list[str]:
    return [envelope["type"] for envelope in session.envelopes()]


def payloads(session: Session, kind: str) -> list[dict[str, Any]]:
    return [envelope["payload"] for envelope in session.envelopes() if envelope["type"] == kind]


def test_lines_are_written_in_their_pinned_order(session: Session) -> None:
    """Dispatched before the call, the message before the settle, one call after the other."""
    backend = ScriptedBackend([[call("a"), call("b")], "done"])

    finished(Loop(backend, tools=ScriptedProvider({"a": "1", "b": "2"}), session=session).run("go"))

    assert types(session) == [
        "session-meta", "message", "message", "tool-dispatched", "message", "tool-settled",
        "tool-dispatched", "message", "tool-settled", "message",
    ]  # fmt: skip


def test_a_settle_line_says_how_long_the_call_took(session: Session) -> None:
    """In seconds, from the moment it was handed over."""
    finished(Loop(ScriptedBackend([call("a"), "done"]), tools=ScriptedProvider({"a": "1"}), session=session).run("go"))

    (settled,) = payloads(session, "tool-settled")
    assert 0 <= settled["duration"] < WAIT


def test_a_turn_is_on_disk_before_it_is_announced(session: Session, path: Path) -> None:
    """Whoever sees TurnCommitted finds the line under its id."""
    run = Loop(ScriptedBackend(["said"]), session=session).run("go")

    found = [
        event.message_id in Session.read(path).message_ids
        for event in run.events(timeout=WAIT)
        if isinstance(event, TurnCommitted)
    ]

    assert found == [True]


def test_extras_stand_beside_the_turn_and_not_in_it(session: Session) -> None:
    """Reasoning, finish reason and usage are for the record."""
    delta = Delta("said", reasoning="why", finish_reason="stop", usage=Usage(prompt_tokens=3))

    finished(Loop(ScriptedBackend([[delta]]), session=session).run("go"))

    line = payloads(session, "message")[-1]
    assert (line["reasoning"], line["finish-reason"], line["usage"]) == ("why", "stop", {"prompt-tokens": 3})


def test_outcomes_of_calls_are_told_apart_on_disk(session: Session) -> None:
    """Error, unknown and never dispatched each have their own mark, and none has another's."""
    gate = Gate()
    provider = ScriptedProvider({"bad": ValueError("no"), "slow": gate, "next": "never"})
    backend = ScriptedBackend([[call("bad"), call("slow"), call("next")], "done"])
    run = Loop(backend, tools=provider, session=session, tool_deadline=0.05).run("go")
    run.result(WAIT)
    gate.open()
    finished(run)

    marks = [
        {key for key in ("is-error", "outcome-unknown", "abandoned", "cancelled") if key in line}
        for line in payloads(session, "message")
        if line["role"] == "tool"
    ]
    assert marks == [{"is-error"}, {"outcome-unknown"}, {"abandoned"}]
    settled = payloads(session, "tool-settled")
    assert [(line["outcome"], line.get("reason")) for line in settled] == [
        ("failed", None),
        ("outcome-unknown", "deadline"),
    ]
    assert "result-digest" not in settled[1]


def test_text_continues_what_the_session_holds(session: Session) -> None:
    """A str is the next user message."""
    backend = ScriptedBackend(["one", "two"])
    loop = Loop(backend, session=session, system_prompt="Be brief.")

    finished(loop.run("first"))
    finished(loop.run("second"))

    assert [m.text for m in backend.requests[1].messages] == ["Be brief.", "first", "one", "second"]
    assert [m.text for m in session.messages] == ["Be brief.", "first", "one", "second", "two"]


def test_tomorrow_in_another_process_the_conversation_goes_on(path: Path) -> None:
    """Closed, loaded, continued: nothing is written twice."""
    with Session.open(path) as today:
        finished(Loop(ScriptedBackend(["one"]), session=today).run("first"))
    backend = ScriptedBackend(["two"])
    with Session.open(path) as tomorrow:
        finished(Loop(backend, session=tomorrow).run("second"))
        lines = types(tomorrow)

    assert [m.text for m in backend.requests[0].messages] == ["first", "one", "second"]
    assert lines == ["session-meta"] + ["message"] * 4


@pytest.mark.parametrize(
    "messages",
    [
        [Message.user("other"), Message.assistant("one"), Message.user("next")],
        [Message.user("first")],
        [Message("user", "first", sticky=True), Message.assistant("one"), Message.user("next")],
    ],
)
def test_a_contradicted_history_fails_the_run_and_writes_nothing(session: Session, messages: list[Message]) -> None:
    """Identity is more than prose; the way out is named."""
    finished(Loop(ScriptedBackend(["one"]), session=session).run("first"))
    before = types(session)

    run = finished(Loop(ScriptedBackend([]), session=session).run(messages))

    assert run.kinds == ["run-started", "run-failed"]
    assert isinstance(run.outcome.exception, HistoryMismatch)
    assert "session.messages" in (run.outcome.error or "")
    assert types(session) == before


def test_a_failing_disk_ends_the_run_and_claims_nothing(session: Session) -> None:
    """What could not be written is not in the conversation either."""
    loop = Loop(ScriptedBackend([lambda _: session.close() or "said"]), session=session)

    run = finished(loop.run("go"))

    assert isinstance(run.outcome.exception, TranscriptError)
    assert [m.text for m in run.outcome.messages] == ["go"]


# -- unanswered calls and resume -------------------------------------------------------------


def crashed(session: Session, *, dispatched: bool) -> None:
    """Leave a transcript as a crash would."""
    session.append_message(Message.user("go"))
    session.append_message(Message.assistant("", [ToolRequest("c1", "t", "{}")]))
    if dispatched:
        session.append_tool_dispatched(call_id="c1", tool="t", arguments="{}")


def test_a_session_with_unanswered_calls_is_refused(session: Session) -> None:
    """In the caller's thread, with the calls and the way out."""
    crashed(session, dispatched=True)

    with pytest.raises(UnansweredCalls, match="repair") as caught:
        Loop(ScriptedBackend([]), session=session).run("next")

    assert caught.value.calls == ("c1",)


@pytest.mark.parametrize(
    ("dispatched", "notice"), [(True, notices.REPAIR_UNKNOWN), (False, notices.REPAIR_DID_NOT_RUN)]
)
def test_resume_answers_honestly_and_goes_on(session: Session, dispatched: bool, notice: str) -> None:
    """No new user turn, and no call is run again."""
    crashed(session, dispatched=dispatched)
    backend, provider = ScriptedBackend(["I will look."]), ScriptedProvider({"t": "ran again"})

    outcome = finished(Loop(backend, tools=provider, session=session).resume()).outcome

    assert [m.text for m in backend.requests[0].messages if m.role == "tool"] == [notice]
    assert provider.calls == []
    assert outcome.final == "I will look."


def test_resume_is_refused_when_nobody_waits_for_a_reply(session: Session) -> None:
    """The last word was the model's."""
    loop = Loop(ScriptedBackend(["done"]), session=session)
    finished(loop.run("go"))

    with pytest.raises(ConfigError, match="waits for no reply"):
        loop.resume()


# -- one run per session -----------------------------------------------------------------------


def test_two_loops_cannot_run_on_one_session_at_once(session: Session) -> None:
    """The second is refused while the first has no result, and admitted afterwards."""
    gate = Gate("said")
    first = Loop(ScriptedBackend([gate]), session=session).run("go")
    gate.wait_entered(WAIT)
    second = Loop(ScriptedBackend(["more"]), session=session)

    with pytest.raises(RunInProgress, match="session"):
        second.run("again")

    gate.open()
    first.result(WAIT)
    assert finished(second.run("again")).outcome.final == "more"


def test_a_session_can_be_closed_with_its_run(path: Path) -> None:
    """Before the result can be read, so the next one may open the file at once."""
    run = Loop(ScriptedBackend(["said"]), session=Session.open(path), close_session=True).run("go")
    run.result(WAIT)

    with Session.open(path) as again:
        assert [m.text for m in again.messages] == ["go", "said"]


# -- grants ------------------------------------------------------------------------------------


class Granting(ScriptedProvider):
    """A provider with standing permissions that its tool may change."""

    def __init__(self, change: Any) -> None:
        super().__init__({"t": change, "next": "ran"})
        self.standing: list[Any] = [{"tool": "old"}]

    def grants(self) -> list[Any]:
        return list(self.standing)


def test_a_new_grant_is_on_disk_before_the_next_call(session: Session) -> None:
    """A crash must not ask again what was answered for good."""
    found: list[list[Any]] = []

    def grant() -> str:
        provider.standing = [{"tool": "new"}]
        return "ok"

    provider = Granting(grant)
    provider._tools["next"] = [lambda: found.append(session.grants)]  # type: ignore[list-item]  # a probe

    backend = ScriptedBackend([[call("t"), call("next")], "done"])
    finished(Loop(backend, tools=provider, session=session).run("go"))

    assert found == [[{"tool": "new"}]]
    assert types(session).count("grants") == 1


def test_unchanged_grants_are_not_written(session: Session) -> None:
    """What was there at the start is no change of this run."""
    finished(Loop(ScriptedBackend([call("t"), "done"]), tools=Granting("ok"), session=session).run("go"))

    assert "grants" not in types(session)


def test_the_grant_hook_writes_while_the_call_still_runs(session: Session) -> None:
    """And the settle behind it writes nothing twice."""
    loop: Loop
    found: list[list[Any]] = []

    def grant() -> str:
        provider.standing = [{"tool": "always"}]
        loop.grant_hook("anything")
        found.append(session.grants)
        return "ok"

    provider = Granting(grant)
    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=provider, session=session)

    finished(loop.run("go"))

    assert found == [[{"tool": "always"}]]
    assert types(session).count("grants") == 1


def test_grants_are_written_on_the_way_out_of_a_cancelled_run(session: Session) -> None:
    """Cancelling does not take back what was allowed."""
    run: Any = None
    started = Gate()

    def grant() -> str:
        started.wait()
        provider.standing = [{"tool": "new"}]
        run.cancel()
        return "ok"

    provider = Granting(grant)
    run = Loop(ScriptedBackend([call("t")]), tools=provider, session=session).run("go")
    started.open()
    finished(run)

    assert session.grants == [{"tool": "new"}]


def test_a_provider_that_cannot_tell_its_grants_loses_no_run(session: Session) -> None:
    """Raising means nothing to report."""

    class Broken(ScriptedProvider):
        def grants(self) -> list[Any]:
            raise RuntimeError("locked")

    run = finished(Loop(ScriptedBackend([call("t"), "done"]), tools=Broken({"t": "1"}), session=session).run("go"))

    assert run.outcome.ok
    assert run.of(Log) == []


def test_a_cancel_does_not_wait_for_the_grants_of_the_start(session: Session) -> None:
    """A provider that cannot tell them now holds up nobody who wants to leave."""
    gate = Gate()

    class Slow(ScriptedProvider):
        def grants(self) -> list[Any]:
            gate.wait()
            return []

    run = Loop(ScriptedBackend([]), tools=Slow({"t": "1"}), session=session).run("go")
    gate.wait_entered(WAIT)
    run.cancel()

    # Well below the second that a provider is given to tell them.
    assert run.result(0.8).status == "cancelled"
    gate.open()


def test_idempotency_rules_label_the_dispatch_line(session: Session) -> None:
    """First match wins; nothing is retried on their strength."""
    rules = [{"tool": "re*", "idempotency": "read-only"}, {"tool": "*", "idempotency": "destructive"}]
    backend = ScriptedBackend([[call("read"), call("write")], "done"])
    provider = ScriptedProvider({"read": "1", "write": "2"})

    finished(Loop(backend, tools=provider, session=session, idempotency_rules=rules).run("go"))

    assert [line["idempotency"] for line in payloads(session, "tool-dispatched")] == ["read-only", "destructive"]
