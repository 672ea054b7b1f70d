"""One writer per transcript: an operating system's lock on a file beside it.

The law: the lock file is never deleted (whoever had it open would hold a lock on nothing),
and nothing in it is believed: the lock is what counts, and it ends with its process.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from llm_agent.errors import SessionInUse
from llm_agent.jsonl import path_trouble

_MODE: Final = 0o666  # less the umask


class WriterLock:
    """The right to write one transcript, held until `close` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Take the lock of the transcript *path*, whose folder exists.

        Raises:
            SessionInUse: another session holds it, here or in another process.
            TranscriptError: the lock file cannot be opened.
        """
        self._handle = -1
        self._process = os.getpid()
        beside = path.with_name(path.name + ".lock")
        try:
            self._handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = _holder(self._handle)
            self.close()
            raise SessionInUse(f"transcript {path}: another session is writing it{holder}") from exc
        except OSError as exc:
            self.close()
            raise path_trouble(beside, exc) from exc
        self._sign()

    def _sign(self) -> None:
        """Leave our process id for the message of whoever is refused."""
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, str(self._process).encode(), 0)
        except OSError:
            pass  # only a courtesy: the lock holds without it

    def close(self) -> None:
        """Let go. Idempotent; in a forked child the parent keeps its lock."""
        handle, self._handle = self._handle, -1
        if handle < 0:
            return
        if os.getpid() == self._process:
            # Closing is not enough: a child between fork and exec has the lock open, too.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    def __del__(self) -> None:
        self.close()


def _holder(handle: int) -> str:
    signed = os.pread(handle, 20, 0)
    return f" (process {signed.decode()})" if signed.isdigit() else ""
