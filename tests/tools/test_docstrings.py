"""Docstrings of the three styles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.tools.docstrings import Docstring, parse


def test_google_arguments_are_read() -> None:
    """Names, types in brackets, continuation lines and colons in the text are understood."""
    found = parse(
        """Read a file.

        It may be large.

        Args:
            path: relative to
                the root
            limit (int, optional): lines: at most
            *rest: more

        Returns:
            The text.
        """
    )

    assert found.description == "Read a file.\n\nIt may be large."
    assert found.parameters == {"path": "relative to\nthe root", "limit": "lines: at most", "rest": "more"}


def test_text_after_a_google_section_is_description() -> None:
    """What stands at the margin again belongs to no section."""
    found = parse("Do it.\n\nArgs:\n    a: one\n\nMind the gap.")

    assert found.description == "Do it.\n\nMind the gap."
    assert found.parameters == {"a": "one"}


def test_numpy_parameters_are_read() -> None:
    """Underlined sections, types after a colon, and several names in one entry are understood."""
    found = parse(
        """Scale a value.

        Parameters
        ----------
        x, y : float
            The coordinates,
            in metres.
        name
            A label.

        Returns
        -------
        float
            Something.
        """
    )

    assert found.description == "Scale a value."
    assert found.parameters == {
        "x": "The coordinates,\nin metres.",
        "y": "The coordinates,\nin metres.",
        "name": "A label.",
    }


def test_sphinx_fields_are_read() -> None:
    """Fields with and without a type are parameters, other fields are dropped."""
    found = parse(
        """Send it.

        :param str to: who
            gets it
        :param body: what
        :type body: str
        :returns: nothing
        """
    )

    assert found.description == "Send it."
    assert found.parameters == {"to": "who\ngets it", "body": "what"}


def test_a_section_word_in_prose_is_prose() -> None:
    """`Args:` without an indented body is text."""
    assert parse("Parse these.\n\nArgs:\nnot a section").description == "Parse these.\n\nArgs:\nnot a section"


def test_nothing_is_read_from_nothing() -> None:
    """A function without a docstring has no description."""
    assert parse(None).description == ""
    assert parse("").parameters == {}


PIECES = ["Args:", "Parameters", "----", "  a: b", "a : int", ":param x: y", "", "\t", "text", "::", ":param", " *"]


@given(st.lists(st.sampled_from(PIECES)))
def test_parsing_never_raises(lines: list[str]) -> None:
    """Any mixture of pieces is read somehow."""
    found = parse("\n".join(lines))

    assert isinstance(found.description, str)
    assert all(isinstance(text, str) for text in found.parameters.values())


@pytest.mark.parametrize(
    "text",
    [
        "Args:\n        a: the first\n        b: the second\n    ",
        "\n    Args:\n        a: the first\n        b: the second\n    ",
        "Args:\n    a: the first\n    b: the second",
        "Args:\n    a: the first\n    b: the second\n\nReturns:\n    nothing",
    ],
)
def test_a_docstring_may_begin_with_its_arguments(text: str) -> None:
    """There is no description then, and the arguments are no part of one."""
    assert parse(text) == Docstring("", {"a": "the first", "b": "the second"})
