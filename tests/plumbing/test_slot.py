"""The single-slot executor: waiting, giving up, collecting late."""

from __future__ import annotations

import threading

import pytest

from llm_agent.cancel import CancelToken
from llm_agent.slot import Answered, Call, GaveUp, Raised, Slot

WAIT = 5.0


def no_deadline() -> None:
    return None


@pytest.fixture
def slot() -> Slot:
    return Slot("test-slot")


def test_an_answer_comes_back(slot: Slot) -> None:
    """What the call returns is what the wait gives."""
    call = slot.start(lambda: 42)

    assert call.wait(CancelToken(), no_deadline) == Answered(42)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_whatever_a_call_raises_comes_back(slot: Slot, error: BaseException) -> None:
    """Even what would end a thread or a process is only this call's end."""

    def fail() -> None:
        raise error

    end = slot.start(fail).wait(CancelToken(), no_deadline)

    assert isinstance(end, Raised)
    assert end.error is error
    assert slot.start(lambda: "next").wait(CancelToken(), no_deadline) == Answered("next")


def test_calls_share_one_thread(slot: Slot) -> None:
    """A slot keeps its worker as long as nothing is given up."""
    threads = [slot.start(threading.current_thread).wait(CancelToken(), no_deadline) for _ in range(3)]

    assert len({end.value.name for end in threads if isinstance(end, Answered)}) == 1


def test_a_cancel_ends_the_wait_at_once(slot: Slot) -> None:
    """The waiting thread is woken, not left to a poll."""
    gate, cancel = threading.Event(), CancelToken()
    call = slot.start(gate.wait)

    threading.Thread(target=cancel.cancel, daemon=True).start()
    end = call.wait(cancel, no_deadline)
    gate.set()

    assert end == GaveUp("cancelled")


def test_a_deadline_ends_the_wait(slot: Slot) -> None:
    """Nothing left of the time means nobody waits."""
    gate = threading.Event()
    left = iter([0.01, 0.0])

    end = slot.start(gate.wait).wait(CancelToken(), lambda: next(left))
    gate.set()

    assert end == GaveUp("deadline")


def test_an_answer_wins_over_a_cancel_and_a_deadline(slot: Slot) -> None:
    """In the same instant, what is known counts."""
    cancel = CancelToken()
    call = slot.start(lambda: "answer")
    call.wait(CancelToken(), no_deadline)
    cancel.cancel()

    assert call.wait(cancel, lambda: 0.0) == Answered("answer")


def test_a_clock_that_stands_is_looked_at_again_after_a_wake(slot: Slot) -> None:
    """While a human is asked nothing expires; the wake at the end starts the clock again."""
    gate, asked = threading.Event(), threading.Event()
    left: list[float | None] = [None, 0.0]

    def seconds_left() -> float | None:
        asked.set()
        return left.pop(0)

    call = slot.start(gate.wait)
    threading.Thread(target=lambda: (asked.wait(WAIT), call.wake()), daemon=True).start()
    end = call.wait(CancelToken(), seconds_left)
    gate.set()

    assert end == GaveUp("deadline")


def test_a_given_up_call_does_not_hold_up_the_next(slot: Slot) -> None:
    """The stuck call keeps its thread, the next one gets a fresh one."""
    gate = threading.Event()
    slot.start(gate.wait).wait(CancelToken(), lambda: 0.0)

    assert slot.start(lambda: "next").wait(CancelToken(), no_deadline) == Answered("next")
    gate.set()


def test_a_late_return_is_told(slot: Slot) -> None:
    """Whoever keeps the books learns when a given-up call comes back after all."""
    gate, told = threading.Event(), threading.Event()
    late: list[object] = []
    call = slot.start(lambda: gate.wait(WAIT) and "late")
    call.wait(CancelToken(), lambda: 0.0)
    call.on_late_return(lambda end: (late.append(end), told.set()))

    gate.set()

    assert told.wait(WAIT)
    assert late == [Answered("late")]


def test_a_return_before_anybody_asked_is_told_at_once() -> None:
    """Asking too late is no way to miss it."""
    call = Call(lambda: "early")
    call.run()
    late: list[object] = []

    call.on_late_return(late.append)

    assert late == [Answered("early")]


def test_a_worker_leaves_when_its_slot_closes(slot: Slot) -> None:
    """No thread stays behind a closed slot."""
    end = slot.start(threading.current_thread).wait(CancelToken(), no_deadline)
    assert isinstance(end, Answered)

    slot.close()
    end.value.join(WAIT)

    assert not end.value.is_alive()
