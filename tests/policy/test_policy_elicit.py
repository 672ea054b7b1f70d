"""What a server asks: put to the same human, in the same turn, and declined where there is none."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from judging import Human, one, request, tools

from llm_agent.messages import ToolRequest
from llm_agent.policy import Policy
from llm_agent.testing import Gate, ScriptedProvider, call_context

WAIT = 5.0
ALL = [{"tool": "*", "decision": "allow"}]
FORM = {"message": "which branch?", "requestedSchema": {"type": "object"}}


class Curious(ScriptedProvider):
    """A server that asks during its call, on a thread of its own that sees the caller's context."""

    def __init__(self) -> None:
        super().__init__({"t": "done"})
        self.hook: Any = None
        self.answers: list[Mapping[str, Any]] = []

    def execute_tool_calls(self, calls: list[ToolRequest]) -> Any:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(lambda: self.answers.append(self.hook(FORM)),))
        thread.start()
        thread.join(WAIT)
        return super().execute_tool_calls(calls)


def test_a_servers_question_reaches_the_human_and_the_answer_the_server() -> None:
    """As its own kind of request, a copy; the answer is passed on."""
    human = Human({"action": "accept", "content": {"branch": "main"}})

    answer = Policy(tools(), on_ask=human).elicit_hook(FORM)

    assert answer == {"action": "accept", "content": {"branch": "main"}}
    assert human.asked == [{"kind": "server-elicit", "request": FORM}]
    assert human.asked[0]["request"] is not FORM


def test_a_question_that_names_its_server_is_asked_as_it_is() -> None:
    """A client that has said whose question it is need not be wrapped again."""
    human = Human({"action": "accept"})
    asked = {"kind": "server-elicit", "server": "git", "tool": "git_push", "request": FORM}

    Policy(tools(), on_ask=human).elicit_hook(asked)

    assert human.asked == [asked]


@pytest.mark.parametrize("answer", [None, True, "accept", 3, RuntimeError("gone"), SystemExit(3)])
def test_no_answer_is_a_decline(answer: Any) -> None:
    """Neither an exception nor a word that is no mapping accepts anything."""
    assert Policy(tools(), on_ask=Human(answer)).elicit_hook(FORM) == {"action": "decline"}


def test_without_anybody_to_ask_it_is_declined() -> None:
    """A policy that is headless accepts nothing."""
    assert Policy(tools()).elicit_hook(FORM) == {"action": "decline"}


def test_a_question_that_expires_is_cancelled() -> None:
    """It was not declined: nobody has said no."""
    gate = Gate("late")

    answer = Policy(tools(), on_ask=lambda _: gate.wait(), ask_timeout=0.05).elicit_hook(FORM)
    gate.open()

    assert answer == {"action": "cancel"}


def test_a_question_whose_call_is_over_is_cancelled() -> None:
    """Whoever took it back has not said no either."""
    cancelled = threading.Event()

    def take_back(_: Any) -> None:
        cancelled.set()

    with call_context(cancelled=cancelled, on_ask=take_back):
        answer = Policy(tools()).elicit_hook(FORM)

    assert answer == {"action": "cancel"}


def test_within_a_call_the_calls_host_is_asked() -> None:
    """The loop's asker, with its events and its paused deadline."""
    with call_context(answer={"action": "accept"}) as recorded:
        answer = Policy(tools()).elicit_hook(FORM)

    assert answer == {"action": "accept"}
    assert recorded.asked == [{"kind": "server-elicit", "request": FORM}]


@pytest.mark.parametrize(
    ("claims", "own", "chosen"),
    [
        (True, Human({"action": "accept", "by": "own"}), {"action": "accept", "by": "own"}),
        (False, Human({"action": "accept", "by": "own"}), {"action": "accept", "by": "wired"}),
        (True, None, {"action": "accept", "by": "wired"}),
        (True, Human(RuntimeError("broken")), {"action": "decline"}),
    ],
)
def test_a_claiming_policy_answers_what_its_own_calls_provoke(claims: bool, own: Any, chosen: Any) -> None:
    """A headless one leaves it to the wired policy; one whose prompt breaks declines."""
    server = Curious()
    wired = Policy(server, ALL, on_ask=Human({"action": "accept", "by": "wired"}))
    server.hook = wired.elicit_hook
    child = Policy(wired, ALL, on_ask=own, claim_elicits=claims)

    answer = one(child, request("t"))

    assert not answer.is_error
    assert server.answers == [chosen]


def test_the_outermost_claim_wins() -> None:
    """Whoever stands nearest to the human answers."""
    server = Curious()
    inner = Policy(server, ALL, on_ask=Human({"action": "accept", "by": "inner"}), claim_elicits=True)
    server.hook = inner.elicit_hook
    outer = Policy(inner, ALL, on_ask=Human({"action": "accept", "by": "outer"}), claim_elicits=True)

    one(outer, request("t"))
    one(inner, request("t"))

    assert [answer["by"] for answer in server.answers] == ["outer", "inner"]
