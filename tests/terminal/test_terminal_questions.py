"""Questions of tools and forms of servers, at a real terminal."""

from __future__ import annotations

from typing import Any, Protocol

import pytest


class Typist(Protocol):
    def ask(self, request: Any, **options: Any) -> None: ...
    def wait_for(self, text: str) -> str: ...
    def type(self, text: str, after: str = "> ") -> None: ...
    def answer(self) -> Any: ...


# -- a tool's question ---------------------------------------------------------------------------


def test_a_question_is_answered_by_what_was_typed(typist: Typist) -> None:
    """Free text goes back to the tool as it was typed."""
    typist.ask({"tool": "deploy", "question": "Which branch?"})
    typist.wait_for("deploy asks:\n  | Which branch?\n")
    typist.type("feature/x y\n")

    assert typist.answer() == "feature/x y"


def test_the_end_of_the_input_is_no_answer(typist: Typist) -> None:
    """Ctrl-D is not the empty text."""
    typist.ask({"question": "Which branch?"})
    typist.type("\x04")

    assert typist.answer() is None


@pytest.mark.parametrize(("typed", "expected"), [("2", "keep"), ("keep", "keep"), ("9\n1", "drop"), ("\nx\n1", "drop")])
def test_a_choice_is_one_of_those_offered(typist: Typist, typed: str, expected: str) -> None:
    """By its number or its text; anything else asks again."""
    typist.ask({"question": "What about it?", "choices": ["drop", "keep"]})
    for line in typed.split("\n"):
        typist.type(f"{line}\n")

    assert typist.answer() == expected


def test_a_question_cannot_act_on_the_terminal(typist: Typist) -> None:
    """Neither its text nor its choices."""
    typist.ask({"tool": "t\x1b[2J", "question": "a\x1b[2J\n> b", "choices": ["\x1b[1m"]})
    shown = typist.wait_for("[1]")
    typist.type("1\n", after="\n> ")

    assert typist.answer() == "\x1b[1m"
    assert "\x1b" not in shown


# -- a server's form -----------------------------------------------------------------------------


def form(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    request = {"mode": "form", "message": "Who are you?", "requestedSchema": schema}
    return {"kind": "server-elicit", "server": "git", "tool": "commit", "request": request}


def test_a_form_is_filled_in_line_by_line(typist: Typist) -> None:
    """Every value has the type that the server's schema asks for."""
    typist.ask(
        form(
            name={"type": "string", "title": "Your name"},
            age={"type": "integer"},
            weight={"type": "number"},
            member={"type": "boolean"},
            size={"type": "string", "enum": ["S", "L"]},
            tags={"type": "array", "items": {"type": "string"}},
        )
    )
    typist.wait_for("git asks for something:\n  | Who are you?\nIt asks for: name, age, weight, member, size, tags\n")
    typist.type("y\n")
    for typed, prompt in [
        ("Ada", "Your name (text; may be empty): "),
        ("36", "age (a whole number; may be empty): "),
        ("61.5", "weight (a number; may be empty): "),
        ("y", "member (y or n; may be empty): "),
        ("L", "size (one of S, L; may be empty): "),
        ("a, b", "tags (words with commas between; may be empty): "),
    ]:
        typist.type(f"{typed}\n", after=prompt)

    content = {"name": "Ada", "age": 36, "weight": 61.5, "member": True, "size": "L", "tags": ["a", "b"]}
    assert typist.answer() == {"action": "accept", "content": content}


def test_a_value_that_does_not_fit_is_asked_for_again(typist: Typist) -> None:
    """No server is sent a value of another type than its schema says."""
    typist.ask(form(required=("age",), age={"type": "integer"}))
    typist.type("y\n")
    typist.type("\n", after="age (a whole number): ")
    typist.type("old\n", after="This one is required.\n  age (a whole number): ")
    typist.type("36\n", after="That does not fit; expected a whole number.\n  age (a whole number): ")

    assert typist.answer() == {"action": "accept", "content": {"age": 36}}


def test_a_default_of_null_is_none(typist: Typist) -> None:
    """An empty line leaves the field out, and the form goes on."""
    typist.ask(form(name={"type": "string", "default": None}, age={"type": "integer"}))
    typist.type("y\n")
    typist.type("\n", after="name (text; may be empty): ")
    typist.type("36\n", after="age (a whole number; may be empty): ")

    assert typist.answer() == {"action": "accept", "content": {"age": 36}}


@pytest.mark.parametrize("items", [{"enum": ["S", "L"]}, {"anyOf": [{"const": "S", "title": "small"}, {"const": "L"}]}])
def test_several_choices_are_some_of_those_offered(typist: Typist, items: dict[str, Any]) -> None:
    """They are shown, and anything else is asked for again."""
    typist.ask(form(sizes={"type": "array", "items": {"type": "string", **items}}))
    typist.type("y\n")
    typist.type("S, M\n", after="sizes (some of, with commas between: S, L; may be empty): ")
    typist.type("L,S\n", after="sizes (some of, with commas between: S, L; may be empty): ")

    assert typist.answer() == {"action": "accept", "content": {"sizes": ["L", "S"]}}


def test_an_empty_line_is_the_default_that_was_shown_or_nothing(typist: Typist) -> None:
    """What is not required and was not typed is not sent."""
    typist.ask(form(branch={"type": "string", "default": "main"}, note={"type": "string"}))
    typist.type("y\n")
    typist.type("\n", after="branch (text; empty for main): ")
    typist.type("\n", after="note (text; may be empty): ")

    assert typist.answer() == {"action": "accept", "content": {"branch": "main"}}


@pytest.mark.parametrize(("typed", "action"), [("n\n", "decline"), ("\x04", "cancel"), ("what?\nn\n", "decline")])
def test_a_form_can_be_refused(typist: Typist, typed: str, action: str) -> None:
    """A no declines, the end of the input cancels; nothing is sent."""
    typist.ask(form(name={"type": "string"}))
    for line in typed.splitlines(keepends=True):
        typist.type(line)

    assert typist.answer() == {"action": action}


def test_a_form_that_is_left_in_the_middle_sends_nothing(typist: Typist) -> None:
    """What was filled in before is not sent without the rest."""
    typist.ask(form(name={"type": "string"}, age={"type": "integer"}))
    typist.type("y\n")
    typist.type("Ada\n", after="may be empty): ")
    typist.type("\x04", after="age (a whole number; may be empty): ")

    assert typist.answer() == {"action": "cancel"}


def test_an_address_is_shown_and_not_opened(typist: Typist) -> None:
    """The human opens it, or not; the server is told whether they agreed."""
    asked = {"mode": "url", "message": "Sign in", "url": "https://a.org/\x1b[8mlogin"}
    typist.ask({"kind": "server-elicit", "server": "git", "request": asked})
    typist.wait_for("https://a.org/\\u{1b}[8mlogin\n")
    typist.type("y\n")

    assert typist.answer() == {"action": "accept"}


@pytest.mark.parametrize("request_", [None, {}, {"requestedSchema": 3}, {"requestedSchema": {"properties": {"a": 1}}}])
def test_a_form_of_any_shape_is_survived(typist: Typist, request_: Any) -> None:
    """What a server sends is the world's; the human can still say no."""
    typist.ask({"kind": "server-elicit", "request": request_})
    typist.type("n\n")

    assert typist.answer() == {"action": "decline"}
