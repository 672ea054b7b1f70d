"""Functions as tools, layers over providers, and child processes that can be killed whole.

Importing this starts nothing; `process`, and `Workspace`, which needs it, are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_agent.tools.combine import combine
from llm_agent.tools.function import tool
from llm_agent.tools.reasons import Reasons
from llm_agent.tools.registry import Registry
from llm_agent.tools.stack import stacked
from llm_agent.tools.toolbox import Toolbox
from llm_agent.tools.unknown_keys import UnknownKeys, UnknownKeysFound

if TYPE_CHECKING:
    from llm_agent.tools.workspace import Workspace

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
    if name == "Workspace":
        from llm_agent.tools.workspace import Workspace

        return Workspace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
