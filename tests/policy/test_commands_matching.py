"""What a rule's `command`, `args` and `args-any` make of one command: yes, no, or unknown."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from llm_agent.policy.commands import UNKNOWN, Command, matches

GIT = Command("git", ("push", "--force", "origin"))
SEALED = Command("git", ("push",), is_sealed=True, later=("--force",))


@pytest.mark.parametrize(
    ("narrowers", "command", "allow", "deny"),
    [
        ({"command": "git"}, GIT, True, True),
        ({"command": "g*"}, GIT, True, True),
        ({"command": "*"}, GIT, True, True),
        ({"command": "rm"}, GIT, False, False),
        ({"command": "GIT"}, GIT, False, True),
        ({"command": "git"}, Command("GIT"), False, True),
        ({"command": "git"}, UNKNOWN, None, None),
        ({"command": "git", "args": ["push"]}, GIT, True, True),
        ({"command": "git", "args": ["push", "--force"]}, GIT, True, True),
        ({"command": "git", "args": ["--force"]}, GIT, False, False),
        ({"command": "git", "args": ["PUSH"]}, GIT, False, True),
        ({"command": "git", "args": ["push", "--force"]}, SEALED, None, None),
        ({"command": "git", "args": ["log"]}, SEALED, False, False),
        ({"command": "git", "args": ["push"]}, Command("git", ("-C", ".", "push")), False, True),
        ({"command": "git", "args": ["push"]}, Command("git", ("log",)), False, False),
        ({"command": "git", "args-any": ["--force", "-f"]}, GIT, True, True),
        ({"command": "git", "args-any": ["-f"]}, GIT, False, False),
        ({"command": "git", "args-any": ["-f"]}, SEALED, None, None),
        ({"command": "git", "args-any": ["--force"]}, SEALED, None, True),
        ({"command": "git", "args-any": ["--lease"]}, Command("git", ("--lease=x",)), False, True),
        ({"command": "rm", "args": ["x"]}, SEALED, False, False),
        ({"command": "git", "args": ["push"], "exact": True}, GIT, False, False),
        ({"command": "git", "args": ["push", "--force", "origin"], "exact": True}, GIT, True, True),
        ({"command": "git", "exact": True}, Command("git"), True, True),
        ({"command": "git", "exact": True}, GIT, False, False),
        ({"command": "git", "args": ["push"], "exact": True}, SEALED, None, None),
    ],
)
def test_narrowers_say_yes_no_or_unknown(narrowers: Any, command: Command, allow: Any, deny: Any) -> None:
    """An allow compares to the letter, a deny and an ask in any case; what cannot be read is unknown."""
    assert matches(narrowers, command, "allow") is allow
    assert matches(narrowers, command, "deny") is deny
    assert matches(narrowers, command, "ask") is deny


def test_a_program_from_an_unusual_place_is_not_the_one_that_is_allowed() -> None:
    """A file called git in the workspace is denied as git, and not allowed as git."""
    command = Command("git", is_elsewhere=True)

    assert matches({"command": "git"}, command, "allow") is None
    assert matches({"command": "git"}, command, "deny") is True


def test_what_runs_others_unseen_is_unknown_to_both() -> None:
    """An opaque command is not allowed by its name, and may be what is denied."""
    command = Command("git", ("x",), is_opaque=True)

    assert matches({"command": "git"}, command, "allow") is None
    assert matches({"command": "rm"}, command, "deny") is None
    assert matches({"command": "rm", "args": ["-r"]}, command, "ask") is None


def test_naming_an_interpreter_is_naming_all_it_runs() -> None:
    """`allow python` allows `python -c`, `allow p*` does not."""
    command = Command("python", ("-c", "x"), is_opaque=True)

    assert matches({"command": "python"}, command, "allow") is True
    assert matches({"command": "p*"}, command, "allow") is None


def test_a_wrapper_is_passed_over_by_an_allow_and_seen_by_a_deny() -> None:
    """What it runs is judged by itself; a denied `env` stays denied."""
    command = attrs.evolve(Command("env"), is_wrapper=True)

    assert matches({"command": "git"}, command, "allow") is True
    assert matches({"command": "env"}, command, "deny") is True
    assert matches({"command": "rm"}, command, "deny") is False
