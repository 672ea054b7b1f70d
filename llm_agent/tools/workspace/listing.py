"""Which files there are: one folder, or all below one that fit a pattern and are not ignored.

The law: every folder is opened from the one above it, following no link, so a walk stays below
where it began. What `.gitignore` means is `pathspec`'s business (extra `workspace`); without it
only `.git` is left out.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from llm_agent.codec import clean_text
from llm_agent.tools.workspace.call import answer_chars, stop_if_given_up
from llm_agent.tools.workspace.confinement import DEEPEST, OPEN_FOLDER, OPEN_TO_READ, Root, kind_of

# Entries that are shown of a long list.
_MOST_LISTED: Final = 1_000
# Files after which a walk stops: a tree that large is searched by folders.
_MOST_WALKED: Final = 200_000
_MOST_ALTERNATIVES: Final = 64
_PATTERN_CHARS: Final = 1_000
_IGNORE_FILE: Final = ".gitignore"
_IGNORE_BYTES: Final = 65_536
_MOST_IGNORE_LINES: Final = 1_000
_ALWAYS_LEFT_OUT: Final = ".git"

# What `confinement` takes in no path.
_UNSPEAKABLE: Final = re.compile(r"[\x00-\x1f\x7f\\]")


def list_names(root: Root, path: str) -> str:
    """Return the names in a folder, one a line: folders with `/`, links with where they lead.

    Raises:
        ValueError, OSError: no folder of the workspace.
    """
    with root.place(path) as place, place.as_folder() as folder, os.scandir(folder) as entries:
        names = sorted(_shown_entry(entry, folder) for entry in _while_wanted(entries))
    return (
        bounded(names, "entries are not shown; use glob with a pattern", _MOST_LISTED)
        if names
        else f"[{place.shown} is empty]"
    )


def _shown_entry(entry: os.DirEntry[str], folder: int) -> str:
    name = shown_name(entry.name)
    if entry.is_symlink():
        try:
            return f"{name} -> {shown_name(os.readlink(entry.name, dir_fd=folder))}"
        except OSError:
            return name
    if entry.is_dir(follow_symlinks=False):
        return f"{name}/"
    if entry.is_file(follow_symlinks=False):
        return name
    try:
        return f"{name} ({kind_of(entry.stat(follow_symlinks=False).st_mode)})"
    except OSError:
        return name


def shown_name(name: str) -> str:
    """Return a name as one line: none passes for two, and one that no file tool takes says so."""
    shown = _UNSPEAKABLE.sub(lambda found: ascii(found[0])[1:-1], clean_text(name))
    return name if shown == name else f"{shown} [a name for commands only: no tool takes it as a path]"


def bounded(lines: Iterable[str], note: str, most: int) -> str:
    """Join lines up to a size that a model is shown the whole of; the *note* follows how many are left out."""
    kept: list[str] = []
    chars = left_out = 0
    most_chars = answer_chars()
    for line in lines:
        chars += len(line) + 1
        if left_out or len(kept) >= most or chars > most_chars:
            left_out += 1
        else:
            kept.append(line)
    if left_out:
        kept.append(f"[{left_out} more {note}]")
    return "\n".join(kept)


def find_files(root: Root, pattern: str, path: str) -> str:
    """Return the files below *path* that fit *pattern*, by their paths from the root, one a line.

    Raises:
        ValueError: the pattern cannot be one.
        OSError: *path* is no folder of the workspace.
    """
    fitting = GlobPattern(pattern)
    base = len(root.parts(path))
    walk = Walk()
    found = [name for name in walk.files(root, path) if fitting.matches(name.split("/")[base:])]
    text = (
        bounded(map(shown_name, found), "files are not shown; narrow the pattern or path", _MOST_LISTED)
        if found
        else _none_fits(pattern)
    )
    return f"{text}\n{walk.note}" if walk.note else text


def _none_fits(pattern: str) -> str:
    hint = "; a pattern starts in the folder that path names, without / in front" if pattern.startswith("/") else ""
    return f"[no file fits {pattern}{hint}]"


# -- walking -------------------------------------------------------------------------------


@attrs.define
class Walk:
    """One walk, and whether it came to its end."""

    note: str = ""
    """What has to be said of it; nothing when every file was seen."""
    _seen: int = 0

    def files(self, root: Root, path: str) -> Iterator[str]:
        """Yield the regular files below a folder that are not ignored, as paths from the root, in order.

        Raises:
            ValueError, OSError: no folder of the workspace.
            TimeoutError: the call that this is done for was given up.
        """
        parts = root.parts(path)
        with root.place(path) as place, place.as_folder() as folder:
            base = "".join(f"{part}/" for part in parts)
            yield from self._below(folder, base, _ignored_above(root, parts), DEEPEST)

    def _below(self, folder: int, base: str, ignored: Ignored, deepest: int) -> Iterator[str]:
        ignored = ignored.with_file_in(folder, base)
        with os.scandir(folder) as entries:
            listed = sorted(_while_wanted(entries), key=lambda entry: entry.name)
        for entry in _while_wanted(listed):
            name, is_folder = base + entry.name, entry.is_dir(follow_symlinks=False)
            if self._is_over():
                return
            if entry.name == _ALWAYS_LEFT_OUT or ignored.covers(name, is_folder):
                continue
            if is_folder:
                yield from self._within(folder, entry.name, base, ignored, deepest)
            elif entry.is_file(follow_symlinks=False):
                self._seen += 1
                yield name

    def _within(self, folder: int, name: str, base: str, ignored: Ignored, deepest: int) -> Iterator[str]:
        if deepest == 0:
            self.note = f"[folders more than {DEEPEST} deep were not looked into]"
            return
        try:
            inner = os.open(name, OPEN_FOLDER, dir_fd=folder)
        except OSError:  # not ours to read, or no folder any more
            return
        try:
            yield from self._below(inner, f"{base}{name}/", ignored, deepest - 1)
        finally:
            os.close(inner)

    def _is_over(self) -> bool:
        if self._seen < _MOST_WALKED:
            return False
        self.note = f"[only the first {_MOST_WALKED} files were looked at; name a folder]"
        return True


def _while_wanted(entries: Iterable[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    """Yield them as long as somebody waits for the call; a folder may hold a million."""
    for entry in entries:
        stop_if_given_up()
        yield entry


# -- what is ignored -------------------------------------------------------------------------


@attrs.frozen
class Ignored:
    """The `.gitignore` files on the way to a folder, with the folder of each."""

    specs: tuple[tuple[str, Any], ...] = ()

    def with_file_in(self, folder: int, base: str) -> Ignored:
        """Add the file of one folder, where there is one and it can be understood."""
        spec = _spec(_text_in(folder))
        return self if spec is None else Ignored((*self.specs, (base, spec)))

    def covers(self, path: str, is_folder: bool) -> bool:
        """Whether the deepest file that has a say about *path* says to ignore it."""
        for base, spec in reversed(self.specs):
            said = spec.check_file(path[len(base) :] + "/" * is_folder).include
            if said is not None:
                return bool(said)
        return False


def _ignored_above(root: Root, parts: Sequence[str]) -> Ignored:
    """What the folders above say; nothing where they would ignore the folder itself: it was asked for."""
    ignored, base = Ignored(), ""
    for part in parts:
        try:
            with root.place(base) as place, place.as_folder() as folder:
                ignored = ignored.with_file_in(folder, base)
        except OSError:  # behind a link: the path has not this shape
            return Ignored()
        if ignored.covers(base + part, True):
            return Ignored()
        base += f"{part}/"
    return ignored


def _text_in(folder: int) -> str:
    try:
        handle = os.open(_IGNORE_FILE, OPEN_TO_READ, dir_fd=folder)
    except OSError:  # there is none, which is the usual case
        return ""
    try:
        return os.read(handle, _IGNORE_BYTES).decode("utf-8", "replace")
    except OSError:  # a folder of that name
        return ""
    finally:
        os.close(handle)


def _spec(text: str) -> Any:
    if not text:
        return None
    try:
        from pathspec import GitIgnoreSpec
    except ImportError:
        return None
    try:
        return GitIgnoreSpec.from_lines(filter(_is_cheap, text.splitlines()[:_MOST_IGNORE_LINES]))
    except ValueError:  # git, too, passes over what it cannot understand
        return None


def _is_cheap(line: str) -> bool:
    # pathspec makes a regular expression of a line; each star multiplies the places that it tries,
    # by hundreds, and no other thread moves meanwhile.
    return line.count("**") <= 3 and all(name.count("*") <= 3 for name in line.replace("**", "").split("/"))


# -- patterns --------------------------------------------------------------------------------


class GlobPattern:
    """A pattern for paths: `*` and `?` within a name, `**` for any folders, `{a,b}` for either.

    Without a slash it fits a name in any folder. Matching takes no more than linear time in
    the length of each name, whatever the pattern.

    Raises:
        ValueError: empty, too long, with `..`, or with too many alternatives.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _PATTERN_CHARS:
            raise ValueError(f"a pattern has at most {_PATTERN_CHARS} characters, got {len(pattern)}")
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if not parts or ".." in parts:
            raise ValueError(f"a pattern such as **/*.py was expected, without .., got {pattern!r}")
        anchored = "/".join(parts) if "/" in pattern.removesuffix("/") else f"**/{parts[0]}"
        self._alternatives = [one.split("/") for one in _alternatives(anchored)]

    @property
    def last_names(self) -> list[str]:
        """What the last component has to fit, one of these."""
        return [one[-1] for one in self._alternatives]

    def matches(self, path: Sequence[str]) -> bool:
        """Whether the components of a path fit."""
        return any(_fits(path, one) for one in self._alternatives)


def _alternatives(pattern: str) -> list[str]:
    """Spell out `{a,b}`; braces within braces, too."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop(0)
        found = re.search(r"\{([^{}]*)\}", one)
        if found is None:
            done.append(one)
        else:
            waiting += [one[: found.start()] + choice + one[found.end() :] for choice in found[1].split(",")]
        if len(waiting) + len(done) > _MOST_ALTERNATIVES:
            raise ValueError(f"the pattern has more than {_MOST_ALTERNATIVES} alternatives")
    return done


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    # All places in the pattern at once: `**` never makes it try one path twice.
    places = _past_any({0}, pattern)
    for name in path:
        stepped = set()
        for place in places:
            if place < len(pattern) and pattern[place] == "**":
                stepped.add(place)
            elif place < len(pattern) and _name_pattern(pattern[place]).match(name):
                stepped.add(place + 1)
        places = _past_any(stepped, pattern)
    return len(pattern) in places


def _past_any(places: set[int], pattern: Sequence[str]) -> set[int]:
    """Add what can be reached by taking `**` for no folder at all."""
    reached = set(places)
    for place in places:
        while place < len(pattern) and pattern[place] == "**":
            place += 1
            reached.add(place)
    return reached


@functools.lru_cache(maxsize=256)
def _name_pattern(pattern: str) -> re.Pattern[str]:
    # fnmatch writes atomic groups around its stars: they cannot backtrack into each other.
    return re.compile(fnmatch.translate(pattern))
