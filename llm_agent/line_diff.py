"""How one text became another, as a short unified diff.

Pure, and bounded: what costs more to compare than it tells is only counted. Who shows it,
and where the texts come from, is others' business.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

# Lines around a change that show where it is.
_AROUND: Final = 3
# Changed lines that are still compared one by one: that takes time by the square of their number.
_MOST_COMPARED: Final = 600
_PLACES: Final = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def line_diff(before: str, after: str, *, most_lines: int = 200, most_chars: int = 500) -> str:
    """Return the hunks of a unified diff, without file names; `""` for equal texts.

    Args:
        most_lines: lines of the diff that are given; how many more there are is said.
        most_chars: characters of a line that are given.
    """
    old, new = _lines(before), _lines(after)
    start, end = _common_ends(old, new)
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    if not old_middle and not new_middle:
        return ""
    if max(len(old_middle), len(new_middle)) > _MOST_COMPARED:
        lines = [_place(start + 1, len(old_middle), len(new_middle))]
        lines += [f"-{line}" for line in old_middle] + [f"+{line}" for line in new_middle]
    else:
        lines = _hunks(old, new, max(0, start - _AROUND), max(0, end - _AROUND))
    return _shown(lines, most_lines, most_chars)


def _lines(text: str) -> list[str]:
    """Lines with their ends; unlike `splitlines`, cut at line feeds alone, as editors and compilers do."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many lines are the same at the beginning, and how many more at the end."""
    shorter = min(len(old), len(new))
    start = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - start
    end = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    return start, end


def _hunks(old: Sequence[str], new: Sequence[str], start: int, end: int) -> list[str]:
    diff = difflib.unified_diff(old[start : len(old) - end], new[start : len(new) - end], n=_AROUND)
    return [_PLACES.sub(lambda found: _moved(found, start), line) for line in list(diff)[2:]]


def _moved(found: re.Match[str], lines: int) -> str:
    old, old_count, new, new_count = found.groups(default="")
    return f"@@ -{int(old) + lines}{old_count} +{int(new) + lines}{new_count} @@"


def _place(line: int, old: int, new: int) -> str:
    return f"@@ -{line},{old} +{line},{new} @@\n"


def _shown(lines: Sequence[str], most_lines: int, most_chars: int) -> str:
    shown = []
    for line in lines[:most_lines]:
        text = line.rstrip("\r\n")
        shown.append(text if len(text) <= most_chars else f"{text[:most_chars]}[... {len(text) - most_chars} more]")
        if not line.endswith("\n"):
            shown.append("\\ No newline at end of file")
    if len(lines) > most_lines:
        shown.append(f"[... {len(lines) - most_lines} more lines of this diff]")
    return "\n".join(shown)
