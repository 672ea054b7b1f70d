"""What `commands_of` sees in a call's arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent.policy.commands import Command, commands_of


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
    """The program is known, what it is given is not; nor what a tool makes of `"-a; rm b"`."""
    (command,) = commands_of({"command": "ls", "args": "-a b"})

    assert (command.program, command.tokens, command.is_sealed, command.is_opaque) == ("ls", (), True, True)


def test_a_name_with_a_backslash_is_read_in_both_ways() -> None:
    """As a path of Windows, and as a shell would read it: `reboo\\t`."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

    assert [command.program for command in commands_of({"command": "reboo\\t"})] == ["t", "reboot"]
    assert [command.program for command in commands_of({"command": "C:\\bin\\git"})] == ["git", "C:bingit"]


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
    [("a > f", ("f",)), ("a >> f 2> g < h", ("f", "g", "h")), ("a 2>&1 >&-", ()), ("a > $X", (None,)),
     ("a &> f", ("f",)), ("a <f b", ("f",)), ("a >&f", ("f",)), ("{ a; } > f", ("f",)), ("a && b > f", ("f",))],
)  # fmt: skip
def test_redirections_are_targets(line: str, targets: tuple[str | None, ...]) -> None:
    """Files that a command reads from or writes to; descriptors are none."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")
    found = commands_of({"command": line})

    assert tuple(target for command in found for target in command.redirects) == targets


@pytest.mark.parametrize(
    ("line", "is_opaque"),
    [("X=1 ls", True), ("CI=1 ls", False), ("LC_ALL=C ls", False), ("env X=1 ls", True), ("x=1; ls", False),
     ("PATH=.; ls", True)],
)  # fmt: skip
def test_a_variable_that_may_change_what_runs_is_a_doubt(line: str, is_opaque: bool) -> None:
    """Set for a command, or in the shell; the few that only change how programs talk are none."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

    assert any(command.is_opaque for command in commands_of({"command": line})) is is_opaque


@pytest.mark.parametrize(
    ("more", "is_moved", "is_opaque"),
    [
        ({"cwd": "/"}, True, False),
        ({"workingDir": "sub"}, True, False),
        ({"working-directory": "/"}, True, False),
        ({"cwd": ""}, False, False),
        ({"env": {"PATH": "."}}, False, True),
        ({"env": {"CI": "1"}}, False, False),
        ({"env": ["PATH=."]}, False, True),
        ({"env": {5: 1}}, True, True),
        ({"shell": True}, False, True),
        ({"shell": False, "timeout": 5, "stdin": "x"}, False, False),
    ],
)
def test_other_arguments_of_the_call_raise_doubts(more: Any, is_moved: bool, is_opaque: bool) -> None:
    """A folder to start in, variables, a shell: nobody wrote them into the command."""
    (command,) = commands_of({"command": "git", "args": ["log"], **more})

    assert (command.is_moved, command.is_opaque) == (is_moved, is_opaque)


@pytest.mark.parametrize("line", ["cd /; ls", "command cd /; ls", "eval 'cd /'; ls", "ls; builtin pushd /", "$X /; ls"])
def test_whatever_changes_the_folder_is_a_doubt_about_all_of_the_script(line: str) -> None:
    """Seen through wrappers and evals too; an unreadable program may be `cd`."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

    assert all(command.is_moved for command in commands_of({"command": line}))


def test_a_shell_in_a_shell_moves_nobody_else() -> None:
    """Where nothing changes the folder, nothing is in doubt."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

    assert not any(command.is_moved for command in commands_of({"command": "ls -la && bash -c 'ls'"}))


def test_an_unreadable_first_argument_makes_no_program_of_the_second() -> None:
    """`echo $X rm` runs no `rm`; `uv run rm` does."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

    assert [command.program for command in commands_of({"command": "echo $X rm"})] == ["echo"]
    assert [command.program for command in commands_of({"command": "uv run rm"})] == ["uv", "rm"]
    assert [command.program for command in commands_of({"command": "npx rm"})] == ["npx", "rm"]


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
