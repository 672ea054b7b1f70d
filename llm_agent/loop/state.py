"""What a round may change: the conversation, the counts, the bill.

Owned by the run's worker: no locks. `Conversation.append` is the one door for every message
(memory and transcript), `RunState.emit` the one door for every event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, Protocol

import attrs

from llm_agent.bill import Bill
from llm_agent.budget import CapReached
from llm_agent.call_context import CallHost, ToolCallContext
from llm_agent.canonical import data_digest
from llm_agent.codec import error_text
from llm_agent.errors import HistoryMismatch, TranscriptError
from llm_agent.events import (
    AssistantMessage,
    AttemptRecord,
    DiscardReason,
    Event,
    Log,
    RoundStarted,
    RunStarted,
    Stage,
    TurnCommitted,
    TurnDiscarded,
)
from llm_agent.folding import folded, with_stubs
from llm_agent.limits import Tally
from llm_agent.loop.config import LoopConfig
from llm_agent.messages import Message, PrefixDigest, Reply, Usage
from llm_agent.outcome import Cancelled, Failed, RunStopped, Spent, UnknownOperation
from llm_agent.ports import Compaction, TokenCounter, ToolDeclaration, Transcript, model_name
from llm_agent.run_context import RunContext, placed
from llm_agent.run_core import RunCore
from llm_agent.slot import Slot
from llm_agent.tool_operation import OperationState, ToolOperation
from llm_agent.wire_view import WireView, renamed, unique_id

LOGGER: Final = "llm-agent.loop"

Shape = tuple[str, str, str | None]
"""What a bill holds for: the model, the digest of the declarations, that of the context."""


class Conversation:
    """The messages of a run, in memory and, with a session, on disk. One writer."""

    def __init__(self, session: Transcript | None) -> None:
        self._session = session
        self.messages: list[Message] = []
        self.wire = WireView()

    def seed(self, messages: Sequence[Message]) -> None:
        """Take the messages of the run; what the session has not seen is written to it.

        Raises:
            HistoryMismatch: they do not extend what the session holds; nothing is written then.
            TranscriptError: the session refuses a line.
        """
        known = 0 if self._session is None else _check_extends(self._session, messages)
        for message in messages[:known]:
            self._remember(message)
        for message in messages[known:]:
            self.append(message)

    def append(self, message: Message, extra: Mapping[str, Any] | None = None) -> str | None:
        """Add one message: to the transcript first, then to memory. Returns its line's id, if any."""
        message_id = None if self._session is None else self._session.append_message(message, extra or {})
        self._remember(message)
        return message_id

    def shorten(self, compaction: Compaction) -> None:
        """Become what a compactor made of this conversation: each line in the transcript first, then in memory."""
        if compaction.elisions:
            self._elide({elision.index: elision.stub for elision in compaction.elisions})
        if compaction.dropped:
            self._fold(compaction)

    def _elide(self, stubs: dict[int, str]) -> None:
        session: Any = self._session
        if session is not None:
            ids = _ids_of(session, len(self.messages))
            session.append_elision([{"id": ids[index], "stub": stub} for index, stub in stubs.items()])
        self._become(with_stubs(self.messages, stubs))

    def _fold(self, compaction: Compaction) -> None:
        if self._session is not None:
            _write_fold(self._session, _ids_of(self._session, len(self.messages)), compaction)
        self._become(folded(self.messages, compaction.summary, compaction.cut_index, compaction.kept))

    def _become(self, messages: list[Message]) -> None:
        self.messages = messages
        self.wire = WireView.of(messages)

    def _remember(self, message: Message) -> None:
        self.messages.append(message)
        self.wire.append(message)


def _ids_of(session: Any, length: int) -> Sequence[str]:
    """Return the ids of the lines that the run's messages came from."""
    ids: Sequence[str] = session.message_ids
    if len(ids) != length:
        raise TranscriptError(
            f"the session holds {len(ids)} messages and the run {length}: somebody else has appended to it"
        )
    return ids


def _write_fold(session: Any, ids: Sequence[str], compaction: Compaction) -> None:
    kept = [ids[index] for index in compaction.kept]
    session.append_compaction(
        compaction.summary,
        ids[compaction.cut_index],
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        fallback=compaction.fallback,
        **({"kept_ids": kept} if kept else {}),
    )


def _check_extends(session: Transcript, messages: Sequence[Message]) -> int:
    """Return how many of *messages* the session holds already."""
    recorded = session.messages
    way_out = "start from session.messages and extend them"
    if len(messages) < len(recorded):
        raise HistoryMismatch(
            len(messages),
            f"the run was given {len(messages)} messages, but its session holds {len(recorded)}; {way_out}",
        )
    for index, (ours, theirs) in enumerate(zip(messages, recorded, strict=False)):
        if ours is not theirs and ours.digest != theirs.digest:
            raise HistoryMismatch(
                index,
                f"message {index} of the run (role {ours.role}) is not the session's message {index} "
                f"(role {theirs.role}); {way_out}",
            )
    return len(recorded)


class Host(CallHost, Protocol):
    """The batch in flight, for the adapters of code outside a call."""

    @property
    def context(self) -> ToolCallContext: ...


@attrs.frozen
class Turn:
    """An assistant message that is committed."""

    message: Message
    round: int

    @property
    def text(self) -> str:
        return self.message.text


class RunState:
    """Everything one run knows about itself while its worker drives it."""

    def __init__(
        self,
        core: RunCore,
        config: LoopConfig,
        messages: Sequence[Message],
        context: RunContext | None,
        shapes: dict[int, Shape],
    ) -> None:
        self.core = core
        self.config = config
        self.given = tuple(messages)
        self.conversation = Conversation(config.session)
        self.context = context
        self.slot = Slot(f"llm-agent-tools-{core.id[:8]}")
        self.tools: tuple[ToolDeclaration, ...] = ()
        self.round_no = 0
        self.rounds_begun = 0
        self.is_turn_open = False
        """Whether this round has streamed something that is neither committed nor discarded."""
        self.crowded_at: int | None = None
        """Tokens of a conversation that the last compaction could not bring below its trigger."""
        self.folded_length: int | None = None
        """Messages that the last compaction left to be sent, until the next bill has judged it."""
        self.vain_compactions = 0
        """How many in a row left more than fits, by the bill that followed."""
        self.tally = Tally()
        self._prefix = PrefixDigest()
        self.bill = Bill(config.prices)
        self.failures: list[AttemptRecord] = []
        self.operations: list[ToolOperation] = []
        self.live_call: Host | None = None
        self.write_grants: Callable[[], None] = lambda: None
        """Write the provider's grants if they have changed, from the thread of a call. Never raises."""
        self.started = monotonic()
        self._has_warned = False
        self._shapes = shapes
        self._declared: tuple[tuple[ToolDeclaration, ...], str] | None = None

    # -- doors and decisions -----------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Publish an event of this run."""
        self.core.emit(event)

    def log(self, level: str, data: str | Mapping[str, Any]) -> None:
        """Say something about the run that is no step of it."""
        self.emit(Log(level=level, logger=LOGGER, data=data))

    def check_cancel(self, stage: Stage) -> None:
        """Stop the run when a cancel was asked for."""
        if self.core.cancel.is_set:
            raise RunStopped(Cancelled(stage))

    def discard_turn(self, reason: DiscardReason) -> None:
        """Retract what the round streamed: it will never be part of the conversation."""
        self.is_turn_open = False
        self.emit(TurnDiscarded(reason=reason, round=self.round_no))

    def discard_cancelled(self, stage: Stage) -> RunStopped:
        """Retract what the round streamed; returns the stop for a cancel noticed in *stage*."""
        self.discard_turn("cancelled")
        return RunStopped(Cancelled(stage))

    # -- the steps of the story that belong to no stage ------------------------------------------

    def begin(self) -> None:
        """Announce the run and teach the transcript what it has not seen."""
        context = self.context
        self.emit(RunStarted(message_count=len(self.given), context_digest=None if context is None else context.digest))
        self.conversation.seed(self.given)
        if context is not None:
            self._record_context(context)
        for orphan in self.conversation.wire.orphans:
            self.log(
                "warning",
                {"message": "a tool result answers no call; it is not sent", "call-id": orphan.tool_call_id or ""},
            )

    def next_round(self) -> int:
        """Begin the next round; a cancel between rounds is noticed here."""
        self.check_cancel("start")
        self.round_no += 1
        return self.round_no

    def begin_round(self, tokens: int | None) -> None:
        """Announce the round: from here on it counts."""
        self.rounds_begun = self.round_no
        self.emit(RoundStarted(round=self.round_no, tokens=tokens))

    def commit(self, reply: Reply) -> Turn:
        """Make a reply part of the conversation: transcript, memory, events, in that order."""
        calls = reply.tool_calls if self.tools else ()
        if calls:
            taken = set(self.conversation.wire.taken_ids)
            calls = renamed(calls, [unique_id(call.id, taken) for call in calls])
        message = Message.assistant(reply.text, calls)
        message_id = self.conversation.append(message, _extras(reply))
        self.is_turn_open = False
        self.emit(AssistantMessage(message=message, reasoning=reply.reasoning or None, round=self.round_no))
        self.emit(TurnCommitted(message_id=message_id, round=self.round_no))
        return Turn(message, self.round_no)

    def _record_context(self, context: RunContext) -> None:
        append = getattr(self.config.session, "append_run_context", None)
        if append is None:
            return
        try:
            append(context, self.core.id)
        except Exception as exc:  # a shield: the conversation does not depend on it
            self.log("error", f"the run's context could not be recorded: {error_text(exc)}")

    # -- what a request carries ------------------------------------------------------------------

    def request_messages(self) -> tuple[Message, ...]:
        """The conversation as it goes out, the run's context around it."""
        return placed(self.conversation.wire.messages, self.context)

    @property
    def context_messages(self) -> tuple[Message, ...]:
        """What the run says beside the conversation."""
        return () if self.context is None else self.context.messages

    def wire_digest(self) -> str:
        """Identity of the conversation as it is sent, for a counter's calibration."""
        return self._prefix.of(self.conversation.wire.messages, len(self.conversation.wire.messages))

    def counter_for(self, index: int) -> TokenCounter:
        """Return the counter of a backend, told when requests have another shape than those it learned from."""
        return self._in_shape(self.config.counter_of(index), model_name(self.config.backends[index]))

    def loop_counter(self) -> TokenCounter:
        """Return the loop's own counter; what it learned with other declarations or another context is dropped."""
        counter = self.config.counter
        learned = self._shapes.get(id(counter))
        return counter if learned is None else self._in_shape(counter, learned[0])

    def _in_shape(self, counter: TokenCounter, model: str) -> TokenCounter:
        shape = (model, self._tools_digest(), None if self.context is None else self.context.digest)
        if self._shapes.setdefault(id(counter), shape) != shape:
            counter.invalidate()
            self._shapes[id(counter)] = shape
        return counter

    def _tools_digest(self) -> str:
        if self._declared is None or self._declared[0] is not self.tools:
            self._declared = self.tools, data_digest(list(self.tools))
        return self._declared[1]

    # -- what it may cost ------------------------------------------------------------------------

    def check_bill(self) -> None:
        """Stop the run when it has spent what it may. Asked only where nothing is in flight."""
        reached = self.cap_reached()
        if reached is not None:
            raise RunStopped(Failed(error=str(reached), reason="budget-exhausted"))

    def cap_reached(self) -> CapReached | None:
        """The first cap that is reached, if any: a round counts once it is over."""
        budget = self.config.budget
        if budget is None:
            return None
        return budget.cap_reached(self.spent(), rounds=self.round_no - 1, calls=self.tally.calls)

    def warn_of_blind_caps(self, model: str, usage: Usage) -> None:
        """Say once that a cap cannot be reached, because nobody tells what it is about."""
        budget = self.config.budget
        if budget is None or self._has_warned:
            return
        if budget.max_cost is not None and usage.cost is None and model not in self.config.prices:
            self._warn_of_cap("max_cost", f"{model} reports no cost, and prices= has none for it")
        elif budget.max_total_tokens is not None and usage.billed_total is None:
            self._warn_of_cap("max_total_tokens", f"{model} reports no usage")

    def _warn_of_cap(self, cap: str, why: str) -> None:
        self._has_warned = True
        self.log("warning", f"{cap} cannot be reached: {why}")

    def spent(self) -> Spent:
        """The bill so far."""
        return self.bill.spent(self.working_seconds)

    # -- for the outcome -------------------------------------------------------------------------

    def unknown_operations(self) -> tuple[UnknownOperation, ...]:
        """Operations that were dispatched and whose end nobody knows."""
        open_states = (OperationState.DISPATCHED, OperationState.OUTCOME_UNKNOWN)
        return tuple(
            UnknownOperation(
                op_id=op.op_id,
                call_id=op.call_id,
                tool=op.tool,
                arguments=op.arguments,
                idempotency=op.idempotency,
                reason=op.reason,
            )
            for op in self.operations
            if op.state in open_states
        )

    @property
    def working_seconds(self) -> float:
        """Seconds since the run began, without those in which a human was asked."""
        return monotonic() - self.started - self.core.asked_seconds


def _extras(reply: Reply) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if reply.reasoning:
        extras["reasoning"] = reply.reasoning
    if reply.finish_reason is not None:
        extras["finish-reason"] = reply.finish_reason
    usage = reply.usage.to_dict()
    if usage:
        extras["usage"] = usage
    return extras
