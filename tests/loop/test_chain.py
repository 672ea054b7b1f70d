"""The backend chain: retry, fallback, and never the same doomed bytes twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from llm_agent.errors import BackendError, ErrorClass
from llm_agent.events import AttemptFailed, AttemptStarted, AttemptSucceeded, Log, Token
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Usage
from llm_agent.testing import (
    FinishedRun,
    Gate,
    ScriptedBackend,
    ScriptedProvider,
    call,
    finished,
    no_backoff,
)


@pytest.fixture(autouse=True)
def _retries_wait_nothing() -> Iterator[None]:
    with no_backoff():
        yield


def http(status: int, message: str = "no", retry_after: float | None = None) -> BackendError:
    return BackendError(message, "http", status, retry_after=retry_after)


def dispositions(run: FinishedRun) -> list[str]:
    return [event.disposition for event in run.of(AttemptFailed)]


def test_a_server_error_is_retried_then_passed_on() -> None:
    """Two attempts at the first backend, then the second one's turn."""
    first, second = ScriptedBackend([http(500)] * 3), ScriptedBackend(["fine"])

    run = finished(Loop([first, second], max_retries=2).run("go"))

    assert dispositions(run) == ["retry-same", "advance"]
    assert [event.backoff is None for event in run.of(AttemptFailed)] == [False, True]
    assert run.outcome.final == "fine"
    assert [event.attempt for event in run.of(AttemptStarted)] == [1, 2, 3]


def test_a_rate_limit_goes_to_the_next_backend_at_once() -> None:
    """There is no use in waiting while somebody else could answer."""
    run = finished(Loop([ScriptedBackend([http(429)]), ScriptedBackend(["fine"])]).run("go"))

    assert dispositions(run) == ["advance"]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_ends_the_run(status: int) -> None:
    """No other backend is asked, and nothing is sent twice."""
    first, second = ScriptedBackend([http(status, "refused")]), ScriptedBackend(["never"])

    run = finished(Loop([first, second]).run("go"))

    assert dispositions(run) == ["abort"]
    assert (len(first.requests), len(second.requests)) == (1, 0)
    assert run.outcome.error == "[backend 0] refused"
    assert run.kinds[-2:] == ["turn-discarded", "run-failed"]


def test_an_overflow_goes_on_to_another_backend_and_is_not_repeated() -> None:
    """A larger window may take it; the same one never will."""
    overflow = http(400, "prompt is too long: 9 > 8")
    sole = ScriptedBackend([overflow, "never"])

    passed_on = finished(Loop([ScriptedBackend([overflow]), ScriptedBackend(["fits"])]).run("go"))
    failed = finished(Loop(sole).run("go"))

    assert passed_on.outcome.final == "fits"
    assert len(sole.requests) == 1
    assert failed.outcome.error == "every backend failed: [backend 0] prompt is too long: 9 > 8"


@pytest.mark.parametrize("error_class", ["timeout", "response", "connection", "unknown"])
def test_a_sole_backend_is_asked_again(error_class: ErrorClass) -> None:
    """An advance with nowhere to go is a wait, within the attempts that are allowed."""
    backend = ScriptedBackend([BackendError("x", error_class)] * 2 + ["fine"])

    run = finished(Loop(backend).run("go"))

    assert dispositions(run) == ["retry-same", "retry-same"]
    assert run.outcome.final == "fine"


def test_attempts_are_counted_anew_in_every_round() -> None:
    """A round trip starts with its full number of attempts, at the first backend."""
    backend = ScriptedBackend([http(500), http(500), call("a"), http(500), http(500), "fine"])

    assert finished(Loop(backend, tools=ScriptedProvider({"a": "1"})).run("go")).outcome.final == "fine"


def test_tokens_of_a_failed_attempt_are_retracted_and_kept_nowhere() -> None:
    """The next attempt opens a fresh scope; the transcript and the request never see the first."""
    backend = ScriptedBackend([[Delta("Here is"), BackendError("reset", "connection")], "Here is all."])

    run = finished(Loop(backend).run("go"))

    failed_at = run.kinds.index("attempt-failed")
    assert run.kinds[failed_at - 1 : failed_at + 2] == ["token", "attempt-failed", "attempt-started"]
    assert "".join(e.text for e in run.of(Token) if e.attempt == 2) == "Here is all."
    assert [m.text for m in run.outcome.messages] == ["go", "Here is all."]


def test_a_call_begun_by_a_dead_attempt_is_never_run() -> None:
    """What a broken stream asked for is forgotten."""
    provider = ScriptedProvider({"rm": "gone"})
    backend = ScriptedBackend([[call("rm"), BackendError("reset", "connection")], "No need."])

    finished(Loop(backend, tools=provider).run("go"))

    assert provider.calls == []


def test_every_backend_failed_names_all_of_the_last_round_trip() -> None:
    """And the outcome lists every failed attempt of the run, recovered ones included."""
    backend = ScriptedBackend([http(500, "early"), call("a"), http(500, "late"), http(500, "later"), http(500, "last")])

    outcome = finished(Loop(backend, tools=ScriptedProvider({"a": "1"})).run("go")).outcome

    assert outcome.error == "every backend failed: [backend 0] late; [backend 0] later; [backend 0] last"
    assert outcome.attempts[0].error == "[backend 0] early"
    assert len(outcome.attempts) == 4


def test_recovered_failures_are_not_in_a_completed_outcome() -> None:
    """The events have them."""
    assert finished(Loop(ScriptedBackend([http(500), "ok"])).run("go")).outcome.attempts == ()


def test_what_a_failed_attempt_streamed_is_remembered_verbatim() -> None:
    """For whoever reads the failure; absent when nothing was streamed."""
    backend = ScriptedBackend([[Delta(" half\n"), http(401)]])

    records = finished(Loop(backend).run("go")).outcome.attempts

    assert [record.raw_text for record in records] == [" half\n"]
    assert finished(Loop(ScriptedBackend([http(401)])).run("go")).outcome.attempts[0].raw_text is None


def test_a_backend_that_raises_anything_else_has_failed() -> None:
    """Class unknown, retried like any other."""
    run = finished(Loop(ScriptedBackend([ValueError("bug"), "fine"])).run("go"))

    failed = run.of(AttemptFailed)[0]
    assert (failed.error_class, failed.error) == ("unknown", "[backend 0] ValueError: bug")


def test_a_backend_that_yields_something_else_has_failed() -> None:
    """Not a crash of the run."""

    class Odd:
        model = "odd"
        max_tokens = None

        def stream(self, request: object) -> list[object]:
            return [42]

    run = finished(Loop([Odd(), ScriptedBackend(["fine"])], max_retries=1).run("go"))  # type: ignore[list-item]

    assert "must yield Delta or str, got int" in run.of(AttemptFailed)[0].error


def test_a_classifier_of_the_callers_replaces_ours() -> None:
    """Somebody may know their server better."""
    backend = ScriptedBackend([http(404), "fine"])

    run = finished(Loop(backend, classify=lambda error_class, status: "retry-same").run("go"))

    assert run.outcome.final == "fine"


# -- truncation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        [Delta("half"), call("rm"), Delta(finish_reason="length")],
        [Delta("half"), Delta(finish_reason="length"), BackendError("cut", "response")],
    ],
)
def test_a_truncated_completion_is_never_sent_again_nor_dispatched(script: list[object]) -> None:
    """Whether or not the backend raised: the same bytes would be cut the same way."""
    backend, provider = ScriptedBackend([script, "never"]), ScriptedProvider({"rm": "gone"})

    run = finished(Loop(backend, tools=provider).run("go"))

    assert run.outcome.reason == "completion-truncated"
    assert dispositions(run) == ["abort"]
    assert len(backend.requests) == 1
    assert provider.calls == []


@pytest.mark.parametrize(("used", "is_clipped"), [(63, False), (64, True), (80, True)])
def test_a_completion_that_used_its_whole_cap_is_taken_as_truncated(used: int, is_clipped: bool) -> None:
    """A server that will not say length is seen through by its bill, at the cap exactly."""
    usage = Usage(prompt_tokens=1, completion_tokens=used)
    backend = ScriptedBackend([[Delta("long", usage=usage, finish_reason="stop")]], max_tokens=64)

    run = finished(Loop(backend).run("go"))

    assert run.outcome.ok is not is_clipped
    assert len(run.of(Log)) == is_clipped
    assert len(run.of(AttemptSucceeded)) == (not is_clipped)


def test_without_usage_or_cap_nothing_is_clipped() -> None:
    """An unknown number is no number."""
    assert finished(Loop(ScriptedBackend(["x"], max_tokens=1)).run("go")).outcome.ok


# -- silence ---------------------------------------------------------------------------------


def test_silence_ends_an_attempt() -> None:
    """No activity for the time allowed: class timeout, and the next backend's turn."""
    silent = Gate("a little")

    run = finished(Loop([ScriptedBackend([silent]), ScriptedBackend(["fine"])], round_trip_timeout=0.1).run("go"))

    failed = run.of(AttemptFailed)[0]
    assert (failed.error_class, failed.error_status, failed.disposition) == ("timeout", None, "advance")
    assert "no activity for 0.1 s" in failed.error


def test_a_stream_that_lives_is_not_silent() -> None:
    """Any delta starts the clock again, an empty one too: only silence counts, not the total."""
    pause = threading.Event()

    def slow(_: object) -> Iterator[Delta]:
        for _ in range(6):
            pause.wait(0.06)
            yield Delta()
        yield Delta("alive")

    class Slow:
        model = "slow"
        max_tokens = None
        stream = staticmethod(slow)

    assert finished(Loop(Slow(), round_trip_timeout=0.25).run("go")).outcome.final == "alive"  # type: ignore[arg-type]


def test_an_attempt_may_be_bounded_in_total() -> None:
    """attempt_timeout ends a stream that keeps talking."""

    class Endless:
        model = "endless"
        max_tokens = None

        def stream(self, request: object) -> Iterator[str]:
            pause = threading.Event()
            while True:
                pause.wait(0.01)
                yield "x"

    run = finished(Loop(Endless(), attempt_timeout=0.1, max_retries=1).run("go"))  # type: ignore[arg-type]

    assert run.of(AttemptFailed)[0].error_class == "timeout"
    assert "within 0.1 s" in run.of(AttemptFailed)[0].error


def test_a_backend_whose_call_itself_hangs_is_left_behind() -> None:
    """stream() runs on a thread that can be abandoned."""
    gate = Gate()

    class Hanging:
        model = "hanging"
        max_tokens = None

        def stream(self, request: object) -> list[str]:
            gate.wait()
            return ["late"]

    run = finished(Loop([Hanging(), ScriptedBackend(["fine"])], round_trip_timeout=0.1).run("go"))  # type: ignore[list-item]
    gate.open()

    assert run.outcome.final == "fine"
    assert run.streamed == "fine"
