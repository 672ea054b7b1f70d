"""Every seam of the engine on one page.

Duck types: nobody has to inherit from anything. What is listed is all the engine ever calls;
the optional parts say so. Contract lines say what happens when a rule is broken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from llm_agent.messages import Delta, Message, ToolAnswer, ToolRequest, Usage

ToolDeclaration = Mapping[str, Any]
"""`{"type": "function", "function": {"name", "description"?, "parameters"?}}`."""


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """What a backend is asked."""

    messages: tuple[Message, ...]
    """n >= 1 messages in a form every server accepts; `Message.to_wire()` (or `wire_json`) spells them."""
    tools: tuple[ToolDeclaration, ...] = ()
    tool_choice: Any = None
    extra: Mapping[str, Any] | None = None
    """Merged into the request body last."""
    cancelled: threading.Event = attrs.field(factory=threading.Event, eq=False, repr=False)
    """Set when nobody wants this completion any more: run cancelled, attempt timed out."""


@runtime_checkable
class Backend(Protocol):
    """Something that completes a conversation.

    Optional: `retry_after_cap`, the longest wait in seconds that a server may ask of the last
    backend of a chain; 120 without it.
    """

    @property
    def model(self) -> str:
        """The model's name, as events and counters shall call it."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """The cap on one completion, when one is set."""
        ...

    def stream(self, request: CompletionRequest) -> Iterable[Delta | str]:
        """Start one completion and return its pieces.

        Returns:
            Deltas in order; a `str` is a text delta. Exhaustion means the completion is
            whole. An empty `Delta()` is a sign of life: the inactivity clock starts again
            with every delta, so yield one for a data event without content, and none for a
            keepalive.

        Raises:
            BackendError: here or while iterating. Contract: anything else is a failed
                attempt of class `unknown`. A stream that saw its source break off must
                raise; returning means complete.

        Threads: called on a thread that can be abandoned. If the returned object has
            `cancel()`, that promises to wake a blocked reader at once from any thread; its
            iterator does the I/O and the run's worker reads it. A plain iterator is read on
            by the abandonable thread, and closed there at its next yield after a cancel.
        """
        ...


def model_name(backend: Backend) -> str:
    """Return what a backend calls its model; `unknown` for one that will not say."""
    try:
        return str(backend.model)
    except Exception:  # a shield: a name is worth no run
        return "unknown"


def completion_cap(backend: Backend) -> int | None:
    """Return a backend's cap on one completion, if it states one."""
    try:
        cap = backend.max_tokens
    except Exception:  # a shield, as above
        return None
    return cap if isinstance(cap, int) else None


@runtime_checkable
class CancellableStream(Protocol):
    """A stream that can be woken: what `Backend.stream` may return instead of a plain iterable."""

    def __iter__(self) -> Any: ...

    def cancel(self) -> None:
        """Wake a reader blocked in the iterator, at once, from any thread; idempotent, never raises."""
        ...


@runtime_checkable
class ToolProvider(Protocol):
    """Something that offers tools and runs them.

    Optional, and looked for once a run or a call needs them:

    - `grants() -> list`: the standing permissions, as JSON data. Called on the run's tool
      thread at the start and after each batch, only with a session. Contract: one that raises
      is none; one that takes longer than a second is not waited for.
    - `idempotency_of(name) -> str`: what repeating a call would do, where the loop's rules do
      not say. Called on the run's worker; must not block. Contract: one that raises, or says
      anything else than the four classes, means `unknown`.
    """

    def tools_for_llm(self) -> Sequence[ToolDeclaration]:
        """Return the declarations, once per run; none means the run has no tools.

        Raises:
            Anything. Contract: the run fails and says why; a shorter catalogue would be a lie.

        Threads: called on the run's tool thread; a cancel stops waiting for it.
        """
        ...

    def execute_tool_calls(self, calls: list[ToolRequest]) -> Sequence[ToolAnswer | Mapping[str, Any] | str]:
        """Run *calls* and answer each of them.

        Args:
            calls: n >= 1 calls of one assistant turn, in the model's order; each has a name
                and arguments that are a JSON object.

        Returns:
            n answers, answer i for call i. Contract: a missing one becomes an error answer,
            surplus ones are ignored, another id is corrected and logged. A lazy sequence is
            walked to its end on the same thread.

        Raises:
            Nothing. Contract: an exception becomes one error answer per call.

        Threads: called on the run's tool thread, one batch at a time; `current_call()` is
            set. The call may outlive its deadline; then its answer is dropped.
        """
        ...


class TokenCounter(Protocol):
    """How large a conversation is, in tokens.

    Contract: must not block and must not raise; a count is an int, 0 or more. Called on the
    run's worker, and on the thread of a compaction while the worker waits for it. A counter
    that derives from this one learns nothing, unless it says how.
    """

    def count_messages(self, messages: Sequence[Message]) -> int:
        """Count a conversation, without what a request carries beside it."""
        ...

    def count_text(self, text: str) -> int:
        """Count *text* as one system message; never disturbs a calibration."""
        ...

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        """Count what a whole request weighs.

        Args:
            messages: the conversation.
            tools: the declarations sent with it.
            context: what this run says beside the conversation, in any place. A bill for an
                earlier request of the same shape covers it, and the declarations, already.
        """
        ...

    def record_usage(
        self,
        *,
        prompt_tokens: int | None,
        completion_tokens: int | None = None,
        message_count: int | None = None,
        prefix_digest: str | None = None,
        backend: str | None = None,
    ) -> None:
        """Learn from a billed request: *message_count* messages with *prefix_digest* cost *prompt_tokens*."""
        return  # a body, and no abstract method: a counter need not learn

    def invalidate(self) -> None:
        """Forget what was learned: the model, the tools or the context have changed."""
        return


class Transcript(Protocol):
    """Where turns are kept. Every `append_*` returns after the line is with the operating system.

    Optional: `repair()` and `needs_reply`, which `Loop.resume` needs; `close()`, which
    `close_session=True` calls; `append_compaction` and `append_elision`, which a loop with a
    compactor needs; `append_run_context`, for runs with a context.

    Raises (every method): TranscriptError; nothing has changed then, in memory or on disk.
    """

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def message_ids(self) -> Sequence[str]: ...

    def append_message(self, message: Message, extra: Mapping[str, Any] | None = None) -> str:
        """Write one message with *extra* keys beside it; return the line's id."""
        ...

    def append_grants(self, grants: Sequence[Any]) -> str: ...

    def append_tool_dispatched(
        self,
        *,
        call_id: str,
        tool: str,
        arguments: str,
        arguments_digest: str | None = None,
        idempotency: str | None = None,
        run_id: str | None = None,
        round: int | None = None,
    ) -> str:
        """Write that a call is about to be handed over; the line's id is the operation's id."""
        ...

    def append_tool_settled(
        self,
        op_id: str,
        outcome: str,
        *,
        reason: str | None = None,
        duration: float | None = None,
        result_digest: str | None = None,
        error: str | None = None,
        artifact: Mapping[str, Any] | None = None,
    ) -> str:
        """Write how a call ended; *artifact* says where its whole result is kept, and is only given then."""
        ...

    def pending_tool_operations(self) -> Sequence[Mapping[str, Any]]: ...


@attrs.frozen(kw_only=True)
class Elision:
    """One old tool result that a stub stands for."""

    index: int
    """Which message of the input."""
    stub: str


@attrs.frozen(kw_only=True)
class Compaction:
    """What a compactor made of a conversation."""

    messages: tuple[Message, ...]
    summary: str = ""
    """The whole content of the message that stands for what was dropped; `""` when nothing was."""
    dropped: int = 0
    """How many messages the summary stands for; 0: nothing was summarised."""
    cut_index: int = -1
    """The last message, in the input, that the summary replaces; -1 when nothing was."""
    kept: tuple[int, ...] = ()
    """Messages up to the cut that stay although they are not sticky: the newest request, say."""
    tokens_before: int
    tokens_after: int
    fallback: bool = False
    """No summary was to be had: a note stands for what was dropped."""
    exhausted: bool = False
    """Nothing more can be gained, and it still does not fit."""
    elisions: tuple[Elision, ...] = ()
    """Applied before the fold; indices of the input."""
    billed: tuple[tuple[str, Usage], ...] = ()
    """Every request that was made for a summary: the model, and what it reported."""
    problems: tuple[str, ...] = ()
    """Why requests for a summary gave none, a sentence each, in order."""


class Compactor(Protocol):
    """Makes a conversation smaller before it outgrows the window.

    Contract: pure for the conversation; messages are shared, never changed. Called on a thread
    that can be abandoned.
    """

    @property
    def context_budget(self) -> int:
        """Tokens that a conversation may have."""
        ...

    def needs_compaction(self, messages: Sequence[Message], tokens: int | None = None) -> bool:
        """Whether it is time; *tokens* is the size of the conversation where it is known already."""
        ...

    def compact(
        self,
        messages: Sequence[Message],
        *,
        cancelled: threading.Event | None = None,
        target: int | None = None,
        counter: TokenCounter | None = None,
    ) -> Compaction:
        """Return a conversation that is smaller, or say that there is none. Never raises.

        Args:
            messages: n >= 1 messages, no call of them unanswered.
            cancelled: set when nobody wants the answer any more.
            target: tokens that the result must not exceed, instead of the compactor's own aim.
            counter: replaces the compactor's counter for every count of this call.
        """
        ...


@attrs.frozen(kw_only=True)
class Stored:
    """Where a whole text is kept of which the conversation has an excerpt."""

    file: str
    """A bare file name; what `read` takes."""
    digest: str
    """SHA-256 of the UTF-8 bytes, 64 hex digits: what `sha256sum` says of the file."""
    bytes: int


class ArtifactStore(Protocol):
    """Keeps what is too large for a conversation. Called on a thread that can be abandoned, one write at a time."""

    def write(self, name: str, text: str) -> Stored:
        """Keep *text*, whole, under a file name made from *name*.

        Raises:
            OSError: it cannot be kept. Contract: nothing half-written is left behind.
        """
        ...
