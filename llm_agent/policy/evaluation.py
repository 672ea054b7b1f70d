"""What a list of rules says about one call: pure, and the order of the list never matters.

The law: a narrower answers yes, no or unknown for each thing of the call that it looks at. An
allow fires only on yes for all of them, a deny or an ask already on one yes or unknown; the
strongest decision that fires wins, and where nothing fires the human is asked. Grants, prompts
and providers do not live here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from llm_agent.errors import ConfigError
from llm_agent.layers import first_line_of, let_ctrl_c_pass
from llm_agent.patterns import matches, matches_any
from llm_agent.policy.hosts import URL_PARAM, host_matches, host_of
from llm_agent.policy.paths import (
    LOCATION_PARAMS,
    Location,
    Place,
    common_folder,
    contains,
    locations_of,
    most_specific,
    resolved_contains,
    root_of,
)
from llm_agent.policy.rules import DANGER, STRONGEST_FIRST, Decision, Rule

if TYPE_CHECKING:
    from llm_agent.policy.commands import Command

_log: Final = logging.getLogger("llm_agent.policy")

Reason = Literal["rule", "no-match", "unevaluable-path"]
Truth = bool | None
"""What one narrower says of one thing; `None` is unknown."""
COMMAND_PARAMS: Final = ("command", "args")
"""The arguments that hold a program and its arguments, where nothing else was said for a tool."""
_SUBCOMMAND: Final = re.compile(r"[a-z][a-z0-9_-]*")
_HARMLESS_TARGETS: Final = frozenset({"/dev/null"})


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a policy knows about its tools beside the rules."""

    roots: Mapping[str, Place] = attrs.field(factory=dict)
    path_params: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    command_params: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    local_tools: tuple[str, ...] = ()
    """Patterns of the tools that work on this machine's own files, as this process sees them."""
    checks: Mapping[str, Check] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Facts:
    """One call, taken apart as far as a rule looks; each part is made when it is first looked at."""

    tool: str
    arguments: Mapping[str, Any] | None
    """`None`: they are no JSON object, so that everything about them is unknown."""
    around: Surroundings = attrs.field(repr=False)
    declared: frozenset[str] | None = attrs.field(default=None, repr=False)
    """The arguments that the tool takes; `None`: it does not say."""

    _made: dict[str, Any] = attrs.field(factory=dict, init=False, repr=False)

    def _once(self, part: str, make: Callable[[], Any]) -> Any:
        if part not in self._made:
            self._made[part] = make()
        return self._made[part]

    @property
    def root(self) -> Place | None:
        return root_of(self.around.roots, self.tool)

    @property
    def is_local(self) -> bool:
        return matches_any(self.around.local_tools, self.tool)

    def takes_one_of(self, params: Iterable[str]) -> bool:
        """Whether one of these arguments of the call is one that the tool takes, as far as it says what it takes."""
        given = [name for name in params if name in (self.arguments or {})]
        return self.declared is None or not self.declared.isdisjoint(given)

    @property
    def path_params(self) -> tuple[str, ...]:
        """The names of the arguments that are paths."""
        params = most_specific(self.around.path_params, self.tool)
        return LOCATION_PARAMS if params is None else params

    @property
    def command_params(self) -> tuple[str, ...]:
        """The names of the arguments with a program and with its arguments."""
        return most_specific(self.around.command_params, self.tool) or COMMAND_PARAMS

    @property
    def locations(self) -> tuple[Location, ...]:
        """The places that the call names, the unreadable ones included."""
        make = lambda: locations_of(self.arguments or {}, self.path_params, self.root)  # noqa: E731
        found: tuple[Location, ...] = self._once("locations", make)
        return found

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that can be read."""
        return tuple(each.place for each in self.locations if each.place is not None)

    @property
    def hosts(self) -> tuple[str | None, ...]:
        """The site that the call names; `None` in the tuple for one that cannot be read."""
        arguments = self.arguments or {}
        return (host_of(arguments[URL_PARAM]),) if URL_PARAM in arguments else ()

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands that the call would run; none where it names no program."""
        found: tuple[Command, ...] = self._once("commands", self._commands)
        return found

    def _commands(self) -> tuple[Command, ...]:
        from llm_agent.policy.commands import commands_of  # only loaded for a policy that looks at commands

        return commands_of(self.arguments or {}, *self.command_params)


Check = Callable[[Facts], Truth]
"""A predicate of the policy. Contract: pure; one that raises, or answers no truth value, is unknown."""


@attrs.frozen(kw_only=True)
class Verdict:
    """What the rules say about one call."""

    decision: Decision
    reason: Reason
    """`unevaluable-path`: something about the call could not be judged, and that decided."""
    rule: Rule | None = None
    """The one that says most about the call, of those that decided."""
    paths: tuple[str, ...] = ()
    """The places that could be read, absolute where the root is known."""
    fired: tuple[Rule, ...] = attrs.field(default=(), repr=False)
    """Every rule that decided."""

    @property
    def is_dangerous(self) -> bool:
        return any(rule.severity == DANGER for rule in self.fired)

    @property
    def is_every_time(self) -> bool:
        return any(rule.every_time for rule in self.fired)


def evaluate(rules: Iterable[Rule], facts: Facts) -> Verdict:
    """Return what *rules* say about the call. Never raises."""
    judged = [(rule, _judged(rule, facts)) for rule in rules if matches(rule.tool, facts.tool)]
    paths = tuple(map(str, facts.places))
    for decision in STRONGEST_FIRST:
        fired = [(rule, each) for rule, each in judged if each.fires and rule.decision == decision]
        if not fired:
            continue
        # A rule that certainly means this call is told before one that only might.
        rule, best = max(fired, key=lambda pair: (pair[1].is_sure, pair[0].specificity))
        reason: Reason = "rule" if best.is_sure else "unevaluable-path"
        winners = tuple(each for each, _ in fired)
        return Verdict(decision=decision, reason=reason, rule=rule, paths=paths, fired=winners)
    is_unsure = any(each.is_open for _, each in judged)
    return Verdict(decision="ask", reason="unevaluable-path" if is_unsure else "no-match", paths=paths)


# -- one rule -----------------------------------------------------------------------------------


@attrs.frozen
class _Judged:
    fires: bool
    is_sure: bool
    """Whether every narrower said yes somewhere."""
    is_open: bool
    """Whether no narrower said no, and one could not say."""


_NEVER: Final = _Judged(False, False, False)


def _judged(rule: Rule, facts: Facts) -> _Judged:
    is_certain = is_sure = True
    for answers in _narrowers(rule, facts):
        if True not in answers and None not in answers:
            return _NEVER
        is_certain = is_certain and None not in answers and False not in answers
        is_sure = is_sure and True in answers
    return _Judged(is_certain or rule.decision != "allow", is_sure, not is_certain)


def _narrowers(rule: Rule, facts: Facts) -> Iterator[Sequence[Truth]]:
    """Yield what each narrower of *rule* answers, one answer per thing it looks at, at least one."""
    if rule.under is not None:
        yield _open([_under(rule.folder, each.place, facts) for each in facts.locations], facts, facts.path_params)
    if rule.host is not None:
        yield _open([host_matches(rule.host, host) for host in facts.hosts], facts, (URL_PARAM,))
    if rule.command is not None:
        yield _open(_command(rule, facts), facts, facts.command_params[:1])
    if rule.check is not None:
        yield [_checked(rule.check, facts)]


def _open(answers: Sequence[Truth], facts: Facts, params: Iterable[str]) -> Sequence[Truth]:
    """*answers*, with one unknown where there is nothing to look at, or only what the tool does not take.

    A server drops an argument that it does not know: a `path` under `notes` in front of the
    `source` and `destination` that it reads says nothing about those.
    """
    return answers if answers and facts.takes_one_of(params) else [*answers, None]


def _under(folder: Place | None, place: Place | None, facts: Facts) -> Truth:
    if folder is None or place is None:
        return None
    folder = folder if facts.root is None else facts.root.joined(folder)
    return (resolved_contains if facts.is_local else contains)(folder, place)


def _command(rule: Rule, facts: Facts) -> Sequence[Truth]:
    from llm_agent.policy import commands

    narrowers = {"command": rule.command, "args": rule.args, "args-any": rule.args_any, "exact": rule.exact}
    answers = [commands.matches(narrowers, command, rule.decision) for command in facts.commands]
    if rule.decision != "allow":
        return answers
    # A program that may run may not, for that, write wherever a redirection leads.
    return [
        answer if set(command.redirects) <= _HARMLESS_TARGETS else answer and None
        for answer, command in zip(answers, facts.commands, strict=True)
    ]


def _checked(name: str, facts: Facts) -> Truth:
    check = facts.around.checks.get(name)
    if check is None or facts.arguments is None:
        return None
    try:
        answer = check(facts)
    except BaseException as failure:  # a shield: a predicate that fails has judged nothing
        let_ctrl_c_pass(failure)
        _log.warning("the check %r raised, which counts as unknown: %s", name, first_line_of(failure))
        return None
    if answer is None or isinstance(answer, bool):
        return answer
    _log.warning("the check %r answered %s, which counts as unknown: True, False or None was expected", name, answer)
    return None


# -- what would cover calls like this one ---------------------------------------------------------


def suggestion_for(facts: Facts, *, is_whole: bool = False) -> Rule | None:
    """Return the rule that an "always" would remember by itself, as an allow that covers this call.

    A command with its subcommand, any other with all of its arguments; the common folder of the
    places, the one site; the tool alone where the call names none of these. `None` where it names
    one that cannot be read: then only the whole tool would be left, which nobody has been shown.

    Args:
        is_whole: one with a subcommand, too, is named with all of its arguments.
    """
    if facts.arguments is None or "*" in facts.tool:
        return None
    narrowers: dict[str, Any] = {}
    if facts.commands:
        narrowers |= _suggested_command(facts.commands, is_whole)
    if facts.locations:
        narrowers["under"] = _suggested_folder(facts)
    elif facts.hosts and not narrowers:
        narrowers["host"] = facts.hosts[0]
    if None in narrowers.values():
        return None
    try:
        rule = Rule(tool=facts.tool, decision="allow", **narrowers)
    except ConfigError:  # a name that no rule can hold
        return None
    return rule if _judged(rule, facts).fires else None


def _suggested_folder(facts: Facts) -> str | None:
    """The places' common folder; the tool's root where that is deeper and holds them all."""
    folder, root = common_folder(facts.places), facts.root
    if folder is None or root is None:
        return None if folder is None else str(folder)
    is_clamped = len(folder.segments) < len(root.segments) and all(contains(root, each) for each in facts.places)
    return str(root if is_clamped else folder)


def _suggested_command(commands: Sequence[Command], is_whole: bool) -> dict[str, Any]:
    """The program of the one command, with its subcommand, or else with exactly these arguments.

    Whoever allows `git log` for good means its options, too; whoever allows `rm -r build` means no other
    folder, and `git stash list` no `git stash drop`.
    """
    from llm_agent.policy.carriers import DECIDED_LATER, WITH_SUBCOMMANDS

    command = _the_command(commands)
    if command is None or "*" in (command.program or "*"):
        return {"command": None}
    tokens = command.tokens
    if "" in tokens:  # which cannot be written into a rule
        return {"command": None}
    has_subcommand = command.program in WITH_SUBCOMMANDS and tokens and _SUBCOMMAND.fullmatch(tokens[0])
    if not is_whole and has_subcommand and tokens[0] not in DECIDED_LATER:
        return {"command": command.program, "args": tokens[:1]}
    return {"command": command.program, "args": tokens, "exact": True}


def names_whole(rule: Rule, facts: Facts) -> bool:
    """Whether a rule that means a call names its one command with all of its arguments."""
    command = _the_command(facts.commands)
    return command is not None and (rule.command, rule.args) == (command.program, command.tokens)


def _the_command(commands: Sequence[Command]) -> Command | None:
    """The one command that a call is about; `None` where there are none, or more."""
    effective = [command for command in commands if not command.is_wrapper]
    return effective[0] if len(effective) == 1 else None
