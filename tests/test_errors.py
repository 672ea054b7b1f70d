"""One tree of errors: each says which thing, and travels through pickle."""

from __future__ import annotations

import pickle

import pytest

from llm_agent import errors
from llm_agent.outcome import Outcome

SAMPLES: list[errors.AgentError] = [
    errors.AgentError("root"),
    errors.ConfigError("option"),
    errors.RunInProgress("busy"),
    errors.RunNotCompleted(Outcome(status="failed", error="why")),
    errors.TranscriptError("path"),
    errors.SessionInUse("locked"),
    errors.MalformedTranscript("run.jsonl", 41, "not JSON"),
    errors.HistoryMismatch(3, "message 3 differs"),
    errors.UnansweredCalls(["a", "b"]),
    errors.BackendError("busy", "http", status=503, retry_after=2.5, body={"error": "busy"}),
    errors.McpError("gone"),
    errors.NoTerminal("none"),
]


def test_every_error_of_the_module_is_sampled_here() -> None:
    """A new leaf cannot escape these tests."""
    declared = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.AgentError)}

    assert {type(error) for error in SAMPLES} == declared


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_pickle_with_everything_they_know(error: errors.AgentError) -> None:
    """Task queues carry errors between processes."""
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_config_error_is_a_value_error() -> None:
    """Callers who know only the standard errors catch it."""
    with pytest.raises(ValueError, match="option"):
        raise errors.ConfigError("option")


@pytest.mark.parametrize(
    "leaf", [errors.SessionInUse, errors.MalformedTranscript, errors.HistoryMismatch, errors.UnansweredCalls]
)
def test_transcript_trouble_is_caught_by_one_name(leaf: type[Exception]) -> None:
    """Every leaf of the transcript is a TranscriptError."""
    assert issubclass(leaf, errors.TranscriptError)


def test_a_malformed_transcript_names_file_line_and_problem() -> None:
    """The reader finds the place."""
    assert str(errors.MalformedTranscript("run.jsonl", 41, "not JSON")) == "transcript run.jsonl line 41: not JSON"


def test_a_malformed_transcript_as_a_whole_names_no_line() -> None:
    """Line 0 means the file."""
    assert str(errors.MalformedTranscript("run.jsonl", 0, "empty")) == "transcript run.jsonl: empty"


def test_unanswered_calls_are_named_with_the_way_out() -> None:
    """The message lists the ids and says what to call."""
    message = str(errors.UnansweredCalls(["call_1", "call_2"]))

    assert "'call_1', 'call_2'" in message
    assert "session.repair()" in message


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(status="failed", error="every backend failed"), "run failed: every backend failed"),
        (Outcome(status="cancelled", reason="timeout"), "run cancelled: timeout"),
        (Outcome(status="cancelled"), "run cancelled: no reason was recorded"),
    ],
)
def test_a_run_that_did_not_complete_says_how_it_ended(outcome: Outcome, message: str) -> None:
    """Status, then error or reason."""
    assert str(errors.RunNotCompleted(outcome)) == message


def test_a_backend_error_refuses_a_class_nobody_knows() -> None:
    """The chain decides by class, so a wrong one is refused where it is made."""
    with pytest.raises(errors.ConfigError, match=r"error_class must be one of http, .* got 'overload'"):
        errors.BackendError("x", "overload")  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize("error_class", errors.ERROR_CLASSES)
def test_a_backend_error_takes_every_class_it_names(error_class: errors.ErrorClass) -> None:
    """All five, and unknown by default."""
    assert errors.BackendError("x", error_class).error_class == error_class
    assert errors.BackendError("x").error_class == "unknown"
