"""What a server asks of a human: a form filled in line by line, or an address to be opened.

The law: nothing is sent that was not typed, confirmed, or shown as the value an empty line
stands for; and no address is opened here. The wire's shapes: `elicitation/create` of the Model
Context Protocol, whose schemas are flat: one property, one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from llm_agent.terminal.console import Console
from llm_agent.terminal.harmless import QUESTION_CHARS, QUESTION_LINES, as_text, barred, harmless, short

_DECLINED: Final = {"action": "decline"}
_CANCELLED: Final = {"action": "cancel"}


def fill_in(console: Console, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a server's question (`request["request"]`); return `{"action", "content"?}`."""
    asked = request.get("request")
    asked = asked if isinstance(asked, Mapping) else {}
    server = request.get("server") or request.get("tool") or "A server"
    lines, _ = barred(as_text(asked.get("message", "")), QUESTION_LINES, QUESTION_CHARS)
    console.show("\n".join(["", f"{short(as_text(server))} asks for something:", *lines]))
    if asked.get("mode") == "url" or "url" in asked:
        return _address(console, asked)
    schema = asked.get("requestedSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    fields = dict(properties) if isinstance(properties, Mapping) else {}
    required = schema.get("required") if isinstance(schema, Mapping) else None
    return _form(console, fields, required if isinstance(required, list) else [])


def _address(console: Console, asked: Mapping[str, Any]) -> dict[str, Any]:
    console.show(f"It wants you to open this address, and is told whether you agree: {harmless(str(asked.get('url')))}")
    return _refusal(console) or {"action": "accept"}


def _refusal(console: Console) -> dict[str, Any] | None:
    """`None` for a yes, else the answer that is a no."""
    while True:
        typed = console.read_line("[y] go on  [n] no > ")
        if typed is None:
            return dict(_CANCELLED)
        match typed.strip().lower():
            case "y" | "yes":
                return None
            case "n" | "no":
                return dict(_DECLINED)


def _form(console: Console, fields: Mapping[str, Any], required: list[Any]) -> dict[str, Any]:
    if fields:
        console.show(f"It asks for: {short(', '.join(map(str, fields)))}")
    refusal = _refusal(console)
    if refusal is not None:
        return refusal
    content: dict[str, Any] = {}
    for name, raw in fields.items():
        field = raw if isinstance(raw, Mapping) else {}
        value = _value(console, str(name), field, name in required)
        if value is None:
            return dict(_CANCELLED)
        if value is not _EMPTY:
            content[str(name)] = value
    return {"action": "accept", "content": content}


_EMPTY: Final = object()


def _value(console: Console, name: str, field: Mapping[str, Any], is_required: bool) -> Any:
    """Ask for one value until it fits; `None` at the end of the input, `_EMPTY` for one left out."""
    prompt = _prompt(name, field, is_required)
    while True:
        typed = console.read_line(prompt)
        if typed is None:
            return None
        if not typed.strip():
            if field.get("default") is not None:
                return field["default"]
            if not is_required:
                return _EMPTY
            console.show("This one is required.")
            continue
        value = _read(typed.strip(), field)
        if value is not None:
            return value
        console.show(f"That does not fit; expected {_expected(field)}.")


def _prompt(name: str, field: Mapping[str, Any], is_required: bool) -> str:
    title = short(as_text(field.get("title") or name))
    described = f" - {short(as_text(field['description']))}" if field.get("description") else ""
    if field.get("default") is not None:
        empty = f"; empty for {short(as_text(field['default']))}"
    else:
        empty = "" if is_required else "; may be empty"
    return f"  {title}{described} ({_expected(field)}{empty}): "


def _choices(field: Mapping[str, Any]) -> list[Any]:
    """The values that fit, or of which some do; none where there is no such list."""
    items = field.get("items")
    if field.get("type") == "array" and isinstance(items, Mapping):
        field = items
    choices = field.get("enum")
    if isinstance(choices, list):
        return choices
    titled = field.get("oneOf", field.get("anyOf"))
    return [one.get("const") for one in titled if isinstance(one, Mapping)] if isinstance(titled, list) else []


def _expected(field: Mapping[str, Any]) -> str:
    choices = _choices(field)
    if choices:
        return ("some of, with commas between: " if field.get("type") == "array" else "one of ") + short(
            ", ".join(map(as_text, choices))
        )
    kinds = {
        "boolean": "y or n",
        "integer": "a whole number",
        "number": "a number",
        "array": "words with commas between",
    }
    return kinds.get(as_text(field.get("type")), "text")


def _read(typed: str, field: Mapping[str, Any]) -> Any:
    """The typed text as a value of the field's type; `None` where it does not fit."""
    choices = _choices(field)
    if choices and field.get("type") == "array":
        found = [_read(word.strip(), {"enum": choices}) for word in typed.split(",")]
        return None if None in found else found
    if choices:
        return next((choice for choice in choices if as_text(choice) == typed), None)
    try:
        match field.get("type"):
            case "boolean":
                return {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(
                    typed.lower()
                )
            case "integer":
                return int(typed)
            case "number":
                number = float(typed)
                return number if math.isfinite(number) else None
            case "array":
                return [word.strip() for word in typed.split(",")]
            case _:
                return typed
    except ValueError:
        return None
