"""What a docstring says: the description of a function, and of each of its parameters.

Google, NumPy and Sphinx style, told apart section by section, so a mixed docstring is read
too. Total: nothing raises; what is not understood stays part of the description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

_PARAMETER_SECTIONS: Final = {
    "args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments", "attributes",
}  # fmt: skip
_OTHER_SECTIONS: Final = {
    "returns", "return", "yields", "yield", "raises", "raise", "warns", "see also", "references", "example",
    "examples", "methods", "receives", "source", "threads",
}  # fmt: skip
_SECTIONS: Final = _PARAMETER_SECTIONS | _OTHER_SECTIONS

# Patterns are kept as text: `re` compiles and keeps them at their first use, and an import that
# reads no docstring need not pay for it.
# `path`, `path (str)`, `*paths`, `path (str, optional)`, then a colon. No type but in brackets.
_GOOGLE_ENTRY: Final = r"\*{0,2}(?P<names>\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?:\([^:]*?\))?\s*:(?!:)\s*(?P<text>.*)"
_NUMPY_ENTRY: Final = r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?"
_SPHINX_FIELD: Final = r":(?P<kind>\w+)(?:\s+(?P<argument>[^:]*?))?\s*:\s*(?P<text>.*)"
_SPHINX_PARAMETERS: Final = {"param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var"}
_SPHINX_OTHERS: Final = {
    "type",
    "return",
    "returns",
    "rtype",
    "raise",
    "raises",
    "except",
    "exception",
    "yield",
    "yields",
}
_SEVERAL_BLANK_LINES: Final = r"\n(?:[ \t]*\n){2,}"
_UNDERLINE: Final = r"-{3,}|={3,}"


@attrs.frozen
class Docstring:
    """What was read."""

    description: str = ""
    """The text before the first section, and any paragraph that belongs to none."""
    parameters: Mapping[str, str] = attrs.field(factory=dict)
    """Descriptions by parameter; line ends as written, indentation removed."""


@attrs.frozen
class _Block:
    """Lines of one section; `title` is `""` for plain text."""

    title: str
    lines: list[str]
    is_numpy: bool = False


def parse(text: str | None) -> Docstring:
    """Read a docstring; of none, nothing."""
    if not text:
        return Docstring()
    prose: list[str] = []
    parameters: dict[str, str] = {}
    for block in _blocks(_opened(inspect.cleandoc(text).splitlines())):
        if not block.title:
            prose += _without_fields(block.lines, parameters)
        elif block.title in _PARAMETER_SECTIONS:
            entries = _numpy_entries(block.lines) if block.is_numpy else _google_entries(block.lines)
            for name, description in entries:
                parameters.setdefault(name, description)
    return Docstring(re.sub(_SEVERAL_BLANK_LINES, "\n\n", "\n".join(prose)).strip(), parameters)


def _opened(lines: list[str]) -> list[str]:
    """Give a section that is the first line its indentation back: cleaning takes a first line for prose."""
    if not lines or not _is_google_title(lines[0]) or _is_indented_next(lines, 0):
        return lines
    for index, line in enumerate(lines[1:], 1):
        if not line.strip() or _is_google_title(line):
            return [lines[0], *("    " + body for body in lines[1:index]), *lines[index:]]
    return [lines[0], *("    " + body for body in lines[1:])]


def _is_google_title(line: str) -> bool:
    return line.rstrip().endswith(":") and line.strip().rstrip(":").lower() in _SECTIONS


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Cut the text where a section begins, and where an indented one ends."""
    block = _Block("", [])
    index = 0
    while index < len(lines):
        line = lines[index]
        title = line.strip().rstrip(":").lower()
        if _is_numpy_title(lines, index):
            yield block
            block = _Block(title, [], is_numpy=True)
            index += 1  # the underline
        elif _is_google_title(line) and _is_indented_next(lines, index):
            yield block
            block = _Block(title, [])
        elif block.title and not block.is_numpy and line.strip() and not line[0].isspace():
            yield block
            block = _Block("", [line])
        else:
            block.lines.append(line)
        index += 1
    yield block


def _is_numpy_title(lines: list[str], index: int) -> bool:
    if index + 1 >= len(lines) or lines[index][:1].isspace():
        return False
    is_underlined = re.fullmatch(_UNDERLINE, lines[index + 1].strip()) is not None
    return is_underlined and lines[index].strip().rstrip(":").lower() in _SECTIONS | {"notes", "warnings"}


def _is_indented_next(lines: list[str], index: int) -> bool:
    """Whether the section has a body: `Args:` in the middle of prose has none."""
    if lines[index][:1].isspace():
        return False
    following = next((line for line in lines[index + 1 :] if line.strip()), "")
    return following[:1].isspace()


def _google_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    body = inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
    yield from _entries(body, _GOOGLE_ENTRY)


def _numpy_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    yield from _entries(lines, _NUMPY_ENTRY)


def _entries(lines: list[str], pattern: str) -> Iterator[tuple[str, str]]:
    """Yield (name, description): an entry starts at the margin, what is indented continues it."""
    names: list[str] = []
    text: list[str] = []
    for line in lines:
        head = re.fullmatch(pattern, line.rstrip()) if line.strip() and not line[0].isspace() else None
        if head is None:
            text.append(line)
            continue
        yield from ((name, _joined(text)) for name in names)
        names = [name.strip().lstrip("*") for name in head["names"].split(",")]
        text = [head.groupdict().get("text") or ""]
    yield from ((name, _joined(text)) for name in names)


def _joined(lines: list[str]) -> str:
    first, *rest = lines
    return "\n".join([first.strip(), *inspect.cleandoc("\n" + "\n".join(rest)).splitlines()]).strip()


def _without_fields(lines: list[str], parameters: dict[str, str]) -> list[str]:
    """Take Sphinx fields out of plain text: parameters are noted, other fields dropped."""
    prose: list[str] = []
    field: list[str] | None = None
    name = ""
    for line in [*lines, ""]:
        found = re.fullmatch(_SPHINX_FIELD, line.strip())
        is_field = found is not None and found["kind"] in _SPHINX_PARAMETERS | _SPHINX_OTHERS
        if field is not None and not is_field and line[:1].isspace():
            field.append(line)
            continue
        if field is not None and name:
            parameters.setdefault(name, _joined(field))
        field, name = None, ""
        if found is not None and is_field:
            field = [found["text"]]
            words = (found["argument"] or "").split()
            name = words[-1].lstrip("*") if words and found["kind"] in _SPHINX_PARAMETERS else ""
        else:
            prose.append(line)
    return prose
