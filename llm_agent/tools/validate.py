"""The arguments of one call: all of them read, or the call does not happen.

The law: a function never sees arguments that were not checked. What is wrong is said to the
model in one text, every argument of it, so that one more attempt is enough.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from llm_agent import codec, notices
from llm_agent.errors import ConfigError
from llm_agent.tools.shapes import Definitions, Field, JsonSchema, Mismatch, Shape, object_schema, read_fields, shown

_NESTED_TOO_DEEPLY: Final = "nested too deeply"

# Problems told at once; a model that got more wrong than that starts over anyway.
_MOST_PROBLEMS: Final = 10


class ArgumentsRefused(Exception):
    """The arguments do not fit; the text is for the model."""

    def __init__(self, tool: str, problems: Sequence[Mismatch]) -> None:
        lines = [f"- {problem.path or 'arguments'}: {problem.problem}" for problem in problems[:_MOST_PROBLEMS]]
        if len(problems) > _MOST_PROBLEMS:
            lines.append(f"- and {len(problems) - _MOST_PROBLEMS} more")
        super().__init__(notices.UNFIT_ARGUMENTS.format(tool=tool, problems="\n".join(lines)))


class Parameters(Protocol):
    """What a tool takes."""

    def schema(self) -> JsonSchema: ...

    def read(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to call the function with.

        Raises:
            ArgumentsRefused: they do not fit.
        """
        ...


@attrs.frozen
class DerivedParameters:
    """What the function's own signature says."""

    fields: tuple[Field, ...]
    extra: Shape | None = None
    """What `**options` may hold; `None` when there is none."""
    reserved: frozenset[str] = frozenset()
    """Names that the model may never fill, not even by `**options`."""

    def schema(self) -> JsonSchema:
        definitions: Definitions = {}
        extra = False if self.extra is None else self.extra.schema(definitions) or True
        schema = object_schema(self.fields, extra, definitions)
        return {**schema, "$defs": definitions} if definitions else schema

    def read(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found, problems = read_fields(self.fields, arguments, "", self.extra)
        except RecursionError:
            raise ArgumentsRefused(tool, [Mismatch("", _NESTED_TOO_DEEPLY)]) from None
        problems += [Mismatch(name, "this name cannot be used") for name in sorted(self.reserved & found.keys())]
        if problems:
            raise ArgumentsRefused(tool, problems)
        return found


@attrs.frozen(eq=False)
class SuppliedParameters:
    """A JSON Schema that the tool's author wrote; checked by `jsonschema` where that is installed."""

    _schema: JsonSchema
    _validator: Any
    """`None` without `jsonschema`; then only the names are checked, against `required` and the function."""
    accepted: frozenset[str] | None
    """The names that the function takes; `None` when it takes any."""

    def schema(self) -> JsonSchema:
        return self._schema

    def read(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        problems = self._missing(arguments) if self._validator is None else self._found_by_validator(arguments)
        unknown = [] if self.accepted is None else sorted(arguments.keys() - self.accepted)
        told = {problem.path for problem in problems}
        problems += [Mismatch(name, "no such name") for name in unknown if name not in told]
        if problems:
            raise ArgumentsRefused(tool, problems)
        return dict(arguments)

    def _missing(self, arguments: Mapping[str, Any]) -> list[Mismatch]:
        return [Mismatch(name, "missing") for name in self._schema.get("required", ()) if name not in arguments]

    def _found_by_validator(self, arguments: Mapping[str, Any]) -> list[Mismatch]:
        try:
            errors = sorted(self._validator.iter_errors(dict(arguments)), key=lambda error: error.json_path)
        except RecursionError:
            return [Mismatch("", _NESTED_TOO_DEEPLY)]
        return [Mismatch(error.json_path.removeprefix("$").removeprefix("."), _in_words(error)) for error in errors]


def supplied(schema: Any, accepted: frozenset[str] | None, where: str) -> SuppliedParameters:
    """Read a schema that a user wrote.

    Raises:
        ConfigError: it is no schema of an object.
    """
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigError(f"{where}: parameters must be a JSON Schema of type object, got {shown(schema)}")
    copied: JsonSchema = {"type": "object", **codec.clean_value(schema)}
    return SuppliedParameters(copied, _validator_of(copied, where), accepted)


def _validator_of(schema: JsonSchema, where: str) -> Any:
    try:
        jsonschema: Any = importlib.import_module("jsonschema")  # an extra; imported where a user needs it
    except ImportError:
        return None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as problem:
        raise ConfigError(f"{where}: parameters is not a valid JSON Schema: {problem.message}") from problem
    return kind(schema)


def _in_words(error: Any) -> str:
    """The validator's own message, with the value in it cut to a readable size."""
    if error.validator == "type":
        return f"expected {error.validator_value}, got {shown(error.instance)}"
    text = str(error.message)
    return text if len(text) <= 200 else f"does not satisfy {error.validator!r}: {shown(error.validator_value)}"
