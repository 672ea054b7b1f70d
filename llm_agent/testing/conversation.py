"""What a vendor refuses to read: the rules for a request's conversation, as one check.

The rules are those of OpenAI's chat completions, with the narrowest of the other vendors'
where it is narrower (arguments must be a JSON object). Pure functions on wire dicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llm_agent import codec
from llm_agent.messages import Message

ROLES: Final = ("system", "developer", "user", "assistant", "tool")

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Servers refuse keys they do not know, so a flag of ours that leaks is a refusal. The last
# three are what servers with visible reasoning accept back.
_KEYS: Final = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio"} | {
    "reasoning",
    "reasoning_content",
    "reasoning_details",
}
# Which parts a role may hold, and the key that each part must carry.
_PART_KEYS: Final[dict[str, tuple[str, type]]] = {
    "text": ("text", str),
    "refusal": ("refusal", str),
    "image_url": ("image_url", Mapping),
    "input_audio": ("input_audio", Mapping),
    "file": ("file", Mapping),
}
_PARTS_OF: Final[dict[str, tuple[str, ...]]] = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}


@attrs.frozen
class Fault:
    """The first thing a vendor would refuse."""

    param: str
    """Where it is, as vendors write it: `messages.[3].tool_calls.[0].id`."""
    problem: str

    def __str__(self) -> str:
        return f"{self.param}: {self.problem}"


def check_conversation(messages: Iterable[Mapping[str, Any] | Message]) -> None:
    """Assert that vendors would accept a conversation.

    Args:
        messages: wire dicts in order, or `Message` values (their wire form is judged).

    Raises:
        AssertionError: names the place of the first fault, what was expected, what came.
    """
    fault = conversation_fault([m.to_wire() if isinstance(m, Message) else m for m in messages])
    if fault is not None:
        raise AssertionError(str(fault))


def conversation_fault(messages: Any) -> Fault | None:
    """Return the first fault of a request's `messages`, or `None`."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        return Fault("messages", f"expected an array, got {_kind(messages)}")
    if not messages:
        return Fault("messages", "expected at least one message, got an empty array")
    return next(_faults(messages), None)


def request_fault(body: Any) -> Fault | None:
    """Return the first fault of a whole request body, or `None`."""
    if not isinstance(body, Mapping):
        return Fault("body", f"expected a JSON object, got {_kind(body)}")
    if not isinstance(body.get("model"), str) or not body["model"]:
        return Fault("model", "you must provide a model")
    if body.get("stream") not in (None, True, False):
        return Fault("stream", f"expected a boolean, got {_kind(body['stream'])}")
    if body.get("stream_options") is not None and body.get("stream") is not True:
        return Fault("stream_options", "only allowed when stream is true")
    if body.get("tool_choice") is not None and not body.get("tools"):
        return Fault("tool_choice", "only allowed when tools are specified")
    return next(_tool_faults(body.get("tools")), None) or conversation_fault(body.get("messages"))


def _tool_faults(tools: Any) -> Iterator[Fault]:
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        yield Fault("tools", f"expected a non-empty array, got {_kind(tools)}")
        return
    names: set[str] = set()
    for index, declared in enumerate(tools):
        where = f"tools.[{index}]"
        function = declared.get("function") if isinstance(declared, Mapping) else None
        if not isinstance(function, Mapping) or declared.get("type") != "function":
            yield Fault(where, "expected a declaration of type function")
            continue
        yield from _name_faults(f"{where}.function.name", function.get("name"))
        if function.get("name") in names:
            yield Fault(f"{where}.function.name", f"tool names must be unique, got {function['name']!r} twice")
        names.add(str(function.get("name")))
        if not isinstance(function.get("parameters", {}), Mapping):
            yield Fault(f"{where}.function.parameters", f"expected an object, got {_kind(function['parameters'])}")


@attrs.define
class _Pairing:
    """Which calls of the last assistant turn still wait for their answer."""

    open_ids: list[str] = attrs.field(factory=list)
    known_ids: set[str] = attrs.field(factory=set)

    def faults(self, where: str, message: Mapping[str, Any]) -> Iterator[Fault]:
        if message["role"] == "tool":
            yield from self._answer(f"{where}.tool_call_id", message.get("tool_call_id"))
            return
        yield from self.left_open(where)
        for index, call in enumerate(message.get("tool_calls") or ()):
            if call["id"] in self.known_ids:
                yield Fault(
                    f"{where}.tool_calls.[{index}].id",
                    f"ids must be unique within the conversation, got {call['id']!r} twice",
                )
            self.known_ids.add(call["id"])
            self.open_ids.append(call["id"])

    def _answer(self, where: str, call_id: Any) -> Iterator[Fault]:
        if call_id in self.open_ids:
            self.open_ids.remove(call_id)
        elif call_id in self.known_ids:
            yield Fault(where, f"the call {call_id!r} is answered a second time, or not directly after its turn")
        else:
            yield Fault(where, f"a tool message must answer a call of the turn before it, got {call_id!r}")

    def left_open(self, where: str) -> Iterator[Fault]:
        if self.open_ids:
            yield Fault(
                where,
                "tool calls must be followed by tool messages that answer each of them; "
                f"without an answer: {', '.join(self.open_ids)}",
            )


def _faults(messages: Sequence[Any]) -> Iterator[Fault]:
    pairing = _Pairing()
    for index, message in enumerate(messages):
        where = f"messages.[{index}]"
        yield from _message_faults(where, message)
        yield from pairing.faults(where, message)
    yield from pairing.left_open(f"messages.[{len(messages) - 1}]")


def _message_faults(where: str, message: Any) -> Iterator[Fault]:
    if not isinstance(message, Mapping):
        yield Fault(where, f"expected an object, got {_kind(message)}")
        return
    role = message.get("role")
    if role not in ROLES:
        yield Fault(f"{where}.role", f"expected one of {', '.join(ROLES)}, got {role!r}")
        return
    unknown = sorted(str(key) for key in message.keys() - _KEYS)
    if unknown:
        yield Fault(where, f"additional properties are not allowed, got {', '.join(map(repr, unknown))}")
    if role == "assistant":
        yield from _turn_faults(where, message)
    elif "tool_calls" in message:
        yield Fault(f"{where}.tool_calls", f"only an assistant message may hold calls, got role {role!r}")
    if role != "tool" and "tool_call_id" in message:
        yield Fault(f"{where}.tool_call_id", f"only a tool message may hold one, got role {role!r}")
    if role != "assistant" or message.get("content") is not None:
        yield from _content_faults(f"{where}.content", role, message.get("content"))


def _turn_faults(where: str, message: Mapping[str, Any]) -> Iterator[Fault]:
    if "tool_calls" not in message:
        if not message.get("content") and not message.get("refusal"):
            yield Fault(where, "an assistant message must hold content or tool calls, got neither")
        return
    calls = message["tool_calls"]
    if not isinstance(calls, list) or not calls:
        yield Fault(f"{where}.tool_calls", f"expected a non-empty array, got {_kind(calls)}")
        return
    for index, call in enumerate(calls):
        yield from _call_faults(f"{where}.tool_calls.[{index}]", call)


def _call_faults(where: str, call: Any) -> Iterator[Fault]:
    if not isinstance(call, Mapping):
        yield Fault(where, f"expected an object, got {_kind(call)}")
        return
    if not isinstance(call.get("id"), str) or not call["id"]:
        yield Fault(f"{where}.id", f"expected a non-empty string, got {call.get('id')!r}")
    if call.get("type") != "function":
        yield Fault(f"{where}.type", f"expected 'function', got {call.get('type')!r}")
    function = call.get("function")
    if not isinstance(function, Mapping):
        yield Fault(f"{where}.function", f"expected an object, got {_kind(function)}")
        return
    yield from _name_faults(f"{where}.function.name", function.get("name"))
    yield from _argument_faults(f"{where}.function.arguments", function.get("arguments"))


def _name_faults(where: str, name: Any) -> Iterator[Fault]:
    if not isinstance(name, str) or not _LEGAL_NAME.fullmatch(name):
        yield Fault(where, f"expected a string that matches '^[a-zA-Z0-9_-]{{1,64}}$', got {name!r}")


def _argument_faults(where: str, arguments: Any) -> Iterator[Fault]:
    if not isinstance(arguments, str):
        yield Fault(where, f"expected a string, got {_kind(arguments)}")
        return
    try:
        parsed = codec.loads(arguments)
    except ValueError:
        yield Fault(where, f"expected the text of a JSON object, got {arguments[:80]!r}")
        return
    if not isinstance(parsed, dict):
        yield Fault(where, f"expected the text of a JSON object, got {_kind(parsed)}")


def _content_faults(where: str, role: str, content: Any) -> Iterator[Fault]:
    if isinstance(content, str):
        if codec.clean_text(content) != content:
            yield Fault(where, "lone surrogates are not Unicode text")
        return
    if not isinstance(content, list) or not content:
        yield Fault(where, f"expected a string or a non-empty array of parts, got {_kind(content)}")
        return
    for index, part in enumerate(content):
        yield from _part_faults(f"{where}.[{index}]", role, part)


def _part_faults(where: str, role: str, part: Any) -> Iterator[Fault]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _PARTS_OF[role]:
        yield Fault(f"{where}.type", f"a {role} message may hold {', '.join(_PARTS_OF[role])}, got {kind!r}")
        return
    key, expected = _PART_KEYS[kind]
    if not isinstance(part.get(key), expected):
        yield Fault(f"{where}.{key}", f"a part of type {kind} must hold its {key}, got {_kind(part.get(key))}")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case [] | {} if not value:
            return f"an empty {'array' if isinstance(value, list) else 'object'}"
        case _:
            return type(value).__name__
