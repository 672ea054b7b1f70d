"""Content blocks as text, questions as answers, annotations as classes: the pure parts of MCP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent.mcp.catalogue import Catalogue
from llm_agent.mcp.content import structured_of, text_of_block, text_of_result
from llm_agent.mcp.process import LastWords
from llm_agent.mcp.question import answer_of

BLOCKS: list[tuple[Any, str]] = [
    ({"type": "text", "text": "hello"}, "hello"),
    ({"type": "image", "data": "QUJD", "mimeType": "image/png"}, "[image: image/png, not shown]"),
    ({"type": "audio", "data": "QUJD", "mimeType": "audio/wav"}, "[audio: audio/wav, not shown]"),
    ({"type": "image", "data": "QUJD"}, "[image: unknown type, not shown]"),
    ({"type": "resource", "resource": {"uri": "a://b", "text": "inside"}}, "inside"),
    ({"type": "resource", "resource": {"uri": "a://b", "blob": "QUJD"}}, "[resource: a://b, not shown]"),
    ({"type": "resource_link", "uri": "a://c", "name": "c"}, "[resource: a://c, not shown]"),
    ({"type": "hologram", "z": 1, "a": [2]}, '{"a":[2],"type":"hologram","z":1}'),
    ({"type": "text"}, '{"type":"text"}'),
    ("bare", "bare"),
    (7, "7"),
]


@pytest.mark.parametrize(("block", "text"), BLOCKS)
def test_a_block_becomes_text(block: Any, text: str) -> None:
    """Each kind of block has its own form; bytes are never shown, unknown kinds are their JSON."""
    assert text == text_of_block(block)


def test_blocks_are_joined_by_one_newline() -> None:
    """Several blocks are one text, a line each."""
    assert text_of_result({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "a\nb"


@pytest.mark.parametrize(("result", "text"), [({}, ""), ({"content": []}, ""), ({"b": 1, "a": 2}, '{"a":2,"b":1}')])
def test_a_result_without_content_is_written_out(result: dict[str, Any], text: str) -> None:
    """Nothing is an empty text; a result of another shape is its JSON, keys sorted."""
    assert text == text_of_result(result)


@pytest.mark.parametrize(("value", "expected"), [({"a": 1}, {"a": 1}), ([1], None), (None, None)])
def test_only_an_object_is_structured_content(value: Any, expected: Any) -> None:
    """The machine's half of a result is an object or nothing."""
    assert expected == structured_of({"structuredContent": value})


PLAIN = st.none() | st.booleans() | st.floats() | st.text(max_size=8)
KINDS = st.sampled_from(["text", "image", "audio", "resource", "resource_link", "hologram"])
KEYS = st.sampled_from(["text", "mimeType", "data", "uri", "resource", "annotations"])


@settings(max_examples=200)
@given(
    st.fixed_dictionaries({"type": KINDS | PLAIN}), st.dictionaries(KEYS, PLAIN | st.dictionaries(KEYS, PLAIN)), PLAIN
)
def test_no_block_raises(kind: dict[str, Any], members: dict[str, Any], bare: Any) -> None:
    """Whatever a server sends as a block, there is a text."""
    assert isinstance(text_of_block({**members, **kind}), str)
    assert isinstance(text_of_block(bare), str)


ANSWERS: list[tuple[Any, dict[str, Any]]] = [
    ({"action": "accept", "content": {"name": "Ada"}}, {"action": "accept", "content": {"name": "Ada"}}),
    ({"action": "accept"}, {"action": "accept"}),
    ({"action": "decline", "content": {"name": "Ada"}}, {"action": "decline"}),
    ({"action": "accept", "content": "Ada"}, {"action": "accept"}),
    ("cancel", {"action": "cancel"}),
    (True, {"action": "accept"}),
    (False, {"action": "decline"}),
    (None, {"action": "decline"}),
    ("sure", {"action": "decline"}),
    ({"action": ["accept"]}, {"action": "decline"}),
    ({"action": "expired"}, {"action": "decline"}),
    (1, {"action": "decline"}),
]


@pytest.mark.parametrize(("said", "answer"), ANSWERS)
def test_only_a_clear_yes_is_a_yes(said: Any, answer: dict[str, Any]) -> None:
    """An answer that is not understood declines the server's question."""
    assert answer == answer_of(said)


HINTS: list[tuple[dict[str, Any] | None, str, bool]] = [
    (None, "unknown", False),
    ({}, "unknown", False),
    ({"readOnlyHint": True}, "read-only", False),
    ({"readOnlyHint": True, "idempotentHint": True}, "read-only", True),
    ({"idempotentHint": True}, "idempotent", False),
    ({"idempotentHint": True, "destructiveHint": True}, "idempotent", False),
    ({"destructiveHint": True}, "destructive", False),
    ({"destructiveHint": False}, "unknown", False),
    ({"readOnlyHint": "yes", "idempotentHint": 1}, "unknown", False),
]


@pytest.mark.parametrize(("hints", "idempotency", "may_overlap"), HINTS)
def test_annotations_decide_the_class(hints: dict[str, Any] | None, idempotency: str, may_overlap: bool) -> None:
    """Only what a server says in so many words counts; silence is unknown."""
    catalogue = Catalogue.of([{"name": "t", "annotations": hints}])

    assert (idempotency, may_overlap) == (catalogue.idempotency_of("t"), catalogue.may_overlap("t"))


def test_a_declaration_is_the_servers_schema() -> None:
    """Name, description and schema pass through; annotations do not go to model vendors."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = [{"name": "t", "description": "d", "inputSchema": schema, "annotations": {"readOnlyHint": True}}]

    declarations = Catalogue.of([*tools, {"name": "bare"}]).declarations()

    assert [
        {"name": "t", "description": "d", "parameters": schema},
        {"name": "bare", "parameters": {"type": "object", "properties": {}}},
    ] == [declaration["function"] for declaration in declarations]


def test_a_changed_declaration_changes_nothing() -> None:
    """Declarations are new each time: whoever changes one changes no later listing."""
    catalogue = Catalogue.of([{"name": "t", "inputSchema": {"type": "object", "properties": {}}}])

    catalogue.declarations()[0]["function"]["parameters"]["properties"]["x"] = 1

    assert "x" not in json.dumps(catalogue.declarations())


def test_last_words_are_the_last_lines_and_bounded() -> None:
    """Of a stream without an end the last 50 lines are kept, each cut, an unfinished one too."""
    words = LastWords()
    for number in range(200):
        words.feed(f"line {number}\n".encode())
    words.feed(b"x" * 10_000_000)

    lines = words.text.splitlines()

    assert (len(lines), lines[0], len(lines[-1])) == (50, "line 151", 1000)
