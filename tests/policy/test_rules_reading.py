"""Rules as data: what is one, what is refused by index and member, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from llm_agent.errors import ConfigError
from llm_agent.policy import Rule
from llm_agent.policy.rules import read_rule, read_rules

GOOD: list[dict[str, Any]] = [
    {"tool": "fs_read", "decision": "allow"},
    {"tool": "fs_*", "decision": "deny", "under": "/srv/secret"},
    {"tool": "*", "decision": "ask"},
    {"tool": "fs_*", "decision": "allow", "under": "src"},
    {"tool": "web_get", "decision": "allow", "host": "*.example.org"},
    {"tool": "sh_run", "decision": "allow", "command": "git", "args": ["status"]},
    {"tool": "sh_run", "decision": "deny", "command": "git", "args-any": ["--force", "-f"]},
    {"tool": "sh_run", "decision": "ask", "command": "py*", "note": "code", "severity": "danger"},
    {"tool": "sh_run", "decision": "allow", "command": "rm", "args": ["-r", "build"], "exact": True},
    {"tool": "sh_run", "decision": "allow", "command": "make", "exact": True},
    {"tool": "sh_run", "decision": "deny", "check": "danger:x"},
    {"tool": "fs_write", "decision": "ask", "every-time": True},
]

BAD: list[tuple[Any, str]] = [
    ("fs_read", "rules[1]: expected a rule, got str"),
    (None, "rules[1]: expected a rule"),
    ({}, "rules[1].tool: it is missing"),
    ({"tool": "a"}, "rules[1].decision: it is missing"),
    ({"decision": "allow"}, "rules[1].tool: it is missing"),
    ({"tool": "", "decision": "allow"}, "rules[1].tool:"),
    ({"tool": " ", "decision": "allow"}, "rules[1].tool:"),
    ({"tool": 3, "decision": "allow"}, "rules[1].tool:"),
    ({"tool": "f*s", "decision": "allow"}, "rules[1].tool: a * may only stand at the end"),
    ({"tool": "*x", "decision": "allow"}, "rules[1].tool: a * may only"),
    ({"tool": "a", "decision": "maybe"}, "rules[1].decision: expected one of allow, deny, ask, got 'maybe'"),
    ({"tool": "a", "decision": ["allow"]}, "rules[1].decision:"),
    ({"tool": "a", "decision": "allow", "dir": "/x"}, "rules[1].dir: no such member"),
    ({"tool": "a", "decision": "allow", "args_any": ["x"]}, "rules[1].args_any: no such member"),
    ({"tool": "a", "decision": "allow", "under": ""}, "rules[1].under:"),
    ({"tool": "a", "decision": "allow", "under": "../x"}, "rules[1].under: expected a folder"),
    ({"tool": "a", "decision": "allow", "under": "a/../b"}, "rules[1].under:"),
    ({"tool": "a", "decision": "allow", "under": "a\0b"}, "rules[1].under:"),
    ({"tool": "a", "decision": "allow", "under": "a\\b"}, "rules[1].under:"),
    ({"tool": "a", "decision": "allow", "under": "~/x"}, "rules[1].under: expected a folder"),
    ({"tool": "a", "decision": "allow", "under": "C:/x"}, "rules[1].under:"),
    ({"tool": "a", "decision": "allow", "under": 3}, "rules[1].under:"),
    ({"tool": "a", "decision": "allow", "host": "*"}, "rules[1].host:"),
    ({"tool": "a", "decision": "allow", "host": "https://a.org"}, "rules[1].host:"),
    ({"tool": "a", "decision": "allow", "command": ""}, "rules[1].command:"),
    ({"tool": "a", "decision": "allow", "command": "/bin/rm"}, "rules[1].command: expected a base name"),
    ({"tool": "a", "decision": "allow", "command": "bin\\rm"}, "rules[1].command:"),
    ({"tool": "a", "decision": "allow", "command": "git push"}, "rules[1].command: expected the program alone"),
    ({"tool": "a", "decision": "allow", "under": "notes/*"}, "rules[1].under: expected a folder, which stands for"),
    ({"tool": "a", "decision": "allow", "under": "/srv/**/x"}, "rules[1].under: expected a folder, which stands"),
    ({"tool": "a", "decision": "allow", "exact": True}, "rules[1].exact: it needs a command"),
    ({"tool": "a", "decision": "allow", "command": "c", "exact": "yes"}, "rules[1].exact: expected true or false"),
    ({"tool": "a", "decision": "allow", "command": "r*m"}, "rules[1].command: a * may only"),
    ({"tool": "a", "decision": "allow", "args": ["x"]}, "rules[1].args: it needs a command"),
    ({"tool": "a", "decision": "allow", "args-any": ["x"]}, "rules[1].args-any: it needs a command"),
    ({"tool": "a", "decision": "allow", "command": "c", "args": []}, "rules[1].args:"),
    ({"tool": "a", "decision": "allow", "command": "c", "args": [""]}, "rules[1].args:"),
    ({"tool": "a", "decision": "allow", "command": "c", "args": "status"}, "rules[1].args:"),
    ({"tool": "a", "decision": "allow", "command": "c", "args-any": [3]}, "rules[1].args-any:"),
    ({"tool": "a", "decision": "allow", "check": ""}, "rules[1].check:"),
    ({"tool": "a", "decision": "allow", "note": 3}, "rules[1].note:"),
    ({"tool": "a", "decision": "ask", "severity": "high"}, "rules[1].severity:"),
    ({"tool": "a", "decision": "allow", "every-time": True}, "rules[1].every-time: only an ask"),
    ({"tool": "a", "decision": "ask", "every-time": "yes"}, "rules[1].every-time:"),
]


@pytest.mark.parametrize("data", GOOD)
def test_a_rule_comes_back_as_the_data_it_was_read_from(data: dict[str, Any]) -> None:
    """What is written to disk is what was read: no member renamed, none added."""
    assert read_rule(data, "rule").to_dict() == data


@pytest.mark.parametrize(("data", "problem"), BAD)
def test_a_malformed_rule_is_refused_by_index_and_member(data: Any, problem: str) -> None:
    """One bad rule refuses the list, and the error says which one and what about it."""
    with pytest.raises(ConfigError) as refusal:
        read_rules([GOOD[0], data, GOOD[1]])

    assert str(refusal.value).startswith(problem)


@pytest.mark.parametrize("data", ["fs_*", {"tool": "a", "decision": "allow"}, None, 3])
def test_a_list_that_is_none_is_refused(data: Any) -> None:
    """A lone rule, or a lone string, is not a list of rules."""
    with pytest.raises(ConfigError, match="expected a list of rules"):
        read_rules(data)


def test_reading_takes_a_copy() -> None:
    """Changing the data afterwards changes no rule."""
    data = {"tool": "sh_run", "decision": "allow", "command": "git", "args": ["status"]}
    rule = read_rule(data, "rule")

    data["args"].append("--short")  # type: ignore[attr-defined]

    assert rule.args == ("status",)


def test_a_rule_made_in_code_is_checked_alike() -> None:
    """`Rule(...)` refuses what its data form refuses."""
    with pytest.raises(ConfigError, match="under: expected a folder"):
        Rule(tool="a", decision="allow", under="../x")


def test_hosts_are_compared_in_one_spelling() -> None:
    """Case and the long form of an address make no other host."""
    assert read_rule({"tool": "w", "decision": "deny", "host": "API.Example.ORG"}, "rule").host == "api.example.org"
    assert read_rule({"tool": "w", "decision": "deny", "host": "0:0:0:0:0:0:0:1"}, "rule").host == "::1"
