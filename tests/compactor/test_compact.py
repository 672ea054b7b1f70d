"""A compaction: its shape, the ladder of means, what is refused, what it never does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from compacting import FlatCounter, batch, check_fold, compactor, dialogue

from llm_agent import ConfigError, Message, ToolRequest, notices
from llm_agent.compactor import Compactor
from llm_agent.errors import BackendError
from llm_agent.messages import Delta, Usage
from llm_agent.testing import Gate, ScriptedBackend, call, hang
from llm_agent.token_count import HeuristicCounter, UsageCounter

pytestmark = pytest.mark.usefixtures("no_wait")

DOWN = BackendError("upstream fell over", "http", 500)
REFUSED = BackendError("bad key", "http", 401)
TOO_LARGE = BackendError("This model's maximum context length is 8192 tokens", "http", 400)
LONG = "word " * 4_000


def trimmed_note(count: int) -> str:
    return f"{notices.SUMMARY_HEADER}\n{notices.SUMMARY_UNREACHABLE.format(count=count)}"


# -- thresholds and options -------------------------------------------------------------------


def test_thresholds_are_parts_of_the_budget() -> None:
    """A budget of 1000 is compacted above 800 and trimmed to 400."""
    subject = compactor(["x"], 1000)

    assert (subject.context_budget, subject.trigger, subject.target) == (1000, 800, 400)


def test_thresholds_are_exact_where_floats_are_not() -> None:
    """7 % of 100 is 7, although the product of the floats is a little more."""
    assert compactor(["x"], 100, target_ratio=0.07).target == 7


def test_it_is_time_only_above_the_trigger() -> None:
    """At the trigger nothing is due; one token above it, it is."""
    subject = compactor(["x"], 100)

    assert not subject.needs_compaction(dialogue(7))
    assert subject.needs_compaction(dialogue(8))
    assert not subject.needs_compaction(dialogue(8), tokens=80)
    assert subject.needs_compaction([], tokens=81)


def test_the_first_three_options_may_be_named() -> None:
    """Backend, counter and budget are keywords too."""
    subject = Compactor(backend=ScriptedBackend([]), counter=FlatCounter(), context_budget=10)

    assert subject.context_budget == 10
    assert subject.age_observations is False


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("context_budget", 0),
        ("context_budget", True),
        ("context_budget", 1.5),
        ("trigger_ratio", 0),
        ("trigger_ratio", float("nan")),
        ("trigger_ratio", "0.8"),
        ("target_ratio", -0.1),
        ("target_ratio", 0.8),
        ("keep_recent", -1),
        ("tool_result_cap", 0),
        ("max_attempts", 0),
        ("age_observations", "yes"),
        ("age_min_chars", -1),
        ("age_reclaim_min", 0),
        ("backoff_cap", 0),
        ("round_trip_timeout", 0),
        ("attempt_timeout", -1),
        ("backend", []),
        ("backend", ScriptedBackend),
        ("backend", "gpt"),
        ("backend", [ScriptedBackend([]), None]),
        ("counter", None),
        ("counter", HeuristicCounter),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_its_name(option: str, value: Any) -> None:
    """What cannot work is the caller's fault, and is said before anything runs."""
    options = {"backend": ScriptedBackend([]), "counter": FlatCounter(), "context_budget": 100, option: value}

    with pytest.raises(ConfigError, match=option):
        Compactor(**options)


# -- the summary ----------------------------------------------------------------------------


def test_a_summary_stands_between_what_is_pinned_and_what_is_recent() -> None:
    """The middle becomes one user message; its content is the result's summary, header and all."""
    messages = dialogue(9)

    result = compactor(["  they talked  "]).compact(messages)

    assert [messages[0], Message.user(result.summary), *messages[8:]] == list(result.messages)
    assert f"{notices.SUMMARY_HEADER}\nthey talked" == result.summary
    assert "earlier turns compacted" in result.summary
    assert (result.dropped, result.cut_index, result.tokens_before, result.tokens_after) == (7, 7, 100, 40)
    assert (result.fallback, result.exhausted, result.kept, result.elisions) == (False, False, (), ())
    check_fold(messages, result)


def test_the_input_is_left_alone() -> None:
    """A compaction makes a new conversation; the old list is not touched."""
    messages = dialogue(9)
    before = list(messages)

    compactor(["notes"]).compact(messages)

    assert before == messages


def test_nothing_to_replace_asks_nobody_and_keeps_a_calibration() -> None:
    """A conversation within the recent window comes back as it is."""
    backend, counter = ScriptedBackend([]), FlatCounter()
    messages = dialogue(2)

    result = compactor(backend, counter=counter).compact(messages)

    assert messages == list(result.messages)
    assert (
        result.dropped, result.cut_index, result.summary, result.fallback, result.exhausted,
    ) == (0, -1, "", False, False)  # fmt: skip
    assert (result.tokens_before, result.tokens_after) == (30, 30)
    assert (backend.requests, counter.invalidations) == ([], 0)


def test_nothing_to_replace_over_the_budget_is_exhausted() -> None:
    """What cannot be made smaller and does not fit says so; a target takes the budget's place."""
    subject = compactor([], 20, keep_recent=9)

    assert subject.compact(dialogue(2)).exhausted
    assert not subject.compact(dialogue(1)).exhausted
    assert subject.compact(dialogue(1), target=10).exhausted


def test_pinned_messages_are_never_summarised() -> None:
    """Sticky seeds alone leave nothing to do; over the budget that is the end."""
    backend = ScriptedBackend([])
    seeds = [Message("user", f"pin {number}", sticky=True) for number in range(12)]

    result = compactor(backend).compact(seeds)

    assert (result.exhausted, result.dropped, backend.requests) == (True, 0, [])


def test_an_accepted_summary_that_is_still_over_the_budget_is_not_exhausted() -> None:
    """It has gained something; whether that is enough is found out before the next request."""
    result = compactor(["notes"], 20).compact(dialogue(9))

    assert (result.tokens_after, result.exhausted) == (40, False)


def test_a_target_is_the_ceiling_of_a_summary() -> None:
    """A summary that leaves more than was asked for is not taken."""
    messages = dialogue(9)

    assert not compactor(["notes"]).compact(messages, target=40).fallback
    refused = compactor(["notes", "shorter"]).compact(messages, target=29)
    assert (refused.fallback, refused.exhausted) == (True, True)


def test_another_counter_counts_everything_of_one_call() -> None:
    """With a counter of its own, a call never asks the compactor's."""

    class Untouchable(FlatCounter):
        def count_messages(self, messages: Sequence[Message]) -> int:
            raise AssertionError("the compactor's own counter was asked")

    subject = compactor(["notes"], counter=Untouchable())

    assert subject.compact(dialogue(9), counter=FlatCounter(100)).tokens_after == 400


# -- too long ---------------------------------------------------------------------------------


def test_a_summary_that_does_not_shrink_is_tightened_once_and_then_trimmed() -> None:
    """Exactly one more request: the same transcript, an instruction that says TOO LONG."""
    backend = ScriptedBackend([LONG, LONG, "never asked"])

    result = compactor(backend, 400, counter=HeuristicCounter()).compact(dialogue(40))

    first, second = (request.messages for request in backend.requests)
    assert result.fallback
    assert first[1] == second[1]
    assert "TOO LONG" not in first[0].text
    assert first[0].text in second[0].text
    assert "TOO LONG" in second[0].text


def test_a_shorter_second_summary_is_taken() -> None:
    """The tightened one passes the same test and is smaller than the first."""
    result = compactor([LONG, "short"], 400, counter=HeuristicCounter()).compact(dialogue(40))

    assert (False, f"{notices.SUMMARY_HEADER}\nshort") == (result.fallback, result.summary)


def test_a_tightened_summary_of_the_same_size_is_not_taken() -> None:
    """It is no progress."""
    result = compactor(["notes", "notes"], keep_recent=3).compact(dialogue(9), target=25)

    assert result.fallback


@pytest.mark.parametrize(
    "cut",
    [
        [Delta("half a not"), Delta(finish_reason="length")],
        [Delta("half a not", finish_reason="stop", usage=Usage(completion_tokens=50))],
        [Delta("half", finish_reason="length"), BackendError("truncated", "response")],
        [Delta(finish_reason="length")],
    ],
    ids=["length", "clipped", "raised", "blank"],
)
def test_a_cut_summary_is_too_long_and_its_request_is_not_repeated(cut: Any) -> None:
    """Half a summary is none; it goes to the one tightened retry."""
    backend = ScriptedBackend([cut, "whole"], max_tokens=50)

    result = compactor(backend).compact(dialogue(9))

    assert f"{notices.SUMMARY_HEADER}\nwhole" == result.summary
    assert ["TOO LONG" in request.messages[0].text for request in backend.requests] == [False, True]


def test_a_tightened_summary_that_is_cut_again_ends_in_a_trim() -> None:
    """There is one tightened retry, not two."""
    cut = [Delta("half"), Delta(finish_reason="length")]
    backend = ScriptedBackend([cut, cut, "never asked"])

    assert compactor(backend).compact(dialogue(9)).fallback
    assert len(backend.requests) == 2


# -- failures ---------------------------------------------------------------------------------


def test_a_refusal_is_not_retried() -> None:
    """A summariser whose account is refused costs one request."""
    backend = ScriptedBackend([REFUSED, "never asked"])

    assert compactor(backend).compact(dialogue(9)).fallback
    assert len(backend.requests) == 1


def test_a_transient_failure_is_retried_three_times_in_all_by_default() -> None:
    """Then the conversation is trimmed."""
    backend = ScriptedBackend([DOWN] * 9)

    assert compactor(backend).compact(dialogue(9)).fallback
    assert len(backend.requests) == 3


def test_attempts_may_be_fewer() -> None:
    """`max_attempts` counts the first one too."""
    backend = ScriptedBackend([DOWN] * 9)

    compactor(backend, max_attempts=2).compact(dialogue(9))

    assert len(backend.requests) == 2


@pytest.mark.parametrize(
    "failure",
    [
        DOWN,
        RuntimeError("a bug of the backend"),
        SystemExit(3),
        "   \n",
        [Delta(finish_reason="stop")],
        [call("read", path="x")],
        ["Here they are.", call("read", path="x")],
    ],
    ids=["500", "raises", "exits", "blank", "nothing", "call", "text-and-call"],
)
def test_what_is_no_summary_is_a_failure_and_asked_for_again(failure: Any) -> None:
    """Blank text, a call of a tool and an exception are failed attempts."""
    backend = ScriptedBackend([failure, "notes"])

    result = compactor(backend).compact(dialogue(9))

    assert f"{notices.SUMMARY_HEADER}\nnotes" == result.summary
    assert len(backend.requests) == 2


def test_summarisers_are_asked_in_their_order() -> None:
    """A refused or exhausted one hands on to the next; the third is never needed."""
    refused, down = ScriptedBackend([REFUSED], model="a"), ScriptedBackend([DOWN] * 3, model="b")
    good, spare = ScriptedBackend(["notes"], model="c"), ScriptedBackend([], model="d")

    result = compactor([refused, down, good, spare]).compact(dialogue(9))

    assert not result.fallback
    assert [len(backend.requests) for backend in (refused, down, good, spare)] == [1, 3, 1, 0]
    assert [model for model, _ in result.billed] == ["a", "b", "b", "b", "c"]


def test_a_quiet_summariser_hands_on_at_once() -> None:
    """A failure that only another backend can cure is not repeated while there is another."""
    quiet = ScriptedBackend([BackendError("no activity", "timeout")])

    result = compactor([quiet, ScriptedBackend(["notes"])]).compact(dialogue(9))

    assert (result.fallback, len(quiet.requests)) == (False, 1)


def test_an_overflow_is_never_sent_again() -> None:
    """What does not fit one summariser goes to the next, and with the last one the middle is trimmed."""
    small, smaller = ScriptedBackend([TOO_LARGE]), ScriptedBackend([TOO_LARGE])

    assert compactor([small, smaller]).compact(dialogue(9)).fallback
    assert [len(small.requests), len(smaller.requests)] == [1, 1]


def test_an_overflow_with_a_status_that_would_be_retried_is_not() -> None:
    """Some servers say 500 and mean the window."""
    small = ScriptedBackend([BackendError("the request exceeds the available context size", "http", 500)])

    assert compactor(small).compact(dialogue(9)).fallback
    assert len(small.requests) == 1


def test_every_request_is_billed_failed_ones_too() -> None:
    """What a failed attempt reported is part of the bill."""
    usage = Usage(prompt_tokens=7, completion_tokens=1)
    failing = [Delta("half", usage=usage), DOWN]
    backend = ScriptedBackend([failing, [Delta("notes", finish_reason="stop", usage=usage)]], model="sum")

    result = compactor(backend).compact(dialogue(9))

    assert (("sum", usage), ("sum", usage)) == result.billed


def test_a_request_carries_no_tools() -> None:
    """A summariser is offered nothing that it could call, and gets two messages."""
    backend = ScriptedBackend(["notes"])

    compactor(backend).compact(dialogue(9))

    (request,) = backend.requests
    assert (request.tools, request.tool_choice) == ((), None)
    assert [message.role for message in request.messages] == ["system", "user"]


# -- the trim ---------------------------------------------------------------------------------


def test_a_trim_drops_no_more_than_its_target_needs() -> None:
    """The least destructive cut that reaches it, and a note that says how many are gone."""
    messages = dialogue(9)

    result = compactor([REFUSED], target_ratio=0.7).compact(messages)

    assert [messages[0], Message.user(trimmed_note(4)), *messages[5:]] == list(result.messages)
    assert (
        result.dropped, result.cut_index, result.tokens_after, result.fallback, result.exhausted,
    ) == (4, 4, 70, True, False)  # fmt: skip
    assert "could not be reached" in result.summary
    check_fold(messages, result)


def test_a_trim_never_eats_the_recent_window() -> None:
    """Where the target is out of reach the whole middle goes and no more: prompt, note, the last two."""
    messages = dialogue(10)

    result = compactor([REFUSED], 10).compact(messages)

    assert len(result.messages) == 4
    assert messages[-2:] == list(result.messages[-2:])
    assert result.exhausted


def test_a_trim_that_gains_nothing_is_exhausted() -> None:
    """One message for one message is no progress."""
    result = compactor([REFUSED]).compact(dialogue(3), target=100)

    assert (result.tokens_before, result.tokens_after, result.exhausted) == (40, 40, True)


def test_a_trim_takes_whole_batches() -> None:
    """A cut between a call and its results is no cut."""
    messages = [Message("system", "s", sysprompt=True), *batch(1, "a", "b"), *batch(2, "c", "d"), *dialogue(4)[1:]]

    result = compactor([REFUSED], 120, target_ratio=0.75).compact(messages)

    assert (result.dropped, result.cut_index) == (3, 3)
    check_fold(messages, result)


def test_many_messages_are_trimmed_by_few_counts() -> None:
    """The cut is searched for by halving."""

    class Counting(FlatCounter):
        counts = 0

        def count_messages(self, messages: Sequence[Message]) -> int:
            self.counts += 1
            return super().count_messages(messages)

    counter = Counting()

    result = compactor([REFUSED], 10_000, counter=counter).compact(dialogue(999))

    assert result.tokens_after == 4_000
    assert counter.counts < 20


# -- units --------------------------------------------------------------------------------------


def test_a_calibration_is_dropped_before_candidates_are_judged() -> None:
    """A bill that covers the declarations must not make a summary look like a gain."""
    counter = UsageCounter(FlatCounter())
    messages = dialogue(9)
    counter.record_usage(prompt_tokens=5_000, message_count=10)

    result = compactor(["notes"], counter=counter).compact(messages)

    assert (result.tokens_before, result.tokens_after, counter.calibration()) == (5_000, 40, {})


def test_a_candidate_is_compared_with_an_estimate_of_the_input() -> None:
    """What is smaller than a bill, and no smaller than the same messages estimated, is no gain."""
    counter = UsageCounter(FlatCounter())
    counter.record_usage(prompt_tokens=5_000, message_count=4)

    result = compactor(["one for one", "again"], counter=counter).compact(dialogue(3))

    assert (result.fallback, result.exhausted) == (True, True)


def test_a_candidate_must_undercut_the_bill_as_well() -> None:
    """A bill below every estimate is still what the conversation weighs."""
    counter = UsageCounter(FlatCounter())
    counter.record_usage(prompt_tokens=15, message_count=10)

    result = compactor(["notes", "notes"], counter=counter).compact(dialogue(9))

    assert (result.fallback, result.exhausted) == (True, True)


# -- cancel and clocks --------------------------------------------------------------------------


def test_a_cancel_wakes_a_running_summariser_and_changes_nothing() -> None:
    """Nothing is trimmed: a resumed run will have it summarised properly."""
    gate, cancelled = hang("notes so f"), threading.Event()
    messages = dialogue(9)
    subject = compactor([[gate]])
    threading.Thread(target=lambda: (gate.wait_entered(), cancelled.set()), daemon=True).start()

    result = subject.compact(messages, cancelled=cancelled)

    assert messages == list(result.messages)
    assert (result.dropped, result.exhausted, result.fallback) == (0, False, False)
    assert len(result.billed) == 1


def test_a_cancel_that_came_before_asks_nobody() -> None:
    """The conversation comes back at once."""
    cancelled, backend = threading.Event(), ScriptedBackend([])
    cancelled.set()

    result = compactor(backend).compact(dialogue(9), cancelled=cancelled)

    assert (result.dropped, result.exhausted, backend.requests) == (0, False, [])


@pytest.mark.parametrize("options", [{"round_trip_timeout": 0.05}, {"attempt_timeout": 0.05}])
def test_a_summariser_that_hangs_is_ended_by_the_clock(options: Any) -> None:
    """Silence and the total time each end an attempt; the next summariser is asked."""
    hanging = ScriptedBackend([[hang("not")]])

    result = compactor([hanging, ScriptedBackend(["notes"])], **options).compact(dialogue(9))

    assert (result.fallback, len(hanging.requests)) == (False, 1)


def test_a_summariser_that_cannot_be_woken_is_left_behind() -> None:
    """A `stream` that blocks for good costs a thread until it returns, and no more."""
    gate = Gate()

    class Deaf:
        model, max_tokens = "deaf", None

        def stream(self, request: object) -> list[str]:
            gate.wait(5)
            return []

    result = compactor([Deaf(), ScriptedBackend(["notes"])], round_trip_timeout=0.05).compact(dialogue(9))
    gate.open()

    assert not result.fallback


@pytest.mark.usefixtures("no_thread_left")
def test_no_thread_is_left() -> None:
    """The thread that summarisers are called on ends with the compaction."""
    compactor([DOWN, LONG, "notes"]).compact(dialogue(9), cancelled=threading.Event())


# -- shields ----------------------------------------------------------------------------------


class Broken(FlatCounter):
    """A counter that raises from its n-th count on."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good

    def count_messages(self, messages: Sequence[Message]) -> int:
        self.good -= 1
        if self.good < 0:
            raise SystemExit("a bug of the counter")
        return super().count_messages(messages)


@pytest.mark.parametrize(("good", "expected"), [(0, True), (1, False), (2, False)])
def test_a_counter_that_raises_leaves_the_conversation_as_it_is(good: int, expected: bool) -> None:
    """Nothing comes out of `compact`; a size that nobody knows counts as too large."""
    messages = dialogue(9)

    result = compactor(["notes"], counter=Broken(good)).compact(messages)

    assert messages == list(result.messages)
    assert (0, expected) == (result.dropped, result.exhausted)


def test_a_backend_whose_facts_raise_can_still_summarise() -> None:
    """A name and a cap are worth no compaction."""

    class Shy(ScriptedBackend):
        def __getattribute__(self, name: str) -> Any:
            if name in ("model", "max_tokens") and "_ids" in object.__getattribute__(self, "__dict__"):
                raise RuntimeError("a bug of the backend")
            return object.__getattribute__(self, name)

    result = compactor(Shy(["notes"])).compact(dialogue(9))

    assert (result.billed[0][0], result.fallback) == ("unknown", False)


def test_a_conversation_of_nothing_is_left_alone() -> None:
    """No messages, no compaction, no error."""
    assert compactor([]).compact([]).messages == ()


def test_calls_are_kept_apart_from_requests() -> None:
    """The summary is a user message; nothing of it is a call."""
    messages = [*dialogue(2), Message.assistant("", [ToolRequest("c", "read", "{}")]), Message.tool("c", "x")]

    result = compactor(["notes"], keep_recent=0).compact(messages)

    assert [message.role for message in result.messages] == ["system", "user", "user"]
    check_fold(messages, result)


# -- what the usual plan cannot mend -----------------------------------------------------------


def test_results_of_one_turn_that_are_larger_than_the_window_are_summarised_with_it() -> None:
    """The recent window gives way where the run would end otherwise; the request itself stays."""
    messages = [Message("system", "You work.", sysprompt=True), Message.user("compare them"), *batch(1, *["x"] * 8)]

    result = compactor(["all eight are equal"], 50, keep_recent=6).compact(messages)

    assert [message.text for message in result.messages[:2]] == ["You work.", "compare them"]
    assert (result.dropped, result.tokens_after, result.exhausted) == (9, 30, False)
    check_fold(messages, result)


def test_the_recent_window_gives_way_no_further_than_it_must() -> None:
    """The newest turns that fit stay as they are."""
    messages = [*dialogue(1), *batch(1, *["x"] * 5), *batch(2, "y"), Message.assistant("so far")]

    result = compactor(["notes"], 70, keep_recent=8).compact(messages)

    assert [message.text for message in result.messages[-3:]] == ["", "y", "so far"]
    check_fold(messages, result)


def test_a_trim_spares_an_earlier_summary_where_it_can() -> None:
    """While no summariser can be had, what the last one wrote is all that is left of those turns."""
    first = compactor(["the bug is in billing.py"], 100).compact(dialogue(9))
    longer = [*first.messages, *[Message.assistant(f"work {n}") for n in range(8)]]

    result = compactor([BackendError("bad key", "http", 401)], 100).compact(longer)

    assert result.fallback
    assert any("the bug is in billing.py" in message.text for message in result.messages)
    check_fold(longer, result)


def test_notes_of_earlier_trims_do_not_pile_up() -> None:
    """One note says how many are gone; the next trim takes it along."""
    refused = BackendError("bad key", "http", 401)
    first = compactor([refused], 100).compact(dialogue(9))
    longer = [*first.messages, *[Message.assistant(f"work {n}") for n in range(8)]]

    result = compactor([refused], 100).compact(longer)

    assert sum("could not be reached" in message.text for message in result.messages) == 1


def test_why_a_summary_was_not_to_be_had_is_told() -> None:
    """A key that does not work must not cost a history unseen: each failed request says why."""
    broken, blank = (
        ScriptedBackend([BackendError("bad key", "http", 401)], model="a"),
        ScriptedBackend(["  "], model="b"),
    )

    result = compactor([broken, blank], max_attempts=1).compact(dialogue(9))

    assert result.fallback
    assert result.problems == ("a: bad key", "b: the summary is blank")
