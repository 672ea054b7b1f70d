"""What a human answered "always", as rules with their circumstances beside them.

The law: a grant is an ordinary rule, and what is known about it (who, when, until when, for how
long a while) stands beside the rule, never in it. What was kept is never lost: a grant of another
version, with members that this one does not know, is told again as it came. When grants are
asked, and what they can never overrule, does not live here (`policy`).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import attrs

from llm_agent.canonical import data_digest
from llm_agent.codec import clean_value
from llm_agent.errors import ConfigError
from llm_agent.events import format_ts, now_us, parse_ts
from llm_agent.policy.rules import MEMBERS as RULE_MEMBERS
from llm_agent.policy.rules import Rule, read_rule

Scope = Literal["session", "project"]
SCOPES: Final[tuple[str, ...]] = get_args(Scope)
_MEMBERS: Final = ("rule", "id", "source", "given-at", "expires-at", "scope")

_log: Final = logging.getLogger("llm_agent.policy")


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
    kept: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """As another version wrote it, where this one does not know all of its members."""

    def is_over(self, now: int) -> bool:
        """Whether it has expired; also where the clock was set back behind it, and how much is left is unknown."""
        return self.expires_at is not None and not (self.given_at or now) <= now < self.expires_at

    def to_dict(self) -> dict[str, Any]:
        """The plain data that is kept: the rule whole, times as ISO-8601, members that say nothing left out."""
        if self.kept is not None:
            return dict(clean_value(self.kept))
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


def read_kept(data: Any, where: str) -> Grant:
    """Return *data* as a grant that was kept, maybe by another version of this engine.

    A member that is not known here is a narrower that nobody can judge: such an allow never
    fires, and such a deny fires on its tool. The data stay what they are.

    Raises:
        ConfigError: what is known of it is no grant; names the member.
    """
    if not isinstance(data, Mapping):
        return read_grant(data, where)
    is_bare = "rule" not in data
    rule, strange = _parted(data if is_bare else data["rule"], RULE_MEMBERS)
    beside, strange_beside = ({}, []) if is_bare else _parted(data, _MEMBERS)
    strange += strange_beside
    if not strange:
        return read_grant(data, where)
    _log.warning("%s: %s: no such member in this version; the grant is kept, and allows nothing", where, strange[0])
    known = read_grant({**beside, "rule": rule}, where)
    unknowable = attrs.evolve(known.rule, check=f"{strange[0]} (unknown)")
    return attrs.evolve(known, rule=unknowable, kept=clean_value(data))


def _parted(data: Any, members: Sequence[str]) -> tuple[Any, list[str]]:
    """What of *data* is known, and the names of what is not."""
    if not isinstance(data, Mapping):
        return data, []
    known = {member: value for member, value in data.items() if member in members}
    return known, [str(member) for member in data if member not in members]


def read_grants(data: Any, where: str = "grants", read: Callable[[Any, str], Grant] = read_grant) -> tuple[Grant, ...]:
    """Return a list of grants; all of them, or none.

    Args:
        read: `read_grant` for what is given now, `read_kept` for what was kept.

    Raises:
        ConfigError: *data* is no list, or one of it is no grant; names the index and the member.
    """
    if isinstance(data, str | Mapping | Rule | Grant) or not isinstance(data, Iterable):
        raise ConfigError(f"{where}: expected a list of grants, got {type(data).__name__}")
    return tuple(read(each, f"{where}[{index}]") for index, each in enumerate(data))


def amended(kept: Iterable[Any], held: Iterable[Grant], revoked: str | None) -> list[Any]:
    """Return what a transcript has from now on: what it *kept*, less what was *revoked*, and what is new of *held*."""
    known = [(read_kept(data, f"grants[{index}]").id, data) for index, data in enumerate(kept)]
    ids = {grant_id for grant_id, _ in known}
    left = [data for grant_id, data in known if grant_id != revoked]
    return left + [grant.to_dict() for grant in held if grant.id not in ids]


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
        grants: what it begins with: grants, their plain data, or bare rules. Those with members
            that this version does not know are kept and told, but allow nothing.
        clock: microseconds since the epoch, for what expires.

    Raises:
        ConfigError: one of *grants* is none; names the index and the member.
    """

    def __init__(self, grants: Iterable[Any] = (), *, clock: Callable[[], int] = now_us) -> None:
        self._grants = read_grants(grants, read=read_kept)
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
        """The grants that are in force now; what is over is gone for good, whatever the clock does next."""
        now = self._clock()
        if any(grant.is_over(now) for grant in self._grants):
            with self._lock:
                self._grants = tuple(grant for grant in self._grants if not grant.is_over(now))
        return iter(self._grants)

    def __len__(self) -> int:
        return sum(1 for _ in self)
