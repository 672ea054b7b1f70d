"""What the conversation gets of a tool's answer: all of it, or an excerpt and where the rest is.

The law: one text, made once. Message, transcript, digest and event take what `observe` returns,
and nobody cuts again; so a run that is resumed needs no file but its transcript.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llm_agent import notices
from llm_agent.codec import clean_text, error_text
from llm_agent.excerpt import excerpt
from llm_agent.loop.state import RunState
from llm_agent.ports import ArtifactStore, Stored
from llm_agent.slot import Answered, CallEnd, GaveUp, Raised
from llm_agent.tool_operation import ToolOperation

# How long a cancelled run waits for a result to be stored, in seconds.
STORE_GRACE: Final = 0.2


@attrs.frozen
class Observation:
    """A tool's answer as the model sees it."""

    content: str
    artifact: Mapping[str, Any] | None = None
    """Where the whole of it is: `file`, `digest`, `bytes`, `chars`, `elided-chars`; `None` for nowhere else."""


def observe(state: RunState, op: ToolOperation, content: str) -> Observation:
    """Return *content*, or an excerpt when it is over the run's limit; the whole is then stored first."""
    limit = state.config.observation_limit
    text = clean_text(content)  # what is kept, counted and digested is what the conversation would have had
    part = None if limit is None else excerpt(text, limit)
    if part is None:
        return Observation(text)
    stored = _store(state, op, text)
    start = len(part.head)
    facts = {"elided": part.elided, "start": start, "end": start + part.elided}
    if stored is None:
        return Observation(part.joined(_not_stored(text, facts)))
    where = {"file": stored.file, "digest": stored.digest, "bytes": stored.bytes}
    marker = notices.EXCERPT_STORED.format(**facts, **where)
    return Observation(part.joined(marker), {**where, "chars": len(text), "elided-chars": part.elided})


def _store(state: RunState, op: ToolOperation, text: str) -> Stored | None:
    store: ArtifactStore | None = state.config.artifact_store
    if store is None:
        return None
    end = _written(state, lambda: store.write(op.op_id, text))
    match end:
        case Answered(Stored() as stored):
            return stored
        case Answered(strange):
            problem = f"write() must return a Stored, got {type(strange).__name__}"
        case Raised(error):
            problem = error_text(error)
        case GaveUp():
            problem = "it was not written when the run had been cancelled"
    state.log(
        "warning",
        {
            "message": "a large tool result could not be kept; the conversation has an excerpt of it",
            "tool": op.tool,
            "call-id": op.call_id,
            "error": problem,
        },
    )
    return None


def _written(state: RunState, write: Callable[[], Stored]) -> CallEnd:
    """Write where it can be given up: a store may hang. The call has happened, and its answer counts, stored or not."""
    call = state.slot.start(write)
    end = call.wait(state.core.cancel, lambda: None)
    return call.linger(STORE_GRACE) if isinstance(end, GaveUp) else end


def _not_stored(text: str, facts: Mapping[str, int]) -> str:
    data = text.encode()
    return notices.EXCERPT_NOT_STORED.format(**facts, bytes=len(data), digest=hashlib.sha256(data).hexdigest())
