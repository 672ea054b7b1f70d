"""The values of a conversation: messages, calls, answers, and what a backend streams.

Frozen and valid by construction: text here survives UTF-8 (lone surrogates have become
U+FFFD), roles are known, numbers that nobody reported are `None`. What the model sent is
kept as sent; `to_wire()` is the repaired shape that any server accepts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import is_
from typing import Any, Literal, cast, get_args

import attrs

from llm_agent import canonical, codec
from llm_agent.errors import ConfigError

Role = Literal["user", "assistant", "system", "tool"]
ROLES: tuple[str, ...] = get_args(Role)

Content = str | tuple[Mapping[str, Any], ...]
"""Text, or content parts in the OpenAI wire form (`{"type": "text", ...}`, `{"type": "image_url", ...}`)."""

# OpenAI's rule for function names, the narrowest of the vendors': a turn that breaks it is
# refused with 400, and so is every later request that carries it.
LEGAL_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
NAMELESS_TOOL = "unnamed_tool"


def _arguments(value: Any) -> str | Mapping[str, Any] | None:
    match value:
        case str():
            return codec.clean_text(value)
        case Mapping():
            return cast("Mapping[str, Any]", codec.clean_value(value))
        case _:
            return None


def _copied(value: Any) -> Any:
    """A copy where it could be changed in place: values here never share containers with a reader."""
    return value if value is None or isinstance(value, str) else codec.clean_value(value)


def _text(value: Any) -> str:
    return codec.clean_text(value) if isinstance(value, str) else ""


@attrs.frozen
class ToolRequest:
    """One call the model asks for.

    Equal calls compare equal; `canonical.canonical_arguments` compares what they mean.
    """

    id: str = attrs.field(converter=_text)
    """The call's id in this conversation, `""` when the model sent none."""
    name: str = attrs.field(converter=_text)
    """The tool's name as the model wrote it, `""` when it is unreadable."""
    arguments: str | Mapping[str, Any] | None = attrs.field(default=None, converter=_arguments)
    """As the model sent them: JSON text, a mapping, or nothing."""

    @property
    def args(self) -> dict[str, Any]:
        """The arguments as a dict; `{}` for none, `""`, blank or `null`.

        A new one each time: whoever changes it changes nothing for the next reader, and
        nothing of what the servers are told.

        Raises:
            ValueError: they are not a JSON object. The engine answers such calls itself; a
                provider never sees one.
        """
        if self.arguments is None:
            return {}
        if not isinstance(self.arguments, str):
            return cast("dict[str, Any]", codec.clean_value(self.arguments))
        if not self.arguments.strip():
            return {}
        try:
            parsed = codec.loads(self.arguments)
        except ValueError as exc:
            raise ValueError(f"the arguments are not valid JSON: {exc}") from exc
        if parsed is None:
            return {}
        if not isinstance(parsed, dict):
            raise ValueError(f"the arguments must be a JSON object, got {_json_kind(parsed)}")
        return parsed

    @property
    def is_readable(self) -> bool:
        """Whether a provider can be asked: it has a name, and its arguments are an object."""
        if not self.name:
            return False
        try:
            _ = self.args
        except ValueError:
            return False
        return True

    def to_dict(self) -> dict[str, Any]:
        """The chat-completions shape with everything as sent."""
        function: dict[str, Any] = {"name": self.name}
        if self.arguments is not None:
            function["arguments"] = _copied(self.arguments)
        return {"id": self.id, "type": "function", "function": function}

    def to_wire(self) -> dict[str, Any]:
        """The shape a server accepts: a legal name, arguments that are the text of a JSON object."""
        name = self.name
        if not LEGAL_TOOL_NAME.fullmatch(name):
            name = _ILLEGAL_IN_NAME.sub("_", name)[:64]
            name = name if name.strip("_") else NAMELESS_TOOL
        return {"id": self.id, "type": "function", "function": {"name": name, "arguments": self._wire_arguments()}}

    def _wire_arguments(self) -> str:
        try:
            args = self.args
        except ValueError:
            return codec.dumps({"unreadable_arguments": self.arguments}).decode()
        # The model's own spelling is kept where it is an object: caches depend on the bytes.
        if isinstance(self.arguments, str) and args:
            return codec.strict_text(self.arguments)
        return codec.dumps(args).decode()

    @classmethod
    def from_raw(cls, raw: Any) -> ToolRequest:
        """Read a call of any shape; what is unreadable is left empty, never invented."""
        if isinstance(raw, ToolRequest):
            return raw
        if not isinstance(raw, Mapping):
            return cls("", "", None)
        function = raw.get("function")
        if not isinstance(function, Mapping):
            return cls(raw.get("id"), "", None)
        return cls(raw.get("id"), function.get("name"), function.get("arguments"))


def _json_kind(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return type(value).__name__


def _answer_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"ToolAnswer: content must be text, got {type(value).__name__}")
    return codec.clean_text(value)


@attrs.frozen
class ToolAnswer:
    """What a provider says to one call."""

    tool_call_id: str = attrs.field(converter=_text)
    content: str = attrs.field(converter=_answer_text)
    """What the model will read."""
    is_error: bool = False
    structured: Any = attrs.field(default=None, eq=False)
    """Machine data beside the text; not shown to the model, not stored."""
    outcome_unknown: bool = False
    """Whether nobody knows if the call took effect, as when its answer was lost on the way."""


def _content(value: Any) -> Content:
    match value:
        case None:
            return ""
        case str():
            return codec.clean_text(value)
        case list() | tuple():
            for part in value:
                if not isinstance(part, Mapping):
                    raise ConfigError(
                        f"Message: content parts must be mappings in the OpenAI form, got {type(part).__name__}"
                    )
            return tuple(codec.clean_value(part) for part in value)
        case _:
            raise ConfigError(f"Message: content must be text or a list of content parts, got {type(value).__name__}")


def _tool_calls(value: Any) -> tuple[ToolRequest, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ConfigError(f"Message: tool_calls must be a list, got {type(value).__name__}")
    return tuple(ToolRequest.from_raw(raw) for raw in value)


def _optional_text(value: str | None) -> str | None:
    return None if value is None else codec.clean_text(str(value))


@attrs.frozen
class Message:
    """One message of a conversation. Immutable; share it freely between threads and runs."""

    role: Role = attrs.field()
    content: Content = attrs.field(default="", converter=_content)
    tool_calls: tuple[ToolRequest, ...] = attrs.field(default=(), converter=_tool_calls)
    tool_call_id: str | None = attrs.field(default=None, converter=_optional_text)
    sticky: bool = attrs.field(default=False, converter=bool)
    """Never summarised away. Not for tool traffic: a pinned half of a pair breaks the pair."""
    sysprompt: bool = attrs.field(default=False, converter=bool)
    depth: int | None = None
    """Position from the end, for prompt injections; 0 counts."""

    @role.validator
    def _known_role(self, _: object, value: object) -> None:
        if value not in ROLES:
            raise ConfigError(f"Message: role must be one of {', '.join(ROLES)}, got {value!r}")

    @classmethod
    def system(cls, text: str) -> Message:
        return cls("system", text)

    @classmethod
    def user(cls, content: str | Sequence[Mapping[str, Any]]) -> Message:
        return cls("user", content)

    @classmethod
    def assistant(cls, text: str = "", tool_calls: Sequence[ToolRequest] = ()) -> Message:
        return cls("assistant", text, tool_calls)

    @classmethod
    def tool(cls, tool_call_id: str, content: str) -> Message:
        return cls("tool", content, tool_call_id=tool_call_id)

    @property
    def text(self) -> str:
        """All text of the content; images and other parts have none."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part["text"] for part in self.content if isinstance(part.get("text"), str))

    @property
    def is_sticky(self) -> bool:
        """Whether compaction must keep it; a depth of 0 counts."""
        return self.sticky or self.sysprompt or self.depth is not None

    @property
    def is_empty_turn(self) -> bool:
        """Whether it is an assistant turn with neither text nor calls: no server accepts one."""
        return self.role == "assistant" and not self.content and not self.tool_calls

    def to_dict(self) -> dict[str, Any]:
        """The transcript's form: everything as sent, unset flags absent."""
        payload: dict[str, Any] = {"role": self.role, "content": self._content_data()}
        if self.tool_calls:
            payload["tool-calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            payload["tool-call-id"] = self.tool_call_id
        if self.sticky:
            payload["sticky"] = True
        if self.sysprompt:
            payload["sysprompt"] = True
        if self.depth is not None:
            payload["depth"] = self.depth
        return payload

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Message:
        """Read the transcript's form, or the chat-completions form; extras are ignored."""
        return cls(
            payload.get("role") or "user",
            payload.get("content"),
            payload.get("tool-calls") or payload.get("tool_calls") or (),
            payload.get("tool-call-id", payload.get("tool_call_id")),
            sticky=bool(payload.get("sticky")),
            sysprompt=bool(payload.get("sysprompt")),
            depth=payload.get("depth"),
        )

    def to_chat(self) -> dict[str, Any]:
        """The chat-completions form with calls as sent: what an event shows."""
        return self._chat([call.to_dict() for call in self.tool_calls])

    def to_wire(self) -> dict[str, Any]:
        """The chat-completions form that a server accepts: calls repaired, flags left out."""
        return self._chat([call.to_wire() for call in self.tool_calls])

    def _chat(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        content = self._content_data()
        wire: dict[str, Any] = {"role": self.role, "content": None if calls and not content else content}
        if calls:
            wire["tool_calls"] = calls
        if self.tool_call_id is not None:
            wire["tool_call_id"] = self.tool_call_id
        return wire

    def _content_data(self) -> Any:
        return _copied(self.content)

    @cached_property
    def wire_json(self) -> bytes:
        """`to_wire()` as JSON, made once: a conversation is sent again in every round."""
        return codec.dumps(self.to_wire())

    @cached_property
    def digest(self) -> str:
        """Identity of what this message says and how it is pinned; 64 hex digits.

        Argument text is not reparsed: another spelling is another message.
        """
        identity: dict[str, Any] = {
            "role": self.role,
            "content": self._content_data(),
            "sticky": self.sticky,
            "sysprompt": self.sysprompt,
        }
        if self.tool_calls:
            identity["tool-calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            identity["tool-call-id"] = self.tool_call_id
        if self.depth is not None:
            identity["depth"] = self.depth
        return canonical.data_digest(identity)


def message_digest(message: Message) -> str:
    """Return the digest of one message, 64 hex digits."""
    return message.digest


def messages_digest(messages: Sequence[Message]) -> str:
    """Return the digest of a conversation, in its order; of none: the digest of `""`."""
    return canonical.digest_of_digests(message.digest for message in messages)


@attrs.define(eq=False)
class PrefixDigest:
    """The digest of a conversation's first messages, carried on from call to call.

    Gives what `messages_digest` gives. Messages that were in the last prefix too, the very
    same objects, are not hashed again: a long conversation costs one comparison each.
    """

    _hashed: list[Message] = attrs.field(factory=list, init=False)
    _hash: Any = attrs.field(factory=hashlib.sha256, init=False)

    def of(self, messages: Sequence[Message], count: int) -> str:
        """Return the digest of the first *count* of *messages*, which has at least that many."""
        known = len(self._hashed)
        if known > count or not all(map(is_, self._hashed, messages)):
            self._hashed, self._hash, known = [], hashlib.sha256(), 0
        for message in messages[known:count]:
            separator = "\n" if self._hashed else ""
            self._hash.update(f"{separator}{message.digest}".encode())
            self._hashed.append(message)
        return str(self._hash.hexdigest())


def unanswered_calls(messages: Sequence[Message]) -> list[ToolRequest]:
    """Return the calls that no tool message answers directly after their turn, in order."""
    missing: list[ToolRequest] = []
    open_calls: list[ToolRequest] = []
    for message in messages:
        if message.role == "tool":
            asked = next((call for call in open_calls if call.id == message.tool_call_id), None)
            if asked is not None:
                open_calls.remove(asked)
            continue
        missing += open_calls
        open_calls = list(message.tool_calls) if message.role == "assistant" else []
    return missing + open_calls


@attrs.frozen(kw_only=True)
class Usage:
    """What one request was billed, as far as the server said. `None` is unreported, never 0."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    """Part of *prompt_tokens*, never added to it."""
    cost: float | None = None
    generation_id: str | None = None
    provider_name: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Kebab-case, unreported numbers absent."""
        return {
            field.name.replace("_", "-"): value
            for field in attrs.fields(Usage)
            if (value := getattr(self, field.name)) is not None
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Usage:
        return cls(**{field.name: data.get(field.name.replace("_", "-")) for field in attrs.fields(cls)})

    @property
    def billed_total(self) -> int | None:
        """The reported total, else the sum of both halves, else `None`."""
        if self.total_tokens is not None:
            return self.total_tokens
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens


@attrs.frozen
class Delta:
    """One piece of a streamed completion. A plain `str` in its place is a text delta."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolRequest, ...] = ()
    """Complete calls, each yielded once; assembling fragments is the backend's work."""
    finish_reason: str | None = None
    usage: Usage | None = None
    """The last one wins."""
    model: str | None = None
    """Which model answered, when the server says."""


@attrs.frozen(kw_only=True)
class Reply:
    """A completion in full."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolRequest, ...] = ()
    finish_reason: str | None = None
    usage: Usage = attrs.field(factory=Usage)
    model: str | None = None
