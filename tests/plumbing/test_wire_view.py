"""What of a conversation is sent: always something a server accepts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_agent.messages import Message, ToolRequest, unanswered_calls
from llm_agent.wire_view import WireView, unique_id


def turn(*ids: str) -> Message:
    return Message.assistant("", [ToolRequest(call_id, "t", "{}") for call_id in ids])


def test_a_valid_conversation_is_sent_as_it_is() -> None:
    """Nothing is copied, renamed or dropped without need."""
    messages = [Message.user("hi"), turn("a", "b"), Message.tool("b", "2"), Message.tool("a", "1"), Message.user("x")]

    sent = WireView.of(messages).messages

    assert all(ours is theirs for ours, theirs in zip(sent, messages, strict=True))


def test_an_empty_assistant_turn_is_left_out() -> None:
    """Neither text nor calls: no server accepts it."""
    view = WireView.of([Message.user("hi"), Message.assistant(""), Message.user("again")])

    assert [message.role for message in view.messages] == ["user", "user"]


def test_an_orphan_result_is_left_out_and_named() -> None:
    """A result without its call would be refused for ever."""
    orphan = Message.tool("gone", "result")

    view = WireView.of([Message.user("hi"), orphan])

    assert view.orphans == [orphan]
    assert [message.role for message in view.messages] == ["user"]


def test_a_repeated_id_is_renamed_with_its_result() -> None:
    """Servers that number every call the same must not brick the conversation."""
    view = WireView.of([turn("x"), Message.tool("x", "1"), turn("x"), Message.tool("x", "2")])

    calls = [message.tool_calls[0].id for message in view.messages if message.tool_calls]
    results = [message.tool_call_id for message in view.messages if message.role == "tool"]
    assert calls == results == ["x", "x_2"]


def test_equal_ids_in_one_turn_are_paired_in_order() -> None:
    """Position decides where the id cannot."""
    view = WireView.of([turn("x", "x"), Message.tool("x", "first"), Message.tool("x", "second")])

    assert [(m.tool_call_id, m.text) for m in view.messages if m.role == "tool"] == [("x", "first"), ("x_2", "second")]


def test_open_calls_are_told() -> None:
    """What the last turn asked for and nobody answered."""
    assert WireView.of([turn("a", "b"), Message.tool("a", "1")]).open_calls == ["b"]


def test_unique_ids_are_never_empty() -> None:
    """A model that sends no ids gets some."""
    taken: set[str] = set()

    assert [unique_id("", taken) for _ in range(3)] == ["call_1", "call_2", "call_3"]


_ids = st.sampled_from(["", "a", "b", "a_2"])
_messages = st.one_of(
    st.builds(Message.user, st.text(min_size=1, max_size=3)),
    st.builds(Message.assistant, st.text(max_size=2), st.lists(st.builds(ToolRequest, _ids, st.just("t")), max_size=3)),
    st.builds(Message.tool, _ids, st.just("r")),
)


@given(st.lists(_messages, max_size=12))
def test_what_is_sent_has_unique_ids_and_no_orphans(messages: list[Message]) -> None:
    """For any history: ids are unique, results stand behind their calls, no turn is empty."""
    sent = WireView.of(messages).messages

    ids = [call.id for message in sent for call in message.tool_calls]
    results = [message.tool_call_id for message in sent if message.role == "tool"]
    assert len(ids) == len(set(ids))
    assert "" not in ids
    assert len(results) == len(set(results))
    assert set(results) <= set(ids)
    assert len(unanswered_calls(sent)) + len(results) == len(ids)
    assert not any(message.is_empty_turn for message in sent)
