"""Functions as tools, and child processes that can be killed whole.

Importing this starts nothing and does not import `process`.
"""

from __future__ import annotations

from llm_agent.tools.combine import combine
from llm_agent.tools.function import tool
from llm_agent.tools.toolbox import Toolbox

__all__ = ["Toolbox", "combine", "tool"]
