"""One question at a time: the lock that a human's attention is, and what is put to them.

The law: two questions are never open at once, also where nobody waits for the first one any more
but its prompt has not returned yet. A cancel ends every wait here; so does, behind a prompt that
does not return though nobody wants its answer any more, the waiting policy's `ask_timeout`. A
prompt that asks from a thread of its own runs that thread in a copy of its context
(`contextvars`), as all code of a call does; otherwise it waits for itself. What is asked, and
what an answer means, does not live here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from time import monotonic
from typing import Any, Final, Literal

import attrs

from llm_agent.asks import asked_within
from llm_agent.call_context import Asker, ToolCallContext, current_call

Entry = Literal["entered", "cancelled", "stuck", "reentered"]

# Who waits for their turn looks whether they are still wanted this often, in seconds: a cancel
# is an event that nobody else can be waiting on.
LOOK_SECONDS: Final = 0.05


class AskRequest(dict[str, Any]):
    """A question as plain data, with one thing beside it: whether the answer is still wanted."""

    def __init__(self, facts: Mapping[str, Any], question: Question) -> None:
        super().__init__(facts)
        self._question = question

    @property
    def cancelled(self) -> Question:
        """`.cancelled.is_set()`: the run was cancelled, the call is overdue, or the question expired.

        An asker that looks at it can give up; what it returns then is not listened to.
        """
        return self._question


@attrs.define(eq=False)
class Question:
    """One question: while it is open, and while it is still on somebody's screen."""

    call: ToolCallContext | None = None
    """The call it is about, within a run."""
    is_shown: bool = attrs.field(default=False, init=False)
    """Whether a prompt for it has not returned yet."""
    is_left: bool = attrs.field(default=False, init=False)
    """Whether its turn is over, with an answer or without."""
    unwanted_since: float | None = attrs.field(default=None, init=False)
    """When it was first noticed that nobody waits for the answer; by the monotonic clock."""

    def is_set(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.is_left or (self.call is not None and self.call.cancelled.is_set())


# The questions whose prompts this code runs in, from the outside in.
_INSIDE: ContextVar[tuple[Question, ...]] = ContextVar("llm_agent_open_questions", default=())


class AskLock:
    """One question at a time, for all policies that share it. Any thread."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._open: Question | None = None
        # Guards the open question and what is noted on it. Never held while somebody is asked.
        self._turn = threading.Condition()

    def enter(self, question: Question, patience: float | None) -> Entry:
        """Wait until *question* may be asked.

        Args:
            patience: seconds to wait behind a question that is only still shown, because it has
                expired or its run is over.

        Returns:
            `entered`: it is open, and `leave` must follow. `reentered`: this code runs inside
            the prompt of the question that is open, and would wait for itself.
        """
        if self._pid != os.getpid():  # a forked child inherits the lock, but not who would open it
            self._renew()
        with self._turn:
            while self._open is not None:
                if self._open in _INSIDE.get():
                    return "reentered"
                if question.is_set():
                    return "cancelled"
                if _is_stuck(self._open, patience):
                    return "stuck"
                self._turn.wait(LOOK_SECONDS)
            self._open = question
        return "entered"

    def leave(self, question: Question) -> None:
        """End the turn of *question*; the next one is let in when no prompt shows it any more."""
        with self._turn:
            question.is_left = True
            self._let_in_behind(question)

    def _let_in_behind(self, question: Question) -> None:
        if self._open is question and question.is_left and not question.is_shown:
            self._open = None
            self._turn.notify_all()

    def shown(self, question: Question, asker: Asker) -> Asker:
        """Return *asker* as one that counts as shown until it has returned, however late."""

        def ask(request: Mapping[str, Any]) -> Any:
            with self._turn:
                if question.is_left:  # on a busy machine its thread may come too late
                    return None
                question.is_shown = True
            token = _INSIDE.set((*_INSIDE.get(), question))
            try:
                return asker(request)
            finally:
                _INSIDE.reset(token)
                with self._turn:
                    question.is_shown = False
                    self._let_in_behind(question)

        return ask


def _is_stuck(question: Question, patience: float | None) -> bool:
    """Whether the open question is only still shown, and for longer than the next one waits."""
    if patience is None or not question.is_set():
        return False
    if question.unwanted_since is None:
        question.unwanted_since = monotonic()
    return monotonic() > question.unwanted_since + patience


@attrs.frozen(kw_only=True)
class Prompt:
    """Who is asked, how long, and in whose turn."""

    on_ask: Asker | Literal["run"] | None = None
    timeout: float | None = None
    lock: AskLock = attrs.field(factory=AskLock)

    @property
    def asker(self) -> Asker | Literal["run"] | None:
        """Who would be asked on this thread: the policy's own asker, else the loop's; `None`: nobody."""
        call = current_call()
        if self.on_ask is None:
            return None if call is None else call.asker
        return None if self.on_ask == "run" and call is None else self.on_ask

    @contextmanager
    def turn(self, question: Question) -> Iterator[Entry]:
        """Wait for the turn of *question*, the deadline standing still until it is over."""
        with nullcontext() if question.call is None else question.call.pausing():
            entry = self.lock.enter(question, self.timeout)
            try:
                yield entry
            finally:
                if entry == "entered":
                    self.lock.leave(question)

    def put(self, question: Question, facts: Mapping[str, Any], asker: Asker | Literal["run"]) -> Any:
        """Ask, within the turn, and return what was answered.

        Raises:
            Whatever the asker raises.
        """
        request = AskRequest(facts, question)
        shown: Asker | Literal["run"] = "run" if asker == "run" else self.lock.shown(question, asker)
        if question.call is not None:
            return question.call.ask(request, shown, self.timeout)
        assert shown != "run"  # outside of a run, nobody answers for it
        return asked_within(shown, request, self.timeout)
