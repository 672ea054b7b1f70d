"""What a type checker must see of the public values. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, assert_never, assert_type

from llm_agent import events
from llm_agent.cancel import CancelToken
from llm_agent.canonical import canonical_arguments, canonical_json, data_digest
from llm_agent.errors import BackendError, ErrorClass, RunNotCompleted, UnansweredCalls
from llm_agent.messages import (
    Delta,
    Message,
    Reply,
    ToolAnswer,
    ToolRequest,
    Usage,
    message_digest,
    messages_digest,
    unanswered_calls,
)
from llm_agent.outcome import ModelSpend, Outcome, Spent, UnknownOperation
from llm_agent.ports import TokenCounter
from llm_agent.prompt import assemble, env_block, instructions_from_files, tool_docs
from llm_agent.token_count import HeuristicCounter, UsageCounter
from llm_agent.tool_operation import Idempotency, OperationState, ToolOperation


def messages(message: Message, request: ToolRequest, answer: ToolAnswer) -> None:
    assert_type(Message.system("s"), Message)
    assert_type(Message.user([{"type": "text", "text": "x"}]), Message)
    assert_type(Message.assistant("x", [request]), Message)
    assert_type(Message.tool("call_1", "x"), Message)
    assert_type(message.role, Literal["user", "assistant", "system", "tool"])
    assert_type(message.content, str | tuple[Mapping[str, Any], ...])
    assert_type(message.text, str)
    assert_type(message.tool_calls, tuple[ToolRequest, ...])
    assert_type(message.tool_call_id, str | None)
    assert_type(message.is_sticky, bool)
    assert_type(message.depth, int | None)
    assert_type(message.to_wire(), dict[str, Any])
    assert_type(message.wire_json, bytes)
    assert_type(message.digest, str)
    assert_type(message_digest(message), str)
    assert_type(messages_digest([message]), str)
    assert_type(unanswered_calls([message]), list[ToolRequest])
    assert_type(request.arguments, str | Mapping[str, Any] | None)
    assert_type(request.args, dict[str, Any])
    assert_type(request.is_readable, bool)
    assert_type(answer.content, str)
    assert_type(answer.is_error, bool)


def streams(delta: Delta, reply: Reply, usage: Usage) -> None:
    assert_type(delta.tool_calls, tuple[ToolRequest, ...])
    assert_type(delta.usage, Usage | None)
    assert_type(reply.usage, Usage)
    assert_type(reply.finish_reason, str | None)
    assert_type(usage.prompt_tokens, int | None)
    assert_type(usage.cost, float | None)
    assert_type(usage.billed_total, int | None)


def canonical(value: object) -> None:
    assert_type(canonical_json(value), str)
    assert_type(canonical_arguments(value), str)
    assert_type(data_digest(value), str)


def errors(error: BackendError, not_completed: RunNotCompleted, unanswered: UnansweredCalls) -> None:
    assert_type(error.error_class, ErrorClass)
    assert_type(error.status, int | None)
    assert_type(error.retry_after, float | None)
    assert_type(not_completed.outcome, Outcome)
    assert_type(unanswered.calls, tuple[str, ...])


def envelope(event: events.Event) -> None:
    assert_type(event.run_id, str | None)
    assert_type(event.seq, int | None)
    assert_type(event.ts, datetime)
    assert_type(event.is_terminal, bool)
    assert_type(event.to_dict(), dict[str, Any])
    assert_type(events.from_dict({}), events.Event)


def terminal(event: events.Terminal) -> str:
    """A match over a union of events is seen to be complete."""
    match event:
        case events.RunCompleted(final=final):
            assert_type(final, str)
            assert_type(event.kind, Literal["run-completed"])
            return final
        case events.RunFailed(error=error, attempts=attempts):
            assert_type(attempts, tuple[events.AttemptRecord, ...])
            return error
        case events.RunCancelled(reason=reason):
            assert_type(reason, str | None)
            return reason or ""
        case _:
            assert_never(event)


def one_of_many(event: events.Event) -> None:
    match event:
        case events.Token(text=text):
            assert_type(text, str)
        case events.AssistantMessage(message=message):
            assert_type(message, Message)
        case events.AttemptFailed(disposition=disposition, usage=usage):
            assert_type(disposition, Literal["retry-same", "advance", "abort"])
            assert_type(usage, Usage | None)
        case events.ToolAbandoned(reason=reason, dispatched=dispatched):
            assert_type(reason, Literal["cancelled", "deadline", "budget-exhausted"])
            assert_type(dispatched, bool)
        case events.ToolCall(arguments=arguments):
            assert_type(arguments, str | Mapping[str, Any] | None)
        case _:
            pass


def outcome(ended: Outcome) -> None:
    assert_type(ended.status, Literal["completed", "failed", "cancelled"])
    assert_type(ended.ok, bool)
    assert_type(ended.final, str)
    assert_type(ended.messages, tuple[Message, ...])
    assert_type(ended.error, str | None)
    assert_type(ended.exception, BaseException | None)
    assert_type(ended.attempts, tuple[events.AttemptRecord, ...])
    assert_type(ended.spent, Spent)
    assert_type(ended.spent.by_model, Mapping[str, ModelSpend])
    assert_type(ended.unknown, tuple[UnknownOperation, ...])
    assert_type(ended.unknown[0].idempotency, Idempotency)
    assert_type(ended.safe_to_retry, bool)
    assert_type(ended.undelivered, tuple[str, ...])
    assert_type(ended.raise_for_failure(), Outcome)
    assert_type(ended.to_dict(), dict[str, Any])


def operations(op: ToolOperation) -> None:
    assert_type(op.state, OperationState)
    assert_type(op.dispatch(0.0), bool)
    assert_type(op.settle("completed", 0.0), bool)
    assert_type(op.abandon(), bool)
    assert_type(op.working_seconds(0.0), float)
    assert_type(op.duration, float | None)


def cancelling(token: CancelToken) -> None:
    assert_type(token.cancel("user"), bool)
    assert_type(token.reason, str | None)
    assert_type(token.wait(1.0), bool)


def counters(message: Message) -> None:
    counter: TokenCounter = HeuristicCounter(chars_per_token=3.5)
    counter = UsageCounter(counter)
    assert_type(counter.count_messages([message]), int)
    assert_type(counter.count_text("x"), int)
    assert_type(UsageCounter().calibration(), dict[str, Any])
    assert_type(UsageCounter().last_completion_tokens, int | None)


def prompts() -> None:
    assert_type(assemble("You are.", [env_block({"shell": "zsh"}), tool_docs([]), None]), Message)
    assert_type(instructions_from_files(["AGENTS.md"]), str)
