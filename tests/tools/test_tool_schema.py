"""From signatures to JSON Schema."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)

import attrs
import jsonschema
import pytest

from llm_agent.call_context import ToolCallContext
from llm_agent.errors import ConfigError
from llm_agent.tools import Toolbox, tool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    ONE = (1, 1)
    TWO = (2, 2)


@dataclasses.dataclass
class Point:
    """A place.

    Attributes:
        x: to the right
    """

    x: int
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


@attrs.frozen
class Item:
    name: str
    _count: int = 1
    color: Color = Color.RED


class Options(TypedDict, total=False):
    depth: Required[int]
    label: NotRequired[Annotated[str, "what to call it"]]
    extra: float


class Pair(NamedTuple):
    left: str
    right: str = "r"


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)


@attrs.frozen
class Even:
    value: Optional[Odd] = None  # noqa: UP045


@attrs.frozen
class Odd:
    value: Even


UserId = NewType("UserId", int)
T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    inside: T


@dataclasses.dataclass
class WithInitVar:
    x: dataclasses.InitVar[int]


class Unknown:
    pass


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = Toolbox([function]).tools_for_llm()[0]["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def schema_of(annotation: Any) -> Any:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    return parameters(function)["properties"]["value"]


NULL = {"type": "null"}
STRING = {"type": "string"}
INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, STRING),
        (int, INTEGER),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, NULL),
        (Any, {}),
        (object, {}),
        (list, {"type": "array", "items": {}}),
        (list[int], {"type": "array", "items": INTEGER}),
        (Sequence[str], {"type": "array", "items": STRING}),
        (set[str], {"type": "array", "items": STRING, "uniqueItems": True}),
        (frozenset[str], {"type": "array", "items": STRING, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": INTEGER}),
        (tuple[int, int], {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}),
        (dict, {"type": "object", "additionalProperties": True}),
        (dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": True}),
        (Optional[int], {"anyOf": [INTEGER, NULL]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [INTEGER, STRING]}),  # noqa: UP007
        (int | None, {"anyOf": [INTEGER, NULL]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Mixed, {"type": "string", "enum": ["ONE", "TWO"]}),
        (Literal[Color.RED], {"type": "string", "enum": ["red"]}),
        (datetime, {"type": "string", "format": "date-time"}),
        (date, {"type": "string", "format": "date"}),
        (Path, STRING),
        (UserId, INTEGER),
        (Annotated[int, "a number"], {"type": "integer", "description": "a number"}),
        ("list[Optional[int]]", {"type": "array", "items": {"anyOf": [INTEGER, NULL]}}),
        (list["Color"], {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}),
    ],
)
def test_annotations_have_a_schema(annotation: Any, expected: Any) -> None:
    """Each annotation means one schema."""
    assert schema_of(annotation) == expected


def test_places_of_a_tuple_are_said_for_old_and_new_drafts() -> None:
    """`prefixItems` for the new ones, `items` for the old ones and for servers that insist on it."""
    assert schema_of(tuple[int, str]) == {
        "type": "array",
        "prefixItems": [INTEGER, STRING],
        "items": {"anyOf": [INTEGER, STRING]},
        "minItems": 2,
        "maxItems": 2,
    }


def test_a_dataclass_is_an_object_with_its_docstring() -> None:
    """Fields, defaults, descriptions; nothing else is allowed."""
    assert schema_of(Point) == {
        "description": "A place.",
        "type": "object",
        "properties": {
            "x": {"type": "integer", "description": "to the right"},
            "y": {"type": "integer", "default": 0},
            "tags": {"type": "array", "items": STRING},
        },
        "required": ["x"],
        "additionalProperties": False,
    }


def test_an_attrs_class_is_an_object_by_the_names_of_its_constructor() -> None:
    """A private attribute is written without its underscore."""
    assert schema_of(Item) == {
        "type": "object",
        "properties": {
            "name": STRING,
            "count": {"type": "integer", "default": 1},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


def test_a_typed_dict_requires_what_it_says() -> None:
    """Required and NotRequired count, also where the future import has made them text."""
    found = schema_of(Options)

    assert found["required"] == ["depth"]
    assert found["properties"]["label"] == {"type": "string", "description": "what to call it"}
    assert list(found["properties"]) == ["depth", "label", "extra"]


def test_a_named_tuple_is_an_object() -> None:
    """By its field names, with its defaults."""
    assert schema_of(Pair) == {
        "type": "object",
        "properties": {"left": STRING, "right": {"type": "string", "default": "r"}},
        "required": ["left"],
        "additionalProperties": False,
    }


def test_a_recursive_class_is_declared_once() -> None:
    """It stands under $defs and is referred to; others are written out in place."""

    def plant(tree: Tree, other: Tree | None = None) -> None: ...

    found = parameters(plant)

    assert found["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert found["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    jsonschema.validate({"tree": {"name": "a", "children": [{"name": "b"}]}}, found)


def test_classes_that_contain_each_other_are_declared() -> None:
    """A cycle over two classes ends."""

    def count(even: Even) -> None: ...

    jsonschema.validate({"even": {"value": {"value": {"value": None}}}}, parameters(count))


def test_defaults_are_shown_and_make_a_parameter_optional() -> None:
    """What JSON can say is shown; what it cannot is only not required."""

    def function(a: int, b: int = 3, c: Color = Color.BLUE, d: Path = Path("x"), e: Any = Unknown) -> None: ...

    found = parameters(function)

    assert found["required"] == ["a"]
    assert found["properties"]["b"]["default"] == 3
    assert found["properties"]["c"]["default"] == "blue"
    assert found["properties"]["d"]["default"] == "x"
    assert "default" not in found["properties"]["e"]


def test_a_default_of_none_allows_null() -> None:
    """`x: int = None` says that None is fine."""

    def function(x: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert parameters(function)["properties"]["x"] == {"anyOf": [INTEGER, NULL], "default": None}


def test_unknown_arguments_are_forbidden_by_the_schema() -> None:
    """No parameter, no key."""

    def function() -> None: ...

    assert parameters(function) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_var_keyword_parameters_allow_more_keys() -> None:
    """`**options: int` are further keys of that type."""

    def function(name: str, **options: int) -> None: ...

    assert parameters(function)["additionalProperties"] == INTEGER


def test_the_context_is_not_part_of_the_schema() -> None:
    """A parameter annotated ToolCallContext is the engine's, also when it is optional."""

    def function(a: int, ctx: ToolCallContext, other: ToolCallContext | None = None) -> None: ...

    assert list(parameters(function)["properties"]) == ["a"]


def test_what_a_partial_has_bound_is_not_part_of_the_schema() -> None:
    """The author's arguments are not offered to the model."""

    def search(query: str, root: Unknown, limit: int = 3) -> None:
        """Search."""

    bound = functools.partial(search, root=Unknown())
    declaration = Toolbox([bound]).tools_for_llm()[0]["function"]

    assert declaration["name"] == "search"
    assert declaration["description"] == "Search."
    assert list(declaration["parameters"]["properties"]) == ["query", "limit"]


def test_the_docstring_describes_tool_and_parameters() -> None:
    """An Annotated description wins over the docstring's."""

    def function(a: int, b: Annotated[int, "said here"]) -> None:
        """Do it.

        Args:
            a: said there
            b: said there
        """

    declaration = Toolbox([function]).tools_for_llm()[0]["function"]

    assert declaration["description"] == "Do it."
    assert declaration["parameters"]["properties"]["a"]["description"] == "said there"
    assert declaration["parameters"]["properties"]["b"]["description"] == "said here"


@pytest.mark.parametrize(
    "annotation",
    [
        Unknown,
        bytes,
        complex,
        Callable[[int], int],
        Iterator[int],
        dict[int, str],
        list[Unknown],
        T,
        Box[int],
        WithInitVar,
        Literal[b"x"],
        "NotThere",
        "list[",
        type[int],
    ],
)
def test_an_annotation_without_a_schema_is_refused(annotation: Any) -> None:
    """The error names the function and the parameter."""
    with pytest.raises(ConfigError, match=r"schema_of.*function: parameter 'value'"):
        schema_of(annotation)


def test_a_bad_field_inside_a_class_is_named() -> None:
    """The error says which field of which class."""

    @dataclasses.dataclass
    class Holder:
        good: int
        bad: Any

    Holder.__annotations__["bad"] = Unknown
    with pytest.raises(ConfigError, match=r"parameter 'value': Holder\.bad.*Unknown"):
        schema_of(Holder)


def test_var_positional_parameters_are_refused() -> None:
    """Arguments of a call have names."""

    def function(*paths: str) -> None: ...

    with pytest.raises(ConfigError, match=r"parameter 'paths'.*take a list"):
        Toolbox([function])


def test_a_bad_return_annotation_does_not_matter() -> None:
    """Only parameters are read."""

    @tool
    def function(a: int) -> NotThere:  # type: ignore[name-defined]  # noqa: F821
        return a

    assert Toolbox([function]).names == ("function",)


def test_a_plain_named_tuple_takes_anything() -> None:
    """Fields without annotations have no constraint."""
    Plain = collections.namedtuple("Plain", ["a", "b"])

    assert schema_of(Plain)["properties"] == {"a": {}, "b": {}}
