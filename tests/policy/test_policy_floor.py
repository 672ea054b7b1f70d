"""The danger floor under a host that allows everything, and the rules to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judging import denied, one, request, tools, verdict

from llm_agent.errors import ConfigError
from llm_agent.policy import Policy, danger_floor, default_rules
from llm_agent.tools import stacked
from llm_agent.tools.function import tool

FLOOR = danger_floor(home="/home/ann", config="/home/ann/.config/agent")
ALL = [*(rule.to_dict() for rule in FLOOR), {"tool": "*", "decision": "allow"}]


def decided(call: Any) -> str:
    return verdict(ALL, call, checks=FLOOR.checks).decision


DENIED = [
    "rm -rf /", "rm -fr /", "rm -r -f /", "rm --recursive --force /", "rm -rf //", "rm -rf /.", "rm -rf /./",
    "rm -rf /../",
    "rm -rf /tmp/..", "rm -rf ~", "rm -rf ~/", "rm -rf ~/.", "rm -rf ~bob", "rm -rf ~/../bob", "rm -rf /home/ann",
    "rm -rf /home/ann/", "rm -rf /HOME/ANN", "rm -rf /home/ann/docs/..", "rm -rf -- /", "/bin/rm -rf /", "RM -rf /",
    "bash -c 'rm -rf /'", "bash -ce 'rm -rf /'", "bash -o pipefail -c 'rm -rf /'", "X=1 rm -rf /", "env -u A rm -rf /",
    "timeout -s KILL 5 rm -rf /", "timeout 1.5 rm -rf /", "stdbuf -o L rm -rf /", "exec -a n rm -rf /", "rm -rf $X /",
    "true && rm -rf /", "(rm -rf /)", "eval 'rm -rf /'", "nice -n 5 rm -rf ~", "cat /home/ann/.config/agent/key",
    "cat ~/.config/agent/key", "cp --target=/home/ann/.config/agent x", "echo x > /home/ann/.config/agent/rules.json",
    "cat /home/ann/./.config/agent/key", "ls /HOME/ann/.CONFIG/agent",
]  # fmt: skip
ASKED = [
    "cd / && rm -rf usr", "rm -rf $X", "rm -rf \"$(pwd)\"", "$TOOL --version", "trap 'rm -rf /' EXIT",
    "mkfs.ext4 /dev/sda",
    "dd if=/dev/zero of=/dev/sda", "wipefs -a /dev/sda", "git push --force", "git push -f", "git push origin +main",
    "git push --force-with-lease=ref", "git -C x push -f", "git reset --hard", "git clean -fd", "git stash drop",
    "git stash clear", "sudo ls", "doas ls", "su -c ls", "pkexec ls", "run0 ls", "shutdown now", "reboot", "halt",
    "poweroff",
    "bash", "sh", "cat ~/.bashrc", "echo x >> ~/.zshrc", "rm -r .git", "cat .git/config", "xargs rm", "find . -delete",
    "python -c 'x'", "perl -e 'x'", "echo 'unclosed",
]  # fmt: skip
ORDINARY = [
    "ls -la", "rm build/x.o", "rm -rf build", "git status", "git push", "git push origin main",
    "git log --oneline", "make test",
    "npm run build", "cat README.md", "python setup.py build", "cp a b", "grep -r x src", "bash -c 'ls; pwd'",
    "echo hi > out",
    "cat .gitignore",
]  # fmt: skip


@pytest.mark.parametrize("command", DENIED)
def test_what_ends_a_machine_is_denied_whatever_is_allowed(command: str) -> None:
    """And no grant lifts it: the reason is the rule, for certain."""
    grant = {"tool": "sh_run", "decision": "allow", "command": "rm"}
    policy = Policy(tools(), ALL, [grant], checks=FLOOR.checks, on_ask=lambda _: pytest.fail("asked"))

    refusal = denied(one(policy, request("sh_run", command=command)))

    assert (refusal["by"], refusal["reason"]) == ("rule", "rule")
    assert refusal["rule"]["severity"] == "danger"


@pytest.mark.parametrize("command", ASKED)
def test_what_is_dangerous_or_cannot_be_seen_is_asked(command: str) -> None:
    """Asked with true words, not denied: a human may know better."""
    assert decided(request("sh_run", command=command)) == "ask"


@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_commands_pass(command: str) -> None:
    """A floor that asks about everything is switched off."""
    assert decided(request("sh_run", command=command)) == "allow"


def test_a_program_that_cannot_be_read_is_asked_about_in_true_words() -> None:
    """It might delete everything, but nobody has seen that it does."""
    found = verdict(ALL, request("sh_run", command="$TOOL --version"), checks=FLOOR.checks)

    assert found.rule is not None
    assert found.rule.check == "danger:runs-unseen"


def test_the_counts() -> None:
    """Printed for whoever reads the log."""
    print(f"floor: {len(DENIED)} denied, {len(ASKED)} asked, {len(ORDINARY)} ordinary, {len(FLOOR.rules)} rules")

    assert all(rule.note and rule.severity == "danger" for rule in FLOOR)


def test_an_argv_is_judged_like_a_line() -> None:
    """`command` and `args`, as our own run tool takes them."""
    assert decided(request("sh_run", command="rm", args=["-rf", "/"])) == "deny"
    assert decided(request("sh_run", command="rm", args=["-rf", "build"])) == "allow"


def test_other_tools_cannot_reach_the_agents_own_folder_either() -> None:
    """Its places are denied in every spelling; one that cannot be read is asked about."""
    assert decided(request("fs_read", path="/home/ann/.config/agent/key")) == "deny"
    assert decided(request("fs_read", path="/home/ann/.CONFIG/agent")) == "deny"
    assert decided(request("fs_read", path="~/.config/agent/key")) == "ask"
    assert decided(request("fs_read", path="/srv/x")) == "allow"
    assert decided(request("web_get", url="http://a.org")) == "allow"


WHOLE = {"tool": "sh_run", "decision": "allow", "command": "git", "args": ["push", "-f"]}


def test_asks_of_the_floor_can_be_answered_always_by_command_only() -> None:
    """A grant for the whole tool is not enough, one with the whole command is."""
    call = request("sh_run", command="git push -f")
    whole = Policy(tools(), ALL, [{"tool": "sh_run", "decision": "allow"}], checks=FLOOR.checks)
    named = Policy(tools(), ALL, [WHOLE], checks=FLOOR.checks)

    assert one(whole, call).is_error
    assert not one(named, call).is_error


def test_rules_without_their_checks_are_refused() -> None:
    """Forgetting `checks=` would deny every call."""
    with pytest.raises(ConfigError, match="is not among checks"):
        Policy(tools(), [*FLOOR])


def test_a_floor_needs_absolute_folders() -> None:
    """A home that cannot be judged protects nobody; this user's is the default."""
    with pytest.raises(ConfigError, match="home must be an absolute path"):
        danger_floor(home="~")
    with pytest.raises(ConfigError, match="config must be an absolute path"):
        danger_floor(config="agent")
    floor = danger_floor()
    call = request("sh_run", command=f"rm -rf {Path.home()}")
    assert verdict([rule.to_dict() for rule in floor], call, checks=floor.checks).decision == "deny"


def test_the_rules_to_begin_with_only_look() -> None:
    """Reading tools and asking the user; nothing asks about the rest, so that grants can speak."""
    rules = default_rules()

    assert {rule.decision for rule in rules} == {"allow"}
    assert {"fs_read", "fs_list", "fs_glob", "fs_stat", "fs_grep", "fs_map", "user_ask"} == {
        rule.tool for rule in rules
    }
    assert "read" in {rule.tool for rule in default_rules(prefix="")}


def test_what_says_of_itself_that_it_only_reads_is_allowed_where_the_host_says_so() -> None:
    """Under the names that the policy sees; what may be repeated, or is not labelled, is not thereby allowed."""

    @tool(idempotency="read-only")
    def log() -> str:
        return ""

    @tool(idempotency="idempotent")
    def fetch() -> str:
        return ""

    def push() -> str:
        return ""

    labelled = stacked({"git": [log, fetch, push]})
    added = {rule.tool for rule in default_rules("fs_", labelled)} - {rule.tool for rule in default_rules()}

    assert added == {"git_log"}
    assert default_rules("fs_", tools("git_log")) == default_rules()  # it says nothing of its tools
