"""Tool patterns: an exact name, or a prefix with a trailing `*`. Case-sensitive; `*` is everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llm_agent.errors import ConfigError


def matches(pattern: str, name: str) -> bool:
    """Return whether *name* is what *pattern* means."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def matches_any(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


def pattern_problem(pattern: object) -> str | None:
    """Return what was expected in place of *pattern*, or `None` where it can be meant."""
    if not isinstance(pattern, str) or not pattern.strip():
        return "expected a tool name or a prefix ending in *"
    return "a * may only stand at the end" if "*" in pattern[:-1] else None


def checked_pattern(option: str, pattern: Any) -> str:
    """Return *pattern*.

    Raises:
        ConfigError: no text, blank, or with a star that is not at its end.
    """
    problem = pattern_problem(pattern)
    if problem is not None:
        raise ConfigError(f"{option}: {problem}, got {pattern!r}")
    return str(pattern)


def checked_patterns(option: str, patterns: Any) -> tuple[str, ...]:
    """Return *patterns* as a tuple.

    Raises:
        ConfigError: a lone string, no list at all, or an entry that is not non-blank text (a
            rule mapping is the likeliest slip).
    """
    if isinstance(patterns, str):
        raise ConfigError(f"{option}: expected a list of tool patterns, got the single string {patterns!r}")
    if not isinstance(patterns, Iterable):
        raise ConfigError(f"{option}: expected a list of tool patterns, got {type(patterns).__name__}")
    checked = tuple(patterns)  # walked once: a generator would be empty the second time
    for pattern in checked:
        if not isinstance(pattern, str) or not pattern.strip():
            raise ConfigError(f"{option}: expected tool names or prefixes ending in *, got {pattern!r}")
    return checked
