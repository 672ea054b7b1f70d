"""What fits a model's window, and what a run may cost: arithmetic on numbers that others report.

A request of `counted` tokens fits a window when `counted + margin + reserve <= size`: the
margin is for what the count does not see, the reserve is what the completion may take. The
law: sizes are in the tokens of one model and are never compared with another's. Nothing is
measured, sent or made smaller here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from llm_agent import codec
from llm_agent.bill import is_amount
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, Usage
from llm_agent.outcome import Spent, as_decimal
from llm_agent.ports import TokenCounter, ToolDeclaration

if TYPE_CHECKING:
    from llm_agent.bill import Amount

DEFAULT_RESERVE: Final = 1_024
"""Tokens left for a completion, where neither the profile nor the backend says."""

DEFAULT_MARGIN: Final = 512

DEFAULT_OBSERVATION_SIZE: Final = 16_384
"""Characters of a tool result, about 4,000 tokens."""

# How wrong a count is taken to be, once a server has shown that it is wrong.
_TOLERANCE: Final = 1.25


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _whole(least: int) -> Any:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not _is_whole(value, least):
            raise ConfigError(
                f"{type(instance).__name__}: {attribute.name} must be an int of at least {least}, got {value!r}"
            )

    return check


def _amount(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not is_amount(value):
        raise ConfigError(f"RequestBudget: {attribute.name} must be a number of 0 or more, got {value!r}")


def _counter(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    for method in ("count_messages", "count_text", "count_request", "record_usage", "invalidate"):
        if isinstance(value, type) or not callable(getattr(value, method, None)):
            raise ConfigError(f"ModelProfile: counter must be a counter with {method}(), got {value!r}")


def _profile(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, ModelProfile):
        raise ConfigError(f"RequestBudget: {attribute.name} must be a ModelProfile, got {value!r}")


def _profiles(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"RequestBudget: profiles must be a mapping of model name to ModelProfile, got {value!r}")
    for model, profile in value.items():
        if not isinstance(model, str):
            raise ConfigError(f"RequestBudget: a model name in profiles must be a str, got {model!r}")
        if not isinstance(profile, ModelProfile):
            raise ConfigError(f"RequestBudget: profiles[{model!r}] must be a ModelProfile, got {profile!r}")


# -- what a user declares ----------------------------------------------------------------------


@attrs.frozen
class ModelProfile:
    """A model's window, in its own tokens."""

    context_window: int = attrs.field(validator=_whole(1))
    """Prompt and completion together."""
    completion_reserve: int | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(_whole(0))
    )
    """Left for the completion; `None`: the backend's `max_tokens`, else 1024."""
    input_safety_margin: int = attrs.field(default=DEFAULT_MARGIN, kw_only=True, validator=_whole(0))
    """Left for what the count does not see."""
    counter: TokenCounter | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(_counter)
    )
    """Counts in this model's tokens; `None`: the loop's counter."""

    def __attrs_post_init__(self) -> None:
        if self.completion_reserve is not None and self.completion_reserve >= self.context_window:
            raise ConfigError(
                f"ModelProfile: completion_reserve must be below context_window, got "
                f"completion_reserve={self.completion_reserve}, context_window={self.context_window}"
            )


@attrs.frozen(kw_only=True)
class RequestBudget:
    """The windows of the models a loop may ask, and what a run may spend.

    The caps are circuit breakers: looked at between steps, reached when spent is at least the
    cap; what is in flight may overshoot. What nobody reported trips none.
    """

    profiles: Mapping[str, ModelProfile] = attrs.field(factory=dict, validator=_profiles)
    """By model, as the backend calls it."""
    default_profile: ModelProfile | None = attrs.field(default=None, validator=attrs.validators.optional(_profile))
    """For every other model; without it, their requests are sent unmeasured."""
    max_observation_size: int = attrs.field(default=DEFAULT_OBSERVATION_SIZE, validator=_whole(1))
    """Characters of one tool result that enter the conversation; of more, an excerpt. Left at its
    default, a loop takes less where the smallest window is small: a tenth of it."""
    max_cost: Amount | None = attrs.field(default=None, validator=attrs.validators.optional(_amount))
    """In the currency of the providers' bills, or of the price table."""
    max_total_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(0)))
    max_wall_clock: float | None = attrs.field(default=None, validator=attrs.validators.optional(_amount))
    """Seconds of work; waiting for answers to asks is none."""
    max_rounds: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(0)))
    max_calls: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(0)))
    is_synthesised: bool = attrs.field(default=False, repr=False)
    """Made by `for_window`: the window is a wish of the caller's, and no vendor's limit."""

    @classmethod
    def for_window(cls, tokens: int) -> RequestBudget:
        """Return the budget that a bare number of tokens means: that window, no margin, no reserve, no caps.

        Raises:
            ConfigError: *tokens* is not an int of at least 1.
        """
        if not _is_whole(tokens, 1):
            raise ConfigError(f"RequestBudget.for_window: tokens must be an int of at least 1, got {tokens!r}")
        profile = ModelProfile(tokens, completion_reserve=0, input_safety_margin=0)
        return cls(default_profile=profile, is_synthesised=True)

    def profile_of(self, model: str) -> ModelProfile | None:
        """Return the profile of *model*; `None`: nothing is known of it, which is not a small window."""
        return self.profiles.get(model, self.default_profile)

    def cap_reached(self, spent: Spent, *, rounds: int, calls: int) -> CapReached | None:
        """Return the first cap that is reached; `None` while there is something left of each.

        Args:
            spent: the bill so far.
            rounds: rounds that are over.
            calls: tool calls that were dispatched.
        """
        # Costs as they are written: a float of 0.3 is below a Decimal of 0.3.
        cost = None if spent.cost is None else as_decimal(spent.cost)
        max_cost = None if self.max_cost is None else as_decimal(self.max_cost)
        counted: tuple[tuple[CapName, Amount | None, Amount | None], ...] = (
            ("max_cost", cost, max_cost),
            ("max_total_tokens", spent.total_tokens, self.max_total_tokens),
            ("max_wall_clock", spent.wall_clock, self.max_wall_clock),
            ("max_rounds", rounds, self.max_rounds),
            ("max_calls", calls, self.max_calls),
        )
        for cap, used, most in counted:
            if used is not None and most is not None and used >= most:
                return CapReached(cap, used, most)
        return None


CapName = Literal["max_cost", "max_total_tokens", "max_wall_clock", "max_rounds", "max_calls"]

_UNITS: Final[dict[CapName, str]] = {"max_total_tokens": " tokens", "max_wall_clock": " seconds of work"}


@attrs.frozen
class CapReached:
    """A run has spent what it may."""

    cap: CapName
    spent: Amount
    max: Amount

    def __str__(self) -> str:
        spent = f"{self.spent:.3f}" if self.cap == "max_wall_clock" else f"{self.spent}"
        return f"the budget is spent: {self.cap} is {self.max}, {spent}{_UNITS.get(self.cap, '')} are spent"


# -- what fits -----------------------------------------------------------------------------------


@attrs.frozen
class Window:
    """What one backend can take, in its model's tokens."""

    size: int
    reserve: int
    """Left for the completion."""
    margin: int
    """Left for what the count does not see."""

    @classmethod
    def of(cls, profile: ModelProfile, completion_cap: int | None) -> Window:
        """Return the window of a backend with that profile.

        Args:
            completion_cap: the backend's `max_tokens`, where it has one.
        """
        reserve = profile.completion_reserve
        if reserve is None:
            reserve = DEFAULT_RESERVE if completion_cap is None else completion_cap
        return cls(profile.context_window, reserve, profile.input_safety_margin)

    @property
    def usable(self) -> int:
        """The largest request that fits."""
        return max(0, self.size - self.reserve - self.margin)

    def fits(self, tokens: int) -> bool:
        return tokens + self.margin + self.reserve <= self.size


@attrs.frozen(kw_only=True)
class RequestSize:
    """What a request weighs, and of what that is made. The parts are shown to people, *total* decides."""

    total: int
    messages: int
    tools: int
    context: int

    @property
    def framing(self) -> int:
        """What the counter adds for a whole request, beyond its parts."""
        return max(0, self.total - self.messages - self.tools - self.context)

    def __str__(self) -> str:
        parts = f"messages {self.messages} + tools {self.tools} + context {self.context} + framing {self.framing}"
        return f"{parts} = {self.total} tokens"


def weigh(
    counter: TokenCounter,
    messages: Sequence[Message],
    tools: Sequence[ToolDeclaration],
    context: Sequence[Message] = (),
) -> RequestSize:
    """Return the size of a request, taken apart for a message to people.

    The parts add up to the total, and none is negative; that is less simple than it looks. A
    counter that has learned from a bill counts the declarations and the context into the
    conversation, so what it says of the conversation alone may be the whole request. Therefore
    the total comes first; declarations and context are estimated as texts, which disturbs no
    calibration, and are cut to the total; the conversation is what it is counted as, at most
    the rest; and the rest of the rest is framing. For a calibrated counter so: all that is not
    declarations or context is conversation, and framing is 0.

    Asks the counter twice for the conversation: for a request that does not fit, not for each.
    """
    total = counter.count_request(messages, tools, context)
    declared = min(total, _tools_alone(counter, tools))
    beside = min(total - declared, _texts_alone(counter, context))
    conversation = min(total - declared - beside, counter.count_messages(messages))
    return RequestSize(total=total, messages=conversation, tools=declared, context=beside)


def _tools_alone(counter: TokenCounter, tools: Sequence[ToolDeclaration]) -> int:
    return counter.count_text(codec.dumps(list(tools)).decode()) if tools else 0


def _texts_alone(counter: TokenCounter, messages: Sequence[Message]) -> int:
    return sum(counter.count_text(message.text) for message in messages)


@attrs.frozen
class Misfit:
    """A request that does not fit a window; its text is the whole calculation."""

    size: RequestSize
    window: Window

    @property
    def needed(self) -> int:
        """Tokens of the request, with the margin."""
        return self.size.total + self.window.margin

    @property
    def calculation(self) -> str:
        """Every term by its name."""
        return f"messages {self.size.messages} + {_rest_of_sum(self.size, self.window)}"

    def __str__(self) -> str:
        return f"the request does not fit: {self.calculation}"


def _rest_of_sum(size: RequestSize, window: Window) -> str:
    terms = (
        ("tools", size.tools),
        ("context", size.context),
        ("framing", size.framing),
        ("margin", window.margin),
        ("reserve", window.reserve),
    )
    total = size.total + window.margin + window.reserve
    named = " + ".join(f"{name} {tokens}" for name, tokens in terms)
    return f"{named} = {total} tokens, the window is {window.size}"


def fixed_part_misfit(
    counter: TokenCounter,
    fixed: Sequence[Message],
    tools: Sequence[ToolDeclaration],
    context: Sequence[Message],
    window: Window,
) -> str | None:
    """Return the calculation of a request that can never fit, however short the conversation becomes.

    Args:
        fixed: the messages no compaction replaces: the system prompt, the pinned ones.

    Returns:
        `None` when the fixed part fits by itself.

    Counted as texts, since counting fewer messages than were billed would make a counter
    forget the bill. Parts without text are left out: what is said to be too large is at least that.
    """
    messages, declared = _texts_alone(counter, fixed), _tools_alone(counter, tools)
    beside = _texts_alone(counter, context)
    total = messages + declared + beside
    if window.fits(total):
        return None
    size = RequestSize(total=total, messages=messages, tools=declared, context=beside)
    return (
        "the request can never fit, its fixed part alone is too large: "
        f"system prompt and pinned messages {messages} + {_rest_of_sum(size, window)}; "
        "offer fewer or shorter tools, shorten the system prompt or the context, or use a larger window"
    )


# -- what a server has shown to be otherwise -------------------------------------------------------


def is_window_cut(window: Window, counted: int, usage: Usage) -> bool:
    """Return whether a completion that was cut ended at the window, not at its own cap.

    Args:
        counted: tokens of the request, as counted before it was sent.
        usage: what the server billed; where it says nothing of the prompt, the count decides,
            and may be a quarter too low.
    """
    if usage.prompt_tokens is not None:
        billed = usage.prompt_tokens
        return billed + (usage.completion_tokens or 0) >= window.size or billed + window.reserve > window.size
    needed = counted + window.margin
    return needed + window.reserve + math.ceil((_TOLERANCE - 1) * needed) > window.size


def exceeds_window(window: Window, usage: Usage) -> bool:
    """Return whether more prompt was billed than the window holds: the server has cut the rest, silently.

    Only for a window that is the vendor's; one that the caller chose may well be exceeded.
    """
    return usage.prompt_tokens is not None and usage.prompt_tokens > window.size


def truncation_target(
    window: Window, counted: int, billed_prompt: int | None = None, *, is_refused: bool = False
) -> int:
    """Return how small a request must become that fitted by the count, and did not by the server.

    The count was too low, so what is left of the window is divided by how much too low: as the
    bill tells, at least by a quarter. The result is always well below *counted*; the window's
    `usable` would not be, and making room for it would change nothing.

    Args:
        counted: tokens of the request, as counted before it was sent.
        billed_prompt: the prompt tokens the server billed for it.
        is_refused: the server refused it as too large: then it is at least as large as the window.
    """
    at_least = max(billed_prompt or 0, window.size if is_refused else 0)
    inflation = max(_TOLERANCE, at_least / max(1, counted))
    target = math.floor((window.size - window.reserve) / inflation) - window.margin
    return max(0, min(target, math.floor(counted / _TOLERANCE)))
