"""What a call would run: the commands in its arguments, and what a rule's narrowers make of them.

The law: a program that is misnamed would walk past a deny; so whatever is not fully understood
is an unknown command, which no allow matches and every deny and ask does. Nothing here raises on
any input, and nothing takes longer than its input is long.

`shell` reads scripts, `wrappers` options, `carriers` what runs others unseen, `hazards` danger.
The tool runs `command` and `args` without a shell; a `command` that is no plain name is read as
a script all the same, since some tools hand it to one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llm_agent.policy.carriers import INTERPRETERS, RUNNERS, carries, git_parts, is_input, split_find
from llm_agent.policy.shell import Simple, Word, names, simple_commands
from llm_agent.policy.wrappers import (
    READABLE_SHELLS,
    SHELLS,
    Unmodelled,
    is_wrapper,
    shell_call,
    unwrapped,
)

# Shells in shells; more is nothing a person wrote.
MAX_DEPTH: Final = 8
# Commands of one call; above, the rest is one unknown command.
MAX_COMMANDS: Final = 500
# Words of one call, and characters of all of them: an argument list is bounded by the kernel too.
MAX_WORDS: Final = 10_000
MAX_CHARACTERS: Final = 1 << 18

_PROGRAM: Final = re.compile(r"[A-Za-z0-9_.+@:%,~\[-]+")
_PLAIN_COMMAND: Final = re.compile(r"[A-Za-z0-9_./\\:+@%,~-]+")
_DRIVE: Final = re.compile(r"[A-Za-z]:\\")
_SUFFIX: Final = re.compile(r"\.(?:exe|bat|cmd|com)$", re.IGNORECASE)
# Where a program of that name is the one that is meant; anywhere else, somebody put it there.
_USUAL_PLACES: Final = names("/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin /opt/homebrew/bin /snap/bin")
# Variables that change how a program talks, not what it runs.
_HARMLESS: Final = re.compile(
    r"CI|DEBUG|LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|VERBOSE|"
    r"PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONUTF8|PYTHONHASHSEED|RUST_BACKTRACE|RUST_LOG|CARGO_TERM_COLOR|"
    r"GOOS|GOARCH|NODE_ENV|GIT_TERMINAL_PROMPT"
)
_LOCAL: Final = re.compile(r"[a-z][a-z0-9_]*")
# Builtins that run, rename or redefine something later, or evaluate what they are given.
_BUILTINS: Final = names(
    ". source alias unalias bind compgen complete compopt declare disown enable export fc getopts hash history jobs "
    "let local mapfile readarray read readonly trap typeset unset wait shopt popd pushd suspend bg fg times "
    "ulimit chdir newgrp"
)
_MOVING: Final = frozenset({"cd", "pushd", "popd", "chdir"})
# Arguments of tools that set the folder in which a program starts, and what may change which one that is.
_PLACES: Final = names(
    "cwd workdir work_dir working_dir working_directory workingdir workingdirectory dir directory folder chdir"
)
_CHANGES: Final = names("env environment environ env_vars envs shell executable interpreter use_shell")
_SETTING: Final = re.compile(r"[-+][euxv]*o?|errexit|nounset|pipefail|xtrace|verbose")


@attrs.frozen
class Command:
    """One command that a call would run.

    What is said to be visible was read with certainty; everything else is a reason to doubt.
    """

    program: str | None
    """Its base name, without .exe and the like; empty: only redirections. `None`: unreadable."""
    tokens: tuple[str, ...] = ()
    """Its arguments, up to the first that could not be read."""
    is_sealed: bool = False
    """There may be more arguments than these."""
    redirects: tuple[str | None, ...] = ()
    """The files it reads from or writes to by redirection. `None`: unreadable."""
    later: tuple[str, ...] = ()
    """Readable arguments behind an unreadable one: they are there, their places are not known."""
    is_wrapper: bool = False
    """It only runs other commands of the same call: a deny sees it, an allow passes over it."""
    is_opaque: bool = False
    """It may run something that is not among the commands."""
    is_elsewhere: bool = False
    """It is named by a path outside of the usual places of programs."""
    is_moved: bool = False
    """Another folder may be the current one when it runs."""

    @property
    def words(self) -> tuple[str, ...]:
        """Every readable argument."""
        return self.tokens + self.later


UNKNOWN: Final = Command(None, is_sealed=True, is_opaque=True, is_moved=True)


def commands_of(
    arguments: Mapping[str, Any], command_param: str = "command", args_param: str = "args"
) -> tuple[Command, ...]:
    """Return the commands that a call with *arguments* would run; none when it names none.

    Args:
        command_param: the argument with the program, a whole command line, or a list of words.
        args_param: the argument with the list of the program's arguments.

    Raises: nothing. Threads: any. Shell text needs the extra `shell`; without it, it is unknown.
    """
    command, args = arguments.get(command_param), arguments.get(args_param)
    if command is None and args is None:
        return ()
    try:
        return _bounded(_of_surroundings(arguments, _of_call(command, args)))
    except Exception:  # a shield: what cannot be read is unknown
        return (UNKNOWN,)


def _of_surroundings(arguments: Mapping[str, Any], commands: list[Command]) -> list[Command]:
    """*commands*, with the doubts that the other arguments of the call raise."""
    given = {name.casefold().replace("-", "_"): value for name, value in arguments.items() if value}
    is_moved = not _PLACES.isdisjoint(given)
    is_opaque = any(not _is_harmless(given[name]) for name in _CHANGES.intersection(given))
    if not is_moved and not is_opaque:
        return commands
    return [
        attrs.evolve(each, is_moved=each.is_moved or is_moved, is_opaque=each.is_opaque or is_opaque)
        for each in commands
    ]


def _is_harmless(variables: Any) -> bool:
    return isinstance(variables, Mapping) and all(_HARMLESS.fullmatch(name) for name in variables)


def _of_call(command: Any, args: Any) -> list[Command]:
    head: list[Word]
    if isinstance(command, list | tuple):
        head = [_scalar(word) for word in command]
    elif isinstance(command, str):
        head = [command]
    else:
        return [UNKNOWN]
    tail: list[Word] = [] if args is None else [_scalar(word) for word in args] if _is_list(args) else [None]
    words = head + tail
    if not _is_possible(words):
        return [UNKNOWN]
    is_plain = not isinstance(command, str) or _PLAIN_COMMAND.fullmatch(command) is not None
    # Arguments in one text may be handed to a shell, whatever the command is.
    found = _Scene(is_opaque=tail == [None]).commands(words) if is_plain else []
    if isinstance(command, str) and _is_for_a_shell(command, is_plain, bool(tail)):
        script = _of_script(command, _Scene(in_shell=True))
        found += [attrs.evolve(each, is_sealed=each.is_sealed or bool(tail)) for each in script]
    return found or [_unknown(words)]


def _is_for_a_shell(command: str, is_plain: bool, has_args: bool) -> bool:
    """Whether a shell could read more in *command* than the name of a program."""
    if not is_plain:
        return not has_args
    # To a shell `r\\m` is rm, whatever comes behind it; a drive says that it is none.
    return "\\" in command and not (has_args and _DRIVE.match(command))


def _is_possible(words: Sequence[Word]) -> bool:
    """Whether a kernel would take them; whoever writes more is not read to the end."""
    known = [word for word in words if word is not None]
    size = sum(map(len, known))
    return 0 < len(words) <= MAX_WORDS and size <= MAX_CHARACTERS and not any("\0" in word for word in known)


def _is_list(args: Any) -> bool:
    return isinstance(args, list | tuple)


def _scalar(word: Any) -> Word:
    """A word of an argument list; numbers as every tool would write them, anything else unreadable."""
    if isinstance(word, str):
        return word
    if isinstance(word, int) and not isinstance(word, bool) and abs(word) < 1 << 53:
        return str(word)
    return None


def _bounded(commands: list[Command]) -> tuple[Command, ...]:
    return tuple(commands) if len(commands) <= MAX_COMMANDS else (*commands[:MAX_COMMANDS], UNKNOWN)


def _unknown(words: Sequence[Word], redirects: tuple[Word, ...] = ()) -> Command:
    """A command of which only some words could be read."""
    seen = tuple(word for word in words if word is not None)
    return attrs.evolve(UNKNOWN, later=seen, redirects=redirects)


def _of_script(text: str, scene: _Scene) -> list[Command]:
    simples = simple_commands(text) if scene.depth <= MAX_DEPTH else None
    if simples is None or len(simples) > MAX_COMMANDS:
        return [UNKNOWN]
    scene = attrs.evolve(scene, in_shell=True, redirects=())
    found = [command for simple in simples for command in scene.simple(simple)]
    if not any(command.program is None or command.program in _MOVING for command in found):
        return found
    return [attrs.evolve(command, is_moved=True) for command in found]


@attrs.frozen
class _Scene:
    """What holds for the words that come next."""

    in_shell: bool = False
    depth: int = 0
    is_moved: bool = False
    is_opaque: bool = False
    redirects: tuple[Word, ...] = ()

    def simple(self, simple: Simple) -> list[Command]:
        """The commands that one simple command of a script comes to."""
        assigned = [name for name in simple.assigned if not _HARMLESS.fullmatch(name)]
        if not simple.words:
            # A name in small letters means something to this script only.
            is_opaque = not all(_LOCAL.fullmatch(name) for name in assigned)
            return [Command("", redirects=simple.redirects, is_opaque=self.is_opaque or is_opaque)]
        scene = attrs.evolve(self, is_opaque=self.is_opaque or bool(assigned), redirects=simple.redirects)
        return scene.commands(simple.words)

    def commands(self, words: Sequence[Word]) -> list[Command]:
        """The commands that a program with arguments comes to, the one inside the other."""
        first, rest = words[0], words[1:]
        name = _base_name(first)
        if name is None or self.depth > MAX_DEPTH:
            return [_unknown(words, self.redirects)]
        known = name.casefold()
        try:
            if known in SHELLS:
                return self._shell(first, name, rest)
            if known == "eval":
                return self._eval(first, name, rest)
            if is_wrapper(known):
                return self._wrapper(first, name, rest)
        except Unmodelled:
            return [self._plain(first, name, rest), _unknown(rest, self.redirects)]
        if known == "find":
            return self._find(first, name, rest)
        plain = self._plain(first, name, rest)
        runs = RUNNERS.get(known)
        if runs is None or tuple(rest[: len(runs)]) != runs:
            return [plain]
        return self._runner(plain, rest[len(runs) :])

    def _plain(self, first: Word, name: str, rest: Sequence[Word]) -> Command:
        end = rest.index(None) if None in rest else len(rest)
        tokens = tuple(word for word in rest[:end] if word is not None)
        later = tuple(word for word in rest[end:] if word is not None)
        is_sealed = end < len(rest)
        is_opaque = carries(name, tokens + later, is_sealed) or (self.in_shell and _is_meddling(name, rest))
        return Command(
            name,
            tokens,
            is_sealed,
            self.redirects,
            later,
            is_opaque=self.is_opaque or is_opaque,
            is_elsewhere=_is_elsewhere(first),
            is_moved=self.is_moved,
        )

    def _inside(self, outer: Command, inner: list[Command]) -> list[Command]:
        """*inner* with its wrapper; a wrapper that runs nothing is a command like any other."""
        if not inner:
            return [outer]
        doubtful = outer.is_elsewhere  # what is called `env` there may be anything
        return [attrs.evolve(outer, is_wrapper=not doubtful, is_opaque=doubtful), *inner]

    def _wrapper(self, first: Word, name: str, rest: Sequence[Word]) -> list[Command]:
        wrapped = unwrapped(name.casefold(), rest)
        outer = self._plain(first, name, rest)
        if not wrapped.words:
            # A bare `exec > file` changes the shell itself.
            return [attrs.evolve(outer, is_opaque=outer.is_opaque or (self.in_shell and name == "exec"))]
        assigned = any(not _HARMLESS.fullmatch(variable) for variable in wrapped.assigned)
        scene = attrs.evolve(
            self,
            depth=self.depth + 1,
            is_moved=self.is_moved or wrapped.is_moved,
            is_opaque=self.is_opaque or assigned,
        )
        return self._inside(outer, scene.commands(wrapped.words))

    def _shell(self, first: Word, name: str, rest: Sequence[Word]) -> list[Command]:
        outer = self._plain(first, name, rest)
        if rest and all(word in ("--version", "--help") for word in rest):
            return [outer]
        if name.casefold() not in READABLE_SHELLS:
            file = rest[0] if len(rest) == 1 else None
            is_known = file is not None and re.match(r"[\w./]", file, re.ASCII) and not is_input(file)
            return [outer] if is_known else [outer, _unknown(rest, self.redirects)]
        call = shell_call(rest)
        if call.has_script:
            if call.script is None:
                raise Unmodelled("a script that cannot be read")
            return self._inside(outer, _of_script(call.script, attrs.evolve(self, depth=self.depth + 1)))
        return [attrs.evolve(outer, is_opaque=outer.is_opaque or call.file is None or is_input(call.file))]

    def _eval(self, first: Word, name: str, rest: Sequence[Word]) -> list[Command]:
        words = list(rest[1:] if rest[:1] in (["--"], ("--",)) else rest)
        known = [word for word in words if word is not None]
        if len(known) < len(words) or (known and known[0].startswith("-")):
            raise Unmodelled("words of eval that cannot be read")
        inner = _of_script(" ".join(known), attrs.evolve(self, depth=self.depth + 1))
        return self._inside(self._plain(first, name, rest), inner)

    def _find(self, first: Word, name: str, rest: Sequence[Word]) -> list[Command]:
        own, runs = split_find(rest)
        inside = attrs.evolve(self, depth=self.depth + 1, in_shell=False)
        return [self._plain(first, name, own), *(command for words in runs for command in inside.commands(words))]

    def _runner(self, outer: Command, rest: Sequence[Word]) -> list[Command]:
        if not rest or rest[0] is None or rest[0].startswith("-"):
            return [attrs.evolve(outer, is_opaque=True)]
        return [outer, *attrs.evolve(self, depth=self.depth + 1, in_shell=False).commands(rest)]


def _base_name(first: Word) -> str | None:
    """The name that rules know a program by; `None` where a file system may read it in another way."""
    if first is None:
        return None
    name = _SUFFIX.sub("", re.split(r"[/\\]", first)[-1])
    if not _PROGRAM.fullmatch(name) or name.startswith(("-", "~")) or name.endswith("."):
        return name if name in (".", ":") else None
    return name


def _is_elsewhere(first: Word) -> bool:
    if first is None:
        return True
    place, slash, _ = first.replace("\\", "/").rpartition("/")
    return bool(slash) and ("\\" in first or place not in _USUAL_PLACES)


def _is_meddling(name: str, rest: Sequence[Word]) -> bool:
    """Whether a builtin of the shell does what is not followed here."""
    if name == "set":
        return not all(word is not None and _SETTING.fullmatch(word) for word in rest)
    if name == "printf":  # -v evaluates subscripts
        return bool(rest) and (rest[0] is None or rest[0].startswith("-"))
    if name in ("test", "["):  # so do its own -v, and numbers in ksh
        return any(word is None or word in ("-v", "-R") or "[" in word for word in rest)
    return name in _BUILTINS


def matches(narrowers: Mapping[str, Any], command: Command, decision: str) -> bool | None:
    """Return what `command`, `args`, `args-any` and `exact` of a rule make of *command*.

    `None`: it cannot be known; an allow does not fire then, a deny or an ask does.

    Args:
        narrowers: those members of a rule, where it has them; others are not looked at.
        decision: `allow` compares to the letter, `deny` and `ask` also in the other case.
    """
    is_allow = decision == "allow"
    if is_allow and command.is_wrapper:
        return True  # judged by what it runs, which is among the commands too
    verdicts = [
        _matches_program(narrowers.get("command"), command, is_allow),
        _matches_first(narrowers.get("args") or (), command, is_allow),
        _matches_any(narrowers.get("args-any") or (), command, is_allow),
        _has_no_more(len(narrowers.get("args") or ()), command) if narrowers.get("exact") else True,
    ]
    verdict = None if None in verdicts else all(verdicts)
    if False in verdicts:
        verdict = False
    # What it may run unseen is denied where anything unknown is.
    return None if verdict is False and command.is_opaque and not is_allow else verdict


def _matches_program(pattern: str | None, command: Command, is_allow: bool) -> bool | None:
    if pattern is None:
        return None if is_allow and command.program is None else True
    if command.program is None:
        return None
    name = command.program if is_allow else command.program.casefold()
    wanted = pattern if is_allow else pattern.casefold()
    fits = name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted
    if not fits or not is_allow:
        return fits
    is_everything = INTERPRETERS.fullmatch(name) is not None and not wanted.endswith("*")
    return None if command.is_elsewhere or (command.is_opaque and not is_everything) else True


def _matches_first(wanted: Sequence[str], command: Command, is_allow: bool) -> bool | None:
    if not wanted:
        return True
    verdict = _starts_with(wanted, command.tokens, command.is_sealed, is_allow)
    if is_allow or command.program is None or command.program.casefold() != "git":
        return verdict
    # Nobody who denies `git push` means that `git -C . push` may pass.
    past = _starts_with(wanted, git_parts(command.tokens)[1], command.is_sealed, is_allow)
    return True if past else verdict if past is False else None if verdict is False else verdict


def _has_no_more(count: int, command: Command) -> bool | None:
    if len(command.tokens) > count:
        return False
    return None if command.is_sealed else True


def _starts_with(wanted: Sequence[str], tokens: Sequence[str], is_sealed: bool, is_allow: bool) -> bool | None:
    for place, word in enumerate(wanted):
        if place >= len(tokens):
            return None if is_sealed else False
        if not _equal(word, tokens[place], is_allow):
            return False
    return True


def _matches_any(wanted: Sequence[str], command: Command, is_allow: bool) -> bool | None:
    if not wanted:
        return True
    words = command.tokens if is_allow else command.words
    if any(_equal(word, token, is_allow) for word in wanted for token in words):
        return True
    if not is_allow and any(_equal(word, token.partition("=")[0], False) for word in wanted for token in words):
        return True
    return None if command.is_sealed else False


def _equal(wanted: str, token: str, is_allow: bool) -> bool:
    return wanted == token if is_allow else wanted.casefold() == token.casefold()
