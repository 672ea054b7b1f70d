"""What vendors refuse is refused, with the place and the reason; what they accept is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.messages import Message, ToolRequest
from llm_agent.testing import check_conversation

USER: dict[str, Any] = {"role": "user", "content": "go"}


def turn(*ids: str, **changes: Any) -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **changes}


def answer(id: str, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def one_call(**function: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}", **function}}
    return turn(tool_calls=[call])


SOUND: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "be kind"}, {"role": "developer", "content": [{"type": "text", "text": "x"}]}, USER],
    [USER, {"role": "assistant", "content": "hi"}, USER],
    [USER, turn("1", "2"), answer("2"), answer("1"), {"role": "assistant", "content": "done"}],
    [USER, turn("1", content="let me see"), answer("1", ""), turn("2"), answer("2", [{"type": "text", "text": "x"}])],
    [USER, {"role": "assistant", "content": None, "refusal": "no"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    [USER, {"role": "assistant", "content": " ", "reasoning_content": "hm"}],
    [USER, one_call(arguments='{"a": [1, {"b": null}]}'), answer("1")],
]


@pytest.mark.parametrize("messages", SOUND)
def test_a_sound_conversation_is_accepted(messages: list[dict[str, Any]]) -> None:
    """What every vendor takes passes."""
    check_conversation(messages)


UNSOUND: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "messages: expected at least one message"),
    "no object": (["hi"], r"messages.\[0\]: expected an object, got str"),
    "unknown role": ([{"role": "bot", "content": "x"}], r"messages.\[0\].role: expected one of"),
    "a leaked flag": ([{**USER, "sticky": True}], r"messages.\[0\]: additional properties .* 'sticky'"),
    "no content": ([{"role": "user"}], r"messages.\[0\].content: expected a string or"),
    "content null": ([{"role": "system", "content": None}], r"content: .* got null"),
    "content empty parts": ([{"role": "user", "content": []}], r"content: .* got an empty array"),
    "content object": ([{"role": "user", "content": {"a": 1}}], r"content: .* got dict"),
    "unknown part": ([{"role": "user", "content": [{"type": "video"}]}], r"content.\[0\].type: .* got 'video'"),
    "image from the system": ([{"role": "system", "content": [{"type": "image_url"}]}], "a system message may hold"),
    "part without its key": ([{"role": "user", "content": [{"type": "text"}]}], r"\[0\].text: .* got null"),
    "part that is no object": ([{"role": "user", "content": ["x"]}], r"content.\[0\].type"),
    "lone surrogate": ([{"role": "user", "content": "\ud800"}], "lone surrogates"),
    "empty turn": ([USER, {"role": "assistant", "content": ""}], r"messages.\[1\]: an assistant message must hold"),
    "null turn": ([USER, {"role": "assistant", "content": None}], "must hold content or tool calls, got neither"),
    "no calls": ([USER, turn()], r"tool_calls: expected a non-empty array, got an empty array"),
    "calls of a user": ([{**USER, "tool_calls": []}], "only an assistant message may hold calls"),
    "call id of a user": ([{**USER, "tool_call_id": "1"}], "only a tool message may hold one"),
    "call that is no object": ([USER, turn(tool_calls=["x"])], r"tool_calls.\[0\]: expected an object"),
    "call without id": ([USER, turn(""), answer("")], r"tool_calls.\[0\].id: expected a non-empty string"),
    "call of another type": ([USER, turn(tool_calls=[{"id": "1", "type": "x"}])], r"type: expected 'function'"),
    "call without function": ([USER, turn(tool_calls=[{"id": "1", "type": "function"}])], r"function: expected an"),
    "illegal name": ([USER, one_call(name="a b"), answer("1")], r"function.name: expected a string that matches"),
    "long name": ([USER, one_call(name="a" * 65), answer("1")], r"function.name"),
    "arguments as object": ([USER, one_call(arguments={}), answer("1")], r"arguments: expected a string, got"),
    "arguments broken": ([USER, one_call(arguments='{"a":'), answer("1")], r"expected the text of a JSON object"),
    "arguments a list": ([USER, one_call(arguments="[1]"), answer("1")], r"JSON object, got list"),
    "unanswered call": ([USER, turn("1", "2"), answer("1"), USER], r"messages.\[3\]: .* without an answer: 2"),
    "unanswered at the end": ([USER, turn("1")], r"messages.\[1\]: .* without an answer: 1"),
    "answered twice": ([USER, turn("1"), answer("1"), answer("1")], r"messages.\[3\].tool_call_id: .* second time"),
    "answered late": ([USER, turn("1"), answer("1"), USER, answer("1")], "not directly after its turn"),
    "orphan answer": ([USER, answer("1")], r"messages.\[1\].tool_call_id: .* turn before it, got '1'"),
    "answer of an unknown call": ([USER, turn("1"), answer("x"), answer("1")], "got 'x'"),
    "id twice in a turn": ([USER, turn("1", "1"), answer("1"), answer("1")], "unique within the conversation, got '1'"),
    "id used again": ([USER, turn("1"), answer("1"), turn("1"), answer("1")], r"messages.\[3\].tool_calls.\[0\].id"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSOUND)
def test_an_unsound_conversation_is_refused(case: str) -> None:
    """The error names the place, what was expected, and what came."""
    messages, complaint = UNSOUND[case]

    with pytest.raises(AssertionError, match=complaint):
        check_conversation(messages)


def test_messages_are_judged_by_their_wire_form() -> None:
    """What the engine repairs for the wire is sound, however the model spelled it."""
    request = ToolRequest("1", "a tool!", "not json")

    check_conversation([Message.user("go"), Message.assistant("", [request]), Message.tool("1", "ok")])


@given(st.data())
def test_losing_doubling_or_moving_a_tool_message_is_always_refused(data: st.DataObject) -> None:
    """Every answer counts, at its place, once."""
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    messages: list[dict[str, Any]] = [USER]
    for number, size in enumerate(sizes):
        ids = [f"{number}-{index}" for index in range(size)]
        messages += [turn(*ids), *(answer(one) for one in data.draw(st.permutations(ids)))]
    check_conversation(messages)
    place = data.draw(st.sampled_from([at for at, message in enumerate(messages) if message["role"] == "tool"]))
    mutation = data.draw(st.sampled_from(["lose", "double", "move to the front"]))

    victim = messages.pop(place)
    match mutation:
        case "double":
            messages[place:place] = [victim, victim]
        case "move to the front":
            messages.insert(0, victim)

    with pytest.raises(AssertionError):
        check_conversation(messages)
