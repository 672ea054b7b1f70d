"""Old results become stubs: which, when, and never twice."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from compacting import FlatCounter, batch, check_fold, compactor, dialogue

from llm_agent import Message, notices
from llm_agent.compactor.aging import stub_for
from llm_agent.errors import BackendError
from llm_agent.testing import ScriptedBackend
from llm_agent.token_count import HeuristicCounter, UsageCounter

SMALL: dict[str, Any] = {"age_observations": True, "age_min_chars": 200, "age_reclaim_min": 1000}
FAR = 10_000_000


def aged(messages: list[Message], **options: Any) -> dict[int, str]:
    """Return the stubs of one pass below the trigger, by index."""
    subject = compactor([], FAR, **{**SMALL, "keep_recent": 1, **options})
    result = subject.compact(messages, target=FAR)
    check_fold(messages, result)
    return {one.index: one.stub for one in result.elisions}


def conversation(*chars_after: int, length: int = 500) -> list[Message]:
    """A result of *length* characters, and that many characters of content after it."""
    return [Message.user("go"), *batch(1, "x" * length), *(Message.assistant("y" * chars) for chars in chars_after)]


def test_a_stub_says_what_it_stands_for() -> None:
    """How long it was, whose it was, and that it can be had again."""
    stub = stub_for(51_234, "read")

    assert stub.startswith(notices.ELIDED_PREFIX)
    assert "51234-char read result" in stub
    assert "51234-char result" in stub_for(51_234, None)


@pytest.mark.parametrize(("after", "expected"), [(999, set()), (1000, {2})])
def test_a_result_ages_when_enough_has_come_after_it(after: int, expected: set[int]) -> None:
    """The last character counts."""
    assert expected == set(aged(conversation(after)))


@pytest.mark.parametrize(("length", "expected"), [(200, set()), (201, {2})])
def test_only_a_long_result_ages(length: int, expected: set[int]) -> None:
    """Longer than the least, not as long."""
    assert expected == set(aged(conversation(5000, length=length)))


def test_the_recent_window_does_not_age() -> None:
    """Only what a summariser would get."""
    assert aged(conversation(5000), keep_recent=3) == {}


def test_a_pinned_result_does_not_age() -> None:
    """Pinned is pinned."""
    messages = conversation(5000)
    pinned = Message("tool", messages[2].content, tool_call_id="c1_0", sticky=True)

    assert aged([*messages[:2], pinned, *messages[3:]]) == {}


def test_an_older_answer_to_a_repeated_call_ages_at_once() -> None:
    """However short and young, and however the model spelt the call."""
    first, second = '{"a": 1, "b": 2}', '{"b":2,"a":1}'
    messages = [
        Message.user("go"),
        *batch(1, "x" * 150, arguments=first),
        *batch(2, "x" * 150, arguments=second),
        Message.user("on"),
    ]

    assert {2: stub_for(150, "read")} == aged(messages)


def test_the_newest_answer_to_a_repeated_call_never_ages() -> None:
    """Its older copies are gone, so this one is needed; it counts over the whole conversation."""
    same = {"arguments": "{}"}
    messages = [*batch(1, "x" * 500, **same), *batch(2, "x" * 500, **same), Message.assistant("y" * 5000), *dialogue(3)]

    assert {1} == set(aged(messages))


def test_equal_calls_of_other_tools_are_other_calls() -> None:
    """The name is part of what a call means."""
    messages = [
        *batch(1, "x" * 150, arguments="{}"),
        *batch(2, "x" * 150, name="list", arguments="{}"),
        *dialogue(3),
    ]

    assert aged(messages) == {}


def test_an_id_that_comes_again_is_another_call() -> None:
    """A result answers the turn before it, whatever ids earlier turns used."""
    one, other = batch(1, "x" * 150, arguments='{"n": 1}'), batch(1, "x" * 150, arguments='{"n": 2}')

    assert aged([*one, *other, *dialogue(3)]) == {}


def test_a_result_that_answers_nothing_ages_by_the_ordinary_rules() -> None:
    """Its stub names no tool."""
    messages = [Message.user("go"), Message.tool("gone", "x" * 500), Message.assistant("y" * 5000), Message.user("on")]

    assert {1: stub_for(500, None)} == aged(messages)


def test_an_id_of_an_earlier_turn_names_no_call() -> None:
    """A result that comes too late is one that answers nothing."""
    late = Message.tool("c1_0", "x" * 500)
    messages = [*batch(1, "a"), *batch(2, "b"), late, Message.assistant("y" * 5000), Message.user("on")]

    assert aged(messages) == {4: stub_for(500, None)}


def test_a_cancelled_pass_leaves_no_stub() -> None:
    """The conversation comes back as it is."""
    cancelled = threading.Event()
    cancelled.set()
    messages = conversation(5000)

    result = compactor([], FAR, **SMALL, keep_recent=1).compact(messages, cancelled=cancelled)

    assert (messages, ()) == (list(result.messages), result.elisions)


def test_a_stub_longer_than_the_result_is_not_made() -> None:
    """It would gain nothing."""
    messages = [*batch(1, "ok", arguments="{}"), *batch(2, "ok", arguments="{}"), *dialogue(3)]

    assert aged(messages) == {}


def test_a_stub_is_never_stubbed_again() -> None:
    """The second pass finds nothing, and one that asks whether it is time hears no."""
    subject = compactor([], FAR, **SMALL, keep_recent=1)
    messages = conversation(5000, length=1500)
    assert subject.needs_compaction(messages)

    once = list(subject.compact(messages, target=FAR).messages)

    assert not subject.needs_compaction(once)
    assert aged(once) == {}


def test_reading_again_does_not_spin() -> None:
    """The result that is fetched again is the newest answer, and stays."""
    subject = compactor([], FAR, **SMALL, keep_recent=1)
    messages = [*batch(1, "x" * 1500, arguments="{}"), Message.assistant("y" * 2000), Message.user("on")]
    once = list(subject.compact(messages, target=FAR).messages)

    again = [*once, *batch(2, "x" * 1500, arguments="{}"), Message.assistant("y" * 5000), Message.user("on")]

    assert not subject.needs_compaction(again)
    assert aged(again) == {}


def test_aging_alone_asks_nobody_and_is_no_compaction() -> None:
    """Nothing is added or removed; position, role and id stay."""
    backend = ScriptedBackend([])
    messages = conversation(5000)
    subject = compactor(backend, FAR, **SMALL, keep_recent=1)

    result = subject.compact(messages)

    assert (
        result.dropped, result.summary, result.cut_index, result.fallback, result.exhausted,
    ) == (0, "", -1, False, False)  # fmt: skip
    assert (backend.requests, result.billed) == ([], ())
    assert [(one.role, one.tool_call_id) for one in messages] == [
        (one.role, one.tool_call_id) for one in result.messages
    ]
    check_fold(messages, result)


@pytest.mark.parametrize(("length", "expected"), [(999, False), (1000, True)])
def test_it_is_time_below_the_trigger_when_the_pool_is_full(length: int, expected: bool) -> None:
    """A pass costs the prompt cache, so it waits until it is worth it; the last character counts."""
    subject = compactor([], FAR, **SMALL, keep_recent=1)

    assert expected == subject.needs_compaction(conversation(5000, length=length))


def test_it_is_never_time_for_aging_when_that_is_off() -> None:
    """The default leaves results alone."""
    messages = conversation(50_000, length=100_000)
    subject = compactor(["notes"], FAR, keep_recent=1)

    assert not subject.needs_compaction(messages)
    assert subject.compact(messages).elisions == ()


def test_asking_again_follows_a_conversation_that_grows_and_is_rewritten() -> None:
    """What was learned of one conversation is no answer about another."""
    subject = compactor([], FAR, **SMALL, keep_recent=1)
    old, young = conversation(5000, length=1500), conversation(100, length=1500)

    assert not subject.needs_compaction(young)
    assert subject.needs_compaction([*young, Message.assistant("y" * 5000), Message.user("on")])
    assert not subject.needs_compaction(young)
    assert subject.needs_compaction(old)


def test_stubs_that_are_enough_spare_the_summary() -> None:
    """Over the trigger it ages first, counts again, and stops."""
    backend = ScriptedBackend([])
    subject = compactor(backend, 1000, counter=HeuristicCounter(), **SMALL, keep_recent=1)
    messages = [Message.user("go"), *batch(1, "x" * 4000), Message.assistant("y" * 1000), Message.user("on")]

    result = subject.compact(messages)

    assert ([one.index for one in result.elisions], result.dropped, backend.requests) == ([2], 0, [])
    assert result.tokens_after <= subject.trigger < result.tokens_before


def test_what_aging_cannot_do_a_summary_does() -> None:
    """The summariser reads the stubs, and the result is the fold of the aged conversation."""
    backend = ScriptedBackend(["notes"])
    messages = [Message.user("go"), *batch(1, "x" * 4000), Message.assistant("y" * 8000), Message.user("on")]

    result = compactor(backend, 1000, counter=HeuristicCounter(), **SMALL, keep_recent=1).compact(messages)

    assert ([one.index for one in result.elisions], result.dropped) == ([2], 4)
    assert stub_for(4000, "read") in backend.requests[0].messages[1].text
    check_fold(messages, result)


def test_a_trim_of_an_aged_conversation_keeps_the_stubs() -> None:
    """What the trim does not drop has aged all the same."""
    refused = [BackendError("bad key", "http", 401)]
    messages = [Message.user("old"), Message.assistant("z" * 4000), *conversation(1600, 8, 8)]
    subject = compactor(
        refused, 1000, counter=HeuristicCounter(), **SMALL, keep_recent=1, target_ratio=0.65, trigger_ratio=0.7
    )

    result = subject.compact(messages)

    assert (result.fallback, [one.index for one in result.elisions], result.dropped) == (True, [4], 2)
    check_fold(messages, result)


def test_a_target_below_the_aged_size_goes_on_to_a_summary() -> None:
    """With a target, that is what must be reached."""
    result = compactor(["notes"], FAR, **SMALL, keep_recent=1).compact(conversation(5000, 8), target=30)

    assert result.dropped == 3


def test_aging_drops_a_calibration() -> None:
    """The bill was for other bytes."""
    counter = UsageCounter(FlatCounter())
    counter.record_usage(prompt_tokens=900, message_count=4)

    compactor([], FAR, counter=counter, **SMALL, keep_recent=1).compact(conversation(5000))

    assert counter.calibration() == {}
