"""Retry, limits and patterns: arithmetic, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.errors import ConfigError
from llm_agent.limits import LimitHit, Limits, Tally
from llm_agent.patterns import checked_patterns, matches
from llm_agent.retry import Decision, RetryPolicy, classify_error, no_backoff, retry_backoff


@pytest.mark.parametrize(
    ("error_class", "status", "bucket"),
    [
        *[("http", status, "abort") for status in (400, 401, 402, 403, 404)],
        ("http", 429, "advance"),
        ("http", 408, "advance"),
        ("http", None, "advance"),
        *[("http", status, "retry-same") for status in (500, 502, 503, 599)],
        ("http", 600, "advance"),
        ("timeout", None, "advance"),
        ("connection", None, "retry-same"),
        ("response", None, "advance"),
        ("unknown", None, "retry-same"),
        (None, None, "retry-same"),
        ("surprise", 400, "retry-same"),
    ],
)
def test_failures_fall_into_their_bucket(error_class: str | None, status: int | None, bucket: str) -> None:
    """The table of buckets, row by row."""
    assert bucket == classify_error(error_class, status)


def test_an_unreadable_answer_is_another_backends_chance() -> None:
    """Whatever its class, what cannot be read will not become readable."""
    assert classify_error("connection", parser_failed=True) == "advance"


@pytest.mark.parametrize(("retry", "low", "high"), [(1, 1, 1.5), (2, 2, 2.5), (3, 4, 4.5), (4, 8, 8.5), (5, 16, 16.5)])
def test_backoff_doubles(retry: int, low: float, high: float) -> None:
    """Seconds before retry n, jitter included."""
    assert low <= retry_backoff(retry) <= high


@given(st.integers(1, 5000), st.floats(0.001, 100))
def test_backoff_never_exceeds_its_cap(retry: int, cap: float) -> None:
    """The cap is applied behind the jitter, and large numbers do not overflow."""
    assert 0 < retry_backoff(retry, cap) <= cap


def test_backoff_counts_from_one() -> None:
    """A zeroth retry is a bug of the caller."""
    with pytest.raises(ValueError, match="counts from 1"):
        retry_backoff(0)


def test_no_backoff_makes_retries_wait_nothing() -> None:
    """For tests: only inside the block."""
    with no_backoff():
        inside = retry_backoff(5)

    assert inside == 0.0
    assert retry_backoff(5) > 0


def decide(bucket: str, **facts: object) -> Decision:
    defaults: dict[str, object] = {"attempts": 1, "is_last": False, "may_degrade": True}
    return RetryPolicy(max_attempts=3, backoff_cap=30).decide(bucket, **(defaults | facts))  # type: ignore[arg-type]


def test_abort_is_final() -> None:
    """Nothing about the chain turns an abort into a retry."""
    assert decide("abort", is_last=True, retry_after=1.0) == Decision("abort")


def test_advance_moves_on_at_once_where_there_is_somewhere_to_go() -> None:
    """No wait is announced for a step along the chain."""
    assert decide("advance") == Decision("advance")


def test_advance_with_nowhere_to_go_becomes_a_wait() -> None:
    """A sole backend is not given up for a rate limit."""
    decision = decide("advance", is_last=True)

    assert decision.disposition == "retry-same"
    assert decision.backoff is not None


def test_a_request_that_will_not_fit_is_never_sent_again() -> None:
    """The same bytes would be refused the same way."""
    assert decide("advance", is_last=True, may_degrade=False) == Decision("advance")


def test_attempts_run_out() -> None:
    """max_retries counts attempts, the first one included."""
    assert decide("retry-same", attempts=2).disposition == "retry-same"
    assert decide("retry-same", attempts=3) == Decision("advance")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"retry_after": 20.0}, 20.0),
        ({"retry_after": 31.0}, None),
        ({"retry_after": 90.0, "is_last": True}, 90.0),
        ({"retry_after": 121.0, "is_last": True}, None),
        ({"retry_after": 9.0, "is_last": True, "retry_after_cap": 8.0}, None),
    ],
)
def test_a_server_that_asks_for_time_gets_it_up_to_a_cap(facts: dict[str, object], expected: float | None) -> None:
    """With a next backend the backoff's cap decides, on the last one its own."""
    decision = decide("retry-same", **facts)

    assert decision.backoff == expected
    assert decision.disposition == ("advance" if expected is None else "retry-same")


def test_a_shorter_wish_does_not_shorten_the_backoff() -> None:
    """Retry-After: 0 is no licence to hammer."""
    backoff = decide("retry-same", retry_after=0.0).backoff

    assert backoff is not None
    assert backoff >= 1.0


# -- limits ------------------------------------------------------------------------------


def test_limits_are_checked_in_order() -> None:
    """Where all three would break, the rounds are named."""
    limits = Limits(max_tool_rounds=0, max_tool_calls=0, max_identical_calls=1)

    assert limits.check(Tally(), [("a", "a")] * 5) == LimitHit("tool-rounds", 0, 0)


def test_calls_count_across_rounds() -> None:
    """The would-be total is what is reported."""
    tally = Tally(rounds=1)
    tally.count(["a", "b"])

    assert Limits(max_tool_calls=2).check(tally, [("c", "c")]) == LimitHit("tool-calls", 3, 2)


def test_a_batch_counts_against_itself() -> None:
    """One more than allowed is refused whole, and none of it runs."""
    limits = Limits(max_identical_calls=2)

    assert limits.check(Tally(), [("a", "a")] * 2) is None
    assert limits.check(Tally(), [("a", "a")] * 3) == LimitHit("identical-calls", 3, 2)


def test_exempt_calls_neither_trip_nor_count() -> None:
    """The other two limits still bound them."""
    limits = Limits(max_identical_calls=1, identical_call_exempt=("lock*",), max_tool_calls=50)

    assert limits.check(Tally(), [("lock_x", "lock_x")] * 40) is None
    assert limits.check(Tally(), [("lock_x", "lock_x")] * 51) == LimitHit("tool-calls", 51, 50)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "ab", True),
        ("*", "", True),
        ("A*", "ab", False),
        ("a*b", "aab", False),
    ],
)
def test_patterns_are_exact_or_a_prefix(pattern: str, name: str, expected: bool) -> None:
    """Only a trailing star means anything."""
    assert matches(pattern, name) is expected


@pytest.mark.parametrize("patterns", ["fs_*", [""], ["  "], [{"tool": "a"}], [3]])
def test_patterns_that_are_none_are_refused(patterns: object) -> None:
    """A rule mapping is the likeliest slip, a lone string the next."""
    with pytest.raises(ConfigError, match="option"):
        checked_patterns("option", patterns)


def test_patterns_may_come_from_a_generator() -> None:
    """It is walked once: what was checked is what counts."""
    assert checked_patterns("option", (pattern for pattern in ("a", "b*"))) == ("a", "b*")
