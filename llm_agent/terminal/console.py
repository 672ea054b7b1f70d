"""The terminal itself: lines out, one line in, and no wait that cannot be ended.

The law: the terminal's settings are never changed, so there is nothing to restore after a kill;
Ctrl-C stays a signal to the main thread. A line is what was typed after its prompt was due: what
lay there before was no answer to it. The terminal is opened anew for each question: what is done to
the handle of standard input or output, or where they lead, does not matter.
"""

from __future__ import annotations

import locale
import os
import selectors
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import attrs

from llm_agent.errors import NoTerminal
from llm_agent.terminal.harmless import rows_of

# How often it is looked whether the answer is still wanted, in seconds: an event cannot wake a selector.
_LOOK: Final = 0.05
_CHUNK: Final = 4_096
# Columns below which no line is broken.
_NARROWEST: Final = 20


class NotWanted(Exception):
    """Nobody waits for the answer any more."""


class Flag(Protocol):
    """What says that an answer is not wanted any more; a `threading.Event` is one."""

    def is_set(self) -> bool: ...


@attrs.define(eq=False)
class Console:
    """One open terminal. Used by one thread."""

    _handle: int
    _unwanted: tuple[Flag, ...]

    def show(self, text: str) -> None:
        """Write *text* and a line end.

        Raises:
            NotWanted: before all of it was taken, the answer was not wanted any more.
            NoTerminal: the terminal is gone.
        """
        self._write(f"{self._fitted(text)}\n")

    def read_line(self, prompt: str) -> str | None:
        """Show *prompt* and return the next line, without its end; `None` at the end of the input.

        What was typed before is dropped, and so is what was pasted behind the line.

        Raises:
            NotWanted, NoTerminal: as `show` does.
        """
        self._forget_typed()
        self._write(self._fitted(prompt))
        typed = b""
        while b"\n" not in typed and b"\r" not in typed:
            data = self._read()
            if not data:
                self._write("\n")
                return None
            typed += data
        line = typed.replace(b"\r", b"\n").partition(b"\n")[0]
        return line.decode(locale.getencoding(), "replace")

    def take_leave(self) -> None:
        """Say that the question is over, if the terminal takes it at once; half an answer is not left for others."""
        self._forget_typed()
        with suppress(OSError):
            os.write(self._handle, b"\n[this is not asked any more]\n")

    def _fitted(self, text: str) -> str:
        """Break lines for the terminal's width, so that it does not: it would put no bar in front."""
        try:
            columns = os.get_terminal_size(self._handle).columns
        except OSError:
            return text
        if columns < _NARROWEST:  # 0 where nobody has told it
            return text
        return "\n".join(row for line in text.split("\n") for row in rows_of(line, columns))

    def _forget_typed(self) -> None:
        with suppress(termios.error):
            termios.tcflush(self._handle, termios.TCIFLUSH)

    def _read(self) -> bytes:
        while True:
            self._wait(selectors.EVENT_READ)
            try:
                return os.read(self._handle, _CHUNK)
            except BlockingIOError:
                continue
            except OSError as problem:
                raise NoTerminal(f"the terminal is gone: {problem.strerror}") from problem

    def _write(self, text: str) -> None:
        data = text.encode(locale.getencoding(), "backslashreplace")
        while data:
            self._wait(selectors.EVENT_WRITE)  # a terminal that was stopped by Ctrl-S takes nothing
            try:
                data = data[os.write(self._handle, data) :]
            except BlockingIOError:
                continue
            except OSError as problem:
                raise NoTerminal(f"the terminal is gone: {problem.strerror}") from problem

    def _wait(self, event: int) -> None:
        look = _LOOK if self._unwanted else None
        with selectors.DefaultSelector() as selector:
            selector.register(self._handle, event)
            while True:
                if any(flag.is_set() for flag in self._unwanted):
                    raise NotWanted
                if selector.select(look):
                    return


@contextmanager
def opened(terminal: str | None, unwanted: tuple[Flag, ...]) -> Iterator[Console]:
    """Open a terminal for the length of a block.

    Args:
        terminal: its device; by default the one this process belongs to.
        unwanted: each of these ends every wait when set.

    Raises:
        NoTerminal: there is none.
    """
    handle = _handle(terminal)
    try:
        yield Console(handle, unwanted)
    finally:
        os.close(handle)


def _handle(terminal: str | None) -> int:
    # Non-blocking is a setting of this opening alone: who else has the terminal open keeps waiting as before.
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    for device in [terminal] if terminal is not None else _devices():
        try:
            handle = os.open(device, flags)
        except OSError:
            continue
        if os.isatty(handle):
            return handle
        os.close(handle)
    raise NoTerminal(
        "there is no terminal to ask at; run this in one, or decide by rules, or give another on_ask"
        if terminal is None
        else f"{terminal} is no terminal that can be opened"
    )


def _devices() -> Iterator[str]:
    yield "/dev/tty"
    # A process in a container may be shown a terminal that it does not belong to.
    with suppress(OSError, ValueError, AttributeError):
        if os.isatty(sys.stdin.fileno()) and os.isatty(sys.stderr.fileno()):
            yield os.ttyname(sys.stdin.fileno())
