"""How large a conversation is, learned from what servers billed for it.

The law: a calibration never outlives its conversation. One that has become shorter or other, or
is read by another model, drops what was learned for good. What a count is compared with (windows,
budgets) and what is done about it do not live here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import attrs

from llm_agent.messages import Message, PrefixDigest
from llm_agent.ports import TokenCounter, ToolDeclaration
from llm_agent.token_count.checks import fallback_of, is_count
from llm_agent.token_count.heuristic import HeuristicCounter


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
        self._fallback: TokenCounter = HeuristicCounter() if fallback is None else fallback_of("UsageCounter", fallback)
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
            if is_count(completion_tokens):
                self._last_completion_tokens = completion_tokens
            self._drop_if_of_another(backend)
            if is_count(prompt_tokens) and is_count(message_count):
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
