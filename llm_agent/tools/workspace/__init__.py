"""A folder for a model to work in: `Workspace`. See `workspace` for the tools, `confinement` for its walls."""

from __future__ import annotations

from llm_agent.tools.workspace.workspace import Workspace

__all__ = ["Workspace"]
