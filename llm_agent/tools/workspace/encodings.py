"""Bytes of a file as text and back: its encoding, its line ends, and whether it is text at all.

Pure. The law: what a reader is shown and an editor changes are the same text, and every byte
that an edit does not touch comes back as it was.
"""

from __future__ import annotations

import codecs
import mimetypes
from typing import Final, Literal

import attrs

from llm_agent.codec import clean_text

# Bytes of a file's beginning by which it is judged, here and by an editor alike.
SNIFFED: Final = 65_536

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_KINDS: Final = (
    (b"\x89PNG\r\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive, or a format built on it"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x7fELF", "ELF program or library"),
    (b"SQLite format 3\x00", "SQLite database"),
    (b"\x00asm", "WebAssembly module"),
)

LineEnd = Literal["\n", "\r\n"]


@attrs.frozen
class Encoding:
    """How a text file is written down."""

    name: str
    """The codec's name, without its mark."""
    mark: bytes = b""
    """The byte order mark at its beginning."""

    def decode(self, data: bytes) -> str:
        """Return the text of a whole file; bytes that are none become lone surrogates, for the way back."""
        return data[len(self.mark) :].decode(self.name, self._lossless)

    def encode(self, text: str) -> bytes:
        """Return a whole file.

        Raises:
            ValueError: the encoding has no such character; names it.
        """
        try:
            return self.mark + text.encode(self.name, self._lossless)
        except UnicodeEncodeError as problem:
            character = problem.object[problem.start]
            raise ValueError(f"the file is {self.label}, which has no {clean_text(character)!r}") from problem

    @property
    def _lossless(self) -> str:
        return "surrogateescape" if self.name == "utf-8" else "strict"

    @property
    def label(self) -> str:
        """What a reader is told it is."""
        name = "Latin-1" if self.name == "latin-1" else self.name.upper().removesuffix("-LE").removesuffix("-BE")
        return f"{name} with a byte order mark" if self.mark else name


UTF_8: Final = Encoding("utf-8")


def encoding_of(beginning: bytes) -> Encoding | None:
    """Judge a file by its first bytes (`SNIFFED` of them, or all); `None` for what is no text."""
    for mark, name in _MARKS:
        if beginning.startswith(mark):
            return Encoding(name, mark)
    if b"\x00" in beginning:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) < SNIFFED)
    except UnicodeDecodeError:
        return Encoding("latin-1")  # in which every byte is a character
    return UTF_8


def describe_binary(name: str, beginning: bytes) -> str:
    """Say what a file that is no text seems to be."""
    for magic, kind in _KINDS:
        if beginning.startswith(magic):
            return kind
    guessed, _ = mimetypes.guess_type(name)
    return guessed or "unknown kind"


def line_end_of(text: str) -> LineEnd:
    """Return what most lines of a text end with."""
    windows = text.count("\r\n")
    return "\r\n" if windows > text.count("\n") - windows else "\n"
