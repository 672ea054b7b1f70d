"""The error tree. Beside it only those of Python's own are raised that say it best: `TimeoutError`, `OSError`, ...

    AgentError
    ├── ConfigError (also ValueError)     the caller's fault, before anything started
    ├── RunInProgress                     this loop, or this session, is busy with an earlier run
    ├── RunNotCompleted                   an outcome that was asked to raise
    ├── TranscriptError                   the transcript, or its path, is not usable as asked
    │   ├── SessionInUse                  another writer holds it
    │   ├── MalformedTranscript           damaged, not cut short
    │   ├── HistoryMismatch               the messages given are not what the file holds
    │   └── UnansweredCalls               tool calls without an answer: repair first
    ├── BackendError                      one attempt failed; the chain decides what that means
    ├── McpError                          a tool server could not be reached or kept
    └── NoTerminal                        there is nobody to ask

The caller's fault and the world's fault never share a leaf. A message says which thing,
what was expected, what came. What happens to the world during a run ends up in the
`Outcome`; it is not raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from llm_agent.outcome import Outcome

ErrorClass = Literal["http", "timeout", "connection", "response", "unknown"]
ERROR_CLASSES: tuple[str, ...] = get_args(ErrorClass)


class AgentError(Exception):
    """Root of everything this library raises on purpose."""


class ConfigError(AgentError, ValueError):
    """An argument or option that cannot work; nothing has been started."""


class RunInProgress(AgentError):
    """An earlier run of this loop, or on this session, is not drained yet."""


class RunNotCompleted(AgentError):
    """Raised by `Outcome.raise_for_failure` for a run that failed or was cancelled.

    Picklable: task queues carry it home.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        detail = outcome.error or outcome.reason or "no reason was recorded"
        super().__init__(f"run {outcome.status}: {detail}")

    def __reduce__(self) -> tuple[type[RunNotCompleted], tuple[Outcome]]:
        return type(self), (self.outcome,)


class TranscriptError(AgentError):
    """A transcript, or its path, cannot be used as asked.

    Trouble with the path (missing folder, read-only, full disk) names it and has the
    `OSError` as its cause.
    """


class SessionInUse(TranscriptError):
    """Another session, here or in another process, is writing this transcript."""


class MalformedTranscript(TranscriptError):
    """A transcript that is damaged in a way no crash of ours explains.

    Attributes:
        path: the file.
        line: 1-based number of the first offending line; 0 when the file as a whole is meant.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        self.path = path
        self.line = line
        self.problem = problem
        where = f"transcript {path} line {line}" if line else f"transcript {path}"
        super().__init__(f"{where}: {problem}")

    def __reduce__(self) -> tuple[type[MalformedTranscript], tuple[str, int, str]]:
        return type(self), (self.path, self.line, self.problem)


class HistoryMismatch(TranscriptError):
    """The messages given to a run do not extend what its session holds.

    Attributes:
        index: the first message that differs, 0-based.
    """

    def __init__(self, index: int, problem: str) -> None:
        self.index = index
        self.problem = problem
        super().__init__(problem)

    def __reduce__(self) -> tuple[type[HistoryMismatch], tuple[int, str]]:
        return type(self), (self.index, self.problem)


class UnansweredCalls(TranscriptError):
    """The conversation holds tool calls that nobody answered.

    Every vendor refuses such a conversation. `session.repair()` answers each of them
    honestly; `loop.resume()` repairs and goes on.

    Attributes:
        calls: the ids of the unanswered calls, in the model's order.
    """

    def __init__(self, calls: Sequence[str], hint: str = "session.repair() answers them honestly") -> None:
        self.calls = tuple(calls)
        self.hint = hint
        named = ", ".join(repr(call) for call in self.calls)
        super().__init__(f"the conversation has tool calls without an answer: {named}; {hint}")

    def __reduce__(self) -> tuple[type[UnansweredCalls], tuple[tuple[str, ...], str]]:
        return type(self), (self.calls, self.hint)


class BackendError(AgentError):
    """One attempt at one backend failed.

    Args:
        message: what happened, without any secret.
        error_class: `http` (with a status), `timeout` (accepted, then quiet), `connection`
            (never established, or broken), `response` (arrived, but is no completion) or `unknown`.
        status: the HTTP status, for class `http`.
        retry_after: seconds the server asked to be left alone, when it said so.
        body: what the server sent, cut to a readable size.
    """

    def __init__(
        self,
        message: str,
        error_class: ErrorClass = "unknown",
        status: int | None = None,
        retry_after: float | None = None,
        body: Any = None,
    ) -> None:
        if error_class not in ERROR_CLASSES:
            raise ConfigError(
                f"BackendError: error_class must be one of {', '.join(ERROR_CLASSES)}, got {error_class!r}"
            )
        super().__init__(message)
        self.message = message
        self.error_class: ErrorClass = error_class
        self.status = status
        self.retry_after = retry_after
        self.body = body

    def __reduce__(self) -> tuple[type[BackendError], tuple[Any, ...]]:
        return type(self), (self.message, self.error_class, self.status, self.retry_after, self.body)


class McpError(AgentError):
    """A tool server could not be reached, kept, or understood."""


class NoTerminal(AgentError):
    """There is no terminal to ask at, or it is gone."""
