"""How large a conversation is by a rule of thumb.

The law: nothing is looked at but the text that is sent, so equal messages weigh the same in every
process. What a bill or a tokenizer knows better lives in the rooms beside this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.messages import Message
from llm_agent.ports import TokenCounter, ToolDeclaration
from llm_agent.token_count.checks import whole

# What an image (or any other part without text) weighs. Vendors bill by size and detail: OpenAI's
# vision guide gives 765 for 1024 x 1024 in high detail, Anthropic's about 1,600 at most; the
# length of a data URL says nothing.
TOKENS_PER_PART = 1_000


def _more_than_zero(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{type(instance).__name__}: {attribute.name} must be a number above 0, got {value!r}")


@attrs.frozen(kw_only=True)
class HeuristicCounter(TokenCounter):
    """A rule of thumb: bytes of UTF-8 divided by a constant, and an overhead per message.

    Bytes and not characters: they are the same for English and for code, and a Chinese or a
    Japanese character has three, which makes it three quarters of a token. Characters alone
    would make it a quarter, and such a conversation would outgrow its window unseen. Within
    about 15 % for English, German, Python and JSON, and within about 35 % for Chinese and
    Japanese, where tokenizers themselves differ by a factor of two (`benchmarks/counting.py`).

    Knows nothing of any conversation: share it freely.
    """

    chars_per_token: float = attrs.field(default=4.0, validator=_more_than_zero)
    """Bytes of UTF-8 in one token: characters, as long as they are ASCII."""
    per_message_overhead: int = attrs.field(default=8, validator=whole)
    """Tokens for the role and the framing of one message."""
    tokens_per_part: int = attrs.field(default=TOKENS_PER_PART, validator=whole)
    """Tokens for an image, or any other content part without text."""

    def count_messages(self, messages: Sequence[Message]) -> int:
        """Return the tokens of n >= 0 messages, each rounded up by itself; 0 for none."""
        return sum(map(self._weigh, messages))

    def count_text(self, text: str) -> int:
        """Return the tokens of *text* as one system message."""
        return self._tokens(_bytes(text))

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        """Return the tokens of *messages*, of *context*, and of the declarations (none: nothing) as compact JSON."""
        declared = self._tokens(len(codec.dumps(list(tools)))) if tools else 0
        return self.count_messages(messages) + declared + self.count_messages(context)

    def _weigh(self, message: Message) -> int:
        content = message.content
        size = _bytes(content if isinstance(content, str) else message.text)
        if message.tool_calls:
            size += len(codec.dumps([call.to_dict() for call in message.tool_calls]))
        return self._tokens(size) + parts_without_text(message) * self.tokens_per_part

    def _tokens(self, size: int) -> int:
        return self.per_message_overhead + math.ceil(size / self.chars_per_token)


def _bytes(text: str) -> int:
    # Most text is ASCII, which Python knows of each string without looking.
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def parts_without_text(message: Message) -> int:
    """Return how many content parts of *message* are no text: images, sound, files."""
    if isinstance(message.content, str):
        return 0
    return sum(not isinstance(part.get("text"), str) for part in message.content)
