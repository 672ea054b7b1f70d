"""Functions and providers as one provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from llm_agent import notices
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.testing.tools import ScriptedProvider
from llm_agent.tools import Toolbox, combine, tool


@tool(idempotency="idempotent")
def alpha() -> str:
    return "from alpha"


def beta() -> str:
    return "from beta"


class Granting(ScriptedProvider):
    """A provider with standing permissions."""

    def grants(self) -> list[Any]:
        return [{"tools": sorted(self._tools)}]


def call(name: str, id: str = "c1") -> ToolRequest:
    return ToolRequest(id, name, {})


def names(provider: Any) -> list[str]:
    return [declaration["function"]["name"] for declaration in provider.tools_for_llm()]


def text_of(answer: Any) -> str:
    return answer.content if isinstance(answer, ToolAnswer) else str(answer)


def test_functions_alone_are_a_toolbox() -> None:
    """Nothing is wrapped without need."""
    assert isinstance(combine([alpha, beta]), Toolbox)
    assert names(combine([])) == []


def test_a_provider_alone_is_itself() -> None:
    """With every method it has."""
    provider = ScriptedProvider({"x": "1"})

    assert combine([provider]) is provider


def test_a_mixture_is_listed_in_order() -> None:
    """The functions in the place of the first of them."""
    mixed = combine([ScriptedProvider({"x": "1"}), alpha, ScriptedProvider({"y": "2"}), beta])

    assert names(mixed) == ["x", "alpha", "beta", "y"]


def test_calls_go_to_the_owner_of_the_name() -> None:
    """Answers come back in the order of the calls."""
    mixed = combine([alpha, ScriptedProvider({"x": "from x"})])
    mixed.tools_for_llm()

    answers = mixed.execute_tool_calls([call("x", "a"), call("alpha", "b"), call("nope", "c")])

    assert [text_of(answer) for answer in answers[:2]] == ["from x", "from alpha"]
    assert isinstance(answers[2], ToolAnswer)
    assert answers[2].is_error
    assert "The tools are: alpha, x." in answers[2].content


def test_calls_before_a_listing_are_routed_too() -> None:
    """The names are fetched when they are needed."""
    assert text_of(combine([alpha, ScriptedProvider({"x": "1"})]).execute_tool_calls([call("x")])[0]) == "1"


def test_neighbours_of_one_provider_go_together() -> None:
    """The model's order is kept; only consecutive calls share a provider call."""
    x, y = ScriptedProvider({"x": "1"}), ScriptedProvider({"y": "2"})
    mixed = combine([x, y])

    mixed.execute_tool_calls([call("x", "a"), call("x", "b"), call("y", "c"), call("x", "d")])

    assert [[one.id for one in batch] for batch in x.batches] == [["a", "b"], ["d"]]
    assert [[one.id for one in batch] for batch in y.batches] == [["c"]]


def test_a_name_of_two_providers_is_refused_when_listing() -> None:
    """The error names both, and the name."""
    mixed = combine([alpha, ScriptedProvider({"alpha": "other"})])

    with pytest.raises(ConfigError, match=r"Toolbox\(alpha\) and ScriptedProvider \(number 2\) both publish .*'alpha'"):
        mixed.tools_for_llm()


def test_a_name_of_two_functions_is_refused_at_once() -> None:
    """Also with a provider in between."""

    @tool(name="alpha")
    def other() -> None: ...

    with pytest.raises(ConfigError, match="both named 'alpha'"):
        combine([alpha, ScriptedProvider({"x": "1"}), other])


class Raising(ScriptedProvider):
    def tools_for_llm(self) -> list[dict[str, Any]]:
        raise ConnectionError("server gone")


def test_a_listing_that_fails_is_not_hidden() -> None:
    """A shorter catalogue would be a lie; an answer, though, is never an exception."""
    mixed = combine([alpha, Raising({"x": "1"})])

    with pytest.raises(ConnectionError):
        mixed.tools_for_llm()
    answer = mixed.execute_tool_calls([call("alpha")])[0]
    assert isinstance(answer, ToolAnswer)
    assert answer.is_error
    assert "server gone" in answer.content


@pytest.mark.parametrize("failure", [RuntimeError("broken"), SystemExit(1)])
def test_a_provider_that_raises_costs_its_own_calls_only(failure: BaseException) -> None:
    """Its neighbours are answered as ever."""
    mixed = combine([alpha, ScriptedProvider({"x": failure})])

    answers = mixed.execute_tool_calls([call("x", "a"), call("alpha", "b")])

    assert isinstance(answers[0], ToolAnswer)
    assert answers[0].is_error
    assert type(failure).__name__ in answers[0].content
    assert text_of(answers[1]) == "from alpha"


class Careless:
    """Answers with whatever it is given."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers

    def tools_for_llm(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "x"}}, {"odd": "declaration"}]

    def execute_tool_calls(self, calls: Sequence[ToolRequest]) -> Any:
        return self.answers


def lazy() -> Iterator[str]:
    yield "one"
    yield "two"


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([], [notices.NO_RESULT, notices.NO_RESULT]),
        (None, [notices.NO_RESULT, notices.NO_RESULT]),
        (["one"], ["one", notices.NO_RESULT]),
        ("one", ["one", notices.NO_RESULT]),
        (ToolAnswer("a", "one"), ["one", notices.NO_RESULT]),
        (lazy(), ["one", "two"]),
        (["one", "two", "three"], ["one", "two"]),
    ],
)
def test_every_call_has_exactly_one_answer(returned: Any, expected: list[str]) -> None:
    """A provider that comes up short, or with too much, does not shift its neighbours."""
    mixed = combine([Careless(returned), alpha])

    answers = mixed.execute_tool_calls([call("x", "a"), call("x", "b"), call("alpha", "c")])

    assert [text_of(answer) for answer in answers] == [*expected, "from alpha"]


def test_an_unreadable_declaration_is_passed_on() -> None:
    """It is the loop's to judge."""
    assert {"odd": "declaration"} in list(combine([Careless([]), alpha]).tools_for_llm())


def test_grants_are_there_when_one_has_them() -> None:
    """Of several providers, all of them; of none, not even the method."""
    one, two = Granting({"x": "1"}), Granting({"y": "1"})

    assert not hasattr(combine([alpha, ScriptedProvider({"z": "1"})]), "grants")
    assert combine([alpha, one, two]).grants() == [{"tools": ["x"]}, {"tools": ["y"]}]  # type: ignore[attr-defined]


def test_idempotency_is_the_owners() -> None:
    """A provider that says nothing leaves it unknown."""
    mixed: Any = combine([alpha, ScriptedProvider({"x": "1"})])
    mixed.tools_for_llm()

    assert [mixed.idempotency_of(name) for name in ("alpha", "x", "nope")] == ["idempotent", "unknown", "unknown"]


class Half:
    def tools_for_llm(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (5, "tools\\[1\\]: expected a function or a tool provider, got int"),
        (Half(), r"tools\[1\]: a provider needs execute_tool_calls\(\) too"),
        (ScriptedProvider, r"tools\[1\]: ScriptedProvider is a class"),
        (int, "is a class"),
        ([alpha], "got list"),
    ],
)
def test_what_is_neither_is_refused(item: Any, message: str) -> None:
    """The error says which item."""
    with pytest.raises(ConfigError, match=message):
        combine([alpha, item])
