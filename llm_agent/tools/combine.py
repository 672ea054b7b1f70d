"""A mixed list of functions and providers as one provider, routed by published name.

No prefixes and no renaming: two providers that publish the same name are refused when they
list, since a name that two answer to would reach only one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from llm_agent import codec, notices
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ToolDeclaration, ToolProvider
from llm_agent.tool_operation import Idempotency
from llm_agent.tools.toolbox import Toolbox, unknown_tool

Answer = ToolAnswer | Mapping[str, Any] | str


def combine(items: Iterable[Callable[..., Any] | ToolProvider]) -> ToolProvider:
    """Return one provider for *items*.

    Args:
        items: plain functions, `@tool`s, bound methods and provider objects, in any order.

    Returns:
        The provider itself when there is only one; otherwise one that has `grants()` when one of
        *items* has (of several, all grants in their order), and `idempotency_of(name)`.

    Raises:
        ConfigError: an item is neither, two functions share a name, or a function cannot be a
            tool. A name that two providers publish is found by `tools_for_llm`.
    """
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise ConfigError(f"tools: expected a list of functions and providers, got {type(items).__name__}")
    providers = _grouped(list(items))
    if len(providers) == 1:
        return providers[0]
    if any(callable(getattr(provider, "grants", None)) for provider in providers):
        return CombinedWithGrants(providers)
    return Combined(providers)


def _grouped(items: Sequence[Any]) -> list[ToolProvider]:
    """Make one toolbox of all functions, in the place of the first; providers stay what they are."""
    functions: list[Callable[..., Any]] = []
    providers: list[ToolProvider | None] = []
    for index, item in enumerate(items):
        if _is_provider(item, index):
            providers.append(cast("ToolProvider", item))
            continue
        if not functions:
            providers.append(None)
        functions.append(item)
    toolbox = Toolbox(functions)
    return [toolbox if provider is None else provider for provider in providers] or [toolbox]


def _is_provider(item: Any, index: int) -> bool:
    methods = ("tools_for_llm", "execute_tool_calls")
    present = [method for method in methods if callable(getattr(item, method, None))]
    if isinstance(item, type) and present:
        raise ConfigError(f"tools[{index}]: {item.__qualname__} is a class; hand over an object of it")
    if len(present) == 1:
        missing = next(method for method in methods if method not in present)
        raise ConfigError(
            f"tools[{index}]: a provider needs {missing}() too; {type(item).__name__} has only {present[0]}()"
        )
    if not present and not callable(item):
        raise ConfigError(f"tools[{index}]: expected a function or a tool provider, got {type(item).__name__}")
    return bool(present)


class Combined:
    """Several providers as one. Shared freely, as far as they can be."""

    def __init__(self, providers: Sequence[ToolProvider]) -> None:
        self._providers = tuple(providers)
        # Which provider publishes a name: replaced as a whole by every listing.
        self._owners: Mapping[str, ToolProvider] | None = None

    def tools_for_llm(self) -> list[ToolDeclaration]:
        """Return every provider's declarations, in order.

        Raises:
            ConfigError: two providers publish the same name; names both.
            Whatever a provider raises: a shorter catalogue would be a lie.
        """
        catalogue: list[ToolDeclaration] = []
        owners: dict[str, int] = {}
        for place, provider in enumerate(self._providers):
            for declaration in provider.tools_for_llm():
                catalogue.append(declaration)
                name = _published_name(declaration)
                if name is not None and owners.setdefault(name, place) != place:
                    both = f"{self._label(owners[name])} and {self._label(place)}"
                    raise ConfigError(f"tools: {both} both publish a tool named {name!r}; rename one of them")
        self._owners = {name: self._providers[place] for name, place in owners.items()}
        return catalogue

    def _label(self, place: int) -> str:
        provider = self._providers[place]
        return repr(provider) if isinstance(provider, Toolbox) else f"{type(provider).__name__} (number {place + 1})"

    def execute_tool_calls(self, calls: Sequence[ToolRequest | Mapping[str, Any]]) -> list[Answer]:
        """Run *calls* in the model's order; neighbours of one provider go to it together.

        Returns:
            One answer per call, in order. A provider that raises or comes up short costs its own
            calls an error answer, and no others.

        Raises:
            Nothing, but for Ctrl-C on the main thread.
        """
        requests = [ToolRequest.from_raw(call) for call in calls]
        try:
            owners = self._known_owners()
        except Exception as failure:  # a shield: a listing may raise, answers may not
            return [_failure(call, failure) for call in requests]
        answers: list[Answer] = []
        for provider, group in _runs(requests, owners):
            answers += _asked(provider, group) if provider else [unknown_tool(call, tuple(owners)) for call in group]
        return answers

    def _known_owners(self) -> Mapping[str, ToolProvider]:
        if self._owners is None:
            self.tools_for_llm()
        return self._owners or {}

    def idempotency_of(self, name: str) -> Idempotency:
        """What the provider of *name* says about repeating a call; `unknown` before a listing."""
        owner = (self._owners or {}).get(name)
        declared = getattr(owner, "idempotency_of", None)
        return cast("Idempotency", declared(name)) if callable(declared) else "unknown"


class CombinedWithGrants(Combined):
    """Several providers, at least one of which keeps standing permissions."""

    def grants(self) -> list[Any]:
        """Return the grants of every provider that has some, in the providers' order."""
        found: list[Any] = []
        for provider in self._providers:
            grants = getattr(provider, "grants", None)
            if callable(grants):
                found += grants() or ()
        return found


def _published_name(declaration: Any) -> str | None:
    """The name in a declaration; `None` for one that is unreadable, which is passed on untouched."""
    function = declaration.get("function") if isinstance(declaration, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _runs(
    calls: Sequence[ToolRequest], owners: Mapping[str, ToolProvider]
) -> Iterator[tuple[ToolProvider | None, list[ToolRequest]]]:
    """Group neighbours that go to the same provider."""
    for _, group in groupby(calls, key=lambda call: id(owners.get(call.name))):
        together = list(group)
        yield owners.get(together[0].name), together


def _asked(provider: ToolProvider, calls: list[ToolRequest]) -> list[Answer]:
    """Ask one provider; exactly one answer per call comes back."""
    try:
        returned = provider.execute_tool_calls(list(calls))
        answers = [returned] if isinstance(returned, str | Mapping | ToolAnswer) else list(returned or ())
    except BaseException as failure:  # SystemExit too, as in a toolbox
        if isinstance(failure, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return [_failure(call, failure) for call in calls]
    missing = [ToolAnswer(call.id, notices.NO_RESULT, is_error=True) for call in calls[len(answers) :]]
    return [*answers[: len(calls)], *missing]


def _failure(call: ToolRequest, failure: BaseException) -> ToolAnswer:
    return ToolAnswer(call.id, notices.PROVIDER_RAISED.format(failure=codec.error_text(failure)), is_error=True)
