"""One question at a time: what is asked, what an answer may be, and what any other answer comes to."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from judging import Human, denied, one, request, run, tools

from llm_agent import notices
from llm_agent.call_context import current_call
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.policy import AskLock, Policy
from llm_agent.testing import Gate, call_context

WAIT = 5.0


def test_the_question_says_all_there_is_to_know() -> None:
    """Exactly these keys; paths absolute, arguments whole, the parent folder suggested."""
    human = Human(True)
    rule = {"tool": "fs_write", "decision": "ask", "note": "changes files"}

    one(Policy(tools(), [rule], roots={"fs_": "/srv"}, on_ask=human), request("fs_write", path="a/b.txt", text="x"))

    assert human.asked == [
        {
            "kind": "permission",
            "tool": "fs_write",
            "arguments": {"path": "a/b.txt", "text": "x"},
            "call": request("fs_write", path="a/b.txt", text="x").to_dict(),
            "rule": rule,
            "reason": "rule",
            "paths": ["/srv/a/b.txt"],
            "suggestion": {"tool": "fs_write", "decision": "allow", "under": "/srv/a"},
        }
    ]


@pytest.mark.parametrize(
    ("raw", "arguments"), [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("[1]", {}), ("{", {}), ({"a": {"b": 1}},
    {"a": {"b": 1}})]
)  # fmt: skip
def test_arguments_are_shown_parsed_whatever_their_shape(raw: Any, arguments: Any) -> None:
    """Unreadable ones are shown as none; the call beside them has what was sent."""
    human = Human(False)

    one(Policy(tools(), on_ask=human), ToolRequest("1", "fs_read", raw))

    assert human.asked[0]["arguments"] == arguments
    assert human.asked[0]["suggestion"] is None or raw not in ("[1]", "{")


def test_a_question_is_the_askers_own_copy() -> None:
    """Changing it changes neither the call nor a rule."""

    def meddle(asked: Mapping[str, Any]) -> bool:
        asked["arguments"]["path"] = "/etc"
        asked["call"]["function"]["name"] = "sh_run"
        asked["rule"]["decision"] = "allow"
        return True

    provider = tools()
    policy = Policy(provider, [{"tool": "*", "decision": "ask"}], on_ask=meddle)

    one(policy, request(path="a"))

    assert provider.calls == [request(path="a")]
    assert policy.rules == [{"tool": "*", "decision": "ask"}]


@pytest.mark.parametrize(
    ("answer", "is_allowed", "grants"),
    [
        (True, True, 0),
        (False, False, 0),
        (None, False, 0),
        ("allow-once", True, 0),
        ("deny-once", False, 0),
        ("always-allow", True, 1),
        ("always-deny", False, 1),
        ({"action": "allow-once"}, True, 0),
        ({"action": "deny-once", "reason": "not now"}, False, 0),
        ({"action": "always-allow", "rule": {"tool": "fs_*", "under": "/srv"}}, True, 1),
        ({"action": "always-allow", "rules": [{"tool": "a"}, {"tool": "b", "decision": "deny"}]}, True, 2),
        ({"action": "always-deny", "rule": {"tool": "fs_*", "decision": "allow"}}, False, 1),
        ({"action": "always-allow", "scope": "project", "expires-in": 60}, True, 1),
    ],
)
def test_every_answer_there_is(answer: Any, is_allowed: bool, grants: int) -> None:
    """Mappings, and the short forms: True, False, None, an action."""
    provider = tools()
    policy = Policy(provider, on_ask=Human(answer))

    told = one(policy, request(path="/srv/x"))

    assert told.is_error is not is_allowed
    assert len(provider.calls) == int(is_allowed)
    assert len(policy.grants()) == grants
    wanted = "deny" if isinstance(answer, str | dict) and "always-deny" in str(answer) else "allow"
    assert all(grant["rule"]["decision"] == wanted for grant in policy.grants())


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("yes", "'yes'"),
        ("", "action"),
        (1, "got int"),
        ([], "got list"),
        ({}, "action: expected one of"),
        ({"action": "allow"}, "'allow'"),
        ({"action": ["allow-once"]}, "action"),
        ({"action": "always-allow", "rulez": []}, "rulez: no such member"),
        ({"action": "always-allow", "rule": {"tool": "f*s"}}, "rule.tool"),
        ({"action": "always-allow", "rule": {"tool": "a", "under": "../x"}}, "rule.under"),
        ({"action": "always-allow", "rule": "fs_*"}, "rule: expected a rule"),
        ({"action": "always-allow", "rules": []}, "at least one rule"),
        ({"action": "always-allow", "rules": {"tool": "a"}}, "at least one rule"),
        ({"action": "always-allow", "rule": {"tool": "a"}, "rules": [{"tool": "a"}]}, "got both"),
        ({"action": "always-allow", "rules": [{"tool": "a"}, {"tool": "b*c"}]}, "rules[1].tool"),
        ({"action": "always-allow", "scope": "forever"}, "scope"),
        ({"action": "always-allow", "expires-in": 0}, "expires-in"),
        ({"action": "always-allow", "expires-in": True}, "expires-in"),
        ({"action": "always-allow", "expires-in": 1e20}, "expires-in"),
        ({"action": "always-allow", "expires-in": float("nan")}, "expires-in"),
        ({"action": "deny-once", "reason": 3}, "reason"),
        (RuntimeError("the screen is gone"), "the screen is gone"),
    ],
)
def test_an_answer_that_is_none_refuses_this_call_and_is_remembered_for_no_other(answer: Any, cause: str) -> None:
    """The cause is quoted, nothing is kept, nothing announced, nothing forwarded."""
    provider, told = tools(), []
    policy = Policy(provider, on_ask=Human(answer), on_grant=told.append)

    refusal = one(policy, request(path="/srv/x"))

    assert cause in refusal.content
    assert denied(refusal)["by"] == "prompt"
    assert (provider.calls, policy.grants(), told) == ([], [], [])


def test_a_no_with_a_reason_reaches_the_model() -> None:
    """And a remembered no names every rule it made."""
    once = one(Policy(tools(), on_ask=Human({"action": "deny-once", "reason": "use the API"})), request())
    always = one(
        Policy(tools(), on_ask=Human({"action": "always-deny", "rules": [{"tool": "fs_*"}, {"tool": "web_*"}]})),
        request()
    )  # fmt: skip

    assert once.content.endswith("the user refused this call of 'fs_read'. The user says: use the API")
    assert "deny fs_*; deny web_*" in always.content
    assert denied(once)["by"] == denied(always)["by"] == "human"


@pytest.mark.parametrize(
    ("call", "suggestion"),
    [
        (request("fs_read", path="/srv/a/b"), {"under": "/srv/a"}),
        (request("fs_read", path="/etc/passwd"), {"under": "/etc"}),
        (request("fs_read", path="/passwd"), {"under": "/"}),
        (request("fs_read", path="/srv/x"), {"under": "/srv"}),
        (request("fs_read", path="."), {"under": "/srv"}),
        (request("fs_move", from_="/srv/a/b/x", to="/srv/a/c/x"), {"under": "/srv/a"}),
        (request("fs_move", from_="/srv/a", to="/etc/x"), {"under": "/"}),
        (request("web_get", url="http://a.org/x"), {"host": "a.org"}),
        (request("user_ask", text="hi"), {}),
        (request("sh_run", command="git", args=["status", "-s"]), {"command": "git", "args": ["status"]}),
        (request("sh_run", command="git status -s"), {"command": "git", "args": ["status"]}),
        (request("sh_run", command="timeout 5 npm test -s"), {"command": "npm", "args": ["test"]}),
        (request("sh_run", command="npm run build"), {"command": "npm", "args": ["run", "build"], "exact": True}),
        (request("sh_run", command="git stash list"), {"command": "git", "args": ["stash", "list"], "exact": True}),
        (request("sh_run", command="/usr/bin/make"), {"command": "make", "exact": True}),
        (request("sh_run", command="rm -r build"), {"command": "rm", "args": ["-r", "build"], "exact": True}),
        (request("sh_run", command="mv a b"), {"command": "mv", "args": ["a", "b"], "exact": True}),
        (request("sh_run", command="git -C x log"), {"command": "git", "args": ["-C", "x", "log"], "exact": True}),
        (request("sh_run", command="npm ./x"), {"command": "npm", "args": ["./x"], "exact": True}),
        (request("sh_run", command="ls", path="/srv/a/x"), {"command": "ls", "exact": True, "under": "/srv/a"}),
    ],
)
def test_the_suggestion_is_the_narrowest_that_covers_calls_like_this(call: ToolRequest, suggestion: Any) -> None:
    """A command with its subcommand or as it is, a folder, a site; and it covers the call it was made for."""
    human = Human("always-allow")
    policy = Policy(tools("fs_move", "fs_read", "web_get", "user_ask", "sh_run"), roots={"fs_": "/srv"}, on_ask=human)

    run(policy, call, call)

    assert human.asked[0]["suggestion"] == {"tool": call.name, "decision": "allow", **suggestion}
    assert len(human.asked) == 1


@pytest.mark.parametrize(
    "call",
    [
        request("fs_read", path="../x"),
        request("fs_move", from_="/srv/x", to="~/x"),
        request("web_get", url="http://127.1"),
        request("sh_run", command="git status && rm -r build"),
        request("sh_run", command="$TOOL --version"),
        request("sh_run", command="git log > notes"),
        request("sh_run", command=["git", {}]),
        ToolRequest("1", "fs_read", "[1]"),
        request("fs_*"),
    ],
)
def test_what_cannot_be_read_is_never_widened_into_the_whole_tool(call: ToolRequest) -> None:
    """Then nothing is suggested, and an "always" that names no rule remembers nothing."""
    human = Human("always-allow")
    policy = Policy(tools("fs_read", "fs_move", "web_get", "sh_run"), on_ask=human)

    refusal = one(policy, call)

    assert human.asked[0]["suggestion"] is None
    assert "nothing narrow enough" in refusal.content
    assert policy.grants() == []


def test_one_always_covers_the_rest_of_the_batch_and_other_batches() -> None:
    """In the same folder, and in no other."""
    human = Human("always-allow", False)
    policy = Policy(tools(), on_ask=human)

    batch = run(policy, request("fs_read", "1", path="/srv/a"), request("fs_read", "2", path="/srv/b"))
    later = run(policy, request("fs_read", "3", path="/srv/c/d"), request("fs_read", "4", path="/etc/x"))

    assert [answer.is_error for answer in batch + later] == [False, False, False, True]
    assert len(human.asked) == 2


# -- time ------------------------------------------------------------------------------------------


def test_a_question_nobody_answers_in_time_is_expired_and_not_denied() -> None:
    """The model is told so, and the asker can see that it is over."""
    gate, seen, over = Gate("late"), [], threading.Event()

    def ask(asked: Any) -> str:
        seen.append(asked.cancelled.is_set())
        gate.wait()
        seen.append(asked.cancelled.is_set())
        over.set()
        return "always-allow"

    policy = Policy(tools(), on_ask=ask, ask_timeout=0.05)
    refusal = one(policy, request())
    gate.open()

    assert over.wait(WAIT)
    assert seen == [False, True]
    assert refusal.content == notices.DENIED_EXPIRED.format(tool="fs_read")
    assert denied(refusal)["by"] == "expired"
    assert policy.grants() == []


def test_an_answer_in_time_is_as_without_a_clock() -> None:
    """The asker may be called on another thread, in this call's context."""
    seen: list[Any] = []

    def ask(_: Any) -> bool:
        seen.append(current_call())
        return True

    with call_context(id="c1", name="fs_read"):
        answer = one(Policy(tools(), on_ask=ask, ask_timeout=WAIT), request())

    assert not answer.is_error
    assert seen[0].id == "c1"


def test_a_prompt_that_is_stuck_never_shares_the_screen() -> None:
    """The next question waits for it, as long as its own clock runs, and is then expired unasked."""
    gate, asked = Gate("stuck"), []

    def ask(each: Any) -> bool:
        asked.append(each["call"]["id"])
        if len(asked) == 1:
            gate.wait()
        return True

    policy = Policy(tools(), on_ask=ask, ask_timeout=0.05)
    first, second = one(policy, request("fs_read", "1")), one(policy, request("fs_read", "2"))
    gate.open()
    third = Policy(tools(), on_ask=ask, ask_timeout=WAIT, ask_lock=policy._prompt.lock)

    assert [denied(first)["by"], denied(second)["by"]] == ["expired", "expired"]
    assert not one(third, request("fs_read", "3")).is_error
    assert asked == ["1", "3"]


def test_an_asker_may_say_expired_itself() -> None:
    """A page whose session has ended knows it before any clock."""
    refusal = one(Policy(tools(), on_ask=Human({"action": "expired"})), request())

    assert denied(refusal)["by"] == "expired"


def test_a_question_from_inside_a_prompt_is_an_error_and_no_deadlock() -> None:
    """Also through another policy with the same lock, and when the prompt runs on its own thread."""
    for timeout in (None, WAIT):
        lock, inner = AskLock(), []

        def ask(_: Any, lock: AskLock = lock, inner: list[ToolAnswer] = inner) -> bool:
            inner.append(one(Policy(tools(), on_ask=Human(True), ask_lock=lock), request("fs_write")))
            return True

        outer = one(Policy(tools(), on_ask=ask, ask_lock=lock, ask_timeout=timeout), request())

        assert not outer.is_error
        assert inner[0].content == notices.DENIED_REENTERED.format(tool="fs_write")


def test_a_call_that_needs_no_question_may_be_made_from_inside_a_prompt() -> None:
    """A prompt that reads a file to show a diff is no re-entry."""
    policy: Policy

    def ask(_: Any) -> bool:
        return not one(policy, request("fs_read")).is_error

    policy = Policy(tools(), [{"tool": "fs_read", "decision": "allow"}], on_ask=ask)

    assert not one(policy, request("fs_write")).is_error


def test_after_a_question_the_lock_is_free_whatever_happened() -> None:
    """An asker that raises, or interrupts, keeps nobody waiting."""
    policy = Policy(tools(), on_ask=Human(RuntimeError("x"), KeyboardInterrupt(), True))

    first = one(policy, request())
    with pytest.raises(KeyboardInterrupt):
        one(policy, request())

    assert first.is_error
    assert not one(policy, request()).is_error


# -- who is asked ----------------------------------------------------------------------------------


def test_the_policys_own_asker_wins_over_the_calls() -> None:
    """Without one, the call's host is asked; without both, it is headless."""
    own, loops = Human(True), Human(True)

    with call_context(on_ask=loops):
        one(Policy(tools(), on_ask=own), request())
        assert (len(own.asked), len(loops.asked)) == (1, 0)
        assert not one(Policy(tools()), request()).is_error
        assert (len(own.asked), len(loops.asked)) == (1, 1)
    with call_context():
        assert denied(one(Policy(tools()), request()))["by"] == "headless"
    assert denied(one(Policy(tools(), on_ask="run"), request()))["by"] == "headless"


def test_within_a_group_a_question_is_about_its_own_call() -> None:
    """The context is narrowed to the call that is asked about."""
    seen: list[str] = []

    def ask(_: Any) -> bool:
        context = current_call()
        assert context is not None
        seen.append(context.id)
        return True

    with call_context(id="1", calls=[request("a", "1"), request("a", "2")]):
        run(Policy(tools("a"), on_ask=ask), request("a", "1"), request("a", "2"))

    assert seen == ["1", "2"]


def test_a_call_nobody_waits_for_is_neither_asked_about_nor_run() -> None:
    """Once the run is cancelled, no prompt opens."""
    cancelled, provider, human = threading.Event(), tools(), Human(True)
    cancelled.set()

    with call_context(cancelled=cancelled):
        answers = run(
            Policy(provider, [{"tool": "fs_read", "decision": "allow"}], on_ask=human), request(), request("x")
        )

    assert [denied(answer)["by"] for answer in answers] == ["cancel", "cancel"]
    assert (provider.calls, human.asked) == ([], [])


def test_an_answer_that_comes_after_the_cancel_runs_nothing_and_is_remembered() -> None:
    """A yes that nobody waits for has no effect now; an always is still the human's word."""
    cancelled, provider = threading.Event(), tools()

    def ask(asked: Any) -> str:
        cancelled.set()
        assert asked.cancelled.is_set()
        return "always-allow"

    policy = Policy(provider, on_ask=ask)
    with call_context(cancelled=cancelled):
        refusal = one(policy, request(path="/srv/x"))

    assert refusal.content == notices.ABANDONED_CANCELLED
    assert provider.calls == []
    assert len(policy.grants()) == 1
