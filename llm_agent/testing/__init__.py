"""A kit for testing agents: scripted models and tools, a fake server, and the rules as checks.

Shipped, and used by the engine's own tests. Nothing here needs a network or a key, and
nothing needs to be patched: what must be stuck, slow or broken is written into a script.

- `ScriptedBackend`, `ScriptedProvider`: a model and tools that answer from a list.
- `FakeServer`: a real HTTP server on the loopback, down to single bytes, pauses and cuts.
- `call`, `Gate`, `hang`: the words of all three scripts.
- `call_context`: test one tool without a run.
- `finished`, `check_events`, `check_conversation`: what holds for every run, asserted.
- `no_backoff`: retries without the wait.
"""

from __future__ import annotations

from llm_agent.retry import no_backoff
from llm_agent.testing.answers import Answer, cut, document, error, keepalives, pause, raw, reply, sse
from llm_agent.testing.backend import ScriptedBackend
from llm_agent.testing.connection import RecordedRequest
from llm_agent.testing.conversation import check_conversation
from llm_agent.testing.events import check_events
from llm_agent.testing.runs import FinishedRun, finished
from llm_agent.testing.script import Gate, call, hang
from llm_agent.testing.server import FakeServer
from llm_agent.testing.tools import Progress, RecordedCall, ScriptedProvider, call_context

__all__ = [
    "Answer",
    "FakeServer",
    "FinishedRun",
    "Gate",
    "Progress",
    "RecordedCall",
    "RecordedRequest",
    "ScriptedBackend",
    "ScriptedProvider",
    "call",
    "call_context",
    "check_conversation",
    "check_events",
    "cut",
    "document",
    "error",
    "finished",
    "hang",
    "keepalives",
    "no_backoff",
    "pause",
    "raw",
    "reply",
    "sse",
]
