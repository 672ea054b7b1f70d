"""What fits and what it may cost: arithmetic, each boundary on both sides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.budget import (
    CapReached,
    Misfit,
    ModelProfile,
    RequestBudget,
    RequestSize,
    Window,
    exceeds_window,
    fixed_part_misfit,
    is_window_cut,
    truncation_target,
    weigh,
)
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, Usage
from llm_agent.outcome import Spent
from llm_agent.ports import TokenCounter, ToolDeclaration
from llm_agent.token_count import HeuristicCounter, UsageCounter

TOOLS: tuple[ToolDeclaration, ...] = (
    {"type": "function", "function": {"name": "read", "description": "Read a file.", "parameters": {}}},
)
CONVERSATION = (
    Message.system("You are terse."),
    Message.user("What is in the file?"),
    Message.assistant("I shall look."),
    Message.user("Well?"),
)
CONTEXT = (Message.system("It is Wednesday."),)

# -- declaring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"context_window": 0}, "context_window"),
        ({"context_window": -1}, "context_window"),
        ({"context_window": 1.5}, "context_window"),
        ({"context_window": True}, "context_window"),
        ({"context_window": "8192"}, "context_window"),
        ({"context_window": 10, "completion_reserve": -1}, "completion_reserve"),
        ({"context_window": 10, "completion_reserve": 10}, "completion_reserve"),
        ({"context_window": 10, "input_safety_margin": -1}, "input_safety_margin"),
        ({"context_window": 10, "input_safety_margin": None}, "input_safety_margin"),
        ({"context_window": 10, "counter": object()}, "counter"),
        ({"context_window": 10, "counter": HeuristicCounter}, "counter"),
    ],
)
def test_a_profile_that_cannot_work_is_refused(options: dict[str, Any], name: str) -> None:
    """By the option's name, with what came."""
    with pytest.raises(ConfigError, match=f"ModelProfile: {name} "):
        ModelProfile(**options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_observation_size": 0}, "max_observation_size"),
        ({"max_observation_size": None}, "max_observation_size"),
        ({"max_cost": -0.01}, "max_cost"),
        ({"max_cost": Decimal("-1")}, "max_cost"),
        ({"max_cost": float("nan")}, "max_cost"),
        ({"max_cost": "5"}, "max_cost"),
        ({"max_total_tokens": -1}, "max_total_tokens"),
        ({"max_total_tokens": 1.5}, "max_total_tokens"),
        ({"max_wall_clock": -1}, "max_wall_clock"),
        ({"max_rounds": -1}, "max_rounds"),
        ({"max_rounds": True}, "max_rounds"),
        ({"max_calls": -1}, "max_calls"),
        ({"default_profile": 8192}, "default_profile"),
        ({"profiles": [8192]}, "profiles"),
        ({"profiles": {"m": 8192}}, "profiles['m']"),
        ({"profiles": {3: ModelProfile(8192)}}, "a model name in profiles"),
    ],
)
def test_a_budget_that_cannot_work_is_refused(options: dict[str, Any], name: str) -> None:
    """By the option's name, with what came."""
    with pytest.raises(ConfigError, match=re.escape(f"RequestBudget: {name} must be")):
        RequestBudget(**options)


def test_a_model_is_found_by_its_name_and_else_is_the_default() -> None:
    """Names are exact."""
    small, large = ModelProfile(8_192), ModelProfile(128_000)
    budget = RequestBudget(profiles={"small": small}, default_profile=large)

    assert budget.profile_of("small") is small
    assert budget.profile_of("smaller") is large
    assert RequestBudget(profiles={"small": small}).profile_of("smaller") is None


def test_a_bare_number_is_a_window_without_margin_and_reserve() -> None:
    """And says of itself that no vendor has declared it."""
    budget = RequestBudget.for_window(100)

    profile = budget.profile_of("any")

    assert profile is not None
    assert Window(size=100, reserve=0, margin=0) == Window.of(profile, completion_cap=64)
    assert budget.is_synthesised
    assert not RequestBudget(default_profile=profile).is_synthesised


@pytest.mark.parametrize("tokens", [0, -5, 1.5, True, None, "100"])
def test_a_window_of_nothing_is_refused(tokens: Any) -> None:
    """A budget of 0 fits no request."""
    with pytest.raises(ConfigError, match="for_window: tokens must be"):
        RequestBudget.for_window(tokens)


# -- caps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caps", "facts", "cap"),
    [
        ({"max_cost": 1}, {"cost": 1.0}, "max_cost"),
        ({"max_cost": 0.8}, {"cost": 0.8}, "max_cost"),
        ({"max_cost": Decimal("0.3")}, {"cost": 0.3}, "max_cost"),
        ({"max_total_tokens": 100}, {"total_tokens": 100}, "max_total_tokens"),
        ({"max_wall_clock": 2}, {"wall_clock": 2.0}, "max_wall_clock"),
        ({"max_rounds": 3}, {"rounds": 3}, "max_rounds"),
        ({"max_calls": 4}, {"calls": 4}, "max_calls"),
        ({"max_rounds": 0}, {}, "max_rounds"),
    ],
)
def test_a_cap_is_reached_and_not_exceeded(caps: dict[str, Any], facts: dict[str, Any], cap: str) -> None:
    """At the cap exactly there is nothing left."""
    reached = reached_by(RequestBudget(**caps), **facts)

    assert reached is not None
    assert cap == reached.cap


@pytest.mark.parametrize(
    ("caps", "facts"),
    [
        ({"max_cost": Decimal("0.30000001")}, {"cost": 0.3}),
        ({"max_total_tokens": 101}, {"total_tokens": 100}),
        ({"max_wall_clock": 2}, {"wall_clock": 1.999}),
        ({"max_rounds": 3}, {"rounds": 2}),
        ({"max_calls": 4}, {"calls": 3}),
        ({"max_cost": 0}, {}),
        ({}, {"cost": 10.0**9, "total_tokens": 10**12, "wall_clock": 1e9, "rounds": 10**6, "calls": 10**6}),
    ],
)
def test_below_a_cap_there_is_something_left(caps: dict[str, Any], facts: dict[str, Any]) -> None:
    """And a cost nobody reported trips nothing, not even a cap of 0."""
    assert reached_by(RequestBudget(**caps), **facts) is None


def reached_by(budget: RequestBudget, *, rounds: int = 0, calls: int = 0, **spent: Any) -> CapReached | None:
    return budget.cap_reached(Spent(**spent), rounds=rounds, calls=calls)


def test_a_reached_cap_says_which_and_how_much() -> None:
    """The three facts a reader needs."""
    reached = reached_by(RequestBudget(max_cost=Decimal("0.50")), cost=0.61)

    assert str(reached) == "the budget is spent: max_cost is 0.50, 0.61 are spent"


def test_a_time_is_told_without_its_noise() -> None:
    """Seconds, to the millisecond."""
    assert "3.142 seconds" in str(reached_by(RequestBudget(max_wall_clock=3), wall_clock=3.14159265))


# -- windows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "cap", "reserve"), [(None, None, 1024), (None, 300, 300), (0, 300, 0), (50, None, 50)]
)
def test_the_reserve_is_the_profiles_else_the_backends_else_ours(
    declared: int | None, cap: int | None, reserve: int
) -> None:
    """0 is a number like any other."""
    profile = ModelProfile(10_000, completion_reserve=declared)

    assert Window(size=10_000, reserve=reserve, margin=512) == Window.of(profile, cap)


def test_a_window_is_full_at_its_size() -> None:
    """One token more does not fit."""
    window = Window(size=100, reserve=20, margin=5)

    assert window.usable == 75
    assert window.fits(75)
    assert not window.fits(76)


def test_a_window_that_margin_and_reserve_fill_holds_nothing() -> None:
    """Never a negative size, and not even an empty request fits."""
    window = Window(size=100, reserve=90, margin=20)

    assert window.usable == 0
    assert not window.fits(0)


# -- weighing -----------------------------------------------------------------------------------------


@attrs.frozen
class FramingCounter:
    """Charges each call a fixed price, whatever is in it: as tokenizers with a chat template do."""

    per_call: int
    per_request: int

    def count_messages(self, messages: Sequence[Message]) -> int:
        return self.per_call + sum(len(message.text) for message in messages)

    def count_text(self, text: str) -> int:
        return self.per_call + len(text)

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        return self.per_request + sum(len(message.text) for message in (*messages, *context)) + 10 * len(tools)

    def record_usage(self, **_: Any) -> None: ...

    def invalidate(self) -> None: ...


def calibrated(billed: int) -> UsageCounter:
    counter = UsageCounter()
    counter.record_usage(prompt_tokens=billed, message_count=2)
    return counter


COUNTERS = st.one_of(
    st.builds(HeuristicCounter),
    st.builds(calibrated, st.integers(0, 500)),
    st.builds(FramingCounter, st.integers(0, 40), st.integers(0, 40)),
)


@given(COUNTERS, st.integers(2, 4), st.booleans(), st.booleans())
def test_the_parts_of_a_request_add_up(counter: TokenCounter, length: int, has_tools: bool, has_context: bool) -> None:
    """Whatever the counter: none is negative, and their sum is what the counter says of the whole."""
    messages, tools = CONVERSATION[:length], TOOLS if has_tools else ()
    context = CONTEXT if has_context else ()

    size = weigh(counter, messages, tools, context)

    parts = (size.messages, size.tools, size.context, size.framing)
    assert min(parts) >= 0
    assert size.total == sum(parts) == counter.count_request(messages, tools, context)


def test_a_heuristic_is_taken_apart_exactly() -> None:
    """Nothing is left for framing."""
    counter = HeuristicCounter()

    size = weigh(counter, CONVERSATION, TOOLS, CONTEXT)

    assert size.messages == counter.count_messages(CONVERSATION)
    assert size.context == counter.count_messages(CONTEXT)
    assert size.framing == 0


def test_a_billed_request_shows_its_declarations_once() -> None:
    """The bill holds them already: what is left of it is conversation."""
    size = weigh(calibrated(billed=400), CONVERSATION[:2], TOOLS, CONTEXT)

    tools = HeuristicCounter().count_request((), TOOLS)
    context = HeuristicCounter().count_messages(CONTEXT)
    assert RequestSize(total=400, messages=400 - tools - context, tools=tools, context=context) == size


def test_a_template_around_the_whole_is_framing() -> None:
    """What no part accounts for."""
    size = weigh(FramingCounter(per_call=0, per_request=30), CONVERSATION, ())

    assert size.framing == 30


def test_weighing_teaches_and_forgets_nothing() -> None:
    """The bill still stands afterwards."""
    counter = calibrated(billed=400)
    before = counter.calibration()

    weigh(counter, CONVERSATION, TOOLS, CONTEXT)
    fixed_part_misfit(counter, CONVERSATION[:1], TOOLS, CONTEXT, Window(size=10, reserve=0, margin=0))

    assert before == counter.calibration() != {}


# -- what does not fit --------------------------------------------------------------------------------


def test_a_misfit_is_a_calculation() -> None:
    """Every term is named, and they add up."""
    size = RequestSize(total=1_110, messages=900, tools=150, context=40)
    misfit = Misfit(size, Window(size=2_000, reserve=1_024, margin=512))

    assert misfit.needed == 1_622
    assert str(misfit) == (
        "the request does not fit: messages 900 + tools 150 + context 40 + framing 20 + margin 512 + reserve 1024 "
        "= 2646 tokens, the window is 2000"
    )


def test_a_fixed_part_that_fits_is_no_problem() -> None:
    """However long the rest is."""
    window = Window(size=1_000, reserve=0, margin=0)

    assert fixed_part_misfit(HeuristicCounter(), CONVERSATION[:1], TOOLS, CONTEXT, window) is None


def test_a_fixed_part_that_is_too_large_is_named() -> None:
    """With the terms that no compaction makes smaller, and the way out."""
    counter = HeuristicCounter()
    fixed, tools, context = (
        counter.count_messages(CONVERSATION[:1]),
        counter.count_request((), TOOLS),
        counter.count_messages(CONTEXT),
    )
    total = fixed + tools + context
    window = Window(size=total + 29, reserve=20, margin=10)

    problem = fixed_part_misfit(counter, CONVERSATION[:1], TOOLS, CONTEXT, window)

    assert problem is not None
    assert problem.startswith(
        "the request can never fit, its fixed part alone is too large: "
        f"system prompt and pinned messages {fixed} + tools {tools} + context {context} + framing 0 + margin 10 "
        f"+ reserve 20 = {total + 30} tokens, the window is {total + 29}"
    )
    assert fixed_part_misfit(counter, CONVERSATION[:1], TOOLS, CONTEXT, attrs.evolve(window, size=total + 30)) is None


# -- what a server has shown to be otherwise ------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "completion", "reserve", "expected"),
    [
        (97, 3, 0, True),
        (97, 2, 0, False),
        (97, None, 0, False),
        (100, None, 0, True),
        (81, 1, 20, True),
        (80, 1, 20, False),
    ],
)
def test_a_bill_tells_where_a_completion_was_cut(
    prompt: int, completion: int | None, reserve: int, expected: bool
) -> None:
    """At the window when both halves fill it, or when the prompt leaves no room for the reserve."""
    window = Window(size=100, reserve=reserve, margin=0)

    assert is_window_cut(window, 10, Usage(prompt_tokens=prompt, completion_tokens=completion)) is expected


@pytest.mark.parametrize(("counted", "expected"), [(64, True), (63, False)])
def test_without_a_bill_the_count_decides_and_may_be_a_quarter_too_low(counted: int, expected: bool) -> None:
    """Margin and reserve count too: (64 + 4) * 1.25 + 15 is more than 99."""
    window = Window(size=99, reserve=15, margin=4)

    assert is_window_cut(window, counted, Usage(completion_tokens=50)) is expected


@pytest.mark.parametrize(("prompt", "expected"), [(101, True), (100, False), (None, False)])
def test_a_bill_over_the_window_is_a_prompt_that_was_cut(prompt: int | None, expected: bool) -> None:
    """A full window is none yet, and no bill says nothing."""
    assert exceeds_window(Window(size=100, reserve=0, margin=0), Usage(prompt_tokens=prompt)) is expected


@pytest.mark.parametrize(
    ("counted", "billed", "is_refused", "expected"),
    [
        (80, 97, False, 64),  # the count was only a fifth too low: a quarter is taken
        (80, 160, False, 50),  # half of what is there, as the bill says
        (95, None, False, 76),
        (40, None, True, 32),  # refused at a count of 40: it was 100 at least
        (90, None, True, 72),
        (0, None, True, 0),
    ],
)
def test_the_next_request_is_smaller_by_as_much_as_the_count_was_wrong(
    counted: int, billed: int | None, is_refused: bool, expected: int
) -> None:
    """In tokens of the same count."""
    window = Window(size=100, reserve=0, margin=0)

    assert expected == truncation_target(window, counted, billed, is_refused=is_refused)


@pytest.mark.parametrize(
    ("counted", "billed", "is_refused", "expected"),
    [(60, 120, False, 15), (60, None, False, 30), (40, None, True, 10)],
)
def test_reserve_and_margin_are_kept_free_in_the_next_request(
    counted: int, billed: int | None, is_refused: bool, expected: int
) -> None:
    """The reserve is in the server's tokens, the margin in ours."""
    window = Window(size=100, reserve=50, margin=10)

    assert expected == truncation_target(window, counted, billed, is_refused=is_refused)


@given(
    st.integers(1, 10**7),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**7),
    st.none() | st.integers(0, 10**7),
    st.booleans(),
)
def test_the_next_request_is_always_smaller_and_never_less_than_nothing(
    size: int, reserve: int, margin: int, counted: int, billed: int | None, is_refused: bool
) -> None:
    """Else the compaction would change nothing, and the same bytes would be paid for twice."""
    window = Window(size=size, reserve=reserve, margin=margin)

    target = truncation_target(window, counted, billed, is_refused=is_refused)

    assert 0 <= target <= counted / 1.25
    assert target <= window.usable
