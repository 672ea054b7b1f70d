"""A human at a terminal, as somebody to ask: `Policy(..., on_ask=terminal.ask)`.

`asking` puts the question and reads the answer, `description` says what it is about, `harmless`
lets no text of a model's act on the terminal, `console` is the terminal.
"""

from __future__ import annotations

from llm_agent.errors import NoTerminal
from llm_agent.terminal.asking import ask

__all__ = ["NoTerminal", "ask"]
