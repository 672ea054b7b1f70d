"""The values of a conversation: kept as sent, sound by construction, repaired for the wire."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.messages import (
    NAMELESS_TOOL,
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

ANY_TEXT = st.text(st.characters(), max_size=20)  # lone surrogates included
JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(ANY_TEXT, inner, max_size=4)),
    max_leaves=8,
)
ARGUMENTS = st.one_of(
    st.none(),
    ANY_TEXT,
    st.dictionaries(ANY_TEXT, JSON_VALUE, max_size=4),
    JSON_VALUE.map(json.dumps),  # ASCII escapes, NaN, lists and bare values included
    st.dictionaries(ANY_TEXT, JSON_VALUE, max_size=4).map(json.dumps),
)
# Most calls a server sends have this shape, with one part of it gone wrong.
RAW_CALL = st.one_of(
    JSON_VALUE,
    st.fixed_dictionaries({"id": JSON_VALUE, "function": JSON_VALUE}),
    st.fixed_dictionaries(
        {"id": JSON_VALUE, "function": st.fixed_dictionaries({"name": JSON_VALUE, "arguments": JSON_VALUE})}
    ),
)
LEGAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def request(arguments: Any = None, name: str = "read_file") -> ToolRequest:
    return ToolRequest("call_1", name, arguments)


def nested(levels: int) -> Any:
    value: Any = "the bottom"
    for _ in range(levels):
        value = {"a": value}
    return value


# -- calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [None, "", "  \n", "null", " null ", "{}", {}])
def test_empty_arguments_are_an_empty_object(arguments: Any) -> None:
    """Models spell "no arguments" in many ways."""
    assert request(arguments).args == {}
    assert request(arguments).to_wire()["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"path": ', "not valid JSON"),
        ("read it", "not valid JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a":1}{"b":2}', "not valid JSON"),
        ("{" * 100_000, "not valid JSON"),
        ('{"a":' * 50_000, "nested too deeply"),
        ("[1]", "must be a JSON object, got a list"),
        ("true", "must be a JSON object, got a boolean"),
        ("7", "must be a JSON object, got a number"),
        ('"x"', "must be a JSON object, got a string"),
    ],
    ids=range(10),
)
def test_arguments_that_are_no_object_say_what_they_are(arguments: str, problem: str) -> None:
    """The engine answers such a call with the reason; no provider sees it."""
    with pytest.raises(ValueError, match=problem):
        request(arguments).args
    assert not request(arguments).is_readable


@pytest.mark.parametrize("arguments", ['{"list": [1], "id": 123456789012345678901}', {"list": [1], "id": 2**70}])
def test_changing_args_changes_nothing_for_the_next_reader(arguments: Any) -> None:
    """A provider that pops from `args` damages neither the call nor what servers are told."""
    call = request(arguments)
    before = (call.to_wire(), call.to_dict(), call.args)

    call.args["list"].append(2)
    call.args.clear()

    assert (call.to_wire(), call.to_dict(), call.args) == before


def test_defaults_put_into_empty_args_do_not_reach_the_wire() -> None:
    """The wire form never turns into the blank text the model sent."""
    call = request("")

    call.args.setdefault("path", ".")

    assert call.to_wire()["function"]["arguments"] == "{}"


def test_a_call_shares_no_container_with_what_it_came_from_or_went_to() -> None:
    """Frozen means frozen, also one level down."""
    raw = {"path": ["a"]}
    call = request(raw)

    raw["path"].append("b")
    call.to_dict()["function"]["arguments"]["path"].append("c")

    assert call.arguments == {"path": ["a"]}


@pytest.mark.parametrize(("name", "is_readable"), [("read_file", True), ("", False)])
def test_a_call_without_a_name_cannot_be_asked_of_a_provider(name: str, is_readable: bool) -> None:
    """Neither can one whose arguments are no object."""
    assert request("{}", name).is_readable is is_readable


def test_to_dict_keeps_everything_as_sent() -> None:
    """The event and the transcript show what the model wrote."""
    assert request(' {"b": 1}', "no such name!").to_dict() == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "no such name!", "arguments": ' {"b": 1}'},
    }


def test_to_dict_leaves_out_arguments_that_were_not_sent() -> None:
    """Absent is not null."""
    assert "arguments" not in request(None).to_dict()["function"]


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("read_file", "read_file"),
        ("a.b c", "a_b_c"),
        ("x" * 70, "x" * 64),
        ("", NAMELESS_TOOL),
        ("日本", NAMELESS_TOOL),
        ("..", NAMELESS_TOOL),
    ],
)
def test_the_wire_name_is_one_that_every_vendor_accepts(name: str, wire: str) -> None:
    """An illegal character becomes an underscore; where nothing else is left, a placeholder."""
    assert request(name=name).to_wire()["function"]["name"] == wire


def test_the_wire_keeps_the_spelling_of_sound_arguments() -> None:
    """Prompt caches depend on the bytes."""
    assert request(' {"b": 1.0, "a": "\\u00e9"}').to_wire()["function"]["arguments"] == ' {"b": 1.0, "a": "\\u00e9"}'


def test_the_wire_has_no_escape_that_strict_parsers_refuse() -> None:
    """A lone surrogate hides in an escape; the object is written anew without it."""
    assert request(r'{"a": "\ud800"}').to_wire()["function"]["arguments"] == '{"a":"\ufffd"}'


def test_the_wire_carries_unreadable_arguments_inside_an_object() -> None:
    """The model can see what it sent, and the server gets an object."""
    wire = request('{"path": ').to_wire()["function"]["arguments"]

    assert json.loads(wire) == {"unreadable_arguments": '{"path": '}


def assert_valid_on_the_wire(wire: dict[str, Any]) -> None:
    assert wire["type"] == "function"
    assert LEGAL_NAME.fullmatch(wire["function"]["name"])
    assert isinstance(orjson.loads(wire["function"]["arguments"]), dict)
    orjson.dumps(wire)


@given(ANY_TEXT, ANY_TEXT, ARGUMENTS)
def test_any_call_is_valid_on_the_wire_and_stays_so(call_id: str, name: str, arguments: Any) -> None:
    """Legal name, arguments that are the text of an object, strict UTF-8; repairing again changes nothing."""
    wire = ToolRequest(call_id, name, arguments).to_wire()

    assert_valid_on_the_wire(wire)
    assert ToolRequest.from_raw(wire).to_wire() == wire


@given(RAW_CALL)
def test_from_raw_reads_any_json(raw: Any) -> None:
    """No shape a server can send raises, and each has a valid wire form."""
    assert_valid_on_the_wire(ToolRequest.from_raw(raw).to_wire())


@pytest.mark.parametrize("levels", [200, 300, 900, 5_000])
def test_from_raw_reads_arguments_of_any_depth(levels: int) -> None:
    """A decoded mapping that no encoder would write is cut, not raised about."""
    call = ToolRequest.from_raw({"id": "1", "function": {"name": "x", "arguments": nested(levels)}})

    assert_valid_on_the_wire(call.to_wire())


@pytest.mark.parametrize(
    "raw", [None, 7, "call", [], {}, {"function": None}, {"function": "read"}, {"id": 3, "function": {"name": ["x"]}}]
)
def test_what_is_unreadable_in_a_call_is_left_empty(raw: Any) -> None:
    """Never invented, never raised about."""
    assert ToolRequest.from_raw(raw) == ToolRequest("", "", None)


@pytest.mark.parametrize("arguments", [7, 1.5, True, ["a"]])
def test_arguments_that_are_neither_text_nor_mapping_are_dropped(arguments: Any) -> None:
    """A call carries text, a mapping, or nothing."""
    assert request(arguments).arguments is None


# -- answers --------------------------------------------------------------------------------


def test_an_answer_survives_utf8() -> None:
    """A file name that is no UTF-8 reaches the model with U+FFFD."""
    assert ToolAnswer("call_1", "caf\udce9").content == "caf\ufffd"


@pytest.mark.parametrize("content", [None, 7, b"x", ["x"], {"a": 1}])
def test_an_answer_is_text(content: Any) -> None:
    """What a provider gets wrong is said in words it can act on."""
    with pytest.raises(ConfigError, match=f"ToolAnswer: content must be text, got {type(content).__name__}"):
        ToolAnswer("call_1", content)


# -- messages -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["robot", "", None, ["user"], "User"])
def test_an_unknown_role_is_refused(role: Any) -> None:
    """Four roles, spelled as on the wire."""
    with pytest.raises(ConfigError, match="Message: role must be one of user, assistant, system, tool"):
        Message(role)


@pytest.mark.parametrize("content", [7, b"x", {"type": "text"}, ["text"], [None]])
def test_content_is_text_or_a_list_of_mappings(content: Any) -> None:
    """Anything else would fail at the server, long after the mistake."""
    with pytest.raises(ConfigError, match="Message: content"):
        Message("user", content)


@pytest.mark.parametrize("calls", ["call", 7, {"id": "1"}])
def test_tool_calls_are_a_list(calls: Any) -> None:
    """A text is not read as a list of its characters."""
    with pytest.raises(ConfigError, match="Message: tool_calls must be a list"):
        Message("assistant", "", calls)


def test_parts_are_kept_and_their_text_is_joined() -> None:
    """Images can be sent; `text` is always the text."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    message = Message.user([{"type": "text", "text": "What is "}, image, {"type": "text", "text": "this?"}])

    assert message.text == "What is this?"
    assert message.to_wire()["content"][1] == image


def test_surrogates_become_replacement_characters_wherever_text_enters() -> None:
    """Live, replayed and sent text agree."""
    message = Message("tool", [{"type": "text", "text": "\ud800", "\udc00": 1}], tool_call_id="\ud800")

    assert message.text == "\ufffd"
    assert message.tool_call_id == "\ufffd"
    assert orjson.loads(message.wire_json)["content"] == [{"type": "text", "text": "\ufffd", "\ufffd": 1}]


def test_a_message_shares_no_container_with_what_it_came_from_or_went_to() -> None:
    """Share it freely: nobody can change it in place."""
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": "a"}}
    message = Message.user([part])

    part["image_url"]["url"] = "b"
    message.to_dict()["content"][0]["image_url"]["url"] = "c"
    message.to_wire()["content"].clear()

    assert message.to_dict()["content"] == [{"type": "image_url", "image_url": {"url": "a"}}]


@pytest.mark.parametrize(
    ("flags", "is_sticky"),
    [({}, False), ({"sticky": True}, True), ({"sysprompt": True}, True), ({"depth": 0}, True), ({"depth": 4}, True)],
)
def test_what_is_pinned_is_sticky(flags: dict[str, Any], is_sticky: bool) -> None:
    """A depth of 0 counts: what matters is that there is one."""
    assert Message("user", "x", **flags).is_sticky is is_sticky


def test_a_turn_with_calls_and_no_text_has_null_content_on_the_wire() -> None:
    """That is the vendors' spelling."""
    assert Message.assistant("", [request("{}")]).to_wire()["content"] is None


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (Message.user("hi"), {"role": "user", "content": "hi"}),
        (Message.assistant(""), {"role": "assistant", "content": ""}),
        (Message.tool("c", "x"), {"role": "tool", "content": "x", "tool_call_id": "c"}),
        (Message("system", "s", sticky=True, sysprompt=True, depth=0), {"role": "system", "content": "s"}),
    ],
)
def test_the_wire_form_holds_what_servers_know(message: Message, wire: dict[str, Any]) -> None:
    """Pins never go out; what is not there is absent."""
    assert message.to_wire() == wire
    assert orjson.loads(message.wire_json) == wire


def test_the_chat_form_shows_calls_as_sent() -> None:
    """An event tells what the model wrote, the wire what a server accepts."""
    message = Message.assistant("", [request("{broken", "bad name")])

    assert message.to_chat()["tool_calls"] == [message.tool_calls[0].to_dict()]
    assert message.to_wire()["tool_calls"] == [message.tool_calls[0].to_wire()]


@pytest.mark.parametrize(
    ("message", "is_empty"),
    [
        (Message.assistant(""), True),
        (Message("assistant", []), True),
        (Message.assistant(" "), False),
        (Message.assistant("", [request()]), False),
        (Message.user(""), False),
    ],
)
def test_an_empty_turn_is_an_assistants_with_nothing(message: Message, is_empty: bool) -> None:
    """No server accepts one, so the wire form of a conversation leaves it out."""
    assert message.is_empty_turn is is_empty


PARTS = st.lists(st.dictionaries(ANY_TEXT, JSON_VALUE, max_size=3), min_size=1, max_size=3)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "system", "tool"]),
    st.one_of(ANY_TEXT, PARTS),
    st.lists(st.builds(ToolRequest, ANY_TEXT, ANY_TEXT, ARGUMENTS), max_size=2),
    tool_call_id=st.none() | ANY_TEXT,
    sticky=st.booleans(),
    sysprompt=st.booleans(),
    depth=st.none() | st.integers(0, 9),
)


@given(MESSAGES)
def test_what_was_written_is_what_is_read(message: Message) -> None:
    """Through a line of JSON and back: the same message with the same digest."""
    read = Message.from_dict(codec.loads(codec.dumps_line(message.to_dict())))

    assert read == message
    assert read.digest == message.digest


@given(MESSAGES)
def test_messages_pickle(message: Message) -> None:
    """Task queues carry conversations; what was computed before makes no difference."""
    _ = message.digest, message.wire_json

    copy = pickle.loads(pickle.dumps(message))

    assert copy == message
    assert copy.digest == message.digest


def test_the_chat_completions_form_is_read_too() -> None:
    """Underscores for hyphens, extras ignored, null content understood."""
    call = {"id": "c", "type": "function", "function": {"name": "n", "arguments": "{}"}}

    read = Message.from_dict({"role": "assistant", "content": None, "tool_calls": [call], "refusal": None})

    assert read == Message.assistant("", [ToolRequest("c", "n", "{}")])
    assert Message.from_dict({"role": "tool", "tool_call_id": "c", "content": "x"}) == Message.tool("c", "x")


# -- digests --------------------------------------------------------------------------------


def test_a_digest_is_pinned() -> None:
    """Transcripts of other versions are compared by it: it must never change."""
    call = ToolRequest("c", "n", '{"b": 1}')
    message = Message("assistant", "é", [call], sticky=True, depth=0)

    assert message_digest(message) == "1d2f05b0f762cf210aff108e8ab32dc5db0a619e793d3107da634856710dc2b4"
    assert messages_digest([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


BASE = Message("assistant", "x", [request('{"a":1}')])
OTHERS = {
    "role": attrs.evolve(BASE, role="user"),
    "content": attrs.evolve(BASE, content="y"),
    "parts": attrs.evolve(BASE, content=[{"type": "text", "text": "x"}]),
    "no calls": attrs.evolve(BASE, tool_calls=()),
    "two calls": attrs.evolve(BASE, tool_calls=BASE.tool_calls * 2),
    "call id": attrs.evolve(BASE, tool_calls=[ToolRequest("call_2", "read_file", '{"a":1}')]),
    "call name": attrs.evolve(BASE, tool_calls=[request('{"a":1}', "write_file")]),
    "argument spelling": attrs.evolve(BASE, tool_calls=[request('{"a": 1}')]),
    "argument kind": attrs.evolve(BASE, tool_calls=[request({"a": 1})]),
    "no arguments": attrs.evolve(BASE, tool_calls=[request(None)]),
    "answer id": attrs.evolve(BASE, tool_call_id="call_1"),
    "empty answer id": attrs.evolve(BASE, tool_call_id=""),
    "sticky": attrs.evolve(BASE, sticky=True),
    "sysprompt": attrs.evolve(BASE, sysprompt=True),
    "depth 0": attrs.evolve(BASE, depth=0),
    "depth 1": attrs.evolve(BASE, depth=1),
}


def test_every_difference_of_what_is_said_or_pinned_is_another_digest() -> None:
    """Prose alone is no identity."""
    digests = {message.digest for message in (BASE, *OTHERS.values())}

    assert len(digests) == len(OTHERS) + 1


def test_flags_given_as_numbers_are_flags() -> None:
    """A replayed message has the digest of the live one."""
    live = Message("user", "x", sticky=1, sysprompt=0)

    assert live.digest == Message.from_dict(live.to_dict()).digest


def test_the_digest_of_a_conversation_depends_on_its_order() -> None:
    """The same turns in another order are another conversation."""
    one, two = Message.user("1"), Message.user("2")

    assert messages_digest([one, two]) != messages_digest([two, one])
    assert messages_digest([one]) != one.digest


# -- pairs ----------------------------------------------------------------------------------


def calls(*ids: str) -> Message:
    return Message.assistant("", [ToolRequest(call_id, "n", "{}") for call_id in ids])


def answer(call_id: str) -> Message:
    return Message.tool(call_id, "x")


@pytest.mark.parametrize(
    ("messages", "missing"),
    [
        ([], []),
        ([Message.user("x")], []),
        ([calls("a", "b"), answer("b"), answer("a")], []),
        ([calls("a", "b"), answer("a")], ["b"]),
        ([calls("a", "b")], ["a", "b"]),
        ([calls("a"), Message.user("x"), answer("a")], ["a"]),
        ([calls("a"), calls("b"), answer("b")], ["a"]),
        ([calls("a"), answer("z")], ["a"]),
        ([calls("a", "a"), answer("a")], ["a"]),
        ([calls("a", "a"), answer("a"), answer("a")], []),
        ([calls("a"), answer("a"), answer("a")], []),
        ([answer("a"), calls("a")], ["a"]),
        ([calls("a"), answer("a"), calls("a")], ["a"]),
        ([calls("a", ""), answer("a"), answer("")], []),
    ],
    ids=range(14),
)
def test_calls_are_answered_directly_after_their_turn(messages: list[Message], missing: list[str]) -> None:
    """In any order, each once; an answer elsewhere answers nothing."""
    assert [call.id for call in unanswered_calls(messages)] == missing


# -- bills and streams ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (Usage(), {}),
        (Usage(prompt_tokens=0, cost=0.0), {"prompt-tokens": 0, "cost": 0.0}),
        (Usage(cached_prompt_tokens=3, provider_name="p"), {"cached-prompt-tokens": 3, "provider-name": "p"}),
    ],
)
def test_unreported_is_absent_and_zero_is_a_number(usage: Usage, told: dict[str, Any]) -> None:
    """`None` is never 0; both survive the way there and back."""
    assert usage.to_dict() == told
    assert Usage.from_dict(told) == usage


@pytest.mark.parametrize(
    ("usage", "total"),
    [
        (Usage(total_tokens=0, prompt_tokens=5, completion_tokens=5), 0),
        (Usage(prompt_tokens=5, completion_tokens=0), 5),
        (Usage(prompt_tokens=5), None),
        (Usage(completion_tokens=5, cached_prompt_tokens=1), None),
    ],
)
def test_the_billed_total_is_reported_or_the_sum_of_both_halves(usage: Usage, total: int | None) -> None:
    """Cached tokens are part of the prompt and never added."""
    assert usage.billed_total == total


def test_an_empty_delta_says_nothing() -> None:
    """It is a sign of life and no more."""
    assert Delta() == Delta("", "", (), None, None, None)
    assert Reply() == Reply(text="", tool_calls=(), usage=Usage())
