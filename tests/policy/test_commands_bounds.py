"""Whatever is written, it is judged in little work, in a process that lives, and never as more than it is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
from judging import request, verdict

from llm_agent.policy import danger_floor
from llm_agent.policy.carriers import split_find
from llm_agent.policy.commands import MAX_CHARACTERS, MAX_WORDS, UNKNOWN, commands_of

FLOOR = danger_floor(home="/home/me", config="/home/me/.agent")
RULES = [
    *FLOOR.rules,
    {"tool": "*", "decision": "allow"},
    {"tool": "*", "decision": "deny", "command": "no", "args": ["x"]},
]

# What opens and never closes, what recovers badly from errors, what multiplies, what nests.
REPEATED = [
    "(", ")", "$(", "`", '"$(', "{ ", "} ", "if ", "then ", "<(", "<a ", ">b ", "a;", "a | ", "a&&", "|", ";;", "!",
    "'\"", "$'", "${a", "${a:-", "((", "((a", "$((1+", "[[", "[ ", "@(", "{a,", "~", "\\a", "a=b ", "a=(", "f() ", "# ",
    "function f ", "case a in ", "esac ", "for a in ", "env ", "eval ", "bash -c ", "test -", "a $X ", "\n", "<< E\n",
    "<<E ", "cat <<'E'\nE\n",
]  # fmt: skip


def quoted(script: str) -> str:
    return "'" + script.replace("'", "'\\''") + "'"


def nested(depth: int) -> str:
    script = "rm x"
    for _ in range(depth):
        script = f"bash -c {quoted(script)}"
    return script


LINES = [
    *(piece * (9_999 // len(piece)) for piece in REPEATED),
    *(piece * (100_000 // len(piece)) for piece in REPEATED),
    nested(6),
    nested(11),
    "bash -c 'a;a;a;a;a;a';" * 400,
    'echo "' + "$a" * 4_900 + '"',
    'echo "' + "$(a)" * 2_400 + '"',
    'echo "' + "$(echo " * 50 + ")" * 50 + '"',
]
# One word each, for an expression that tries again and again from the next letter on.
WORDS = [
    letters * (30_000 // len(letters)) + "!"
    for letters in (
        "-r", "r", "v", "1", "1.", "/a", "../", " .", "/ . .", ":=@,", "~", "-a=/", "a.", "p;", "s/a/", "{,", "[",
        "0,$", "::", "\u0300\u0316", "\u200b", "\ufb03", "\U0001f600",
    )
]  # fmt: skip
PROGRAMS = (
    "rm", "git", "env", "timeout", "nice", "command", "bash", "sed", "awk", "find", "tar", "make", "python",
    "systemctl",
)  # fmt: skip


def judged(**arguments: Any) -> str:
    return verdict(RULES, request("sh_run", **arguments), checks=FLOOR.checks).decision


def steps(**arguments: Any) -> int:
    """How many calls of functions, ours and built-in ones, it takes to judge."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        judged(**arguments)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[:9]!r}-{len(line)}")
def test_no_script_takes_much_work(line: str) -> None:
    """The steps are bounded by the length of what is read; the parser's own are bounded by a clock."""
    started = time.process_time()

    assert steps(command=line) < 100 * min(len(line), 10_000) + 20_000
    assert time.process_time() - started < 3


@pytest.mark.parametrize("letters", WORDS, ids=lambda word: repr(word[:3] + word[-1]))
def test_no_argument_takes_long(letters: str) -> None:
    """No length of one word is more than a moment, whatever it is an argument of."""
    started = time.process_time()
    for word in (letters, f"-{letters}", f"s/{letters}"):
        for program in PROGRAMS:
            judged(command=program, args=[word])

    assert time.process_time() - started < 5


def test_no_list_of_arguments_takes_long() -> None:
    """Wrappers in wrappers, shells in shells, paths in their thousands."""
    started = time.process_time()
    for words in (
        ["env"] * 9_000,
        ["bash", "-c"] * 4_000,
        ["eval"] * 9_000,
        ["a=b:c@/d"] * 9_000,
        ["-xr/a/.."] * 9_000,
    ):
        for program in PROGRAMS:
            judged(command=program, args=words)

    assert time.process_time() - started < 20


def test_a_find_whose_commands_never_end_is_read_once() -> None:
    """What is looked for behind one of them, and is not there, is not looked for behind the next."""
    looked_at = 0

    class Word(str):
        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    words = [Word(word) for word in ["-exec", "cat"] * 2_000]

    assert split_find(words) == (tuple(words), [])
    assert looked_at < 10 * len(words)


def test_more_than_a_kernel_takes_is_one_unknown_command() -> None:
    """Too many words, too many characters, too many commands."""
    assert commands_of({"command": "ls", "args": ["a"] * MAX_WORDS}) == (UNKNOWN,)
    assert commands_of({"command": "ls", "args": ["a" * MAX_CHARACTERS]}) == (UNKNOWN,)
    assert UNKNOWN in commands_of({"command": "a; " * 2_000})
    assert len(commands_of({"command": "; ".join(["env env env a"] * 400)})) <= 501


class Odd(Mapping[str, Any]):
    """Arguments that cannot be listed."""

    def __getitem__(self, name: str) -> Any:
        return "ls" if name == "command" else None

    def __iter__(self) -> Any:
        raise RuntimeError("no names")

    def __len__(self) -> int:
        return 1


def test_arguments_that_fail_are_unknown() -> None:
    """Nothing raises: what cannot be read is an unknown command."""
    assert commands_of(Odd()) == (UNKNOWN,)


@pytest.mark.parametrize("odd", ["\u00e9", "\u00a0", "\u200b", "\u2028", "\U0010ffff"])
def test_letters_beyond_ascii_are_read_in_strings_alone(odd: str) -> None:
    """To the letter there; anywhere else, and before what an old encoding may take with it, the line is unknown."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")
    read = commands_of({"command": f"""git commit -m 'a {odd} "b' "c'{odd}" > '{odd}'"""})

    assert [(each.program, each.tokens, each.redirects) for each in read] == [
        ("git", ("commit", "-m", f'a {odd} "b', f"c'{odd}"), (odd,))
    ]
    for line in (
        f"ls {odd}",
        f"{odd}",
        f"ls{odd};a",
        f"{odd}=1; ls",
        f"ls ${odd}",
        f'ls "{odd}\\" a"',
        f'ls "{odd}`a`"',
    ):
        assert all(each.program is None for each in commands_of({"command": line}))


@pytest.mark.parametrize("odd", ["\ud800", "\0", "\x1b", "\r", "\x7f"])
def test_control_characters_are_read_nowhere(odd: str) -> None:
    """Neither is half a character."""
    for line in (f"ls {odd}", f"ls '{odd}'", f"ls{odd};a"):
        assert all(each.program is None for each in commands_of({"command": line}))


FUZZ = """
import random, sys
from llm_agent.policy.commands import commands_of
import tree_sitter, tree_sitter_bash
parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
pieces = sys.argv[1].split("\\1")
chance = random.Random(4)
for _ in range(800):
    kind = chance.random()
    if kind < 0.7:
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 60)))
    elif kind < 0.9:
        text = "".join(chr(chance.randrange(128)) for _ in range(chance.randint(1, 200)))
    else:
        text = chance.choice(pieces) * chance.randint(1, 3_000) + chance.choice(pieces) * chance.randint(1, 300)
    assert parser.parse(text.encode()) is not None
    commands_of({"command": text})
    wide = [*pieces, "\u00e9", "\u4e2d", "\U0001f600", "\U0010ffff", "\ufeff", "\u200b", "\U0001d7d8"]
    for _ in range(10):
        commands_of({"command": "".join(chance.choice(wide) for _ in range(chance.randint(1, 60)))})
print("alive")
"""
MORE = [
    "<<", "<<-", "<<<", "E", "EOF", "'EOF'", "\\E", "\t", "\r", "\v", "\x1b", "\x7f", "=~", "==", "-eq", "+=", "2>",
    "&>", "^",
]  # fmt: skip


def test_no_text_ends_the_process() -> None:
    """The parser lives through soup of its own grammar, control characters and long repetitions; and we through all."""
    pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")
    pieces = "\1".join([*REPEATED, *MORE, " ", "a"])

    done = subprocess.run([sys.executable, "-c", FUZZ, pieces], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr[-500:]


BLOCKED = """
import sys
sys.modules[sys.argv[1]] = None
from llm_agent.policy import Policy, danger_floor
from llm_agent.policy.commands import UNKNOWN, commands_of
from llm_agent.testing import ScriptedProvider

floor = danger_floor()
rules = {
    "the floor": [*floor, {"tool": "sh_*", "decision": "allow"}],
    "a program": [{"tool": "*", "decision": "allow", "command": name} for name in ("git", "sh", "bash", "eval", "env")],
    "any program": [{"tool": "*", "decision": "allow", "command": "*"}],
}
calls = [
    {"command": "git log"},
    {"command": "sh", "args": ["-c", "git log"]},
    {"command": "bash", "args": ["-lc", "git log"]},
    {"command": "env", "args": ["bash", "-c", "git log"]},
    {"command": "eval", "args": ["git log"]},
    {"command": ["sh", "-c", "git log"]},
]
for call in calls:
    assert UNKNOWN in commands_of(call), call
for name, some in rules.items():
    policy = Policy(ScriptedProvider({"sh_run": "done"}), some, checks=floor.checks)
    judge = lambda call: policy.decide({"id": "c", "function": {"name": "sh_run", "arguments": call}}).decision
    assert [judge(call) for call in calls] == ["ask"] * len(calls), name
    assert judge({"command": "git", "args": ["log"]}) == "allow", name
print("asked")
"""


@pytest.mark.parametrize("missing", ["tree_sitter", "tree_sitter_bash"])
def test_without_the_extra_every_script_is_unknown_and_never_allowed(missing: str) -> None:
    """A line, a shell's script and an eval are asked about; an argument list is still read."""
    done = subprocess.run([sys.executable, "-c", BLOCKED, missing], capture_output=True, text=True, timeout=20)

    assert (done.returncode, done.stdout.strip()) == (0, "asked"), done.stderr[-500:]
