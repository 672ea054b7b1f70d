"""Questions that somebody answers from another thread, or within a time, or not at all.

A question is on the desk before anybody is told of it, so no answer can come too early. Each
is answered once; closing the desk ends every wait with nothing, and a clock with `EXPIRED`.
"""

from __future__ import annotations

import contextvars
import threading
import uuid
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any, Final

import attrs

from llm_agent.call_context import Asker

EXPIRED: Final[Mapping[str, Any]] = {"action": "expired"}
"""What a question is answered that nobody answered in time."""


def asked_within(asker: Asker, request: Mapping[str, Any], timeout: float | None) -> Any:
    """Call *asker* and return its answer; `EXPIRED` after *timeout* seconds.

    With a timeout it is called on a daemon thread that sees the caller's context variables; one
    that does not come back in time is left alone, and its answer dropped.

    Raises:
        Whatever the asker raises in time.
    """
    if timeout is None:
        return asker(request)
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put((asker(request), None))
        except BaseException as error:  # raised again on the thread that waits
            answers.put((None, error))

    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(ask,), name="llm-agent-ask", daemon=True).start()
    try:
        answer, error = answers.get(timeout=timeout)
    except Empty:
        return dict(EXPIRED)
    if error is not None:
        raise error
    return answer


@attrs.frozen(kw_only=True)
class PendingAsk:
    """A question that waits for `run.answer(ask_id, answer)`."""

    ask_id: str
    call_id: str
    request: Mapping[str, Any]

    _answers: SimpleQueue[Any] = attrs.field(factory=SimpleQueue, init=False, repr=False, eq=False)


@attrs.define(eq=False)
class AskDesk:
    """The open questions of one run. Any thread."""

    _open: dict[str, PendingAsk] = attrs.field(factory=dict, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    # Guards both; a leaf.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def put(self, call_id: str, request: Mapping[str, Any]) -> PendingAsk:
        """Lay a question on the desk; on a closed one it is over at once."""
        ask = PendingAsk(ask_id=str(uuid.uuid4()), call_id=call_id, request=dict(request))
        with self._lock:
            if self._is_closed:
                ask._answers.put(None)
            else:
                self._open[ask.ask_id] = ask
        return ask

    def answer(self, ask_id: str, answer: Any) -> bool:
        """Answer one question; False when it is unknown, answered or over."""
        with self._lock:
            ask = self._open.pop(ask_id, None)
        if ask is None:
            return False
        ask._answers.put(answer)
        return True

    def wait(self, ask: PendingAsk, timeout: float | None) -> Any:
        """Wait for the answer to *ask*, and take it off the desk after *timeout* seconds.

        Returns:
            What was answered; `EXPIRED` when nobody did in time, `None` when the question was
            taken back or the desk closed.
        """
        try:
            return ask._answers.get(timeout=timeout)
        except Empty:
            self.answer(ask.ask_id, dict(EXPIRED))  # unless an answer has just been faster
            return ask._answers.get()

    def take_back(self, call_ids: set[str]) -> None:
        """End the questions of calls that nobody waits for any more."""
        for ask in self.pending():
            if ask.call_id in call_ids:
                self.answer(ask.ask_id, None)

    def pending(self) -> tuple[PendingAsk, ...]:
        """The open questions, oldest first."""
        with self._lock:
            return tuple(self._open.values())

    def close(self) -> None:
        """End every question, and every later one."""
        with self._lock:
            self._is_closed = True
        for ask in self.pending():
            self.answer(ask.ask_id, None)
