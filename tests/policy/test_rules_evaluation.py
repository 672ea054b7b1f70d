"""What a list of rules says: the strongest decision wins, in any order, and unknown never allows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import request, verdict

from llm_agent.messages import ToolRequest

ALLOW = {"tool": "fs_*", "decision": "allow"}
DENY = {"tool": "fs_read", "decision": "deny"}
ASK = {"tool": "*", "decision": "ask"}
OTHER = {"tool": "web_*", "decision": "deny"}


@pytest.mark.parametrize(
    ("rules", "decision", "reason"),
    [
        ([], "ask", "no-match"),
        ([OTHER], "ask", "no-match"),
        ([ALLOW], "allow", "rule"),
        ([ASK], "ask", "rule"),
        ([DENY], "deny", "rule"),
        ([ALLOW, ASK], "ask", "rule"),
        ([ALLOW, DENY], "deny", "rule"),
        ([ASK, DENY], "deny", "rule"),
        ([ALLOW, ASK, DENY], "deny", "rule"),
        ([ALLOW, OTHER], "allow", "rule"),
    ],
)
def test_deny_before_ask_before_allow_in_any_order(rules: list[Any], decision: str, reason: str) -> None:
    """The order of the list decides nothing; no rule at all asks."""
    for order in itertools.permutations(rules):
        found = verdict(order, request("fs_read", path="a"))
        assert (found.decision, found.reason) == (decision, reason)


@pytest.mark.parametrize(
    ("pattern", "tool", "fits"),
    [
        ("fs_read", "fs_read", True),
        ("fs_read", "fs_reader", False),
        ("fs_*", "fs_read", True),
        ("fs_*", "fs_", True),
        ("fs_*", "FS_read", False),
        ("*", "anything", True),
    ],
)
def test_a_tool_is_named_exactly_or_by_its_beginning(pattern: str, tool: str, fits: bool) -> None:
    """A trailing star is the only wildcard, and case counts."""
    found = verdict([{"tool": pattern, "decision": "allow"}], request(tool))

    assert (found.decision == "allow") is fits


YES, NO, UNKNOWN = "/srv/a/x", "/etc/x", "/srv/a/../x"


@pytest.mark.parametrize(
    ("paths", "allow", "deny", "ask"),
    [
        ((YES,), "allow", "deny", "ask"),
        ((NO,), "ask", "ask", "ask"),
        ((UNKNOWN,), "ask", "deny", "ask"),
        ((YES, YES), "allow", "deny", "ask"),
        ((YES, NO), "ask", "deny", "ask"),
        ((YES, UNKNOWN), "ask", "deny", "ask"),
        ((NO, UNKNOWN), "ask", "deny", "ask"),
        ((NO, NO), "ask", "ask", "ask"),
        ((), "ask", "deny", "ask"),
    ],
)
def test_allow_needs_every_item_and_deny_any(paths: tuple[str, ...], allow: str, deny: str, ask: str) -> None:
    """Yes for all allows; one yes or unknown denies; nothing to look at is one unknown."""
    call = ToolRequest("c", "fs_move", dict(zip(("from", "to"), paths, strict=False)))

    decisions = [
        verdict([{"tool": "fs_move", "decision": decision, "under": "/srv/a"}], call).decision
        for decision in ("allow", "deny", "ask")
    ]

    assert decisions == [allow, deny, ask]


@pytest.mark.parametrize(
    ("rules", "path", "reason"),
    [
        ([{"tool": "*", "decision": "deny", "under": "/srv"}], "/srv/x", "rule"),
        ([{"tool": "*", "decision": "deny", "under": "/srv"}], "../x", "unevaluable-path"),
        ([{"tool": "*", "decision": "allow", "under": "/srv"}], "../x", "unevaluable-path"),
        ([{"tool": "*", "decision": "allow", "under": "/srv"}], "/etc/x", "no-match"),
        ([{"tool": "*", "decision": "ask", "under": "/srv"}], "~/x", "unevaluable-path"),
    ],
)
def test_the_reason_says_whether_something_could_not_be_judged(rules: list[Any], path: str, reason: str) -> None:
    """A rule that only might mean the call is told apart from one that does."""
    assert verdict(rules, request(path=path)).reason == reason


def test_narrowers_are_joined_by_and() -> None:
    """A rule with two narrowers fires only where both do."""
    rule = {"tool": "web_get", "decision": "deny", "under": "/srv", "host": "a.org"}

    assert verdict([rule], request("web_get", path="/srv/x", url="http://a.org")).decision == "deny"
    assert verdict([rule], request("web_get", path="/srv/x", url="http://b.org")).decision == "ask"
    assert verdict([rule], request("web_get", path="/etc/x", url="http://a.org")).decision == "ask"


@pytest.mark.parametrize("arguments", ["[1]", "{", '"x"', "3", "nan", '{"path": NaN}'])
def test_arguments_that_cannot_be_read_are_unknown(arguments: str) -> None:
    """They are not an empty object: a narrowed allow does not fire, a narrowed deny does."""
    call = ToolRequest("c", "fs_read", arguments)

    assert verdict([{"tool": "*", "decision": "allow", "under": "/"}], call).decision == "ask"
    assert verdict([{"tool": "*", "decision": "deny", "under": "/srv"}], call).decision == "deny"
    assert verdict([{"tool": "*", "decision": "deny", "host": "a.org"}], call).decision == "deny"
    assert verdict([{"tool": "*", "decision": "deny", "command": "rm"}], call).decision == "deny"
    assert verdict([{"tool": "*", "decision": "deny", "check": "c"}], call, checks={"c": bool}).decision == "deny"


LADDER: list[dict[str, Any]] = [
    {"tool": "*"},
    {"tool": "s*"},
    {"tool": "sh_*"},
    {"tool": "sh_run"},
    {"tool": "sh_run", "host": "*.org"},
    {"tool": "sh_run", "host": "*.a.org"},
    {"tool": "sh_run", "host": "w.a.org"},
    {"tool": "sh_run", "under": "/"},
    {"tool": "sh_run", "under": "/srv"},
    {"tool": "sh_run", "check": "yes"},
    {"tool": "sh_run", "command": "g*"},
    {"tool": "sh_run", "command": "gi*"},
    {"tool": "sh_run", "command": "git"},
    {"tool": "sh_run", "command": "git", "args": ["push"]},
    {"tool": "sh_run", "command": "git", "args": ["push", "origin"]},
]


@pytest.mark.parametrize("step", range(1, len(LADDER)))
def test_the_rule_that_says_most_is_told(step: int) -> None:
    """Of rules that decide alike, the more specific one is reported, wherever it stands."""
    call = request("sh_run", path="/srv/x", url="http://w.a.org", command="git", args=["push", "origin"])
    rules = [{**LADDER[step - 1], "decision": "deny"}, {**LADDER[step], "decision": "deny"}]

    for order in (rules, rules[::-1]):
        found = verdict(order, call, checks={"yes": lambda _: True})
        assert found.rule is not None
        assert found.rule.to_dict() == rules[1]


def test_a_rule_that_means_the_call_is_told_before_one_that_might() -> None:
    """The note that is shown must be true of the call."""
    sure = {"tool": "*", "decision": "deny", "note": "sure"}
    might = {"tool": "fs_read", "decision": "deny", "under": "/srv/secret", "note": "might"}

    found = verdict([sure, might], request(path="../x"))

    assert found.rule is not None
    assert (found.rule.note, found.reason) == ("sure", "rule")


@pytest.mark.parametrize(
    ("check", "allow", "deny"),
    [
        (lambda facts: True, "allow", "deny"),
        (lambda facts: False, "ask", "ask"),
        (lambda facts: None, "ask", "deny"),
        (lambda facts: "yes", "ask", "deny"),
        (lambda facts: 1 / 0, "ask", "deny"),
    ],
)
def test_a_check_that_fails_has_judged_nothing(check: Any, allow: str, deny: str) -> None:
    """True is yes and False is no; anything else, and an exception, is unknown."""
    checks = {"c": check}

    assert verdict([{"tool": "*", "decision": "allow", "check": "c"}], request(), checks=checks).decision == allow
    assert verdict([{"tool": "*", "decision": "deny", "check": "c"}], request(), checks=checks).decision == deny


def test_a_check_without_a_predicate_denies() -> None:
    """A name nobody knows is unknown."""
    assert verdict([{"tool": "*", "decision": "deny", "check": "nobody"}], request()).decision == "deny"
    assert verdict([{"tool": "*", "decision": "allow", "check": "nobody"}], request()).decision == "ask"


COMMAND_ROWS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"command": "git"}, {"command": "git", "args": ["status"]}, "allow", "deny"),
    ({"command": "git"}, {"command": "/usr/bin/git"}, "allow", "deny"),
    ({"command": "git"}, {"command": "GIT"}, "ask", "deny"),
    ({"command": "git"}, {"command": "ls"}, "ask", "ask"),
    ({"command": "git"}, {"command": 7}, "ask", "deny"),
    ({"command": "git"}, {"path": "x"}, "ask", "deny"),
    ({"command": "gi*"}, {"command": "git"}, "allow", "deny"),
    ({"command": "git", "args": ["push"]}, {"command": "git", "args": ["push", "-f"]}, "allow", "deny"),
    ({"command": "git", "args": ["push"]}, {"command": "git", "args": ["pull"]}, "ask", "ask"),
    ({"command": "git", "args": ["1"]}, {"command": "git", "args": [1]}, "ask", "deny"),
    ({"command": "git", "args-any": ["-f"]}, {"command": "git", "args": ["push", "-f"]}, "allow", "deny"),
    ({"command": "git", "args-any": ["-f"]}, {"command": "git", "args": ["push"]}, "ask", "ask"),
    ({"command": "git", "args-any": ["-f"]}, {"command": "git", "args": [{}, "-f"]}, "ask", "deny"),
    ({"command": "git"}, {"command": "git status > /etc/motd"}, "ask", "deny"),
    ({"command": "git"}, {"command": "git status 2> /dev/null"}, "allow", "deny"),
    ({"command": "git"}, {"command": "git status; rm x"}, "ask", "deny"),
    ({"command": "rm"}, {"command": "git status; rm x"}, "ask", "deny"),
]


@pytest.mark.parametrize(("narrowers", "arguments", "allow", "deny"), COMMAND_ROWS)
def test_a_command_narrows_by_every_command_the_call_runs(
    narrowers: dict[str, Any], arguments: dict[str, Any], allow: str, deny: str
) -> None:
    """An allow needs each of them, without a redirection into a file; a deny takes any."""
    call = ToolRequest("c", "sh_run", arguments)

    assert verdict([{"tool": "sh_run", "decision": "deny", **narrowers}], call).decision == deny
    if narrowers.get("args") != ["1"]:  # numbers as the tool would write them: yes, but nobody allows by them
        assert verdict([{"tool": "sh_run", "decision": "allow", **narrowers}], call).decision == allow


def test_other_argument_names_hold_programs_where_that_is_said() -> None:
    """`command_params` names them per tool; an exact name wins over a prefix."""
    params = {"sh_*": ("line",), "sh_exec": ("program", "argv")}
    rule = [{"tool": "*", "decision": "allow", "command": "git", "args": ["log"]}]
    called = request("sh_exec", program="git", argv=["log"])

    assert verdict(rule, called, command_params=params).decision == "allow"
    assert verdict(rule, request("sh_run", line="git log"), command_params=params).decision == "allow"
    assert verdict(rule, request("sh_run", command="git log"), command_params=params).decision == "ask"


NARROWERS = st.sampled_from(
    [{}, {"under": "/srv"}, {"host": "a.org"}, {"command": "git"}, {"check": "c"}, {"under": "/srv", "host": "a.org"}]
)
RULES = st.lists(
    st.builds(
        lambda decision, narrowers: {"tool": "*", "decision": decision, **narrowers},
        st.sampled_from(["allow", "deny", "ask"]),
        NARROWERS,
    ),
    max_size=6,
)
VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.text(st.characters(max_codepoint=126), max_size=12),
    st.sampled_from(["/srv/x", "..", "http://a.org", "git"]),
)


@given(RULES, st.dictionaries(st.sampled_from(["path", "from", "url", "command", "args"]), VALUES), st.randoms())
def test_whatever_comes_the_order_decides_nothing(rules: list[Any], arguments: dict[str, Any], random: Any) -> None:
    """No input raises, and a shuffled list says the same."""
    shuffled = list(rules)
    random.shuffle(shuffled)
    call = ToolRequest("c", "t", arguments)

    first, second = verdict(rules, call), verdict(shuffled, call)

    assert (first.decision, first.reason) == (second.decision, second.reason)


@given(RULES, st.dictionaries(st.sampled_from(["path", "url", "command"]), VALUES), NARROWERS)
def test_another_deny_never_allows_more(rules: list[Any], arguments: dict[str, Any], narrowers: dict[str, Any]) -> None:
    """A deny rule can only make a verdict stricter."""
    call = ToolRequest("c", "t", arguments)
    rank = {"allow": 0, "ask": 1, "deny": 2}

    before = verdict(rules, call).decision
    after = verdict([*rules, {"tool": "*", "decision": "deny", **narrowers}], call).decision

    assert rank[after] >= rank[before]
