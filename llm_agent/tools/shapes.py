"""What a JSON value must look like, and which Python value it becomes.

One class per kind of value. `schema` tells the model, `read` checks and converts; both come
from the same object, so that what is declared and what is accepted cannot drift apart. Pure:
where shapes come from is `schema`'s business, what a call's arguments are is `validate`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from llm_agent import codec
from llm_agent.tools.results import ABSENT

JsonSchema = dict[str, Any]
Definitions = dict[str, JsonSchema]
"""The bodies of recursive records by name: what becomes `$defs`."""

# How much of a wrong value is shown to the model, in characters and in names.
_SHOWN_CHARACTERS: Final = 60
_SHOWN_NAMES: Final = 12
_SHOWN_REFUSAL: Final = 200
# Beyond this many bits a number is named, not shown: no argument is meant that way.
_SHOWN_BITS: Final = 128


class Mismatch(Exception):
    """A value does not fit: where, and what is wrong with it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    @property
    def depth(self) -> int:
        """How far inside the arguments it was found."""
        return self.path.count(".") + self.path.count("[")


class Shape(Protocol):
    """One kind of value."""

    @property
    def expected(self) -> str:
        """The kind in words, as in "expected a string"."""
        ...

    def schema(self, definitions: Definitions) -> JsonSchema:
        """Return the JSON Schema, a new one each time; recursive records are added to *definitions*."""
        ...

    def read(self, value: Any, path: str) -> Any:
        """Return the Python value for the JSON *value* found at *path*.

        Raises:
            Mismatch: it does not fit.
        """
        ...


def shown(value: Any) -> str:
    """Return *value* as a few words for the model, never long."""
    match value:
        case str() if len(value) > _SHOWN_CHARACTERS:
            return f"{codec.dumps(value[:_SHOWN_CHARACTERS]).decode()}... ({len(value)} characters)"
        case int() if value.bit_length() > _SHOWN_BITS:
            return "a very large number"
        case list():
            return f"a list of {len(value)} item{'' if len(value) == 1 else 's'}"
        case Mapping():
            return f"an object with the keys {names_of(value)}" if value else "an empty object"
        case _:
            return codec.dumps(value).decode()


def names_of(names: Any) -> str:
    """Return names, joined, for the model; only the first of many."""
    every = [str(name)[:_SHOWN_CHARACTERS] for name in names]
    more = f" and {len(every) - _SHOWN_NAMES} more" if len(every) > _SHOWN_NAMES else ""
    return ", ".join(every[:_SHOWN_NAMES]) + more


def mismatch(path: str, shape: Shape, value: Any) -> Mismatch:
    return Mismatch(path, f"expected {shape.expected}, got {shown(value)}")


# -- single values ------------------------------------------------------------------------


@attrs.frozen(repr=False, eq=False)
class AnyValue:
    """Whatever the model sends."""

    expected: str = "any value"

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {}

    def read(self, value: Any, path: str) -> Any:
        return value


@attrs.frozen(repr=False, eq=False)
class Text:
    expected: str = "a string"

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"type": "string"}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise mismatch(path, self, value)
        return value


@attrs.frozen(repr=False, eq=False)
class WholeNumber:
    """An int. `5.0` is one (JSON has one kind of number); `"5"` and `true` are not."""

    expected: str = "a whole number"

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"type": "integer"}

    def read(self, value: Any, path: str) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise mismatch(path, self, value)
        return value


@attrs.frozen(repr=False, eq=False)
class Number:
    """A float; whole numbers become one."""

    expected: str = "a number"

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"type": "number"}

    def read(self, value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mismatch(path, self, value)
        try:
            number = float(value)
        except OverflowError:
            raise mismatch(path, self, value) from None
        if not math.isfinite(number):  # JSON text cannot say it, a mapping given by a test can
            raise mismatch(path, self, value)
        return number


@attrs.frozen(repr=False, eq=False)
class Flag:
    expected: str = "true or false"

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"type": "boolean"}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, bool):
            raise mismatch(path, self, value)
        return value


@attrs.frozen(repr=False, eq=False)
class Null:
    expected: str = "null"

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"type": "null"}

    def read(self, value: Any, path: str) -> Any:
        if value is not None:
            raise mismatch(path, self, value)
        return None


_JSON_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@attrs.frozen(repr=False, eq=False)
class Choice:
    """One of a few values: a Literal or an Enum."""

    options: tuple[tuple[Any, Any], ...]
    """(what the model writes, what the function gets)."""

    @property
    def expected(self) -> str:
        return f"one of {', '.join(codec.dumps(written).decode() for written, _ in self.options)}"

    def schema(self, definitions: Definitions) -> JsonSchema:
        written = [value for value, _ in self.options]
        kinds = {_JSON_TYPES[type(value)] for value in written}
        return {"type": kinds.pop(), "enum": written} if len(kinds) == 1 else {"enum": written}

    def read(self, value: Any, path: str) -> Any:
        for written, meant in self.options:
            # By type too: true equals 1 in Python, not in JSON.
            if written == value and isinstance(written, bool) == isinstance(value, bool):
                return meant
        raise mismatch(path, self, value)


@attrs.frozen(repr=False, eq=False)
class ConvertedText:
    """A string that stands for something else: a path, a date."""

    expected: str
    convert: Callable[[str], Any]
    format: str | None = None

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"type": "string"} if self.format is None else {"type": "string", "format": self.format}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise mismatch(path, self, value)
        try:
            return self.convert(value)
        except ValueError:
            raise mismatch(path, self, value) from None


# -- values made of others -------------------------------------------------------------------


@attrs.frozen(repr=False, eq=False)
class Listing:
    """A list of any length, or what is built of one."""

    item: Shape
    build: Callable[[list[Any]], Any] = list
    is_unique: bool = False
    expected: str = "a list"

    def schema(self, definitions: Definitions) -> JsonSchema:
        # `items` even when it says nothing: some servers refuse an array without.
        schema: JsonSchema = {"type": "array", "items": self.item.schema(definitions)}
        return {**schema, "uniqueItems": True} if self.is_unique else schema

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise mismatch(path, self, value)
        items = [self.item.read(item, f"{path}[{index}]") for index, item in enumerate(value)]
        try:
            return self.build(items)
        except TypeError:
            raise Mismatch(path, "its items cannot be members of a set") from None


@attrs.frozen(repr=False, eq=False)
class FixedListing:
    """A list of a fixed length, each place with a shape of its own; becomes a tuple."""

    items: tuple[Shape, ...]

    @property
    def expected(self) -> str:
        return f"a list of exactly {len(self.items)} items"

    def schema(self, definitions: Definitions) -> JsonSchema:
        places = [item.schema(definitions) for item in self.items]
        kinds = [place for index, place in enumerate(places) if place not in places[:index]]
        size: JsonSchema = {"minItems": len(places), "maxItems": len(places)}
        if len(kinds) <= 1:
            return {"type": "array", "items": kinds[0] if kinds else {}, **size}
        # Old and new drafts: the old ones read `items` for every place, the new ones `prefixItems`.
        return {"type": "array", "prefixItems": places, "items": {"anyOf": kinds}, **size}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise mismatch(path, self, value)
        if len(value) != len(self.items):
            raise Mismatch(path, f"expected {self.expected}, got {len(value)}")
        return tuple(shape.read(value[index], f"{path}[{index}]") for index, shape in enumerate(self.items))


@attrs.frozen(repr=False, eq=False)
class Table:
    """An object with any keys."""

    value: Shape
    expected: str = "an object"

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"type": "object", "additionalProperties": self.value.schema(definitions) or True}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise mismatch(path, self, value)
        return {key: self.value.read(item, f"{path}.{key}") for key, item in value.items()}


@attrs.frozen(repr=False, eq=False)
class OneOf:
    """A union: the first shape that fits."""

    options: tuple[Shape, ...]

    @property
    def expected(self) -> str:
        return " or ".join(option.expected for option in self.options)

    def schema(self, definitions: Definitions) -> JsonSchema:
        return {"anyOf": [option.schema(definitions) for option in self.options]}

    def read(self, value: Any, path: str) -> Any:
        found: list[Mismatch] = []
        for option in self.options:
            try:
                return option.read(value, path)
            except Mismatch as problem:
                found.append(problem)
        # What failed deep inside was what the model meant; a failure at the door was not.
        deepest = max(found, key=lambda problem: problem.depth)
        inside = deepest.depth > Mismatch(path, "").depth
        raise deepest if inside else mismatch(path, self, value)


@attrs.frozen(kw_only=True)
class Field:
    """One named value of a record, or one parameter of a function."""

    name: str
    shape: Shape
    is_required: bool = True
    description: str = ""
    default: Any = ABSENT
    """As JSON, to be shown."""

    def schema(self, definitions: Definitions) -> JsonSchema:
        schema = self.shape.schema(definitions)
        if self.description:
            schema["description"] = self.description
        if self.default is not ABSENT:
            schema["default"] = self.default
        return schema


@attrs.define(eq=False)
class Record:
    """An object with known keys: a dataclass, an attrs class, a TypedDict, a NamedTuple."""

    name: str
    build: Callable[..., Any]
    fields: tuple[Field, ...] = ()
    description: str = ""
    is_recursive: bool = False
    """It contains itself: declared once under `$defs`, referred to elsewhere."""

    @property
    def expected(self) -> str:
        return f"an object ({names_of(field.name for field in self.fields)})" if self.fields else "an object"

    def schema(self, definitions: Definitions) -> JsonSchema:
        if not self.is_recursive:
            return self._body(definitions)
        if self.name not in definitions:
            definitions[self.name] = {}  # taken, so that the inner mention refers to it
            definitions[self.name] = self._body(definitions)
        return {"$ref": f"#/$defs/{self.name}"}

    def _body(self, definitions: Definitions) -> JsonSchema:
        schema = object_schema(self.fields, False, definitions)
        return {"description": self.description, **schema} if self.description else schema

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise mismatch(path, self, value)
        found, problems = read_fields(self.fields, value, f"{path}.")
        if problems:
            raise problems[0]
        try:
            return self.build(**found)
        except Exception as refusal:  # a shield: the class's own validators may say no
            raise Mismatch(path, f"refused: {_in_words(refusal)}") from refusal


def _in_words(refusal: Exception) -> str:
    # attrs puts the whole attribute into the arguments behind the message.
    said = refusal.args[0] if refusal.args and isinstance(refusal.args[0], str) else str(refusal)
    return f"{type(refusal).__name__}: {said[:_SHOWN_REFUSAL]}"


def object_schema(fields: Sequence[Field], extra: JsonSchema | bool, definitions: Definitions) -> JsonSchema:
    """Return the schema of an object with *fields*; `extra` is what other keys may hold, False for none."""
    schema: JsonSchema = {"type": "object", "properties": {field.name: field.schema(definitions) for field in fields}}
    required = [field.name for field in fields if field.is_required]
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": extra}


def read_fields(
    fields: Sequence[Field], values: Mapping[str, Any], prefix: str, extra: Shape | None = None
) -> tuple[dict[str, Any], list[Mismatch]]:
    """Read an object's values; return what fits, and every problem of this level.

    Args:
        prefix: what stands before a name in a path.
        extra: the shape of keys that no field has; without one they are problems.
    """
    found: dict[str, Any] = {}
    problems: list[Mismatch] = []
    known = {field.name: field for field in fields}
    for name, value in values.items():
        shape = known[name].shape if name in known else extra
        if shape is None:
            problems.append(Mismatch(f"{prefix}{name[:_SHOWN_CHARACTERS]}", _no_such(name, known)))
            continue
        try:
            found[name] = shape.read(value, f"{prefix}{name}")
        except Mismatch as problem:
            problems.append(problem)
    missing = [field for field in fields if field.is_required and field.name not in values]
    problems += [Mismatch(f"{prefix}{field.name}", f"missing; expected {field.shape.expected}") for field in missing]
    return found, problems


def _no_such(name: str, known: Mapping[str, Field]) -> str:
    near = nearest(name, list(known))
    if near is not None:
        return f"no such name; did you mean {near}?"
    return f"no such name; known are {names_of(known)}" if known else "no such name; none is expected"


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that *name* was probably meant to be."""
    import difflib  # only a mistake needs it; importing this library shall be cheap

    folded = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower()[:200], list(folded), n=1)
    return folded[close[0]] if close else None
