"""A real terminal, and somebody who types at it."""

from __future__ import annotations

import os
import pty
import select
import threading
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any

import pytest

from llm_agent import terminal


class Typist:
    """The far side of a terminal: sees what is shown, types, and collects the answer."""

    def __init__(self) -> None:
        self.master, self._slave = pty.openpty()
        self.device = os.ttyname(self._slave)
        self.seen = ""
        self._outcome: list[Any] = []
        self._thread: threading.Thread | None = None

    def ask(self, request: Mapping[str, Any], **options: Any) -> None:
        """Have the question put, on a thread."""

        def work() -> None:
            try:
                self._outcome.append(terminal.ask(request, terminal=self.device, **options))
            except BaseException as error:
                self._outcome.append(error)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def wait_for(self, text: str) -> str:
        """Read until *text* is shown; return all that was shown so far."""
        give_up = monotonic() + 5
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, give_up - monotonic()))
            assert ready, f"{text!r} was not shown; this was:\n{self.seen}"
            self.seen += os.read(self.master, 65_536).decode().replace("\r\n", "\n")
        return self.seen

    def type(self, text: str, after: str = "> ") -> None:
        """Type *text* once *after* is shown; what was shown counts as read."""
        self.wait_for(after)
        self.seen = self.seen[self.seen.index(after) + len(after) :]
        os.write(self.master, text.encode())

    def answer(self) -> Any:
        """Wait for the answer; what was raised is raised here."""
        assert self._thread is not None
        self._thread.join(5)
        assert not self._thread.is_alive(), f"no answer came; this was shown:\n{self.seen}"
        (outcome,) = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        for handle in (self.master, self._slave):
            if handle >= 0:
                os.close(handle)


@pytest.fixture
def typist() -> Iterator[Typist]:
    """Somebody at a terminal of this test's own."""
    someone = Typist()
    yield someone
    someone.close()
