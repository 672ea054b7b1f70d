"""The engine behind a coding agent, as a synchronous Python library.

A run streams a completion, calls tools, survives a failing backend, writes a transcript that
can be resumed, and is held through one handle: `run.events()`, `run.result()`, `run.cancel()`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from llm_agent import canonical, events, prompt
from llm_agent.asks import PendingAsk
from llm_agent.backends.openai import OpenAIBackend
from llm_agent.bill import Price
from llm_agent.budget import ModelProfile, RequestBudget
from llm_agent.call_context import ToolCallContext, current_call
from llm_agent.errors import (
    AgentError,
    BackendError,
    ConfigError,
    HistoryMismatch,
    MalformedTranscript,
    McpError,
    RunInProgress,
    RunNotCompleted,
    SessionInUse,
    TranscriptError,
    UnansweredCalls,
)
from llm_agent.events import Event
from llm_agent.live import live_runs
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Message, ToolAnswer, ToolRequest, Usage
from llm_agent.outcome import Outcome, Spent
from llm_agent.ports import Backend, CompletionRequest, ToolProvider
from llm_agent.run import Run
from llm_agent.run_context import RunContext
from llm_agent.run_core import RunStatus
from llm_agent.session.repair import Repair
from llm_agent.session.session import Session
from llm_agent.token_count import HeuristicCounter, UsageCounter
from llm_agent.tools.function import tool
from llm_agent.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from llm_agent.compactor import Compactor
    from llm_agent.policy import Policy
    from llm_agent.token_count import ExactCounter
    from llm_agent.tools.artifacts import ArtifactFolder
    from llm_agent.tools.reasons import Reasons
    from llm_agent.tools.registry import Registry
    from llm_agent.tools.unknown_keys import UnknownKeys

# What not every program uses is loaded when it is first asked for.
_LOADED_LATER: Final = {
    "ArtifactFolder": "llm_agent.tools.artifacts",
    "Compactor": "llm_agent.compactor",
    "ExactCounter": "llm_agent.token_count",
    "Policy": "llm_agent.policy",
    "Reasons": "llm_agent.tools.reasons",
    "Registry": "llm_agent.tools.registry",
    "UnknownKeys": "llm_agent.tools.unknown_keys",
}

__all__ = [
    "AgentError",
    "ArtifactFolder",
    "Backend",
    "BackendError",
    "Compactor",
    "CompletionRequest",
    "ConfigError",
    "Delta",
    "Event",
    "ExactCounter",
    "HeuristicCounter",
    "HistoryMismatch",
    "Loop",
    "MalformedTranscript",
    "McpError",
    "Message",
    "ModelProfile",
    "OpenAIBackend",
    "Outcome",
    "PendingAsk",
    "Policy",
    "Price",
    "Reasons",
    "Registry",
    "Repair",
    "RequestBudget",
    "Run",
    "RunContext",
    "RunInProgress",
    "RunNotCompleted",
    "RunStatus",
    "Session",
    "SessionInUse",
    "Spent",
    "ToolAnswer",
    "ToolCallContext",
    "ToolProvider",
    "ToolRequest",
    "Toolbox",
    "TranscriptError",
    "UnansweredCalls",
    "UnknownKeys",
    "Usage",
    "UsageCounter",
    "canonical",
    "current_call",
    "events",
    "live_runs",
    "prompt",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LOADED_LATER[name]), name)
