"""Text files of a workspace: a page of one, all of one anew, a part of one replaced.

The law: reading costs the same memory for a file of any size, and writing leaves a file whole,
old or new; encoding, mode and line ends of a file survive it. How a place is found:
`confinement`. What bytes mean: `encodings`.
"""

from __future__ import annotations

import bisect
import codecs
import itertools
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

import attrs

from llm_agent.codec import clean_text
from llm_agent.line_diff import line_diff
from llm_agent.tools.workspace.call import answer_chars, stop_if_given_up
from llm_agent.tools.workspace.confinement import Place, Root
from llm_agent.tools.workspace.encodings import (
    SNIFFED,
    UTF_8,
    Encoding,
    describe_binary,
    encoding_of,
    line_end_of,
)

# Characters of one line that are shown: what is longer was not written by hand.
LINE_CHARS: Final = 2_000
# Up to this size, in bytes, a file's lines are counted to the end, so that a page can tell of how many.
_COUNTED: Final = 16 << 20
# Above this size, in bytes, a file is not edited: an edit holds it in memory several times.
_EDITABLE: Final = 16 << 20
# Bytes of a file that are in memory at a time.
_PIECE: Final = 1 << 20
# Lines that are named where a text was found more than once.
_MOST_PLACES: Final = 10


@attrs.frozen
class Line:
    """One line of a file, without its end."""

    text: str
    """At most `LINE_CHARS` and one more."""
    chars: int
    """Its real length."""
    end: str
    """What ended it: `""` for a last line without an end."""


def lines_of(file: BinaryIO, encoding: Encoding) -> Iterator[Line]:
    """Walk a file's lines, in bounded memory however long they are.

    A file that grows as fast as it is read is walked to where it ended at the beginning, or to
    `_COUNTED` bytes: some files of the kernel's have no size.

    Raises:
        TimeoutError: the call that this is done for was given up.
    """
    decoder = codecs.getincrementaldecoder(encoding.name)("replace")
    file.seek(len(encoding.mark))
    left = max(os.fstat(file.fileno()).st_size, _COUNTED)
    begun, chars = "", 0
    while True:
        data = file.read(min(_PIECE, left))
        left -= len(data)
        *whole, rest = decoder.decode(data, final=not data).split("\n")
        for text in whole:
            yield _line(begun + text, chars + len(text))
            begun, chars = "", 0
        begun, chars = (begun + rest)[: LINE_CHARS + 1], chars + len(rest)
        if not data:
            break
        stop_if_given_up()
    if chars:
        yield Line(begun, chars, "")


def _line(text: str, chars: int) -> Line:
    if chars == len(text) and text.endswith("\r"):
        return Line(text[:-1][: LINE_CHARS + 1], chars - 1, "\r\n")
    return Line(text[: LINE_CHARS + 1], chars, "\n")


def line_shown(line: Line, most: int = LINE_CHARS) -> str:
    """Return a line as it is shown: at most *most* characters (`LINE_CHARS` or less), and how many more it has."""
    if line.chars <= most:
        return line.text
    return f"{line.text[:most]}[... {line.chars - most} more characters]"


# -- reading -------------------------------------------------------------------------------


def read_page(root: Root, path: str, offset: int, limit: int) -> str:
    """Return lines from number *offset* on, numbered; below them what else there is to know.

    Raises:
        ValueError: *offset* or *limit* is below 1, or *offset* is past the end.
        OSError: no file of the workspace.
    """
    if offset < 1 or limit < 1:
        raise ValueError(f"offset is a line number from 1 on, and limit 1 or more; got {offset} and {limit}")
    with root.place(path) as place, place.opened() as file:
        size = os.fstat(file.fileno()).st_size
        beginning = _first_bytes(file, SNIFFED)
        encoding = encoding_of(beginning)
        if encoding is None:
            kind = describe_binary(place.name, beginning)
            return f"[{place.shown} is a binary file ({kind}, {size} bytes); it cannot be read as text]"
        return _page(place.shown, _Page(offset, limit).filled(lines_of(file, encoding), size), encoding, size)


def _first_bytes(file: BinaryIO, most: int) -> bytes:
    found = bytearray()
    while len(found) < most and (more := file.read(min(_PIECE, most - len(found)))):
        found += more
    return bytes(found)


@attrs.define
class _Page:
    """The lines that are shown, and what was seen on the way."""

    offset: int
    limit: int
    lines: list[Line] = attrs.field(factory=list)
    total: int | None = None
    """Lines of the file, where they were counted."""
    is_last: bool = True
    _room: int = attrs.field(factory=answer_chars)
    _chars: int = 0

    def filled(self, lines: Iterator[Line], size: int) -> _Page:
        seen = 0
        for line in lines:
            seen += 1
            if seen < self.offset:
                continue
            if not self._takes(line):
                self.is_last = False
                break
        if self.is_last or size <= _COUNTED:
            self.total = seen + sum(1 for _ in lines)
        return self

    def _takes(self, line: Line) -> bool:
        self._chars += min(line.chars, LINE_CHARS) + 12  # with its number and a note that it was cut
        if self.lines and (self._chars > self._room or len(self.lines) >= self.limit):
            return False
        self.lines.append(line)
        return True

    @property
    def end(self) -> int:
        """The number of the last line that is shown."""
        return self.offset + len(self.lines) - 1


def _page(shown: str, page: _Page, encoding: Encoding, size: int) -> str:
    if not page.lines:
        if page.total:
            raise ValueError(f"offset {page.offset} is past the end: {shown} has {page.total} lines")
        return f"[{shown} is empty]"
    width = len(str(page.end))
    numbered = [f"{number:>{width}}\t{line_shown(line)}" for number, line in enumerate(page.lines, page.offset)]
    return "\n".join(numbered + [f"[{note}]" for note in _notes(page, encoding, size)])


def _notes(page: _Page, encoding: Encoding, size: int) -> Iterator[str]:
    if page.offset > 1 or not page.is_last:
        of = f"{page.total}" if page.total is not None else f"more; the file has {size} bytes"
        further = "this is the end" if page.is_last else f"read on with offset {page.end + 1}"
        yield f"lines {page.offset} to {page.end} of {of}; {further}"
    if encoding.name == "latin-1":
        yield "the file is not UTF-8; it is shown as Latin-1"
    elif encoding != UTF_8:
        yield f"the file is {encoding.label}"
    ends = {line.end for line in page.lines}
    if "\r\n" in ends:
        kind = "line ends are CRLF" if "\n" not in ends else "some line ends are CRLF, some LF"
        yield f"{kind}; write and edit keep them, give plain line feeds"
    if page.is_last and page.lines[-1].end == "":
        yield "the last line has no line end"


# -- writing -------------------------------------------------------------------------------


def write_whole(root: Root, path: str, content: str) -> str:
    """Make or replace a file, with the folders it needs; return what was done.

    Raises:
        ValueError, OSError: it cannot be written; what was there is as it was.
    """
    if not root.parts(path) or path.endswith("/"):
        raise ValueError(f"{path!r} names a folder; give the path of a file, its folders are made with it")
    with root.place(path, make_folders=True) as place:
        old = _old(place)
        if old is None:
            data = clean_text(content).encode()
            place.replace(data, None)
            return f"Created {place.shown} ({len(data)} bytes)."
        status, encoding, end = old
        data, note = _in_the_manner_of(encoding, end, clean_text(content))
        place.replace(data, status)
        return f"Replaced {place.shown} ({len(data)} bytes, {status.st_size} before).{note}"


def _old(place: Place) -> tuple[os.stat_result, Encoding, str] | None:
    """What is there, how it is written down, and its line ends as far as its beginning tells."""
    status = place.status()
    if status is None:
        return None
    with place.opened() as file:
        beginning = _first_bytes(file, SNIFFED)
    encoding = encoding_of(beginning) or UTF_8
    return status, encoding, line_end_of(beginning.decode(encoding.name, "replace"))


def _in_the_manner_of(encoding: Encoding, end: str, content: str) -> tuple[bytes, str]:
    """Return the bytes of *content*, and what has to be said about them."""
    note = ""
    if end == "\r\n" and "\r\n" not in content and "\n" in content:
        content, note = content.replace("\n", "\r\n"), " Its line ends are CRLF, as before."
    try:
        return encoding.encode(content), note
    except ValueError:
        return content.encode(), f"{note} It is UTF-8 now: {encoding.label} has not all of these characters."


# -- editing -------------------------------------------------------------------------------


def edit_part(root: Root, path: str, old: str, new: str, replace_all: bool) -> str:
    """Replace *old*, which occurs once (or, with *replace_all*, at all), and return a diff.

    Line ends do not matter for finding, and stay what they are.

    Raises:
        ValueError: it does not occur, or more than once; says where, and what comes nearest.
        OSError: no file of the workspace, or it was changed meanwhile.
    """
    old, new = _plain(old), clean_text(_plain(new))
    if not old:
        raise ValueError("old is empty; give the text to replace, or use write to make a file")
    if old == new:
        raise ValueError("old and new are the same text; nothing was changed")
    with root.place(path) as place:
        status, encoding, text = _whole_text(place)
        plain = _plain(text)
        found = _places_of(old, plain)
        if not found:
            raise ValueError(f"old does not occur in {place.shown}: {_nearest(plain, old)}")
        if len(found) > 1 and not replace_all:
            raise ValueError(
                f"old occurs {len(found)} times in {place.shown}, {_at_lines(plain, found)}; "
                "give more of the text around the one that is meant, or set replace_all"
            )
        replaced = _replaced(text, found, len(old), new.replace("\n", line_end_of(text)))
        place.replace(encoding.encode(replaced), status)
    diff = line_diff(_shown(text), _shown(replaced), most_lines=60)
    return f"Replaced {_counted(len(found))} in {place.shown}.\n{diff}"


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _shown(text: str) -> str:
    return clean_text(_plain(text))


def _whole_text(place: Place) -> tuple[os.stat_result, Encoding, str]:
    with place.opened() as file:
        status = os.fstat(file.fileno())
        data = b"" if status.st_size > _EDITABLE else _first_bytes(file, _EDITABLE + 1)
    size = max(status.st_size, len(data))
    if size > _EDITABLE:
        raise ValueError(f"{place.shown} has {size} bytes; files above {_EDITABLE} are not edited here")
    encoding = encoding_of(data[:SNIFFED])
    if encoding is None:
        raise ValueError(f"{place.shown} is a binary file ({describe_binary(place.name, data)}); it cannot be edited")
    try:
        return status, encoding, encoding.decode(data)
    except UnicodeDecodeError as problem:
        raise ValueError(f"{place.shown} is damaged {encoding.label}; it cannot be edited, only replaced") from problem


def _places_of(old: str, plain: str) -> list[int]:
    # Not by a regular expression: a long text that nearly fits everywhere would take it hours,
    # in which no other thread of the process moves. `find` needs linear time.
    places, at = [], plain.find(old)
    while at >= 0:
        places.append(at)
        at = plain.find(old, at + len(old))
    return places


def _replaced(text: str, places: list[int], length: int, new: str) -> str:
    """Return *text* with *new* at each of these places, which are counted as if every CRLF were LF."""
    pieces, at = [], 0
    real = _RealPlaces(text)
    for place in places:
        pieces += [text[at : real.of(place)], new]
        at = real.of(place + length)
    return "".join([*pieces, text[at:]])


class _RealPlaces:
    """Where the characters of a plain text stand in the one with its CRLFs."""

    def __init__(self, text: str) -> None:
        lengths = (len(part) + 1 for part in text.split("\r\n"))
        self._windows_ends = list(itertools.accumulate(lengths))

    def of(self, place: int) -> int:
        return place + bisect.bisect_right(self._windows_ends, place)


def _counted(count: int) -> str:
    return "1 place" if count == 1 else f"{count} places"


def _at_lines(text: str, found: list[int]) -> str:
    numbers = [str(text.count("\n", 0, place) + 1) for place in found[:_MOST_PLACES]]
    return f"at lines {', '.join(numbers)}{', ...' if len(found) > _MOST_PLACES else ''}"


_NUMBERED: Final = re.compile(r"(\s*\d+\t.*(\n|\Z))+")


def _nearest(text: str, old: str) -> str:
    """Say what may have been meant."""
    if _NUMBERED.fullmatch(old):
        return "it has the line numbers that read puts in front; leave them out"
    wanted, lines = _squeezed(old.strip("\n")), text.split("\n")
    at = f"\n{_squeezed(text)}\n".find(f"\n{wanted}\n")
    if wanted.strip() and at >= 0:
        first = _squeezed(text)[:at].count("\n")
        there = "\n".join(lines[first : first + wanted.count("\n") + 1])[:LINE_CHARS]
        return f"only white space differs from line {first + 1} on; the text there is\n{there}"
    head = next((line.strip() for line in old.split("\n") if line.strip()), "")
    alike = [number for number, line in enumerate(lines, 1) if head and head in line][:_MOST_PLACES]
    if alike:
        return (
            f"its first line is found at line {', '.join(map(str, alike))}, but what follows differs; read there again"
        )
    return "nothing in it comes near; read it again"


def _squeezed(text: str) -> str:
    """The text without white space at the ends of lines, and single within them."""
    return "\n".join(" ".join(line.split()) for line in text.split("\n"))
