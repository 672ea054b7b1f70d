"""What a policy is given beside its rules, checked by name.

The law: an option that cannot be meant is refused before anything is judged with it; the error
names the option, what was expected and what came. What an option does lives with who uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from llm_agent.call_context import Asker
from llm_agent.errors import ConfigError
from llm_agent.patterns import checked_pattern, checked_patterns
from llm_agent.policy.evaluation import COMMAND_PARAMS, Check, Surroundings
from llm_agent.policy.grants import Grant, Grants, read_grants, read_kept
from llm_agent.policy.paths import checked_path_params, checked_roots


def checked_surroundings(
    *, roots: Any, path_params: Any, command_params: Any, local_tools: Any, checks: Any
) -> Surroundings:
    """Return the options about tools as one value.

    Raises:
        ConfigError: one of them cannot be meant.
    """
    return Surroundings(
        roots=checked_roots(roots),
        path_params=checked_path_params(path_params),
        command_params=checked_command_params(command_params),
        local_tools=checked_local_tools(local_tools),
        checks=checked_checks(checks),
    )


def checked_local_tools(patterns: Any) -> tuple[str, ...]:
    """Return *patterns* of tools, in which a star stands at the end as it does in rules."""
    return tuple(checked_pattern("local_tools", pattern) for pattern in checked_patterns("local_tools", patterns))


def checked_command_params(params: Any) -> dict[str, tuple[str, ...]]:
    """Return *params*, from tool patterns to the argument with a program and the one with its arguments."""
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(f"command_params: expected a mapping from tool patterns, got {type(params).__name__}")
    checked: dict[str, tuple[str, ...]] = {}
    for pattern, given in (params or {}).items():
        checked_pattern("command_params", pattern)
        names: Any = (given,) if isinstance(given, str) else given
        is_names = isinstance(names, Sequence) and all(isinstance(name, str) and name for name in names)
        if not is_names or len(names) not in (1, 2):
            raise ConfigError(
                f"command_params[{pattern!r}]: expected the name of the argument with the program, "
                f"or that and the one with its arguments, got {given!r}"
            )
        checked[pattern] = (names[0], names[1] if len(names) == 2 else COMMAND_PARAMS[1])
    return checked


def checked_checks(checks: Any) -> dict[str, Check]:
    """Return *checks*, from names to predicates."""
    if checks is not None and not isinstance(checks, Mapping):
        raise ConfigError(f"checks: expected a mapping from names to predicates, got {type(checks).__name__}")
    for name, check in (checks or {}).items():
        if not callable(check):
            raise ConfigError(f"checks[{name!r}]: expected a callable, got {type(check).__name__}")
    return dict(checks or {})


def checked_store(store: Any) -> Grants | None:
    """Return *store*, a book of grants or nothing."""
    if store is not None and not isinstance(store, Grants):
        raise ConfigError(f"store: expected a book of grants (Grants), got {type(store).__name__}")
    return store


class KeepsGrants(Protocol):
    """What a policy needs of a transcript that it is given for its grants: a `Session` has it."""

    @property
    def grants(self) -> list[Any]: ...

    def append_grants(self, grants: Sequence[Any]) -> str: ...


def checked_transcript(grants: Any) -> KeepsGrants | None:
    """Return *grants* where it is a transcript, and not a list of them."""
    is_transcript = callable(getattr(grants, "append_grants", None)) and hasattr(grants, "grants")
    return cast("KeepsGrants", grants) if is_transcript else None


def own_grants(grants: Iterable[Any], store: Grants | None) -> tuple[Grant, ...]:
    """Return the grants that are a policy's own; beside a store, those of the project are not."""
    checked = read_grants(grants, read=read_kept)
    # A grant that was revoked in the store must not come back from an old transcript.
    return checked if store is None else tuple(each for each in checked if each.scope == "session")


def checked_asker(on_ask: Any) -> Asker | Literal["run"] | None:
    """Return *on_ask*, a callable, `"run"`, or nothing."""
    if on_ask is None or on_ask == "run" or callable(on_ask):
        return cast("Asker | Literal['run'] | None", on_ask)
    raise ConfigError(f"on_ask: expected a callable (request) -> answer, or the string 'run', got {on_ask!r}")


def checked_timeout(timeout: Any) -> float | None:
    """Return *timeout*, in seconds above 0, or nothing."""
    is_seconds = isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < math.inf
    if timeout is None or is_seconds:
        return cast("float | None", timeout)
    raise ConfigError(f"ask_timeout: expected seconds above 0, or None, got {timeout!r}")


def checked_callable(option: str, function: Any) -> Any:
    """Return *function*, a callable or nothing."""
    if function is not None and not callable(function):
        raise ConfigError(f"{option}: expected a callable, got {type(function).__name__}")
    return function
