"""Making a conversation smaller before it outgrows the window: stubs first, then a summary, then a trim.

- `plan`: where to cut, and what stays.
- `rendering`: what a summariser reads.
- `aging`: which old results a stub can stand for.
- `summary`: asking the summarisers.
- `compactor`: `Compactor`, which puts them together.
"""

from __future__ import annotations

from llm_agent.compactor.compactor import Compactor

__all__ = ["Compactor"]
