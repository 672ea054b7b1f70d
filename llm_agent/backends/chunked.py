"""Chunked bodies, taken apart a packet at a time.

The law: one read returns all that one packet brought, be it half a chunk or fifty. The
standard library goes chunk by chunk, which for a server that sends one chunk per token is
most of what a token costs. Everything else of a response is left to it.
"""

from __future__ import annotations

from http.client import HTTPException, HTTPResponse, IncompleteRead

import attrs

# Sizes and trailers are short; what is longer is no framing.
_MAX_LINE = 8_192


@attrs.define(eq=False)
class Dechunker:
    """The chunk framing of one body: feed it what was read, in order; it hands back the payload.

    Source: RFC 9112, 7.1. Extensions and trailers are skipped.
    """

    is_over: bool = attrs.field(default=False, init=False)
    """The last chunk and the trailers have been seen; what follows is not of this body."""

    _left: int = attrs.field(default=0, init=False)
    _line: bytes = attrs.field(default=b"", init=False)
    _in_trailer: bool = attrs.field(default=False, init=False)

    def feed(self, data: bytes) -> bytes:
        """Return the payload in *data*; `b""` when it holds only framing.

        Raises:
            HTTPException: this is no chunked framing.
        """
        if self._line:
            data, self._line = self._line + data, b""
        payload: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.is_over:
            if self._left:
                piece = data[at : at + self._left]
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            line_end = data.find(b"\n", at)
            if line_end < 0:
                self._hold(data[at:])
                break
            self._take_line(data[at:line_end])
            at = line_end + 1
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _hold(self, line: bytes) -> None:
        if len(line) > _MAX_LINE:
            raise HTTPException(f"a line of the chunk framing is longer than {_MAX_LINE} bytes")
        self._line = line

    def _take_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.is_over = not line.strip()
            return
        size = line.partition(b";")[0].strip()
        if not size:  # the line end behind a chunk
            return
        try:
            self._left = int(size, 16)
        except ValueError:
            self._left = -1
        if self._left < 0:
            raise HTTPException("a chunk of the body has no size")
        self._in_trailer = self._left == 0


class PromptResponse(HTTPResponse):
    """`http.client`'s response, whose `read1` reads chunked bodies by the packet. Use `read1` alone on it."""

    _dechunker: Dechunker | None = None

    def read1(self, n: int = -1) -> bytes:
        if not self.chunked or self.fp is None:
            return super().read1(n)
        if self._dechunker is None:
            self._dechunker = Dechunker()
        feed, read1 = self._dechunker.feed, self.fp.read1
        while True:
            packet = read1(n)
            if not packet:
                self.close()
                raise IncompleteRead(b"")
            payload = feed(packet)
            if self._dechunker.is_over:
                self.close()  # as the library does: the connection is free for the next request
                return payload
            if payload:
                return payload
