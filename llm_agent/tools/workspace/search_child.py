"""A process of its own that searches files with `re`: a pattern that never ends takes only this down.

Run by its path, without the package and without `site`. Arguments: the pattern, `i` or `-`, and
the most lines to find. Standard input: names separated by NUL. Standard output: one line
`name NUL number` per line that matches. What is shown of them is read by the parent.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Iterator
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_SNIFFED = 65_536
# How far into a line is searched, in bytes: a file may be one line of gigabytes.
_SEARCHED = 1 << 20


def matching_lines(name: bytes, pattern: re.Pattern[str]) -> Iterator[int]:
    """Yield the numbers of the lines that match; none for what is no text or cannot be opened."""
    try:
        handle = os.open(name, _FLAGS)
    except OSError:
        return
    with open(handle, "rb") as file:
        try:
            beginning = file.read(_SNIFFED)
        except OSError:  # a folder
            return
        is_wide = beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if b"\0" in beginning and not is_wide:
            return
        file.seek(0)
        lines = _wide_lines(file) if is_wide else (line.decode("utf-8", "replace") for line in _narrow_lines(file))
        for number, line in enumerate(lines, 1):
            if pattern.search(line.rstrip("\r\n")):
                yield number


def _narrow_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, of which no more than `_SEARCHED` bytes are held."""
    while line := file.readline(_SEARCHED):
        yield line
        while not line.endswith(b"\n") and line:
            line = file.readline(_SEARCHED)


def _wide_lines(file: BinaryIO) -> Iterator[str]:
    reader, begun = codecs.getreader("utf-16")(file, "replace"), ""
    while piece := reader.read(_SNIFFED):
        *whole, begun = (begun + piece).split("\n")
        yield from whole
        begun = begun[:_SEARCHED]
    if begun:
        yield begun


def main() -> int:
    text, case, most = sys.argv[1:4]
    try:
        pattern = re.compile(text, re.IGNORECASE if case == "i" else 0)
    except (re.error, OverflowError, RecursionError) as problem:
        print(problem, file=sys.stderr)
        return 2
    left = int(most)
    for name in filter(None, sys.stdin.buffer.read().split(b"\0")):
        for number in matching_lines(name, pattern):
            sys.stdout.buffer.write(b"%s\0%d\n" % (name, number))
            left -= 1
            if left == 0:
                return 0
        sys.stdout.buffer.flush()  # what was found before a kill is told
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
