"""How large a conversation is, counted by the model's own tokenizer and chat template.

The law: a count is exact or it is the fallback's; nothing here raises while it counts. How a
tokenizer file and a template are read lives in `tokenizer_file` and `chat_template`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol

import attrs

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.messages import Message
from llm_agent.ports import TokenCounter, ToolDeclaration
from llm_agent.token_count.checks import fallback_of, has, is_count
from llm_agent.token_count.heuristic import TOKENS_PER_PART, HeuristicCounter, parts_without_text

Render = Callable[[list[dict[str, Any]], list[ToolDeclaration]], str]
"""A chat template: n >= 1 messages in the wire form and the declarations (maybe none) to the model's prompt."""


class ConversationCounter(Protocol):
    """What an `ExactCounter` asks.

    Optional: `get_request_count(messages, tools) -> int`, which counts the declarations as the
    model reads them. Contract: whatever raises, or answers anything else than an int of 0 or
    more, has refused; then the fallback counts.
    """

    def get_conversation_count(self, messages: Sequence[Message]) -> int:
        """Return the tokens of n >= 1 messages."""
        ...


class ExactCounter(TokenCounter):
    """A count by somebody who knows: a tokenizer with a chat template, or an object of yours.

    What it cannot count (a template that refuses a conversation, a tokenizer that raises), the
    fallback counts, for that call only. Templates are written for whole conversations, so parts
    of one are refused more often: a tail that begins with a tool's result, say.

    Knows nothing of any conversation: share it freely, as far as what it asks may be shared.
    """

    def __init__(self, counter: ConversationCounter, *, fallback: TokenCounter | None = None) -> None:
        """Make a counter that asks *counter*.

        Args:
            counter: an object with `get_conversation_count(messages)`; with
                `get_request_count(messages, tools)`, that counts requests.
            fallback: counts what *counter* refuses; by default a `HeuristicCounter`.

        Raises:
            ConfigError: *counter* has no such method, or is a class; *fallback* is no counter.
        """
        if not has(counter, "get_conversation_count"):
            raise ConfigError(f"ExactCounter: counter must be an object with get_conversation_count(), got {counter!r}")
        self._count_conversation = counter.get_conversation_count
        self._count_request = getattr(counter, "get_request_count", None)
        self._fallback = HeuristicCounter() if fallback is None else fallback_of("ExactCounter", fallback)

    @classmethod
    def from_tokenizer(
        cls, encode: Any, chat_template: Render, *, tokens_per_part: int = TOKENS_PER_PART
    ) -> ExactCounter:
        """Make a counter over any tokenizer and any chat template.

        Every count renders and encodes the whole conversation.

        Args:
            encode: text to a sequence of tokens, special ones recognised and none added; or an
                object with such an `encode`.
            chat_template: messages and declarations to the prompt, the beginning of the answer included.
            tokens_per_part: what an image, or any other part without text, weighs.

        Raises:
            ConfigError: one of them cannot be called; *tokens_per_part* is no count.
        """
        method = encode.encode if has(encode, "encode") else encode
        for option, value in (("encode", method), ("chat_template", chat_template)):
            if isinstance(value, type) or not callable(value):
                raise ConfigError(f"ExactCounter: {option} must be callable, got {value!r}")

        def count_tokens(text: str) -> int:
            tokens: Sized = method(text)
            return len(tokens)

        return cls._over(count_tokens, chat_template, tokens_per_part)

    @classmethod
    def from_tokenizer_json(
        cls, path: str | Path, *, chat_template: str | None = None, tokens_per_part: int = TOKENS_PER_PART
    ) -> ExactCounter:
        """Make a counter from the files that come with a model on Hugging Face.

        A count renders the whole conversation, and encodes what it has not met before since the
        last special token: some tens of milliseconds at 2,000 messages, and less when few are new.

        Args:
            path: the `tokenizer.json`. `tokenizer_config.json` and `chat_template.jinja` are
                looked for beside it.
            chat_template: the text of the template; `None` takes the one beside *path*. It runs in a
                sandbox, which keeps it from files and objects, not from taking its time or your memory.
            tokens_per_part: what an image, or any other part without text, weighs.

        Raises:
            ConfigError: a file is missing or is something else, there is no template or it does
                not compile, or the packages of the extra `tokenizers` are not installed.
        """
        from llm_agent.token_count.chat_template import load_template
        from llm_agent.token_count.tokenizer_file import load_tokenizer

        count_tokens = load_tokenizer(Path(path))
        return cls._over(count_tokens, load_template(Path(path), chat_template), tokens_per_part)

    @classmethod
    def _over(cls, count_tokens: Callable[[str], int], render: Render, tokens_per_part: int) -> ExactCounter:
        fallback = HeuristicCounter(tokens_per_part=tokens_per_part)
        counter = _ChatTokenizer(count_tokens=count_tokens, render=render, tokens_per_part=tokens_per_part)
        return cls(counter, fallback=fallback)

    def count_messages(self, messages: Sequence[Message]) -> int:
        """Return the tokens of n >= 0 messages, rendered as one conversation; 0 for none."""
        if not messages:
            return 0
        counted = _asked(self._count_conversation, messages)
        return self._fallback.count_messages(messages) if counted is None else counted

    def count_text(self, text: str) -> int:
        """Return the tokens of *text* as one system message."""
        counted = _asked(self._count_conversation, [Message.system(text)])
        return self._fallback.count_text(text) if counted is None else counted

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        """Return the tokens of a request; *context* is counted as if it came last."""
        if self._count_request is None:
            declared = self.count_text(codec.dumps(list(tools)).decode()) if tools else 0
            return self.count_messages(messages) + declared + self.count_messages(context)
        counted = _asked(self._count_request, [*messages, *context], tools)
        if counted is None and context:
            # Many templates take a system message in the first place only.
            alone = _asked(self._count_request, messages, tools)
            counted = None if alone is None else alone + self.count_messages(context)
        return self._fallback.count_request(messages, tools, context) if counted is None else counted


def _asked(count: Callable[..., Any], *about: Any) -> int | None:
    try:
        counted = count(*about)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a shield: a template says no by raising, and a panic of `tokenizers` is no Exception
        return None
    return counted if is_count(counted) else None


@attrs.define(eq=False, kw_only=True)
class _ChatTokenizer:
    """A tokenizer and a chat template; raises what they raise."""

    count_tokens: Callable[[str], int]
    render: Render
    tokens_per_part: int
    # Templates are written for one of two spellings; which one, the first refusal tells.
    _arguments_as_text: bool = False

    def get_conversation_count(self, messages: Sequence[Message]) -> int:
        return self.get_request_count(messages, ())

    def get_request_count(self, messages: Sequence[Message], tools: Sequence[ToolDeclaration]) -> int:
        parts = sum(map(parts_without_text, messages))
        return self.count_tokens(self._rendered(messages, list(tools))) + parts * self.tokens_per_part

    def _rendered(self, messages: Sequence[Message], tools: list[ToolDeclaration]) -> str:
        wire = [_spelled(message) for message in messages]
        if self._arguments_as_text or not any("tool_calls" in message for message in wire):
            return self.render(wire, tools)
        try:
            return self.render([_with_parsed_arguments(message) for message in wire], tools)
        except Exception:  # a shield: joining a mapping to text is how a template tells that it wants text
            rendered = self.render(wire, tools)
            self._arguments_as_text = True
            return rendered


def _spelled(message: Message) -> dict[str, Any]:
    """The wire form with the content as text, which every template takes."""
    wire = message.to_wire()
    return wire if isinstance(message.content, str) else wire | {"content": message.text}


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        call | {"function": call["function"] | {"arguments": codec.loads(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
