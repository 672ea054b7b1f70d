"""Many threads, one human: never two questions open, and nobody is asked what is answered already."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from judging import Human, denied, one, request, tools

from llm_agent.policy import AskLock, Grants, Policy
from llm_agent.testing import Gate, call_context

WAIT = 5.0
THREADS = 8


def together(*work: Any) -> None:
    """Run each of *work* on its own thread, begun at one moment, and wait for all."""
    start = threading.Barrier(len(work))

    def begin(each: Any) -> None:
        start.wait(WAIT)
        each()

    threads = [threading.Thread(target=begin, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)


class Counting:
    """A human who notices when two questions are open at once."""

    def __init__(self, answer: Any, linger: float = 0.002) -> None:
        self.answer, self.linger = answer, linger
        self.open = self.most = self.asked = 0
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def __call__(self, _: Any) -> Any:
        with self._lock:
            self.open += 1
            self.asked += 1
            self.most = max(self.most, self.open)
        self._pause.wait(self.linger)
        with self._lock:
            self.open -= 1
        return self.answer


@pytest.mark.parametrize("timeout", [None, WAIT])
def test_two_questions_are_never_open(timeout: float | None) -> None:
    """One policy, eight threads: each is asked, one after the other."""
    human = Counting(True)
    policy = Policy(tools(), on_ask=human, ask_timeout=timeout)

    together(*[lambda: one(policy, request()) for _ in range(THREADS)])

    assert (human.asked, human.most) == (THREADS, 1)


def test_policies_that_share_a_lock_share_the_human() -> None:
    """Their questions and their servers' questions take turns."""
    human, lock = Counting(True), AskLock()
    policies = [Policy(tools(), on_ask=human, ask_lock=lock) for _ in range(4)]

    together(
        *[lambda policy=policy: one(policy, request()) for policy in policies],
        *[lambda policy=policy: policy.elicit_hook({}) for policy in policies],
    )

    assert (human.asked, human.most) == (8, 1)


@pytest.mark.parametrize("is_shared", [False, True])
def test_whoever_queued_behind_an_always_is_decided_by_it(is_shared: bool) -> None:
    """The human is asked exactly once, and the host is told exactly once."""
    told: list[Any] = []
    human, lock, store = Counting("always-allow", linger=0.05), AskLock(), Grants()
    own = Policy(tools(), on_ask=human, on_grant=told.append)
    policies = [
        Policy(tools(), on_ask=human, on_grant=told.append, ask_lock=lock, store=store) if is_shared else own
        for _ in range(THREADS)
    ]
    answers: list[Any] = []

    together(*[lambda policy=policy: answers.append(one(policy, request(path="/srv/x"))) for policy in policies])

    assert [answer.is_error for answer in answers] == [False] * THREADS
    assert (human.asked, len(told)) == (1, 1)


def test_whoever_queued_behind_a_never_is_refused_by_it() -> None:
    """A remembered no decides the queue as well."""
    human = Counting("always-deny", linger=0.05)
    policy = Policy(tools(), on_ask=human)
    by: list[Any] = []

    together(*[lambda: by.append(denied(one(policy, request(path="/srv/x")))["by"]) for _ in range(4)])

    assert sorted(by) == ["grant", "grant", "grant", "human"]
    assert human.asked == 1


def test_a_cancel_ends_the_wait_for_a_turn() -> None:
    """A call that nobody waits for stops queueing, while the question before it stays open."""
    gate, cancelled, entered = Gate("held"), threading.Event(), threading.Event()

    def ask(_: Any) -> bool:
        entered.set()
        gate.wait()
        return True

    policy = Policy(tools(), on_ask=ask)
    first = threading.Thread(target=one, args=(policy, request("fs_read", "1")))
    first.start()
    assert entered.wait(WAIT)
    answers: list[Any] = []

    def queue_up() -> None:
        with call_context(id="2", cancelled=cancelled):
            answers.append(one(policy, request("fs_read", "2")))

    second = threading.Thread(target=queue_up)
    second.start()
    cancelled.set()
    second.join(WAIT)
    was_waiting = second.is_alive()
    gate.open()
    first.join(WAIT)

    assert not was_waiting
    assert denied(answers[0])["by"] == "cancel"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_question() -> None:
    """The lock is made anew there: who held it is not in the child."""
    gate, entered = Gate("held"), threading.Event()

    def ask(_: Any) -> bool:
        entered.set()
        gate.wait()
        return True

    lock = AskLock()
    asking = threading.Thread(target=one, args=(Policy(tools(), on_ask=ask, ask_lock=lock), request()))
    asking.start()
    assert entered.wait(WAIT)
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(WAIT))  # a child that waits is killed, and the test red
        os._exit(int(one(Policy(tools(), on_ask=Human(True), ask_lock=lock), request()).is_error))
    _, status = os.waitpid(pid, 0)
    gate.open()
    asking.join(WAIT)

    assert status == 0


def test_grants_are_told_while_a_question_is_open() -> None:
    """No lock of a human is held over what a run reads between its calls."""
    gate, entered = Gate("held"), threading.Event()

    def ask(_: Any) -> bool:
        entered.set()
        gate.wait()
        return True

    policy = Policy(tools(), grants=[{"tool": "a", "decision": "allow"}], on_ask=ask)
    asking = threading.Thread(target=one, args=(policy, request()))
    asking.start()
    assert entered.wait(WAIT)

    found = policy.grants()
    gate.open()
    asking.join(WAIT)

    assert len(found) == 1


def test_a_book_that_many_write_loses_nothing() -> None:
    """Additions and revocations of eight threads all arrive."""
    book = Grants()

    def work(place: int) -> None:
        for turn in range(20):
            name = f"t{place}_{turn}"
            book.add([{"rule": {"tool": name, "decision": "allow"}, "id": name}])
            if turn % 2:
                assert book.revoke(name)

    together(*[lambda place=place: work(place) for place in range(THREADS)])

    assert len(book) == THREADS * 10


def test_one_human_in_two_moods() -> None:
    """The queue is decided again only where the grant covers it."""
    human = Human("always-allow", False)
    policy = Policy(tools(), on_ask=human)

    one(policy, request(path="/srv/x"))

    assert one(policy, request(path="/etc/x")).is_error
