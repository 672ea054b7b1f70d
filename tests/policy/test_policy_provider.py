"""The policy as a layer: what reaches the tools, what is listed, and what the model is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from judging import denied, one, request, run, tools

from llm_agent import notices
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.policy import AskLock, Grants, Policy, default_rules
from llm_agent.testing import ScriptedProvider

ALL = [{"tool": "*", "decision": "allow"}]


class Half:
    def tools_for_llm(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"provider": None}, "Policy: expected a tool provider"),
        ({"provider": ScriptedProvider}, "is a class"),
        ({"provider": Half()}, "execute_tool_calls"),
        ({"rules": {"tool": "a", "decision": "allow"}}, "rules: expected a list of rules, got dict"),
        ({"rules": [{"tool": "a"}]}, r"rules\[0\].decision"),
        ({"rules": [{"tool": "a", "decision": "deny", "check": "typo"}]}, r"rules\[0\].check: 'typo' is not among"),
        ({"grants": [{"tool": "a", "decision": "ask"}]}, r"grants\[0\].decision"),
        ({"grants": "none"}, "grants: expected a list"),
        ({"store": []}, "store: expected a book of grants"),
        ({"on_ask": "later"}, "on_ask: expected a callable"),
        ({"on_grant": 3}, "on_grant: expected a callable"),
        ({"ask_timeout": 0}, "ask_timeout: expected seconds above 0"),
        ({"ask_timeout": True}, "ask_timeout"),
        ({"ask_timeout": float("nan")}, "ask_timeout"),
        ({"checks": {"c": 3}}, r"checks\['c'\]: expected a callable"),
        ({"checks": ["c"]}, "checks: expected a mapping"),
        ({"command_params": {"sh_*": []}}, "command_params"),
        ({"command_params": {"sh_*": ["a", "b", "c"]}}, "command_params"),
        ({"on_warn": "loud"}, "on_warn"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, Any], problem: str) -> None:
    """By name, before anything is judged with it."""
    with pytest.raises(ConfigError, match=problem):
        Policy(**{"provider": tools(), **options})


def test_a_mistyped_option_is_no_option() -> None:
    """`rule` for `rules` would mean "no rules"."""
    with pytest.raises(TypeError):
        Policy(tools(), rule=[])  # type: ignore[call-arg]


def test_allowed_calls_go_down_as_the_same_objects_in_one_batch() -> None:
    """Refused ones never arrive, and every answer keeps its place."""
    provider = tools()
    policy = Policy(provider, [*ALL, {"tool": "fs_write", "decision": "deny"}])
    calls = [request("fs_read", "1"), request("fs_write", "2"), request("web_get", "3")]

    answers = run(policy, *calls)

    assert [answer.tool_call_id for answer in answers] == ["1", "2", "3"]
    assert [answer.is_error for answer in answers] == [False, True, False]
    assert len(provider.batches) == 1
    assert all(got is sent for got, sent in zip(provider.batches[0], [calls[0], calls[2]], strict=True))


def test_no_calls_are_no_answers() -> None:
    """An empty batch asks nobody."""
    provider = tools()

    assert Policy(provider, ALL).execute_tool_calls([]) == []
    assert provider.batches == []


def test_a_mapping_is_read_as_a_call_and_left_alone() -> None:
    """The wire form is welcome, and is not changed."""
    raw = {"id": "1", "function": {"name": "fs_read", "arguments": '{"path": "/srv/x"}'}, "extra": 1}
    copy = {**raw, "function": dict(raw["function"])}  # type: ignore[call-overload]

    answers = Policy(tools(), [{"tool": "*", "decision": "allow", "under": "/srv"}]).execute_tool_calls([raw])

    assert answers == [ToolAnswer("1", "done")]
    assert raw == copy


@pytest.mark.parametrize("raw", [None, 3, "x", {}, {"id": "1"}, {"id": "1", "function": 3}, {"function": {"name": 3}}])
def test_a_call_that_cannot_be_read_is_refused_here(raw: Any) -> None:
    """It never reaches the tools, and its neighbours do."""
    provider = tools()

    answers = Policy(provider, ALL).execute_tool_calls([raw, request("fs_read", "2")])

    assert [answer.is_error for answer in answers] == [True, False]
    assert answers[0].content == notices.NAMELESS_CALL
    assert denied(answers[0])["by"] == "policy"


@pytest.mark.parametrize(
    ("arguments", "is_unknown"),
    [
        ({"path": "/srv/x"}, False),
        ('{"path": "/srv/x"}', False),
        ('  {"path": "/srv/x"} ', False),
        (None, True),
        ("", True),
        ("null", True),
        ("{}", True),
        ("[1]", True),
        ('{"path": "/srv/x"', True),
    ],
)
def test_arguments_mean_the_same_here_as_below(arguments: Any, is_unknown: bool) -> None:
    """One parser: what a tool would see is what is judged."""
    policy = Policy(tools(), [{"tool": "*", "decision": "allow", "under": "/srv"}])

    answer = one(policy, ToolRequest("1", "fs_read", arguments))

    assert answer.is_error is is_unknown


def test_a_provider_that_raises_costs_its_own_calls_only() -> None:
    """What was refused stays refused for its own reason."""
    policy = Policy(
        ScriptedProvider({"fs_read": RuntimeError("pipe broke")}), [*ALL, {"tool": "x", "decision": "deny"}]
    )

    answers = run(policy, request("x", "1"), request("fs_read", "2"))

    assert "denied by the rule" in answers[0].content
    assert "pipe broke" in answers[1].content


def test_a_short_answer_is_filled_in() -> None:
    """One answer per call, whatever is below."""

    class Short(ScriptedProvider):
        def execute_tool_calls(self, calls: list[ToolRequest]) -> Any:
            return ["only one"]

    answers = run(Policy(Short({"a": "x"}), ALL), request("a", "1"), request("a", "2"))

    assert [answer.content for answer in answers] == ["only one", notices.NO_RESULT]


def test_a_bug_of_ours_allows_nothing() -> None:
    """Even where the policy itself fails, the call is refused."""

    policy = Policy(tools(), ALL)
    policy._rules = None  # type: ignore[assignment]  # stands for a bug of ours

    answer = one(policy, request())

    assert answer.is_error
    assert denied(answer)["reason"] == "failed"


# -- the catalogue -------------------------------------------------------------------------------


def names(policy: Policy) -> list[str]:
    return [each["function"]["name"] for each in policy.tools_for_llm()]


def test_a_bare_deny_hides_its_tools() -> None:
    """What can never be called need not be offered; a narrowed deny leaves the tool in sight."""
    rules = [{"tool": "fs_w*", "decision": "deny"}, {"tool": "fs_read", "decision": "deny", "under": "/etc"}]

    assert names(Policy(tools("fs_read", "fs_write"), rules)) == ["fs_read"]
    assert names(Policy(tools("fs_read", "fs_write"), rules, filter_tools=False)) == ["fs_read", "fs_write"]


def test_grants_never_change_the_catalogue() -> None:
    """A remembered deny refuses the call and hides nothing."""
    policy = Policy(tools("fs_read"), grants=[{"tool": "fs_read", "decision": "deny"}])

    assert names(policy) == ["fs_read"]


def test_declarations_without_a_name_are_shown() -> None:
    """They are passed on as the very same objects."""
    odd: list[Any] = [{"type": "function"}, {"function": {"name": 3}}, {"type": "function", "function": {"name": "a"}}]

    class Odd(ScriptedProvider):
        def tools_for_llm(self) -> list[Any]:
            return odd

    shown = Policy(Odd({}), [{"tool": "*", "decision": "deny"}]).tools_for_llm()

    assert [id(each) for each in shown] == [id(each) for each in odd[:2]]


def test_a_listing_error_is_raised() -> None:
    """A shorter catalogue would be a lie."""

    class Broken(ScriptedProvider):
        def tools_for_llm(self) -> list[Any]:
            raise OSError("no list")

    with pytest.raises(OSError, match="no list"):
        Policy(Broken({}), ALL).tools_for_llm()


def test_a_name_that_no_tool_has_is_warned_about_once() -> None:
    """A rule in the wrong vocabulary matches nothing, silently: so it is said, and the usual rules are not."""
    told: list[str] = []
    policy = Policy(
        tools("fs_read"),
        [{"tool": "read_file", "decision": "deny"}, {"tool": "fs_*", "decision": "allow"}, {"tool": "fs_grep",
        "decision": "allow"}],
        roots={"git_": "/srv"},
        on_warn=told.append,
    )  # fmt: skip

    policy.tools_for_llm()
    policy.tools_for_llm()

    assert told == policy.lint()
    assert [sentence.split(" matches")[0] for sentence in told] == ["the rule 'deny read_file'", "roots['git_']"]


def test_the_usual_rules_are_no_news_whatever_their_prefix() -> None:
    """They name more tools than anybody has; another rule of that prefix is told."""
    rules = [*default_rules("ws_"), {"tool": "ws_read", "decision": "deny", "under": "/etc"}]

    assert [sentence[:14] for sentence in Policy(tools(), rules).lint()] == ["the rule 'deny"]


def test_without_a_listener_the_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """And a listener that raises costs nothing."""

    def fail(_: str) -> None:
        raise RuntimeError("no")

    with caplog.at_level(logging.WARNING, logger="llm_agent.policy"):
        Policy(tools("a"), [{"tool": "b", "decision": "deny"}]).tools_for_llm()
        Policy(tools("a"), [{"tool": "b", "decision": "deny"}], on_warn=fail).tools_for_llm()

    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


# -- rules while it works --------------------------------------------------------------------------


def test_rules_are_replaced_all_at_once_or_not() -> None:
    """A bad set raises, and the old one stands."""
    policy = Policy(tools(), ALL)
    with pytest.raises(ConfigError, match=r"rules\[1\].decision"):
        policy.replace_rules([{"tool": "*", "decision": "deny"}, {"tool": "*"}])
    assert policy.rules == ALL

    policy.replace_rules([{"tool": "*", "decision": "deny"}])

    assert one(policy, request()).is_error


def test_a_batch_keeps_the_rules_it_began_with() -> None:
    """Rules that change while a human thinks are for the next batch."""
    provider = tools()

    def ask(_: Any) -> str:
        policy.replace_rules([{"tool": "*", "decision": "deny"}])
        return "allow-once"

    policy = Policy(provider, [{"tool": "fs_*", "decision": "allow"}], on_ask=ask)

    answers = run(policy, request("web_get", "1"), request("fs_read", "2"))

    assert [answer.is_error for answer in answers] == [False, False]
    assert one(policy, request("fs_read")).is_error


def test_what_is_read_from_a_policy_is_a_copy() -> None:
    """Changing it changes no rule, no grant, no root."""
    policy = Policy(tools(), ALL, [{"tool": "a", "decision": "deny"}], {"fs_*": "/srv"}, path_params={"a": "file"})

    policy.rules[0]["decision"] = "deny"
    policy.grants()[0]["rule"]["decision"] = "allow"
    policy.roots.clear()
    policy.path_params["a"].clear()
    policy.command_params.clear()

    assert policy.rules == ALL
    assert policy.grants()[0]["rule"]["decision"] == "deny"
    assert policy.roots == {"fs_": "/srv"}
    assert policy.path_params == {"a": ["file"]}


def test_the_optional_parts_of_the_port_are_passed_on() -> None:
    """`idempotency_of` is there where the provider has it; grants are the policy's own."""

    class Knowing(ScriptedProvider):
        def idempotency_of(self, name: str) -> str:
            return "read-only"

    assert Policy(Knowing({}), []).idempotency_of("a") == "read-only"
    assert not hasattr(Policy(tools(), []), "idempotency_of")


# -- what the model is told ------------------------------------------------------------------------


def test_a_static_deny_names_tool_rule_and_paths() -> None:
    """With the note, and machine-readable beside the text."""
    rule = {"tool": "fs_*", "decision": "deny", "under": "/etc", "note": "system files"}

    answer = one(Policy(tools(), [rule]), request(path="/etc/passwd"))

    assert answer.content == (
        "This call was not run: 'fs_read' is denied by the rule: deny fs_* under /etc (system files). "
        "Paths: /etc/passwd."
    )
    assert denied(answer) == {"by": "rule", "rule": rule, "reason": "rule"}


def test_a_deny_that_only_might_mean_the_call_says_so() -> None:
    """What could not be checked is told as that."""
    answer = one(
        Policy(tools(), [{"tool": "fs_*", "decision": "deny", "under": "/etc"}]), request(path="/srv/../etc/x")
    )

    assert notices.DENIED_UNSURE in answer.content
    assert denied(answer)["reason"] == "unevaluable-path"


def test_a_denied_grant_is_told_as_the_users() -> None:
    """It was decided earlier, by a human, and says by which rule."""
    answer = one(Policy(tools(), grants=[{"tool": "fs_read", "decision": "deny"}]), request())

    assert "what the user decided earlier: deny fs_read" in answer.content
    assert denied(answer) == {"by": "grant", "rule": {"tool": "fs_read", "decision": "deny"}, "reason": "rule"}


def test_without_anybody_to_ask_the_model_learns_that_asking_is_no_use() -> None:
    """Headless: refused, with the paths seen."""
    answer = one(Policy(tools(), roots={"fs_": "/srv"}), request(path="x"))

    assert "there is no permission prompt here" in answer.content
    assert "Paths: /srv/x." in answer.content
    assert denied(answer) == {"by": "headless", "rule": None, "reason": "no-match"}


def test_decide_says_what_the_rules_say_and_asks_nobody() -> None:
    """For a host that wants to know beforehand."""
    policy = Policy(tools(), ALL, on_ask=lambda _: pytest.fail("asked"))

    assert policy.decide(request()).decision == "allow"
    assert policy.decide({"function": {"name": ""}}).decision == "allow"
    assert Policy(tools(), on_ask=lambda _: pytest.fail("asked")).decide(request()).decision == "ask"


def test_a_policy_knows_whether_anybody_would_be_asked() -> None:
    """Its own asker, anywhere; "run" only within a run."""
    assert Policy(tools(), on_ask=lambda _: True).is_interactive
    assert not Policy(tools()).is_interactive
    assert not Policy(tools(), on_ask="run", ask_lock=AskLock(), store=Grants()).is_interactive
