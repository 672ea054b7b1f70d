"""What `commands_of` sees in a call's arguments."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent.policy.commands import UNKNOWN, Command, commands_of


def effective(command: Any, args: Any = None) -> list[tuple[str | None, tuple[str, ...]]]:
    found = commands_of({"command": command} if args is None else {"command": command, "args": args})
    return [(each.program, each.tokens) for each in found if not each.is_wrapper]


@pytest.mark.parametrize(
    ("command", "args", "program", "tokens"),
    [
        ("git", ["status"], "git", ("status",)),
        ("/usr/bin/git", [], "git", ()),
        ("C:\\tools\\Git.EXE", ["log"], "Git", ("log",)),
        (["git", "log"], ["-1"], "git", ("log", "-1")),
        ("head", ["-n", 5], "head", ("-n", "5")),
        ("ls", ("a", "b"), "ls", ("a", "b")),
        ("ls", ["*", "$X", "~", "a b"], "ls", ("*", "$X", "~", "a b")),
    ],
)
def test_an_argument_list_is_read_to_the_letter(command: Any, args: Any, program: str, tokens: tuple[str, ...]) -> None:
    """Program by its base name, arguments as they are, since no shell expands them; whole numbers as text."""
    assert effective(command, args) == [(program, tokens)]


@pytest.mark.parametrize("odd", [None, True, 1.5, {"a": 1}, ["a"], 1 << 60])
def test_an_argument_that_is_no_text_seals_off_what_follows(odd: Any) -> None:
    """What different tools would write in different ways is unreadable; words behind it are kept apart."""
    (command,) = commands_of({"command": "ls", "args": ["a", odd, "b"]})

    assert command == Command("ls", ("a",), is_sealed=True, later=("b",))


@pytest.mark.parametrize(
    ("command", "args"),
    [(None, ["a"]), (5, []), ({}, []), ("", []), ([], []), ("a\0b", []), ("ls", ["a\0b"]), ("git status", ["a"]),
     ("-x", []), ("~", []), ("git.", []), ("g\u200bit", []), ([None], []), (["\uff52\uff4d"], [])],
)  # fmt: skip
def test_a_program_that_cannot_be_read_is_unknown(command: Any, args: Any) -> None:
    """One command without a program, which no allow by name matches."""
    (only,) = commands_of({"command": command, "args": args})

    assert only.program is None
    assert only.is_sealed
    assert only.is_opaque


def test_arguments_that_are_no_list_are_sealed() -> None:
    """The program is known, what it is given is not."""
    (command,) = commands_of({"command": "ls", "args": "-a b"})

    assert (command.program, command.tokens, command.is_sealed) == ("ls", (), True)


def test_a_call_without_a_program_has_no_commands() -> None:
    """Neither argument there: nothing is run by name."""
    assert commands_of({"path": "x"}) == ()


def test_other_arguments_may_hold_them() -> None:
    """The two names are the caller's choice."""
    (command,) = commands_of({"cmd": "git", "argv": ["log"]}, "cmd", "argv")

    assert (command.program, command.tokens) == ("git", ("log",))


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("git log | head -5", [("git", ("log",)), ("head", ("-5",))]),
        ("a 'b c' \"d\\\"e\" f\\ g h''i", [("a", ("b c", 'd"e', "f g", "hi"))]),
        ("a && (b; c) || { d; }", [("a", ()), ("b", ()), ("c", ()), ("d", ())]),
        ("if a; then b; else c; fi", [("a", ()), ("b", ()), ("c", ())]),
        ("echo $(a b) c", [("a", ("b",)), ("echo", ())]),
        ("! a", [("a", ())]),
        ("env A=1 timeout -s KILL 1.5s nice -n 5 ls x", [("ls", ("x",))]),
        ("bash -euo pipefail -c 'ls x; pwd' y", [("ls", ("x",)), ("pwd", ())]),
        ("eval a 'b;c'", [("a", ("b",)), ("c", ())]),
        ("command -v git", [("command", ("-v", "git"))]),
        ("env", [("env", ())]),
        ("uv run pytest -q", [("uv", ("run", "pytest", "-q")), ("pytest", ("-q",))]),
        ("git stash pop stash@{0}", [("git", ("stash", "pop", "stash@{0}"))]),
        ("> f", [("", ())]),
    ],
)
def test_a_line_comes_to_its_simple_commands(line: str, seen: list[Any]) -> None:
    """Quotes taken away, wrappers and shells seen through, substitutions included."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

    assert effective(line) == seen


def test_words_behind_an_unreadable_one_are_kept() -> None:
    """`rm -rf $X /` names the root, wherever it stands."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")
    (command,) = commands_of({"command": "rm -rf $X /"})

    assert (command.tokens, command.is_sealed, command.later) == (("-rf",), True, ("/",))


@pytest.mark.parametrize(
    ("line", "targets"),
    [("a > f", ("f",)), ("a >> f 2> g < h", ("f", "g", "h")), ("a 2>&1 >&-", ()), ("a > $X", (None,)), ("a &> f", ("f",)),
     ("a <f b", ("f",)), ("a >&f", ("f",)), ("{ a; } > f", ("f",)), ("a && b > f", ("f",))],
)  # fmt: skip
def test_redirections_are_targets(line: str, targets: tuple[str | None, ...]) -> None:
    """Files that a command reads from or writes to; descriptors are none."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")
    found = commands_of({"command": line})

    assert tuple(target for command in found for target in command.redirects) == targets


@pytest.mark.parametrize(
    ("line", "is_opaque"),
    [("X=1 ls", True), ("CI=1 ls", False), ("LC_ALL=C ls", False), ("env X=1 ls", True), ("x=1; ls", False), ("PATH=.; ls", True)],
)  # fmt: skip
def test_a_variable_that_may_change_what_runs_is_a_doubt(line: str, is_opaque: bool) -> None:
    """Set for a command, or in the shell; the few that only change how programs talk are none."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

    assert any(command.is_opaque for command in commands_of({"command": line})) is is_opaque


def test_without_the_extra_every_script_is_unknown() -> None:
    """An argument list is still read; a line, a shell's script and an eval are one unknown command each."""
    script = """
import sys
sys.modules["tree_sitter"] = None
from llm_agent.policy.commands import UNKNOWN, commands_of
assert commands_of({"command": "git", "args": ["log"]})[0].program == "git"
assert commands_of({"command": "git log"}) == (UNKNOWN,)
assert UNKNOWN in commands_of({"command": "bash", "args": ["-c", "git log"]})
assert UNKNOWN in commands_of({"command": "eval", "args": ["git log"]})
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=5)


@pytest.mark.parametrize(
    "line",
    ["(" * 5_000, "$(" * 4_000, "a;" * 4_000, "`" * 9_999, '"$(' * 3_000, "{ " * 4_000, "if " * 3_000, "<(" * 4_000,
     "a" * 1_000_000, "bash -c " * 1_000, "env " * 2_000, "a | " * 2_000, "'\"" * 4_000, "${a" * 3_000, "((" * 4_000],
)  # fmt: skip
def test_no_script_takes_long(line: str) -> None:
    """Whatever is written, the answer is there within two seconds; nothing raises."""
    started = time.monotonic()
    commands_of({"command": line})
    commands_of({"command": "bash", "args": ["-c", line]})
    commands_of({"command": "env", "args": ["env"] * 9_000 + [line]})

    assert time.monotonic() - started < 2


def test_more_commands_than_anyone_reads_end_in_an_unknown_one() -> None:
    """A very long script is not half judged."""
    assert UNKNOWN in commands_of({"command": "a; " * 2_000})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=300)
@given(
    command=json_values | st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    args=json_values,
)
def test_no_arguments_make_it_raise(command: Any, args: Any) -> None:
    """Any value in either place comes to commands, or to an unknown one."""
    found = commands_of({"command": command, "args": args})

    assert all(isinstance(each, Command) for each in found)
