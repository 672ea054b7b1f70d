"""A plain function as a tool: its declaration, and one call of it.

`@tool` only marks: the function stays what it was and can be called, tested and subclassed
as before. What the mark means is worked out when the tool is listed, because annotations may
name what is defined further down. Many tools together are `toolbox`'s business.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, overload

import attrs

from llm_agent import codec
from llm_agent.call_context import ToolCallContext, current_call
from llm_agent.errors import ConfigError
from llm_agent.messages import LEGAL_TOOL_NAME, ToolAnswer, ToolRequest
from llm_agent.tool_operation import IDEMPOTENCIES, Idempotency
from llm_agent.tools import docstrings
from llm_agent.tools.results import answer_of
from llm_agent.tools.shapes import JsonSchema
from llm_agent.tools.signature import SignatureReader, documentation_of, innermost, label_of, signature_of
from llm_agent.tools.validate import ArgumentsRefused, Parameters, supplied

_log = logging.getLogger("llm_agent.tools")

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

_MARK: Final = "__llm_agent_tool__"


@attrs.frozen
class ToolMark:
    """What `@tool` was told."""

    name: str | None = None
    description: str | None = None
    idempotency: Idempotency = "unknown"
    parameters: Mapping[str, Any] | None = None


@overload
def tool(function: AnyFunction, /) -> AnyFunction: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotency: Idempotency = "unknown",
    parameters: Mapping[str, Any] | None = None,
) -> Callable[[AnyFunction], AnyFunction]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotency: Idempotency = "unknown",
    parameters: Mapping[str, Any] | None = None,
) -> Any:
    """Mark a function as a tool, and return the same function.

    Args:
        name: what the model calls it; the function's own name by default. Letters, digits, `_` and
            `-`, at most 64.
        description: what the model is told; by default the docstring without its sections.
        idempotency: what repeating a call would do: `read-only`, `idempotent`, `destructive`
            or `unknown`. A loop's `idempotency_rules` win over it.
        parameters: a JSON Schema to use instead of the one derived from the signature. Arguments
            are then checked by `jsonschema` if that is installed, and passed on as they are.

    Works on functions, on methods in a class body (hand over the bound method), below or above
    `staticmethod` and `classmethod`, on `functools.partial` and on objects with `__call__`.

    Raises:
        ConfigError: not callable, a class, asynchronous, or an option is wrong.
    """
    mark = ToolMark(name, description, idempotency, parameters)
    _check_mark(mark)
    if function is not None:
        return _marked(function, mark)
    return functools.partial(_marked, mark=mark)


def _check_mark(mark: ToolMark) -> None:
    if mark.name is not None:
        check_name(mark.name, "tool")
    if mark.description is not None and not isinstance(mark.description, str):
        raise ConfigError(f"tool: description must be text, got {type(mark.description).__name__}")
    if mark.idempotency not in IDEMPOTENCIES:
        raise ConfigError(f"tool: idempotency must be one of {', '.join(IDEMPOTENCIES)}, got {mark.idempotency!r}")
    if mark.parameters is not None:
        supplied(mark.parameters, None, "tool")


def _marked(function: Callable[..., Any], mark: ToolMark) -> Callable[..., Any]:
    # A static or class method keeps its marks on the function inside, where the class finds them.
    target = function.__func__ if isinstance(function, staticmethod | classmethod) else function
    check_function(target, "tool")
    if inspect.ismethod(target) and mark == ToolMark():
        return function
    try:
        setattr(target, _MARK, mark)
    except AttributeError:
        raise ConfigError(
            f"tool: {label_of(target)} cannot carry options; decorate the function where it is defined, "
            "or wrap it in a function of your own"
        ) from None
    return function


def check_name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not LEGAL_TOOL_NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: a tool's name is 1 to 64 letters, digits, _ or -, got {name!r}; set it by @tool(name=...)"
        )
    return name


def check_function(function: Any, where: str) -> None:
    """Refuse what cannot be a tool.

    Raises:
        ConfigError: not callable, a class, or asynchronous.
    """
    if isinstance(function, type):
        raise ConfigError(f"{where}: {function.__qualname__} is a class; a tool is a function or a bound method")
    if not callable(function):
        raise ConfigError(f"{where}: a tool is a function, got {type(function).__name__}")
    inner = innermost(function)
    candidates = (inner, type(inner).__call__)
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in candidates):
        raise ConfigError(
            f"{where}: {label_of(function)} is asynchronous; tools are plain functions, called on a thread"
        )


# -- one tool, worked out ------------------------------------------------------------------


@attrs.frozen(eq=False, kw_only=True)
class FunctionTool:
    """A function, ready to be declared and called. Immutable; shared between threads."""

    name: str
    label: str
    idempotency: Idempotency
    declaration: bytes
    """As JSON, so that no reader can damage it."""
    _function: Callable[..., Any]
    _positional_only: tuple[tuple[str, Any], ...]
    """Names and defaults."""
    _parameters: Parameters
    _injected: Mapping[str, bool]
    """Parameters that take the `ToolCallContext`; True for those that can do without."""

    def answer(self, call: ToolRequest) -> ToolAnswer:
        """Run one call. Never raises, but for Ctrl-C on the main thread."""
        try:
            values = self._parameters.read(self.name, call.args)
            values.update(self._contexts())
            return answer_of(call.id, self._call(values))
        except ArgumentsRefused as refusal:
            return ToolAnswer(call.id, str(refusal), is_error=True)
        except KeyboardInterrupt as failure:
            # On the main thread it is the user's; on any other a tool has raised it itself.
            if threading.current_thread() is threading.main_thread():
                raise
            return failed(call, failure)
        except BaseException as failure:  # SystemExit too: a tool must not end its caller's thread
            return failed(call, failure)

    def _contexts(self) -> dict[str, ToolCallContext | None]:
        context = current_call()
        if context is None and not all(self._injected.values()):
            raise RuntimeError(f"{self.name} needs a ToolCallContext, and no call of a run is being executed")
        return dict.fromkeys(self._injected, context)

    def _call(self, values: dict[str, Any]) -> Any:
        positional = [values.pop(name, default) for name, default in self._positional_only]
        result = self._function(*positional, **values)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("the tool returned a coroutine; tools are plain functions, called on a thread")
        return result


def failed(call: ToolRequest, failure: BaseException) -> ToolAnswer:
    """Return the error answer `Type: message`; the traceback goes to the log."""
    _log.debug("tool %s raised", call.name, exc_info=failure)
    return ToolAnswer(call.id, codec.error_text(failure), is_error=True)


def function_tool(function: Any, where: str = "Toolbox") -> FunctionTool:
    """Work out a function, marked or plain.

    Raises:
        ConfigError: it cannot be a tool; names the function, and the parameter.
    """
    check_function(function, where)
    label = label_of(function)
    mark = _mark_of(function)
    name = check_name(mark.name or _name_of(function), f"{where}: {label}")
    signature = signature_of(function, f"{where}: {label}")
    documented = docstrings.parse(inspect.getdoc(documentation_of(function)))
    reader = SignatureReader(function, signature, documented, f"{where}: {label}")
    parameters: Parameters = reader.derived()
    if mark.parameters is not None:
        parameters = supplied(mark.parameters, reader.accepted, f"{where}: {label}")
    return FunctionTool(
        name=name,
        label=label,
        idempotency=mark.idempotency,
        declaration=_declaration(name, mark.description or documented.description, parameters.schema()),
        function=function,
        positional_only=reader.positional_only,
        parameters=parameters,
        injected=reader.injected,
    )


def _declaration(name: str, description: str, parameters: JsonSchema) -> bytes:
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    return codec.dumps({"type": "function", "function": {**function, "parameters": parameters}})


def _mark_of(function: Any) -> ToolMark:
    while True:
        mark = getattr(function, _MARK, None)
        if isinstance(mark, ToolMark):
            return mark
        if not isinstance(function, functools.partial):
            return ToolMark()
        function = function.func


def _name_of(function: Any) -> str:
    inner = innermost(function)
    return str(getattr(function, "__name__", None) or getattr(inner, "__name__", None) or type(inner).__name__)
