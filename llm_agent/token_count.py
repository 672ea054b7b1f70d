"""How large a conversation is, in tokens: a rule of thumb, and a count that learns from bills.

Counters never block and never raise; the calibration of one `UsageCounter` belongs to one
conversation, so each loop has its own. What a count is compared with (windows, budgets) and
what is done about it do not live here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

import attrs

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, PrefixDigest
from llm_agent.ports import TokenCounter, ToolDeclaration

# What an image (or any other part without text) weighs. Vendors bill by size and detail: OpenAI's
# vision guide gives 765 for 1024 x 1024 in high detail, Anthropic's about 1,600 at most; the
# length of a data URL says nothing.
TOKENS_PER_PART = 1_000


# What is called of a fallback.
_ESTIMATING = ("count_messages", "count_text", "count_request")


def _more_than_zero(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{type(instance).__name__}: {attribute.name} must be a number above 0, got {value!r}")


def _whole(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not _is_count(value):
        raise ConfigError(f"{type(instance).__name__}: {attribute.name} must be an int, 0 or more, got {value!r}")


@attrs.frozen(kw_only=True)
class HeuristicCounter:
    """A rule of thumb: characters divided by a constant, and an overhead per message.

    Within about 20 % for English text; poorer for code and for scripts that pack more into a
    character. Knows nothing of any conversation: share it freely.
    """

    chars_per_token: float = attrs.field(default=4.0, validator=_more_than_zero)
    per_message_overhead: int = attrs.field(default=8, validator=_whole)
    """Tokens for the role and the framing of one message."""

    def count_messages(self, messages: Sequence[Message]) -> int:
        """Return the tokens of n >= 0 messages, each rounded up by itself; 0 for none."""
        return sum(map(self._weigh, messages))

    def count_text(self, text: str) -> int:
        """Return the tokens of *text* as one system message."""
        return self._tokens(len(text))

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        """Return the tokens of *messages*, of *context*, and of the declarations (none: nothing) as compact JSON."""
        declared = self.count_text(_compact(list(tools))) if tools else 0
        return self.count_messages(messages) + declared + self.count_messages(context)

    def record_usage(
        self,
        *,
        prompt_tokens: int | None,
        completion_tokens: int | None = None,
        message_count: int | None = None,
        prefix_digest: str | None = None,
        backend: str | None = None,
    ) -> None:
        """Nothing is learned."""

    def invalidate(self) -> None:
        """Nothing was learned."""

    def _weigh(self, message: Message) -> int:
        content = message.content
        if isinstance(content, str) and not message.tool_calls:
            return self._tokens(len(content))
        characters = len(message.text)
        if message.tool_calls:
            characters += len(_compact([call.to_dict() for call in message.tool_calls]))
        return self._tokens(characters) + _parts_without_text(message) * TOKENS_PER_PART

    def _tokens(self, characters: int) -> int:
        return self.per_message_overhead + math.ceil(characters / self.chars_per_token)


def _compact(value: Any) -> str:
    return codec.dumps(value).decode()


def _parts_without_text(message: Message) -> int:
    if isinstance(message.content, str):
        return 0
    return sum(not isinstance(part.get("text"), str) for part in message.content)


@attrs.frozen(kw_only=True)
class _Calibration:
    """What a server billed: the first *message_count* messages, with everything sent beside them."""

    message_count: int
    prompt_tokens: int
    prefix_digest: str | None
    backend: str | None


class UsageCounter:
    """A count that learns from bills: what was billed is known, only what came after is estimated.

    A calibration holds for the conversation it was made from. Once that has become shorter or
    other, the calibration is dropped for good and everything is estimated until the next bill.
    Without a digest, a calibration is trusted to fit.

    Threads: any. One counter per conversation: two that take turns only forget what the other
    one taught.
    """

    def __init__(self, fallback: TokenCounter | None = None) -> None:
        """Make a counter that knows nothing yet.

        Args:
            fallback: estimates what no bill covers; any counter, by default a `HeuristicCounter`.

        Raises:
            ConfigError: *fallback* is no counter.
        """
        self._fallback: TokenCounter = HeuristicCounter() if fallback is None else _checked(fallback)
        # Guards the three below; a leaf, the fallback is asked outside.
        self._lock = threading.Lock()
        self._calibration: _Calibration | None = None
        self._last_completion_tokens: int | None = None
        self._prefix = PrefixDigest()

    @property
    def last_completion_tokens(self) -> int | None:
        """What the latest completion was billed; for looking at, never part of a count."""
        return self._last_completion_tokens

    def calibration(self) -> dict[str, Any]:
        """Return `message-count`, `prompt-tokens` and, where known, `prefix-digest` and `backend`; or `{}`."""
        learned = self._calibration
        if learned is None:
            return {}
        return {name.replace("_", "-"): value for name, value in attrs.asdict(learned).items() if value is not None}

    def count_messages(self, messages: Sequence[Message]) -> int:
        """Return the billed size of the part that was billed, and an estimate of the rest."""
        learned = self._still_valid(messages)
        if learned is None:
            return self._fallback.count_messages(messages)
        return self._with_tail(learned, messages)

    def count_text(self, text: str) -> int:
        """Return an estimate of *text* as one system message; the calibration is left alone."""
        return self._fallback.count_text(text)

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        """Return the size of a request; a bill already covers the declarations and the context sent with it."""
        learned = self._still_valid(messages)
        if learned is None:
            return self._fallback.count_request(messages, tools, context)
        return self._with_tail(learned, messages)

    def _with_tail(self, learned: _Calibration, messages: Sequence[Message]) -> int:
        return learned.prompt_tokens + self._fallback.count_messages(messages[learned.message_count :])

    def _still_valid(self, messages: Sequence[Message]) -> _Calibration | None:
        with self._lock:
            learned = self._calibration
            if learned is not None and not self._covers(learned, messages):
                # For good: growing back to the old length must not bring the old bill back.
                learned = self._calibration = None
            return learned

    def _covers(self, learned: _Calibration, messages: Sequence[Message]) -> bool:
        if len(messages) < learned.message_count:
            return False
        if learned.prefix_digest is None:
            return True
        return self._prefix.of(messages, learned.message_count) == learned.prefix_digest

    def record_usage(
        self,
        *,
        prompt_tokens: int | None,
        completion_tokens: int | None = None,
        message_count: int | None = None,
        prefix_digest: str | None = None,
        backend: str | None = None,
    ) -> None:
        """Learn that a request cost *prompt_tokens*.

        Args:
            prompt_tokens: what was billed; 0 is a number like any other.
            completion_tokens: kept for `last_completion_tokens`.
            message_count: how many messages were sent, the reply not included.
            prefix_digest: `messages_digest` of those; without it the calibration is trusted.
            backend: who billed. Another one than before drops what was learned, even when
                the report has no numbers: other tokens, other sizes.

        A report without both numbers teaches nothing. Raises: Nothing.
        """
        with self._lock:
            if _is_count(completion_tokens):
                self._last_completion_tokens = completion_tokens
            self._drop_if_of_another(backend)
            if _is_count(prompt_tokens) and _is_count(message_count):
                self._calibration = _Calibration(
                    message_count=message_count,
                    prompt_tokens=prompt_tokens,
                    prefix_digest=prefix_digest,
                    backend=backend,
                )

    def _drop_if_of_another(self, backend: str | None) -> None:
        learned = self._calibration
        if learned is not None and None not in (backend, learned.backend) and backend != learned.backend:
            self._calibration = None

    def invalidate(self) -> None:
        """Forget what was learned: the model, the declarations or the context are other ones."""
        with self._lock:
            self._calibration = None
            self._prefix = PrefixDigest()


def _checked(counter: Any) -> TokenCounter:
    for method in _ESTIMATING:
        if isinstance(counter, type) or not callable(getattr(counter, method, None)):
            raise ConfigError(f"UsageCounter: fallback must be a counter with {method}(), got {counter!r}")
    return cast("TokenCounter", counter)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
