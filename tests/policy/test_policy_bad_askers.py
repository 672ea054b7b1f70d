"""Askers that do what no asker should: they refuse one call, and hold up nobody for ever."""

from __future__ import annotations

import contextvars
import signal
import threading
from time import monotonic
from typing import Any

import pytest
from judging import Human, denied, one, request, run, tools

from llm_agent import Loop, notices
from llm_agent.events import AskPending, ToolResult
from llm_agent.messages import ToolAnswer
from llm_agent.policy import AskLock, Grants, Policy
from llm_agent.testing import Gate, ScriptedBackend, call, call_context, finished

WAIT = 5.0
THREADS = 20


@pytest.mark.parametrize("timeout", [None, WAIT])
@pytest.mark.parametrize("failure", [SystemExit(3), GeneratorExit(), MemoryError()])
def test_an_asker_that_ends_itself_refuses_its_call_alone(failure: BaseException, timeout: float | None) -> None:
    """Its neighbours in the batch are judged, asked about and run as ever."""
    provider = tools()
    policy = Policy(provider, on_ask=Human(failure, True), ask_timeout=timeout)

    answers = run(policy, request("fs_read", "1"), request("fs_read", "2"))

    assert [answer.is_error for answer in answers] == [True, False]
    assert type(failure).__name__ in answers[0].content
    assert denied(answers[0])["by"] == "prompt"


def test_a_ctrl_c_while_somebody_is_asked_leaves_no_lock_behind() -> None:
    """The prompt is still shown on its own thread; when it has gone, the next question is asked."""
    gate, main = Gate("held"), threading.main_thread()

    def ask(asked: Any) -> bool:
        if asked["tool"] == "fs_write":
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGINT)
            gate.wait()
        return True

    policy = Policy(tools(), on_ask=ask, ask_timeout=WAIT)
    with pytest.raises(KeyboardInterrupt):
        one(policy, request("fs_write"))
    gate.open()

    assert not one(policy, request("fs_read")).is_error


def test_prompts_within_prompts_end_where_one_would_wait_for_itself() -> None:
    """Through two policies with a lock each, in a ring."""
    inner: list[ToolAnswer] = []
    first: Policy

    def ask_first(_: Any) -> bool:
        return not one(second, request("fs_write")).is_error

    def ask_second(_: Any) -> bool:
        inner.append(one(first, request("fs_list")))
        return True

    first, second = Policy(tools(), on_ask=ask_first), Policy(tools(), on_ask=ask_second)

    assert not one(first, request("fs_read")).is_error
    assert inner[0].content == notices.DENIED_REENTERED.format(tool="fs_list")


def test_a_prompt_that_asks_from_a_thread_of_its_own_does_not_wait_for_itself() -> None:
    """The thread runs in a copy of the prompt's context, as every thread of a call does."""
    inner: list[ToolAnswer] = []
    policy: Policy

    def ask(_: Any) -> bool:
        run_it = contextvars.copy_context().run
        thread = threading.Thread(target=run_it, args=(lambda: inner.append(one(policy, request("fs_write"))),))
        thread.start()
        thread.join(WAIT)
        return True

    policy = Policy(tools(), on_ask=ask)

    assert not one(policy, request("fs_read")).is_error
    assert inner[0].content == notices.DENIED_REENTERED.format(tool="fs_write")


def test_the_prompt_of_a_run_that_is_over_holds_the_next_one_up_no_longer_than_its_clock() -> None:
    """Nobody waits for that answer any more, but the screen is still taken: the next question expires unasked."""
    gate, cancelled, entered = Gate("stuck"), threading.Event(), threading.Event()

    def ask(_: Any) -> bool:
        entered.set()
        gate.wait()
        return True

    lock = AskLock()

    def first() -> None:
        with call_context(id="1", cancelled=cancelled):
            one(Policy(tools(), on_ask=ask, ask_lock=lock), request("fs_read", "1"))

    asking = threading.Thread(target=first)
    asking.start()
    assert entered.wait(WAIT)
    cancelled.set()

    refusal = one(Policy(tools(), on_ask=Human(True), ask_lock=lock, ask_timeout=0.05), request("fs_read", "2"))
    gate.open()
    asking.join(WAIT)

    assert denied(refusal)["by"] == "expired"


def test_waiting_for_a_turn_is_no_time_to_answer() -> None:
    """The clock of a question runs from when it is put, and then for all of its seconds."""
    gate, entered, lock = Gate("first"), threading.Event(), AskLock()

    def slow(_: Any) -> bool:
        entered.set()
        gate.wait()
        return True

    first = threading.Thread(target=one, args=(Policy(tools(), on_ask=slow, ask_lock=lock), request("fs_read", "1")))
    first.start()
    assert entered.wait(WAIT)
    opener = threading.Timer(0.3, gate.open)
    opener.start()

    second = one(Policy(tools(), on_ask=Human(True), ask_lock=lock, ask_timeout=0.2), request("fs_read", "2"))
    first.join(WAIT)
    opener.join(WAIT)

    assert not second.is_error


def test_an_answer_that_comes_after_its_time_is_nobodys() -> None:
    """Neither the call's it was about, nor the next one's; nothing of it is remembered."""
    gates, asked = [Gate("late"), Gate("next")], []

    def ask(each: Any) -> Any:
        asked.append(each["call"]["id"])
        if each["call"]["id"] == "1":
            gates[0].wait()
            return {"action": "always-allow", "rule": {"tool": "*"}}
        return False

    lock = AskLock()
    first = Policy(tools(), on_ask=ask, ask_timeout=0.05, ask_lock=lock)
    late = one(first, request("fs_read", "1"))
    gates[0].open()
    next_one = one(Policy(tools(), on_ask=ask, ask_timeout=WAIT, ask_lock=lock), request("fs_read", "2"))

    assert denied(late)["by"] == "expired"
    assert denied(next_one)["by"] == "human"
    assert asked == ["1", "2"]
    assert first.grants() == []


def test_what_an_asker_says_is_not_poured_into_the_conversation() -> None:
    """Nonsense of ten megabytes is quoted by its beginning; so is a name that a model made up."""
    nonsense = one(Policy(tools(), on_ask=Human("n" * 10_000_000)), request())
    rules = [{"tool": "*", "decision": "deny"}]
    named = one(Policy(tools(), rules), request("n" * 10_000, path="/srv/" + "x/" * 50_000))
    controls = one(Policy(tools(), rules), request("a\n\x1b[31mb\u202e"))

    assert max(len(nonsense.content), len(named.content)) < 3_000
    assert "\n" not in controls.content
    assert controls.content.isprintable()


@pytest.mark.parametrize("answer", ["always-allow", True, "always-deny"])
def test_many_runs_that_share_book_and_lock_ask_one_after_the_other(answer: Any) -> None:
    """Twenty runs: each call is answered, and an "always" has been asked for once."""
    open_now = most = asked = 0
    guard, pause = threading.Lock(), threading.Event()

    def ask(_: Any) -> Any:
        nonlocal open_now, most, asked
        with guard:
            open_now, asked = open_now + 1, asked + 1
            most = max(most, open_now)
        pause.wait(0.002)
        with guard:
            open_now -= 1
        return answer

    store, lock = Grants(), AskLock()
    runs = [
        Loop(
            ScriptedBackend([call("fs_read", path="/srv/x"), "done"]),
            tools=Policy(tools(), store=store, ask_lock=lock, on_ask=ask, ask_timeout=WAIT),
        ).run("go")
        for _ in range(THREADS)
    ]

    results = [finished(each).of(ToolResult)[0] for each in runs]

    assert [result.is_error for result in results] == [answer == "always-deny"] * THREADS
    assert (most, asked) == (1, THREADS if answer is True else 1)


def test_a_cancel_ends_a_run_that_waits_for_its_turn() -> None:
    """Another run's prompt may stay open for ever; this one ends, and is drained."""
    gate, entered, provider = Gate("held"), threading.Event(), tools()

    def ask(_: Any) -> bool:
        entered.set()
        gate.wait()
        return True

    policy = Policy(provider, on_ask=ask)
    first = Loop(ScriptedBackend([call("fs_read", path="/srv/x"), "done"]), tools=policy).run("go")
    assert entered.wait(WAIT)
    second = Loop(ScriptedBackend([call("fs_read", path="/etc/x"), "done"]), tools=policy).run("go")
    pause, patience = threading.Event(), monotonic() + WAIT
    while second.status.stage != "ask" and monotonic() < patience:
        pause.wait(0.002)

    second.cancel()
    done = finished(second)
    was_drained = second.drained(WAIT)
    gate.open()

    assert done.outcome.status == "cancelled"
    assert was_drained
    assert done.of(AskPending) == []
    assert finished(first).outcome.ok
    assert len(provider.calls) == 1
