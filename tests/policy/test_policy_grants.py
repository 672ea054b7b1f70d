"""What was answered "always": kept beside its circumstances, weaker than any rule that denies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from judging import Human, denied, one, request, run, tools

from llm_agent import Loop, Session, notices
from llm_agent.errors import ConfigError
from llm_agent.events import parse_ts
from llm_agent.policy import Grant, Grants, Policy
from llm_agent.testing import ScriptedBackend, call, call_context, finished

ALLOW = {"tool": "fs_read", "decision": "allow"}
DENY = {"tool": "fs_read", "decision": "deny"}
SECOND = 1_000_000


class Clock:
    """Microseconds that only move when told."""

    def __init__(self) -> None:
        self.now = parse_ts("2026-01-01T00:00:00Z")

    def __call__(self) -> int:
        return self.now


@pytest.mark.parametrize(
    ("rules", "grants", "is_allowed"),
    [
        ([], [ALLOW], True),
        ([], [DENY], False),
        ([], [ALLOW, DENY], False),
        ([], [DENY, ALLOW], False),
        ([DENY], [ALLOW], False),
        ([ALLOW], [DENY], True),
        ([{"tool": "*", "decision": "ask"}], [ALLOW], True),
        ([{"tool": "*", "decision": "ask", "every-time": True}], [ALLOW], False),
        ([{"tool": "*", "decision": "ask", "every-time": True}], [DENY], False),
        ([], [{"tool": "fs_read", "decision": "deny", "under": "/etc"}], False),
        ([], [{"tool": "fs_read", "decision": "allow", "under": "/srv"}], False),
    ],
)
def test_grants_speak_only_where_the_rules_would_ask(rules: Any, grants: Any, is_allowed: bool) -> None:
    """A deny is never lifted, an ask rule is satisfied unless it says every time, deny beats allow."""
    policy = Policy(tools(), rules, grants)

    assert one(policy, request(path="../x")).is_error is not is_allowed


@pytest.mark.parametrize(
    ("grant", "is_enough"),
    [
        ({"tool": "sh_run", "decision": "allow"}, False),
        ({"tool": "*", "decision": "allow"}, False),
        ({"tool": "sh_run", "decision": "allow", "command": "*"}, False),
        ({"tool": "sh_run", "decision": "allow", "command": "git"}, False),
        ({"tool": "sh_run", "decision": "allow", "command": "git", "args": ["push"]}, False),
        ({"tool": "sh_run", "decision": "allow", "command": "git", "args-any": ["--force"]}, False),
        ({"tool": "sh_run", "decision": "allow", "command": "git", "args": ["push", "--force"]}, True),
        ({"tool": "*", "decision": "allow", "command": "git", "args": ["push", "--force"]}, True),
        ({"tool": "sh_run", "decision": "allow", "command": "git", "args": ["pull"]}, False),
    ],
)
def test_a_danger_is_only_satisfied_by_a_grant_of_the_whole_command(grant: Any, is_enough: bool) -> None:
    """An always for the shell, or for `git push`, was no answer to the danger in `git push --force`."""
    rules = [{"tool": "sh_run", "decision": "ask", "command": "git", "severity": "danger"}]

    answer = one(Policy(tools(), rules, [grant]), request("sh_run", command="git", args=["push", "--force"]))

    assert answer.is_error is not is_enough


def test_a_danger_answered_always_is_asked_once() -> None:
    """What is suggested is the whole command, so that the memory is enough for its own question and no other."""
    human = Human("always-allow")
    policy = Policy(tools(), [{"tool": "sh_run", "decision": "ask", "severity": "danger"}], on_ask=human)

    run(policy, *[request("sh_run", str(place), command="git push -f") for place in range(3)])
    run(policy, request("sh_run", command="git push -f origin"))

    assert [asked["suggestion"]["args"] for asked in human.asked] == [["push", "-f"], ["push", "-f", "origin"]]


def test_circumstances_stand_beside_the_rule() -> None:
    """Who, when, until when, where: none of it in the rule, which stays an ordinary one."""
    clock = Clock()
    human = Human({"action": "always-allow", "expires-in": 90})
    policy = Policy(tools(), on_ask=human, clock=clock)
    one(policy, request(path="/srv/x"))

    (grant,) = policy.grants()

    assert grant.pop("id")
    assert grant == {
        "rule": {"tool": "fs_read", "decision": "allow", "under": "/srv"},
        "source": "human",
        "given-at": "2026-01-01T00:00:00.000000Z",
        "expires-at": "2026-01-01T00:01:30.000000Z",
        "scope": "session",
    }


def test_a_grant_expires() -> None:
    """From that moment it neither decides nor is told."""
    clock, human = Clock(), Human({"action": "always-allow", "expires-in": 90}, False)
    policy = Policy(tools(), on_ask=human, clock=clock)
    one(policy, request(path="/srv/x"))

    clock.now += 90 * SECOND - 1
    assert not one(policy, request(path="/srv/x")).is_error
    clock.now += 1

    assert one(policy, request(path="/srv/x")).is_error
    assert policy.grants() == []


def test_a_grant_is_revoked_by_its_id() -> None:
    """From then on it is asked again; the host and the call's host are told."""
    told: list[Any] = []
    policy = Policy(tools(), on_ask=Human("always-allow", False), on_grant=told.append)
    with call_context(answer=None) as recorded:
        one(policy, request(path="/srv/x"))
        (grant,) = policy.grants()

        assert policy.revoke(grant["id"])

    assert not policy.revoke(grant["id"])
    assert policy.grants() == []
    assert one(policy, request(path="/srv/x")).is_error
    assert [len(each) for each in told] == [1, 0]
    assert recorded.grants_told == 2


def test_grants_survive_json_and_a_new_policy() -> None:
    """What is told is what is loaded, to the letter, so that nothing is written twice."""
    policy = Policy(tools(), on_ask=Human("always-allow"))
    one(policy, request(path="/srv/x"))
    kept = json.loads(json.dumps(policy.grants()))

    later = Policy(tools(), grants=kept)

    assert later.grants() == kept
    assert not one(later, request(path="/srv/y")).is_error


def test_grants_survive_a_session(tmp_path: Any) -> None:
    """Through the file of a transcript."""
    policy = Policy(tools(), on_ask=Human("always-allow"))
    one(policy, request(path="/srv/x"))
    with Session.create(tmp_path / "t.jsonl") as session:
        session.append_grants(policy.grants())

    assert not one(Policy(tools(), grants=Session.read(tmp_path / "t.jsonl").grants), request(path="/srv/y")).is_error


def test_bare_rules_are_grants_too() -> None:
    """Transcripts of the original engine hold such; their id is their digest, and they can be revoked."""
    policy = Policy(tools(), grants=[ALLOW])
    (grant,) = policy.grants()

    assert grant["rule"] == ALLOW
    assert Policy(tools(), grants=[ALLOW]).grants() == [grant]
    assert policy.revoke(grant["id"])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (3, r"grants\[1\]: expected a rule"),
        ({"tool": "a", "decision": "ask"}, r"grants\[1\].decision: a grant allows or denies"),
        ({"rule": {"tool": "a", "decision": "ask"}}, r"grants\[1\].rule.decision"),
        ({"rule": {"tool": "a*b", "decision": "allow"}}, r"grants\[1\].rule.tool"),
        ({"rule": ALLOW, "scope": "world"}, r"grants\[1\].scope"),
        ({"rule": ALLOW, "id": 3}, r"grants\[1\].id: expected text"),
        ({"rule": ALLOW, "expires-at": "tomorrow"}, r"grants\[1\].expires-at: expected an ISO-8601 time"),
        ({"rule": ALLOW, "given-at": "2026-01-01T00:00:00"}, r"grants\[1\].given-at"),
    ],
)
def test_a_malformed_grant_is_refused_by_index_and_member(data: Any, problem: str) -> None:
    """All of them, or none: also when they are added to a book that is in use."""
    with pytest.raises(ConfigError, match=problem):
        Policy(tools(), grants=[ALLOW, data])
    book = Grants([DENY])
    with pytest.raises(ConfigError, match=problem):
        book.add([ALLOW, data])
    assert len(book) == 1


def test_grants_stand_in_the_order_they_were_given_duplicates_kept() -> None:
    """A book is a record of what was answered, not a set."""
    policy = Policy(tools(), grants=[ALLOW, DENY, ALLOW])

    assert [grant["rule"] for grant in policy.grants()] == [ALLOW, DENY, ALLOW]


# -- what another version has kept --------------------------------------------------------------

KEPT: list[dict[str, Any]] = [
    {"rule": ALLOW, "id": "1", "label": {"by": "a later version"}},
    {"rule": {**ALLOW, "weekday": "monday"}, "id": "2", "given-at": "2026-01-01T00:00:00.000000Z"},
    {"tool": "fs_read", "decision": "allow", "weekday": "monday"},
]


@pytest.mark.parametrize("kept", KEPT)
def test_a_grant_with_members_of_another_version_is_kept_and_allows_nothing(kept: Any) -> None:
    """What narrows it is not known here: an allow is not taken for a wider one, and is told to the letter."""
    human = Human(False)
    policy = Policy(tools(), grants=[kept, {"tool": "fs_list", "decision": "allow"}], on_ask=human)

    assert one(policy, request(path="/srv/x")).is_error
    assert len(human.asked) == 1
    assert not one(policy, request("fs_list")).is_error
    assert policy.grants()[0] == kept
    assert json.loads(json.dumps(policy.grants()))[0] == kept


@pytest.mark.parametrize("beside", [{"label": "x"}, {"scope": "session", "label": "x"}])
@pytest.mark.parametrize("rule", [DENY, {**DENY, "weekday": "monday"}, {**DENY, "under": "/etc"}])
def test_a_deny_with_members_of_another_version_still_denies(rule: Any, beside: Any) -> None:
    """On all that it may mean, beside a grant that allows it; and it says that it could not be checked."""
    policy = Policy(tools(), grants=[ALLOW, {"rule": rule, "id": "d", **beside}])

    refusal = one(policy, request(path="/etc/x"))

    assert denied(refusal)["by"] == "grant"
    assert notices.DENIED_UNSURE in refusal.content
    assert policy.revoke("d")
    assert not one(policy, request(path="/etc/x")).is_error


def test_a_session_of_another_version_is_resumed_and_keeps_its_grants(tmp_path: Any) -> None:
    """An "always" given today is written beside them, and they are as they were."""
    path = tmp_path / "t.jsonl"
    with Session.create(path) as session:
        session.append_grants(KEPT)
    with Session.load(path) as session:
        policy = Policy(tools(), grants=session.grants, on_ask=Human("always-allow"))
        turns = ScriptedBackend([call("fs_list", path="/srv/x"), "done"])
        finished(Loop(turns, tools=policy, session=session).run("go"))

    kept = Session.read(path).grants

    assert kept[:-1] == KEPT
    assert kept[-1]["rule"] == {"tool": "fs_list", "decision": "allow", "under": "/srv"}


@pytest.mark.parametrize("data", [*KEPT, {"rule": ALLOW, "until": 3}])
def test_what_is_given_now_is_known_whole(data: Any) -> None:
    """A book that is in use takes no grant it does not understand: that is a slip of whoever gives it."""
    with pytest.raises(ConfigError, match="no such member"):
        Grants().add([data])


# -- the clock -------------------------------------------------------------------------------------


def test_what_is_over_stays_over_when_the_clock_is_set_back() -> None:
    """An hour that was up does not begin again."""
    clock = Clock()
    policy = Policy(tools(), on_ask=Human({"action": "always-allow", "expires-in": 90}, False), clock=clock)
    one(policy, request(path="/srv/x"))

    clock.now += 100 * SECOND
    assert one(policy, request(path="/srv/x")).is_error
    clock.now -= 50 * SECOND

    assert one(policy, request(path="/srv/x")).is_error


def test_a_grant_of_tomorrow_is_over() -> None:
    """A clock set back behind it would make it last for as long as it was set back."""
    clock = Clock()
    policy = Policy(tools(), on_ask=Human({"action": "always-allow", "expires-in": 90}), clock=clock)
    one(policy, request(path="/srv/x"))

    clock.now -= 3600 * SECOND

    assert policy.grants() == []


def test_a_grant_without_an_end_minds_no_clock() -> None:
    """It stays until it is revoked."""
    clock = Clock()
    policy = Policy(tools(), on_ask=Human("always-allow", False), clock=clock)
    one(policy, request(path="/srv/x"))

    clock.now -= 3600 * SECOND

    assert not one(policy, request(path="/srv/x")).is_error


# -- who is told -----------------------------------------------------------------------------------


def test_the_host_is_told_once_per_remembered_answer_with_all_of_them() -> None:
    """A copy, before the call runs; silent for once-answers; what it raises changes nothing."""
    told: list[Any] = []
    provider = tools()

    def hear(grants: list[dict[str, Any]]) -> None:
        told.append((len(grants), len(provider.calls)))
        grants.clear()
        raise RuntimeError("disk full")

    policy = Policy(provider, grants=[DENY], on_ask=Human("allow-once", "always-allow"), on_grant=hear)

    run(policy, request("fs_write", "1"))
    run(policy, request("fs_write", "2"), request("fs_write", "3"))

    assert told == [(2, 1)]
    assert len(policy.grants()) == 2
    assert len(provider.calls) == 3


# -- a shared book ---------------------------------------------------------------------------------


def test_a_shared_book_is_read_live_by_every_policy() -> None:
    """What is answered here holds there, also for a policy made later; own grants are told first."""
    book = Grants()
    first, second = (
        Policy(tools(), on_ask=Human("always-allow"), store=book),
        Policy(tools(), grants=[DENY | {"tool": "x"}], store=book),
    )

    one(first, request(path="/srv/x"))

    assert not one(second, request(path="/srv/y")).is_error
    assert not one(Policy(tools(), store=book), request(path="/srv/z")).is_error
    assert [grant["rule"]["tool"] for grant in second.grants()] == ["x", "fs_read"]
    assert [grant["scope"] for grant in book.list()] == ["project"]


def test_an_answer_for_the_session_stays_out_of_the_book() -> None:
    """ "Only here" is not for the others."""
    book = Grants()
    policy = Policy(tools(), on_ask=Human({"action": "always-allow", "scope": "session"}), store=book)

    one(policy, request(path="/srv/x"))

    assert len(book) == 0
    assert not one(policy, request(path="/srv/x")).is_error
    assert one(Policy(tools(), store=book), request(path="/srv/x")).is_error


def test_what_was_revoked_in_the_book_does_not_come_back_from_an_old_transcript() -> None:
    """Beside a store, a project's grants in a session are the store's business."""
    book = Grants()
    policy = Policy(tools(), on_ask=Human("always-allow"), store=book)
    one(policy, request(path="/srv/x"))
    kept = policy.grants()
    policy.revoke(kept[0]["id"])

    assert one(Policy(tools(), grants=kept, store=book), request(path="/srv/x")).is_error


def test_a_book_takes_grants_in_every_form_and_gives_copies() -> None:
    """`add` returns the whole book; what is handed out is the caller's own."""
    book = Grants([ALLOW])

    whole = book.add([Policy(tools(), grants=[DENY]).grants()[0], Grant(rule=next(iter(book)).rule, id="g")])
    whole.clear()

    assert [grant.rule.decision for grant in book] == ["allow", "deny", "allow"]


# -- a host's own prompt ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grants", "action"),
    [([], None), ([ALLOW], "allow-once"), ([DENY], "deny-once"), ([ALLOW, DENY], "deny-once")],
)
def test_grants_alone_can_be_asked(grants: Any, action: str | None) -> None:
    """Answer-shaped, never raising, whatever the arguments are."""
    policy = Policy(tools(), grants=grants, on_ask=lambda _: pytest.fail("asked"))

    for arguments in ({}, None, "{", {"path": "x"}, "[]"):
        found = policy.grant_decision("fs_read", arguments)
        assert found == (None if action is None else {"action": action})


def test_a_denied_grant_says_whose_it_was() -> None:
    """The refusal names the grant's rule."""
    policy = Policy(tools(), on_ask=Human({"action": "always-deny", "rule": {"tool": "fs_read", "under": "/etc"}}))

    answers = run(policy, request("fs_read", "1", path="/etc/a"), request("fs_read", "2", path="/etc/b"))

    assert [denied(answer)["by"] for answer in answers] == ["human", "grant"]
    assert denied(answers[1])["rule"] == {"tool": "fs_read", "decision": "deny", "under": "/etc"}
