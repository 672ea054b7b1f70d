"""What a function returned, as text for the model."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent import codec
from llm_agent.messages import ToolAnswer
from llm_agent.tools.results import answer_of


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    inside: Any = None


@attrs.frozen
class Item:
    name: str
    _secret: int = 1


class Pair(NamedTuple):
    left: str
    right: int


class Strange:
    def __str__(self) -> str:
        return "strange"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("as it is\n", "as it is\n"),
        (None, ""),
        ("", ""),
        (True, "true"),
        (5, "5"),
        (1.5, "1.5"),
        ([], "[]"),
        ([1, None, "a"], '[1,null,"a"]'),
        ({"ä": 1}, '{"ä":1}'),
        ((1, 2), "[1,2]"),
        ({8, 1}, "[1,8]"),
        (b"bytes \xff", "bytes \ufffd"),
        ({"raw": b"b"}, '{"raw":"b"}'),
        (Path("a/b"), '"a/b"'),
        (Color.RED, '"red"'),
        (datetime(2024, 5, 6, tzinfo=UTC), '"2024-05-06T00:00:00+00:00"'),
        (date(2024, 5, 6), '"2024-05-06"'),
        (Point(1, Point(2)), '{"x":1,"inside":{"x":2,"inside":null}}'),
        (Item("n"), '{"name":"n"}'),
        (Pair("a", 1), '{"left":"a","right":1}'),
        ({Color.RED: [Item("n")]}, '{"red":[{"name":"n"}]}'),
        ({1: 2}, '{"1":2}'),
        (math.nan, '"nan"'),
        (Strange(), '"strange"'),
        (range(3), "[0,1,2]"),
        ({"a": 1}.keys(), '["a"]'),
        (collections.deque([1]), "[1]"),
        ("\ud800", "\ufffd"),
        (2**100, str(2**100)),
    ],
)
def test_results_become_text(returned: Any, content: str) -> None:
    """Text stays, None is nothing, the rest is JSON."""
    assert answer_of("c", returned) == ToolAnswer("c", content)


def test_an_answer_keeps_everything_but_its_id() -> None:
    """The id is the call's."""
    given_answer = ToolAnswer("other", "text", is_error=True, structured={"a": 1})

    answer = answer_of("c", given_answer)

    assert (answer.tool_call_id, answer.content, answer.is_error) == ("c", "text", True)
    assert answer.structured == {"a": 1}


def test_a_value_inside_itself_is_written_somehow() -> None:
    """A cycle ends in words."""
    point = Point(1)
    point.inside = [point, point]

    assert "nested too deeply" in answer_of("c", point).content


def test_a_value_that_cannot_be_written_is_named() -> None:
    """The tool has run; its result must not look like a failure."""
    answer = answer_of("c", [Broken()])

    assert not answer.is_error
    assert "Broken" in answer.content


def test_an_iterator_is_walked_to_its_end() -> None:
    """Nothing lazy leaves the call."""
    walked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(3):
            walked.append(number)
            yield number

    assert answer_of("c", numbers()).content == "[0,1,2]"
    assert walked == [0, 1, 2]


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.just(Strange())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.none()), inner, max_size=3),
        inner.map(lambda value: Point(1, value)),
    ),
    max_leaves=5,
)


@given(ANYTHING.filter(lambda value: not isinstance(value, str | bytes | None)))
def test_every_other_result_is_json(value: Any) -> None:
    """Whatever a tool returns, the text parses."""
    codec.loads(answer_of("c", value).content)
