"""What every layer does alike: whatever the provider behind it does, each call has its answer."""

from __future__ import annotations

import threading
from collections import UserDict
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest
from layered import Declaring, Granting, call, declared, raising

from llm_agent import notices, testing
from llm_agent.errors import ConfigError
from llm_agent.layers import (
    Layer,
    checked_provider,
    declarations_of,
    declared_names,
    declared_parameters,
    forwarded,
    grants_of,
    paired,
    refused,
    requests_of,
    results_of,
)
from llm_agent.messages import ToolAnswer, ToolRequest


class Half:
    def tools_for_llm(self) -> list[Any]:
        return []


class Unreadable(UserDict[str, Any]):
    def get(self, key: str, default: Any = None) -> Any:
        raise OSError("gone")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, r"Owner: expected a tool provider \(tools_for_llm\(\) and execute_tool_calls\(\)\), got NoneType"),
        ({}, "Owner: expected a tool provider .*, got dict"),
        (Declaring, "Owner: Declaring is a class; hand over an object of it"),
        (Half(), r"Owner: a provider needs execute_tool_calls\(\) too; Half has only tools_for_llm\(\)"),
    ],
)
def test_what_is_no_provider_is_refused_by_name(value: Any, problem: str) -> None:
    """A layer is checked when it is made, not when a model calls it."""
    with pytest.raises(ConfigError, match=problem):
        checked_provider(value, "Owner")


def test_a_provider_is_itself() -> None:
    """No base class, no registration: two methods are enough."""
    provider = Declaring()

    assert checked_provider(provider, "Owner") is provider


def test_typed_calls_are_the_same_objects() -> None:
    """What is compared by identity further in is never copied on the way."""
    first = call("x")

    assert requests_of([first])[0] is first


@pytest.mark.parametrize("raw", [None, 7, "x", [], {}, {"function": None}, {"function": {"name": 5}}, Unreadable()])
def test_an_unreadable_call_is_one_without_a_name(raw: Any) -> None:
    """It keeps its place, so that it can be answered."""
    assert requests_of([raw]) == [ToolRequest("", "")]


def test_a_raw_call_is_read() -> None:
    """Of a mapping, what a call needs, and nothing besides."""
    raw = {"id": "c1", "function": {"name": "x", "arguments": '{"n":1}'}, "index": 0}

    assert requests_of([raw]) == [ToolRequest("c1", "x", '{"n":1}')]


def _lazy(calls: Sequence[ToolRequest]) -> Iterator[str]:
    yield from (call.name for call in calls)


def _lazy_and_raising(calls: Sequence[ToolRequest]) -> Iterator[str]:
    yield "first"
    raise OSError("pipe")


TWO = (call("x", id="a"), call("y", id="b"))
LOST = (notices.NO_RESULT, True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["1", "2"], [("1", False), ("2", False)]),
        (["1"], [("1", False), LOST]),
        ([], [LOST, LOST]),
        (None, [LOST, LOST]),
        ([None, "2"], [LOST, ("2", False)]),
        (["1", "2", "3"], [("1", False), ("2", False)]),
        ("lone", [("lone", False), LOST]),
        ({"content": "lone", "is_error": True}, [("lone", True), LOST]),
        ([{"tool_call_id": "b", "content": "2"}, {"tool_call_id": "a", "content": "1"}], [("1", False), ("2", False)]),
        ([{"tool_call_id": "z", "content": "1"}, "2"], [("1", False), ("2", False)]),
        ([b"caf\xc3\xa9", ["a", 1]], [("café", False), ('["a",1]', False)]),
        ([{"content": {"n": 1}}, 5], [('{"n":1}', False), ("5", False)]),
        ([Unreadable(), "2"], [("The tool provider failed: OSError: gone", True), ("2", False)]),
    ],
)
def test_each_call_has_its_answer_whatever_was_given(given: Any, expected: list[tuple[str, bool]]) -> None:
    """By id where ids are known, else by position; what is missing is an error that says so."""
    answers = forwarded(Declaring(answers=lambda _: given), TWO, "Owner")

    assert [(answer.content, answer.is_error) for answer in answers] == expected
    assert [answer.tool_call_id for answer in answers] == ["a", "b"]


def test_an_id_that_calls_share_says_nothing() -> None:
    """Answers to them are taken in their order."""
    answers = paired(["a", "a", "b"], [ToolAnswer("a", "1"), ToolAnswer("a", "2"), ToolAnswer("b", "3")])

    assert [answer and answer.content for answer in answers] == ["1", "2", "3"]


@pytest.mark.parametrize("answers", [raising(OSError("pipe\nmore")), _lazy_and_raising, lambda _: 5])
def test_a_provider_that_fails_is_an_error_for_each_of_its_calls(answers: Any) -> None:
    """The text names who stands before it, and the first line of the failure."""
    given = forwarded(Declaring(answers=answers), TWO, "the prefix 'fs'")

    assert [answer.is_error for answer in given] == [True, True]
    assert given[0].content.startswith("The tool provider behind the prefix 'fs' failed: ")
    assert "more" not in given[0].content


def test_one_answer_too_many_does_not_take_the_place_of_the_right_one() -> None:
    """The id decides, of one call as of many."""
    answers = paired(["a"], [ToolAnswer("z", "another's"), ToolAnswer("a", "its own")])

    assert answers == [ToolAnswer("a", "its own")]


def test_an_endless_failure_is_cut() -> None:
    """A server that puts all it has into one line does not fill the conversation."""
    answer = forwarded(Declaring(answers=raising(OSError("x" * 1_000_000))), TWO[:1], "Owner")[0]

    assert len(answer.content) < 3_000


def test_a_lazy_answer_is_walked_inside_the_call() -> None:
    """The work happens on this thread, or a deadline would guard nothing."""
    assert [answer.content for answer in forwarded(Declaring(answers=_lazy), TWO, "Owner")] == ["x", "y"]


def test_what_is_surplus_beyond_all_use_is_not_kept() -> None:
    """The rest of a long list is walked, and dropped as it comes."""
    many = Declaring(answers=lambda _: (str(number) for number in range(1_000)))

    assert results_of(many, TWO) == ["0", "1", "2", "3"]


def test_a_good_answer_is_the_same_object() -> None:
    """With what it carries for machines."""
    good = ToolAnswer("a", "1", structured={"n": 1})

    assert forwarded(Declaring(answers=lambda _: [good]), TWO[:1], "Owner")[0] is good


@pytest.mark.parametrize("key", ["structured", "structured_content"])
def test_structured_data_of_a_mapping_is_kept(key: str) -> None:
    """Under our name, or the name that tool servers use."""
    answer = forwarded(Declaring(answers=lambda _: [{"content": "1", key: {"n": 1}}]), TWO[:1], "Owner")[0]

    assert answer.structured == {"n": 1}


def test_a_truth_that_cannot_be_told_is_no_error() -> None:
    """An answer is never lost over its flag."""

    class Neither:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    odd: Any = Neither()
    answer = forwarded(Declaring(answers=lambda _: [ToolAnswer("a", "1", is_error=odd)]), TWO[:1], "Owner")[0]

    assert answer.is_error is False


def test_without_calls_a_provider_is_not_asked() -> None:
    """Nothing in, nothing out."""
    provider = Declaring()

    assert forwarded(provider, [], "Owner") == []
    assert provider.batches == []


def test_a_provider_may_do_what_it_likes_with_its_list() -> None:
    """It is a list of its own."""

    def clears(calls: Any) -> list[str]:
        calls.clear()
        return ["1", "2"]

    calls = list(TWO)
    forwarded(Declaring(answers=clears), calls, "Owner")

    assert calls == list(TWO)


def test_once_cancelled_nothing_reaches_a_provider() -> None:
    """What a layer in front waited for (a human) may have outlived the run."""
    cancelled = threading.Event()
    cancelled.set()
    provider = Declaring()

    with testing.call_context(cancelled=cancelled):
        answers = forwarded(provider, TWO, "Owner")

    assert provider.batches == []
    assert [answer.content for answer in answers] == [notices.ABANDONED_CANCELLED] * 2


def test_a_refusal_says_why_to_a_machine_too() -> None:
    """The facts stand beside the text; without facts there is nothing."""
    answer = refused(TWO[0], "no", by="rule", reason="bare")

    assert (answer.tool_call_id, answer.content, answer.is_error) == ("a", "no", True)
    assert answer.structured == {"denied": {"by": "rule", "reason": "bare"}}
    assert refused(TWO[0], "no").structured is None


def test_a_layer_has_the_optional_parts_of_its_provider_and_no_others() -> None:
    """The engine looks for them by name, and takes their absence at its word."""
    with_parts: Any = Layer(Granting())
    without = Layer(Declaring())

    assert with_parts.grants() == [{"tool": "x", "decision": "allow"}]
    assert with_parts.idempotency_of("x") == "read-only"
    assert not any(hasattr(without, part) for part in ("grants", "idempotency_of"))
    assert not hasattr(with_parts, "batches")


def test_grants_are_none_where_a_provider_has_no_such_part() -> None:
    """No grants yet is something else: an empty list."""
    assert grants_of(Declaring()) is None
    assert grants_of(Granting()) == [{"tool": "x", "decision": "allow"}]


def test_names_are_those_that_can_be_read() -> None:
    """In the provider's order."""
    odd = [{"function": None}, "odd", {"function": {"name": ""}}]

    assert declared_names(Declaring(declared("b"), *odd, declared("a"))) == ["b", "a"]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, {}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}}),
        ({"type": "array"}, None),
        ({"properties": []}, None),
        ({"$ref": "#/$defs/a"}, None),
        ({"anyOf": [{}]}, None),
        ("text", None),
    ],
)
def test_a_schema_says_its_properties_by_itself_or_not_at_all(parameters: Any, expected: Any) -> None:
    """A composed one may have them anywhere."""
    assert declared_parameters({"function": {"name": "x", "parameters": parameters}}) == expected


def test_an_answer_under_another_id_is_a_copy() -> None:
    """The provider's own object stays what it was."""
    shared = ToolAnswer("shared", "1")

    answer = forwarded(Declaring(answers=lambda _: [shared]), TWO[:1], "Owner")[0]

    assert answer == attrs.evolve(shared, tool_call_id="a")
    assert shared.tool_call_id == "shared"


class Promising:
    """A provider of another world: both methods are coroutines."""

    async def tools_for_llm(self) -> list[dict[str, Any]]:
        return []

    async def execute_tool_calls(self, calls: Any) -> list[str]:
        return ["done"]


def test_a_provider_of_coroutines_is_told_what_is_wrong_with_it() -> None:
    """In the answer and in the listing; nothing is left un-awaited, which would be a warning."""
    provider: Any = Promising()

    [answer] = forwarded(provider, [ToolRequest("c", "t", {})], "Layer")

    assert "execute_tool_calls() returned a coroutine" in answer.content
    with pytest.raises(TypeError, match="tools_for_llm\\(\\) returned a coroutine"):
        declarations_of(provider)


def test_a_list_is_no_provider_and_the_error_says_what_makes_one() -> None:
    """It is what a loop takes as `tools`, so people try."""
    with pytest.raises(ConfigError, match="got list; `llm_agent"):
        checked_provider([len], "Policy")
