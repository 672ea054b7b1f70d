"""Files of JSON lines: append whole lines or nothing, read them back, mend a torn end.

The law: after every call the file ends with the last line that was appended successfully. A
line is bytes up to one 0x0A and nothing else separates lines (JSON text may hold every other
line end there is). What a line means is not known here.

Callers serialise: one thread at a time per object. The lock between processes lives in
`session.lock`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

import attrs

from llm_agent import codec
from llm_agent.errors import ConfigError, MalformedTranscript, TranscriptError

Durability = Literal["flush", "fsync"]
"""`flush`: a killed process loses nothing. `fsync`: nor does a power cut, at some 2 ms a line."""

# Larger buffers gain nothing, and a mapped file dies with SIGBUS when somebody truncates it.
_READ_BUFFER: Final = 1 << 20
_FIRST_LOOK: Final = 1 << 16
_MODE: Final = 0o666  # less the umask, as `open` has it


class Lines(Protocol):
    """Where lines are kept."""

    def append(self, line: bytes) -> None:
        """Keep *line*, which ends in its only 0x0A.

        Raises:
            TranscriptError: it could not be kept, and nothing of it is there.
        """
        ...

    def __iter__(self) -> Iterator[bytes]:
        """Yield every line kept until now, oldest first, with its line end."""
        ...

    def close(self) -> None:
        """Refuse further lines; reading still works. Idempotent."""
        ...


@attrs.define(eq=False)
class MemoryLines:
    """Lines that live as long as this object."""

    _lines: list[bytes] = attrs.field(factory=list, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def append(self, line: bytes) -> None:
        if self._is_closed:
            raise TranscriptError("the transcript in memory is closed; nothing can be appended")
        self._lines.append(line)

    def __iter__(self) -> Iterator[bytes]:
        return iter(tuple(self._lines))

    def close(self) -> None:
        self._is_closed = True


@attrs.frozen
class Snapshot:
    """The first *size* bytes of a file, for reading only."""

    path: Path
    size: int

    def append(self, line: bytes) -> None:
        raise TranscriptError(f"transcript {self.path}: it was opened for reading only; nothing can be appended")

    def __iter__(self) -> Iterator[bytes]:
        return read_lines(self.path, self.size)

    def close(self) -> None:
        return


class JsonlFile:
    """An append-only file of JSON lines, through one unbuffered handle.

    Made for one writer; `size` counts what was appended successfully. The end is not looked
    at when the file is opened: `mend` does that.
    """

    def __init__(self, path: Path, *, create: bool = False, durability: Durability = "flush") -> None:
        """Open *path* for appending.

        Raises:
            ConfigError: *durability* is neither of the two.
            TranscriptError: the file cannot be opened; the `OSError` is the cause.
        """
        self._handle = -1
        if durability not in get_args(Durability):
            raise ConfigError(f"durability must be one of {', '.join(get_args(Durability))}, got {durability!r}")
        self.path = path
        self._syncs = durability == "fsync"
        self._is_dirty = False
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            self._handle = os.open(path, flags | os.O_CREAT if create else flags, _MODE)
            self.size = os.fstat(self._handle).st_size
            if create and self._syncs:
                _sync_folder(path.parent)
        except OSError as exc:
            self.close()
            raise path_trouble(path, exc) from exc

    def append(self, line: bytes) -> None:
        if self._handle < 0:
            raise TranscriptError(f"transcript {self.path}: it is closed; nothing can be appended")
        if self._is_dirty:
            self._cut_back()
        # Dirty until the whole line is there: whatever interrupts us leaves the mark.
        self._is_dirty = True
        try:
            self._write(line)
        except OSError as exc:
            self._try_cut_back()
            raise path_trouble(self.path, exc) from exc
        self.size += len(line)
        self._is_dirty = False

    def _write(self, data: bytes) -> None:
        written = os.write(self._handle, data)
        while written < len(data):
            # A nearly full disk takes part of a line; only the next try says why.
            written += os.write(self._handle, data[written:])
        if self._syncs:
            os.fsync(self._handle)

    def _try_cut_back(self) -> None:
        try:
            self._cut_back()
        except TranscriptError:
            pass  # still dirty: the next append tries again, and says so

    def _cut_back(self) -> None:
        """Remove what an append that failed has left behind."""
        try:
            if os.fstat(self._handle).st_size > self.size:
                os.ftruncate(self._handle, self.size)
        except OSError as exc:
            raise TranscriptError(
                f"transcript {self.path}: an earlier write failed and left part of a line behind, which cannot be "
                f"removed ({exc.strerror}); close it and load it again"
            ) from exc
        self._is_dirty = False

    def mend(self) -> Torn | None:
        """Make the end of the file fit for appending; return what had to be cut off, if anything.

        A last line without its line end gets one (of the kind the line before has). Half a
        last line is removed. Both happen in place: that needs no space on a full disk and
        keeps mode, owner and links.

        Raises:
            MalformedTranscript: more than the last line is damaged; the file is as it was.
            TranscriptError: the file cannot be changed.
        """
        try:
            end = inspect_end(self.path, self._handle)
            if end.torn is not None:
                os.ftruncate(self._handle, end.keep)
            elif end.missing:
                self._write(end.missing)
            if self._syncs:
                os.fsync(self._handle)
        except OSError as exc:
            raise path_trouble(self.path, exc) from exc
        self.size = end.keep + len(end.missing)
        return end.torn

    def __iter__(self) -> Iterator[bytes]:
        return read_lines(self.path, self.size)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


def path_trouble(path: Path, error: OSError) -> TranscriptError:
    """Return the error for a path that the operating system refuses; raise it from *error*."""
    return TranscriptError(f"transcript {path}: {error.strerror or error}")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_lines(path: Path, size: int) -> Iterator[bytes]:
    """Yield the lines in the first *size* bytes of *path*, each with its line end.

    Raises:
        TranscriptError: it cannot be read.
    """
    try:
        with path.open("rb", buffering=_READ_BUFFER) as source:
            for line in source:
                size -= len(line)
                if size <= 0:
                    yield line[:size] if size < 0 else line
                    return
                yield line
    except OSError as exc:
        raise path_trouble(path, exc) from exc


# -- the end of a file that a crash may have cut -------------------------------------------


@attrs.frozen
class Torn:
    """Half a last line."""

    line: int
    """Its number, from 1."""
    raw: str
    """Its text as far as it can be read, without a line end."""

    def __str__(self) -> str:
        return f"line {self.line} was cut short by a crash and is left out: {self.raw[:80]!r}"


@attrs.frozen(kw_only=True)
class End:
    """What is to be done about the end of a file."""

    keep: int
    """Bytes that stay, from the start."""
    missing: bytes = b""
    """The line end that the last line lacks."""
    torn: Torn | None = None


def inspect_end(path: Path, handle: int) -> End:
    """Look at the last two lines of an open file.

    Raises:
        MalformedTranscript: both are damaged, or nothing but a damaged line is there.
        OSError: it cannot be read.
    """
    size = os.fstat(handle).st_size
    start, tail = _tail(handle, size)
    before, last = _split_last(tail)
    if is_whole(last):
        if not last or last.endswith(b"\n"):
            return End(keep=size)
        return End(keep=size, missing=b"\r\n" if before.endswith(b"\r\n") else b"\n")
    keep = start + len(before)
    line = _count_lines(handle, keep) + 1
    if not is_whole(_split_last(before)[1]):
        raise MalformedTranscript(
            str(path), line - 1, "malformed, and so is the FINAL line after it; a crash damages only one"
        )
    if not before.strip() and _is_blank(handle, start):
        raise MalformedTranscript(str(path), line, "malformed: the FINAL line is not JSON, and there is no other")
    raw = last.decode("utf-8", "replace").rstrip("\r\n")
    return End(keep=keep, torn=Torn(line, raw))


def _tail(handle: int, size: int) -> tuple[int, bytes]:
    """Return the end of the file, two whole lines of it or more, and where it starts."""
    span = _FIRST_LOOK
    while True:
        start = max(0, size - span)
        tail = os.pread(handle, size - start, start)
        if start == 0 or tail.count(b"\n", 0, -1) >= 2:
            return start, tail
        span *= 4


def _split_last(data: bytes) -> tuple[bytes, bytes]:
    """Split *data* before its last line, which keeps its line end if it has one."""
    cut = data.rfind(b"\n", 0, max(0, len(data) - 1)) + 1
    return data[:cut], data[cut:]


def is_whole(line: bytes) -> bool:
    """Whether *line* is blank or one JSON document, of whatever kind."""
    try:
        if line.decode().strip():
            codec.loads(line)
    except ValueError:
        return False
    return True


def _blocks(handle: int, end: int) -> Iterator[bytes]:
    for start in range(0, end, _READ_BUFFER):
        yield os.pread(handle, min(_READ_BUFFER, end - start), start)


def _count_lines(handle: int, end: int) -> int:
    return sum(block.count(b"\n") for block in _blocks(handle, end))


def _is_blank(handle: int, end: int) -> bool:
    return all(not block.strip() for block in _blocks(handle, end))
