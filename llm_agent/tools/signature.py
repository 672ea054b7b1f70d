"""What a function's signature, annotations and docstring say about a tool.

Parameters are of three kinds: the model's to fill, the engine's (a `ToolCallContext`), and
the author's (bound by a partial). Looking through wrappers, methods and callable objects for
what was written is done here, and nowhere else.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any, Final

from llm_agent.call_context import ToolCallContext
from llm_agent.errors import ConfigError
from llm_agent.tools import docstrings
from llm_agent.tools.results import ABSENT, as_default
from llm_agent.tools.schema import Shapes, resolved, split_annotated
from llm_agent.tools.shapes import AnyValue, Field, Null, OneOf, Shape
from llm_agent.tools.validate import DerivedParameters

_Kind: Final = inspect.Parameter


def label_of(function: Any) -> str:
    """Return what to call a function in a message: module and qualified name."""
    inner = innermost(function)
    name = getattr(inner, "__qualname__", None) or type(inner).__name__
    return f"{getattr(inner, '__module__', None) or '?'}.{name}"


def innermost(function: Any) -> Any:
    """The function whose names and docstring count: inside partials, wrappers and bound methods."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return function.__func__ if inspect.ismethod(function) else function


def documentation_of(function: Any) -> Any:
    """What has the docstring: the function, or for an object its `__call__`, or its class."""
    inner = innermost(function)
    if hasattr(inner, "__qualname__"):
        return inner
    method = type(inner).__call__
    return method if method.__doc__ else type(inner)


def signature_of(function: Any, where: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as problem:
        raise ConfigError(
            f"{where}: its signature cannot be read: {problem}; wrap it in a function of your own"
        ) from problem


class SignatureReader:
    """Sorts the parameters of one function: the model's, the engine's, the author's."""

    def __init__(
        self, function: Any, signature: inspect.Signature, documented: docstrings.Docstring, where: str
    ) -> None:
        self._where = where
        self._documented = documented
        self._namespace = _namespace_of(function)
        self._bound = _bound_by_partials(function)
        self._signature = signature
        self.injected: dict[str, bool] = {}
        self._annotations: dict[str, Any] = {}
        for parameter in signature.parameters.values():
            self._sort(parameter)

    def _sort(self, parameter: inspect.Parameter) -> None:
        where = f"{self._where}: parameter {parameter.name!r}"
        if parameter.kind is _Kind.VAR_POSITIONAL:
            raise ConfigError(
                f"{where}: arguments of a call have names, *{parameter.name} has none; take a list instead"
            )
        if parameter.name in self._bound:
            return
        annotation = parameter.annotation
        if annotation is _Kind.empty:
            self._refuse_self(parameter, where)
            annotation = Any
        annotation = resolved(annotation, self._namespace, where)
        is_context, is_optional = _takes_context(annotation)
        if is_context:
            self.injected[parameter.name] = is_optional or parameter.default is not _Kind.empty
        else:
            self._annotations[parameter.name] = annotation

    def _refuse_self(self, parameter: inspect.Parameter, where: str) -> None:
        is_first = next(iter(self._signature.parameters)) == parameter.name
        if is_first and parameter.name in ("self", "cls"):
            raise ConfigError(f"{where}: this is a method without its object; hand over the bound method")

    @property
    def positional_only(self) -> tuple[tuple[str, Any], ...]:
        """Names and defaults of what cannot be passed by name."""
        every = self._signature.parameters.values()
        return tuple((one.name, one.default) for one in every if one.kind is _Kind.POSITIONAL_ONLY)

    @property
    def accepted(self) -> frozenset[str] | None:
        """The names the model may fill; `None` for a function that takes any."""
        kinds = {self._signature.parameters[name].kind for name in self._annotations}
        return None if _Kind.VAR_KEYWORD in kinds else frozenset(self._annotations)

    def derived(self) -> DerivedParameters:
        shapes = Shapes()
        fields: list[Field] = []
        extra: Shape | None = None
        for name, annotation in self._annotations.items():
            parameter = self._signature.parameters[name]
            if parameter.kind is _Kind.VAR_KEYWORD:
                extra = shapes.of(annotation, f"{self._where}: parameter {name!r}")
            else:
                fields.append(self._field(parameter, annotation, shapes))
        return DerivedParameters(tuple(fields), extra, frozenset(self.injected) | self._bound)

    def _field(self, parameter: inspect.Parameter, annotation: Any, shapes: Shapes) -> Field:
        shape = shapes.of(annotation, f"{self._where}: parameter {parameter.name!r}")
        has_default = parameter.default is not _Kind.empty
        if parameter.default is None and not _takes_null(shape):
            shape = OneOf((shape, Null()))  # `x: int = None` says that None is fine
        return Field(
            name=parameter.name,
            shape=shape,
            is_required=not has_default,
            description=split_annotated(annotation)[1] or self._documented.parameters.get(parameter.name, ""),
            default=as_default(parameter.default) if has_default else ABSENT,
        )


def _takes_null(shape: Shape) -> bool:
    return isinstance(shape, AnyValue | Null) or (
        isinstance(shape, OneOf) and any(_takes_null(option) for option in shape.options)
    )


def _takes_context(annotation: Any) -> tuple[bool, bool]:
    """Whether a parameter wants the call's context, and whether it can do without."""
    bare, _ = split_annotated(annotation)
    options = typing.get_args(bare) or (bare,)
    return ToolCallContext in options and set(options) <= {ToolCallContext, type(None)}, type(None) in options


def _namespace_of(function: Any) -> Mapping[str, Any]:
    inner = innermost(function)
    if not hasattr(inner, "__globals__"):
        inner = inspect.unwrap(type(inner).__call__)
    names = dict(getattr(inner, "__globals__", {}))
    try:
        names.update(inspect.getclosurevars(inner).nonlocals)
    except (TypeError, ValueError):  # a builtin has no closure; an empty cell has no value
        pass
    return names


def _bound_by_partials(function: Any) -> frozenset[str]:
    """Keyword arguments that a partial has filled: the author's, not the model's."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return frozenset(names)
