"""Where a path leads, as far as its text tells: yes, no, or unknown.

The law: what is not understood for certain is unknown, and unknown never allows. Containment is
lexical, segment by segment, since the paths belong to somebody else's file system; for tools
that work on this one, `resolved_contains` looks again, and where the disk disagrees with the
text the answer is unknown. A look at the disk is over before the tool looks: between the two a
link may change, so a tool that is ours must confine itself too. What a rule makes of a path
does not live here.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any, Final

import attrs

from llm_agent.errors import ConfigError
from llm_agent.patterns import checked_pattern, matches

LOCATION_PARAMS: Final = ("path", "paths", "file_path", "from", "to", "source", "destination")
"""The arguments that name a place, where nothing else was said for a tool."""
LONGEST: Final = 4096
"""Characters of a path that is looked at: no system takes more, and folding long text takes long."""

# What some reader of a path understands in another way than we do, and why that is a risk.
_RISKS: Final = (
    (re.compile(r"\\"), "a backslash, which separates folders on Windows"),
    (re.compile(r"^~"), "a leading ~, which a tool may expand"),
    (re.compile(r"^//"), "two leading slashes, which may name a server"),
    # Drive letters, `file:` and other schemes, alternate data streams of the first segment.
    (re.compile(r"^[^/]*:"), "a colon in its first segment, which may name a drive or a scheme"),
    (re.compile(r"%[0-9A-Fa-f]{2}|%u[0-9A-Fa-f]{4}|%[^%/\s]+%"), "a percent sign that a tool may expand"),
    (re.compile(r"(?:^|/)\$\w|\$[{(]|`"), "a variable or a command that a tool may expand"),
    (re.compile(r"\{[^}]*(?:,|\.\.)[^}]*\}"), "braces that a tool may expand"),
    # `SECRET~1` is another name for a longer one on Windows.
    (re.compile(r"~\d"), "a ~ before a digit, which may abbreviate another name"),
    (re.compile(r"(?:[^/][. ]|(?:^|/)[. ])(?:/|$)"), "a segment that ends in a dot or a space"),
    (re.compile(r"^ "), "a leading space, which a tool may strip"),
)
# Characters that do not show, or that change the order of what is shown.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LOST: Final = "\ufffd"  # what a lone surrogate has become on its way here
_STRUCTURE: Final = frozenset("./\\~:%$ ")


@attrs.frozen
class Place:
    """A path that is understood: from `/` or from a root nobody has named."""

    is_absolute: bool
    segments: tuple[str, ...]

    def __str__(self) -> str:
        text = "/".join(self.segments)
        return f"/{text}" if self.is_absolute else text or "."

    def joined(self, inner: Place) -> Place:
        """Return *inner* as seen from here; an absolute one stands for itself."""
        return inner if inner.is_absolute else Place(self.is_absolute, self.segments + inner.segments)

    @property
    def parent(self) -> Place:
        return Place(self.is_absolute, self.segments[:-1])


@attrs.frozen
class Location:
    """A place that a call names; one that cannot be read is still there."""

    argument: str
    place: Place | None


def problem_of(path: object) -> str | None:
    """Return why *path* cannot be judged, or `None` where it can."""
    if not isinstance(path, str):
        return f"it is {type(path).__name__}, not text"
    if not path.strip():
        return "it is empty"
    if len(path) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    unseen = next((char for char in path if char == _LOST or unicodedata.category(char) in _UNSEEN), None)
    if unseen is not None:
        return f"it holds the character U+{ord(unseen):04X}"
    if _changes_when_folded(path):
        return "it holds a character that stands for another one"
    segments = path.split("/")
    if ".." in segments:
        return "it holds .."
    stripped = "/".join(segment for segment in segments if segment != ".") if "." in segments else path
    return next((f"it holds {risk}" for pattern, risk in _RISKS if pattern.search(stripped)), None)


def _changes_when_folded(path: str) -> bool:
    """Whether a compatible spelling has dots, separators or signs that this one does not show."""
    if path.isascii():
        return False
    folded = unicodedata.normalize("NFKC", path)
    return any(folded.count(char) != path.count(char) for char in _STRUCTURE) or any(
        char.isspace() and char != " " for char in path
    )


def read_place(path: object) -> Place | None:
    """Return *path* as a place; `None` where it cannot be judged. Empty and `.` segments are dropped."""
    if problem_of(path) is not None:
        return None
    assert isinstance(path, str)
    segments = tuple(segment for segment in path.split("/") if segment not in ("", "."))
    return Place(path.startswith("/"), segments)


# -- containment -----------------------------------------------------------------------------


def contains(folder: Place, place: Place) -> bool | None:
    """Whether *place* is *folder* or in it; unknown where only another spelling of it is.

    Another spelling: other case, other composition of the same letters, a stream of the same
    file (`name:stream`), a pattern that a tool may expand. Whether these are one file, only the
    file system and the tool know.
    """
    if folder.is_absolute != place.is_absolute:
        return None
    head = place.segments[: len(folder.segments)]
    if head == folder.segments:
        return True
    is_another_spelling = len(head) == len(folder.segments) and all(map(_may_be, head, folder.segments))
    return None if is_another_spelling else False


def _may_be(name: str, meant: str) -> bool:
    """Whether some file system, or some tool, takes *name* for *meant*."""
    spelled, wanted = _folded(name), _folded(meant)
    return wanted in (spelled, spelled.partition(":")[0]) or fnmatchcase(wanted, spelled)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def resolved_contains(folder: Place, place: Place) -> bool | None:
    """The same of two places on this machine, links followed: where disk and text disagree, unknown.

    Reads the disk: the deepest part that exists is resolved, on both sides. A link out of a
    folder allows nothing, and a link into a forbidden one is not let through.
    """
    by_text = contains(folder, place)
    if by_text is None or not folder.is_absolute:
        return None
    real_folder, real_place = _real(folder), _real(place)
    if real_folder is None or real_place is None:
        return None
    return by_text if contains(real_folder, real_place) is by_text else None


def _real(place: Place) -> Place | None:
    try:
        real = os.path.realpath(str(place))
    except (OSError, ValueError):
        return None
    return Place(True, tuple(part for part in real.split("/") if part))


def common_folder(places: Sequence[Place]) -> Place | None:
    """Return the deepest folder that holds all of *places*, each taken for a file."""
    if not places or len({place.is_absolute for place in places}) > 1:
        return None
    levels = zip(*(place.parent.segments for place in places), strict=False)
    shared = takewhile(lambda names: len(set(names)) == 1, levels)
    return Place(places[0].is_absolute, tuple(names[0] for names in shared))


# -- which arguments, from which root ----------------------------------------------------------


def locations_of(arguments: Mapping[str, Any], params: Sequence[str], root: Place | None) -> tuple[Location, ...]:
    """Return the places that *arguments* name, in the order of *params*; of a list, each item is one."""
    named = [(param, arguments[param]) for param in params if param in arguments]
    each = [(param, path) for param, value in named for path in (value if isinstance(value, list) else [value])]
    return tuple(Location(param, _from_root(read_place(path), root)) for param, path in each)


def _from_root(place: Place | None, root: Place | None) -> Place | None:
    return place if place is None or root is None else root.joined(place)


def checked_roots(roots: Mapping[str, Any] | None) -> dict[str, Place]:
    """Return *roots*, from prefixes of tool names (a trailing `*` may be written) to folders.

    Raises:
        ConfigError: a root that is not an absolute path we can judge; names it.
    """
    if roots is not None and not isinstance(roots, Mapping):
        raise ConfigError(f"roots: expected a mapping from tool prefixes to folders, got {type(roots).__name__}")
    checked = {}
    for prefix, folder in (roots or {}).items():
        text = os.fspath(folder) if isinstance(folder, os.PathLike) else folder
        place = read_place(text)
        if not isinstance(prefix, str) or "*" in prefix[:-1]:
            raise ConfigError(f"roots: expected a prefix of tool names, got {prefix!r}")
        if place is None or not place.is_absolute:
            why = problem_of(text) or "it is not absolute"
            raise ConfigError(f"roots[{prefix!r}]: expected an absolute path, got {folder!r}: {why}")
        checked[prefix.removesuffix("*")] = place
    return checked


def root_of(roots: Mapping[str, Place], tool: str) -> Place | None:
    """Return the root of the longest prefix that *tool* starts with."""
    prefix = max((prefix for prefix in roots if tool.startswith(prefix)), key=len, default=None)
    return None if prefix is None else roots[prefix]


def checked_path_params(params: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """Return *params*, from tool patterns to the names of the arguments that are places.

    Raises:
        ConfigError: a pattern that cannot be meant, or a value that is neither a name nor a list of names.
    """
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(f"path_params: expected a mapping from tool patterns, got {type(params).__name__}")
    checked = {}
    for pattern, given in (params or {}).items():
        checked_pattern("path_params", pattern)
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"path_params[{pattern!r}]: expected argument names, got {given!r}")
        checked[pattern] = tuple(names)
    return checked


def most_specific(options: Mapping[str, tuple[str, ...]], tool: str) -> tuple[str, ...] | None:
    """Return the value of the pattern that says most about *tool*: an exact name, else the longest prefix."""
    fitting = [pattern for pattern in options if matches(pattern, tool)]
    pattern = max(fitting, key=lambda each: (not each.endswith("*"), len(each)), default=None)
    return None if pattern is None else options[pattern]
