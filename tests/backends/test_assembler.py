"""What vendors disagree on, chunk by chunk: calls, texts, usage, finish reasons."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_server import chunk

from llm_agent.backends.assembler import Assembler, plain_text
from llm_agent.messages import Delta


def assembled(*chunks: dict[str, Any]) -> tuple[list[Delta], Delta]:
    assembler = Assembler()
    return [assembler.feed(one) for one in chunks], assembler.result()


def calls_from(*fragments: dict[str, Any]) -> list[tuple[str, str, Any]]:
    _, result = assembled(*(chunk(tool_calls=[fragment]) for fragment in fragments))
    return [(call.id, call.name, call.arguments) for call in result.tool_calls]


def part(index: Any = None, id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    """One fragment; what is `None` is absent."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fragment = {"index": index, "id": id, "function": function or None}
    return {key: value for key, value in fragment.items() if value is not None}


A, B = '{"a": 1}', '{"b": [2, 3]}'
BOTH = [("A", "one", A), ("B", "two", B)]


@pytest.mark.parametrize(
    "fragments",
    [
        [part(0, "A", "one", A[:4]), part(0, None, None, A[4:]), part(1, "B", "two", B)],
        [part(0, "A", "one", A[:4]), part(1, "B", "two", B[:3]), part(0, arguments=A[4:]), part(1, arguments=B[3:])],
        [part(None, "A", "one", A[:4]), part(None, None, None, A[4:]), part(None, "B", "two", B)],
        [part(None, "A", "one", A[:4]), part(None, "A", None, A[4:]), part(None, "B", "two", B)],
        [part(0, "A", "one", A), part(0, "B", "two", B[:3]), part(0, None, None, B[3:])],
        [part(0, "A", "one", A[:4]), part(0, "A", "one", A[4:]), part(1, "B", "two", B)],
        [part(0, "A", "one", A[:4]), part(0, "", "", A[4:]), part(1, "B", "two", B)],
        [part(0, "A", "one", A), part(1, "B", "two", B[:-1]), part(2, None, None, "}")],
        [part(0, "A", "one", A), part(1, "B", "two", B[:3]), part(None, None, None, B[3:])],
        [part("0", "A", "one", A), part("1", "B", "two", B)],
        [part(0, "A", "one"), part(0, None, None, ""), part(0, None, None, A), part(3, "B", "two", B)],
        [part(0, "A", "one", A[:4]), part(5, "A", None, A[4:]), part(1, "B", "two", B)],
    ],
    ids=[
        "by the book", "interleaved", "no index", "no index, id repeated", "every call numbered 0",
        "id and name repeated in full", "id and name empty", "tail at an unknown index", "tail without index",
        "index as text", "arguments late, indexes with a gap", "tail of a known id at another index",
    ],
)  # fmt: skip
def test_two_calls_are_put_together_whatever_marks_their_fragments(fragments: list[dict[str, Any]]) -> None:
    """Neither lost, nor glued, nor split."""
    assert calls_from(*fragments) == BOTH


@given(st.lists(st.integers(0, 20), max_size=4), st.booleans())
def test_arguments_may_be_cut_anywhere(offsets: list[int], repeats: bool) -> None:
    """The pieces joined are the arguments, with or without the name in each."""
    places = sorted({0, len(B), *(offset % len(B) for offset in offsets)})
    pieces = [B[a:b] for a, b in pairwise(places)]
    again = {"id": "B", "name": "two"} if repeats else {}

    fragments = [part(0, "B", "two"), *(part(0, arguments=piece, **again) for piece in pieces)]

    assert calls_from(*fragments) == [("B", "two", B)]


def test_calls_that_share_one_id_stay_two_calls() -> None:
    """Some servers give every call the same id; complete arguments end a call."""
    assert calls_from(part(None, "A", "one", A), part(None, "A", "two", B)) == [("A", "one", A), ("A", "two", B)]
    assert calls_from(part(0, "A", "one", A), part(0, "A", "one", B)) == [("A", "one", A), ("A", "one", B)]
    assert calls_from(part(None, "A", "one", A), part(None, "A", "two", B[:3]), part(None, "A", None, B[3:])) == [
        ("A", "one", A),
        ("A", "two", B),
    ]


def test_calls_without_arguments_that_are_all_numbered_0_are_told_apart_by_id() -> None:
    """Another id with a name is another call, whatever its arguments."""
    assert calls_from(part(0, "A", "one"), part(0, "B", "two")) == [("A", "one", None), ("B", "two", None)]


def test_calls_without_id_and_index_are_told_apart_by_name() -> None:
    """A new name opens a new call, and an empty id is reported as empty."""
    assert calls_from(part(name="one", arguments=A), part(name="two", arguments=B)) == [("", "one", A), ("", "two", B)]


@pytest.mark.parametrize(("arguments", "expected"), [(None, None), ("", ""), ({"a": 1}, {"a": 1})])
def test_arguments_are_kept_as_sent(arguments: Any, expected: Any) -> None:
    """Absent, empty, or an object: each is told apart."""
    assert calls_from(part(0, "A", "one", arguments)) == [("A", "one", expected)]


def test_a_fragment_of_nothing_is_no_call() -> None:
    """An empty object in the list is dropped."""
    assert calls_from({}, {"index": 0}) == []


def test_a_custom_call_is_a_call() -> None:
    """Its input is what arguments are to a function."""
    assert calls_from({"id": "C", "type": "custom", "custom": {"name": "shell", "input": "ls"}}) == [
        ("C", "shell", "ls")
    ]


def test_the_legacy_function_call_counts_when_no_other_does() -> None:
    """Servers that send both send the same call twice."""
    legacy = [chunk(function_call={"name": "one", "arguments": '{"a":'}), chunk(function_call={"arguments": " 1}"})]

    _, alone = assembled(*legacy)
    _, doubled = assembled(*legacy, chunk(tool_calls=[part(0, "A", "one", A)]))

    assert [(call.id, call.name, call.arguments) for call in alone.tool_calls] == [("", "one", A)]
    assert [call.id for call in doubled.tool_calls] == ["A"]


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": []},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"delta": None}]},
        {"choices": ["x"]},
        {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": None}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": ["x", None]}}]},
        {"choices": "x", "usage": "x", "model": 7, "x_groq": 1},
        {},
    ],
)
def test_a_chunk_of_odd_shape_brings_nothing_and_breaks_nothing(odd: dict[str, Any]) -> None:
    """It is a sign of life, and the next chunk counts."""
    deltas, _ = assembled(chunk("a"), odd, chunk("b"))

    assert [delta.text for delta in deltas] == ["a", "", "b"]
    assert deltas[1] == Delta()


@pytest.mark.parametrize("late", [None, "", "null"])
def test_a_finish_reason_is_not_taken_back(late: str | None) -> None:
    """Null, empty or `"null"` after the real one says nothing."""
    _, result = assembled(chunk("a", finish="null"), chunk(finish="stop"), chunk(finish=late))

    assert result.finish_reason == "stop"


def test_the_last_usage_that_is_one_wins() -> None:
    """Cumulative reports replace each other, and a final null takes nothing back."""
    reports = [{"prompt_tokens": 5, "completion_tokens": n} for n in (1, 2, 3)]

    deltas, _ = assembled(*({**chunk("x"), "usage": usage} for usage in [*reports, None]))

    assert [delta.usage and delta.usage.completion_tokens for delta in deltas] == [1, 2, 3, None]


def test_usage_is_found_beside_and_inside_choices_and_at_groq() -> None:
    """Every place counts, and a lesser one never overrides a better one."""
    groq = {**chunk(), "x_groq": {"usage": {"total_tokens": 2}}}
    inside = {"choices": [{"delta": {}, "usage": {"total_tokens": 1}}]}
    top = {"choices": [], "usage": {"total_tokens": 3}}

    deltas, _ = assembled(inside, groq, top, inside)

    assert [delta.usage and delta.usage.total_tokens for delta in deltas] == [1, 2, 3, None]


def test_unreported_numbers_are_none() -> None:
    """Null, text and booleans are no numbers; caches and cost are read where vendors put them."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": None,
        "total_tokens": True,
        "prompt_tokens_details": {"cached_tokens": 4},
        "cost": 0.25,
    }

    (delta,), _ = assembled({"id": "gen-1", "provider": "Someone", "choices": [], "usage": usage})

    assert delta.usage is not None
    assert delta.usage.to_dict() == {
        "prompt-tokens": 9,
        "cached-prompt-tokens": 4,
        "cost": 0.25,
        "generation-id": "gen-1",
        "provider-name": "Someone",
    }


def test_only_the_first_choice_counts() -> None:
    """Other choices are other completions."""
    deltas, result = assembled(
        {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]},
        {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]},
    )

    assert "".join(delta.text for delta in deltas) == "yes"
    assert result.finish_reason == "stop"


@pytest.mark.parametrize(
    ("delta", "text", "reasoning"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": [{"text": "b"}]}]}, "a", "b"),
        ({"content": None, "reasoning_content": "b"}, "", "b"),
        ({"content": "a", "reasoning": "b", "reasoning_details": [{"type": "reasoning.text", "text": "b"}]}, "a", "b"),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "b"}]}, "", "b"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "zz", "text": "zz"}]}, "", ""),
        ({"refusal": "I will not."}, "I will not.", ""),
        ({"content": {"type": "text", "text": "a"}}, "a", ""),
    ],
)
def test_text_and_reasoning_are_told_apart(delta: dict[str, Any], text: str, reasoning: str) -> None:
    """Parts, thinking under its many names (once), and a refusal, which is text."""
    (found,), _ = assembled({"choices": [{"delta": delta}]})

    assert (found.text, found.reasoning) == (text, reasoning)


def test_a_character_cut_in_two_is_joined() -> None:
    """A high surrogate waits for the next text; a lone one becomes a replacement character."""
    deltas, result = assembled(chunk("a\ud83d"), chunk("\ude00b"), chunk("\ud83d"))

    assert [delta.text for delta in deltas] == ["a", "😀b", ""]
    assert result.text == "\ufffd"


@given(
    st.fixed_dictionaries(
        {"choices": st.lists(st.fixed_dictionaries({"delta": st.dictionaries(st.text(), st.text())}), max_size=2)},
        optional={"usage": st.none(), "error": st.text()},
    )
)
def test_the_short_way_never_differs_from_the_long_way(value: dict[str, Any]) -> None:
    """Where the shortcut finds a text, the assembler finds exactly that and nothing else."""
    text = plain_text(value)

    if text is not None:
        deltas, result = assembled(value)
        assert deltas == [Delta(text)]
        assert result == Delta()


@pytest.mark.parametrize(
    "value",
    [
        chunk("x", finish="stop"),
        {**chunk("x"), "usage": {"total_tokens": 1}},
        {**chunk("x"), "error": {"message": "no"}},
        {**chunk("x"), "x_groq": {"error": "no"}},
        {"choices": [{"delta": {"content": "x"}, "error": {"message": "no"}}]},
        chunk("x", reasoning="y"),
        chunk("x", tool_calls=[{}], role="assistant"),
        {"choices": [{"index": 1, "delta": {"content": "x"}}]},
        chunk(""),
        ["x"],
        "x",
        None,
    ],
)
def test_the_short_way_leaves_what_is_more_than_text(value: Any) -> None:
    """A finish reason, usage, an error, reasoning, a call or another choice is never passed over."""
    assert plain_text(value) is None
