"""What a model reads of a run's context, to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from llm_agent import notices
from llm_agent.messages import Message
from llm_agent.run_context import RunContext

FIXED = f"{notices.CONTEXT_OUTRANKS}\n{notices.CONTEXT_NO_REPLY}"

RENDER = """
from llm_agent.run_context import RunContext, placed
from llm_agent import Message

names = [f"n{number}" for number in range(40)]
context = RunContext(
    head_sections={name: f"head of {name}" for name in names},
    facts={name: f"fact \\u00e9 of {name}" for name in names},
    tail_sections=[(name, "tail") for name in reversed(names)],
    tail_as="merged",
)
for message in (*context.messages, *placed([Message.user("u")], context)):
    print(message.wire_json.decode())
print(context.digest, *(section.digest for section in context.sections))
"""


def test_the_head_is_its_sections_with_a_blank_line_between() -> None:
    """Nothing is added: names are for the record, a heading is the text's own."""
    context = RunContext(head_sections={"AGENTS.md": "# Rules\nBe brief.\n", "style": "No emoji."})

    assert (Message.system("# Rules\nBe brief.\n\nNo emoji."),) == context.messages


def test_the_tail_is_heading_facts_sections_and_the_fixed_lines() -> None:
    """In this order, whatever came first in the call."""
    context = RunContext(tail_sections={"plan": "1. Look", "tree": "a.py"}, facts={"date": "2026-01-01", "cwd": "/a"})

    text = f"{notices.CONTEXT_HEADING}\n\n- date: 2026-01-01\n- cwd: /a\n\n1. Look\n\na.py\n\n{FIXED}"
    assert (Message.system(text),) == context.messages


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (RunContext(facts={"a": "1"}), "- a: 1"),
        (RunContext(tail_sections={"a": "1"}), "1"),
        (RunContext(facts={"a": "1", "b": " "}, tail_sections={"c": "\n", "d": "2"}), "- a: 1\n\n2"),
    ],
    ids=["facts", "sections", "some empty"],
)
def test_what_is_empty_leaves_no_gap(context: RunContext, said: str) -> None:
    """One blank line between two things that are said, never more."""
    assert f"{notices.CONTEXT_HEADING}\n\n{said}\n\n{FIXED}" == context.messages[0].text


@pytest.mark.parametrize("place", ["system", "user", "merged"])
def test_with_nothing_to_say_there_is_no_message(place: str) -> None:
    """The fixed lines never travel alone."""
    empty = RunContext(head_sections={"a": ""}, facts={"b": "", "c": None}, tail_sections={"d": " "}, tail_as=place)  # type: ignore[arg-type]

    assert () == RunContext().messages == empty.messages


def test_further_lines_of_a_fact_belong_to_it() -> None:
    """A value cannot pose as a fact of its own."""
    context = RunContext(facts={"branch": "main\n- cwd: /elsewhere", "cwd": "/a"})

    assert "- branch: main\n  - cwd: /elsewhere\n- cwd: /a\n" in context.messages[0].text


def test_messages_of_a_context_are_not_pinned() -> None:
    """They are part of no history, so nothing needs to keep them there."""
    head, tail = RunContext(head_sections={"a": "1"}, facts={"b": "2"}).messages

    assert (head.is_sticky, tail.is_sticky) == (False, False)


def test_messages_of_a_context_are_made_once() -> None:
    """Every round sends the very same ones, whose bytes are known."""
    context = RunContext(head_sections={"a": "1"}, facts={"b": "2"})

    assert all(first is second for first, second in zip(context.messages, context.messages, strict=True))


def test_equal_contexts_are_equal_bytes_in_every_process(tmp_path: Path) -> None:
    """No hash order, clock, folder or environment shows through."""
    told = [
        subprocess.run(
            [sys.executable, "-c", RENDER],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=folder,
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        ).stdout
        for seed, zone, folder in (("0", "UTC", tmp_path), ("1", "Asia/Tokyo", Path.cwd()), ("4242", "UTC", tmp_path))
    ]

    assert len(told[0].splitlines()) == 5
    assert all(first == second for first, second in pairwise(told))
