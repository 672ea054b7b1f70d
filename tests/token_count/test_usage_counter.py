"""Sizes learned from bills: a calibration never outlives its conversation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.errors import ConfigError
from llm_agent.messages import Message, PrefixDigest, ToolRequest, messages_digest
from llm_agent.ports import TokenCounter
from llm_agent.token_count import HeuristicCounter, UsageCounter

TOOLS = [{"type": "function", "function": {"name": "read_file"}}]


def user(characters: int) -> Message:
    return Message.user("x" * characters)


def calibrated(
    messages: Sequence[Message], tokens: int = 1_000, backend: str | None = "m", **other: Any
) -> UsageCounter:
    """A counter that learned that *messages* cost *tokens*."""
    counter = UsageCounter()
    counter.record_usage(
        prompt_tokens=tokens,
        message_count=len(messages),
        prefix_digest=messages_digest(messages),
        backend=backend,
        **other,
    )
    return counter


SENT = [Message.system("s"), user(8)]


def test_a_counter_that_knows_nothing_estimates() -> None:
    """Everything is the fallback's."""
    counter = UsageCounter()

    assert counter.count_messages(SENT) == HeuristicCounter().count_messages(SENT)
    assert counter.count_request(SENT, TOOLS) == HeuristicCounter().count_request(SENT, TOOLS)
    assert counter.calibration() == {}
    assert counter.last_completion_tokens is None


def test_what_was_billed_is_known() -> None:
    """The declarations sent with it are in the bill."""
    counter = calibrated(SENT)

    assert counter.count_messages(SENT) == 1_000
    assert counter.count_request(SENT, TOOLS) == 1_000


def test_what_came_after_is_estimated() -> None:
    """The bill, and the tail by the fallback; the calibration is kept."""
    counter = calibrated(SENT)

    assert counter.count_messages([*SENT, user(8)]) == 1_010
    assert counter.count_request([*SENT, user(8), user(1)], TOOLS) == 1_019
    assert counter.count_messages(SENT) == 1_000


def test_a_bill_of_nothing_is_a_bill() -> None:
    """0 tokens for 0 messages is a number like any other."""
    counter = UsageCounter()

    counter.record_usage(prompt_tokens=0, message_count=0)

    assert counter.count_messages([user(8)]) == 10
    assert counter.calibration() == {"message-count": 0, "prompt-tokens": 0}


@pytest.mark.parametrize("count", ["count_messages", "count_request"])
def test_a_shorter_conversation_drops_the_calibration_for_good(count: str) -> None:
    """Growing back to the old length does not bring the old bill back."""
    counter = calibrated(SENT)
    estimate = HeuristicCounter()
    arguments: tuple[Any, ...] = () if count == "count_messages" else ([],)

    assert getattr(counter, count)(SENT[:1], *arguments) == getattr(estimate, count)(SENT[:1], *arguments)
    assert getattr(counter, count)(SENT, *arguments) == getattr(estimate, count)(SENT, *arguments)
    assert counter.calibration() == {}


def test_a_trusted_calibration_does_not_survive_a_shorter_conversation() -> None:
    """Its length is all that is known of it, and that no longer fits."""
    counter = UsageCounter()
    counter.record_usage(prompt_tokens=1_000, message_count=2)

    assert counter.count_messages([user(8)]) == 10
    assert counter.count_messages([user(8)] * 2) == 20


@pytest.mark.parametrize(
    "other",
    [
        [Message.system("t"), user(8)],
        [Message.system("s"), user(9)],
        [Message("system", "s", sticky=True), user(8)],
        [user(8), Message.system("s")],
        [Message.system("s"), Message("user", "x" * 8, [ToolRequest("c", "n", "{}")])],
    ],
    ids=range(5),
)
def test_another_conversation_of_the_same_length_drops_the_calibration(other: list[Message]) -> None:
    """Also where only a pin or a call differs; the old one does not come back either."""
    counter = calibrated(SENT)

    assert counter.count_messages(other) == HeuristicCounter().count_messages(other)
    assert counter.count_messages(SENT) == HeuristicCounter().count_messages(SENT)


def test_without_a_digest_a_calibration_is_trusted() -> None:
    """Only the length can tell then."""
    counter = UsageCounter()
    counter.record_usage(prompt_tokens=1_000, message_count=2)

    assert counter.count_messages([user(100), user(100), user(8)]) == 1_010


def test_equal_messages_that_are_other_objects_are_the_same_conversation() -> None:
    """A replayed conversation keeps its bill."""
    counter = calibrated(SENT)
    assert counter.count_messages(SENT) == 1_000

    assert counter.count_messages([Message.from_dict(message.to_dict()) for message in SENT]) == 1_000


def test_the_newest_report_replaces() -> None:
    """Each round's bill covers more."""
    counter = calibrated(SENT)
    longer = [*SENT, user(8)]

    counter.record_usage(prompt_tokens=1_234, message_count=3, prefix_digest=messages_digest(longer), backend="m")

    assert counter.count_messages(longer) == 1_234
    assert counter.calibration() == {
        "message-count": 3,
        "prompt-tokens": 1_234,
        "prefix-digest": messages_digest(longer),
        "backend": "m",
    }


def test_a_bill_covers_the_context_too() -> None:
    """It was sent with the messages that were billed."""
    context = [user(400)]
    counter = calibrated(SENT)

    assert counter.count_request(SENT, TOOLS, context) == 1_000
    assert counter.count_request([*SENT, user(8)], TOOLS, context) == 1_010


def test_without_a_bill_the_context_is_estimated() -> None:
    """Like the messages and the declarations."""
    context = [user(400)]
    counter, estimate = UsageCounter(), HeuristicCounter()

    assert counter.count_request(SENT, TOOLS, context) == estimate.count_request(SENT, TOOLS, context)


def test_calls_that_grew_in_place_drop_the_calibration() -> None:
    """A turn whose calls are other ones was never billed."""
    call = ToolRequest("c", "n", "{}")
    counter = calibrated([*SENT, Message.assistant("", [call])])
    grown = [*SENT, Message.assistant("", [call, call])]

    assert counter.count_messages(grown) == HeuristicCounter().count_messages(grown)
    assert counter.calibration() == {}


@pytest.mark.parametrize("tokens", [None, -1, 1.5, "9", True])
@pytest.mark.parametrize("field", ["prompt_tokens", "message_count"])
def test_a_report_without_both_numbers_teaches_nothing(field: str, tokens: Any) -> None:
    """What was learned before stays."""
    counter = calibrated(SENT)
    report: dict[str, Any] = {"prompt_tokens": 5, "message_count": 2} | {field: tokens}

    counter.record_usage(**report, backend="m")

    assert counter.count_messages(SENT) == 1_000


@pytest.mark.parametrize(("reported", "kept"), [(7, 7), (0, 0), (-1, 3), (None, 3), (True, 3)])
def test_the_latest_completion_is_kept_and_never_counted(reported: Any, kept: int) -> None:
    """It can be looked at; a report without one leaves it."""
    counter = calibrated(SENT, completion_tokens=3)

    counter.record_usage(prompt_tokens=None, completion_tokens=reported)

    assert counter.last_completion_tokens == kept
    assert counter.count_messages(SENT) == 1_000


def test_an_empty_report_of_another_backend_drops_the_calibration() -> None:
    """Other tokens, other sizes, even before it has said a number."""
    counter = calibrated(SENT, backend="m")

    counter.record_usage(prompt_tokens=None, backend="n")

    assert counter.calibration() == {}


@pytest.mark.parametrize(("before", "after"), [("m", "m"), ("m", None), (None, "m")])
def test_an_empty_report_of_no_other_backend_keeps_the_calibration(before: str | None, after: str | None) -> None:
    """Nothing says that the tokens have changed."""
    counter = calibrated(SENT, backend=before)

    counter.record_usage(prompt_tokens=None, backend=after)

    assert counter.count_messages(SENT) == 1_000


def test_the_numbers_of_another_backend_replace() -> None:
    """The newest bill is the one that counts."""
    counter = calibrated(SENT, backend="m")

    counter.record_usage(prompt_tokens=77, message_count=2, prefix_digest=messages_digest(SENT), backend="n")

    assert counter.count_messages(SENT) == 77


def test_counting_a_text_leaves_the_calibration_alone() -> None:
    """It is an estimate, whatever was billed."""
    counter = calibrated(SENT)

    assert counter.count_text("x" * 8) == 10
    assert counter.count_messages(SENT) == 1_000


def test_invalidating_forgets() -> None:
    """The next count is an estimate; doing it again is harmless."""
    counter = calibrated(SENT)

    counter.invalidate()
    counter.invalidate()

    assert counter.calibration() == {}
    assert counter.count_messages(SENT) == HeuristicCounter().count_messages(SENT)


def test_after_invalidation_the_next_bill_counts_again() -> None:
    """Forgetting is no state: the counter learns as it did at the start."""
    counter = calibrated(SENT)

    counter.invalidate()
    counter.record_usage(prompt_tokens=70, message_count=2, prefix_digest=messages_digest(SENT), backend="n")

    assert counter.count_messages(SENT) == 70


def test_an_absurd_bill_of_another_backend_teaches_nothing_and_drops() -> None:
    """Its number is no number, but it says that the tokens are other ones."""
    counter = calibrated(SENT, backend="m")

    counter.record_usage(prompt_tokens=-5, message_count=2, backend="n")

    assert counter.calibration() == {}


class Flat:
    """A counter of another kind: ten a piece."""

    def count_messages(self, messages: Sequence[Message]) -> int:
        return 10 * len(messages)

    def count_text(self, text: str) -> int:
        return 10

    def count_request(self, messages: Sequence[Message], tools: Sequence[Any], context: Sequence[Message] = ()) -> int:
        return 10 * len(messages) + 5

    def record_usage(self, **report: Any) -> None: ...

    def invalidate(self) -> None: ...


def test_any_counter_can_be_the_fallback() -> None:
    """It estimates the tail, the text and the unknown request."""
    flat: TokenCounter = Flat()
    counter = UsageCounter(flat)
    assert counter.count_request(SENT, TOOLS) == 25

    counter.record_usage(prompt_tokens=7, message_count=1)

    assert counter.count_messages(SENT) == 17
    assert counter.count_text("") == 10


@pytest.mark.parametrize("fallback", [Flat, object(), 4])
def test_what_is_no_counter_is_refused_as_fallback(fallback: Any) -> None:
    """A class in place of its instance too."""
    with pytest.raises(ConfigError, match="UsageCounter: fallback must be a counter with count_messages"):
        UsageCounter(fallback)


# -- the carried digest ---------------------------------------------------------------------

POOL = [user(length) for length in range(6)]


@given(st.lists(st.tuples(st.lists(st.sampled_from(POOL), max_size=6), st.integers(0, 6)), max_size=6))
def test_the_carried_digest_is_the_digest_of_the_prefix(calls: list[tuple[list[Message], int]]) -> None:
    """Whatever was asked before: grown, shrunk, rewritten."""
    carried = PrefixDigest()

    for messages, wanted in calls:
        count = min(wanted, len(messages))
        assert carried.of(messages, count) == messages_digest(messages[:count])


class Counted(str):
    """Text that counts how often it is hashed as a message's digest."""

    read = 0

    def __format__(self, spec: str) -> str:
        type(self).read += 1
        return str(self)


class Stub:
    """Stands for a message: all the carried digest looks at is the digest."""

    def __init__(self, digest: str) -> None:
        self.digest = Counted(digest)


def test_a_long_prefix_is_hashed_once() -> None:
    """Counting again costs no digest; growing costs those of the new messages."""
    carried = PrefixDigest()
    messages: list[Any] = [Stub(f"{number:064x}") for number in range(2_000)]
    carried.of(messages, 1_990)
    Counted.read = 0

    carried.of(messages, 1_990)
    assert Counted.read == 0
    carried.of(messages, 2_000)
    assert Counted.read == 10


def test_threads_may_share_a_counter() -> None:
    """A count is either billed or estimated, never a mixture of two bills."""
    counter = UsageCounter()
    longer = [*SENT, user(8)]
    bills = [(SENT, 1_000), (longer, 2_000)]
    start = threading.Barrier(4)

    def hammer(number: int) -> set[int]:
        messages, tokens = bills[number % 2]
        start.wait(5)
        seen = set()
        for _ in range(200):
            counter.record_usage(
                prompt_tokens=tokens, message_count=len(messages), prefix_digest=messages_digest(messages)
            )
            seen.add(counter.count_messages(longer))
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = set().union(*pool.map(hammer, range(4), timeout=20))

    assert seen <= {1_010, 2_000}
