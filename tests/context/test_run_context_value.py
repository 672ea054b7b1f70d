"""A run's context as a value: what it takes, what it refuses, and by what it is known."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from llm_agent.canonical import data_digest
from llm_agent.errors import ConfigError
from llm_agent.run_context import RunContext

OPTIONS = ("head_sections", "facts", "tail_sections")


def context(**options: Any) -> RunContext:
    return RunContext(**options)


# -- what it takes --------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
def test_a_dict_and_pairs_say_the_same(option: str) -> None:
    """Both are ordered; a generator and lists of two are pairs, too."""
    expected = (("b", "1"), ("a", "2"))

    for given in ({"b": "1", "a": "2"}, [("b", "1"), ("a", "2")], [["b", "1"], ["a", "2"]], iter(expected)):
        assert expected == getattr(context(**{option: given}), option)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_text_of_none_is_left_out(option: str) -> None:
    """What is unknown need not be filtered by the caller, and makes no difference."""
    with_none = context(**{option: [("a", None), ("b", "1"), ("c", None)]})

    assert context(**{option: {"b": "1"}}) == with_none
    assert context(**{option: {"b": "1"}}).digest == with_none.digest


@pytest.mark.parametrize("option", OPTIONS)
def test_white_space_at_the_end_is_trimmed(option: str) -> None:
    """Files end in line ends; what begins a text is its own."""
    trimmed = context(**{option: {"a": "  text\n \n\t"}})

    assert getattr(trimmed, option) == (("a", "  text"),)
    assert context(**{option: {"a": "  text"}}).digest == trimmed.digest


@pytest.mark.parametrize("option", OPTIONS)
def test_lone_surrogates_become_what_survives_utf_8(option: str) -> None:
    """The sent and the recorded text agree."""
    assert getattr(context(**{option: {"n\ud800": "a\udc00b"}}), option) == (("n\ufffd", "a\ufffdb"),)


def test_what_the_caller_changes_afterwards_changes_nothing() -> None:
    """The value holds tuples of its own."""
    facts = {"cwd": "/a"}
    made = context(facts=facts)
    digest = context(facts={"cwd": "/a"}).digest

    facts["cwd"] = "/b"

    assert made.facts == (("cwd", "/a"),)
    assert digest == made.digest


def test_it_is_frozen_and_travels() -> None:
    """Nobody can change it; a pickled one is equal and hashes alike, also after use."""
    made = context(head_sections={"a": "A"}, facts={"b": "B"}, tail_as="user")
    assert made.messages
    assert made.digest

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.facts = ()  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(made))

    assert (made, hash(made), made.digest) == (copy, hash(copy), copy.digest)


# -- what it refuses ------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "text": ("cwd=/a", r"must be a dict or \(name, text\) pairs, got str"),
    "bytes": (b"cwd", "got bytes"),
    "set": ({("a", "b")}, "got set"),
    "frozenset": (frozenset({("a", "b")}), "got frozenset"),
    "none": (None, "got NoneType"),
    "number": (7, "got int"),
    "text of two as a pair": (["ab"], r"\[0\] must be a \(name, text\) pair, got 'ab'"),
    "three": ([("a", "b"), ("a", "b", "c")], r"\[1\] must be a \(name, text\) pair"),
    "blank name": ([(" ", "b")], r"the name of \w+\[0\] must be text and not blank, got ' '"),
    "number as a name": ({7: "b"}, r"the name of \w+\[0\] must be text and not blank, got 7"),
    "none as a name": ({None: None}, r"the name of \w+\[0\] must be text"),
    "path": ({"cwd": Path("/a")}, "'cwd' must be text or None, got PosixPath"),
    "number as a text": ({"round": 3}, "'round' must be text or None, got int"),
    "bytes as a text": ({"a": b"b"}, "'a' must be text or None, got bytes"),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_by_name(option: str, case: str) -> None:
    """The error names the option, the entry, and what came."""
    given, message = REFUSED[case]

    with pytest.raises(ConfigError, match=f"^RunContext: .*{option}.*") as refused:
        context(**{option: given})
    refused.match(message)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("tail_as", "tail_as must be one of system, user, merged, got 'assistant'"),
        ("head_as", "head_as must be one of system, merged, got 'assistant'"),
    ],
)
def test_a_place_that_there_is_not_is_refused(option: str, message: str) -> None:
    """The error names the places there are."""
    with pytest.raises(ConfigError, match=message):
        context(**{option: "assistant"})


def test_an_unknown_option_is_refused() -> None:
    """Misspelt, it must not be lost in silence."""
    with pytest.raises(TypeError, match="tail_section"):
        context(tail_section={"a": "b"})


# -- from what a run is given ---------------------------------------------------------------


def test_a_context_is_taken_as_it_is() -> None:
    """No copy: its messages are made once."""
    made = context(facts={"a": "b"})

    assert RunContext.of(made) is made


def test_a_text_is_a_section_of_the_tail() -> None:
    """It is said behind the conversation, in the default place."""
    assert context(tail_sections={"context": "Today is Monday."}) == RunContext.of("Today is Monday.\n")


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_text_says_nothing(blank: str) -> None:
    """Whoever computes a context need not care whether there is one today."""
    assert RunContext.of(blank).messages == ()


@pytest.mark.parametrize("value", [None, 7, b"text", {"facts": {}}, ["text"]])
def test_neither_text_nor_context_is_refused(value: Any) -> None:
    """The error says what came."""
    with pytest.raises(ConfigError, match=f"context: expected text or a RunContext, got {type(value).__name__}"):
        RunContext.of(value)


# -- by what it is known --------------------------------------------------------------------

OTHERS: dict[str, Callable[[], RunContext]] = {
    "nothing": lambda: context(),
    "a fact": lambda: context(facts={"a": "1", "b": "2"}),
    "the facts in another order": lambda: context(facts={"b": "2", "a": "1"}),
    "another name": lambda: context(facts={"a": "1", "c": "2"}),
    "another text": lambda: context(facts={"a": "1", "b": "3"}),
    "an empty fact more": lambda: context(facts={"a": "1", "b": "2", "c": ""}),
    "in the head": lambda: context(head_sections={"a": "1", "b": "2"}),
    "in the tail": lambda: context(tail_sections={"a": "1", "b": "2"}),
    "in the tail in another order": lambda: context(tail_sections={"b": "2", "a": "1"}),
    "in both": lambda: context(head_sections={"a": "1"}, tail_sections={"b": "2"}),
    "an empty section more": lambda: context(tail_sections={"a": "1", "b": "2", "c": ""}),
    "a line end instead of an entry": lambda: context(tail_sections={"a": "1\nb\n2"}),
}


def test_every_difference_in_what_is_said_is_another_digest() -> None:
    """Names, texts, their order, their part, and what is empty."""
    digests = {name: make().digest for name, make in OTHERS.items()}

    assert len(OTHERS) == len(set(digests.values()))
    assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in digests.values())


def test_the_digest_is_that_of_the_three_lists() -> None:
    """Whoever reads the transcript can compute it."""
    made = context(head_sections={"h": "H"}, facts={"f": "F"}, tail_sections={"t": "T"})

    assert data_digest({"head": [["h", "H"]], "facts": [["f", "F"]], "tail": [["t", "T"]]}) == made.digest


def test_the_place_is_no_part_of_what_is_said() -> None:
    """Two vendors of one run are told the same."""
    assert context(facts={"a": "b"}).digest == context(facts={"a": "b"}, tail_as="merged", head_as="merged").digest


def test_a_section_is_known_by_its_name_and_its_text() -> None:
    """The part it stands in makes no difference: its text is kept once."""
    made = context(head_sections={"a": "x", "b": "x"}, tail_sections={"a": "x", "c": ""})

    assert [(s.part, s.name) for s in made.sections] == [("head", "a"), ("head", "b"), ("tail", "a"), ("tail", "c")]
    assert made.sections[0].digest == made.sections[2].digest == data_digest(["a", "x"])
    assert len({section.digest for section in made.sections}) == 3
