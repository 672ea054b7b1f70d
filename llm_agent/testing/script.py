"""The words a script is written in: calls, gates, pieces of text.

The scripted backend, the scripted provider and the fake server read the same words, so one
script can be played on any of them. Nothing here knows who plays it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import attrs

from llm_agent import codec
from llm_agent.messages import ToolRequest

# A text is streamed in this many pieces at most: enough to see order, few enough to read.
PIECES = 4


@attrs.define(eq=False)
class Gate:
    """A place where something scripted stops until the test lets it go on.

    Opened once, it stays open and lets everybody pass. It may stand in several scripts and
    be used from any thread.
    """

    text: str = ""
    """What a backend or a server streams before it stops here; what a provider answers behind it."""
    arrivals: int = attrs.field(default=0, init=False)
    """How many have come to this gate so far."""
    is_open: bool = attrs.field(default=False, init=False)

    # Guards the three above and the wakers; a leaf.
    _changed: threading.Condition = attrs.field(factory=threading.Condition, init=False, repr=False)
    _wakers: list[Callable[[], object]] = attrs.field(factory=list, init=False, repr=False)

    def wait_entered(self, timeout: float = 5.0, *, times: int = 1) -> None:
        """Wait until somebody stands at the gate.

        Args:
            timeout: seconds.
            times: how many arrivals to wait for, those already past included.

        Raises:
            TimeoutError: they did not come in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.arrivals >= times, timeout):
                raise TimeoutError(f"gate: expected {times} arrivals within {timeout:g} s, got {self.arrivals}")

    def open(self) -> None:
        """Let everybody pass, now and later; idempotent."""
        with self._changed:
            self.is_open = True
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def enter(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Arrive, and have *wake* called when the gate opens (at once, if it is open).

        Returns:
            How to take *wake* back; call it when the waiting is over, however it ended.
        """
        with self._changed:
            self.arrivals += 1
            self._wakers.append(wake)
            is_late = self.is_open
            self._changed.notify_all()
        if is_late:
            wake()
        return lambda: self._forget(wake)

    def _forget(self, wake: Callable[[], object]) -> None:
        with self._changed:
            self._wakers.remove(wake)

    def wait(self, timeout: float | None = None) -> bool:
        """Arrive and block until the gate opens, deaf to any cancel; False when *timeout* ran out."""
        opened = threading.Event()
        forget = self.enter(opened.set)
        try:
            return opened.wait(timeout)
        finally:
            forget()


def hang(text: str = "") -> Gate:
    """Return a gate that nobody means to open: *text* is streamed, then nothing comes.

    A backend hangs until it is cancelled, a server until the client leaves or the server is
    closed (without a text it does not even send headers), a provider for good.
    """
    return Gate(text)


def call(name: str, /, *, _id: str = "", _arguments: str | None = None, **arguments: object) -> ToolRequest:
    """Return one tool call as a scripted model makes it.

    Args:
        name: the tool.
        _id: its id; left out, whoever plays the script gives it one that is not taken.
        _arguments: the arguments' text, verbatim, for a model that does not write JSON.
        arguments: the arguments; sent as the text of a JSON object.
    """
    return ToolRequest(_id, name, codec.dumps(arguments).decode() if _arguments is None else _arguments)


@attrs.define(eq=False)
class CallIds:
    """Ids for calls that came without one: `call_1`, `call_2`, ..."""

    # `next` on a count is one step of the interpreter: no lock is needed.
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)

    def fill(self, request: ToolRequest) -> ToolRequest:
        """Return *request* with an id."""
        return request if request.id else attrs.evolve(request, id=f"call_{next(self._numbers)}")


def pieces_of(text: str, count: int = PIECES) -> list[str]:
    """Cut *text* into at most *count* pieces of one size, the last perhaps shorter; `""` into none."""
    size = max(1, -(-len(text) // count))
    return [text[at : at + size] for at in range(0, len(text), size)]
