"""A folder of whole texts, of which conversations have excerpts; and the tool that reads them.

The law: a file in the folder is whole or not there, is named after one name only, and is never
deleted (how long it is kept is the application's business). The model reaches files of this
folder and nothing else. What makes an excerpt: `llm_agent.excerpt`.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Self

from llm_agent.codec import clean_text
from llm_agent.errors import ConfigError
from llm_agent.ports import Stored
from llm_agent.tools.function import tool

_SUFFIX: Final = ".txt"

# Names that are a file name as they stand: on file systems that ignore case, too, and in a shell.
_PLAIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_UNSAFE: Final = re.compile(r"[^a-z0-9._-]+")
# What is left of any other name; a digest behind it makes it that name's alone.
_READABLE_CHARS: Final = 60

# The largest page, in characters: with the line above it, below the size (16,384) from which on
# the loop would make an excerpt of the page itself.
PAGE_CHARS: Final = 16_000
# A page nobody chose the size of: some 2,000 tokens.
_DEFAULT_PAGE: Final = 8_000
_PIECE: Final = 1 << 20  # bytes of a file in memory at a time
_MOST_LISTED: Final = 20


class ArtifactFolder:
    """Keeps texts as files of one folder; an `ArtifactStore`, and a tool that reads them back.

        store = ArtifactFolder("run.artifacts")
        Loop(..., artifact_store=store, tools=[..., store.read_artifact])

    Threads: any. The folder is made by the first write.
    """

    def __init__(self, path: str | os.PathLike[str], *, page_limit: int = PAGE_CHARS) -> None:
        """Use the folder *path*, which need not exist.

        Args:
            path: a relative one counts from the working directory of this moment.
            page_limit: the most characters that `read_artifact` gives at once; some hundred
                less than the size above which the loop makes excerpts, where that was set.

        Raises:
            ConfigError: *path* is no path, or *page_limit* no number of 1 or more.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"ArtifactFolder: path must be a path, got {type(path).__name__}")
        if isinstance(page_limit, bool) or not isinstance(page_limit, int) or page_limit < 1:
            raise ConfigError(f"ArtifactFolder: page_limit must be a number of characters above 0, got {page_limit!r}")
        self.path = Path(path).absolute()
        self._page_limit = page_limit

    @classmethod
    def beside(cls, transcript: str | os.PathLike[str]) -> Self:
        """Return the folder that belongs to a transcript: `run.artifacts` for `run.jsonl`."""
        return cls(Path(transcript).with_suffix(".artifacts"))

    def __repr__(self) -> str:
        return f"ArtifactFolder({str(self.path)!r})"

    # -- writing -----------------------------------------------------------------------------

    def write(self, name: str, text: str) -> Stored:
        """Keep *text* as UTF-8, line ends as they are, under a file name made from *name*.

        The same name again replaces its file. Lone surrogates become U+FFFD. As a transcript's
        lines, the file outlives the process, though perhaps not a power cut.

        Raises:
            OSError: it cannot be kept; nothing half-written is left, and an older file of that
                name is as it was.
        """
        data = clean_text(text).encode()
        file = file_name(name)
        self.path.mkdir(parents=True, exist_ok=True)
        _write_whole(self.path / file, data)
        return Stored(file=file, digest=hashlib.sha256(data).hexdigest(), bytes=len(data))

    # -- reading back ------------------------------------------------------------------------

    @tool(idempotency="read-only")
    def read_artifact(self, name: str, offset: int = 0, limit: int = _DEFAULT_PAGE) -> str:
        """Read a part of an artifact: the whole of a tool result that was too long to be shown.

        The first line of the answer says which characters follow, of how many, and how to read on.

        Args:
            name: the artifact's file name, as the shortened result gives it
            offset: how many characters to skip
            limit: how many characters to read; about 16000 at most
        """
        if offset < 0 or limit < 1:
            raise ValueError(f"offset must be 0 or more and limit 1 or more, got offset={offset}, limit={limit}")
        with self._opened(name) as file:
            page, total = _page(file, offset, offset + min(limit, self._page_limit))
        if offset > total:
            raise ValueError(f"offset {offset} is behind the end: {name} has {total} characters")
        end = offset + len(page)
        further = f"read on with offset {end}" if end < total else "this is the end"
        return f"[{name}: characters {offset} to {end} of {total}; {further}]\n{page}"

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file by its name in the folder, and nothing that a name could lead to."""
        files = self._files()
        if name not in files:
            raise FileNotFoundError(f"there is no artifact named {name[:100]!r}; {_listed(files)}")
        # Between the listing and now, the name may have become a link, or a pipe that nobody writes to.
        handle = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FileNotFoundError(f"{name} is no file")
            yield file

    def _files(self) -> list[str]:
        """Names of the artifacts, in order of their names."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if _is_artifact(entry))
        except FileNotFoundError:
            return []


def file_name(name: str) -> str:
    """Return the file name for *name*: flat, some 100 characters at most, and no other name's."""
    if _PLAIN_NAME.fullmatch(name):
        return name + _SUFFIX
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = _UNSAFE.sub("_", name.lower()).strip("._-")[:_READABLE_CHARS] or "artifact"
    # No plain name has a `~`: the two kinds cannot meet.
    return f"{readable}~{digest}{_SUFFIX}"


def _write_whole(path: Path, data: bytes) -> None:
    """Write under another name first: under its own, a file is whole from its first moment."""
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(draft, "xb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):  # the first trouble is the one to tell
            draft.unlink()
        raise


def _is_artifact(entry: os.DirEntry[str]) -> bool:
    is_ours = entry.name.endswith(_SUFFIX) and not entry.name.startswith(".")
    return is_ours and entry.is_file(follow_symlinks=False)


def _listed(files: Sequence[str]) -> str:
    if not files:
        return "there are none yet"
    more = f" and {len(files) - _MOST_LISTED} more" if len(files) > _MOST_LISTED else ""
    return f"there are {', '.join(files[:_MOST_LISTED])}{more}"


def _page(file: BinaryIO, start: int, end: int) -> tuple[str, int]:
    """Return the characters from *start* up to *end*, and how many the file has."""
    # Piece by piece: what a page costs in memory does not depend on the file.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    kept: list[str] = []
    position = 0
    while True:
        piece = file.read(_PIECE)
        text = decoder.decode(piece, final=not piece)
        kept.append(text[max(0, start - position) : max(0, end - position)])
        position += len(text)
        if not piece:
            return "".join(kept), position
