"""Bytes as they come off the wire, made into the data of server-sent events.

The law: one linear pass, and an event whose last byte has arrived is handed on at once.
Line ends of every kind, byte order marks, comments, bad UTF-8 and cuts at any byte are dealt
with here; sseclient-py reads the events that are more than one `data:` line. What the data
means is not decided here.
"""

from __future__ import annotations

import attrs
from sseclient import SSEClient

from llm_agent.errors import BackendError

# No completion needs more; a server that never ends its event must not fill the memory.
MAX_EVENT_BYTES = 16 * 1024 * 1024
# sseclient-py copies an event once per line: at most so many lines, and so many bytes copied
# (a fraction of a second).
MAX_EVENT_LINES = 10_000
_MAX_BYTES_COPIED = 2_000_000_000

_BOM = b"\xef\xbb\xbf"
_COLON = ord(":")
_FIELDS = (b"data", b"event", b"id", b"retry")


@attrs.frozen
class NamedEvent:
    """An event with a type of its own (`event: error`); one without is handed on as its data alone."""

    name: str
    data: bytes


@attrs.define(eq=False)
class EventParser:
    """One stream's parser: feed it what was read, in order; it hands back the events completed by it.

    Source: WHATWG HTML, server-sent events. Not kept: `id` and `retry`, which no
    completion needs.
    """

    is_event_stream: bool = attrs.field(default=False, init=False)
    """Whether a field or a comment has been seen, so that this is no other kind of text."""

    # Bytes of the event that is still coming; joined once, when its end is there.
    _parts: list[bytes] = attrs.field(factory=list, init=False)
    _size: int = attrs.field(default=0, init=False)
    _at_start: bool = attrs.field(default=True, init=False)
    _after_return: bool = attrs.field(default=False, init=False)

    def feed(self, chunk: bytes) -> list[bytes | NamedEvent]:
        """Return the events that *chunk* completes, in order; often one, often none.

        Raises:
            BackendError: one event is larger than 16 MB or has more than 10,000 lines.
        """
        if self._at_start:
            chunk = self._without_mark(chunk)
        if self._after_return or b"\r" in chunk:
            chunk = self._with_plain_line_ends(chunk)
        if self._parts:
            if not self._completes(chunk):
                self._keep(chunk)
                return []
            chunk = b"".join((*self._parts, chunk))
            self._parts = []
            self._size = 0
        blocks = chunk.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            self._keep(rest)
        return self._events(blocks) if blocks else []

    def finish(self) -> list[bytes | NamedEvent]:
        """Return what stood behind the last complete event, read as if it had been ended.

        A cut can leave half an event here: use it only if its data is whole by itself.
        """
        # A carriage return, or the two bytes of a mark, may still be waiting.
        block = b"".join(self._parts).rstrip(b"\n")
        self._parts = []
        return self._events([block])

    def _completes(self, chunk: bytes) -> bool:
        return b"\n\n" in chunk or (chunk[:1] == b"\n" and self._parts[-1][-1:] == b"\n")

    def _keep(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_EVENT_BYTES:
            raise BackendError(f"event stream: one event is larger than {MAX_EVENT_BYTES} bytes", "response")

    def _without_mark(self, chunk: bytes) -> bytes:
        chunk = b"".join((*self._parts, chunk))
        self._parts = []
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._parts = [chunk] if chunk else []
            return b""
        self._at_start = False
        self._size = 0
        return chunk.removeprefix(_BOM)

    def _with_plain_line_ends(self, chunk: bytes) -> bytes:
        # A lone CR ends a line at once; if an LF follows, in whichever chunk, it belongs to it.
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        if chunk[-1:] == b"\r":
            self._after_return = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _events(self, blocks: list[bytes]) -> list[bytes | NamedEvent]:
        found: list[bytes | NamedEvent] = []
        for block in blocks:
            # One data line and nothing else: nearly every event of a live stream.
            if block[:5] == b"data:" and b"\n" not in block:
                found.append(block[6:] if block[5:6] == b" " else block[5:])
            elif block:
                found += self._event(block)
        if found:
            self.is_event_stream = True
        return found

    def _event(self, block: bytes) -> list[bytes | NamedEvent]:
        lines = [line for line in block.split(b"\n") if line and self._is_field(line)]
        if len(lines) > MAX_EVENT_LINES or (len(lines) > 1 and len(lines) * len(block) > _MAX_BYTES_COPIED):
            raise BackendError(f"event stream: one event has {len(lines)} lines, too many to read", "response")
        if len(lines) == 1 and lines[0][:5] == b"data:":
            return [lines[0][5:].removeprefix(b" ")]
        return _read_fields(b"\n".join(lines)) if lines else []

    def _is_field(self, line: bytes) -> bool:
        if line[0] == _COLON:
            self.is_event_stream = True
            return False
        # Lines of no meaning stay here: sseclient-py would write them to its log.
        return line.split(b":", 1)[0] in _FIELDS


def _read_fields(block: bytes) -> list[bytes | NamedEvent]:
    try:
        block.decode()
    except UnicodeDecodeError:
        block = block.decode("utf-8", "replace").encode()
    # An iterator, whose repr says nothing: sseclient-py logs its source.
    events = SSEClient(iter((block + b"\n\n",))).events()
    return [
        NamedEvent(event.event, event.data.encode()) if event.event != "message" else event.data.encode()
        for event in events
    ]
