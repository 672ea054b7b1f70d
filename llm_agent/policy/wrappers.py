"""Programs that only run another one: `env`, `timeout`, `nice`, and shells with `-c`.

The law: an option that is not in the table makes the command unreadable. What stands behind an
option whose shape we guess may be its value or the program.

Pure: words in, words out. What is run by `find -exec` or `git -c` lives in `carriers`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import attrs

from llm_agent.policy.shell import Word, names


class Unmodelled(Exception):
    """An option, or a word in its place, that is not in the table."""


@attrs.frozen
class _Options:
    flags: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    operand: re.Pattern[str] | None = None
    """What must stand between the options and the program."""
    takes_assignments: bool = False
    takes_end: bool = True
    adds_words: bool = False
    """What it runs has more arguments than are written."""
    number: re.Pattern[str] | None = None
    """A number written as an option: `nice -5`."""


def _options(flags: str = "", valued: str = "", **more: object) -> _Options:
    return _Options(frozenset(flags.split()), frozenset(valued.split()), **more)  # type: ignore[arg-type]


# The manual pages of GNU coreutils, util-linux and bash, less what the BSDs read differently.
_WRAPPERS: Final = {
    "env": _options("-i - --ignore-environment -v --debug", "-u --unset -C --chdir", takes_assignments=True),
    "timeout": _options(
        "-v --verbose --foreground --preserve-status",
        "-s --signal -k --kill-after",
        operand=re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)[smhd]?"),
    ),
    "time": _options("-p -v --portability --verbose"),
    "nice": _options("", "-n --adjustment", number=re.compile(r"-[0-9]+")),
    "nohup": _options(),
    "stdbuf": _options("", "-i -o -e --input --output --error"),
    "ionice": _options("-t --ignore", "-c -n --class --classdata"),
    "setsid": _options("-c -f -w --ctty --fork --wait"),
    "exec": _options("-c -l", "-a"),
    "command": _options("-p"),
    "builtin": _options(),
    "coproc": _options(takes_end=False),
    "busybox": _options(takes_end=False),
    "toybox": _options(takes_end=False),
    # `-I` puts what it reads anywhere, into scripts too; `-i`, `-l` and `-e` differ between the systems.
    "xargs": _options("-0 -r -t -x --null --no-run-if-empty --verbose --exit", "-n -P -L --max-procs", adds_words=True),
}
# Words that only ask a question: nothing is run.
_QUESTIONS: Final = {"command": re.compile(r"-p*[vV][pvV]*"), "busybox": re.compile(r"--(?:list|help)")}

# Shells whose scripts the grammar reads as they do. In zsh, ksh, fish and csh the same text can mean another thing.
READABLE_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash"})
SHELLS: Final = READABLE_SHELLS | names(
    "zsh ksh ksh93 mksh pdksh lksh oksh loksh yash rbash rksh rzsh fish csh tcsh rc es xonsh elvish nu posh hush "
    "osh oil ysh pwsh powershell cmd"
)
_SHELL_FLAGS: Final = frozenset("leuxvfhmpbBCnc")
_SHELL_WORDS: Final = frozenset({"--login", "--norc", "--noprofile", "--posix"})
_SHELL_SETTINGS: Final = names("errexit nounset pipefail xtrace verbose noglob noclobber")


@attrs.frozen
class Wrapped:
    """What a wrapper runs; no words when it runs nothing."""

    words: tuple[Word, ...] = ()
    assigned: tuple[str, ...] = ()
    is_moved: bool = False


@attrs.frozen
class ShellCall:
    """How a shell is called: with a script in its arguments, a file, or neither (it reads its input)."""

    script: Word = None
    has_script: bool = False
    file: str | None = None


def is_wrapper(program: str) -> bool:
    return program in _WRAPPERS


def unwrapped(program: str, words: Sequence[Word]) -> Wrapped:
    """Return what wrapper *program* runs, given the words after its name.

    Raises:
        Unmodelled: it cannot be known.
    """
    options = _WRAPPERS[program]
    question = _QUESTIONS.get(program)
    if question is not None and words and words[0] is not None and question.fullmatch(words[0]):
        return Wrapped()
    place, is_moved = _after_options(options, words)
    if options.operand is not None and place < len(words):
        if not options.operand.fullmatch(_readable(words, place)):
            raise Unmodelled(f"{program}: {words[place]!r}")
        place += 1
    assigned: list[str] = []
    while options.takes_assignments and place < len(words) and "=" in _readable(words, place):
        assigned.append(_readable(words, place).partition("=")[0])
        place += 1
    more: tuple[Word, ...] = (None,) if options.adds_words and place < len(words) else ()
    return Wrapped((*words[place:], *more), tuple(assigned), is_moved)


def _after_options(options: _Options, words: Sequence[Word]) -> tuple[int, bool]:
    place, is_moved = 0, False
    while place < len(words) and _readable(words, place).startswith("-"):
        word = _readable(words, place)
        if word == "--" and options.takes_end:
            return place + 1, is_moved
        place += _width(options, word)
        if place > len(words):
            raise Unmodelled(word)
        _readable(words, place - 1)
        is_moved = is_moved or word.startswith(("-C", "--chdir"))
    return place, is_moved


def _width(options: _Options, word: str) -> int:
    """How many words an option and its value take."""
    if word in options.flags or (options.number is not None and options.number.fullmatch(word)):
        return 1
    if word.startswith("--"):
        name, has_value, _ = word.partition("=")
        if name not in options.valued:
            raise Unmodelled(word)
        return 1 if has_value else 2
    for place, letter in enumerate(word[1:], 2):
        if f"-{letter}" in options.valued:
            return 1 if word[place:] else 2
        if f"-{letter}" not in options.flags:
            raise Unmodelled(word)
    if word == "-":
        raise Unmodelled(word)
    return 1


def _readable(words: Sequence[Word], place: int) -> str:
    word = words[place]
    if word is None:
        raise Unmodelled("an unreadable word among the options")
    return word


def shell_call(words: Sequence[Word]) -> ShellCall:
    """Return how a shell of the Bourne family is called, given the words after its name.

    Raises:
        Unmodelled: it cannot be known.
    """
    place, wants_script = 0, False
    while place < len(words) and _readable(words, place)[:1] in ("-", "+"):
        word = _readable(words, place)
        place += 1
        if word in ("-", "--"):
            break
        if word in _SHELL_WORDS:
            continue
        settings = _letters(word).count("o")
        wants_script = wants_script or (word[0] == "-" and "c" in word)
        for _ in range(settings):
            if place >= len(words) or _readable(words, place) not in _SHELL_SETTINGS:
                raise Unmodelled(word)
            place += 1
    if place >= len(words):
        return ShellCall(has_script=wants_script)
    if wants_script:
        return ShellCall(words[place], has_script=True)
    return ShellCall(file=_readable(words, place))


def _letters(word: str) -> str:
    letters = word[1:]
    if not letters or not set(letters) <= _SHELL_FLAGS | {"o"} or (word[0] == "+" and "c" in letters):
        raise Unmodelled(word)
    return letters
