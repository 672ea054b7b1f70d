"""The tools of a server, as it declared them. Frozen; a change makes a new catalogue.

Annotations are hints of the server about itself. They decide how calls are recorded and whether
they may run side by side, never whether they may run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llm_agent.codec import clean_value
from llm_agent.tool_operation import Idempotency

NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
"""The schema of a tool that has sent none."""


@attrs.frozen
class Catalogue:
    """Every tool by its name, in the server's order."""

    tools: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Catalogue:
        """Read the wire's tools; of two with the same name the first is offered."""
        named: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            named.setdefault(tool["name"], tool)
        return cls(named)

    def declarations(self) -> list[dict[str, Any]]:
        """Return the declarations for a model, new ones each time."""
        return [_declaration(tool) for tool in self.tools.values()]

    def annotations(self, name: str) -> dict[str, Any] | None:
        """Return a tool's annotations as the wire has them, `{}` for none; `None` for an unknown tool."""
        tool = self.tools.get(name)
        return None if tool is None else dict(tool.get("annotations") or {})

    def idempotency_of(self, name: str) -> Idempotency:
        """What repeating a call would do, by the server's hints; silence means `unknown`."""
        hints = self.annotations(name) or {}
        if hints.get("readOnlyHint") is True:
            return "read-only"
        if hints.get("idempotentHint") is True:
            return "idempotent"
        return "destructive" if hints.get("destructiveHint") is True else "unknown"

    def may_overlap(self, name: str) -> bool:
        """Whether calls may run side by side: read-only as well as idempotent, by the server's own word."""
        hints = self.annotations(name) or {}
        return hints.get("readOnlyHint") is True and hints.get("idempotentHint") is True


def _declaration(tool: Mapping[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool["name"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    function["parameters"] = clean_value(tool.get("inputSchema") or NO_PARAMETERS)
    return {"type": "function", "function": function}
