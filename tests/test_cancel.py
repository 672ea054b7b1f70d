"""A cancel happens once, wakes everybody, and raises nothing, whoever calls it from where."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from llm_agent.cancel import CancelToken


def raced(threads: int, move: Callable[[int], bool]) -> list[bool]:
    """What *threads* threads get that make *move* (with their number) at the same moment."""
    start = threading.Barrier(threads)

    def run(number: int) -> bool:
        start.wait(5)
        return move(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads), timeout=5))


def test_a_new_token_is_not_set() -> None:
    """Nobody has wished for an end."""
    token = CancelToken()

    assert not token.is_set
    assert token.reason is None


def test_the_first_cancel_wins_and_keeps_its_reason() -> None:
    """Later ones answer False and change nothing."""
    token = CancelToken()

    assert token.cancel("user") is True
    assert token.cancel("timeout") is False
    assert (token.is_set, token.reason) == (True, "user")


def test_of_twenty_threads_that_cancel_one_wins() -> None:
    """Exactly one True, and the reason is the winner's."""
    token = CancelToken()

    won = raced(20, lambda number: token.cancel(str(number)))

    assert won.count(True) == 1
    assert token.reason == str(won.index(True))


class Instant(threading.Event):
    """An event that shows the instant before it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], object] = lambda: None

    def set(self) -> None:
        self.look()
        super().set()


def test_the_reason_is_there_before_the_event_is_set() -> None:
    """Whoever is woken can read why."""
    instant = Instant()
    token = CancelToken(event=instant)
    seen: list[str | None] = []
    instant.look = lambda: seen.append(token.reason)

    token.cancel("user")

    assert seen == ["user"]


def test_a_cancel_loses_as_soon_as_another_has_begun() -> None:
    """Also in the instant before the event is set."""
    instant = Instant()
    token = CancelToken(event=instant)
    late: list[bool] = []

    def cancel_too() -> None:
        instant.look = lambda: None
        late.append(token.cancel("late"))

    instant.look = cancel_too

    assert token.cancel("first") is True
    assert late == [False]
    assert token.reason == "first"


# -- wakers ---------------------------------------------------------------------------------


def test_each_waker_is_called_once() -> None:
    """A second cancel pokes nobody."""
    token = CancelToken()
    woken: list[str] = []
    token.on_cancel(lambda: woken.append("a"))
    token.on_cancel(lambda: woken.append("b"))

    token.cancel()
    token.cancel()

    assert sorted(woken) == ["a", "b"]


def test_the_same_waker_may_be_registered_twice() -> None:
    """Each registration is its own, and is taken back by itself."""
    token = CancelToken()
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    token.on_cancel(wake)
    token.on_cancel(wake)()
    token.cancel()

    assert woken == [1]


def test_a_late_waker_is_called_at_once() -> None:
    """On the thread that registers it, before `on_cancel` returns."""
    token = CancelToken()
    token.cancel()
    threads: list[threading.Thread] = []

    forget = token.on_cancel(lambda: threads.append(threading.current_thread()))

    assert threads == [threading.current_thread()]
    forget()


def test_a_waker_that_was_taken_back_is_not_called() -> None:
    """What no longer waits is not poked; taking back twice is harmless."""
    token = CancelToken()
    woken: list[int] = []
    forget = token.on_cancel(lambda: woken.append(1))

    forget()
    forget()
    token.cancel()

    assert woken == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_waker_that_raises_harms_nobody(is_late: bool) -> None:
    """Cancel never raises, and the others are woken."""
    token = CancelToken()
    woken: list[int] = []

    def broken() -> None:
        raise OSError("the socket is gone")

    if is_late:
        token.cancel()
    token.on_cancel(broken)
    token.on_cancel(lambda: woken.append(1))
    token.cancel()

    assert woken == [1]


def test_wakers_are_called_outside_the_lock() -> None:
    """A waker may wait for a thread that uses the token."""
    token = CancelToken()
    done: list[bool] = []

    def use_from_elsewhere() -> None:
        def use() -> None:
            token.on_cancel(lambda: None)()
            token.cancel()
            done.append(True)

        other = threading.Thread(target=use, daemon=True)
        other.start()
        other.join(5)

    token.on_cancel(use_from_elsewhere)
    token.cancel()

    assert done == [True]


def test_no_waker_is_lost_between_registering_and_cancelling() -> None:
    """However the race goes, each of them is woken exactly once."""
    for _ in range(50):
        token = CancelToken()
        woken: list[int] = []

        def move(number: int, token: CancelToken = token, woken: list[int] = woken) -> bool:
            if number == 0:
                return token.cancel()
            token.on_cancel(lambda: woken.append(number))
            return False

        raced(6, move)

        assert sorted(woken) == [1, 2, 3, 4, 5]


def test_a_signal_handler_may_cancel_while_its_thread_cancels() -> None:
    """SIGTERM during a cancel finds it done and comes back: no thread waits for itself."""
    token = CancelToken()
    won: list[bool] = []
    token.on_cancel(lambda: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, lambda *_: won.append(token.cancel("signal")))

    try:
        assert token.cancel("user") is True
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert won == [False]
    assert token.reason == "user"


def test_a_signal_handler_may_cancel_while_its_thread_registers() -> None:
    """The lock is re-entrant: a handler that lands inside `on_cancel` does not wait for ever."""
    token = CancelToken()
    won: list[bool] = []

    def land_inside() -> None:
        with token.event._wakers_lock:  # where the handler lands
            won.append(token.cancel("signal"))

    thread = threading.Thread(target=land_inside, daemon=True)
    thread.start()
    thread.join(5)

    assert won == [True]


# -- waiting --------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.001])
def test_a_wait_that_is_served_in_full_says_so(seconds: float) -> None:
    """Nothing and less than nothing are served at once."""
    assert CancelToken().wait(seconds) is True


@pytest.mark.parametrize("seconds", [0.0, -1.0, 3600.0])
def test_a_cancelled_token_does_not_wait(seconds: float) -> None:
    """However long the wait was meant to be."""
    token = CancelToken()
    token.cancel()

    assert token.wait(seconds) is False


def test_a_cancel_ends_a_wait() -> None:
    """A backoff of an hour is over at once."""
    token = CancelToken()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(token.wait, 3600.0)
        token.cancel()

        assert waiting.result(5) is False
