"""The predicates of the danger floor, one command at a time."""

from __future__ import annotations

from typing import Any

import pytest

from llm_agent.policy import hazards
from llm_agent.policy.commands import UNKNOWN, Command

HOME = "/home/me"


@pytest.mark.parametrize(
    "target",
    ["/", "//", "/.", "/./", "/..", "/../..", "/usr/..", "/a/b/../..", "/*", "/.*", "/?*", "/{*,.*}", "~", "~/", "~/.",
     "~/*", "~/.*", "~root", "~root/", "~/../me", "~/../root", "~bob", "/home", "/home/", "/home/me", "/home//me/.",
     "/HOME/me", "/home/ME", "/home/bob", "/Users/bob", "/root", "/root/", "/var/root", "/home/me/x/..", "/home/me/*",
     "C:/", "C:\\", "c:/users/bob", "\\", "/\u200b"],
)  # fmt: skip
def test_the_root_and_homes_are_known_in_every_spelling(target: str) -> None:
    """Certain, whatever the flags are called and wherever they stand."""
    for tokens in (
        ("-rf", target),
        (target, "-r"),
        ("--recursive", "--", target),
        ("-fR", "x", target),
        ("--rec", target),
    ):
        assert hazards.deletes_root_or_home(Command("rm", tokens), HOME) is True
    assert hazards.deletes_root_or_home(Command("rm", (target,)), HOME) is False


@pytest.mark.parametrize(
    "target",
    ["*", ".", "..", "./", "../..", "a/..", "$HOME", "`x`", "~+", "/usr", "/etc/", "/h*/me", "/proc/self/root", "a*"],
)
def test_what_cannot_be_told_is_unknown(target: str) -> None:
    """Expansions, relative ways out, the folders right below the root."""
    assert hazards.deletes_root_or_home(Command("rm", ("-rf", target)), HOME) is None


@pytest.mark.parametrize("target", ["x", "a/b", "./build", "/home/me/x", "/tmp/x", "~/x", "", "/srv/a/b", "a.b/c~"])
def test_ordinary_targets_are_not_feared(target: str) -> None:
    """A named folder in a known place is not a root."""
    assert hazards.deletes_root_or_home(Command("rm", ("-rf", target)), HOME) is False


def test_where_the_folder_may_have_changed_a_relative_target_is_unknown() -> None:
    """`cd / && rm -rf usr`."""
    assert hazards.deletes_root_or_home(Command("rm", ("-rf", "usr"), is_moved=True), HOME) is None


def test_unreadable_words_leave_only_what_is_certain() -> None:
    """A root among readable words is certain; without one, nothing is."""
    assert hazards.deletes_root_or_home(Command("rm", ("-rf",), True, later=("/",))) is True
    assert hazards.deletes_root_or_home(Command("rm", ("-rf",), True)) is None
    assert hazards.deletes_root_or_home(Command("rm", (), True, later=("/",))) is None


@pytest.mark.parametrize(
    ("words", "verdict"),
    [("push --force", True), ("push -f", True), ("push -uf", True), ("push --force-with-lease", True),
     ("push --force-with-lease=ref", True), ("push --forc", True), ("push origin +main", True),
     ("push origin :main", True), ("push --mirror", True), ("push -d origin x", True), ("push origin main", False),
     ("push -u origin main", False), ("-C . push -f", True), ("-c a=b --no-pager push -f", True),
     ("--git-dir=x reset --hard", True), ("reset --har", True), ("reset HEAD", False), ("reset --soft", False),
     ("clean -fdx", True), ("stash drop", True), ("stash clear", True), ("stash pop", False),
     ("-C . stash drop", True), ("reflog expire", True), ("log", False), ("commit -m clear", False)],
)  # fmt: skip
def test_git_that_throws_work_away(words: str, verdict: bool) -> None:
    """Past global options, in abbreviations, in clusters, as a refspec."""
    assert hazards.destroys_git_work(Command("git", tuple(words.split()))) is verdict


def test_git_with_unreadable_words_may_throw_work_away() -> None:
    """Neither yes nor no; a readable force behind them is a yes."""
    assert hazards.destroys_git_work(Command("git", ("push",), True)) is None
    assert hazards.destroys_git_work(Command("git", (), True)) is None
    assert hazards.destroys_git_work(Command("git", ("push",), True, later=("-f",))) is True


@pytest.mark.parametrize(
    ("predicate", "yes", "no"),
    [
        (hazards.formats_disk, ["mkfs", "mkfs.ext4", "MKFS.XFS", "dd", "wipefs", "mke2fs"], ["ddd", "ls"]),
        (hazards.gains_privilege, ["sudo", "doas", "su", "pkexec", "run0", "SUDO"], ["sum", "ls"]),
        (hazards.stops_machine, ["shutdown", "reboot", "halt", "poweroff"], ["systemctl", "init", "ls"]),
    ],
)
def test_programs_that_are_dangerous_by_name(predicate: Any, yes: list[str], no: list[str]) -> None:
    """In any case; an unreadable program is unknown."""
    assert [predicate(Command(name)) for name in yes] == [True] * len(yes)
    assert [predicate(Command(name)) for name in no] == [False] * len(no)
    assert predicate(UNKNOWN) is None


def test_other_ways_to_stop_a_machine() -> None:
    """By its service manager, or its first process."""
    assert hazards.stops_machine(Command("systemctl", ("poweroff",))) is True
    assert hazards.stops_machine(Command("init", ("0",))) is True
    assert hazards.stops_machine(Command("systemctl", ("status",))) is False
    assert hazards.stops_machine(Command("systemctl", (), True)) is None


@pytest.mark.parametrize(
    "word",
    ["~/.bashrc", ".BASHRC", "/home/me/.zshrc", ".git/config", ".GIT/hooks/x", "a/.git", ".g\u200cit/config",
     ".git.", "git~1/x", "of=.git/config", "--output=~/.profile", "-o.git/x", "host:.ssh/x",
     "~/.ssh/authorized_keys",
     ".git\\config"],
)  # fmt: skip
def test_start_up_files_and_what_git_keeps_are_known_wherever_they_are_named(word: str) -> None:
    """As an argument, behind `=`, glued to an option, as the target of a redirection."""
    assert hazards.names_guarded(Command("tee", (word,))) is True
    assert hazards.names_guarded(Command("tee", (), True, later=(word,))) is True
    assert hazards.names_guarded(Command("echo", (), redirects=(word,))) is True


def test_other_names_are_not_guarded() -> None:
    """A repository's address, a folder that only sounds like it; an unreadable redirection is unknown."""
    assert hazards.names_guarded(Command("git", ("clone", "https://a/b.git", ".github/x", "bashrc"))) is False
    assert hazards.names_guarded(Command("echo", (), redirects=(None,))) is None


def test_a_folder_is_named_by_itself_or_by_what_is_in_it() -> None:
    """Absolute or from the home; a neighbour with a longer name is another folder."""
    folder = "/home/me/.agent"

    for word in (folder, "~/.agent/key", "/home/me/x/../.AGENT/y", "--file=/home/me/.agent/key", "-f/home/me/.agent/k"):
        assert hazards.names_inside(Command("cat", (word,)), folder, HOME) is True
    for word in ("/home/me/.agents", ".agent", "/home/me"):
        assert hazards.names_inside(Command("cat", (word,)), folder, HOME) is False
