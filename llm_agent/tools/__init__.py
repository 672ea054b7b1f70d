"""Functions as tools, layers over providers, and child processes that can be killed whole.

Importing this starts nothing; what not every program uses is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from llm_agent.tools.combine import combine
from llm_agent.tools.function import tool
from llm_agent.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from llm_agent.tools.reasons import Reasons
    from llm_agent.tools.registry import Registry
    from llm_agent.tools.stack import stacked
    from llm_agent.tools.unknown_keys import UnknownKeys, UnknownKeysFound
    from llm_agent.tools.workspace import Workspace

_LOADED_LATER: Final = {
    "Reasons": "reasons",
    "Registry": "registry",
    "UnknownKeys": "unknown_keys",
    "UnknownKeysFound": "unknown_keys",
    "Workspace": "workspace",
    "stacked": "stack",
}

__all__ = [
    "Reasons",
    "Registry",
    "Toolbox",
    "UnknownKeys",
    "UnknownKeysFound",
    "Workspace",
    "combine",
    "stacked",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"llm_agent.tools.{_LOADED_LATER[name]}"), name)
