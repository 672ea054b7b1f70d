"""Who may do what: a layer that lets calls through, refuses them, or asks a human.

The law: deny before ask before allow, and what is not certain is not allowed. What a human
answered "always" is remembered before the next question is asked, and on disk before the call
it was about runs. What rules mean lives in `evaluation`, what is remembered in `grants`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, Literal

from llm_agent import notices
from llm_agent.call_context import Asker, current_call, is_given_up
from llm_agent.codec import clean_value
from llm_agent.errors import ConfigError
from llm_agent.events import now_us
from llm_agent.layers import (
    Layer,
    arguments_of,
    declarations_of,
    declared_keys,
    declared_name,
    first_line_of,
    forwarded,
    grants_told_by,
    joined,
    let_ctrl_c_pass,
    requests_of,
)
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.patterns import matches
from llm_agent.policy import options
from llm_agent.policy.answers import Answer, read_answer
from llm_agent.policy.asking import AskLock, Prompt, Question
from llm_agent.policy.elicit import Elicitor
from llm_agent.policy.evaluation import Check, Facts, Verdict, evaluate, names_whole, suggestion_for
from llm_agent.policy.grants import Grant, Grants, Scope, amended, given
from llm_agent.policy.lint import unmatched
from llm_agent.policy.refusals import TOOL_CHARS, answered, denied, not_asked, remembered, told, undecided, unwanted
from llm_agent.policy.rules import Rule, read_rules
from llm_agent.ports import ToolDeclaration, ToolProvider

_log: Final = logging.getLogger("llm_agent.policy")


class Policy(Layer):
    """A provider whose every call is judged first. One per conversation, in front of all tools; any thread.

    Args:
        provider: whose calls are judged; names in rules are those that it publishes.
        rules: what is denied, asked and allowed, as `Rule`s or their plain data; what none of
            them means is asked.
        grants: what was answered "always" before: the loop's session, which then has every change at
            once; or the list of them, as `session.grants`. With a *store*, grants of scope `project` among
            them are the store's business and are passed over.
        store: a book shared with other policies; "always" goes there, unless the answer says
            `"scope": "session"`.
        roots: prefixes of tool names -> the folder that relative paths of the tool start from.
        path_params: tool patterns -> the arguments that are paths, or lists of them; otherwise those with
            a usual name: `path`, `paths`, `file_path`, `from`, `to`, `source`, `destination`.
        command_params: tool patterns -> the arguments with the program and with its arguments;
            `command`, `args` otherwise.
        local_tools: patterns of the tools that work on this machine's files; links are followed.
        checks: the predicates that rules name.
        on_ask: `(request) -> answer`, called on the thread of the call, or `"run"`: `Run.answer`
            answers. Without it, the loop's `on_ask` is asked; without both, what would be asked
            is refused. See `policy.answers` for what an answer may be.
        on_grant: told all grants, as plain data, after each answer that was remembered and after
            each `revoke`; a run's transcript has them already then. What it raises is logged.
        ask_timeout: seconds after which a question is expired, from when it is put; waiting for
            its turn does not count. The asker is then called on a thread of its own, and sees
            `request.cancelled.is_set()`.
        ask_lock: shared by policies that ask the same human.
        filter_tools: whether tools that are denied whole are left out of the catalogue.
        claim_elicits: whether what servers ask during this policy's calls is this policy's human's to
            answer; otherwise it goes to whom the server was given, or to the loop's `on_ask`.
        on_warn: told, once each, of tool names in the options that no tool has; else logged.
        clock: microseconds since the epoch, for grants that expire.

    Raises:
        ConfigError: an option that cannot be meant; a malformed rule or grant by index and member.
    """

    def __init__(
        self,
        provider: ToolProvider,
        rules: Iterable[Any] = (),
        grants: Iterable[Any] | options.KeepsGrants = (),
        roots: Mapping[str, Any] | None = None,
        on_ask: Asker | Literal["run"] | None = None,
        on_grant: Callable[[list[dict[str, Any]]], object] | None = None,
        ask_timeout: float | None = None,
        *,
        store: Grants | None = None,
        path_params: Mapping[str, Any] | None = None,
        command_params: Mapping[str, Any] | None = None,
        local_tools: Sequence[str] = (),
        checks: Mapping[str, Check] | None = None,
        ask_lock: AskLock | None = None,
        filter_tools: bool = True,
        claim_elicits: bool = False,
        on_warn: Callable[[str], object] | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        super().__init__(provider)
        self._around = options.checked_surroundings(
            roots=roots,
            path_params=path_params,
            command_params=command_params,
            local_tools=local_tools,
            checks=checks,
        )
        self._rules = self._checked_rules(rules)
        self._store = options.checked_store(store)
        self._transcript = options.checked_transcript(grants)
        kept: Any = grants if self._transcript is None else self._transcript.grants
        self._own = Grants(options.own_grants(kept, store), clock=clock)
        self._prompt = Prompt(
            on_ask=options.checked_asker(on_ask),
            timeout=options.checked_timeout(ask_timeout),
            lock=AskLock() if ask_lock is None else ask_lock,
        )
        self._elicitor = Elicitor(self._prompt, claim_elicits)
        self._on_grant = options.checked_callable("on_grant", on_grant)
        self._on_warn = options.checked_callable("on_warn", on_warn)
        self._filters, self._clock = filter_tools, clock
        self._warned: set[str] = set()
        # The arguments that each tool declares, of the last listing: replaced as a whole.
        self._declared: Mapping[str, frozenset[str]] = {}

    # -- what it is made of ------------------------------------------------------------------------

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules in force, as plain data of the caller's own."""
        return [rule.to_dict() for rule in self._rules]

    @property
    def roots(self) -> dict[str, str]:
        return {prefix: str(place) for prefix, place in self._around.roots.items()}

    @property
    def path_params(self) -> dict[str, list[str]]:
        return {pattern: list(names) for pattern, names in self._around.path_params.items()}

    @property
    def command_params(self) -> dict[str, list[str]]:
        return {pattern: list(names) for pattern, names in self._around.command_params.items()}

    @property
    def is_interactive(self) -> bool:
        """Whether somebody would be asked, on this thread and now."""
        return self._prompt.asker is not None

    def replace_rules(self, rules: Iterable[Any]) -> None:
        """Put other rules in force, all at once; a batch that has begun keeps those it began with.

        Raises:
            ConfigError: one of them is malformed; the old ones stand.
        """
        self._rules = self._checked_rules(rules)

    def _checked_rules(self, rules: Iterable[Any]) -> tuple[Rule, ...]:
        checked = read_rules(rules)
        for index, rule in enumerate(checked):
            if rule.check is not None and rule.check not in self._around.checks:
                known = ", ".join(self._around.checks) or "none"
                raise ConfigError(
                    f"rules[{index}].check: {rule.check!r} is not among checks, which are: {known}; "
                    "a danger floor brings its own: checks=floor.checks"
                )
        return checked

    # -- grants ------------------------------------------------------------------------------------

    def grants(self) -> list[dict[str, Any]]:
        """Return the grants in force, this policy's own first, then those that its provider tells.

        Plain data; a transcript has them all. Waits for nobody, if the provider does not.
        """
        return joined([[grant.to_dict() for grant in self._grants()], grants_told_by(self._provider)])

    def _grants(self) -> list[Grant]:
        return [*self._own, *(() if self._store is None else self._store)]

    def revoke(self, grant_id: str) -> bool:
        """Take a grant back, also from the store; False where there is none of this id.

        A policy that was made with a session has it written at once, by whichever thread. Otherwise
        the transcript of a run has it when the next call is answered, and outside of a run nothing is
        written: append `policy.grants()` to the session, or have *on_grant* do it.
        """
        was_own = self._own.revoke(grant_id)
        was_shared = self._store is not None and self._store.revoke(grant_id)
        if was_own or was_shared:
            self._tell_grants(revoked=grant_id)
        return was_own or was_shared

    def grant_decision(self, tool: str, arguments: Any = None) -> dict[str, str] | None:
        """Return what the grants alone answer to such a call, or `None`: for a host's own prompt. Never raises.

        Args:
            arguments: a mapping, or JSON text as a model sends it.
        """
        facts = self._facts(ToolRequest("", tool, arguments))
        decided = self._granted(evaluate(self._rules, facts), facts)
        if decided is None:
            return None
        return {"action": "allow-once" if decided.decision == "allow" else "deny-once"}

    def _granted(self, verdict: Verdict, facts: Facts) -> Verdict | None:
        """What the grants make of a call that the rules would ask about; `None`: they say nothing."""
        found = evaluate([grant.rule for grant in self._grants()], facts)
        if found.decision == "allow" and (verdict.is_every_time or not _is_enough(found, verdict, facts)):
            return None
        return None if found.decision == "ask" else found

    def _tell_grants(self, revoked: str | None = None) -> None:
        call = current_call()
        is_written = call is not None and call.grants_changed()
        try:
            if not is_written and self._transcript is not None:
                self._transcript.append_grants(amended(self._transcript.grants, self._grants(), revoked))
            if self._on_grant is not None:
                self._on_grant(self.grants())
        except BaseException as failure:  # a shield: what becomes of grants elsewhere is no call's concern
            let_ctrl_c_pass(failure)
            _log.error("grants could not be told: %s", first_line_of(failure))

    # -- the provider ------------------------------------------------------------------------------

    def tools_for_llm(self) -> list[ToolDeclaration]:
        """Return the declarations, without the tools that a rule denies whole.

        Raises:
            Whatever the provider raises.
        """
        declared = declarations_of(self._provider)
        self._declared = {declared_name(each) or "": keys for each in declared if (keys := declared_keys(each))}
        for sentence in self._unmatched(declared):
            self._warn(sentence)
        hidden = [rule.tool for rule in self._rules if rule.decision == "deny" and rule.is_bare]
        if not self._filters or not hidden:
            return declared
        return [each for each in declared if not _is_hidden(declared_name(each), hidden)]

    def execute_tool_calls(self, calls: Iterable[ToolRequest | Mapping[str, Any]]) -> list[ToolAnswer]:
        """Judge each of *calls*, in order, then have the provider run those that may, in one batch.

        Returns:
            One answer per call, in order. A refused one is an error answer that says why; its
            `structured["denied"]` has `by`, `rule` and `reason` for a machine.

        Raises:
            Nothing, but for Ctrl-C on the main thread.
        """
        requests = requests_of(calls)
        rules = self._rules
        refusals = [self._refusal(call, rules) for call in requests]
        allowed = [call for call, refusal in zip(requests, refusals, strict=True) if refusal is None]
        with self._elicitor.claiming():
            answers = iter(forwarded(self._provider, allowed, "Policy"))
        return [refusal if refusal is not None else next(answers) for refusal in refusals]

    def decide(self, call: ToolRequest | Mapping[str, Any]) -> Verdict:
        """Return what the rules say about a call, without grants and without asking. Never raises."""
        return evaluate(self._rules, self._facts(requests_of([call])[0]))

    def _facts(self, call: ToolRequest) -> Facts:
        return Facts(call.name, arguments_of(call), self._around, self._declared.get(call.name))

    def _refusal(self, call: ToolRequest, rules: tuple[Rule, ...]) -> ToolAnswer | None:
        """Return why *call* is not run, or `None` where it may be."""
        if not call.name:
            return undecided(call, "unreadable", notices.NAMELESS_CALL)
        if is_given_up():
            return unwanted(call)
        try:
            return self._judged(call, rules)
        except BaseException as failure:  # a shield: what could not be judged is not allowed
            let_ctrl_c_pass(failure)
            text = notices.DENIED_POLICY_FAILED.format(tool=call.name[:TOOL_CHARS], failure=first_line_of(failure))
            return undecided(call, "failed", text)

    def _judged(self, call: ToolRequest, rules: tuple[Rule, ...]) -> ToolAnswer | None:
        facts = self._facts(call)
        verdict = evaluate(rules, facts)
        if verdict.decision == "deny":
            return denied(call, verdict)
        if verdict.decision == "allow":
            return None
        granted = self._granted(verdict, facts)
        return self._asked(call, verdict, facts) if granted is None else remembered(call, granted)

    # -- asking ------------------------------------------------------------------------------------

    def _asked(self, call: ToolRequest, verdict: Verdict, facts: Facts) -> ToolAnswer | None:
        context = current_call()
        with nullcontext() if context is None else context.for_call(call):
            return self._asked_in_turn(call, verdict, facts)

    def _asked_in_turn(self, call: ToolRequest, verdict: Verdict, facts: Facts) -> ToolAnswer | None:
        asker = self._prompt.asker
        if asker is None:
            return told(call, verdict, "headless", notices.DENIED_HEADLESS)
        question = Question(current_call())
        with self._prompt.turn(question) as entry:
            if entry != "entered":
                return not_asked(call, verdict, entry)
            # Whoever was asked before may have answered this one too.
            granted = self._granted(verdict, facts)
            if granted is not None:
                return remembered(call, granted)
            suggestion = suggestion_for(facts, is_whole=verdict.is_dangerous)
            try:
                raw = self._prompt.put(question, _request(call, facts, verdict, suggestion), asker)
                answer = read_answer(raw, suggestion)
            except BaseException as problem:  # a shield: the asker's, or an answer that is none
                let_ctrl_c_pass(problem)
                text = notices.DENIED_PROMPT_FAILED
                return told(call, verdict, "prompt", text, problem=first_line_of(problem))
            self._remember(answer)  # before the turn is over, or the next in line would ask again
        if answer.rules:
            self._tell_grants()
        return answered(call, verdict, answer)

    def _remember(self, answer: Answer) -> None:
        if not answer.rules:
            return
        scope: Scope = answer.scope or ("session" if self._store is None else "project")
        book = self._own if self._store is None or scope == "session" else self._store
        book.add(given(answer.rules, scope=scope, expires_in=answer.expires_in, now=self._clock()))

    @property
    def elicit_hook(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """A callable for a tool server's client: what the server asks is put to the human, in turn.

        Called in the context of the call that provoked the question, with what the server sent,
        or with that under `request` in a question of `kind` `server-elicit`. Its answer is the
        human's, a mapping; `{"action": "decline"}` where there is nobody, or no answer, and
        `{"action": "cancel"}` where nobody answered in time, or the call is over.
        """
        return self._elicitor.answer

    # -- lint --------------------------------------------------------------------------------------

    def lint(self) -> list[str]:
        """Return a sentence for each tool name among the options that no tool has.

        Raises:
            Whatever the provider raises when it lists.
        """
        return self._unmatched(declarations_of(self._provider))

    def _unmatched(self, declared: Iterable[ToolDeclaration]) -> list[str]:
        names = [declared_name(each) or "" for each in declared]
        return unmatched(names, self._rules, self._around)

    def _warn(self, sentence: str) -> None:
        if sentence in self._warned:
            return
        self._warned.add(sentence)
        try:
            (self._on_warn or _log.warning)(sentence)
        except Exception as failure:  # a shield: a warning must not cost the catalogue
            _log.error("on_warn failed: %s", first_line_of(failure))


def _is_hidden(name: str | None, hidden: Sequence[str]) -> bool:
    return name is not None and any(matches(pattern, name) for pattern in hidden)


def _is_enough(found: Verdict, asked: Verdict, facts: Facts) -> bool:
    """Whether an allowing grant satisfies what was asked: a danger, only one that names the whole of it.

    Whoever allowed `git push` for good was not asked about `git push --force`.
    """
    return not asked.is_dangerous or any(names_whole(rule, facts) for rule in found.fired)


def _request(call: ToolRequest, facts: Facts, verdict: Verdict, suggestion: Rule | None) -> dict[str, Any]:
    """What a human is asked, as plain data."""
    return {
        "kind": "permission",
        "tool": call.name,
        "arguments": clean_value(facts.arguments or {}),
        "call": call.to_dict(),
        "rule": None if verdict.rule is None else verdict.rule.to_dict(),
        "reason": verdict.reason,
        "paths": list(verdict.paths),
        "suggestion": None if suggestion is None else suggestion.to_dict(),
    }
