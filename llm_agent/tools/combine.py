"""A mixed list of functions and providers as one provider, routed by published name.

No prefixes and no renaming: two providers that publish the same name are refused when they
list, since a name that two answer to would reach only one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from llm_agent import notices
from llm_agent.errors import ConfigError
from llm_agent.layers import (
    METHODS,
    Several,
    checked_provider,
    declarations_of,
    declared_name,
    first_line_of,
    forwarded,
    let_ctrl_c_pass,
    refused,
    requests_of,
)
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ToolDeclaration, ToolProvider
from llm_agent.tool_operation import Idempotency
from llm_agent.tools.toolbox import Toolbox, unknown_tool

Tools = ToolProvider | Callable[..., Any] | Sequence[Callable[..., Any] | ToolProvider]
"""A provider, a function, or a list of both."""


def provider_of(tools: Any, owner: str) -> ToolProvider:
    """Return a provider as it is, and one made of a function, or of a list of functions and providers.

    Raises:
        ConfigError: it is neither; *owner* says whose argument it is.
    """
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        return combine(tools)
    is_function = callable(tools) and not isinstance(tools, type) and not _claims_to_be_provider(tools)
    return combine([tools]) if is_function else checked_provider(tools, owner)


def _claims_to_be_provider(item: Any) -> bool:
    """Whether it has a provider's method; one that has only half of them is named in the error."""
    return any(callable(getattr(item, method, None)) for method in METHODS)


def combine(items: Iterable[Callable[..., Any] | ToolProvider]) -> ToolProvider:
    """Return one provider for *items*.

    Args:
        items: plain functions, `@tool`s, bound methods and provider objects, in any order.

    Returns:
        The provider itself when there is only one; otherwise one that has `grants()` while one of
        *items* has (of several, all grants in their order), and `idempotency_of(name)`.

    Raises:
        ConfigError: an item is neither, two functions share a name, or a function cannot be a
            tool. A name that two providers publish is found by `tools_for_llm`.
    """
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise ConfigError(f"tools: expected a list of functions and providers, got {type(items).__name__}")
    providers = _grouped(list(items))
    return providers[0] if len(providers) == 1 else Combined(providers)


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
    if _claims_to_be_provider(item):
        checked_provider(item, f"tools[{index}]")
        return True
    if not callable(item):
        raise ConfigError(f"tools[{index}]: expected a function or a tool provider, got {type(item).__name__}")
    return False


class Combined(Several):
    """Several providers as one. Shared freely, as far as they can be."""

    def __init__(self, providers: Sequence[ToolProvider]) -> None:
        self._providers = tuple(providers)
        # Which provider publishes a name: replaced as a whole by every listing.
        self._owners: Mapping[str, ToolProvider] | None = None

    def _members(self) -> Sequence[ToolProvider]:
        return self._providers

    def tools_for_llm(self) -> list[ToolDeclaration]:
        """Return every provider's declarations, in order.

        Raises:
            ConfigError: two providers publish the same name; names both.
            Whatever a provider raises: a shorter catalogue would be a lie.
        """
        catalogue: list[ToolDeclaration] = []
        owners: dict[str, int] = {}
        for place, provider in enumerate(self._providers):
            for declaration in declarations_of(provider):
                catalogue.append(declaration)
                name = declared_name(declaration)
                if name is not None and owners.setdefault(name, place) != place:
                    both = f"{self._label(owners[name])} and {self._label(place)}"
                    raise ConfigError(f"tools: {both} both publish a tool named {name!r}; rename one of them")
        self._owners = {name: self._providers[place] for name, place in owners.items()}
        return catalogue

    def _label(self, place: int) -> str:
        provider = self._providers[place]
        return repr(provider) if isinstance(provider, Toolbox) else f"{type(provider).__name__} (number {place + 1})"

    def execute_tool_calls(self, calls: Iterable[ToolRequest | Mapping[str, Any]]) -> list[ToolAnswer]:
        """Run *calls* in the model's order; neighbours of one provider go to it together.

        Returns:
            One answer per call, in order. A provider that raises or comes up short costs its own
            calls an error answer, and no others.

        Raises:
            Nothing, but for Ctrl-C on the main thread.
        """
        requests = requests_of(calls)
        try:
            owners = self._known_owners()
        except BaseException as failure:  # a shield: a listing may raise, answers may not
            let_ctrl_c_pass(failure)
            text = notices.PROVIDER_RAISED.format(failure=first_line_of(failure))
            return [refused(call, text) for call in requests]
        answers: list[ToolAnswer] = []
        for provider, group in _neighbours(requests, owners):
            if provider is None:
                answers += [unknown_tool(call, tuple(owners)) for call in group]
            else:
                answers += forwarded(provider, group, type(provider).__name__)
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


def _neighbours(
    calls: Sequence[ToolRequest], owners: Mapping[str, ToolProvider]
) -> Iterator[tuple[ToolProvider | None, list[ToolRequest]]]:
    """Group neighbours that go to the same provider."""
    for _, group in groupby(calls, key=lambda call: id(owners.get(call.name))):
        together = list(group)
        yield owners.get(together[0].name), together
