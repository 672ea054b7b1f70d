"""Sizes by a rule of thumb, to the token."""

from __future__ import annotations

import math
from typing import Any

import pytest

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, ToolRequest
from llm_agent.token_count import TOKENS_PER_PART, HeuristicCounter

OVERHEAD = 8
TOOLS = [{"type": "function", "function": {"name": "read_file"}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def user(characters: int) -> Message:
    return Message.user("x" * characters)


@pytest.mark.parametrize(
    ("messages", "tokens"),
    [([], 0), ([user(8)], 10), ([user(1)], 9), ([user(0)], 8), ([user(1)] * 2, 18), ([user(100)] * 40, 40 * 33)],
    ids=range(6),
)
def test_each_message_is_rounded_up_by_itself(messages: list[Message], tokens: int) -> None:
    """An overhead each, and a quarter of its characters."""
    assert HeuristicCounter().count_messages(messages) == tokens


def test_calls_weigh_as_their_compact_json() -> None:
    """What was sent counts, whether or not there is text beside it."""
    call = ToolRequest("call_1", "read_file", '{"path": "a"}')
    weight = len(codec.dumps([call.to_dict()]).decode())

    assert HeuristicCounter().count_messages([Message.assistant("", [call])]) == OVERHEAD + math.ceil(weight / 4)
    assert HeuristicCounter().count_messages([Message.assistant("abcd", [call])]) == OVERHEAD + math.ceil(
        (weight + 4) / 4
    )


def test_two_calls_weigh_more_than_one() -> None:
    """Each is sent."""
    call = ToolRequest("call_1", "read_file", {"path": "a"})
    count = HeuristicCounter().count_messages

    assert count([Message.assistant("", [call, call])]) > count([Message.assistant("", [call])])


@pytest.mark.parametrize("part", [IMAGE, {"type": "input_audio", "input_audio": {"data": "AA=="}}, {}])
def test_a_part_without_text_weighs_a_constant(part: dict[str, Any]) -> None:
    """The length of a data URL says nothing about what is billed."""
    message = Message.user([{"type": "text", "text": "12345678"}, part, part])

    assert HeuristicCounter().count_messages([message]) == OVERHEAD + 2 + 2 * TOKENS_PER_PART


@pytest.mark.parametrize(("text", "size"), [("日本語だ", 12), ("größer", 8), ("🙂", 4), ("\ud800", 3)], ids=ascii)
def test_bytes_are_weighed_and_not_characters(text: str, size: int) -> None:
    """A Chinese or Japanese character is three quarters of a token; half a character weighs too."""
    assert HeuristicCounter(per_message_overhead=0, chars_per_token=1).count_text(text) == size


def test_a_message_of_parts_weighs_as_its_text() -> None:
    """How text is packed costs nothing."""
    parts = [{"type": "text", "text": "日本"}, {"type": "text", "text": "語だ"}]
    counter = HeuristicCounter()

    assert counter.count_messages([Message.user("日本語だ")]) == counter.count_messages([Message.user(parts)])


def test_each_counter_may_have_its_own_weight_of_a_part() -> None:
    """Vendors bill images by rules of their own."""
    counter = HeuristicCounter(tokens_per_part=85)

    assert counter.count_messages([Message.user([IMAGE, IMAGE])]) == OVERHEAD + 2 * 85


@pytest.mark.parametrize("text", ["", "x", "x" * 4001])
def test_a_text_is_one_system_message(text: str) -> None:
    """Empty text costs the overhead."""
    counter = HeuristicCounter()

    assert counter.count_text(text) == counter.count_messages([Message.system(text)])


def test_a_request_is_its_messages_and_the_json_of_its_tools() -> None:
    """No tools, nothing added."""
    counter = HeuristicCounter()
    messages = [user(10)]

    assert counter.count_request(messages, []) == counter.count_messages(messages)
    assert counter.count_request(messages, TOOLS) == counter.count_messages(messages) + counter.count_text(
        codec.dumps(TOOLS).decode()
    )


def test_the_context_of_a_request_weighs_too() -> None:
    """It is sent beside the conversation."""
    counter = HeuristicCounter()

    assert counter.count_request([user(8)], [], [user(100)]) == 10 + 33


def test_both_knobs_are_honoured() -> None:
    """Characters per token, tokens per message."""
    counter = HeuristicCounter(chars_per_token=2.5, per_message_overhead=0)

    assert counter.count_messages([user(5), user(6)]) == 2 + 3


@pytest.mark.parametrize(
    "options",
    [
        {"chars_per_token": 0},
        {"chars_per_token": -1},
        {"chars_per_token": math.nan},
        {"chars_per_token": math.inf},
        {"chars_per_token": "4"},
        {"chars_per_token": True},
        {"per_message_overhead": -1},
        {"per_message_overhead": 1.5},
        {"per_message_overhead": None},
        {"tokens_per_part": -1},
        {"tokens_per_part": True},
    ],
    ids=str,
)
def test_knobs_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """The message names the option and what came."""
    (name,) = options

    with pytest.raises(ConfigError, match=f"HeuristicCounter: {name} must be"):
        HeuristicCounter(**options)


def test_reports_and_invalidation_are_harmless() -> None:
    """A rule of thumb learns nothing and forgets nothing."""
    counter = HeuristicCounter()

    counter.record_usage(prompt_tokens=9_999, message_count=1)
    counter.invalidate()

    assert counter.count_messages([user(8)]) == 10
