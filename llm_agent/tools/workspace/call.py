"""What the call at hand allows a workspace: how long its answer may be, and whether it is still wanted.

The law: what is cut is cut once, by whoever can say how to get the rest. An answer over the
run's limit would be cut again by the loop, in its middle, and what its last line says ("read on
with offset 400") would not be true any more.
"""

from __future__ import annotations

from typing import Final

from llm_agent.call_context import current_call, is_given_up

_MOST: Final = 15_000
# What is said beside it: notes, a marker, how a command ended.
_BESIDE: Final = 600


def answer_chars() -> int:
    """Return how many characters of content the call of this thread may answer with; 0 or more."""
    call = current_call()
    limit = None if call is None else call.observation_limit
    return _MOST if limit is None else min(_MOST, max(0, limit - _BESIDE))


def stop_if_given_up() -> None:
    """Do nothing while somebody waits for the call of this thread.

    Raises:
        TimeoutError: nobody does any more.
    """
    if is_given_up():
        raise TimeoutError("the call was given up")
