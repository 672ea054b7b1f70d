"""A backend that plays a script instead of asking a model.

One entry serves one attempt, in the order the attempts come. It does what the port
`ports.Backend` says and nothing more: what it streams wakes up when it is cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from llm_agent.errors import BackendError, ConfigError
from llm_agent.messages import Delta, ToolRequest
from llm_agent.ports import CompletionRequest
from llm_agent.testing.script import CallIds, Gate, pieces_of

Part = str | ToolRequest | Delta | Gate | BaseException
Entry = Part | Sequence[Part] | Callable[[CompletionRequest], "Entry"]


class ScriptedBackend:
    """A backend whose every attempt is written down beforehand.

    Args:
        script: one entry per attempt, retries included; any iterable, so an endless one too.
            A callable in its place writes every entry when it is asked. An entry is

            - a `str`: an answer, streamed in a few pieces;
            - `call("tool", key=value)`: a turn that asks for a tool;
            - a list of texts, calls, deltas, gates and exceptions: all of it in one turn, an
              exception breaking it off there;
            - a list of `Delta` (or one): exactly these, no finish reason added;
            - a `Gate`, or `hang(text)`: its text, then nothing until it opens or the attempt
              is cancelled;
            - an exception: the attempt raises it at once;
            - a callable `(request) -> entry`.
        model: the name events and counters will use.
        max_tokens: what the backend says about its cap.

    A script that has run out fails the attempt with `script exhausted after N` and is not
    asked again. May be shared by runs and threads; entries go out in the order of the calls.
    """

    def __init__(
        self,
        script: Iterable[Entry] | Callable[[CompletionRequest], Entry],
        *,
        model: str = "scripted",
        max_tokens: int | None = None,
    ) -> None:
        if isinstance(script, str | Gate | ToolRequest | Delta | BaseException):
            raise ConfigError(
                f"ScriptedBackend: script must be a list of entries, one per attempt, got {type(script).__name__}"
            )
        self.model = model
        self.max_tokens = max_tokens
        self.requests: list[CompletionRequest] = []
        """What was asked, one per attempt, in order."""
        if isinstance(script, list | tuple):
            for number, entry in enumerate(script, 1):
                _check_entry(number, entry)
        self._entries: Iterator[Entry] = _endless(script) if callable(script) else iter(script)
        self._served = 0
        self._ids = CallIds()
        # Guards the requests and the place in the script; a leaf (endless iterables are run under it).
        self._lock = threading.Lock()

    def stream(self, request: CompletionRequest) -> ScriptedStream:
        """Play the next entry; see the class.

        Raises:
            BackendError: the script is exhausted (class `http`, status 400: nobody retries that).
            Anything the entry says.
        """
        entry = self._next_entry(request)
        while callable(entry) and not isinstance(entry, type):
            entry = entry(request)
        if isinstance(entry, BaseException | type):
            raise entry
        return ScriptedStream(parts=self._parts(entry))

    def _next_entry(self, request: CompletionRequest) -> Entry:
        with self._lock:
            self.requests.append(request)
            for entry in self._entries:
                self._served += 1
                return entry
            raise BackendError(f"script exhausted after {self._served}", error_class="http", status=400)

    def _parts(self, entry: Part | Sequence[Part]) -> Iterator[Delta | Gate | BaseException]:
        parts = [entry] if isinstance(entry, Part) else list(entry)
        for part in parts:
            match part:
                case str():
                    yield from (Delta(piece) for piece in pieces_of(part))
                case ToolRequest():
                    yield Delta(tool_calls=(self._ids.fill(part),))
                case Delta() | Gate() | BaseException():
                    yield part
                case _:
                    raise ConfigError(f"ScriptedBackend: cannot stream a {type(part).__name__}: {part!r}")
        if not any(isinstance(part, Delta) for part in parts):
            asks = any(isinstance(part, ToolRequest) for part in parts)
            yield Delta(finish_reason="tool_calls" if asks else "stop")


def _check_entry(number: int, entry: object) -> None:
    """Refuse what no attempt can play, while the test is still being written."""
    for part in entry if isinstance(entry, list | tuple) else [entry]:
        if not isinstance(part, Part) and not callable(part):
            raise ConfigError(
                f"ScriptedBackend: entry {number} must be a text, call(...), Delta, Gate, exception, a callable, or a "
                f"list of these, got {type(part).__name__}"
            )


def _endless(write: Callable[[CompletionRequest], Entry]) -> Iterator[Entry]:
    while True:
        yield write


@attrs.define(eq=False, kw_only=True)
class ScriptedStream:
    """One attempt of a `ScriptedBackend`; what `Backend.stream` returns."""

    _parts: Iterator[Delta | Gate | BaseException] = attrs.field(repr=False)
    is_cancelled: bool = attrs.field(default=False, init=False)
    _wake: threading.Event = attrs.field(factory=threading.Event, init=False, repr=False)

    def __iter__(self) -> Iterator[Delta]:
        for part in self._parts:
            match part:
                case BaseException():
                    raise part
                case Delta():
                    yield part
                case Gate(text=text):
                    if text:
                        yield Delta(text)
                    self._stop_at(part)

    def _stop_at(self, gate: Gate) -> None:
        forget = gate.enter(self._wake.set)
        try:
            self._wake.wait()
        finally:
            forget()
        # Cleared before the look: a cancel that comes in between is seen at the next gate.
        self._wake.clear()
        if self.is_cancelled:
            raise BackendError("the scripted stream was cancelled", error_class="connection")

    def cancel(self) -> None:
        """Wake whoever waits at a gate of this stream; from any thread, idempotent."""
        self.is_cancelled = True
        self._wake.set()
