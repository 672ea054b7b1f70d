"""An optional `reason` on every call, which the providers never see.

The law: when in doubt, nothing is taken away; only an argument that this layer itself has
offered is. A reason is what the model claims: it is for people to read, and no rule may rest
on it. Outside of this layer (a policy, the transcript) the call still has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from llm_agent import notices
from llm_agent.layers import (
    Layer,
    arguments_of,
    declarations_of,
    declared_name,
    declared_parameters,
    forwarded,
    requests_of,
)
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ToolDeclaration, ToolProvider

REASON: Final = "reason"


class Reasons(Layer):
    """Offers the model to say why it calls a tool.

    Args:
        provider: whose tools get the argument; those with a `reason` of their own keep it.

    Raises:
        ConfigError: *provider* is no tool provider.

    Threads: any. Belongs below a policy, whose prompt then shows the reason, and below `UnknownKeys`.
    """

    def __init__(self, provider: ToolProvider) -> None:
        super().__init__(provider)
        # The tools of the last listing that were given the argument: replaced as a whole.
        self._augmented: frozenset[str] = frozenset()

    def augmented_tools(self) -> list[str]:
        """Return the tools whose `reason` is taken out of their calls, sorted; none before a listing."""
        return sorted(self._augmented)

    def tools_for_llm(self) -> list[ToolDeclaration]:
        """Return the provider's declarations, with an optional `reason` on copies of those that can have one.

        Raises:
            Whatever the provider raises; nothing has changed then.
        """
        listed = declarations_of(self._provider)
        shown = [_augmented(declaration) for declaration in listed]
        pairs = zip(listed, shown, strict=True)
        self._augmented = frozenset(str(declared_name(after)) for before, after in pairs if after is not before)
        return shown

    def execute_tool_calls(self, calls: Iterable[ToolRequest | Mapping[str, Any]]) -> list[ToolAnswer]:
        """Have *calls* run without the reasons; a call that has none is passed on as the same object.

        Returns:
            One answer per call, in order.

        Raises:
            Nothing, but for Ctrl-C on the main thread.
        """
        augmented = self._augmented
        asked = [_without_reason(call) if call.name in augmented else call for call in requests_of(calls)]
        return forwarded(self._provider, asked, type(self).__name__)


def _augmented(declaration: Any) -> Any:
    """*declaration* with the argument, or the same object where it has no place for one."""
    parameters = declared_parameters(declaration)
    if declared_name(declaration) is None or parameters is None:
        return declaration
    function = declaration["function"]
    required = parameters.get("required") or ()
    if REASON in parameters.get("properties", {}) or not isinstance(required, list | tuple) or REASON in required:
        return declaration
    # A strict function requires every property that it has: an optional one would be refused.
    if function.get("strict"):
        return declaration
    properties = {**parameters.get("properties", {}), REASON: {"type": "string", "description": notices.REASON_OFFERED}}
    return {
        **declaration,
        "function": {**function, "parameters": {"type": "object", **parameters, "properties": properties}},
    }


def _without_reason(call: ToolRequest) -> ToolRequest:
    arguments = arguments_of(call)
    if not arguments or REASON not in arguments:
        return call
    del arguments[REASON]
    if not isinstance(call.arguments, str):
        return ToolRequest(call.id, call.name, arguments)
    try:
        # Not by the codec, which cleans what it writes: every value shall arrive as it was sent.
        text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):  # a number beyond all floats, or nested too deeply
        return call
    return ToolRequest(call.id, call.name, text)
