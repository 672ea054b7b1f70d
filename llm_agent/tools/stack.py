"""The canonical order of the layers, in one call.

The law: whoever needs less trust stands further in. A policy goes in front of what this
returns, so that people see the model's own arguments, and calls they refuse reach nothing.

    tools = Policy(stacked({"fs": files, "git": git}), rules)
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_agent.ports import ToolProvider
from llm_agent.tools.combine import Tools, provider_of
from llm_agent.tools.reasons import Reasons
from llm_agent.tools.registry import Registry
from llm_agent.tools.unknown_keys import OnWarn, UnknownKeys


def stacked(
    tools: Mapping[str, Tools] | Tools, *, reasons: bool = True, unknown_keys: OnWarn | bool = True
) -> ToolProvider:
    """Return `UnknownKeys(Reasons(...))` around *tools*.

    Args:
        tools: a mapping of prefixes to providers, which becomes a `Registry`; a provider, such
            as a registry that was filled before; a function, or a list of functions and providers.
        reasons: whether the model may say why it calls a tool.
        unknown_keys: who is warned of arguments that a tool does not declare: a callable, True for
            one line by `logging`, False for nobody.

    Raises:
        ConfigError: as the layers raise it.
    """
    provider = Registry(tools) if isinstance(tools, Mapping) else provider_of(tools, "stacked")
    if reasons:
        provider = Reasons(provider)
    if unknown_keys is not False:
        provider = UnknownKeys(provider, None if unknown_keys is True else unknown_keys)
    return provider
