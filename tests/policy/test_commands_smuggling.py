"""Tricks by which a command hides in another: none passes a rule that should have stopped it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from judging import request, verdict
from shell_tricks import (
    ARGUMENT_LISTS,
    BENIGN_ALL,
    BENIGN_GIT,
    DANGER,
    DESTRUCTIVE_GIT,
    GIT,
    HOLES,
    LINES,
    ODD_CHARACTERS,
    entries,
)

from llm_agent.policy import danger_floor

pytest.importorskip("tree_sitter_bash", reason="needs the extra `shell`")

FLOOR = danger_floor(home="/home/me", config="/home/me/.agent")
ALLOW_GIT = [{"tool": "sh_run", "decision": "allow", "command": "git"}]
ALLOW_ALL = [{"tool": "sh_*", "decision": "allow"}]
DENY_RM = [*ALLOW_ALL, {"tool": "sh_run", "decision": "deny", "command": "rm"}]
UNDER_THE_FLOOR = [*FLOOR.rules, *ALLOW_ALL]

Line = str | list[str]
SMUGGLED: list[Line] = [*ARGUMENT_LISTS, *HOLES, *entries(LINES), *ODD_CHARACTERS]


def decided(rules: Sequence[Any], line: Line) -> set[str]:
    """The decisions about *line*, as a whole command line and as a shell's argument."""
    if isinstance(line, list):
        calls = [request("sh_run", command=line[0], args=line[1:]), request("sh_run", command=line)]
    else:
        calls = [request("sh_run", command=line), request("sh_run", command="bash", args=["-c", line])]
    return {verdict(rules, call, checks=FLOOR.checks).decision for call in calls}


def worst(rules: Sequence[Any], line: Line) -> str:
    """The decision that lets most through."""
    return min(decided(rules, line), key=("allow", "ask", "deny").index)


def deadly(line: Line) -> Line | None:
    """The same trick with `rm -rf /` for its payload; `None` where it has another one."""
    if isinstance(line, list):
        changed = [str(deadly(word) or word) for word in line]
        changed = [*changed[:-2], "rm", "-rf", "/"] if changed[-2:] == ["rm", "x"] else changed
        return changed if changed != line else None
    changed_line = re.sub(r"(m['\"]?|\]) x\b", r"\1 -rf /", line)
    return changed_line if changed_line != line else None


DEADLY = [changed for line in SMUGGLED if (changed := deadly(line)) is not None]
DANGERS: list[Line] = [*DEADLY, *entries(DANGER), *entries(DESTRUCTIVE_GIT)]


@pytest.mark.parametrize("line", [*SMUGGLED, *entries(GIT)], ids=repr)
def test_nothing_but_plain_git_passes_a_rule_that_allows_git(line: Line) -> None:
    """Whatever hides another program, or makes git run one, is not allowed by `allow git` alone."""
    assert "allow" not in decided(ALLOW_GIT, line)


@pytest.mark.parametrize("line", SMUGGLED, ids=repr)
def test_what_runs_rm_never_passes_a_rule_that_denies_rm(line: Line) -> None:
    """Where everything else is allowed, `deny rm` stops every line that runs it, or may."""
    assert decided(DENY_RM, line) == {"deny"}


@pytest.mark.parametrize("line", DANGERS, ids=repr)
def test_danger_is_never_allowed_unasked(line: Line) -> None:
    """Under the danger floor, none of these is allowed by a rule that allows everything."""
    assert "allow" not in decided(UNDER_THE_FLOOR, line)


@pytest.mark.parametrize("line", entries(BENIGN_GIT), ids=repr)
def test_plain_git_is_allowed(line: str) -> None:
    """What runs git alone, through whatever wrapper, is allowed by `allow git`."""
    assert decided(ALLOW_GIT, line) == {"allow"}


@pytest.mark.parametrize("line", entries(BENIGN_ALL), ids=repr)
def test_daily_work_is_allowed(line: str) -> None:
    """What an agent does all day is neither mistaken for `rm` nor for danger."""
    assert decided([*FLOOR.rules, *DENY_RM], line) == {"allow"}


def counted(rules: Sequence[Any], lines: Sequence[Line]) -> str:
    counts = Counter(worst(rules, line) for line in lines)
    return f"{len(lines)} strings: " + ", ".join(f"{counts[name]} {name}" for name in ("allow", "ask", "deny"))


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """How many strings there are of each kind, and what was decided about them."""
    with capsys.disabled():
        print()
        print("shell tricks, allow git alone:     ", counted(ALLOW_GIT, [*SMUGGLED, *entries(GIT)]))
        print("shell tricks, deny rm, allow rest: ", counted(DENY_RM, SMUGGLED))
        print("shell dangers, floor, allow rest:  ", counted(UNDER_THE_FLOOR, DANGERS))
        print("plain git, allow git alone:        ", counted(ALLOW_GIT, entries(BENIGN_GIT)))
        print("daily work, floor, deny rm:        ", counted([*FLOOR.rules, *DENY_RM], entries(BENIGN_ALL)))

    assert len(SMUGGLED) >= 200
    assert len(DANGERS) >= 200
    assert min(len(entries(BENIGN_GIT)), len(entries(BENIGN_ALL))) >= 30
