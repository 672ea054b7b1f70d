"""What cannot work is refused when the loop is made, by name."""

from __future__ import annotations

from typing import Any

import pytest

from llm_agent.errors import ConfigError, UnansweredCalls
from llm_agent.loop.loop import Loop
from llm_agent.messages import Message, ToolRequest
from llm_agent.testing import ScriptedBackend, ScriptedProvider


class NoSession:
    """A transcript without half of what is needed."""

    messages: tuple[Message, ...] = ()


class DeafCounter:
    """A counter that cannot be told to forget."""

    def count_text(self, text: str) -> int:
        return 0

    def count_messages(self, messages: object) -> int:
        return 0

    def count_request(self, messages: object, tools: object) -> int:
        return 0

    def record_usage(self, **report: object) -> None: ...


BACKEND = ScriptedBackend([])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"backends": []}, "backends"),
        ({"backends": [BACKEND, object()]}, r"backends\[1\]"),
        ({"backends": ScriptedBackend}, r"backends\[0\]"),
        ({"provider": object()}, "execute_tool_calls|tools_for_llm"),
        ({"provider": ScriptedProvider}, "Loop: provider: ScriptedProvider is a class; hand over an object of it"),
        ({"provider": ScriptedProvider({}), "tools": []}, "not both"),
        ({"session": NoSession()}, "append_message"),
        ({"counter": object()}, "counter"),
        ({"counter": DeafCounter()}, r"invalidate\(\)"),
        ({"context_budget": 0}, "context_budget"),
        ({"max_tool_rounds": -1}, "max_tool_rounds"),
        ({"max_tool_calls": 1.5}, "max_tool_calls"),
        ({"max_identical_calls": 0}, "max_identical_calls"),
        ({"identical_call_exempt": [{"tool": "a"}]}, "identical_call_exempt"),
        ({"identical_call_exempt": [" "]}, "identical_call_exempt"),
        ({"max_retries": 0}, "max_retries"),
        ({"backoff_cap": 0}, "backoff_cap"),
        ({"round_trip_timeout": 0}, "round_trip_timeout"),
        ({"round_trip_timeout": float("nan")}, "round_trip_timeout"),
        ({"attempt_timeout": -1}, "attempt_timeout"),
        ({"tool_deadline": 0}, "tool_deadline"),
        ({"tool_deadline": {"a": 0}}, "tool_deadline"),
        ({"tool_deadline": {"": 1}}, "tool_deadline"),
        ({"max_abandoned_calls": 0}, "max_abandoned_calls"),
        ({"idempotency_rules": 5}, "idempotency_rules"),
        ({"idempotency_rules": ["a"]}, r"idempotency_rules\[0\]"),
        ({"idempotency_rules": [{"tool": "", "idempotency": "unknown"}]}, r"idempotency_rules\[0\]"),
        ({"idempotency_rules": [{"tool": "a", "idempotency": "maybe"}]}, r"idempotency_rules\[0\]"),
        ({"concurrent_tools": "a*"}, "concurrent_tools"),
        ({"concurrent_tools": 5}, "concurrent_tools"),
        ({"concurrent_tools": [{"tool": "a"}]}, "concurrent_tools"),
        ({"steer_source": 3}, "steer_source"),
        ({"steer_source": lambda needed: []}, "steer_source"),
        ({"on_ask": 3}, "on_ask"),
        ({"system_prompt": Message.user("x")}, "system_prompt"),
        ({"system_prompt": "  "}, "identity|prompt"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    """In the caller's thread, before anything has started."""
    with pytest.raises(ConfigError, match=named):
        Loop(**({"backends": BACKEND} | options))


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], ConfigError),
        ("  ", ConfigError),
        ([{"role": "user", "content": "x"}], ConfigError),
        ([Message.user("x"), Message.assistant("", [ToolRequest("c", "t")])], UnansweredCalls),
    ],
)
def test_messages_that_cannot_run_are_refused(messages: Any, error: type[Exception]) -> None:
    """Nothing is started, and the loop stays free."""
    loop = Loop(ScriptedBackend(["ok"]))

    with pytest.raises(error):
        loop.run(messages)

    assert loop.run("go").result(5).ok


def test_a_run_timeout_must_be_a_time() -> None:
    """0 is no way to say never."""
    with pytest.raises(ConfigError, match="timeout"):
        Loop(ScriptedBackend([])).run("go", timeout=0)


def test_resume_needs_a_session() -> None:
    """There is nothing to go on with."""
    with pytest.raises(ConfigError, match="session"):
        Loop(ScriptedBackend([])).resume()
