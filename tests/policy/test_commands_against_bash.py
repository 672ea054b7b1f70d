"""What the real bash ran must be what `commands_of` saw, or it said that it does not know.

Bash runs in an empty folder with an empty environment, and its PATH holds recorders (scripts that
log how they were called) beside the real wrappers. Nothing generated here holds a slash, so
nothing outside of the folder can be named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shell_tricks import LINES, entries

from llm_agent.policy.commands import Command, commands_of, matches

pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs a real bash")

END = "=end="
RECORDED = ("forbidden", "git", "ls", "cat", "a", "b", "x", "xargs", "sudo")
REAL = ("env", "timeout", "nice", "nohup", "stdbuf", "ionice", "setsid", "bash", "sh", "dash", "find")
# Programs that run others, for the tricks that need them.
MORE = (
    "cat", "xargs", "awk", "gawk", "mawk", "sed", "perl", "python3", "python", "ruby", "node", "php", "lua",
    "tar", "split", "sort", "make", "ed", "vim", "ex", "busybox", "script", "flock", "taskset", "chrt", "setarch",
    "linux64", "m4", "zip", "cmake", "ssh-agent", "choom", "uclampset", "prlimit", "zsh", "ksh", "fish",
)  # fmt: skip


class Sandbox:
    """A folder in which bash runs, and what it ran there."""

    def __init__(
        self, root: Path, recorded: Sequence[str] = RECORDED, real: Sequence[str] = REAL, seconds: float = 2
    ) -> None:
        self._root, self._bin, self._runs, self._seconds = root, root / "bin", count(), seconds
        self._bin.mkdir()
        # One write per record, so that two at a time do not mix; one log per run, so that none is late for the next.
        recorder = f"""#!/bin/sh\nprintf '%s\\0' "${{0##*/}}" "$@" {END} >> {root}/"${{PWD##*/}}".log\n"""
        for name in recorded:
            (self._bin / name).write_text(recorder)
            (self._bin / name).chmod(0o755)
        for name in real:
            real = sys.executable if name.startswith("python") else shutil.which(name)
            if real:
                (self._bin / name).symlink_to(os.path.realpath(real) if name != "sh" else real)

    def run(self, script: str, **files: str) -> tuple[list[list[str]], set[str]]:
        """The argument lists of the recorders that *script* started, and the files that are there after it.

        *files*: those that are there before it, with their texts.
        """
        run = f"run{next(self._runs)}"
        work, log = self._root / run, self._root / f"{run}.log"
        work.mkdir()
        for name, text in files.items():
            (work / name).write_text(text)
        log.write_bytes(b"")
        process = subprocess.Popen(
            [str(BASH), "--norc", "--noprofile", "-c", script],
            cwd=work,
            env={"PATH": str(self._bin), "HOME": str(work), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._end(process)
        logged = log.read_bytes().decode("utf-8", "surrogateescape")
        ran = [entry.split("\0")[:-1] for entry in logged.split(f"{END}\0") if entry]
        left = {path.name for path in work.iterdir()}
        shutil.rmtree(work, ignore_errors=True)
        log.unlink()
        return ran, left

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Let what runs in the background come to its end, for a moment; then end it."""
        until = monotonic() + 0.5
        try:
            while monotonic() < until:
                os.killpg(process.pid, 0)
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            pass
        process.wait(5)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("bash"))


def is_known(commands: tuple[Command, ...]) -> bool:
    """Whether nothing is in doubt; what a script file holds is not looked into."""
    reads_file = any(command.program in ("bash", "sh", "dash") and not command.is_wrapper for command in commands)
    return not reads_file and all(command.program is not None and not command.is_opaque for command in commands)


def saw(command: Command, ran: list[str]) -> bool:
    """Whether *command* is what ran, as far as it claims to know."""
    name, *words = ran
    if command.program != name:
        return False
    if command.is_sealed:
        return words[: len(command.tokens)] == list(command.tokens)
    return words == list(command.tokens)


def check(sandbox: Sandbox, script: str) -> bool:
    """Whether the script was understood; whatever ran or was written then must have been seen."""
    commands = commands_of({"command": "bash", "args": ["-c", script]})
    if not is_known(commands):
        return False
    ran, files = sandbox.run(script)
    unseen = [entry for entry in ran if not any(saw(command, entry) for command in commands)]
    targets = {target for command in commands for target in command.redirects}
    assert unseen == [], f"{script!r} ran {unseen}, seen {commands}"
    assert None in targets or files <= targets, f"{script!r} wrote {files}, seen {targets}"
    if any(entry[0] == "forbidden" for entry in ran):
        verdicts = [matches({"command": "forbidden"}, command, "deny") for command in commands]
        assert True in verdicts
    return True


PIECES = [
    "git", "ls", "cat", "a", "b", "x", "forbidden", "xargs", "sudo", "env", "timeout", "time", "nice", "nohup",
    "stdbuf", "setsid", "exec", "command", "builtin", "coproc", "eval", "bash", "sh", "dash", "-c", "-ce", "-lc",
    "-o", "pipefail", "-u", "-s", "-n", "-i", "-k", "-a", "-p", "-v", "--", "-", "5", "1.5", "KILL", "L", "X=1",
    "y=2", "LANG=C", "CI=1", "echo", "true", "test", "[", "]", "[[", "]]", "if", "then", "else", "elif", "fi",
    "while", "until", "do", "done", "for", "in", "case", "esac", "function", "select", "!", "{", "}", "(", ")", "((",
    "))", ";", ";;", "&", "&&", "|", "||", "|&", "<", ">", ">>", "<>", "&>", ">&", "2>&1", "1>&-", "2>", "<<<", "<<",
    "<(", ">(", "$(", ")", "`", "$x", "${x}", "${x:-forbidden}", "$((", "))", "$'", '$"', '\\', '\\\\', "\\;", '\\"',
    "'", '"', "''", '""', "*", "?", "[ab]", "{a,b}", "{a..c}", "#", "\n", "\t", "=", "=a", "a=", "+=", "@", "%", "^",
    ",", ".", "..", ":", "rm$x", "\\\n", "é", "\xa0", "\u200b", "\r", "set", "export", "trap", "EXIT", "printf",
    "read", "alias", "source", "unset", "let", "a()", "${", "<<a", "-e", "-x", "--help", "+x", "$@", "$*", "$?",
    "$1", "$-", "$$", "${!x}", "${#x}", "'a", "b'", '"a', 'b"', '"$x"', '"$(a)"', "'forbidden'", '"forbidden"',
    "\\forbidden", "f'orbidden'", 'for"bidden"',
]  # fmt: skip
joints = st.sampled_from([" ", " ", " ", " ", "", ";", "\n", "&&", "|", "&"])
soups = st.lists(st.tuples(st.sampled_from(PIECES), joints), max_size=14).map(
    lambda pairs: "".join(piece + joint for piece, joint in pairs)
)
characters = st.text(st.sampled_from("abx gil's\"\\$`(){}[]<>|&;!#=*?,.-+^%@:\n\t 0125é\u00a0"), max_size=30)

words = st.sampled_from([
    "a", "b", "x", "c", "dd", "e", "-f", "--g", "h.i", "a", "b", "x", "-c", "'a b'", '"a b"', "a\\ b", '"$x"',
    "$(ls)", '"$(ls a)"', "`b`", "x=1", "1", "-5", "''", 'a\'b\'"c"', "{a,b}", "{a}", "@{u}", "*", "\\*", "a#b",
    '"a\\"b"', "'a'\\''b'", '"a;b"', "';forbidden'", "2", "a=b", ":", "!", "if", "do", '"$(a "b c")"', "<(ls a)",
    "$((1))", '"`a`"', "a&b", "a>b", "2>b", "<x", ">x", "&>b", "2>&1", "]", "}",
    "'é'", '"é$x"', '"é;b"', "'\u00a0'", '"\U0001f600$(ls é)"', "'é'b", '"é\\""', "é",
])  # fmt: skip
tests = st.sampled_from(
    ["-f", "-d", "-n", "-z", "-v", "=", "!=", "==", "-eq", "-a", "-o", "!", "(", ")", "<", "\n", "]"]
)
programs = st.sampled_from([
    "ls", "ls", "a", "b", "cat", "git", "ls", "forbidden", "echo", "cat", "a", "env", "env X=1", "env -u X",
    "timeout 5", "timeout -s KILL 5", "nice", "nice -n 5", "time", "nohup", "stdbuf -oL", "setsid -w", "exec",
    "command", "X=1", "CI=1", "y=1", "! ", "eval", "true", "\\git", "'ls'", 'g"it"', "exec -a n", "time -p",
    "command -v", "timeout 1.5", "env -i", "stdbuf -o L", "coproc", "builtin", "if", "while", "{", "(", "[", "x>a",
])  # fmt: skip
simples = st.builds(
    lambda heads, tail: " ".join([*heads, *tail]),
    st.lists(programs, min_size=1, max_size=3),
    st.lists(words, max_size=4),
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quoted = inner.map(lambda text: "'" + text.replace("'", "'\\''") + "'")
    return st.one_of(
        st.builds("{}{}{}".format, inner, st.sampled_from([" && ", "||", ";", "\n", "|", " & ", " |& ", ";;"]), inner),
        inner.map("({})".format),
        inner.map("{{ {}; }}".format),
        inner.map("! {}".format),
        inner.map("{} > b".format),
        inner.map("echo $({})".format),
        inner.map('echo "$({})"'.format),
        inner.map("echo `{}`".format),
        inner.map("cat <({})".format),
        st.builds("if {}; then {}; else {}; fi".format, inner, inner, inner),
        st.builds("while {}; do {}; break; done".format, inner, inner),
        st.builds("for {} in {}; do {}; done".format, st.sampled_from("abxi"), st.lists(words).map(" ".join), inner),
        st.builds("[ {} ] && {}".format, st.lists(words | tests, max_size=5).map(" ".join), inner),
        st.builds("find . -maxdepth 0 -exec {} {};".format, inner, st.sampled_from(["{} +", "\\", "x{} \\"])),
        st.builds("bash -c {}".format, quoted),
        st.builds("sh -ec {}".format, quoted),
        st.builds("eval {}".format, quoted),
        st.builds("bash -o pipefail -c {} x y".format, quoted),
    )


scripts = st.recursive(simples, compound, max_leaves=5)
relaxed = settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@relaxed
@given(script=scripts)
@example(script="env -u X forbidden a")
@example(script="timeout -s KILL 5 forbidden a")
@example(script="bash -ce 'forbidden a'")
@example(script="X=1 forbidden a")
@example(script="exec -a n forbidden")
@example(script="trap 'forbidden a' EXIT")
def test_what_bash_runs_was_seen(sandbox: Sandbox, script: str) -> None:
    """Of a script made of shell grammar, every program that ran and every file written was among the commands."""
    check(sandbox, script)


@relaxed
@given(script=soups | characters)
def test_what_bash_makes_of_soup_was_seen(sandbox: Sandbox, script: str) -> None:
    """Of shell pieces thrown together, every program that ran was among the commands."""
    check(sandbox, script)


def test_tricks_run_what_they_hide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Most of the tricks run their `rm` in the real bash, so that it is right to stop them; none is just odd text.

    The others need programs that are not here, a terminal, or a shell that is none of bash.
    """
    sandbox = Sandbox(tmp_path, ("rm", "git", "ls"), (*REAL, *MORE), seconds=1)
    lines = entries(LINES)

    def runs(line: str) -> bool:
        ran, left = sandbox.run(line, f="rm x\n", x="")
        return any(entry[0] == "rm" for entry in ran) or "x" not in left

    with ThreadPoolExecutor(8) as pool:
        ran = sum(pool.map(runs, lines))
    with capsys.disabled():
        print(f"\nshell tricks: {ran} of {len(lines)} ran what they hide in this bash")

    assert ran >= 200
