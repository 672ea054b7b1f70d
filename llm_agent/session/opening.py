"""From a path to an opened transcript: lock, mend, replay, in this order.

The law: nothing is looked at, let alone mended, before the lock is ours; and who fails on the
way leaves no lock and no handle behind. Only `Session` uses this.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from llm_agent.codec import loads
from llm_agent.errors import MalformedTranscript, TranscriptError
from llm_agent.jsonl import Durability, JsonlFile, Lines, Snapshot, Torn, inspect_end, is_whole, path_trouble
from llm_agent.session.lock import WriterLock
from llm_agent.session.records import Refused
from llm_agent.session.replay import Replay


@attrs.define(eq=False)
class Opened:
    """What a session is made of."""

    path: Path | None
    """As it was given; `None` in memory."""
    lines: Lines
    lock: WriterLock | None = None
    replay: Replay = attrs.field(factory=Replay)
    warnings: tuple[Torn, ...] = ()

    def close(self) -> None:
        self.lines.close()
        if self.lock is not None:
            self.lock.close()


def open_new(path: Path, durability: Durability) -> Opened:
    """Open *path* for a new transcript; the replay is empty.

    Raises:
        SessionInUse, TranscriptError: as `Session.create`.
    """
    opened = open_any(path, durability)
    if opened.replay.line_count:
        opened.close()
        raise TranscriptError(f"transcript {path}: it has content, and a transcript is only ever appended to; load it")
    return opened


def open_any(path: Path, durability: Durability) -> Opened:
    """Open *path*, created where it is missing; the replay is empty when the file is.

    Raises:
        SessionInUse, TranscriptError: as `Session.open`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise path_trouble(path.parent, exc) from exc
    return _open(path, durability, create=True)


def open_existing(path: Path, durability: Durability) -> Opened:
    """Open the transcript *path*.

    Raises:
        SessionInUse, TranscriptError: as `Session.load`.
    """
    require(path)
    opened = _open(path, durability, create=False)
    if not opened.replay.line_count:
        opened.close()
        raise MalformedTranscript(str(path), 0, "it is empty")
    return opened


def open_snapshot(path: Path) -> Opened:
    """Open what *path* holds now, without a lock and without mending it.

    Raises:
        TranscriptError: as `Session.read`.
    """
    require(path)
    try:
        with path.open("rb") as source:
            end = inspect_end(path, source.fileno())
    except OSError as exc:
        raise path_trouble(path, exc) from exc
    opened = Opened(path, Snapshot(path, end.keep), warnings=() if end.torn is None else (end.torn,))
    replay_lines(path, opened.lines, opened.replay)
    if not opened.replay.line_count:
        raise MalformedTranscript(str(path), 0, "it is empty")
    return opened


def require(path: Path) -> None:
    """Raise `TranscriptError` when there is no file: a lock must not be made beside nothing."""
    try:
        path.stat()
    except OSError as exc:
        raise path_trouble(path, exc) from exc


def _open(path: Path, durability: Durability, *, create: bool) -> Opened:
    # The lock belongs to the file, whatever path leads to it.
    real = Path(os.path.realpath(path))
    lock = WriterLock(real)
    lines: JsonlFile | None = None
    try:
        lines = JsonlFile(real, create=create, durability=durability)
        _remove_stale(real)
        torn = lines.mend()
        opened = Opened(path, lines, lock, warnings=() if torn is None else (torn,))
        replay_lines(path, lines, opened.replay)
    except BaseException:
        if lines is not None:
            lines.close()
        lock.close()
        raise
    return opened


def _remove_stale(path: Path) -> None:
    """Remove what a repair of the original engine left when it was killed."""
    try:
        path.with_name(path.name + ".repair").unlink(missing_ok=True)
    except OSError as exc:
        raise path_trouble(path, exc) from exc


def replay_lines(path: Path, lines: Lines, replay: Replay) -> None:
    """Fold every line into *replay*.

    Raises:
        MalformedTranscript: a line is not JSON, or no transcript can go on with it.
        TranscriptError: the file cannot be read.
    """
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            envelope = loads(line)
        except ValueError as exc:
            raise MalformedTranscript(str(path), number, _damage(lines, number)) from exc
        try:
            replay.apply(replay.prepare(envelope))
        except Refused as exc:
            raise MalformedTranscript(str(path), number, str(exc)) from exc


def _damage(lines: Lines, number: int) -> str:
    """Say that line *number* is malformed, and how many others are."""
    bad = sum(1 for later, line in enumerate(lines, 1) if later >= number and not is_whole(line))
    others = f" ({bad} malformed lines in all)" if bad > 1 else ""
    return f"malformed: not JSON, and not the FINAL line; the file was damaged, not cut short{others}"
