"""A smoke alarm for arguments that no declaration knows.

A completion that was cut short and then closed into valid JSON shows up as invented keys;
servers ignore them and do part of the job. The law: this layer warns, and does nothing else;
calls and answers pass as they are.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import attrs

from llm_agent.errors import ConfigError
from llm_agent.layers import (
    Layer,
    arguments_of,
    declarations_of,
    declared_name,
    declared_parameters,
    first_line_of,
    forwarded,
    let_ctrl_c_pass,
    requests_of,
)
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ToolDeclaration, ToolProvider

_log: Final = logging.getLogger("llm_agent.tools.unknown_keys")

# What a layer further in may have offered, whether or not it is there.
_ALWAYS_KNOWN: Final = frozenset({"reason"})


@attrs.frozen(kw_only=True)
class UnknownKeysFound:
    """One call with arguments that its tool does not declare. `str()` is a sentence."""

    tool: str
    unknown_keys: tuple[str, ...]
    """Sorted; only those that had not been reported of this tool before."""
    declared_keys: tuple[str, ...]
    """Sorted."""
    id: str
    """The call's id in the conversation."""

    def __str__(self) -> str:
        unknown, declared = ", ".join(map(repr, self.unknown_keys)), ", ".join(map(repr, self.declared_keys))
        return (
            f"call {self.id!r} of tool {self.tool!r} has arguments that are not declared: {unknown}; it has {declared}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "unknown-keys": list(self.unknown_keys),
            "declared-keys": list(self.declared_keys),
            "id": self.id,
        }


OnWarn = Callable[[UnknownKeysFound], object]


def log_warning(found: UnknownKeysFound) -> None:
    """Log one line; without a logging configuration it appears on stderr."""
    _log.warning("%s", found)


class UnknownKeys(Layer):
    """Warns of arguments that a tool does not declare, once per tool and key.

    Args:
        provider: what the calls go to.
        on_warn: takes an `UnknownKeysFound`, on the thread of the call, before it goes on;
            `None`: one line by `logging`. What it raises is dropped.

    Raises:
        ConfigError: *provider* is no tool provider, or *on_warn* does not take one argument.

    Threads: any. Quiet for tools it has not seen listed, and for schemas that do not say by
    themselves which keys there are: open ones, composed ones, those without properties.
    """

    def __init__(self, provider: ToolProvider, on_warn: OnWarn | None = None) -> None:
        super().__init__(provider)
        self._on_warn: OnWarn = log_warning if on_warn is None else _checked(on_warn)
        # Declared keys by tool, of the last listing: replaced as a whole.
        self._declared: Mapping[str, frozenset[str]] = {}
        # Guards what has been reported; a leaf.
        self._lock = threading.Lock()
        self._reported: set[tuple[str, str]] = set()

    def tools_for_llm(self) -> list[ToolDeclaration]:
        """Return the provider's declarations, the same objects.

        Raises:
            Whatever the provider raises; the last listing stays in force then.
        """
        listed = declarations_of(self._provider)
        known = ((declared_name(declaration), _closed_keys(declaration)) for declaration in listed)
        self._declared = {name: keys for name, keys in known if name and keys}
        return listed

    def execute_tool_calls(self, calls: Iterable[ToolRequest | Mapping[str, Any]]) -> list[ToolAnswer]:
        """Look at *calls*, and have them run as they are.

        Returns:
            One answer per call, in order.

        Raises:
            Nothing, but for Ctrl-C on the main thread.
        """
        requests = requests_of(calls)
        for call in requests:
            self._look_at(call)
        return forwarded(self._provider, requests, type(self).__name__)

    def _look_at(self, call: ToolRequest) -> None:
        declared = self._declared.get(call.name)
        keys = arguments_of(call) if declared else None
        if not declared or not keys:
            return
        unknown = self._news(call.name, keys.keys() - declared - _ALWAYS_KNOWN)
        if not unknown:
            return
        found = UnknownKeysFound(
            tool=call.name, unknown_keys=unknown, declared_keys=tuple(sorted(declared)), id=call.id
        )
        try:
            self._on_warn(found)
        except BaseException as error:  # a shield: an alarm must not cost the call
            let_ctrl_c_pass(error)
            _log.error("on_warn raised: %s", first_line_of(error))

    def _news(self, tool: str, keys: Iterable[str]) -> tuple[str, ...]:
        with self._lock:
            new = sorted(key for key in keys if (tool, key) not in self._reported)
            self._reported.update((tool, key) for key in new)
        return tuple(new)


def _checked(on_warn: Any) -> OnWarn:
    try:
        inspect.signature(on_warn).bind(object())
    except TypeError as problem:
        raise ConfigError(f"UnknownKeys: on_warn must take one argument: {problem}") from problem
    except ValueError:  # some built-ins do not say what they take
        pass
    return cast("OnWarn", on_warn)


def _closed_keys(declaration: Any) -> frozenset[str] | None:
    """The keys that a tool declares; `None` where others are welcome too, or may be."""
    parameters = declared_parameters(declaration)
    if parameters is None or parameters.get("patternProperties"):
        return None
    # A schema in this place, also an empty one, says what other keys hold: there may be others.
    additional = parameters.get("additionalProperties", False)
    if additional is not False and additional is not None:
        return None
    return frozenset(map(str, parameters.get("properties", {})))
