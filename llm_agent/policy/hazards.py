"""What in a command is dangerous: predicates for the danger floor, each of one command.

The law: True is certain, False is certain, `None` is neither. A hard deny stands on True alone (its
note must be right); an ask on True or `None`.

Pure: no file system, no environment; comparisons ignore case, as some file systems do. Which rules
are made of these does not live here.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import attrs

from llm_agent.policy.carriers import abbreviates, git_parts
from llm_agent.policy.commands import Command
from llm_agent.policy.shell import names
from llm_agent.policy.wrappers import SHELLS

_REMOVERS: Final = frozenset({"rm", "grm"})
# They empty, move or lock what they name; rsync and the packers only with one of these options.
_CHANGERS: Final = names("mv rmdir unlink shred trash trash-put chmod chown chgrp setfacl chattr")
_PACKERS: Final = {"rsync": ("--del", "--remove-s"), "tar": ("--remove-f",), "zip": ("-m", "-rm", "--move")}
# Programs and the options before what is left out or looked for: a pattern, no place.
_PATTERNS: Final = {
    "find": re.compile(r"-i?(?:path|name|wholename|regex)"),
    **dict.fromkeys(
        ("grep", "rsync", "tar", "du", "zip", "diff"), re.compile(r"--exclude(?:-dir)?(?:=.*)?", re.DOTALL)
    ),
    **dict.fromkeys(("rg", "fd"), re.compile(r"-g|--glob|-E|--exclude(?:=.*)?", re.DOTALL)),
    "tree": re.compile(r"-I"),
}
_FORMATTERS: Final = names(
    "mke2fs dd wipefs fdisk sfdisk cfdisk gdisk sgdisk parted blkdiscard mkswap diskutil lvremove vgremove pvremove"
)
_DISKS: Final = re.compile(r"dev/(?:[shv]d[a-z]|xvd|nvme|mmcblk|r?disk|dm-|mapper/|md[0-9]|loop[0-9])")
_PRIVILEGE: Final = names("sudo sudoedit doas su pkexec run0 runas gsudo")
_STOPPERS: Final = names("shutdown reboot halt poweroff")
_STOP_UNITS: Final = names("poweroff reboot halt kexec suspend hibernate rescue emergency soft-reboot")
_HOMES: Final = re.compile(r"/(?:home|users)/[^/]+|/root|/var/root")
_GLOB: Final = re.compile(r"[*?\[\]{}]")
_UNEXPANDED: Final = re.compile(r"[$`]")
_ALL_OF_IT: Final = re.compile(r"(?:\.?[*?]+|\.\[[^]]*\]\*|\{?[*,.]+\}?)")
# What file systems leave out of a name: zero-width and direction marks (HFS+), and ends (Windows).
_IGNORED: Final = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
# Taken apart piece by piece: sorting the marks of a long run takes the square of its length.
_BEYOND: Final = re.compile(r"[^\x00-\x7f]{1,64}")
# Of a segment, what Windows leaves out.
_ENDS: Final = re.compile(r"[ .](?:/|$)")
RC_FILES: Final = names("""
    .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout
    .vimrc .exrc .emacs .gdbinit .tmux.conf .screenrc .wgetrc .curlrc .irbrc .hgrc .xsession .rhosts .forward
    .kshrc .mkshrc .cshrc .tcshrc .login .logout .inputrc .xprofile .xinitrc .xsessionrc .pam_environment config.fish
    bash.bashrc authorized_keys .ssh .gitconfig .npmrc .pypirc .netrc .envrc sudoers crontab
    .git-credentials .aws .kube .gnupg ld.so.preload profile.d cron.d cron.hourly cron.daily
    """)


_GUARDED: Final = frozenset(map(str.casefold, RC_FILES)) | {".git", "git~1"}
_JOINTS: Final = re.compile(r"[=:@,]")
_ROOTED: Final = re.compile(r"[/~\\].*", re.DOTALL)
_GLUED: Final = re.compile(r"-[A-Za-z].")


def deletes_root_or_home(command: Command, home: str | None = None) -> bool | None:
    """A recursive `rm` of `/`, of all in it, or of somebody's home; `None` where that cannot be told.

    Args:
        home: this user's home, beside those that are known by their place.
    """
    if command.program is None:
        return None
    if command.program.casefold() not in _REMOVERS:
        return False  # of what a program runs unseen, `runs_unseen` speaks
    is_recursive = _is_recursive(command)
    if is_recursive is False:
        return False
    verdicts = [_is_root_or_home(target, home, command.is_moved) for target in _operands(command)]
    if is_recursive and True in verdicts:
        return True
    return None if command.is_sealed or None in verdicts or True in verdicts else False


def changes_root_or_home(command: Command, home: str | None = None) -> bool | None:
    """It moves, locks or empties `/` or somebody's home: `mv ~ x`, `chmod -R 000 /`, `rsync --delete empty/ ~/`."""
    if command.program is None:
        return None
    name = command.program.casefold()
    packing = _PACKERS.get(name)
    if name not in _CHANGERS and not (packing and any(word.startswith(packing) for word in command.words)):
        return False
    targets = _operands(command)
    names_target = any(re.match(r"-[A-Za-z]*t|--t", word) for word in command.words)
    if name == "mv" and len(targets) > 1 and not names_target:  # into a home is no harm
        targets = targets[:-1]
    return any(_is_root_or_home(target, home, command.is_moved) is True for target in targets)


def _is_recursive(command: Command) -> bool | None:
    for word in command.words:
        if re.fullmatch(r"-[A-QS-Za-qs-z]*[rR][A-Za-z]*", word) or abbreviates(word, "--recursive"):
            return True
    return None if command.is_sealed else False


def _operands(command: Command) -> list[str]:
    end = command.tokens.index("--") if "--" in command.tokens else len(command.tokens)
    before = [word for word in command.tokens[:end] if not word.startswith("-")]
    return [*before, *command.tokens[end + 1 :], *command.later]


def _is_root_or_home(target: str, home: str | None, is_moved: bool) -> bool | None:
    path = folded(target)
    if not path:
        return False
    if _UNEXPANDED.search(path):
        return None
    own = folded(home).rstrip("/") if home else None
    if path.startswith("~"):
        user, _, rest = path[1:].partition("/")
        if user[:1] in ("+", "-"):
            return None
        path = f"{own or '/home/*owner*'}/{rest}" if not user else f"/home/{user}/{rest}"
    if re.match(r"[a-z]:", path):
        path = "/" + path[2:].lstrip("/")
    if not path.startswith("/"):
        return None if is_moved or _collapsed(path)[:1] in ([], [".."]) or _GLOB.search(path) else False
    return _is_top(_collapsed(path), own)


def _is_top(segments: list[str], home: str | None) -> bool | None:
    if segments and _ALL_OF_IT.fullmatch(segments[-1]) and not segments[-1].startswith("*owner"):
        segments = segments[:-1]
    path = "/" + "/".join(segments)
    if path == "/" or _HOMES.fullmatch(path) or path == "/home/*owner*" or path in ("/home", "/users"):
        return True
    if home and (path == home or home.startswith(f"{path}/")):
        return True
    is_unsure = len(segments) == 1 or segments[0] in ("proc", "dev") or any(map(_GLOB.search, segments))
    return None if is_unsure else False


def _collapsed(path: str) -> list[str]:
    """Segments without `.`, and with `..` taken back where that can be; leading ones stay in a relative path."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment in ("", "."):
            continue
        if segment != "..":
            kept.append(segment)
        elif kept and kept[-1] != "..":
            kept.pop()
        elif not path.startswith("/"):
            kept.append(segment)
    return kept


def folded(text: str) -> str:
    """*text* as the laxest file system compares names."""
    plain = text if text.isascii() else _IGNORED.sub("", _BEYOND.sub(_decomposed, text))
    plain = plain.replace("\\", "/").casefold()
    if not _ENDS.search(plain):
        return plain
    return "/".join(segment.rstrip(" .") or segment.strip(" ") for segment in plain.split("/"))


def _decomposed(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFKD", found[0])


def formats_disk(command: Command) -> bool | None:
    """`mkfs` and its kin, `dd`, `wipefs`, and whatever names a disk as a whole: `cp x /dev/sda`."""
    absolute = ("/".join(_collapsed(path)) for path in _named(command) if path.startswith("/"))
    if any(map(_DISKS.match, absolute)):
        return True
    return _is_program(command, lambda name: name.startswith(("mkfs", "newfs")) or name in _FORMATTERS)


def gains_privilege(command: Command) -> bool | None:
    """`sudo` and its kin."""
    return _is_program(command, _PRIVILEGE.__contains__)


def stops_machine(command: Command) -> bool | None:
    """`shutdown`, `reboot` and the other ways to say it."""
    verdict = _is_program(command, _STOPPERS.__contains__)
    if verdict is not False or command.program is None:
        return verdict
    words = {word.casefold() for word in command.words}
    match command.program.casefold():
        case "systemctl" | "loginctl":
            return True if words & _STOP_UNITS else None if command.is_sealed else False
        case "init" | "telinit":
            return True if words & {"0", "6"} else None if command.is_sealed else False
    return False


def _is_program(command: Command, is_meant: Callable[[str], bool]) -> bool | None:
    return None if command.program is None else is_meant(command.program.casefold())


def runs_unseen(command: Command) -> bool | None:
    """It may run what is not among the commands: an unreadable program, a shell reading its input, `find -exec`.

    `None`: the program itself could not be read.
    """
    return None if command.program is None else command.is_opaque


def reads_script_from_input(command: Command) -> bool | None:
    """A bare shell: whatever its input says is run."""
    if command.program is None:
        return None
    return command.program.casefold() in SHELLS and command.is_opaque


def destroys_git_work(command: Command) -> bool | None:
    """A git command that throws work away: forced or deleting pushes, hard resets, clean, dropped stashes."""
    if command.program is None:
        return None
    if command.program.casefold() != "git":
        return False
    _, rest = git_parts(command.tokens)
    words = [*rest[1:], *command.later]
    if not rest:
        return None if command.is_sealed else False
    verdict = _destroys(rest[0].casefold(), words)
    return None if not verdict and command.is_sealed else verdict


def _destroys(subcommand: str, words: list[str]) -> bool:
    match subcommand:
        case "push":
            return any(map(_forces_push, words))
        case "reset":
            return any(abbreviates(word, "--hard") for word in words)
        case "clean" | "filter-branch" | "filter-repo":
            return True
        case "checkout":  # of files, over what is there
            return bool({"--", "."} & set(words)) or any(map(_is_forced, words))
        case "switch" | "rm" | "worktree":
            return any(map(_is_forced, words))
        case "restore":
            return not {"--staged", "-S"} & set(words) or bool({"--worktree", "-W"} & set(words))
        case "branch":
            return any(map(_is_forced, words)) or any(re.match(r"-[A-Za-z]*D", word) for word in words)
        case "update-ref":
            return "-d" in words
        case "stash" | "reflog":
            return bool({"clear", "drop", "expire", "delete"} & {word.casefold() for word in words})
    return False


def _is_forced(word: str) -> bool:
    return bool(re.match(r"-[A-Za-z]*f", word)) or abbreviates(word, "--force", "--discard-changes")


def _forces_push(word: str) -> bool:
    if word.startswith(("+", ":")):
        return True
    if word.startswith("--"):
        return abbreviates(word.partition("=")[0], "--force", "--force-with-lease", "--mirror", "--delete", "--prune")
    return bool(re.match(r"-[A-Za-z46]*[fd]", word))


def names_guarded(command: Command) -> bool | None:
    """It names an rc file, or anything in a `.git`: as a target, an argument, or after a `=`.

    `None`: the target of a redirection could not be read.
    """
    if any(not _GUARDED.isdisjoint(path.split("/")) for path in _named(_without_patterns(command))):
        return True
    return None if None in command.redirects else False


def _without_patterns(command: Command) -> Command:
    """*command* less the words that say what is left out, `--exclude .git`, or looked for."""
    options = _PATTERNS.get(command.program or "")
    if options is None or command.is_elsewhere or "--" in command.words:
        return command
    kept = tuple(
        word
        for before, word in pairwise(("", *command.words))
        if not options.fullmatch(word) and ("=" in before or not options.fullmatch(before))
    )
    return attrs.evolve(command, tokens=kept, later=())


def names_inside(command: Command, folder: str, home: str | None = None) -> bool | None:
    """It names *folder*, or something in it, the same ways.

    `None`: the target of a redirection could not be read.
    """
    own = None if home is None else folded(home).rstrip("/")
    inside = _collapsed(folded(folder))
    if any(
        _collapsed(_from_home(path, own))[: len(inside)] == inside for path in _named(command) if _is_absolute(path)
    ):
        return True
    return None if None in command.redirects else False


def _is_absolute(path: str) -> bool:
    return path.startswith(("/", "~"))


def _from_home(path: str, home: str | None) -> str:
    """*path* with its tilde written out, where it stands for *home*; that of another user is as good as next to it."""
    user, slash, rest = path.partition("/")
    if home is None or not user.startswith("~"):
        return path
    return f"{home}{slash}{rest}" if user == "~" else f"{home}/../{user[1:]}{slash}{rest}"


@functools.lru_cache(16)
def _named(command: Command) -> frozenset[str]:
    """Every text in it that may be a path, folded.

    Words whole, what stands behind `=`, `:`, `@` or option letters, and what begins with a slash or a tilde.
    """
    words = [*command.words, *(target for target in command.redirects if target is not None)]
    parts = [part for word in words for part in _JOINTS.split(word)]
    parts += [found[0] for word in words if (found := _ROOTED.search(word))]
    parts += [word[2:] for word in words if _GLUED.match(word)]
    return frozenset(folded(text) for text in (*words, *parts))
