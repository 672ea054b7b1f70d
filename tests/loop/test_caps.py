"""What a run may cost: looked at between steps, told by name, and never at the price of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from time import monotonic
from typing import Any

import pytest

from llm_agent.bill import Price
from llm_agent.budget import RequestBudget
from llm_agent.errors import BackendError
from llm_agent.events import Log, RunFailed, ToolAbandoned, ToolResult
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Usage
from llm_agent.run_core import RunCore
from llm_agent.session.session import Session
from llm_agent.testing import ScriptedBackend, ScriptedProvider, call, finished, no_backoff


@pytest.fixture(autouse=True)
def _retries_wait_nothing() -> Iterator[None]:
    with no_backoff():
        yield


def turn(*parts: Any, **usage: Any) -> list[Any]:
    return [*parts, Delta(finish_reason="tool_calls", usage=Usage(**usage))]


def looking(times: int = 9, **usage: Any) -> ScriptedBackend:
    return ScriptedBackend([turn(call("look", n=n), **usage) for n in range(times)])


@pytest.mark.parametrize(
    ("cap", "usage"),
    [
        ({"max_cost": 1}, {"cost": 0.5}),
        ({"max_cost": 0.9}, {"cost": 0.5}),
        ({"max_cost": Decimal("1.0")}, {"cost": 0.5}),
        ({"max_total_tokens": 100}, {"total_tokens": 50}),
        ({"max_total_tokens": 100}, {"prompt_tokens": 45, "completion_tokens": 5}),
        ({"max_rounds": 2}, {}),
        ({"max_calls": 2}, {}),
    ],
)
def test_a_cap_that_is_reached_starts_nothing_more(cap: dict[str, Any], usage: dict[str, Any]) -> None:
    """After two rounds each of these is reached, not exceeded; the error names it."""
    backend, provider = looking(**usage), ScriptedProvider({"look": "seen"})

    run = finished(Loop(backend, provider=provider, request_budget=RequestBudget(**cap)).run("go"))

    assert run.outcome.reason == "budget-exhausted"
    assert len(backend.requests) == 2
    assert next(iter(cap)) in (run.outcome.error or "")
    assert [event.reason for event in run.of(RunFailed)] == ["budget-exhausted"]


def test_a_wall_clock_that_has_run_out_ends_the_run() -> None:
    """A cap of nothing lets nothing begin."""
    backend = looking()

    run = finished(Loop(backend, request_budget=RequestBudget(max_wall_clock=0)).run("go"))

    assert backend.requests == []
    assert run.outcome.reason == "budget-exhausted"


def test_time_in_which_a_human_is_asked_is_no_work() -> None:
    """The clock of `spent` stands still while somebody thinks about an answer."""
    core = RunCore()
    started = monotonic()
    core.pause_timeout()
    core.pause_timeout()  # asks may overlap
    while monotonic() - started < 0.02:
        pass

    core.resume_timeout()
    still_asked = core.asked_seconds
    core.resume_timeout()

    assert 0.02 <= still_asked <= core.asked_seconds <= monotonic() - started
    assert core.asked_seconds == core.asked_seconds


def test_a_cap_in_the_middle_of_a_turn_lets_the_running_call_finish() -> None:
    """It has its real result; the calls behind it did not run, and the model would be told why."""
    backend = ScriptedBackend([[call("look", n=1), call("look", n=2), call("look", n=3)]])
    provider = ScriptedProvider({"look": "seen"})
    session = Session.in_memory()
    loop = Loop(backend, provider=provider, session=session, request_budget=RequestBudget(max_calls=1))

    run = finished(loop.run("go"))

    assert [event.content for event in run.of(ToolResult)] == ["seen"]
    assert [(event.reason, event.dispatched) for event in run.of(ToolAbandoned)] == [("budget-exhausted", False)] * 2
    assert next(m.text for m in run.outcome.messages if m.role == "tool") == "seen"
    assert all("did not run" in m.text for m in run.outcome.messages[-2:])
    assert session.pending_tool_operations() == []


def test_a_cost_that_nobody_reports_trips_nothing() -> None:
    """Absent is not zero, and not infinite either."""
    backend = ScriptedBackend([call("look"), "done"])
    loop = Loop(backend, provider=ScriptedProvider({"look": "x"}), request_budget=RequestBudget(max_cost=0.0))

    run = finished(loop.run("go"))

    assert run.outcome.ok
    assert run.outcome.spent.cost is None


def test_failed_attempts_are_on_the_bill_and_trip_a_cap() -> None:
    """What a broken stream was billed is spent all the same."""
    broken = [Delta("half", usage=Usage(total_tokens=60)), BackendError("gone", "connection")]
    backend = ScriptedBackend([broken, turn(call("look"), total_tokens=60)])
    loop = Loop(backend, provider=ScriptedProvider({"look": "x"}), request_budget=RequestBudget(max_total_tokens=100))

    run = finished(loop.run("go"))

    assert (run.outcome.spent.total_tokens, run.outcome.spent.attempts) == (120, 2)
    assert run.outcome.reason == "budget-exhausted"


def test_prices_give_a_cost_where_the_provider_reports_none() -> None:
    """And say that it is an estimate."""
    backend = ScriptedBackend(
        [[Delta("ok"), Delta(finish_reason="stop", usage=Usage(prompt_tokens=1_000_000, completion_tokens=500_000))]],
        model="m",
    )

    run = finished(Loop(backend, prices={"m": Price(prompt=2, completion=8)}).run("go"))

    assert (run.outcome.spent.cost, run.outcome.spent.cost_estimated) == (6.0, True)


def test_only_a_run_with_a_budget_tells_its_bill_on_the_wire() -> None:
    """The outcome's attribute is always there; its key is for those who asked for it."""
    without = finished(Loop(ScriptedBackend(["x"])).run("go")).outcome
    within = finished(Loop(ScriptedBackend(["x"]), request_budget=RequestBudget()).run("go")).outcome

    assert "spent" not in without.to_dict()
    assert set(within.to_dict()["spent"]) == {"total-tokens", "wall-clock", "complete"}


def test_usage_of_one_request_is_the_last_that_was_reported() -> None:
    """Servers repeat a growing number with every chunk; the sum would bill it many times."""
    growing = [Delta("a", usage=Usage(total_tokens=n)) for n in (10, 20, 30)]
    backend = ScriptedBackend([[*growing, Delta(finish_reason="stop")]])

    run = finished(Loop(backend).run("go"))

    assert run.outcome.spent.total_tokens == 30


def test_a_cap_that_can_never_be_reached_says_so_once() -> None:
    """A misspelt model in the prices must not let a run spend without end, and without a word."""
    usage = {"prompt_tokens": 5, "completion_tokens": 5}
    backend = ScriptedBackend([turn(call("look", n=1), **usage), turn(call("look", n=2), **usage), "done"], model="m")
    budget = RequestBudget(max_cost=1)
    provider = ScriptedProvider({"look": "x"})
    prices = {"n": Price(prompt=1, completion=1)}

    run = finished(Loop(backend, provider=provider, request_budget=budget, prices=prices).run("go"))

    (log,) = run.of(Log)
    assert (log.level, "max_cost" in str(log.data), "m reports no cost" in str(log.data)) == ("warning", True, True)


def test_a_round_that_a_cap_kept_from_beginning_is_not_counted() -> None:
    """Five rounds were allowed, and five there were."""
    provider = ScriptedProvider({"look": "x"})

    run = finished(Loop(looking(), provider=provider, request_budget=RequestBudget(max_rounds=5)).run("go"))

    assert run.outcome.rounds == 5
