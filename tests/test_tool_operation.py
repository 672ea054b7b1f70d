"""One call's life: every move the table allows, and no other; a clock that waits for humans."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from llm_agent.canonical import data_digest
from llm_agent.errors import ConfigError
from llm_agent.tool_operation import (
    BUGS,
    IDEMPOTENCIES,
    SAFE_TO_REPEAT,
    SETTLEMENTS,
    TERMINAL_STATES,
    TRANSITIONS,
    OperationState,
    ToolOperation,
    Verb,
)

S, V = OperationState, Verb


def operation(**fields: Any) -> ToolOperation:
    return ToolOperation(call_id="call_1", tool="write_file", **fields)


def operation_in(state: OperationState) -> ToolOperation:
    """An operation that got to *state* by the moves of the table."""
    op = operation()
    if state is S.ABANDONED:
        assert op.abandon()
    elif state is not S.PROPOSED:
        assert op.dispatch(1.0)
        if state is not S.DISPATCHED:
            assert op.settle(state.value, 2.0, "first")  # type: ignore[arg-type]  # a settlement by elimination
    assert op.state is state
    return op


# Each (state, verb) pair with every target the verb has, and what must come of it.
MOVES: dict[str, tuple[Verb, OperationState, Callable[[ToolOperation], bool]]] = {
    "dispatch": (V.DISPATCH, S.DISPATCHED, lambda op: op.dispatch(5.0, "op-2")),
    "complete": (V.SETTLE, S.COMPLETED, lambda op: op.settle("completed", 5.0)),
    "fail": (V.SETTLE, S.FAILED, lambda op: op.settle("failed", 5.0)),
    "give up": (V.SETTLE, S.OUTCOME_UNKNOWN, lambda op: op.settle("outcome-unknown", 5.0, "deadline")),
    "abandon": (V.ABANDON, S.ABANDONED, lambda op: op.abandon("deadline")),
}
LEGAL = {
    (S.PROPOSED, "dispatch"),
    (S.PROPOSED, "abandon"),
    (S.DISPATCHED, "complete"),
    (S.DISPATCHED, "fail"),
    (S.DISPATCHED, "give up"),
}
RAISING = {(S.PROPOSED, "complete"), (S.PROPOSED, "fail"), (S.PROPOSED, "give up")}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("state", OperationState)
def test_every_move_from_every_state(state: OperationState, move: str) -> None:
    """A legal move is made, a lost race answers False and changes nothing, a bug raises."""
    op = operation_in(state)
    before = op.to_dict()
    _, target, make = MOVES[move]

    if (state, move) in RAISING:
        with pytest.raises(ValueError, match="'call_1': cannot settle while proposed"):
            make(op)
    else:
        assert make(op) is ((state, move) in LEGAL)

    assert op.state is (target if (state, move) in LEGAL else state)
    if (state, move) not in LEGAL:
        assert op.to_dict() == before


def test_the_table_says_what_the_operation_does() -> None:
    """The table is the machine: its pairs are the legal moves, its gaps are lost races or bugs."""
    table = {
        (state, verb, target)
        for state, moves in TRANSITIONS.items()
        for verb, goals in moves.items()
        for target in goals
    }

    assert table == {(state, *MOVES[move][:2]) for state, move in LEGAL}
    assert {(state, MOVES[move][0]) for state, move in RAISING} == BUGS
    assert {S.COMPLETED, S.FAILED, S.OUTCOME_UNKNOWN, S.ABANDONED} == TERMINAL_STATES


def test_nothing_leads_from_unknown_to_abandoned_or_back() -> None:
    """A call that left is never said not to have run, and the reverse."""
    assert S.ABANDONED not in {goal for goals in TRANSITIONS[S.DISPATCHED].values() for goal in goals}
    assert not TRANSITIONS[S.OUTCOME_UNKNOWN]
    assert not TRANSITIONS[S.ABANDONED]


@pytest.mark.parametrize("state", OperationState)
@pytest.mark.parametrize("outcome", ["abandoned", "proposed", "done", "", None])
def test_settling_with_what_is_no_settlement_raises_in_every_state(state: OperationState, outcome: Any) -> None:
    """Also where the first answer stands already: it is a mistake of the caller, not a race."""
    op = operation_in(state)

    with pytest.raises(ValueError, match="outcome must be one of completed, failed, outcome-unknown"):
        op.settle(outcome, 5.0)

    assert op.state is state


@pytest.mark.parametrize("state", OperationState)
def test_an_outcome_is_known_at_the_end_only(state: OperationState) -> None:
    """`None` until terminal, then the word of the state."""
    op = operation_in(state)

    assert op.is_terminal is (state in TERMINAL_STATES)
    assert op.outcome == (state.value if op.is_terminal else None)


def test_the_first_answer_keeps_its_reason() -> None:
    """A later settle changes neither state nor words."""
    op = operation_in(S.OUTCOME_UNKNOWN)

    op.settle("completed", 9.0, "second")

    assert (op.state, op.reason, op.duration) == (S.OUTCOME_UNKNOWN, "first", 1.0)


def raced(threads: int, move: Callable[[int], bool]) -> list[bool]:
    """What *threads* threads get that make *move* (with their number) at the same moment."""
    start = threading.Barrier(threads)

    def run(number: int) -> bool:
        start.wait(5)
        return move(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads), timeout=5))


@pytest.mark.parametrize("outcome", SETTLEMENTS)
def test_of_twenty_threads_that_settle_one_wins(outcome: Any) -> None:
    """Win or lose: exactly one True."""
    op = operation_in(S.DISPATCHED)

    assert sorted(raced(20, lambda _: op.settle(outcome, 2.0))) == [False] * 19 + [True]


def test_dispatch_and_abandon_exclude_each_other() -> None:
    """However the race goes, the call either left or never did."""
    for _ in range(20):
        op = operation()

        def move(number: int, op: ToolOperation = op) -> bool:
            return op.dispatch(1.0) if number % 2 else op.abandon()

        won = raced(10, move)

        assert won.count(True) == 1
        assert op.state is (S.DISPATCHED if won.index(True) % 2 else S.ABANDONED)


# -- identity -------------------------------------------------------------------------------


def test_dispatch_takes_the_id_of_the_transcript_line() -> None:
    """Without one, the operation keeps the id it was made with."""
    named, unnamed = operation(), operation()
    own = unnamed.op_id

    named.dispatch(1.0, "line-7")
    unnamed.dispatch(1.0)

    assert named.op_id == "line-7"
    assert unnamed.op_id == own
    assert uuid.UUID(own).version == 4


def test_a_dispatch_that_lost_leaves_the_id_alone() -> None:
    """The id belongs to the line that was written first."""
    op = operation()
    op.dispatch(1.0, "line-7")

    op.dispatch(2.0, "line-8")

    assert op.op_id == "line-7"


def test_the_signature_is_tool_and_arguments() -> None:
    """No pair of texts can be joined into another pair's signature."""
    assert operation(arguments='{"a":1}').signature == 'write_file\0{"a":1}'
    assert operation(arguments='{"a":1}').arguments_digest == data_digest('{"a":1}')


@pytest.mark.parametrize("idempotency", ["safe", "", None])
def test_an_unknown_idempotency_is_refused(idempotency: Any) -> None:
    """The message names the four words."""
    with pytest.raises(ConfigError, match="idempotency must be one of read-only, idempotent, destructive, unknown"):
        operation(idempotency=idempotency)


def test_only_what_is_read_or_idempotent_is_safe_to_repeat() -> None:
    """Unknown is not safe."""
    assert operation().idempotency == "unknown"
    assert set(IDEMPOTENCIES) - SAFE_TO_REPEAT == {"destructive", "unknown"}


# -- the clock ------------------------------------------------------------------------------


def dispatched(at: float = 100.0) -> ToolOperation:
    op = operation()
    op.dispatch(at)
    return op


def test_nothing_was_worked_before_the_dispatch() -> None:
    """Waiting for its turn is no work of the call."""
    op = operation()

    assert op.working_seconds(1e9) == 0.0
    assert op.duration is None


def test_working_time_runs_from_the_dispatch() -> None:
    """Monotonic seconds, never below zero."""
    op = dispatched(at=100.0)

    assert op.working_seconds(103.5) == 3.5
    assert op.working_seconds(99.0) == 0.0
    assert op.duration is None


def test_working_time_stands_still_during_an_ask() -> None:
    """A human who thinks for an hour costs the call nothing."""
    op = dispatched(at=100.0)

    op.begin_ask(101.0)
    assert op.is_asking
    assert op.working_seconds(3_700.0) == 1.0
    assert op.ask_seconds == 0.0
    op.end_ask(3_701.0)

    assert not op.is_asking
    assert op.working_seconds(3_703.0) == 3.0
    assert op.ask_seconds == 3_600.0


def test_nested_asks_are_one_span() -> None:
    """The first opens, the last closes; the inner one banks nothing."""
    op = dispatched(at=0.0)

    op.begin_ask(1.0)
    op.begin_ask(2.0)
    op.end_ask(3.0)
    assert op.is_asking
    assert op.ask_seconds == 0.0
    op.end_ask(5.0)

    assert op.ask_seconds == 4.0
    assert op.working_seconds(6.0) == 2.0


def test_an_end_without_an_ask_is_ignored() -> None:
    """Depth never goes below zero."""
    op = dispatched(at=0.0)

    op.end_ask(1.0)
    op.begin_ask(2.0)

    assert op.is_asking
    assert op.working_seconds(5.0) == 2.0


def test_settling_closes_an_open_ask_and_freezes_the_clock() -> None:
    """What is over does not grow."""
    op = dispatched(at=0.0)
    op.begin_ask(1.0)
    op.begin_ask(1.5)

    op.settle("outcome-unknown", 4.0, "cancelled")

    assert not op.is_asking
    assert op.ask_seconds == 3.0
    assert op.working_seconds(1e9) == 1.0
    assert op.duration == 4.0


def test_an_ask_after_the_end_changes_nothing() -> None:
    """A provider that nobody waits for any more may still ask; its call's times are history."""
    op = dispatched(at=0.0)
    op.settle("outcome-unknown", 4.0, "deadline")
    before = op.to_dict()

    op.begin_ask(5.0)
    assert not op.is_asking
    op.end_ask(60.0)

    assert op.working_seconds(100.0) == 4.0
    assert op.to_dict() == before


# -- telling --------------------------------------------------------------------------------


def test_what_is_not_known_yet_is_absent() -> None:
    """A fresh operation tells its eight facts as plain JSON data."""
    at = datetime(2026, 8, 9, 13, 10, 8, tzinfo=UTC)

    told = operation(op_id="op-1", proposed_at=at).to_dict()

    assert told == {
        "op-id": "op-1",
        "call-id": "call_1",
        "tool": "write_file",
        "arguments": "",
        "arguments-digest": data_digest(""),
        "idempotency": "unknown",
        "state": "proposed",
        "proposed-at": "2026-08-09T13:10:08.000000Z",
    }
    assert json.loads(json.dumps(told)) == told


def test_a_settled_operation_tells_how_it_went() -> None:
    """Run, round, reason and times join in once they are known."""
    op = operation(run_id="run-1", round=0)
    op.dispatch(1.0)
    op.begin_ask(2.0)
    op.settle("failed", 5.0, "broke")

    told = op.to_dict()

    assert {key: told[key] for key in ("run-id", "round", "state", "reason", "duration", "ask-seconds")} == {
        "run-id": "run-1",
        "round": 0,
        "state": "failed",
        "reason": "broke",
        "duration": 4.0,
        "ask-seconds": 3.0,
    }
