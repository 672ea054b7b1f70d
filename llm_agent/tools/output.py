"""What a command wrote, in bounded memory: the beginning, the end, and how much fell out between.

Bytes go in, text comes out. No files and no processes here.
"""

from __future__ import annotations

import codecs
from typing import Final

from llm_agent import notices

# Stands in the text where bytes were left out.

# How far the tail may outgrow its size before it is cut: cutting moves all of it.
_SLACK: Final = 65_536


class HeadAndTail:
    """The first and the last half of *limit* bytes of a stream of any length. One thread."""

    def __init__(self, limit: int) -> None:
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def feed(self, data: bytes) -> None:
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > self._tail_size + _SLACK:
            self._cut_tail()

    def _cut_tail(self) -> None:
        surplus = max(0, len(self._tail) - self._tail_size)
        del self._tail[:surplus]
        self._cut += surplus

    def finish(self) -> tuple[str, int]:
        """Return the text, undecodable bytes as U+FFFD, and the exact number of bytes left out."""
        self._cut_tail()
        if not self._cut:
            return (self._head + self._tail).decode("utf-8", "replace"), 0
        # A cut in the middle of a character would show two wrong ones: they are left out whole.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        head = decoder.decode(bytes(self._head))
        split_before = len(decoder.getstate()[0])
        split_after = _continuation_bytes(self._tail)
        dropped = self._cut + split_before + split_after
        return head + notices.OUTPUT_LEFT_OUT.format(count=dropped) + self._tail[split_after:].decode(
            "utf-8", "replace"
        ), dropped


def _continuation_bytes(data: bytearray) -> int:
    """How many bytes at the start belong to a character that began earlier: 3 at most."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
