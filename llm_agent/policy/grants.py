"""What a human answered "always", as rules with their circumstances beside them.

The law: a grant is an ordinary rule, and what is known about it (who, when, until when, for how
long a while) stands beside the rule, never in it. When grants are asked, and what they can never
overrule, does not live here (`policy`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, get_args

import attrs

from llm_agent.canonical import data_digest
from llm_agent.errors import ConfigError
from llm_agent.events import format_ts, now_us, parse_ts
from llm_agent.policy.rules import Rule, read_rule

Scope = Literal["session", "project"]
SCOPES: Final[tuple[str, ...]] = get_args(Scope)
_MEMBERS: Final = ("rule", "id", "source", "given-at", "expires-at", "scope")


@attrs.frozen(kw_only=True)
class Grant:
    """A remembered answer."""

    rule: Rule
    """An allow or a deny."""
    id: str
    """What `revoke` takes."""
    source: str | None = None
    """Who gave it: `human` for an answer to a prompt."""
    given_at: int | None = None
    """Microseconds since the epoch."""
    expires_at: int | None = None
    """Microseconds since the epoch; `None`: it stays."""
    scope: Scope = "session"
    """`session`: for this conversation. `project`: for every one that shares the book."""

    def is_in_force(self, now: int) -> bool:
        return self.expires_at is None or now < self.expires_at

    def to_dict(self) -> dict[str, Any]:
        """The plain data that is kept: the rule whole, times as ISO-8601, unknown members left out."""
        told = {
            "rule": self.rule.to_dict(),
            "id": self.id,
            "source": self.source,
            "given-at": None if self.given_at is None else format_ts(self.given_at),
            "expires-at": None if self.expires_at is None else format_ts(self.expires_at),
            "scope": self.scope,
        }
        return {member: value for member, value in told.items() if value is not None}


def given(rules: Iterable[Rule], *, scope: Scope, expires_in: float | None, now: int) -> list[Grant]:
    """Return grants for *rules* as a human has just given them; *expires_in* in seconds."""
    until = None if expires_in is None else now + round(expires_in * 1_000_000)
    return [
        Grant(rule=rule, id=uuid.uuid4().hex, source="human", given_at=now, expires_at=until, scope=scope)
        for rule in rules
    ]


def read_grant(data: Any, where: str) -> Grant:
    """Return *data* as a grant: a `Grant`, its plain data, or a bare rule, which gets its digest as id.

    Raises:
        ConfigError: it is none of them, or its rule neither allows nor denies; names the member.
    """
    if isinstance(data, Grant):
        return data
    if not isinstance(data, Mapping) or "rule" not in data:
        rule = _decided(read_rule(data, where), where)
        return Grant(rule=rule, id=data_digest(rule.to_dict())[:32])
    unknown = [str(member) for member in data if member not in _MEMBERS]
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]}: no such member; a grant has {', '.join(_MEMBERS)}")
    rule = _decided(read_rule(data["rule"], f"{where}.rule"), f"{where}.rule")
    scope = data.get("scope", "session")
    if scope not in SCOPES:
        raise ConfigError(f"{where}.scope: expected one of {', '.join(SCOPES)}, got {scope!r}")
    return Grant(
        rule=rule,
        id=_text(data, "id", where) or data_digest(rule.to_dict())[:32],
        source=_text(data, "source", where),
        given_at=_moment(data, "given-at", where),
        expires_at=_moment(data, "expires-at", where),
        scope=scope,
    )


def read_grants(data: Any, where: str = "grants") -> tuple[Grant, ...]:
    """Return a list of grants; all of them, or none.

    Raises:
        ConfigError: *data* is no list, or one of it is no grant; names the index and the member.
    """
    if isinstance(data, str | Mapping | Rule | Grant) or not isinstance(data, Iterable):
        raise ConfigError(f"{where}: expected a list of grants, got {type(data).__name__}")
    return tuple(read_grant(each, f"{where}[{index}]") for index, each in enumerate(data))


def _decided(rule: Rule, where: str) -> Rule:
    if rule.decision == "ask":
        raise ConfigError(f"{where}.decision: a grant allows or denies, got 'ask'")
    return rule


def _text(data: Mapping[str, Any], member: str, where: str) -> str | None:
    value = data.get(member)
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"{where}.{member}: expected text, got {value!r}")
    return value


def _moment(data: Mapping[str, Any], member: str, where: str) -> int | None:
    text = _text(data, member, where)
    try:
        return None if text is None else parse_ts(text)
    except ValueError as problem:
        raise ConfigError(f"{where}.{member}: expected an ISO-8601 time: {problem}") from None


class Grants:
    """A book of grants, in the order they were given. Share it between policies and threads.

    Args:
        grants: what it begins with: grants, their plain data, or bare rules.
        clock: microseconds since the epoch, for what expires.

    Raises:
        ConfigError: one of *grants* is none; names the index and the member.
    """

    def __init__(self, grants: Iterable[Any] = (), *, clock: Callable[[], int] = now_us) -> None:
        self._grants = read_grants(grants)
        self._clock = clock
        # Guards the replacement of the tuple, which readers take as it stands; a leaf.
        self._lock = threading.Lock()

    def add(self, grants: Iterable[Any]) -> list[dict[str, Any]]:
        """Add *grants*, all or none, and return the whole book.

        Raises:
            ConfigError: one of them is none; nothing has been added.
        """
        added = read_grants(grants)
        with self._lock:
            self._grants += added
        return self.list()

    def revoke(self, grant_id: str) -> bool:
        """Take a grant back; False where there is none of this id."""
        with self._lock:
            kept = tuple(grant for grant in self._grants if grant.id != grant_id)
            was_there = len(kept) < len(self._grants)
            self._grants = kept
        return was_there

    def list(self) -> list[dict[str, Any]]:
        """Return what is in force, as plain data of the caller's own."""
        return [grant.to_dict() for grant in self]

    def __iter__(self) -> Iterator[Grant]:
        """The grants that are in force now."""
        now = self._clock()
        return iter([grant for grant in self._grants if grant.is_in_force(now)])

    def __len__(self) -> int:
        return sum(1 for _ in self)
