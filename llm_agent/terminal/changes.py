"""What a write or an edit would change, as seen from its arguments and the file as it is.

Recognised by shape, since tools name things as they like: `content` is a whole new file, a pair
of old and new texts is an edit. Only looked at; of a file that cannot be read, an edit shows its texts alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llm_agent.line_diff import line_diff

_CONTENTS: Final = ("content", "contents", "file_text", "text")
_PAIRS: Final = (("old", "new"), ("oldText", "newText"), ("old_text", "new_text"), ("old_string", "new_string"),
                 ("old_str", "new_str"))  # fmt: skip
# Bytes above which a file is not compared: nobody reads such a change at a prompt.
_COMPARED: Final = 1 << 20


def change_of(arguments: Mapping[str, Any], paths: Sequence[Any]) -> tuple[str, frozenset[str]] | None:
    """Return a call's change as a unified diff, and the arguments of which it shows all.

    `None` when it seems to change no file, or nothing is known of the file; and where the diff
    would be empty, since a tool that is not what it looks like might do something all the same.
    """
    edits, covered = _edits(arguments)
    before = _file_at(paths)
    if edits:
        diff = _edited(before, edits)
        return (diff, covered) if diff else None
    content = next((name for name in _CONTENTS if isinstance(arguments.get(name), str)), None)
    if content is None or not paths or before is None:
        return None
    diff = line_diff(before, arguments[content], most_lines=100_000, most_chars=100_000)
    return (diff, frozenset({content})) if diff else None


def _edits(arguments: Mapping[str, Any]) -> tuple[list[tuple[str, str]], frozenset[str]]:
    """The old and new texts, and the arguments in which there is nothing else."""
    several = arguments.get("edits")
    listed = [one for one in several if isinstance(one, Mapping)] if isinstance(several, list) else []
    edits = [(one[names[0]], one[names[1]]) for one in (arguments, *listed) if (names := _pair(one))]
    covered = set(_pair(arguments))
    if listed and len(listed) == len(several or ()) and all(set(one) == set(_pair(one)) for one in listed):
        covered.add("edits")
    return edits, frozenset(covered)


def _pair(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The names under which there are an old and a new text; none where there are not."""
    texts = {name for name, value in arguments.items() if isinstance(value, str)}
    return next((pair for pair in _PAIRS if texts.issuperset(pair)), ())


def _edited(before: str | None, edits: list[tuple[str, str]]) -> str:
    """One diff of the file when each edit is certain to be found in it; else one for each edit."""
    after = before
    for old, new in edits:
        if not after or after.count(old) != 1:
            diffs = [line_diff(one, other, most_lines=100_000, most_chars=100_000) for one, other in edits]
            return "\n".join(diffs)
        after = after.replace(old, new)
    return line_diff(before or "", after or "", most_lines=100_000, most_chars=100_000)


def _file_at(paths: Sequence[Any]) -> str | None:
    """The file's text; `""` where there is none yet; `None` where that cannot be told."""
    path = paths[0] if len(paths) == 1 else None
    if not isinstance(path, str) or not os.path.isabs(path):  # relative to what, only the tool knows
        return None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        return None
    try:
        # Python opens no folder, and a device is no text.
        data = os.read(handle, _COMPARED + 1) if stat.S_ISREG(os.fstat(handle).st_mode) else b"\0"
    finally:
        os.close(handle)
    if len(data) > _COMPARED or b"\0" in data:
        return None
    return data.decode("utf-8", "replace").replace("\r\n", "\n")
