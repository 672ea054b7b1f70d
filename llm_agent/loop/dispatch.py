"""Tool calls, in the model's order: announce all, then hand over one batch after the other.

A batch is one call, or neighbours that `concurrent_tools` lets share one provider call. What
is behind a batch that was given up never runs: it is answered as abandoned, for certain.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

import attrs

from llm_agent import notices
from llm_agent.call_context import entered
from llm_agent.canonical import canonical_arguments
from llm_agent.codec import error_text
from llm_agent.events import ToolCall, ToolStarted
from llm_agent.layers import results_of, unreadable
from llm_agent.loop import settle
from llm_agent.loop.live_call import LiveCall
from llm_agent.loop.state import RunState, Turn
from llm_agent.messages import ToolRequest
from llm_agent.outcome import Cancelled, Failed, RunStopped
from llm_agent.patterns import matches_any
from llm_agent.run_core import DetachedCall
from llm_agent.slot import Answered, Call, GaveUp, Raised, walked
from llm_agent.tool_operation import OperationState, ToolOperation


@attrs.frozen
class Batch:
    """Calls that are handed over together."""

    operations: tuple[ToolOperation, ...]
    calls: tuple[ToolRequest, ...]
    is_readable: bool
    """Whether a provider can be asked; otherwise the engine answers by itself."""


class Operations:
    """The calls of one turn, from proposed to accounted for."""

    def __init__(self, state: RunState, batches: Sequence[Batch]) -> None:
        self._state = state
        self._batches = batches

    def batches(self) -> Iterator[Batch]:
        """Yield what is still to be handed over, in the model's order.

        Raises:
            RunStopped: the run was cancelled, or has spent what it may; what had not been
                handed over is abandoned.
        """
        for batch in self._batches:
            if self._state.core.cancel.is_set:
                self._abandon_rest_cancelled()
            self._check_bill()
            if all(op.state is OperationState.PROPOSED for op in batch.operations):
                yield batch
        # A cancel that ended the last wait: the round it would start shall not begin.
        if self._state.core.cancel.is_set and self._was_given_up():
            self._abandon_rest_cancelled()

    def behind(self, batch: Batch) -> list[ToolOperation]:
        """The calls that come after *batch* and have not been handed over."""
        position = self._batches.index(batch)
        later = [op for other in self._batches[position + 1 :] for op in other.operations]
        return [op for op in later if op.state is OperationState.PROPOSED]

    def _was_given_up(self) -> bool:
        return any(op.reason == "cancelled" for batch in self._batches for op in batch.operations)

    def _proposed(self) -> list[ToolOperation]:
        return [op for batch in self._batches for op in batch.operations if op.state is OperationState.PROPOSED]

    def _abandon_rest_cancelled(self) -> None:
        settle.never_run(self._state, self._proposed(), "cancelled")
        raise RunStopped(Cancelled("tools"))

    def _check_bill(self) -> None:
        rest = self._proposed()
        if rest and self._state.cap_reached() is not None:
            settle.never_run(self._state, rest, "budget-exhausted")
            self._state.check_bill()


def list_tools(state: RunState) -> None:
    """Ask the provider for its tools, once per run; none means the run has no tools.

    Raises:
        RunStopped: the run was cancelled meanwhile, or the provider cannot list.
    """
    provider = state.config.provider
    if provider is None:
        return
    is_over = threading.Event()
    call = state.slot.start(lambda: tuple(walked(provider.tools_for_llm(), is_over)))
    end = call.wait(state.core.cancel, lambda: None)
    is_over.set()
    match end:
        case Answered(tools):
            strange = next((tool for tool in tools if not isinstance(tool, Mapping)), None)
            if strange is not None:
                kind = type(strange).__name__
                problem = f"the provider could not list its tools: a declaration must be a mapping, got {kind}"
                raise RunStopped(Failed(error=problem))
            state.tools = tools
        case Raised(error):
            problem = f"the provider could not list its tools: {error_text(error)}"
            raise RunStopped(Failed(error=problem, exception=error))
        case GaveUp():
            raise RunStopped(Cancelled("start"))


def propose(state: RunState, turn: Turn) -> Operations:
    """Announce the calls of a committed turn, and group them."""
    operations = []
    for call in turn.message.tool_calls:
        operations.append(
            ToolOperation(
                call_id=call.id,
                tool=call.name,
                arguments=canonical_arguments(call.arguments),
                idempotency=state.config.idempotency_of(call.name),
                run_id=state.core.id,
                round=state.round_no,
            )
        )
        state.emit(ToolCall(id=call.id, name=call.name, arguments=call.arguments, round=state.round_no))
    state.operations += operations
    # Calls of their own, so that a provider that changes its arguments does not change the conversation.
    calls = [attrs.evolve(call) for call in turn.message.tool_calls]
    return Operations(state, _grouped(state.config.concurrent_tools, operations, calls))


def _grouped(
    concurrent: Sequence[str], operations: Sequence[ToolOperation], calls: Sequence[ToolRequest]
) -> list[Batch]:
    batches: list[Batch] = []
    may_join = False
    for op, call in zip(operations, calls, strict=True):
        is_readable = call.is_readable
        is_concurrent = is_readable and matches_any(concurrent, op.tool)
        if is_concurrent and may_join:
            last = batches[-1]
            batches[-1] = Batch((*last.operations, op), (*last.calls, call), True)
        else:
            batches.append(Batch((op,), (call,), is_readable))
        may_join = is_concurrent
    return batches


def run(state: RunState, operations: Operations, batch: Batch, data: Any) -> None:
    """Hand a batch over and account for every call of it: answered, unknown, or never run."""
    detached = len(state.core.detached)
    if detached >= state.config.max_abandoned_calls:
        notice = notices.NOT_RUN_TOO_MANY_DETACHED.format(running=detached)
        settle.never_run(state, batch.operations, "deadline", notice)
        return
    for op in batch.operations:
        _record_dispatch(state, op)  # durable before it can have an effect
    for op in batch.operations:
        state.emit(ToolStarted(id=op.call_id, name=op.tool, round=op.round))
    if batch.is_readable:
        _execute(state, operations, batch, data)
    else:
        settle.answered(state, batch.operations, [unreadable(batch.calls[0])])
    state.tally.count(op.signature for op in batch.operations)


def _record_dispatch(state: RunState, op: ToolOperation) -> None:
    op_id = ""
    if state.config.session is not None:
        op_id = state.config.session.append_tool_dispatched(
            call_id=op.call_id,
            tool=op.tool,
            arguments=op.arguments,
            arguments_digest=op.arguments_digest,
            idempotency=op.idempotency,
            run_id=op.run_id,
            round=op.round,
        )
    op.dispatch(monotonic(), op_id)


def _execute(state: RunState, operations: Operations, batch: Batch, data: Any) -> None:
    first = batch.operations[0]
    state.core.set_stage("tool", round=state.round_no, tool=first.tool, call_id=first.call_id)
    live = LiveCall(state, batch.operations, batch.calls, data)
    state.live_call = live
    try:
        call = state.slot.start(lambda: _ask_provider(state, live, batch))
    except RuntimeError as problem:  # no thread to be had: the calls have not run, and are answered so
        live.end()
        settle.raised(state, batch.operations, problem)
        return
    live.attach(call)
    end = call.wait(state.core.cancel, live.wait_left)
    state.live_call = None
    match end:
        case Answered(results):
            live.end()
            settle.answered(state, batch.operations, results)
        case Raised(error):
            live.end()
            settle.raised(state, batch.operations, error)
        case GaveUp(reason):  # no error: we stopped waiting, and no more is known
            live.abandon()
            _detach(state, call, first)
            settle.unknown(state, batch.operations, reason)
            if reason == "deadline":
                settle.never_run(state, operations.behind(batch), "deadline")


def _ask_provider(state: RunState, live: LiveCall, batch: Batch) -> list[Any]:
    """On the tool thread: the provider's call, walked to its end where it is lazy."""
    provider = state.config.provider
    assert provider is not None  # without one, no turn has calls
    with entered(live.context):
        return results_of(provider, batch.calls)


def _detach(state: RunState, call: Call, op: ToolOperation) -> None:
    """Note a call that is still out: `drained` waits for it, nothing else does."""
    core = state.core
    core.begin_work()
    returned = core.detach(DetachedCall(call_id=op.call_id, tool=op.tool))

    def on_return(_: Answered | Raised) -> None:
        returned()
        core.end_work()

    call.on_late_return(on_return)
