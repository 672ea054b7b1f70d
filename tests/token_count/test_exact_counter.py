"""Sizes counted by somebody who knows; what they refuse is estimated, and nothing raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, ToolRequest
from llm_agent.ports import TokenCounter
from llm_agent.token_count import TOKENS_PER_PART, ExactCounter, HeuristicCounter, UsageCounter

TOOLS = [{"type": "function", "function": {"name": "read_file"}}]
SENT = [Message.system("be brief"), Message.user("read a")]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
ESTIMATE = HeuristicCounter()


class Conversations:
    """Counts a hundred a message, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    def get_conversation_count(self, messages: Sequence[Message]) -> Any:
        self.asked.append(list(messages))
        return 100 * len(messages)


class Requests(Conversations):
    """Counts a thousand a declaration too."""

    def get_request_count(self, messages: Sequence[Message], tools: Sequence[Any]) -> Any:
        return 100 * len(messages) + 1_000 * len(tools)


# -- an object that counts --------------------------------------------------------------------


def test_the_object_is_given_the_whole_conversation() -> None:
    """A template needs all of it."""
    source = Conversations()

    assert ExactCounter(source).count_messages(SENT) == 200
    assert source.asked == [SENT]


def test_a_text_is_one_system_message() -> None:
    """As it would be sent."""
    source = Conversations()

    assert ExactCounter(source).count_text("abc") == 100
    assert source.asked == [[Message.system("abc")]]


def test_no_messages_are_no_tokens() -> None:
    """Nobody is asked about nothing."""
    source = Conversations()

    assert ExactCounter(source).count_messages([]) == 0
    assert source.asked == []


def test_a_request_is_counted_whole_where_the_object_can() -> None:
    """Messages, context and declarations together."""
    assert ExactCounter(Requests()).count_request(SENT, TOOLS, [Message.user("now")]) == 1_300


def test_a_request_is_the_sum_of_its_parts_where_the_object_cannot() -> None:
    """Declarations as the text of a system message."""
    source = Conversations()

    assert ExactCounter(source).count_request(SENT, TOOLS, [Message.user("now")]) == 200 + 100 + 100
    assert [Message.system(codec.dumps(TOOLS).decode())] in source.asked
    assert ExactCounter(source).count_request(SENT, []) == 200


@pytest.mark.parametrize("source", [None, object(), Conversations, "get_conversation_count"])
def test_what_cannot_count_is_refused(source: Any) -> None:
    """A class in place of its instance too."""
    with pytest.raises(ConfigError, match="ExactCounter: counter must be an object with get_conversation_count"):
        ExactCounter(source)


def test_what_is_no_counter_is_refused_as_fallback() -> None:
    """The message names the option."""
    with pytest.raises(ConfigError, match="ExactCounter: fallback must be a counter with count_messages"):
        ExactCounter(Conversations(), fallback=object())  # type: ignore[arg-type]


class Answering(Requests):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def get_conversation_count(self, messages: Sequence[Message]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def get_request_count(self, messages: Sequence[Message], tools: Sequence[Any]) -> Any:
        return self.get_conversation_count(messages)


@pytest.mark.parametrize("answer", [ValueError("no"), None, -1, True, 1.5, "9"], ids=repr)
def test_a_refusal_is_estimated(answer: Any) -> None:
    """What raises, or is no count, is as good as no answer."""
    counter = ExactCounter(Answering(answer))

    assert counter.count_messages(SENT) == ESTIMATE.count_messages(SENT)
    assert counter.count_text("abc") == ESTIMATE.count_text("abc")
    assert counter.count_request(SENT, TOOLS, SENT) == ESTIMATE.count_request(SENT, TOOLS, SENT)


def test_reports_and_invalidation_are_harmless() -> None:
    """Who knows has nothing to learn."""
    counter: TokenCounter = ExactCounter(Conversations())

    counter.record_usage(prompt_tokens=9_999, message_count=1)
    counter.invalidate()

    assert counter.count_messages(SENT) == 200


def test_an_exact_count_can_estimate_the_tail_of_a_bill() -> None:
    """It is a counter like any other."""
    counter = UsageCounter(ExactCounter(Conversations()))
    counter.record_usage(prompt_tokens=7, message_count=1)

    assert counter.count_messages(SENT) == 107


# -- a tokenizer and a template -----------------------------------------------------------------


def plain(messages: list[dict[str, Any]], tools: list[Any]) -> str:
    """One word for the beginning, one for each declaration, then role and content."""
    return " ".join(["<s>", *("tool" for _ in tools), *(f"{one['role']} {one['content']}" for one in messages)])


class Words:
    def encode(self, text: str) -> list[str]:
        return text.split()


@pytest.mark.parametrize("encode", [str.split, Words()], ids=["function", "object"])
def test_a_request_is_rendered_and_encoded(encode: Any) -> None:
    """By a function, or by an object that has one."""
    counter = ExactCounter.from_tokenizer(encode, plain)

    assert counter.count_messages(SENT) == 1 + 3 + 3
    assert counter.count_request(SENT, TOOLS, [Message.user("now")]) == 1 + 1 + 3 + 3 + 2


def test_text_parts_are_rendered_and_others_weigh_a_constant() -> None:
    """A data URL is never encoded; the weight can be chosen."""
    messages = [Message.user([{"type": "text", "text": "look "}, IMAGE, {"type": "text", "text": "here"}])]

    assert ExactCounter.from_tokenizer(str.split, plain).count_messages(messages) == 4 + TOKENS_PER_PART
    assert ExactCounter.from_tokenizer(str.split, plain, tokens_per_part=85).count_messages(messages) == 4 + 85


def test_the_weight_of_a_part_holds_for_the_estimate_too() -> None:
    """One backend, one weight."""

    def refuse(messages: list[dict[str, Any]], tools: list[Any]) -> str:
        raise ValueError("no")

    counter = ExactCounter.from_tokenizer(str.split, refuse, tokens_per_part=85)

    assert counter.count_messages([Message.user([IMAGE])]) == 8 + 85


CALLING = [Message.user("go"), Message.assistant("", [ToolRequest("c", "n", '{"path": "a"}')]), Message.tool("c", "b")]


def test_arguments_are_a_mapping_for_a_template_that_takes_one() -> None:
    """As most templates expect."""
    seen: list[Any] = []

    def render(messages: list[dict[str, Any]], tools: list[Any]) -> str:
        seen.append(messages[1]["tool_calls"][0]["function"]["arguments"])
        return "a b"

    assert ExactCounter.from_tokenizer(str.split, render).count_messages(CALLING) == 2
    assert seen == [{"path": "a"}]


def test_arguments_are_text_for_a_template_that_joins_them() -> None:
    """Found out once: a mapping cannot be joined to text."""
    seen: list[Any] = []

    def render(messages: list[dict[str, Any]], tools: list[Any]) -> str:
        arguments = messages[1]["tool_calls"][0]["function"]["arguments"]
        seen.append(type(arguments))
        return "call " + arguments

    counter = ExactCounter.from_tokenizer(str.split, render)

    assert [counter.count_messages(CALLING), counter.count_messages(CALLING)] == [3, 3]
    assert seen == [dict, str, str]


def test_a_template_that_refuses_a_system_message_at_the_end_still_counts_the_rest() -> None:
    """The context is then counted by itself."""

    def render(messages: list[dict[str, Any]], tools: list[Any]) -> str:
        if any(one["role"] == "system" for one in messages[1:]):
            raise ValueError("system first")
        return plain(messages, tools)

    counter = ExactCounter.from_tokenizer(str.split, render)

    assert counter.count_request(SENT, TOOLS, [Message.system("now")]) == (1 + 1 + 3 + 3) + (1 + 2)


@pytest.mark.parametrize(
    ("option", "values"), [("encode", (4, plain)), ("encode", (Words, plain)), ("chat_template", (str.split, "text"))]
)
def test_what_cannot_be_called_is_refused(option: str, values: tuple[Any, Any]) -> None:
    """The text of a template belongs to a tokenizer file."""
    with pytest.raises(ConfigError, match=f"ExactCounter: {option} must be callable"):
        ExactCounter.from_tokenizer(*values)


def test_a_weight_that_cannot_be_is_refused() -> None:
    """It is a number of tokens."""
    with pytest.raises(ConfigError, match="tokens_per_part must be an int, 0 or more, got -1"):
        ExactCounter.from_tokenizer(str.split, plain, tokens_per_part=-1)
