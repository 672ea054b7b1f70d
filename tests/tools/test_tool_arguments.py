"""Arguments are checked and converted before a function sees them."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.tools import Toolbox, tool
from llm_agent.tools.schema import Shapes
from llm_agent.tools.shapes import Definitions, Mismatch


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@attrs.frozen
class Positive:
    value: int = attrs.field(validator=attrs.validators.gt(0))


class Options(TypedDict):
    depth: int


class Pair(NamedTuple):
    left: str
    right: int = 2


@dataclasses.dataclass
class Tree:
    children: list[Tree]


def received(annotation: Any, value: Any) -> Any:
    """What a function with one parameter of *annotation* gets; fails when the call is refused."""
    seen: list[Any] = []

    def function(value: Any) -> None:
        seen.append(value)

    function.__annotations__["value"] = annotation
    answer = called(function, value=value)
    assert not answer.is_error, answer.content
    return seen[0]


def refused(function: Callable[..., Any], /, **arguments: Any) -> str:
    """The text for the model."""
    answer = called(function, **arguments)
    assert answer.is_error
    return answer.content


def called(function: Callable[..., Any], /, **arguments: Any) -> ToolAnswer:
    box = Toolbox([function])
    return box.execute_tool_calls([ToolRequest("c1", box.names[0], arguments)])[0]


@pytest.mark.parametrize(
    ("annotation", "sent", "expected"),
    [
        (str, "a", "a"),
        (int, 5.0, 5),
        (float, 5, 5.0),
        (bool, True, True),
        (Any, {"a": [1]}, {"a": [1]}),
        (list[int], [1, 2.0], [1, 2]),
        (set[str], ["a", "a"], {"a"}),
        (frozenset[int], [1], frozenset({1})),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (int | None, None, None),
        (Path, "a/b", Path("a/b")),
        (datetime, "2024-05-06T07:08:09", datetime(2024, 5, 6, 7, 8, 9)),
        (date, "2024-05-06", date(2024, 5, 6)),
        (time, "07:08", time(7, 8)),
        (UUID, "12345678123456781234567812345678", UUID(int=0x12345678123456781234567812345678)),
        (Color, "blue", Color.BLUE),
        (Literal["a", 1], 1, 1),
        (Point, {"x": 1}, Point(1)),
        (Positive, {"value": 3}, Positive(3)),
        (Options, {"depth": 1}, {"depth": 1}),
        (Pair, {"left": "a"}, Pair("a", 2)),
        (list[Point] | str, [{"x": 1, "y": 2}], [Point(1, 2)]),
        (int | str, "5", "5"),
        (Tree, {"children": [{"children": []}]}, Tree([Tree([])])),
    ],
)
def test_values_become_what_the_annotation_says(annotation: Any, sent: Any, expected: Any) -> None:
    """JSON becomes instances, by type and value."""
    got = received(annotation, sent)

    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "sent", "line"),
    [
        (int, "5", 'value: expected a whole number, got "5"'),
        (int, 5.5, "value: expected a whole number, got 5.5"),
        (int, True, "value: expected a whole number, got true"),
        (float, "1", 'value: expected a number, got "1"'),
        (bool, 1, "value: expected true or false, got 1"),
        (str, 5, "value: expected a string, got 5"),
        (str, None, "value: expected a string, got null"),
        (list[int], [1, "x"], 'value[1]: expected a whole number, got "x"'),
        (list[int], "x", 'value: expected a list, got "x"'),
        (list[Point], [{"x": 1}, {"x": "a"}], 'value[1].x: expected a whole number, got "a"'),
        (Point, {"x": 1, "yy": 2}, "value.yy: no such name; did you mean y?"),
        (Point, {"y": 1}, "value.x: missing; expected a whole number"),
        (Point, [1, 2], "value: expected an object (x, y), got a list of 2 items"),
        (dict[str, int], {"k": "v"}, 'value.k: expected a whole number, got "v"'),
        (tuple[int, str], [1], "value: expected a list of exactly 2 items, got 1"),
        (Color, "green", 'value: expected one of "red", "blue", got "green"'),
        (Literal[1], True, "value: expected one of 1, got true"),
        (datetime, "soon", 'value: expected a date and time in ISO 8601 form, got "soon"'),
        (int | None, "x", 'value: expected a whole number or null, got "x"'),
        (int | list[Point], [{"x": "a"}], 'value[0].x: expected a whole number, got "a"'),
        (set[Any], [[]], "value: its items cannot be members of a set"),
        (str, {"a": 1, "b": 2}, "value: expected a string, got an object with the keys a, b"),
        (int, "x" * 100, f'value: expected a whole number, got "{"x" * 60}"... (100 characters)'),
        (str, 10**300, "value: expected a string, got a very large number"),
        (Positive, {"value": 0}, "value: refused: ValueError: 'value' must be > 0: 0"),
    ],
)
def test_what_does_not_fit_is_said_to_the_model(annotation: Any, sent: Any, line: str) -> None:
    """Which argument, what was expected, what came."""

    def function(value: Any) -> None:
        raise AssertionError("executed in spite of its arguments")

    function.__annotations__["value"] = annotation

    assert refused(function, value=sent).splitlines()[1:] == [f"- {line}"]


def test_every_wrong_argument_is_told_at_once() -> None:
    """One more attempt is enough."""

    def move(source: str, target: str, count: int = 1) -> None: ...

    assert refused(move, sorce="a", count="many").splitlines() == [
        "This call was not run, because its arguments do not fit the tool 'move':",
        "- sorce: no such name; did you mean source?",
        '- count: expected a whole number, got "many"',
        "- source: missing; expected a string",
        "- target: missing; expected a string",
    ]


def test_a_far_off_name_is_answered_with_the_known_ones() -> None:
    """No guess is better than a wrong one."""

    def move(source: str) -> None: ...

    assert "- zzz: no such name; known are source" in refused(move, source="a", zzz=1)


def test_text_for_the_model_is_bounded() -> None:
    """Neither many problems nor long names make it long."""

    def function() -> None: ...

    text = refused(function, **{f"{'n' * 1000}{index}": "x" * 10_000 for index in range(100)})

    assert len(text) < 2_000
    assert text.endswith("- and 90 more")


def test_defaults_are_left_to_the_function() -> None:
    """What the model leaves out is not passed at all."""

    def function(a: int = 1, *, b: list[int] = []) -> bool:  # noqa: B006
        return b is function.__kwdefaults__["b"]

    assert called(function).content == "true"


def test_positional_only_parameters_are_filled_by_name() -> None:
    """The model knows names only; a default in between is kept."""

    def function(a: int, b: int = 2, /, c: int = 3) -> list[int]:
        return [a, b, c]

    assert called(function, a=1, c=4).content == "[1,2,4]"


def test_more_keys_reach_var_keyword_parameters() -> None:
    """They are checked like any other."""

    def function(name: str, **options: int) -> dict[str, int]:
        return options

    assert called(function, name="a", b=1.0).content == '{"b":1}'
    assert '- b: expected a whole number, got "x"' in refused(function, name="a", b="x")


def test_nesting_beyond_reason_is_refused() -> None:
    """A recursive class and a model that nests for ever: an answer, not a crash."""

    def plant(tree: Tree) -> None: ...

    depth = sys.getrecursionlimit() // 2
    text = '{"tree":' + '{"children":[' * depth + "]}" * depth + "}"
    answer = Toolbox([plant]).execute_tool_calls([ToolRequest("c", "plant", text)])[0]

    assert answer.is_error
    assert "nested too deeply" in answer.content


# -- a schema of the author's own --------------------------------------------------------------

OWN = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}


def test_a_supplied_schema_is_declared_and_checked() -> None:
    """It replaces the derived one, word by word, and jsonschema checks it."""

    @tool(parameters=OWN)
    def function(n):  # type: ignore[no-untyped-def]
        return n

    assert Toolbox([function]).tools_for_llm()[0]["function"]["parameters"] == OWN
    assert called(function, n=5).content == "5"
    assert "- n: 1 is less than the minimum of 3" in refused(function, n=1)
    assert '- n: expected integer, got "x"' in refused(function, n="x")
    assert "- arguments: 'n' is a required property" in refused(function)


def test_names_a_function_does_not_take_are_refused_whatever_the_schema_says() -> None:
    """A supplied schema cannot make a call fail inside the function."""

    @tool(parameters={"type": "object"})
    def function(n: int) -> int:
        return n

    assert "- m: no such name" in refused(function, n=1, m=2)


@pytest.mark.parametrize("schema", [[], {"type": "array"}, {"type": "object", "properties": 5}])
def test_a_supplied_schema_that_is_none_is_refused(schema: Any) -> None:
    """At the decorator, not in a call."""
    with pytest.raises(ConfigError, match="parameters"):
        tool(parameters=schema)


def test_a_supplied_schema_cannot_be_changed_afterwards() -> None:
    """The author's mapping is copied."""
    mine: dict[str, Any] = {"type": "object", "properties": {}}

    @tool(parameters=mine)
    def function(**anything: Any) -> None: ...

    box = Toolbox([function])
    mine["properties"]["x"] = {"type": "string"}

    assert box.tools_for_llm()[0]["function"]["parameters"]["properties"] == {}
    assert not box.execute_tool_calls([ToolRequest("c1", "function", {"x": 5})])[0].is_error


# -- declared and accepted are the same --------------------------------------------------------

ANNOTATIONS = st.recursive(
    st.sampled_from([str, int, float, bool, None, Any, Color, Literal["a", 1, True], Point, Options, Pair]),
    lambda inner: st.one_of(
        inner.map(lambda one: list[one]),  # type: ignore[valid-type]
        inner.map(lambda one: dict[str, one]),  # type: ignore[valid-type]
        inner.map(lambda one: Annotated[one, "text"]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda two: tuple[two]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda two: two[0] | two[1] if two[0] is not None else list[two[1]]),  # type: ignore
    ),
    max_leaves=4,
)
SCALARS = st.sampled_from([None, True, False, 0, 1, 2.0, 0.5, "a", "red", ""])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "depth", "left", "right", "z"]), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(ANNOTATIONS, VALUES)
@settings(max_examples=150)
def test_what_is_declared_is_what_is_accepted(annotation: Any, value: Any) -> None:
    """A value is read exactly when the declared schema is satisfied."""
    shape = Shapes().of(annotation, "here")
    definitions: Definitions = {}
    schema = shape.schema(definitions)

    is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    try:
        shape.read(value, "value")
    except Mismatch:
        assert not is_valid
    else:
        assert is_valid
