"""What a rule is: a tool, a decision, and what narrows it; read from plain data.

The law: a rule that is not understood whole is refused, never read as a wider one; a list of
rules is taken whole or not at all. What a rule makes of a call does not live here (`evaluation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal, get_args

import attrs

from llm_agent.errors import ConfigError
from llm_agent.patterns import pattern_problem
from llm_agent.policy.hosts import host_problem, normal_pattern
from llm_agent.policy.paths import Place, problem_of, read_place

Decision = Literal["allow", "deny", "ask"]
DECISIONS: Final[tuple[str, ...]] = get_args(Decision)
STRONGEST_FIRST: Final[tuple[Decision, ...]] = ("deny", "ask", "allow")
DANGER: Final = "danger"

# Member of the data -> field. The spelling on disk is chosen once: grants are kept.
_FIELDS: Final = {
    "tool": "tool",
    "decision": "decision",
    "under": "under",
    "host": "host",
    "command": "command",
    "args": "args",
    "args-any": "args_any",
    "exact": "exact",
    "check": "check",
    "note": "note",
    "severity": "severity",
    "every-time": "every_time",
}
MEMBERS: Final = tuple(_FIELDS)
NARROWERS: Final = ("under", "host", "command", "args", "args_any", "check")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


@attrs.frozen(kw_only=True)
class Rule:
    """One sentence of a policy: valid by construction.

    Raises:
        ConfigError: a member that cannot be meant; says which, what was expected, what came.
    """

    tool: str
    """An exact name, or a prefix with a trailing `*`; `*` is every tool."""
    decision: Decision
    under: str | None = None
    """A folder; a relative one is joined to the tool's root."""
    host: str | None = None
    """A site, or `*.` before one for all below it, compared with the argument `url`."""
    command: str | None = None
    """A program's base name, without its arguments, or a prefix with a trailing `*`."""
    args: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    """The first arguments, in order, to the letter."""
    args_any: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    """Arguments of which one is there, anywhere."""
    exact: bool = False
    """Whether `args` are all the arguments; without `args`, that there are none."""
    check: str | None = None
    """The name of one of the policy's predicates."""
    note: str | None = None
    """Words for the prompt."""
    severity: str | None = None
    """`danger`: an ask that only a grant of the whole command satisfies."""
    every_time: bool = False
    """An ask that no grant satisfies."""

    def __attrs_post_init__(self) -> None:
        for field, problem in _PROBLEMS.items():
            said = problem(self)
            if said is not None:
                raise ConfigError(f"{field}: {said}, got {getattr(self, _FIELDS[field])!r}")

    @cached_property
    def folder(self) -> Place | None:
        """The place that `under` names; `None` without one."""
        return None if self.under is None else read_place(self.under)

    @property
    def is_bare(self) -> bool:
        """Whether nothing narrows it."""
        return not any(getattr(self, narrower) for narrower in NARROWERS)

    @property
    def specificity(self) -> tuple[Any, ...]:
        """How much it says about a call: of two rules that decide alike, the higher one is told."""
        command, host = self.command or "", self.host or ""
        return (
            not self.tool.endswith("*"),
            len(self.tool),
            bool(command),
            bool(command) and not command.endswith("*"),
            len(command),
            len(self.args) + len(self.args_any),
            self.exact,
            self.check is not None,
            self.under is not None,
            len([part for part in (self.under or "").split("/") if part not in ("", ".")]),
            bool(host),
            bool(host) and not host.startswith("*."),
            len(host),
        )

    def __str__(self) -> str:
        parts = [self.decision, self.tool]
        if self.command is not None:
            parts += ["running", *(["exactly"] if self.exact else []), " ".join((self.command, *self.args))]
        if self.args_any:
            parts += ["with one of", ", ".join(self.args_any)]
        if self.check is not None:
            parts += ["where", self.check]
        if self.under is not None:
            parts += ["under", self.under]
        if self.host is not None:
            parts += ["on", self.host]
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The plain data that `read_rule` takes, members that say nothing left out."""
        values = {member: getattr(self, field) for member, field in _FIELDS.items()}
        return {member: list(value) if isinstance(value, tuple) else value for member, value in values.items() if value}


# -- what cannot be meant ----------------------------------------------------------------------


def _under_problem(rule: Rule) -> str | None:
    if rule.under is None:
        return None
    problem = problem_of(rule.under)
    if problem is None and {"*", "**"} & set(rule.under.split("/")):
        return "expected a folder, which stands for all below it, without *"
    return None if problem is None else f"expected a folder that can be judged, and {problem}"


def _host_problem(rule: Rule) -> str | None:
    problem = None if rule.host is None else host_problem(rule.host)
    return None if problem is None else f"expected {problem}"


def _command_problem(rule: Rule) -> str | None:
    command = rule.command
    if command is None:
        return None
    if not isinstance(command, str) or not command.strip() or command != command.strip():
        return "expected the base name of a program"
    if "/" in command or "\\" in command:
        return "expected a base name, without folders"
    if len(command.split()) > 1:
        return "expected the program alone; its first arguments go into args"
    return "a * may only stand at the end" if "*" in command[:-1] else None


def _tokens_problem(rule: Rule, tokens: object) -> str | None:
    if not isinstance(tokens, tuple) or not all(isinstance(token, str) and token for token in tokens):
        return "expected a list of arguments that are not empty"
    return "it needs a command beside it" if tokens and rule.command is None else None


def _exact_problem(rule: Rule) -> str | None:
    if not isinstance(rule.exact, bool):
        return "expected true or false"
    return "it needs a command beside it" if rule.exact and rule.command is None else None


def _text_problem(value: object) -> str | None:
    return None if value is None or (isinstance(value, str) and value.strip()) else "expected words"


def _every_time_problem(rule: Rule) -> str | None:
    if not isinstance(rule.every_time, bool):
        return "expected true or false"
    return "only an ask can be asked every time" if rule.every_time and rule.decision != "ask" else None


_PROBLEMS: Final[Mapping[str, Any]] = {
    "tool": lambda rule: pattern_problem(rule.tool),
    "decision": lambda rule: None if rule.decision in DECISIONS else f"expected one of {', '.join(DECISIONS)}",
    "under": _under_problem,
    "host": _host_problem,
    "command": _command_problem,
    "args": lambda rule: _tokens_problem(rule, rule.args),
    "args-any": lambda rule: _tokens_problem(rule, rule.args_any),
    "exact": _exact_problem,
    "check": lambda rule: _text_problem(rule.check),
    "note": lambda rule: _text_problem(rule.note),
    "severity": lambda rule: None if rule.severity in (None, DANGER) else f"the only severity is {DANGER!r}",
    "every-time": _every_time_problem,
}


# -- reading -----------------------------------------------------------------------------------


def read_rule(data: Any, where: str) -> Rule:
    """Return *data* as a rule.

    Args:
        data: a `Rule`, or a mapping with the members of one.
        where: what to call it in an error: `rules[3]`.

    Raises:
        ConfigError: a member is missing, unknown or cannot be meant; names it.
    """
    rule = data if isinstance(data, Rule) else _parsed(data, where)
    return rule if rule.host is None else attrs.evolve(rule, host=normal_pattern(rule.host))


def _parsed(data: Any, where: str) -> Rule:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a rule, got {type(data).__name__}")
    unknown = [str(member) for member in data if member not in _FIELDS]
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]}: no such member; a rule has {', '.join(_FIELDS)}")
    missing = [member for member in ("tool", "decision") if member not in data]
    if missing:
        raise ConfigError(f"{where}.{missing[0]}: it is missing, and a rule needs it")
    for member in ("args", "args-any"):
        if member in data and not data[member]:
            raise ConfigError(f"{where}.{member}: expected a list of arguments, got {data[member]!r}")
    try:
        return Rule(**{_FIELDS[member]: value for member, value in data.items()})
    except ConfigError as problem:
        raise ConfigError(f"{where}.{problem}") from None


def read_rules(data: Any, where: str = "rules") -> tuple[Rule, ...]:
    """Return a list of rules; all of them, or none.

    Raises:
        ConfigError: *data* is no list, or one of it is no rule; names the index and the member.
    """
    if isinstance(data, str | Mapping | Rule) or not isinstance(data, Iterable):
        raise ConfigError(f"{where}: expected a list of rules, got {type(data).__name__}")
    return tuple(read_rule(each, f"{where}[{index}]") for index, each in enumerate(data))
