"""One frozen configuration of a loop, validated once, in the caller's thread.

What cannot work is refused here, by a `ConfigError` that names the option, what was expected
and what came; so that nothing of it has to be asked again while a run lives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import attrs

from llm_agent.bill import Price
from llm_agent.budget import DEFAULT_OBSERVATION_SIZE, ModelProfile, RequestBudget, Window
from llm_agent.call_context import Asker
from llm_agent.errors import ConfigError
from llm_agent.events import Disposition
from llm_agent.limits import Limits
from llm_agent.messages import Message
from llm_agent.patterns import checked_patterns, matches
from llm_agent.ports import (
    ArtifactStore,
    Backend,
    Compactor,
    TokenCounter,
    ToolProvider,
    Transcript,
    completion_cap,
    model_name,
)
from llm_agent.retry import RetryPolicy
from llm_agent.tool_operation import IDEMPOTENCIES, Idempotency

# Of a window's tokens, about how many characters one takes; and what of a result is always told.
CHARS_PER_TOKEN: Final = 4
LEAST_OBSERVATION_SIZE: Final = 1_000

Classify = Callable[[str, int | None], Disposition]
SteerSource = Callable[[], Any]
Deadlines = tuple[tuple[str, float | None], ...]
IdempotencyRules = tuple[tuple[str, Idempotency], ...]


@attrs.frozen(kw_only=True)
class LoopConfig:
    """What a loop was told, in the form its stages use."""

    backends: tuple[Backend, ...]
    provider: ToolProvider | None
    counter: TokenCounter
    session: Transcript | None
    system_prompt: Message | None
    compactor: Compactor | None
    budget: RequestBudget | None
    """Also where only `context_budget` or a compactor gives one."""
    prices: Mapping[str, Price]
    artifact_store: ArtifactStore | None
    limits: Limits
    retry: RetryPolicy
    classify: Classify
    round_trip_timeout: float
    attempt_timeout: float | None
    deadlines: Deadlines
    max_abandoned_calls: int
    idempotency_rules: IdempotencyRules
    concurrent_tools: tuple[str, ...]
    steer_source: SteerSource | None
    on_ask: Asker | Literal["run"] | None
    close_session: bool

    @property
    def observation_limit(self) -> int | None:
        """Characters of a tool result that the conversation takes in full; `None` for all.

        Without a word from the caller, at most a tenth of the smallest window: of results that
        fill it, no compaction could keep the newest.
        """
        if self.budget is None:
            return None if self.artifact_store is None else DEFAULT_OBSERVATION_SIZE
        size = self.budget.max_observation_size
        windows = [window.size for window in map(self.window_of, range(len(self.backends))) if window is not None]
        if size != DEFAULT_OBSERVATION_SIZE or not windows:
            return size
        return min(size, max(LEAST_OBSERVATION_SIZE, min(windows) * CHARS_PER_TOKEN // 10))

    def window_of(self, index: int) -> Window | None:
        """The window of a backend of the chain; `None` where nothing declares one."""
        profile = self._profile_of(index)
        return None if profile is None else Window.of(profile, completion_cap(self.backends[index]))

    def declared_window_of(self, index: int) -> Window | None:
        """The same, but not where a `context_budget` only stands in for it: that one no vendor has set."""
        is_declared = self.budget is not None and not self.budget.is_synthesised
        return self.window_of(index) if is_declared else None

    def counter_of(self, index: int) -> TokenCounter:
        """The counter that knows the tokens of a backend."""
        profile = self._profile_of(index)
        return self.counter if profile is None or profile.counter is None else profile.counter

    def _profile_of(self, index: int) -> ModelProfile | None:
        return None if self.budget is None else self.budget.profile_of(model_name(self.backends[index]))

    def deadline_of(self, tool: str) -> float | None:
        """Working seconds a call of *tool* may take; `None` for no deadline. The first match wins."""
        for pattern, seconds in self.deadlines:
            if matches(pattern, tool):
                return seconds
        return None

    def idempotency_of(self, tool: str) -> Idempotency:
        """What the rules, or else the tool itself, say about repeating a call."""
        for pattern, idempotency in self.idempotency_rules:
            if matches(pattern, tool):
                return idempotency
        declared = getattr(self.provider, "idempotency_of", None)
        try:
            said = declared(tool) if callable(declared) else "unknown"
            return cast("Idempotency", said) if said in IDEMPOTENCIES else "unknown"
        except Exception:  # a shield: a label for a repair is worth no run
            return "unknown"


# -- the checks, one option each ---------------------------------------------------------


def checked_backends(backends: Any) -> tuple[Backend, ...]:
    chain = tuple(backends) if isinstance(backends, Sequence) and not isinstance(backends, str) else (backends,)
    if not chain:
        raise ConfigError("Loop: backends must name at least one backend, got an empty list")
    for index, backend in enumerate(chain):
        if isinstance(backend, type) or not callable(getattr(backend, "stream", None)):
            raise ConfigError(f"Loop: backends[{index}] must be an object with stream(request), got {_kind(backend)}")
    return chain


def checked_session(session: Any, *, has_provider: bool, compactor: Compactor | None) -> Transcript | None:
    if session is None:
        return None
    needed = ["append_message", "messages", "message_ids"]
    if compactor is not None:
        needed.append("append_compaction")
        if getattr(compactor, "age_observations", False):
            needed.append("append_elision")
    if has_provider:
        needed += ["append_grants", "append_tool_dispatched", "append_tool_settled", "pending_tool_operations"]
    for name in needed:
        if isinstance(session, type) or (not hasattr(type(session), name) and not hasattr(session, name)):
            raise ConfigError(f"Loop: session must be a transcript with {name}, got {_kind(session)}")
    return cast("Transcript", session)


def checked_counter(counter: Any) -> TokenCounter:
    for method in ("count_messages", "count_text", "count_request", "record_usage", "invalidate"):
        if isinstance(counter, type) or not callable(getattr(counter, method, None)):
            raise ConfigError(f"Loop: counter must have {method}(), got {_kind(counter)}")
    return cast("TokenCounter", counter)


def checked_compactor(compactor: Any) -> Compactor | None:
    if compactor is None:
        return None
    for name in ("context_budget", "needs_compaction", "compact"):
        if isinstance(compactor, type) or not hasattr(compactor, name):
            raise ConfigError(f"Loop: compactor must be a compactor with {name}, got {_kind(compactor)}")
    return cast("Compactor", compactor)


def checked_budget(
    context_budget: Any, request_budget: Any, compactor: Compactor | None, backends: Sequence[Backend]
) -> RequestBudget | None:
    """Return the one budget that three options may give; where two of them give it, they must agree."""
    if request_budget is not None and not isinstance(request_budget, RequestBudget):
        raise ConfigError(f"Loop: request_budget must be a RequestBudget, got {_kind(request_budget)}")
    if context_budget is not None:
        checked_count("context_budget", context_budget, 1)
    folds_at = None if compactor is None else compactor.context_budget
    if context_budget is not None and folds_at is not None and context_budget != folds_at:
        raise ConfigError(
            f"Loop: context_budget is {context_budget}, but the compactor's is {folds_at}; "
            "give it to the compactor only"
        )
    tokens = context_budget if context_budget is not None else folds_at
    if request_budget is None:
        return None if tokens is None else RequestBudget.for_window(tokens)
    default = request_budget.default_profile
    if context_budget is not None and default is not None and default.context_window != context_budget:
        raise ConfigError(
            f"Loop: context_budget is {context_budget}, but the request_budget's default window is "
            f"{default.context_window}; give one of them"
        )
    for index, backend in enumerate(backends):
        _check_reserve(index, backend, request_budget.profile_of(model_name(backend)))
    profile = request_budget.profile_of(model_name(backends[0]))
    if folds_at is not None and profile is not None and folds_at > profile.context_window:
        raise ConfigError(
            f"Loop: the compactor's context_budget is {folds_at}, above the window of the first backend, "
            f"{profile.context_window}; a conversation would outgrow it before it is compacted: lower the "
            "compactor's, or put a backend with a larger window first"
        )
    return request_budget


def _check_reserve(index: int, backend: Backend, profile: ModelProfile | None) -> None:
    """Refuse a window that its own completion would fill: every request would be turned away."""
    if profile is None:
        return
    window = Window.of(profile, completion_cap(backend))
    if window.usable < 1:
        raise ConfigError(
            f"Loop: backends[{index}] ({model_name(backend)}) can take no request: of its window of {window.size} "
            f"tokens {window.reserve} are reserved for the completion and {window.margin} are margin; "
            "lower its max_tokens, or the profile's completion_reserve or input_safety_margin"
        )


def checked_store(store: Any) -> ArtifactStore | None:
    if store is not None and (isinstance(store, type) or not callable(getattr(store, "write", None))):
        raise ConfigError(f"Loop: artifact_store must be a store with write(name, text), got {_kind(store)}")
    return cast("ArtifactStore | None", store)


def checked_count(option: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        hint = "; it counts attempts, and 1 is no retry" if option == "max_retries" else ""
        raise ConfigError(f"Loop: {option} must be a whole number of at least {least}, got {value!r}{hint}")
    return value


def checked_seconds(option: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"Loop: {option} must be a number of seconds above 0, got {value!r}")
    return float(value)


def checked_deadlines(value: Any) -> Deadlines:
    """Read `tool_deadline`: seconds for every tool, or a mapping of tool pattern to seconds or None."""
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        return (("*", checked_seconds("tool_deadline", value)),)
    patterns = checked_patterns("Loop: tool_deadline", list(value))
    return tuple(
        (name, None if value[name] is None else checked_seconds(f"tool_deadline[{name!r}]", value[name]))
        for name in patterns
    )


def checked_rules(rules: Any) -> IdempotencyRules:
    if isinstance(rules, str | Mapping) or not isinstance(rules, Iterable):
        raise ConfigError(f"Loop: idempotency_rules must be a list of rules, got {type(rules).__name__}")
    checked: list[tuple[str, Idempotency]] = []
    for index, rule in enumerate(rules):
        where = f"Loop: idempotency_rules[{index}]"
        if not isinstance(rule, Mapping):
            raise ConfigError(f"{where} must be a mapping with tool and idempotency, got {rule!r}")
        tool, idempotency = rule.get("tool"), rule.get("idempotency")
        if not isinstance(tool, str) or not tool:
            raise ConfigError(f"{where}: tool must be a tool pattern, got {tool!r}")
        if idempotency not in IDEMPOTENCIES:
            raise ConfigError(f"{where}: idempotency must be one of {', '.join(IDEMPOTENCIES)}, got {idempotency!r}")
        checked.append((tool, idempotency))
    return tuple(checked)


def checked_steer_source(source: Any) -> SteerSource | None:
    if source is None:
        return None
    if not callable(source):
        raise ConfigError(f"Loop: steer_source must be callable without arguments, got {_kind(source)}")
    try:
        inspect.signature(source).bind()
    except TypeError:
        raise ConfigError("Loop: steer_source must be callable without arguments; this one needs some") from None
    except ValueError:  # a builtin that does not tell its signature
        pass
    return cast("SteerSource", source)


def checked_on_ask(on_ask: Any) -> Asker | Literal["run"] | None:
    if on_ask is None or on_ask == "run" or callable(on_ask):
        return cast("Asker | Literal['run'] | None", on_ask)
    raise ConfigError(f"Loop: on_ask must be a callable (request) -> answer, or the string 'run', got {on_ask!r}")


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
