"""The bill: what was reported adds up, what was not stays unknown, a price table estimates."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.bill import Bill, Price, checked_prices
from llm_agent.errors import ConfigError
from llm_agent.messages import Delta, Usage
from llm_agent.scope import Scope

MILLION = 1_000_000


def test_requests_add_up_and_absent_is_not_zero() -> None:
    """What nobody reported stays unreported, and the bill says that it is incomplete."""
    bill = Bill()
    bill.record("m", Usage(prompt_tokens=10, completion_tokens=5))
    bill.record("m", Usage(total_tokens=20, cost=0.5))
    bill.record("n", Usage())

    spent = bill.spent(1.5)

    assert (spent.attempts, spent.total_tokens, spent.prompt_tokens, spent.cost) == (3, 35, 10, 0.5)
    assert spent.cached_prompt_tokens is None
    assert spent.complete is False
    assert spent.by_model["m"].complete is True
    assert spent.by_model["n"].total_tokens == 0


def test_usage_that_grows_from_piece_to_piece_is_billed_once() -> None:
    """A server that reports its running total on each piece, and nothing on the last, was paid once."""
    scope = Scope(lambda _: None)
    for total in (10, 20, 30):
        scope.add(Delta("x", usage=Usage(prompt_tokens=5, completion_tokens=total - 5, total_tokens=total)))
    scope.add(Delta(finish_reason="stop", usage=None))
    bill = Bill()
    bill.record("m", scope.usage)

    assert bill.spent(0.0).total_tokens == 30


def test_two_requests_do_add_up() -> None:
    """Each of them was paid, the failed one too."""
    bill = Bill()
    bill.record("m", Usage(total_tokens=30))
    bill.record("m", Usage(total_tokens=12))

    assert bill.spent(0.0).total_tokens == 42


def test_costs_add_up_as_they_are_written() -> None:
    """Seven tenths and one tenth are eight tenths: a cap of 0.8 is reached."""
    bill = Bill()
    for cost in (0.7, 0.1):
        bill.record("m", Usage(cost=cost))

    assert bill.spent(0.0).cost == 0.8


def test_a_price_stands_in_for_a_cost_that_was_not_reported() -> None:
    """And the sum says that it is an estimate."""
    bill = Bill({"m": Price(prompt=2, completion=10)})
    bill.record("m", Usage(prompt_tokens=MILLION, completion_tokens=MILLION // 2))

    spent = bill.spent(0.0)

    assert (spent.cost, spent.cost_estimated) == (7.0, True)
    assert spent.by_model["m"].cost_estimated


def test_a_reported_cost_is_not_estimated() -> None:
    """Also where it is 0: a free model is free, whatever the table says."""
    bill = Bill({"m": Price(prompt=2, completion=10)})
    bill.record("m", Usage(prompt_tokens=MILLION, completion_tokens=1, cost=0))

    spent = bill.spent(0.0)

    assert (spent.cost, spent.cost_estimated) == (0.0, False)


def test_one_estimate_makes_the_sum_an_estimate() -> None:
    """But not the part of the model whose provider did report."""
    bill = Bill({"m": Price(prompt=1, completion=1)})
    bill.record("m", Usage(prompt_tokens=MILLION, completion_tokens=0))
    bill.record("n", Usage(cost=0.5))

    spent = bill.spent(0.0)

    assert (spent.cost, spent.cost_estimated) == (1.5, True)
    assert not spent.by_model["n"].cost_estimated


def test_cached_tokens_are_part_of_the_prompt() -> None:
    """They are priced as cached, the rest as prompt, and none of them twice."""
    price = Price(prompt=10, completion=0, cached_prompt=1)

    assert price.cost_of(Usage(prompt_tokens=MILLION, completion_tokens=0, cached_prompt_tokens=MILLION // 2)) == 5.5


def test_cached_tokens_cost_like_any_other_where_no_price_says_otherwise() -> None:
    """No discount is invented."""
    price = Price(prompt=10, completion=0)

    assert price.cost_of(Usage(prompt_tokens=MILLION, completion_tokens=0, cached_prompt_tokens=MILLION // 2)) == 10.0


def test_more_cached_than_sent_is_all_cached() -> None:
    """A server's slip makes no negative price."""
    price = Price(prompt=10, completion=0, cached_prompt=1)

    assert price.cost_of(Usage(prompt_tokens=MILLION, completion_tokens=0, cached_prompt_tokens=2 * MILLION)) == 1.0


@pytest.mark.parametrize(
    "usage", [Usage(), Usage(total_tokens=9), Usage(prompt_tokens=9), Usage(completion_tokens=9)], ids=str
)
def test_without_both_halves_there_is_no_estimate(usage: Usage) -> None:
    """A cost of nothing, or of half a request, would be a lie."""
    bill = Bill({"m": Price(prompt=1, completion=1)})
    bill.record("m", usage)

    spent = bill.spent(0.0)

    assert spent.cost is None
    assert not spent.cost_estimated


def test_an_attempt_without_numbers_leaves_the_bill_incomplete_whatever_the_prices() -> None:
    """A price knows no tokens."""
    bill = Bill({"m": Price(prompt=1, completion=1)})
    bill.record("m", Usage())

    assert not bill.spent(0.0).complete


def test_a_model_without_a_price_has_no_estimate() -> None:
    """Names are exact: a neighbour's price is none."""
    bill = Bill({"m": Price(prompt=1, completion=1)})
    bill.record("m-mini", Usage(prompt_tokens=1, completion_tokens=1))

    assert bill.spent(0.0).cost is None


def test_what_was_asked_and_never_billed_makes_the_bill_incomplete() -> None:
    """It is no attempt of the run, and adds no number."""
    bill = Bill()
    bill.record("m", Usage(total_tokens=3))
    bill.note_unknown()

    spent = bill.spent(0.0)

    assert (spent.attempts, spent.total_tokens, spent.complete) == (1, 3, False)
    assert spent.by_model["m"].complete


def test_an_estimate_is_told_on_the_wire_and_its_absence_is_not() -> None:
    """The key appears only where it means something."""
    bill = Bill({"m": Price(prompt=1, completion=1)})
    bill.record("n", Usage(total_tokens=3, cost=0.5))
    reported = bill.spent(0.0).to_dict()
    bill.record("m", Usage(prompt_tokens=1, completion_tokens=1))
    estimated = bill.spent(0.0).to_dict()

    assert "cost-estimated" not in json.dumps(reported)
    assert estimated["cost-estimated"] is True
    assert [model for model, spend in estimated["by-model"].items() if "cost-estimated" in spend] == ["m"]


@given(
    st.decimals(0, 1000, places=6),
    st.decimals(0, 1000, places=6),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
def test_prices_of_every_kind_of_number_give_the_same_cost(
    prompt: Decimal, completion: Decimal, sent: int, said: int
) -> None:
    """A price written as a float is the decimal it looks like."""
    usage = Usage(prompt_tokens=sent, completion_tokens=said)

    exact = Price(prompt=prompt, completion=completion).cost_of(usage)
    rough = Price(prompt=float(prompt), completion=float(completion)).cost_of(usage)

    assert exact == rough
    assert exact is not None
    assert exact >= 0


def test_a_price_table_may_hold_prices_or_mappings() -> None:
    """Both mean the same."""
    price = Price(prompt=1.25, completion=10, cached_prompt=Decimal("0.125"))
    table = {"a": price, "b": {"prompt": 1.25, "completion": 10, "cached_prompt": Decimal("0.125")}}

    assert checked_prices(table) == {"a": price, "b": price}
    assert checked_prices(None) == {}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([("m", 1)], "prices must be a mapping"),
        ({3: Price(prompt=1, completion=1)}, "model name must be a str, got 3"),
        ({"m": 3}, "prices\\['m'\\] must be a Price or a mapping, got 3"),
        ({"m": {"prompt": 1}}, "prices\\['m'\\].*completion is missing"),
        ({"m": {"prompt": 1, "completion": 1, "output": 2}}, "prices\\['m'\\].*got 'output'"),
        ({"m": {"prompt": 1, "completion": 1, 7: 2}}, "prices\\['m'\\].*got 7"),
        ({"m": {"prompt": -1, "completion": 1}}, "prices\\['m'\\].*prompt must be.*got -1"),
        ({"m": {"prompt": 1, "completion": "1"}}, "prices\\['m'\\].*completion must be.*got '1'"),
        ({"m": {"prompt": 1, "completion": 1, "cached_prompt": True}}, "cached_prompt must be.*got True"),
    ],
)
def test_a_table_that_is_none_is_refused_by_model_and_key(table: Any, message: str) -> None:
    """Before anything runs, and so that the slip can be found."""
    with pytest.raises(ConfigError, match=message):
        checked_prices(table)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN"), Decimal("-1"), None, True])
def test_an_amount_is_a_finite_number_of_at_least_0(value: Any) -> None:
    """Nothing that no bill could hold."""
    with pytest.raises(ConfigError, match="Price: prompt"):
        Price(prompt=value, completion=1)
