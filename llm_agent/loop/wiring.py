"""Where a loop's defaults meet the services: functions as tools, the counter, the prompt.

The only room of this floor that knows a concrete service; the stages know ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_agent.budget import RequestBudget
from llm_agent.errors import ConfigError
from llm_agent.layers import checked_provider
from llm_agent.loop.config import checked_counter
from llm_agent.messages import Message
from llm_agent.ports import ArtifactStore, Compactor, TokenCounter, ToolProvider, Transcript
from llm_agent.prompt import assemble
from llm_agent.token_count import UsageCounter
from llm_agent.tools.combine import provider_of


def wired_provider(tools: Any, provider: Any) -> ToolProvider | None:
    """Return one provider for the options `tools` and `provider`.

    Raises:
        ConfigError: both were given, or something among them is no tool.
    """
    if tools is not None and provider is not None:
        raise ConfigError("Loop: give tools or provider, not both; a provider may stand in the list of tools")
    if provider is not None:
        return checked_provider(provider, "Loop: provider")
    if tools is None or (isinstance(tools, Sequence) and not isinstance(tools, str) and not tools):
        return None
    return provider_of(tools, "Loop: tools")


def default_counter(compactor: Compactor | None) -> TokenCounter:
    """Return the compactor's own counter, so that both judge by the same numbers; else one that learns from bills."""
    counter = getattr(compactor, "counter", None)
    return UsageCounter() if counter is None else checked_counter(counter)


def default_store(session: Transcript | None, budget: RequestBudget | None) -> ArtifactStore | None:
    """Return a folder beside the session's file, made when the first result needs it; without a budget none does."""
    path = getattr(session, "path", None)
    if path is None or budget is None:
        return None
    from llm_agent.tools.artifacts import ArtifactFolder  # here, for the programs that never come here

    return ArtifactFolder.beside(path)


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
