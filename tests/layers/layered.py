"""Providers for the tests of the layers: what they declare and how they answer is written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_agent.messages import ToolAnswer, ToolRequest


def declared(name: str, properties: Mapping[str, Any] | None = None, **schema: Any) -> dict[str, Any]:
    """A declaration of *name* with those properties and *schema* beside them."""
    parameters = {"type": "object", "properties": dict(properties or {}), **schema}
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


def echoed(calls: Sequence[ToolRequest]) -> list[ToolAnswer]:
    return [ToolAnswer(call.id, f"{call.name} {call.arguments}") for call in calls]


class Declaring:
    """Lists *declarations*, and answers as *answers* says; remembers what it was given."""

    def __init__(self, *declarations: Any, answers: Callable[[Sequence[ToolRequest]], Any] = echoed) -> None:
        self.declarations: list[Any] | Exception = list(declarations)
        self.answers = answers
        self.batches: list[list[ToolRequest]] = []

    def tools_for_llm(self) -> list[Any]:
        if isinstance(self.declarations, Exception):
            raise self.declarations
        return self.declarations

    def execute_tool_calls(self, calls: list[ToolRequest]) -> Any:
        self.batches.append(list(calls))
        return self.answers(calls)

    @property
    def calls(self) -> list[ToolRequest]:
        return [call for batch in self.batches for call in batch]


class Granting(Declaring):
    """Has both optional parts of a provider."""

    def grants(self) -> list[Any]:
        return [{"tool": "x", "decision": "allow"}]

    def idempotency_of(self, name: str) -> str:
        return "read-only" if name == "x" else "unknown"


def raising(error: BaseException) -> Callable[[Sequence[ToolRequest]], Any]:
    def answers(_: Sequence[ToolRequest]) -> Any:
        raise error

    return answers


def call(name: str, arguments: Any = None, id: str = "c1") -> ToolRequest:
    return ToolRequest(id, name, arguments)


def names(provider: Any) -> list[str]:
    return [declaration["function"]["name"] for declaration in provider.tools_for_llm()]
