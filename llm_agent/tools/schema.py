"""From an annotation to its shape.

The law: what is not understood is refused when the tool is listed, by a `ConfigError` that
names the function and the parameter; never guessed, and never first met in a call. Nothing
here looks at values.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any, Final

import attrs

from llm_agent.errors import ConfigError
from llm_agent.tools import docstrings
from llm_agent.tools.results import ABSENT, as_default
from llm_agent.tools.shapes import (
    AnyValue,
    Choice,
    ConvertedText,
    Field,
    FixedListing,
    Flag,
    Listing,
    Null,
    Number,
    OneOf,
    Record,
    Shape,
    Table,
    Text,
    WholeNumber,
)

_SINGLE: Final[dict[Any, Shape]] = {
    Any: AnyValue(),
    object: AnyValue(),
    str: Text(),
    int: WholeNumber(),
    float: Number(),
    bool: Flag(),
    None: Null(),
    types.NoneType: Null(),
    datetime: ConvertedText("a date and time in ISO 8601 form", datetime.fromisoformat, "date-time"),
    date: ConvertedText("a date in ISO 8601 form", date.fromisoformat, "date"),
    time: ConvertedText("a time in ISO 8601 form", time.fromisoformat, "time"),
    uuid.UUID: ConvertedText("a UUID", uuid.UUID, "uuid"),
    **{
        kind: ConvertedText("a path as a string", kind)
        for kind in (pathlib.Path, pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
    },
}
_LISTS: Final[dict[Any, Callable[[list[Any]], Any]]] = {
    list: list,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    set: set,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    frozenset: frozenset,
}
_SETS: Final = {set, frozenset}
_TABLES: Final = {dict, collections.abc.Mapping, collections.abc.MutableMapping}
_JSON_SCALARS: Final = (str, int, float, bool, types.NoneType)


def resolved(annotation: Any, namespace: Mapping[str, Any], where: str) -> Any:
    """Return *annotation* with every name in it looked up; `from __future__ import annotations` makes it text.

    Raises:
        ConfigError: a name cannot be found.
    """
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, dict(namespace), include_extras=True)["it"]
    except Exception as problem:  # evaluating an annotation runs foreign code, which may raise anything
        raise ConfigError(
            f"{where}: the annotation {annotation!r} cannot be resolved: {problem}; "
            "what it names must be importable from the module that defines the function"
        ) from problem


def split_annotated(annotation: Any) -> tuple[Any, str]:
    """Return the bare annotation, and the description of an `Annotated[T, "description"]`."""
    description = ""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation, *notes = typing.get_args(annotation)
        description = description or next((note for note in notes if isinstance(note, str)), "")
    return annotation, description


class Shapes:
    """Makes the shapes of one function's parameters; records are made once and shared between them."""

    def __init__(self) -> None:
        self._records: dict[type, Record] = {}
        self._under_way: set[type] = set()

    def of(self, annotation: Any, where: str) -> Shape:
        """Return the shape for a resolved annotation.

        Args:
            where: which function and parameter, for the message.

        Raises:
            ConfigError: there is no shape for it.
        """
        annotation, _ = split_annotated(annotation)
        try:
            if annotation in _SINGLE:
                return _SINGLE[annotation]
        except TypeError:  # an annotation that cannot be hashed is none of these
            pass
        if isinstance(annotation, typing.NewType):
            return self.of(annotation.__supertype__, where)
        if type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, from Python 3.12
            return self.of(annotation.__value__, where)
        origin = typing.get_origin(annotation)
        if origin is None:
            return self._of_bare(annotation, where)
        return self._of_generic(origin, typing.get_args(annotation), annotation, where)

    def _of_bare(self, annotation: Any, where: str) -> Shape:
        if annotation in _LISTS or annotation in _TABLES or annotation is tuple:
            return self._of_generic(annotation, (), annotation, where)
        if isinstance(annotation, type):
            if issubclass(annotation, enum.Enum):
                return _choice_of_enum(annotation, where)
            read = _record_reader(annotation)
            if read is not None:
                return self._record(annotation, read, where)
        raise _refusal(annotation, where)

    def _of_generic(self, origin: Any, inner: tuple[Any, ...], annotation: Any, where: str) -> Shape:
        if origin is typing.Union or origin is types.UnionType:
            return OneOf(tuple(self.of(option, where) for option in inner))
        if origin is typing.Literal:
            return _choice_of_literal(inner, where)
        if origin in (typing.Required, typing.NotRequired, typing.Final):
            return self.of(inner[0], where)
        if origin in _LISTS:
            item = self.of(inner[0], where) if inner else AnyValue()
            return Listing(item, _LISTS[origin], is_unique=_LISTS[origin] in _SETS)
        if origin in _TABLES:
            return self._table(inner, where)
        if origin is tuple:
            return self._tuple(inner, where)
        raise _refusal(annotation, where)

    def _table(self, inner: tuple[Any, ...], where: str) -> Shape:
        key, value = inner or (str, Any)
        if split_annotated(key)[0] not in (str, Any):
            raise ConfigError(f"{where}: the keys of a JSON object are strings, got {_spelled(key)}")
        return Table(self.of(value, where))

    def _tuple(self, inner: tuple[Any, ...], where: str) -> Shape:
        if not inner:
            return Listing(AnyValue(), tuple)
        if len(inner) == 2 and inner[1] is ...:
            return Listing(self.of(inner[0], where), tuple)
        places = () if inner == ((),) else inner
        return FixedListing(tuple(self.of(place, where) for place in places))

    def _record(self, kind: type, read: _RecordReader, where: str) -> Record:
        if kind in self._records:
            record = self._records[kind]
            record.is_recursive = record.is_recursive or kind in self._under_way
            return record
        taken = {record.name for record in self._records.values()}
        name = kind.__name__
        while name in taken:
            name += "_"
        documented = docstrings.parse(_own_docstring(kind))
        record = self._records[kind] = Record(name, kind, description=documented.description)
        self._under_way.add(kind)
        hints = _hints_of(kind, where)
        record.fields = tuple(
            self._field(part, hints[part.attribute], documented, f"{where}: {kind.__name__}.{part.attribute}")
            for part in read(kind, hints)
        )
        self._under_way.discard(kind)
        return record

    def _field(self, part: _Part, hint: Any, documented: docstrings.Docstring, where: str) -> Field:
        bare, description = split_annotated(hint)
        if typing.get_origin(bare) in (typing.Required, typing.NotRequired):
            bare, inner = split_annotated(typing.get_args(bare)[0])
            description = description or inner
        return Field(
            name=part.name,
            shape=self.of(bare, where),
            is_required=part.is_required,
            description=description or documented.parameters.get(part.attribute, ""),
            default=as_default(part.default),
        )


# -- records of the four kinds -----------------------------------------------------------------


@attrs.frozen
class _Part:
    """One value of a record, as its class declares it."""

    attribute: str
    name: str
    """What the constructor calls it."""
    is_required: bool
    default: Any = ABSENT


_RecordReader = Callable[[type, Mapping[str, Any]], list[_Part]]


def _record_reader(kind: type) -> _RecordReader | None:
    if attrs.has(kind):
        return _parts_of_attrs
    if dataclasses.is_dataclass(kind):
        return _parts_of_dataclass
    if typing.is_typeddict(kind):
        return _parts_of_typed_dict
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _parts_of_named_tuple
    return None


def _parts_of_attrs(kind: type, hints: Mapping[str, Any]) -> list[_Part]:
    fields = [field for field in attrs.fields(kind) if field.init]
    return [
        _Part(field.name, field.alias or field.name, field.default is attrs.NOTHING, _simple_default(field.default))
        for field in fields
    ]


def _simple_default(default: Any) -> Any:
    return ABSENT if default is attrs.NOTHING or isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]  # a class at run time


def _parts_of_dataclass(kind: type, hints: Mapping[str, Any]) -> list[_Part]:
    parts = []
    for field in (field for field in dataclasses.fields(kind) if field.init):
        has_default = field.default is not dataclasses.MISSING
        is_required = not has_default and field.default_factory is dataclasses.MISSING
        parts.append(_Part(field.name, field.name, is_required, field.default if has_default else ABSENT))
    return parts


def _parts_of_typed_dict(kind: type, hints: Mapping[str, Any]) -> list[_Part]:
    required: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
    parts = []
    for name, hint in hints.items():
        # The class cannot see a Required that the module's future import turned into text.
        origin = typing.get_origin(split_annotated(hint)[0])
        stated = {typing.Required: True, typing.NotRequired: False}.get(origin)
        parts.append(_Part(name, name, name in required if stated is None else stated))
    return parts


def _parts_of_named_tuple(kind: type, hints: Mapping[str, Any]) -> list[_Part]:
    defaults = getattr(kind, "_field_defaults", {})
    names: tuple[str, ...] = getattr(kind, "_fields", ())
    return [_Part(name, name, name not in defaults, defaults.get(name, ABSENT)) for name in names]


def _hints_of(kind: type, where: str) -> Mapping[str, Any]:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as problem:  # as in `resolved`
        raise ConfigError(f"{where}: the annotations of {kind.__name__} cannot be resolved: {problem}") from problem
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise ConfigError(f"{where}: {kind.__name__} takes an InitVar, which is not supported")
    # Without annotations (a `collections.namedtuple`, an `attrs.field()`) anything goes.
    return collections.defaultdict(lambda: Any, hints)


def _own_docstring(kind: type) -> str:
    text = str(vars(kind).get("__doc__") or "")
    # Dataclasses and named tuples write their signature there when nobody wrote anything.
    return "" if text.startswith(f"{kind.__name__}(") else text


# -- choices ---------------------------------------------------------------------------------


def _choice_of_enum(kind: type[enum.Enum], where: str) -> Choice:
    """By value where JSON can say every value, by name otherwise."""
    members = list(kind)
    if not members:
        raise ConfigError(f"{where}: {kind.__name__} has no members to choose from")
    by_value = all(type(_plain_scalar(member)) in _JSON_SCALARS for member in members)
    return Choice(tuple((_plain_scalar(member) if by_value else member.name, member) for member in members))


def _plain_scalar(member: enum.Enum) -> Any:
    return member.value


def _choice_of_literal(values: tuple[Any, ...], where: str) -> Choice:
    options = [(value.value if isinstance(value, enum.Enum) else value, value) for value in values]
    for written, _ in options:
        if type(written) not in _JSON_SCALARS:
            raise ConfigError(f"{where}: a Literal may hold strings, numbers, booleans and None, got {written!r}")
    return Choice(tuple(options))


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _refusal(annotation: Any, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: no JSON Schema is known for the annotation {_spelled(annotation)}; annotate it with a type that "
        "JSON can carry, give the tool a schema of its own with @tool(parameters=...), or bind the value beforehand"
    )
