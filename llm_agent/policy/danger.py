"""What no host wants to happen unasked: the danger floor, and the rules to begin with. Data only.

The law: a denial that nobody can lift stands on certainty alone, so that its note is true; what
is only suspected is asked. How a command is read does not live here (`commands`, `hazards`).
The floor looks at what a call names; relative paths into the agent's own folder, variables and
globs are for the operating system's sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from llm_agent.errors import ConfigError
from llm_agent.layers import declared_names
from llm_agent.policy.evaluation import Check, Facts, Truth
from llm_agent.policy.paths import Place, contains, read_place
from llm_agent.policy.rules import DANGER, Decision, Rule
from llm_agent.ports import ToolProvider

if TYPE_CHECKING:
    from llm_agent.policy.commands import Command

# Tools that only look at what is under the root they were given, and the one that asks a human:
# its question is its own consent. Leading names of servers and registries come before these.
READ_ONLY_TOOLS: Final = ("read", "list", "stat", "glob", "grep", "map")


@attrs.frozen
class DangerFloor:
    """Rules, and the predicates they name: `Policy(tools, [*floor, *mine], checks=floor.checks)`."""

    rules: tuple[Rule, ...]
    checks: Mapping[str, Check]

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)


def danger_floor(
    *, home: str | os.PathLike[str] | None = None, config: str | os.PathLike[str] | None = None, tools: str = "*"
) -> DangerFloor:
    """Return the rules that stand below everything a host allows.

    Args:
        home: whose home is protected; this user's by default.
        config: the agent's own folder, which no call may name; without one, there is no such rule.
        tools: a pattern, for the tools it holds for.

    Raises:
        ConfigError: *home* or *config* is no absolute path.
    """
    own = _folder("home", Path.home() if home is None else home)
    kept = None if config is None else _folder("config", config)
    made = [*_denied(own, kept), *_asked(kept)]
    return DangerFloor(
        tuple(
            Rule(tool=tools, decision=each.decision, check=each.name, note=each.note, severity=DANGER) for each in made
        ),
        {each.name: each.check for each in made},
    )


def default_rules(
    prefix: str = "fs_", tools: ToolProvider | None = None, names: Iterable[str] = READ_ONLY_TOOLS
) -> tuple[Rule, ...]:
    """Return what is allowed to begin with: tools that only look, and asking the user.

    There is no rule that asks about everything else: no rule is needed for that.

    Args:
        prefix: what the names of the file tools begin with, where the policy sees them.
        tools: a provider whose tools are allowed, too, when it says of them that they are
            read-only (`idempotency_of`). That is believing it, and the servers behind it.
        names: the file tools that only look.

    Raises:
        ConfigError: *prefix* is no text.
        Whatever *tools* raises when it lists.
    """
    if not isinstance(prefix, str):
        raise ConfigError(f"default_rules: prefix is what tool names begin with, got {type(prefix).__name__}")
    allowed = dict.fromkeys([*(prefix + name for name in names), "user_ask", *_looking(tools)])
    return tuple(Rule(tool=name, decision="allow") for name in allowed)


def _looking(tools: ToolProvider | None) -> list[str]:
    """The tools that are read-only by their provider's own word."""
    idempotency_of = getattr(tools, "idempotency_of", None)
    if tools is None or idempotency_of is None:
        return []
    return [name for name in declared_names(tools) if idempotency_of(name) == "read-only"]


def _folder(option: str, path: str | os.PathLike[str]) -> Place:
    place = read_place(os.fspath(path))
    if place is None or not place.is_absolute:
        raise ConfigError(f"danger_floor: {option} must be an absolute path, got {os.fspath(path)!r}")
    return place


# -- the predicates ------------------------------------------------------------------------------

Hazard = Callable[["Command"], Truth]


@attrs.frozen
class _Danger:
    name: str
    decision: Decision
    note: str
    check: Check


def _denied(home: Place, config: Place | None) -> list[_Danger]:
    deletes = _hazard("deletes_root_or_home", str(home))
    rows = [
        _certain("deletes-root-or-home", "deletes / or a home, with all that is in it", deletes),
        # The same, where it cannot be told: a target that is expanded, or another folder is current.
        _suspected("deletes-unverifiably", "deletes recursively, and what cannot be told", deletes),
        _suspected(
            "changes-root-or-home", "moves, locks or empties / or a home", _hazard("changes_root_or_home", str(home))
        ),
    ]
    if config is None:
        return rows
    note = "names the agent's own configuration"
    rows.append(_certain("names-config", note, _hazard("names_inside", str(config), str(home))))
    rows.append(_Danger("danger:place-in-config", "deny", note, lambda facts: _is_place_in(config, facts)))
    return rows


def _asked(config: Place | None) -> list[_Danger]:
    rows = [
        _suspected("formats-disk", "formats or overwrites a disk", _hazard("formats_disk")),
        _suspected("destroys-git-work", "may throw away work that git keeps", _hazard("destroys_git_work")),
        _suspected("gains-privilege", "runs with the rights of another user", _hazard("gains_privilege")),
        _suspected("stops-machine", "stops or restarts the machine", _hazard("stops_machine")),
        _suspected("reads-script", "runs what it reads from its input", _hazard("reads_script_from_input")),
        _suspected("names-guarded", "names a start-up file, a key, or what git keeps", _hazard("names_guarded")),
    ]
    runs_unseen = _hazard("runs_unseen")

    def unseen(facts: Facts) -> Truth:
        return any(runs_unseen(command) is not False for command in facts.commands)

    rows.append(_Danger("danger:runs-unseen", "ask", "may run what cannot be seen in it", unseen))
    if config is not None:
        unreadable = "names a place that cannot be checked"
        rows.append(_Danger("danger:unreadable-place", "ask", unreadable, _has_unreadable_place))
    return rows


def _hazard(name: str, *folders: str) -> Hazard:
    """A predicate of `hazards`, which is only loaded for a policy that looks at commands."""

    def look(command: Command) -> Truth:
        from llm_agent.policy import hazards

        answer: Truth = getattr(hazards, name)(command, *folders)
        return answer

    return look


def _certain(name: str, note: str, hazard: Hazard) -> _Danger:
    return _Danger(f"danger:{name}", "deny", note, lambda facts: any(hazard(each) is True for each in facts.commands))


def _suspected(name: str, note: str, hazard: Hazard) -> _Danger:
    def check(facts: Facts) -> Truth:
        # An unreadable program is suspected of everything; `runs-unseen` asks about it once, in true words.
        return any(hazard(each) is not False for each in facts.commands if each.program is not None)

    return _Danger(f"danger:{name}", "ask", note, check)


def _is_place_in(folder: Place, facts: Facts) -> Truth:
    """Certain, or in another spelling of the same letters: some file systems tell no difference."""
    return any(contains(folder, place) is not False for place in facts.places if place.is_absolute)


def _has_unreadable_place(facts: Facts) -> Truth:
    return any(location.place is None for location in facts.locations)
