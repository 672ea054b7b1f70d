"""Whatever a backend hands in ends as a failed attempt, and the next backend gets its turn."""

from __future__ import annotations

import math
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llm_agent.errors import BackendError
from llm_agent.events import AttemptFailed, Token
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Usage
from llm_agent.testing import FinishedRun, Gate, ScriptedBackend, finished, hang
from llm_agent.watchdog import WATCHDOG

WAIT = 5.0

pytestmark = pytest.mark.usefixtures("no_wait")


class Speechless(Exception):
    """An exception whose words cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Foreign:
    """A backend that does what the test says."""

    model = "foreign"
    max_tokens = None

    def __init__(self, stream: Callable[[], Any]) -> None:
        self._stream = stream

    def stream(self, request: object) -> Any:
        return self._stream()


def after(backend: Any) -> FinishedRun:
    return finished(Loop([backend, ScriptedBackend(["from the second"])]).run("go"))


MALFORMED: dict[str, Any] = {
    "tool_calls": None,
    "tool_calls-of-dicts": [{"id": "x"}],
    "usage": {"prompt_tokens": 1},
    "usage.prompt_tokens": Usage(prompt_tokens="5"),  # type: ignore[arg-type]  # what is tested
    "usage.cost": Usage(cost=math.nan),
    "usage.cost-below-0": Usage(cost=-1.0),
    "usage.total_tokens-below-0": Usage(total_tokens=-1),
    "text": b"bytes",
    "reasoning": 3,
    "finish_reason": 3,
    "model": 3,
}


@pytest.mark.parametrize("field", MALFORMED)
def test_a_delta_with_a_wrong_type_inside_is_a_failed_attempt(field: str) -> None:
    """The error names the field; nothing of it reaches the conversation, and the chain goes on."""
    name = field.split(".")[0].removesuffix("-of-dicts")
    delta = Delta(**{"text": "", name: MALFORMED[field]})

    done = after(ScriptedBackend([["said ", delta]] * 3))

    assert done.outcome.final == "from the second"
    told = field.removesuffix("-of-dicts").removesuffix("-below-0")
    assert f"Delta.{told} must be" in done.of(AttemptFailed)[0].error


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), CancelledError(), GeneratorExit(), Speechless()])
@pytest.mark.parametrize("when", ["at the call", "in the stream"])
def test_whatever_a_backend_raises_is_a_failed_attempt(error: BaseException, when: str) -> None:
    """Of class unknown, also when it is no `Exception`, and when it has no words."""

    def stream() -> Any:
        if when == "at the call":
            raise error

        def pieces() -> Iterator[str]:
            yield "half"
            raise error

        return pieces()

    done = after(Foreign(stream))

    assert done.outcome.final == "from the second"
    assert done.of(AttemptFailed)[0].error_class == "unknown"
    assert type(error).__name__ in done.of(AttemptFailed)[0].error


@pytest.mark.parametrize(
    "error",
    [
        BackendError(5, "http", "500", "5"),  # type: ignore[arg-type]  # what is tested
        BackendError("x", "http", 429, math.nan),
        BackendError("x", "http", 429, -5.0),
    ],
)
def test_a_backend_error_with_strange_fields_is_judged_all_the_same(error: BackendError) -> None:
    """What is no number counts as not reported."""
    done = after(ScriptedBackend([error] * 3))

    assert done.outcome.final == "from the second"
    assert done.of(AttemptFailed)[0].retry_after is None


def test_a_mapping_in_place_of_a_stream_is_not_read_as_text() -> None:
    """Iterating it would stream its keys as the answer."""
    done = after(Foreign(lambda: {"choices": []}))

    assert done.outcome.final == "from the second"
    assert done.streamed == "from the second"


@pytest.mark.parametrize("verdict", ["raises", "bogus"])
def test_a_classify_that_fails_leaves_the_verdict_to_the_engine(verdict: str) -> None:
    """The run goes on by the built-in rules, and a Log says why."""

    def classify(error_class: str, status: int | None) -> Any:
        if verdict == "raises":
            raise Speechless
        return verdict

    backend = ScriptedBackend([BackendError("x", "connection"), "second try"])

    done = finished(Loop(backend, classify=classify).run("go"))

    assert done.outcome.final == "second try"
    assert "log" in done.kinds


# -- a cancel() that breaks its promise -----------------------------------------------------


class Stuck:
    """A stream whose `cancel` wakes the reader, and then does not come back."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._woken = threading.Event()

    def __iter__(self) -> Iterator[str]:
        yield "half"
        self._woken.wait(WAIT)
        raise OSError("shut down")

    def cancel(self) -> None:
        self._woken.set()
        self.gate.wait(WAIT)


def test_a_stream_whose_cancel_blocks_does_not_block_whoever_cancels() -> None:
    """`run.cancel()` returns, and the run ends."""
    stuck = Stuck()
    run = Loop(Foreign(lambda: stuck)).run("go")
    next(event for event in run.events(timeout=WAIT) if isinstance(event, Token))

    canceller = threading.Thread(target=run.cancel)
    canceller.start()
    canceller.join(2)
    is_blocked = canceller.is_alive()
    finished(run)
    stuck.gate.open()
    canceller.join(WAIT)

    assert not is_blocked


def test_a_stream_whose_cancel_blocks_does_not_take_the_watchdog_with_it() -> None:
    """Every other deadline of the process is still kept."""
    stuck = Stuck()
    run = Loop([Foreign(lambda: stuck), ScriptedBackend(["b"])], round_trip_timeout=0.05, max_retries=1).run("go")
    stuck.gate.wait_entered()
    fired = threading.Event()

    WATCHDOG.watch(0.01, fired.set)
    is_alive = fired.wait(2)
    stuck.gate.open()

    assert is_alive
    assert finished(run).outcome.final == "b"


def test_a_stream_whose_cancel_exits_does_not_take_the_canceller_with_it() -> None:
    """`run.cancel()` never raises, whatever a foreign cancel raises."""

    class Exits(Stuck):
        def cancel(self) -> None:
            self._woken.set()
            raise SystemExit

    run = Loop(Foreign(Exits)).run("go")
    next(event for event in run.events(timeout=WAIT) if isinstance(event, Token))

    run.cancel()

    assert finished(run).outcome.status == "cancelled"


def test_a_stream_that_comes_after_the_cancel_is_closed() -> None:
    """Nobody reads it any more, and what it holds is let go."""
    gate, closed = Gate(), threading.Event()

    class Late:
        def __iter__(self) -> Iterator[str]:
            return iter(())

        def cancel(self) -> None: ...

        def close(self) -> None:
            closed.set()

    def stream() -> Late:
        gate.wait(WAIT)
        return Late()

    run = Loop(Foreign(stream)).run("go")
    gate.wait_entered()
    run.cancel()
    finished(run)

    gate.open()

    assert closed.wait(WAIT)


def test_an_endless_wait_is_a_wait() -> None:
    """Infinity as a timeout means what it says: no overflow, and no expiry after a pause."""
    fired = threading.Event()
    watch = WATCHDOG.watch(math.inf, fired.set)

    watch.pause()
    watch.resume()

    assert not fired.wait(0.05)
    WATCHDOG.dismiss(watch)
    run = Loop(ScriptedBackend([hang("x")])).run("go")
    threading.Timer(0.05, run.cancel).start()
    assert next(run.events(timeout=math.inf)).kind == "run-started"
    assert run.result(math.inf).status == "cancelled"
    assert run.drained(math.inf)
