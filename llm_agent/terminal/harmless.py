"""Text of a model's, or a server's, made fit to be shown.

The law: nothing in it moves the cursor, changes a colour, hides, or reorders what stands there;
and no line of it can pass for one of ours. What does not show is spelled out. Pure.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

from llm_agent import codec

# Control, format (among them those that turn the direction), surrogates, private, unassigned, separators.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# In front of every line that is not ours.
BAR: Final = "  | "


def harmless(text: str) -> str:
    """Return *text* as one line in which every character shows."""
    return "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if unicodedata.category(character) in _UNSEEN:
        return _SPELLED.get(character) or f"\\u{{{ord(character):x}}}"
    return character


_SPELLED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def barred(text: str, most_lines: int | None = None, most_chars: int | None = None) -> tuple[list[str], bool]:
    """Return the lines of *text* behind bars, and whether some of it was left out.

    Args:
        most_lines, most_chars: what is kept of the lines, and of each; `None` for all.
    """
    lines = text.removesuffix("\n").split("\n")
    kept = lines if most_lines is None else lines[:most_lines]
    shown = [f"{BAR}{_cut(harmless(line.expandtabs(4)), most_chars)}" for line in kept]
    if len(kept) < len(lines):
        shown.append(f"  [... {len(lines) - len(kept)} more lines]")
    is_cut = len(kept) < len(lines) or any(most_chars is not None and len(line) > most_chars for line in kept)
    return shown, is_cut


def _cut(line: str, most: int | None) -> str:
    if most is None or len(line) <= most:
        return line
    return f"{line[:most]} [... {len(line) - most} more characters]"


def as_text(value: Any) -> str:
    """Return an argument's value as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else codec.dumps(value).decode("utf-8", "replace")
