"""One namespace over many providers: each under a prefix of its own.

The law: a published name has exactly one owner, and the owner sees its own name for it. What
cannot be kept is refused, when a provider is added or when the tools are listed; names are
never repaired. Providers without prefixes: `combine`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs

from llm_agent import notices
from llm_agent.errors import ConfigError
from llm_agent.layers import (
    Several,
    declarations_of,
    declared_name,
    forwarded,
    refused,
    requests_of,
)
from llm_agent.messages import LEGAL_TOOL_NAME, ToolAnswer, ToolRequest
from llm_agent.ports import ToolDeclaration, ToolProvider
from llm_agent.tool_operation import Idempotency
from llm_agent.tools.combine import Tools, provider_of

_PART: Final = re.compile(r"[A-Za-z0-9_-]*")
_ALPHABET: Final = "A-Z, a-z, 0-9, _ and -"


@attrs.frozen
class Registered:
    """A provider and where its names are."""

    prefix: str
    sep: str
    provider: ToolProvider = attrs.field(eq=False)

    @property
    def tag(self) -> str:
        """What the published names begin with."""
        return self.prefix + self.sep

    def publishes(self, declaration: Any) -> Any:
        """*declaration* under its published name; the same object where no name can be read."""
        name = declared_name(declaration)
        if name is None:
            return declaration
        return {**declaration, "function": {**declaration["function"], "name": self.tag + name}}

    def own(self, call: ToolRequest) -> ToolRequest:
        """*call* under the provider's own name for it."""
        return ToolRequest(call.id, call.name[len(self.tag) :], call.arguments)


class Registry(Several):
    """Many providers as one; a tool's published name is prefix + separator + its own name.

    Args:
        providers: prefix to provider, function or list of these, as `add` takes them.

    Threads: any. What is added or removed while calls run is seen by the next batch.
    """

    def __init__(self, providers: Mapping[str, Tools] | None = None) -> None:
        # Held while the entries are replaced, never while one is used; a leaf.
        self._lock = threading.Lock()
        self._entries: tuple[Registered, ...] = ()
        for prefix, provider in (providers or {}).items():
            self.add(provider, prefix)

    def __repr__(self) -> str:
        return f"Registry({', '.join(entry.prefix for entry in self._entries)})"

    def add(self, provider: Tools, prefix: str, sep: str = "_") -> Registry:
        """Publish the tools of *provider* under *prefix*; returns the registry itself.

        Raises:
            ConfigError: no provider, an illegal prefix or separator, or one that is taken; names it.
        """
        entry = Registered(
            _checked(prefix, "prefix"), _checked(sep, "separator"), provider_of(provider, f"Registry: {prefix!r}")
        )
        with self._lock:
            taken = next((other for other in self._entries if entry.prefix == other.prefix), None)
            if taken is not None:
                raise ConfigError(f"Registry: the prefix {prefix!r} is taken, by {_kind(taken)}")
            same = next((other for other in self._entries if entry.tag == other.tag), None)
            if same is not None:
                raise ConfigError(
                    f"Registry: {prefix!r} with separator {sep!r} would begin its names as "
                    f"{same.prefix!r} with {same.sep!r} does: {entry.tag!r}"
                )
            self._entries = (*self._entries, entry)
        return self

    def remove(self, prefix: str) -> ToolProvider | None:
        """Take the provider of *prefix* out and return it, not closed; `None` where there is none."""
        with self._lock:
            gone = next((entry for entry in self._entries if entry.prefix == prefix), None)
            self._entries = tuple(entry for entry in self._entries if entry is not gone)
        return None if gone is None else gone.provider

    def providers(self) -> list[Registered]:
        """Return what is registered, in the order of registration."""
        return list(self._entries)

    def has_prefix(self, prefix: str) -> bool:
        return any(entry.prefix == prefix for entry in self._entries)

    def _members(self) -> list[ToolProvider]:
        return [entry.provider for entry in self._entries]

    def tools_for_llm(self) -> list[ToolDeclaration]:
        """Return every provider's declarations under their published names, in the order of registration.

        Only the name differs, on a copy; a declaration without a readable one is passed on.

        Raises:
            ConfigError: a name that is published twice, that would never reach the provider
                that publishes it, or that no vendor accepts; says whose.
            Whatever a provider raises: a shorter catalogue would be a lie.
        """
        entries = self._entries
        catalogue: list[ToolDeclaration] = []
        seen: set[str] = set()
        for entry in entries:
            for declaration in declarations_of(entry.provider):
                published = entry.publishes(declaration)
                name = declared_name(published)
                if name is not None:
                    _check_published(name, entry, entries, seen)
                catalogue.append(published)
        return catalogue

    def execute_tool_calls(self, calls: Iterable[ToolRequest | Mapping[str, Any]]) -> list[ToolAnswer]:
        """Have every call run by the provider with the longest tag that its name begins with.

        Returns:
            One answer per call, in order. A provider is asked once, with its calls in the
            model's order; one that raises or comes up short costs its own calls an error answer.

        Raises:
            Nothing, but for Ctrl-C on the main thread.

        Threads: the caller's; the providers take turns, in the order of registration.
        """
        requests, entries = requests_of(calls), self._entries
        owners = [_owner(call.name, entries) for call in requests]
        unowned = (place for place, owner in enumerate(owners) if owner is None)
        answers = {place: _unowned(requests[place], entries) for place in unowned}
        for entry in entries:
            places = [place for place, owner in enumerate(owners) if owner is entry]
            asked = [entry.own(requests[place]) for place in places]
            given = forwarded(entry.provider, asked, f"the prefix {entry.prefix!r}")
            answers.update(zip(places, given, strict=True))
        return [answers[place] for place in range(len(requests))]

    def idempotency_of(self, name: str) -> Idempotency:
        """What the owner of *name* says about repeating a call; `unknown` where nobody says."""
        owner = _owner(name, self._entries)
        declared = None if owner is None else getattr(owner.provider, "idempotency_of", None)
        if owner is None or not callable(declared):
            return "unknown"
        return cast("Idempotency", declared(name[len(owner.tag) :]))


def _checked(part: Any, what: str) -> str:
    if not isinstance(part, str) or not _PART.fullmatch(part):
        raise ConfigError(f"Registry: a {what} is made of {_ALPHABET}, got {part!r}")
    if not part and what == "prefix":
        raise ConfigError("Registry: a prefix must not be empty; for providers without one there is combine([...])")
    return part


def _kind(entry: Registered) -> str:
    return type(entry.provider).__name__


def _owner(name: str, entries: Sequence[Registered]) -> Registered | None:
    """The entry with the longest tag that *name* begins with; a bare tag is no tool's name."""
    owners = [entry for entry in entries if len(name) > len(entry.tag) and name.startswith(entry.tag)]
    return max(owners, key=lambda entry: len(entry.tag), default=None)


def _unowned(call: ToolRequest, entries: Sequence[Registered]) -> ToolAnswer:
    if not call.name:
        return refused(call, notices.NAMELESS_CALL)
    tags = ", ".join(entry.tag for entry in entries) or "nothing, there are none"
    return refused(call, notices.NO_PROVIDER.format(tool=call.name[:64], tags=tags))


def _check_published(name: str, entry: Registered, entries: Sequence[Registered], seen: set[str]) -> None:
    """Refuse a name that would not come back to its owner, or that a server would refuse."""
    owner = _owner(name, entries)
    if owner is not entry and owner is not None:
        raise ConfigError(
            f"Registry: {name!r} is published by {entry.prefix!r} ({_kind(entry)}), but names that begin with "
            f"{owner.tag!r} go to {owner.prefix!r} ({_kind(owner)}); give one of them another prefix"
        )
    if name in seen:
        raise ConfigError(f"Registry: {entry.prefix!r} ({_kind(entry)}) publishes {name!r} twice")
    if not LEGAL_TOOL_NAME.fullmatch(name):
        raise ConfigError(
            f"Registry: {entry.prefix!r} ({_kind(entry)}) publishes {name!r}, which is no name for a tool: "
            f"at most 64 characters of {_ALPHABET}"
        )
    seen.add(name)
