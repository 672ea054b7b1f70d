"""Text of a model's, or a server's, made fit to be shown.

The law: nothing in it moves the cursor, changes a colour, hides, or reorders what stands there;
and no line of it can pass for one of ours. What does not show is spelled out. Pure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any, Final

from llm_agent import codec

# Control, format (among them those that turn the direction), surrogates, private, unassigned,
# separators, and every space but the common one.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
# Letters, marks and symbols that show nothing. Source: DerivedCoreProperties of Unicode,
# Default_Ignorable_Code_Point, less the categories above; and the empty Braille pattern.
_BLANK: Final = frozenset(
    chr(code)
    for codes in (
        (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2800),
        range(0x180B, 0x1810),
        range(0xFE00, 0xFE10),
        range(0xE0100, 0xE01F0),
    )
    for code in codes
)
# Marks that stand on one letter: more would climb over the lines around.
_MARKS: Final = frozenset({"Mn", "Me"})
_MOST_MARKS: Final = 3
# What is shown of a text that is not the whole of a decision: a server's question, a title.
QUESTION_LINES: Final = 40
QUESTION_CHARS: Final = 1_000
SHORT_CHARS: Final = 300
# In front of every line that is not ours.
BAR: Final = "  | "
# In front of what did not fit into the row above.
GOES_ON: Final = "  \\ "


def harmless(text: str) -> str:
    """Return *text* as one line in which every character shows."""
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], _MOST_MARKS  # a first one would stand on a character of ours
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in _MARKS else 0
        is_seen = character == " " or (category not in _UNSEEN and character not in _BLANK and marks <= _MOST_MARKS)
        shown.append(character if is_seen else _SPELLED.get(character) or f"\\u{{{ord(character):x}}}")
    return "".join(shown)


def rows_of(line: str, columns: int) -> Iterator[str]:
    """Cut a line where a terminal would go on in the next row: what stands there is no line of its own."""
    row, cells = "", 0
    for character in line:
        # The wider of what terminals do with it: rather a row that is not full than one that overflows.
        width = 2 if unicodedata.east_asian_width(character) in "WFA" else 1
        if cells + width > columns:
            yield row
            row, cells = GOES_ON, len(GOES_ON)
        row, cells = row + character, cells + width
    yield row


def short(text: str) -> str:
    """Return *text* as `harmless` does, cut where it is long; says by how much."""
    return _cut(text, SHORT_CHARS)


_SPELLED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def barred(text: str, most_lines: int | None = None, most_chars: int | None = None) -> tuple[list[str], bool]:
    """Return the lines of *text* behind bars, and whether some of it was left out.

    Args:
        most_lines, most_chars: what is kept of the lines, and of each; `None` for all.
    """
    lines = [line.expandtabs(4) for line in text.removesuffix("\n").split("\n")]
    kept = lines if most_lines is None else lines[:most_lines]
    shown = [f"{BAR}{_cut(line, most_chars)}" for line in kept]
    if len(kept) < len(lines):
        shown.append(f"  [... {len(lines) - len(kept)} more lines]")
    is_cut = len(kept) < len(lines) or any(most_chars is not None and len(line) > most_chars for line in kept)
    return shown, is_cut


def _cut(line: str, most: int | None) -> str:
    if most is None or len(line) <= most:
        return harmless(line)
    return f"{harmless(line[:most])} [... {len(line) - most} more characters]"


def as_text(value: Any) -> str:
    """Return an argument's value as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else codec.dumps(value).decode("utf-8", "replace")
