"""A provider made of functions.

The law is the provider's: one answer per call, in order, and nothing raised; a failing tool
is an answer. What one function is and does: `function`. Several providers as one: `combine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from llm_agent import codec, notices
from llm_agent.call_context import ToolCallContext, current_call
from llm_agent.errors import ConfigError
from llm_agent.layers import refused, requests_of, unreadable
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.tool_operation import Idempotency
from llm_agent.tools.function import FunctionTool, function_tool
from llm_agent.tools.shapes import names_of, nearest


class Toolbox:
    """Functions as a tool provider. Immutable; share it between loops and threads.

    Args:
        functions: plain functions, `@tool`s and bound methods. Their names differ.

    Raises:
        ConfigError: one of them cannot be a tool, or two have the same name; names them.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        if isinstance(functions, str) or not isinstance(functions, Iterable):
            raise ConfigError(f"Toolbox: expected a list of functions, got {type(functions).__name__}")
        self._tools: dict[str, FunctionTool] = {}
        for tool in map(function_tool, functions):
            if tool.name in self._tools:
                raise ConfigError(
                    f"Toolbox: {self._tools[tool.name].label} and {tool.label} are both named {tool.name!r}; "
                    "rename one by @tool(name=...)"
                )
            self._tools[tool.name] = tool

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self._tools)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in the order given."""
        return tuple(self._tools)

    def tools_for_llm(self) -> list[dict[str, Any]]:
        """Return one declaration per tool, in the order given; the caller may change them."""
        return [codec.loads(tool.declaration) for tool in self._tools.values()]

    def idempotency_of(self, name: str) -> Idempotency:
        """What repeating a call of *name* would do, as its author said; `unknown` for other names."""
        tool = self._tools.get(name)
        return "unknown" if tool is None else tool.idempotency

    def execute_tool_calls(self, calls: Iterable[ToolRequest | Mapping[str, Any]]) -> list[ToolAnswer]:
        """Run *calls*, one after the other.

        Returns:
            One answer per call, in order. A tool that raises, arguments that do not fit and an
            unknown name are error answers. Once the call is cancelled, what is left of a group
            is answered as not run.

        Raises:
            Nothing, but for Ctrl-C on the main thread, where no engine calls this.

        Threads: any; the tools run on the caller's.
        """
        context = current_call()
        return [self._answer(call, context) for call in requests_of(calls)]

    def _answer(self, call: ToolRequest, context: ToolCallContext | None) -> ToolAnswer:
        if context is not None and context.cancelled.is_set():
            return refused(call, notices.ABANDONED_CANCELLED)
        refusal = unreadable(call)
        if refusal is not None:
            return refusal
        tool = self._tools.get(call.name)
        if tool is None:
            return unknown_tool(call, self.names)
        with nullcontext() if context is None else context.for_call(call):
            return tool.answer(call)


def unknown_tool(call: ToolRequest, names: Sequence[str]) -> ToolAnswer:
    """Return the answer to a call of a tool that is not there."""
    near = nearest(call.name, names)
    hint = "" if near is None else f" Did you mean {near}?"
    text = notices.NO_SUCH_TOOL.format(tool=call.name[:64], hint=hint, tools=names_of(names) or "none")
    return refused(call, text)
