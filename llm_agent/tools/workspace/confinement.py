"""Paths that a model names, walked by file descriptor below one folder.

The law: nothing outside of the root is opened, whatever links lie on the way and whoever swaps
them meanwhile. No path is compared and then used; each component is opened in the folder that
was opened before it, by a call that follows no link. A link is read and walked like typed
components, so one that stays inside is followed and one that leads out is refused. Trusted
are the folders above the root, hard links and mounts: what is linked or mounted inside is inside.
A root that is replaced is the new folder from then on, never what a link in its place leads to.
What is done with files: `text_files`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from llm_agent.errors import ConfigError

# To be walked through, a folder need not be readable; only Linux has a flag for that.
_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that nobody writes to would never return.
OPEN_TO_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Source: path_resolution(7), the kernel's own limit.
_MOST_LINKS: Final = 40
# Folders within each other: each is a file descriptor on the way.
DEEPEST: Final = 64
# Source: limits.h(0p), PATH_MAX of Linux.
_PATH_CHARS: Final = 4_096
_SHOWN_CHARS: Final = 200
# What a link in the way of a call that follows none is answered with, by system.
_LINK_IN_THE_WAY: Final = frozenset({errno.ELOOP, errno.EMLINK})

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE: Final = re.compile(r"[A-Za-z]:")


@attrs.frozen
class Place:
    """Where something is, or would be: a name in a folder that is open. Valid within `Root.place`."""

    folder: int
    """File descriptor of the folder."""
    name: str
    """No link when it was looked at; `.` for the folder itself."""
    shown: str
    """The path as the model gave it, relative to the root; cut where it is very long."""

    def status(self) -> os.stat_result | None:
        """Return what is there, a link as a link; `None` for nothing."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _in_words(problem, self.shown) from problem

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the regular file that is here, to be read; never a device, and never waiting.

        Raises:
            OSError: there is none; says what there is.
        """
        try:
            handle = os.open(self.name, OPEN_TO_READ, dir_fd=self.folder)
        except OSError as problem:
            raise _in_words(problem, self.shown) from problem
        with _closed_after(handle):
            _check_regular(os.fstat(handle).st_mode, self.shown)  # first: Python opens no folder
            with open(handle, "rb", buffering=0, closefd=False) as file:
                yield file

    def replace(self, data: bytes, seen: os.stat_result | None) -> None:
        """Put a file here, whole or not at all, in the place of the one *seen*; it keeps its mode and owner.

        Other names of that file (hard links) keep what they had.

        Raises:
            OSError: it cannot be written; or what is here is not what was *seen* any more. Two of
                this process never miss each other; another process's change within the
                microseconds before the rename can be.
        """
        # A rename would not ask: it needs the folder's permission, not the file's.
        if seen is not None and not os.access(self.name, os.W_OK, dir_fd=self.folder, follow_symlinks=False):
            raise PermissionError(f"{self.shown} is write-protected")
        draft = f".{uuid.uuid4().hex}.tmp"
        try:
            self._draft(draft, data, seen)
            with _RENAMES.lock:
                if _identity(self.status()) != _identity(seen):
                    raise OSError(f"{self.shown} was changed by somebody else meanwhile; read it again")
                os.replace(draft, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except BaseException as problem:
            with suppress(OSError):  # the first trouble is the one to tell
                os.unlink(draft, dir_fd=self.folder)
            if isinstance(problem, OSError):
                raise _in_words(problem, self.shown) from problem
            raise

    def _draft(self, name: str, data: bytes, seen: os.stat_result | None) -> None:
        handle = os.open(name, _DRAFT, 0o666 if seen is None else 0o600, dir_fd=self.folder)
        with open(handle, "wb") as file:
            file.write(data)
            if seen is not None:
                _take_over(handle, seen)

    @contextmanager
    def as_folder(self) -> Iterator[int]:
        """Open the folder that is here, to be listed.

        Raises:
            OSError: it is no folder; says so.
        """
        try:
            handle = os.open(self.name, OPEN_FOLDER, dir_fd=self.folder)
        except OSError as problem:
            raise _in_words(problem, self.shown) from problem
        with _closed_after(handle):
            yield handle


class Root:
    """One folder, and the way to whatever lies below it. Immutable; any thread.

    Args:
        path: an existing folder. Links on the way to it are followed once, here.

    Raises:
        ConfigError: it is no folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"Workspace: root must be a path, got {type(path).__name__}")
        named = Path(path).absolute()
        self.path: Final = named.resolve()
        if not self.path.is_dir():
            raise ConfigError(f"Workspace: root must be an existing folder, got {str(path)!r}")
        # A model may have been told either of the two.
        self._spellings = (named, self.path)

    @contextmanager
    def place(self, path: str, *, make_folders: bool = False) -> Iterator[Place]:
        """Walk to *path*; the place is open while the block lasts.

        Args:
            path: relative to the root, or absolute and below it. The last component may be
                missing; with *make_folders* the ones before it may be, too, and are made.

        Raises:
            ValueError: no path that can be walked (`..`, `~`, a drive, a control character).
            PermissionError: it leads out of the root.
            OSError: a folder on the way is missing, or cannot be entered.
        """
        parts = self.parts(path)
        shown = _shortened("/".join(parts) or ".")
        way: list[int] = []
        try:
            way.append(self._opened())
            name = self._walked(way, list(parts), shown, make_folders)
            yield Place(way[-1], name, shown)
        finally:
            for folder in way:
                os.close(folder)

    @contextmanager
    def as_working_folder(self) -> Iterator[str]:
        """Yield what a command takes as its `cwd` to be in this folder, whatever its path leads to by then."""
        handle = self._opened()
        with _closed_after(handle):
            yield f"/proc/self/fd/{handle}" if os.path.isdir("/proc/self/fd") else str(self.path)

    def _opened(self) -> int:
        try:
            return os.open(self.path, _STEP)
        except OSError as problem:
            raise type(problem)(f"the root of the workspace cannot be entered: {problem.strerror}") from problem

    def parts(self, path: str) -> tuple[str, ...]:
        """Return the components of *path*, as seen from the root; nothing is looked up.

        Raises:
            ValueError, PermissionError: as `place` does.
        """
        check_spelling(path)
        parts = _components(path)
        if ".." in parts:
            raise ValueError(f"{_quoted(path)}: .. is not followed; give the path from the root of the workspace")
        inside = self._inside(path) if path.startswith("/") else parts
        if inside is None:
            raise _leads_out(path)
        if len(inside) > DEEPEST:
            raise _too_deep(path)
        return inside

    def _inside(self, absolute: str) -> tuple[str, ...] | None:
        found = Path("/", *_components(absolute))
        for spelling in self._spellings:
            if found.is_relative_to(spelling):
                return found.relative_to(spelling).parts
        return None

    def _walked(self, way: list[int], pending: list[str], shown: str, make_folders: bool) -> str:
        """Open folder after folder onto *way*; return the name that is left in the last one."""
        pending.reverse()
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":  # of a link's; typed ones are refused before
                _step_back(way, shown)
                continue
            target = _link_target(name, way[-1])
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(f"{shown}: too many symbolic links on the way")
                pending += reversed(self._of_link(target, way, shown))
            elif pending:
                if len(way) > DEEPEST:
                    raise _too_deep(shown)
                way.append(_entered(name, way[-1], shown, make_folders))
            else:
                return name
        return "."

    def _of_link(self, target: str, way: list[int], shown: str) -> tuple[str, ...]:
        """What a link's target adds to what is still to be walked."""
        if not target.startswith("/"):
            return _components(target)
        # Only its beginning is compared, and that is the root's own name; what follows is walked.
        inside = self._inside(target)
        if inside is None:
            raise _leads_out(shown)
        while len(way) > 1:
            os.close(way.pop())
        return inside


@contextmanager
def _closed_after(handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(handle)


def check_spelling(path: str) -> None:
    """Refuse what other programs would understand as another place than we do, and what is no path at all.

    Raises:
        ValueError: names the path and the way out.
    """
    shown = _quoted(path)
    if _CONTROL.search(path):
        raise ValueError(f"{shown}: a path has no control characters")
    if path.startswith("~"):
        raise ValueError(f"{shown}: ~ is not expanded; give the path from the root of the workspace")
    if _DRIVE.match(path) or "\\" in path:
        raise ValueError(f"{shown}: drives and \\ are not understood; give the path from the root, with /")
    if len(path) > _PATH_CHARS:
        raise ValueError(f"{shown}: a path has at most {_PATH_CHARS} characters")


def _shortened(path: str) -> str:
    half = _SHOWN_CHARS // 2
    return path if len(path) <= _SHOWN_CHARS else f"{path[:half]}[...]{path[-half:]}"


def _quoted(path: str) -> str:
    return repr(_shortened(path))


def _components(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _leads_out(shown: str) -> PermissionError:
    return PermissionError(
        f"{_quoted(shown)} is outside of the workspace, or leads out of it; only paths inside can be used"
    )


def _too_deep(shown: str) -> ValueError:
    return ValueError(f"{_quoted(shown)}: more than {DEEPEST} folders within each other")


def _link_target(name: str, folder: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:  # no link, or nothing: whoever opens it finds out
        return None


def _step_back(way: list[int], shown: str) -> None:
    if len(way) == 1:
        raise _leads_out(shown)
    os.close(way.pop())


def _entered(name: str, folder: int, shown: str, make: bool) -> int:
    try:
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
        return os.open(name, _STEP, dir_fd=folder)
    except OSError as problem:
        raise _in_words(problem, shown, name) from problem


def _in_words(problem: OSError, shown: str, name: str | None = None) -> OSError:
    """The same trouble in words for the model; our own as it is."""
    if problem.errno is None:
        return problem
    where = shown if name is None else f"{shown}: {_shortened(name)}"
    if problem.errno == errno.ENOENT:
        return FileNotFoundError(f"{where} does not exist")
    if problem.errno == errno.ENOTDIR:
        return NotADirectoryError(f"{where} is no folder")
    if problem.errno in _LINK_IN_THE_WAY:
        return OSError(f"{where} became a link while it was opened; try again")
    return type(problem)(f"{where}: {os.strerror(problem.errno)}")


def _check_regular(mode: int, shown: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{shown} is a folder; list it")
    if not stat.S_ISREG(mode):
        raise OSError(f"{shown} is a {kind_of(mode)}, not a file")


_KINDS: Final = {
    stat.S_IFDIR: "folder",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
}


def kind_of(mode: int) -> str:
    """Name what a mode says: `folder`, `file`, `link`, or one of the special ones."""
    return _KINDS.get(stat.S_IFMT(mode), "device")


def _take_over(handle: int, seen: os.stat_result) -> None:
    if sys.platform != "win32" and (seen.st_uid, seen.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(handle, seen.st_uid, seen.st_gid)
    os.fchmod(handle, stat.S_IMODE(seen.st_mode))  # last: a change of owner takes bits away


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Renames:
    """One at a time in this process: between the look at a file and the rename, nobody of ours comes in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_RENAMES: Final = _Renames()
os.register_at_fork(after_in_child=_RENAMES.__init__)  # type: ignore[misc]  # whoever held it is not in the child
