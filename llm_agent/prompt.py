"""Pieces of a system prompt, and how they are joined.

Pure functions from data to text; nothing here remembers anything, and nothing is guessed
about the caller's project. When a prompt is put into a conversation is the loop's matter.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from llm_agent.errors import ConfigError
from llm_agent.messages import Message

# What a line says when the platform does not tell.
UNKNOWN = "unknown"


def assemble(identity: str, sections: Sequence[str | None] = ()) -> Message:
    """Join *identity* and *sections* into the system message of a conversation.

    Args:
        identity: who the model is; not blank.
        sections: further pieces in their order; blank ones and `None` are left out.

    Returns:
        A sticky system message: parts without white space at their ends, one blank line between.

    Raises:
        ConfigError: *identity* is blank, or a part is no text.
    """
    if not isinstance(identity, str) or not identity.strip():
        raise ConfigError(f"prompt.assemble: identity must be text that is not blank, got {identity!r}")
    if isinstance(sections, str):
        raise ConfigError("prompt.assemble: sections must be a sequence of texts, got one text; wrap it in a list")
    parts = [identity, *(_section(part) for part in sections)]
    text = "\n\n".join(part.rstrip() for part in parts if part.strip())
    return Message("system", text, sysprompt=True, sticky=True)


def _section(part: Any) -> str:
    if part is None:
        return ""
    if not isinstance(part, str):
        raise ConfigError(f"prompt.assemble: a section must be text or None, got {type(part).__name__}")
    return part


# -- where the model is --------------------------------------------------------------------


def env_block(extra: Mapping[str, Any] | None = None) -> str:
    """Describe the machine: platform, operating system, local date, then *extra*.

    Args:
        extra: further lines, sorted by key. One named `platform`, `os` or `date` takes that
            line's place. `None` leaves a line out; 0, False and `""` are values.

    Returns:
        A heading, a blank line and one bullet a line. What cannot be looked up is `unknown`;
        nothing else is inferred, not even the working directory.
    """
    lines: dict[str, Any] = {
        "platform": looked_up(_platform),
        "os": looked_up(_operating_system),
        "date": looked_up(_local_date),
    }
    given = {str(key): value for key, value in (extra or {}).items()}
    lines.update((key, given[key]) for key in sorted(given))
    bullets = [f"- {key}: {value}" for key, value in lines.items() if value is not None]
    return "\n".join(["## Environment", "", *bullets])


def looked_up(lookup: Callable[[], str]) -> str:
    """Return what *lookup* finds, or `unknown` when it raises or finds nothing."""
    try:
        return lookup().strip() or UNKNOWN
    except Exception:  # a shield: a prompt without the name of the system is still a prompt
        return UNKNOWN


def _platform() -> str:
    return f"{platform.system() or UNKNOWN} ({platform.machine() or UNKNOWN})"


def _operating_system() -> str:
    if platform.system() == "Linux":
        release = platform.freedesktop_os_release()
        name, version = release["NAME"], release.get("VERSION_ID", "")
    elif platform.system() == "Darwin":
        name, version = "macOS", platform.mac_ver()[0]
    else:
        name, version = platform.system(), platform.release()
    return f"{name} {version.removeprefix('v')}"


def _local_date() -> str:
    return datetime.now().astimezone().date().isoformat()


# -- what the model may call ---------------------------------------------------------------


def tool_docs(tools: Iterable[Any]) -> str:
    """Describe *tools* in prose, for models that read prompts better than declarations.

    Args:
        tools: declarations in the OpenAI form, or their bare function parts. An entry that is
            neither, or has no name, is left out.

    Returns:
        A heading and one block a tool, in the order given; `""` when nothing is left.
        Required parameters come first, in the schema's order, the others by name.
    """
    blocks = [block for block in map(_tool_block, tools) if block]
    return "\n\n".join(["## Tools", *blocks]) if blocks else ""


def _tool_block(declared: Any) -> str:
    function = declared.get("function", declared) if isinstance(declared, Mapping) else None
    if not isinstance(function, Mapping):
        return ""
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        return ""
    description = _trimmed(function.get("description"))
    head = f"### {name.strip()}" + (f"\n{description}" if description else "")
    return f"{head}\n\n{_parameter_lines(function.get('parameters'))}"


def _parameter_lines(schema: Any) -> str:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        return "Takes no arguments."
    required = _required(schema, properties)
    optional = sorted((name for name in properties if name not in required), key=str)
    lines = [_parameter_line(name, properties[name], is_required=True) for name in required]
    lines += [_parameter_line(name, properties[name], is_required=False) for name in optional]
    return "\n".join(["Parameters:", *lines])


def _required(schema: Mapping[str, Any], properties: Mapping[str, Any]) -> list[str]:
    named = schema.get("required")
    if not isinstance(named, list | tuple):
        return []
    return list(dict.fromkeys(name for name in named if isinstance(name, str) and name in properties))


def _parameter_line(name: str, schema: Any, *, is_required: bool) -> str:
    detail: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    qualities = [_type_of(detail), "required"] if is_required else [_type_of(detail)]
    description = _trimmed(detail.get("description"))
    return f"- {name} ({', '.join(qualities)})" + (f" - {description}" if description else "")


def _type_of(schema: Mapping[str, Any]) -> str:
    """Name the type, a union as `a|b`; `any` where the schema does not say."""
    match schema.get("type"):
        case str(one):
            return one
        case list() | tuple() as several:
            return "|".join(map(str, several)) or "any"
    union = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(union, list | tuple) or not union:
        return "any"
    return "|".join(dict.fromkeys(_type_of(member) if isinstance(member, Mapping) else "any" for member in union))


def _trimmed(text: Any) -> str:
    return text.strip() if isinstance(text, str) else ""


# -- what the project says -----------------------------------------------------------------


def instructions_from_files(paths: Iterable[str | PathLike[str]]) -> str:
    """Quote instruction files, each under its name.

    Args:
        paths: files in the order wanted; what is missing, or no regular file, is left out.

    Returns:
        One block a file, a blank line between; `""` for none. An empty file is its heading only.

    Raises:
        ConfigError: a file is there and cannot be read as UTF-8; rules that were meant to
            hold must not vanish silently. The cause is the `OSError` or `UnicodeDecodeError`.
    """
    return "\n\n".join(block for block in map(_file_block, paths) if block)


def _file_block(path: str | PathLike[str]) -> str:
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig").rstrip() if file.is_file() else None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"prompt.instructions_from_files: cannot read {str(file)!r}: {exc}") from exc
    if text is None:
        return ""
    return f"## {file.name}\n\n{text}" if text else f"## {file.name}"
