"""A folder for a model to work in: `Workspace`.

`workspace` has the tools and their words for the model; `text_files`, `listing`, `search` and
`commands` do what they say. `confinement` is the one way to a file, `encodings` says what its
bytes mean, and `call` how much of it an answer may have.
"""

from __future__ import annotations

from llm_agent.tools.workspace.workspace import Workspace

__all__ = ["Workspace"]
