"""One thread for all deadlines: each fires once, when it is due, whatever the others do."""

from __future__ import annotations

import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from llm_agent.watchdog import WATCHDOG, Watch

SOON = 0.02
NEVER = 3600.0


@pytest.fixture
def start() -> Iterator[Callable[..., Watch]]:
    """Start watches on the process's watchdog that are dismissed when the test is over."""
    watches: list[Watch] = []

    def watch(limit: float, on_expiry: Callable[[], object] = lambda: None) -> Watch:
        watches.append(WATCHDOG.watch(limit, lambda: on_expiry() and None))
        return watches[-1]

    yield watch
    for each in watches:
        WATCHDOG.dismiss(each)


def has_passed(start: Callable[..., Watch], seconds: float) -> None:
    """Return once the watchdog has gone through every deadline that is due within *seconds*."""
    fence = threading.Event()
    start(seconds, fence.set)
    assert fence.wait(5)


def test_a_deadline_fires_after_its_limit(start: Callable[..., Watch]) -> None:
    """Not before it, and on the watchdog's own thread."""
    fired: list[tuple[float, str]] = []
    done = threading.Event()
    began = monotonic()

    start(SOON, lambda: (fired.append((monotonic(), threading.current_thread().name)), done.set()))

    assert done.wait(5)
    assert fired[0][0] >= began + SOON
    assert fired[0][1] == "llm-agent-watchdog"


def test_a_deadline_fires_once(start: Callable[..., Watch]) -> None:
    """Touching it afterwards does not bring it back."""
    fired: list[int] = []
    done = threading.Event()
    watch = start(SOON, lambda: (fired.append(1), done.set()))
    assert done.wait(5)

    watch.touch()
    WATCHDOG.wake()
    has_passed(start, 2 * SOON)

    assert fired == [1]


def test_many_deadlines_share_one_daemon_thread(start: Callable[..., Watch]) -> None:
    """It holds up no interpreter's exit."""
    for _ in range(50):
        start(NEVER)

    dogs = [thread for thread in threading.enumerate() if thread.name == "llm-agent-watchdog"]
    assert len(dogs) == 1
    assert dogs[0].daemon


def test_a_nearer_deadline_overtakes_a_far_one(start: Callable[..., Watch]) -> None:
    """The thread that sleeps until the far one is woken."""
    start(NEVER)

    has_passed(start, SOON)


def test_a_touch_moves_the_deadline_away(start: Callable[..., Watch]) -> None:
    """A stream that is alive does not expire; the whole limit counts from the touch."""
    fired: list[int] = []
    watch = start(NEVER, lambda: fired.append(1))
    watch.due = monotonic() + SOON  # as if its limit were nearly over

    watch.touch()
    has_passed(start, 2 * SOON)

    assert fired == []
    assert watch.due > monotonic() + NEVER / 2


def test_a_deadline_that_was_moved_fires_later(start: Callable[..., Watch]) -> None:
    """The thread that wakes for the old time goes back to sleep, and wakes again."""
    early: list[bool] = []
    done = threading.Event()
    watch = start(0.1, lambda: (early.append(monotonic() < watch.due), done.set()))

    watch.touch()

    assert done.wait(5)
    assert early == [False]


def test_a_dismissed_deadline_does_not_fire(start: Callable[..., Watch]) -> None:
    """Dismissing twice is harmless."""
    fired: list[int] = []
    watch = start(NEVER, lambda: fired.append(1))

    WATCHDOG.dismiss(watch)
    WATCHDOG.dismiss(watch)
    watch.due = monotonic()
    has_passed(start, SOON)

    assert fired == []


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_callback_that_raises_does_not_stop_the_others(
    start: Callable[..., Watch], caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """It is logged; those due with it and after it are told."""
    both = threading.Barrier(2)

    def broken() -> None:
        raise error

    start(SOON, broken)
    start(SOON, lambda: both.wait(5))
    both.wait(5)
    has_passed(start, SOON)

    assert [record.name for record in caplog.records] == ["llm_agent.watchdog"]


def test_a_callback_may_use_the_watchdog(start: Callable[..., Watch]) -> None:
    """It is called without the lock."""
    done = threading.Event()

    start(SOON, lambda: start(SOON, done.set))

    assert done.wait(5)


# -- pausing --------------------------------------------------------------------------------


def test_a_paused_deadline_does_not_fire(start: Callable[..., Watch]) -> None:
    """A human may think for as long as they like."""
    fired: list[int] = []
    watch = start(NEVER, lambda: fired.append(1))
    watch.due = monotonic() + SOON  # the thread sleeps until the old time

    watch.pause()
    has_passed(start, 3 * SOON)

    assert fired == []
    assert watch.due == math.inf


def test_a_resumed_deadline_goes_on_with_what_was_left(start: Callable[..., Watch]) -> None:
    """Neither the pause nor a new limit is added."""
    watch = start(NEVER)
    watch.due = monotonic() + 1000

    watch.pause()
    watch.resume()

    assert 900 < watch.due - monotonic() <= 1000


def test_a_resumed_deadline_fires_while_the_thread_has_nothing_else_to_wait_for(start: Callable[..., Watch]) -> None:
    """Resuming wakes the thread."""
    done = threading.Event()
    watch = start(SOON, done.set)
    watch.pause()
    has_passed(start, 2 * SOON)

    watch.resume()

    assert done.wait(5)


def test_a_second_pause_changes_nothing(start: Callable[..., Watch]) -> None:
    """What was left at the first one is what is left."""
    done = threading.Event()
    watch = start(SOON, done.set)

    watch.pause()
    watch.pause()
    watch.resume()

    assert done.wait(5)


def test_a_resume_without_a_pause_changes_nothing(start: Callable[..., Watch]) -> None:
    """The deadline does not fire at once."""
    watch = start(NEVER)
    due = watch.due

    watch.resume()

    assert watch.due == due


def test_a_touch_while_paused_counts_from_the_resume(start: Callable[..., Watch]) -> None:
    """A sign of life does not end the pause."""
    watch = start(NEVER)
    watch.due = monotonic() + SOON

    watch.pause()
    watch.touch()
    assert watch.due == math.inf
    watch.resume()

    assert watch.due > monotonic() + NEVER / 2


# -- forking --------------------------------------------------------------------------------


def child_with(report: Callable[[Callable[[bytes], object]], None]) -> bytes:
    """Fork, let the child *report* through a pipe, and return what it said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            report(lambda said: os.write(writing, said))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], 5)
        return os.read(reading, 100) if ready else b"silence"
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)  # it may be the one that hangs
        os.waitpid(pid, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_watchdog_of_its_own(start: Callable[..., Watch]) -> None:
    """The parent's thread is not in the child; the child's deadlines fire all the same."""
    has_passed(start, SOON)  # the parent's thread is running

    def report(say: Callable[[bytes], object]) -> None:
        done = threading.Event()
        WATCHDOG.watch(SOON, done.set)
        say(b"fired" if done.wait(4) else b"never")

    assert child_with(report) == b"fired"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_free_of_the_parents_lock_and_deadlines(start: Callable[..., Watch]) -> None:
    """A fork in the middle of the watchdog's work leaves nothing locked and nothing inherited."""
    parents: list[int] = []

    def report(say: Callable[[bytes], object]) -> None:
        done = threading.Event()
        WATCHDOG.watch(3 * SOON, done.set)
        say(b"%d %d" % (done.wait(4), len(parents)))

    watch = start(NEVER, lambda: parents.append(1))
    with WATCHDOG._changed:  # where the fork catches the parent
        watch.due = monotonic() + SOON
        said = child_with(report)

    assert said == b"1 0"
