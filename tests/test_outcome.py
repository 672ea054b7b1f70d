"""What a program can ask of a run that ended: plain data that travels."""

from __future__ import annotations

import json
import pickle
from typing import Any

import attrs
import pytest

from llm_agent.errors import RunNotCompleted
from llm_agent.events import AttemptRecord, RunCancelled, RunCompleted, RunFailed
from llm_agent.messages import Message, ToolRequest, Usage
from llm_agent.outcome import (
    Cancelled,
    Completed,
    Ending,
    Failed,
    ModelSpend,
    Outcome,
    RunStopped,
    Spent,
    UnknownOperation,
    terminal_of,
)

SIX_KEYS = {"outcome", "final", "messages", "error", "attempts", "reason"}


def unknown(idempotency: Any) -> UnknownOperation:
    return UnknownOperation(
        op_id="op", call_id="c", tool="t", arguments="{}", idempotency=idempotency, reason="deadline"
    )


FULL = Outcome(
    status="failed",
    messages=(Message.user("hi"), Message.assistant("", [ToolRequest("c", "t", {"a": 1})]), Message.tool("c", "x")),
    error="every backend failed",
    reason="context-exhausted",
    attempts=(AttemptRecord(backend_index=0, model="m", error="busy", usage=Usage(prompt_tokens=3)),),
    rounds=2,
    spent=Spent(attempts=1, total_tokens=3, by_model={"m": ModelSpend(attempts=1, total_tokens=3)}),
    unknown=(unknown("destructive"),),
    undelivered=("late",),
)


# -- asking ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "ok"), [("completed", True), ("failed", False), ("cancelled", False)])
def test_an_outcome_names_its_status_twice(status: Any, ok: bool) -> None:
    """`status` for Python, `outcome` for those who know the wire."""
    outcome = Outcome(status=status)

    assert outcome.ok is ok
    assert outcome.outcome == outcome.status == status


def test_a_completed_run_does_not_raise() -> None:
    """It gives itself back, to be chained."""
    outcome = Outcome(status="completed", final="done")

    assert outcome.raise_for_failure() is outcome


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_raising_for_failure_carries_outcome_and_cause(status: Any) -> None:
    """What raised inside stays visible as the cause."""
    bug = KeyError("x")
    outcome = Outcome(status=status, exception=bug)

    with pytest.raises(RunNotCompleted) as raised:
        outcome.raise_for_failure()

    assert raised.value.outcome is outcome
    assert raised.value.__cause__ is bug


@pytest.mark.parametrize(
    ("operations", "is_safe"),
    [
        ([], True),
        (["read-only", "idempotent"], True),
        (["destructive"], False),
        (["unknown"], False),
        (["read-only", "unknown"], False),
    ],
)
def test_only_harmless_unknowns_are_safe_to_retry(operations: list[Any], is_safe: bool) -> None:
    """One operation that may have had an effect is enough."""
    assert Outcome(status="failed", unknown=tuple(map(unknown, operations))).safe_to_retry is is_safe


# -- telling --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_every_outcome_has_the_same_six_keys(status: Any) -> None:
    """Also where there is nothing to say."""
    told = Outcome(status=status).to_dict()

    assert set(told) == SIX_KEYS
    assert told == {"outcome": status, "final": "", "messages": [], "error": None, "attempts": [], "reason": None}


def test_a_full_outcome_is_plain_json_data() -> None:
    """Any encoder writes it."""
    told = FULL.to_dict()

    assert json.loads(json.dumps(told)) == told
    assert told["attempts"] == [{"backend-index": 0, "model": "m", "error": "busy", "usage": {"prompt-tokens": 3}}]


def test_what_is_told_is_a_copy() -> None:
    """Changing the data changes no outcome."""
    FULL.to_dict()["messages"][1]["tool-calls"][0]["function"]["arguments"].clear()

    assert FULL.messages[1].tool_calls[0].arguments == {"a": 1}


def test_words_that_are_no_utf8_can_still_be_sent() -> None:
    """An error may quote any file name."""
    record = AttemptRecord(backend_index=0, model="m", error="no caf\udce9")

    told = Outcome(status="failed", error="no caf\udce9", reason="\ud800", attempts=(record,)).to_dict()

    json.dumps(told, ensure_ascii=False).encode()
    assert told["error"] == "no caf\ufffd"


def test_the_bill_is_told_only_where_something_counted_it() -> None:
    """Seconds to the millisecond; the split by model stays with the typed value."""
    spent = Spent(attempts=2, total_tokens=7, prompt_tokens=0, wall_clock=1.23456, complete=False)

    told = Outcome(status="completed", spent=spent, bill_is_told=True).to_dict()

    assert told["spent"] == {"total-tokens": 7, "prompt-tokens": 0, "wall-clock": 1.235, "complete": False}
    assert set(told) == SIX_KEYS | {"spent"}


def test_an_unreported_bill_is_absent_and_never_zero() -> None:
    """Only what always exists is there."""
    assert Spent().to_dict() == {
        "attempts": 0,
        "total-tokens": 0,
        "wall-clock": 0.0,
        "complete": True,
        "by-model": {},
    }


def test_a_bill_adds_what_was_reported_and_notes_what_was_not() -> None:
    """Two attempts, the second silent about its total."""
    first = ModelSpend().plus(Usage(prompt_tokens=5, completion_tokens=0, cached_prompt_tokens=4))
    both = first.plus(Usage(completion_tokens=2, cost=0.5))

    assert first == ModelSpend(attempts=1, prompt_tokens=5, completion_tokens=0, total_tokens=5, cached_prompt_tokens=4)
    assert attrs.asdict(both) == {
        "attempts": 2,
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 5,
        "cached_prompt_tokens": 4,
        "cost": 0.5,
        "cost_estimated": False,
        "complete": False,
    }


# -- travelling -----------------------------------------------------------------------------


def test_an_outcome_pickles() -> None:
    """Task queues carry it home, whole."""
    assert pickle.loads(pickle.dumps(FULL)) == FULL


def test_an_outcome_with_an_exception_that_does_not_pickle_pickles_without_it() -> None:
    """Its words are in `error`."""
    bug = RuntimeError("x")
    bug.args = (lambda: None,)
    outcome = attrs.evolve(FULL, exception=bug)

    copy = pickle.loads(pickle.dumps(outcome))

    assert copy == FULL
    assert copy.exception is None
    assert outcome.exception is bug


def test_whether_the_bill_is_told_survives_pickling() -> None:
    """The copy tells what the original told."""
    outcome = Outcome(status="completed", bill_is_told=True)

    assert pickle.loads(pickle.dumps(outcome)).to_dict() == outcome.to_dict()


# -- endings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "outcome", "terminal"),
    [
        (
            Completed("done", 2),
            Outcome(status="completed", final="done", rounds=2, messages=(Message.user("x"),)),
            RunCompleted(final="done", rounds=2, message_count=1, at_us=0),
        ),
        (
            Failed(error="no"),
            Outcome(status="failed", error="no", reason="budget-exhausted", attempts=FULL.attempts),
            RunFailed(error="no", attempts=FULL.attempts, round=3, reason="budget-exhausted", at_us=0),
        ),
        (
            Cancelled("tools"),
            Outcome(status="cancelled", reason="timeout"),
            RunCancelled(stage="tools", round=3, reason="timeout", at_us=0),
        ),
    ],
)
def test_the_terminal_tells_what_the_outcome_says(ending: Ending, outcome: Outcome, terminal: Any) -> None:
    """Each ending has its event, with the same facts."""
    assert attrs.evolve(terminal_of(ending, outcome, 3), at_us=0) == terminal


def test_a_cancel_before_the_first_round_has_no_round() -> None:
    """Absent, not zero."""
    told = terminal_of(Cancelled("start"), Outcome(status="cancelled"), None).to_dict()

    assert "round" not in told
    assert "reason" not in told


def test_a_stopped_run_passes_shields_around_foreign_code() -> None:
    """`except Exception` cannot swallow an ending."""
    ending = Cancelled("tools")

    def shielded() -> None:
        try:
            raise RunStopped(ending)
        except Exception:
            pytest.fail("a shield caught the ending")

    with pytest.raises(RunStopped) as stopped:
        shielded()

    assert stopped.value.ending is ending
