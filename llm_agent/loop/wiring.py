"""Where a loop's defaults meet the services: functions as tools, the counter, the prompt.

The only room of this floor that knows a concrete service; the stages know ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_agent.errors import ConfigError
from llm_agent.loop.config import checked_provider
from llm_agent.messages import Message
from llm_agent.ports import TokenCounter, ToolProvider
from llm_agent.prompt import assemble
from llm_agent.token_count import UsageCounter
from llm_agent.tools.combine import combine


def wired_provider(tools: Any, provider: Any) -> ToolProvider | None:
    """Return one provider for the options `tools` and `provider`.

    Raises:
        ConfigError: both were given, or something among them is no tool.
    """
    if tools is not None and provider is not None:
        raise ConfigError("Loop: give tools or provider, not both; a provider may stand in the list of tools")
    if provider is not None:
        return checked_provider(provider)
    if tools is None:
        return None
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        return combine(tools) if tools else None
    return checked_provider(tools) if hasattr(tools, "execute_tool_calls") else combine([tools])


def default_counter() -> TokenCounter:
    return UsageCounter()


def wired_prompt(system_prompt: Any) -> Message | None:
    """Return the system message for the option `system_prompt`."""
    match system_prompt:
        case None:
            return None
        case Message(role="system"):
            return system_prompt
        case str():
            return assemble(system_prompt)
        case _:
            raise ConfigError(
                f"Loop: system_prompt must be text or a Message of role system, got {type(system_prompt).__name__}"
            )
