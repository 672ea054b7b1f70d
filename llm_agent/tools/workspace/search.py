"""Lines of files that match a regular expression: found by another process, read by this one.

The law: the finder, ripgrep or our own with Python's `re`, tells names and line numbers only,
and is killed when its time is over. Every line that is shown was read through `confinement`,
so a finder that is led out of the root by a swapped link shows nothing of what it saw there.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from llm_agent.call_context import current_call
from llm_agent.tools.process import CommandResult, run_command
from llm_agent.tools.workspace.call import answer_chars
from llm_agent.tools.workspace.confinement import Root
from llm_agent.tools.workspace.encodings import SNIFFED, encoding_of
from llm_agent.tools.workspace.listing import GlobPattern, Walk, bounded, shown_name
from llm_agent.tools.workspace.text_files import Line, line_shown, lines_of

# How long a search may take, in seconds; less when the call has less left.
_PATIENCE: Final = 20.0
_MOST_HITS: Final = 200
# Hits of one file, so that one log does not hide all others.
_MOST_PER_FILE: Final = 100
_MOST_CONTEXT: Final = 20
# Characters of one line that are shown: a list of hits has less room for each than a page.
_LINE_CHARS: Final = 500
_PATTERN_CHARS: Final = 4_000
# Bytes kept of what a finder tells: a name and a number per hit.
_FINDER_BYTES: Final = 8 << 20

_CHILD: Final = Path(__file__).with_name("search_child.py")

# The text of the lines is left out of what it tells, by the narrowest column there is.
# Mapped into memory: read piecewise, a line of gigabytes would be held, and more than once.
# Only the .gitignore files inside of the root count, as for `glob`; no configuration of the user's.
_RIPGREP_OPTIONS: Final = (
    "--no-config", "--mmap", "--no-messages", "--color=never", "--no-heading", "--with-filename", "--line-number",
    "--null", "--max-columns=1", "--hidden", "--glob=!.git", "--crlf", "--no-require-git", "--no-ignore-dot",
    "--no-ignore-exclude", "--no-ignore-global", "--no-ignore-parent", f"--max-count={_MOST_PER_FILE}",
)  # fmt: skip


@attrs.frozen(kw_only=True)
class Sought:
    """What is searched for, and where."""

    pattern: str
    path: str = "."
    glob: str = ""
    context: int = 0
    ignore_case: bool = False


@attrs.define
class Hits:
    """Numbers of lines by file, and what has to be said of the search."""

    by_file: dict[str, set[int]] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_file.values()))


def search(root: Root, sought: Sought, *, ripgrep: str | None) -> str:
    """Return the lines that match, below the name of their file, with their numbers.

    Args:
        ripgrep: the program; `None` searches with Python's `re`.

    Raises:
        ValueError: the pattern is not understood.
        OSError: *path* is nothing of the workspace.
    """
    _check(sought)
    _check_searchable(root, sought.path)
    hits = None if ripgrep is None else _by_ripgrep(root, sought, ripgrep)
    if hits is None:
        hits = _by_child(root, sought)
    lines = list(_shown(root, hits, sought.context))
    text = (
        bounded(lines, "lines are not shown; narrow path, glob or pattern", len(lines))
        if lines
        else "[no line matches]"
    )
    return "\n".join([text, *hits.notes])


def find_ripgrep() -> str | None:
    """Return the `rg` of the search path, or the one that was installed beside this Python."""
    return shutil.which("rg") or shutil.which("rg", path=os.path.dirname(sys.executable))


def _check(sought: Sought) -> None:
    if not 0 <= sought.context <= _MOST_CONTEXT:
        raise ValueError(f"context is a number of lines from 0 to {_MOST_CONTEXT}, got {sought.context}")
    if not 0 < len(sought.pattern) <= _PATTERN_CHARS:
        raise ValueError(f"pattern has 1 to {_PATTERN_CHARS} characters, got {len(sought.pattern)}")
    if "\0" in sought.pattern:
        raise ValueError("pattern has a NUL, which no text has")


def _check_searchable(root: Root, path: str) -> None:
    """A finder that is told to read a pipe would wait for somebody to write."""
    if not _is_folder(root, path):
        with root.place(path) as place, place.opened():
            pass


def _is_folder(root: Root, path: str) -> bool:
    with root.place(path) as place:
        status = place.status()
        return status is not None and stat.S_ISDIR(status.st_mode)


# -- finding -------------------------------------------------------------------------------


def _by_ripgrep(root: Root, sought: Sought, program: str) -> Hits | None:
    """`None` when its kind of expressions has no such pattern: `re` may have."""
    fitting = GlobPattern(sought.glob) if sought.glob else None
    wanted = ["--ignore-case"] * sought.ignore_case
    if fitting is not None and "**" not in fitting.last_names:
        # Not as `--glob`, which would reach what git ignores; a type looks at the last name alone.
        wanted += [f"--type-add=sought:{name}" for name in fitting.last_names] + ["--type=sought"]
    where = "/".join((".", *root.parts(sought.path)))
    command = [program, *_RIPGREP_OPTIONS, *wanted, f"--regexp={sought.pattern}", "--", where]
    done = _run(root, command, b"")
    if done.returncode == 2 and not done.output:
        return None
    return _hits(done, Walk(), fitting)


def _by_child(root: Root, sought: Sought) -> Hits:
    walk = Walk()
    names = _names(root, sought, walk) if _is_folder(root, sought.path) else ["/".join(root.parts(sought.path))]
    case = "i" if sought.ignore_case else "-"
    command = [sys.executable, "-I", "-S", "-B", str(_CHILD), sought.pattern, case, str(_MOST_HITS + 1)]
    done = _run(root, command, b"\0".join(map(os.fsencode, names)))
    if done.returncode == 2:
        raise ValueError(f"the pattern is not understood: {done.stderr.strip()[:300]}")
    return _hits(done, walk, None)


def _names(root: Root, sought: Sought, walk: Walk) -> Iterable[str]:
    fitting = GlobPattern(sought.glob) if sought.glob else None
    names = walk.files(root, sought.path)
    return names if fitting is None else (name for name in names if fitting.matches(name.split("/")))


def _run(root: Root, command: list[str], input: bytes) -> CommandResult:
    with root.as_working_folder() as folder:
        return run_command(
            command,
            cwd=folder,
            input=input,
            timeout=_patience(),
            max_output=_FINDER_BYTES,
            merge_stderr=False,
        )


def _patience() -> float:
    call = current_call()
    left = None if call is None else call.deadline
    return _PATIENCE if left is None else min(_PATIENCE, 0.8 * left)


# From the end of the one before, since a name may have line feeds, to the line's end: where a
# flood was cut, a number may be torn.
_HIT: Final = re.compile(r"(?:\./)?([^\0]+)\0(\d+)(?::.*)?\n")


def _hits(done: CommandResult, walk: Walk, fitting: GlobPattern | None) -> Hits:
    hits = Hits(notes=[walk.note] if walk.note else [])
    for found in sorted(_HIT.findall(done.output), key=lambda hit: (hit[0], int(hit[1]))):
        if fitting is not None and not fitting.matches(found[0].split("/")):
            continue
        if hits.count >= _MOST_HITS:
            hits.notes.append(f"[only {_MOST_HITS} matching lines are shown; search for something narrower]")
            break
        hits.by_file.setdefault(found[0], set()).add(int(found[1]))
    if done.timed_out:
        hits.notes.append(f"[the search was stopped after {done.duration_s:.0f} s; narrow path, glob or pattern]")
    elif (done.returncode or 0) < 0:  # a file that is cut short while it is mapped is the end of the finder
        hits.notes.append("[the search ended early, perhaps by a file that was changed meanwhile; try again]")
    return hits


# -- showing -------------------------------------------------------------------------------


def _shown(root: Root, hits: Hits, context: int) -> Iterator[str]:
    chars, most_chars = 0, answer_chars()
    for name, numbers in hits.by_file.items():
        if chars > most_chars:  # `bounded` would not show it, so it need not be read
            hits.notes.append("[lines of further files are not shown]")
            return
        for line in _of_file(root, name, numbers, context):
            chars += len(line)
            yield line


def _of_file(root: Root, name: str, numbers: set[int], context: int) -> list[str]:
    wanted = {near for number in numbers for near in range(number - context, number + context + 1)}
    try:
        lines = _read(root, name, wanted)
    except (OSError, ValueError):  # gone, or led out of the root: as if it had not been found
        return []
    shown, last = [shown_name(name)], 0
    for number, line in lines.items():
        if context and last and number > last + 1:
            shown.append("--")
        shown.append(f"{number}{':' if number in numbers else '-'}{line_shown(line, _LINE_CHARS)}")
        last = number
    return shown if lines else []


def _read(root: Root, name: str, wanted: set[int]) -> Mapping[int, Line]:
    last = max(wanted)
    found: dict[int, Line] = {}
    with root.place(name) as place, place.opened() as file:
        encoding = encoding_of(file.read(SNIFFED))
        if encoding is None:
            return {}
        for number, line in enumerate(lines_of(file, encoding), 1):
            if number in wanted:
                found[number] = line
            if number >= last:
                break
    return found
