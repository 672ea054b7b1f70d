"""The event grammar as a check: `check_events` refuses every stream a consumer could trip over.

The grammar is written in `llm_agent.events`; here it is a table, plus what a table cannot say
(numbers that must agree, texts that must join up). The life of tool calls is in `ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from llm_agent import events as told
from llm_agent.events import Event
from llm_agent.messages import Message
from llm_agent.testing.ledger import CallLedger, Violation

# The places between two events, named as an error message reads.
BEFORE: Final = "before the run"
BETWEEN: Final = "between rounds"
COMPACTING: Final = "in a compaction"
COMPACTED: Final = "between a compaction and its round"
ROUND: Final = "in a round, no attempt open"
FORCED: Final = "in a compaction within a round"
ATTEMPT: Final = "in an attempt"
VERDICT: Final = "between a succeeded attempt and its verdict"
LIMITED: Final = "between a reached limit and its discarded turn"
DISCARDED: Final = "behind a discarded turn"
COMMITTING: Final = "between an assistant message and its commit"
COMMITTED: Final = "behind a committed turn"
TOOLS: Final = "among a turn's calls"
OVER: Final = "behind the terminal"

_NEXT_ROUND: Final = {"compaction-started": COMPACTING, "round-started": ROUND}
_STOP: Final = {"run-failed": OVER, "run-cancelled": OVER}
_CALL_KINDS: Final = (
    "tool-call",
    "tool-started",
    "tool-progress",
    "ask-pending",
    "ask-answered",
    "tool-result",
    "tool-abandoned",
)

# The machine: which kind may come in which place, and where it leads. `log` may come anywhere.
GRAMMAR: Final[dict[str, dict[str, str]]] = {
    BEFORE: {"run-started": BETWEEN},
    BETWEEN: {**_NEXT_ROUND, **_STOP},
    COMPACTING: {"compaction-done": COMPACTED},
    COMPACTED: {"round-started": ROUND, **_STOP},
    ROUND: {
        "attempt-started": ATTEMPT,
        # A request that fits no window is made smaller once within its round.
        "compaction-started": FORCED,
        "turn-discarded": DISCARDED,
        "run-failed": OVER,
    },
    FORCED: {"compaction-done": ROUND},
    ATTEMPT: {
        "token": ATTEMPT,
        "attempt-failed": ROUND,
        "attempt-succeeded": VERDICT,
        "turn-discarded": DISCARDED,
    },
    VERDICT: {"assistant-message": COMMITTING, "limit-reached": LIMITED, "turn-discarded": DISCARDED},
    LIMITED: {"turn-discarded": DISCARDED},
    DISCARDED: {**_NEXT_ROUND, **_STOP},
    COMMITTING: {"turn-committed": COMMITTED},
    COMMITTED: {"tool-call": TOOLS, "run-completed": OVER, **_NEXT_ROUND, **_STOP},
    TOOLS: {**dict.fromkeys(_CALL_KINDS, TOOLS), **_NEXT_ROUND, **_STOP},
    OVER: {},
}

# In which stages a run can be cancelled, by place; everywhere else it is at the top of a round.
_AT_TOP: Final = ("start", "compaction")
_STAGES: Final[dict[str, tuple[str, ...]]] = {
    DISCARDED: ("streaming", "backoff", "compaction"),
    TOOLS: ("tools", *_AT_TOP),
}


def check_events(
    events: Iterable[Event | Mapping[str, Any]],
    *,
    after: int | None = None,
    complete: bool = True,
    abrupt: bool = False,
) -> list[Event]:
    """Assert that a run's events keep the grammar written in `llm_agent.events`.

    Args:
        events: the run's events in order, or their `to_dict()` forms; read to its end, so
            `run.events(timeout=5)` may be given as it is.
        after: the stream starts behind this seq. What belongs to the round it starts in is
            not judged; from the next round on everything is.
        complete: whether the stream must end with a terminal.
        abrupt: whether run-failed may leave an attempt, a compaction or calls open, as a run
            that died of an error inside the engine.

    Returns:
        The events, as a list.

    Raises:
        AssertionError: names the seq and kind of the first offending event, the rule, and
            what came before it.
    """
    seen: list[Event] = []
    reader = _Reader(after=after, abrupt=abrupt)
    for given in events:
        event = told.from_dict(given) if isinstance(given, Mapping) else given
        try:
            reader.read(event)
        except Violation as violation:
            raise AssertionError(_complaint(event, len(seen), str(violation), seen)) from None
        seen.append(event)
    if complete and reader.place != OVER:
        raise AssertionError(f"the events end {reader.place or 'in the middle'} without a terminal{_trail(seen)}")
    return seen


def _complaint(event: Event, index: int, rule: str, seen: list[Event]) -> str:
    seq = index if event.seq is None else event.seq
    return f"event seq {seq} ({event.kind}): {rule}{_trail(seen)}"


def _trail(seen: list[Event]) -> str:
    return f" [before it: {', '.join(event.kind for event in seen[-6:]) or 'nothing'}]"


class _Reader:
    """Reads one stream, event by event; raises `Violation` at the first that may not come."""

    def __init__(self, *, after: int | None, abrupt: bool) -> None:
        # Nobody knows where in a round a later stream begins: "" is that place.
        self.place = BEFORE if after is None else ""
        self._abrupt = abrupt
        self._next_seq = 0 if after is None else after + 1
        self._run_id: str | None = None
        self._round: int | None = 0 if after is None else None
        self._attempt: told.AttemptStarted | None = None
        self._last_failure: told.AttemptFailed | None = None
        self._has_failed = False
        self._was_forced = False
        self._tokens: list[str] = []
        self._turn: Message | None = None
        self._discarded: told.TurnDiscarded | None = None
        self._calls = CallLedger()

    def read(self, event: Event) -> None:
        self._check_envelope(event)
        if self.place == OVER:
            raise Violation("nothing comes behind the terminal")
        if isinstance(event, told.Log):
            return
        if self.place == "" and not self._finds_its_place(event):
            return
        self._check_consequence(event)
        target = self._target(event)
        self._check_round(event)
        self._check_content(event)
        self.place = target

    def _finds_its_place(self, event: Event) -> bool:
        if event.is_terminal:
            self.place = OVER
        elif isinstance(event, told.RoundStarted):
            self.place, self._round = BETWEEN, event.round - 1
        return self.place == BETWEEN

    def _check_envelope(self, event: Event) -> None:
        if event.seq != self._next_seq:
            raise Violation(f"seq must be contiguous: expected {self._next_seq}, got {event.seq}")
        self._next_seq += 1
        if not event.run_id:
            raise Violation("an event of a run carries its run id, got none")
        if self._run_id not in (None, event.run_id):
            raise Violation(f"all events carry one run id: expected {self._run_id!r}, got {event.run_id!r}")
        self._run_id = event.run_id

    def _target(self, event: Event) -> str:
        allowed = GRAMMAR[self.place]
        if event.kind in allowed:
            return allowed[event.kind]
        if self._abrupt and isinstance(event, told.RunFailed):
            return OVER
        raise Violation(f"may not come {self.place}; expected one of {', '.join(allowed)}")

    def _check_consequence(self, event: Event) -> None:
        """A discarded turn says how the run goes on; the next event must agree."""
        if self._discarded is None or self.place != DISCARDED:
            return
        match self._discarded.reason:
            case "cancelled" if not isinstance(event, told.RunCancelled):
                raise Violation("a turn discarded as cancelled is followed by run-cancelled")
            case "failed" if not isinstance(event, told.RunFailed):
                raise Violation("a turn discarded as failed is followed by run-failed")
            case _:
                return

    def _check_round(self, event: Event) -> None:
        number = getattr(event, "round", None)
        if number is None or self._round is None:
            return
        # What comes at the top of a round belongs to the round that is about to start.
        is_at_top = self.place in (BETWEEN, COMPACTING, COMPACTED, DISCARDED, COMMITTED, TOOLS) and (
            event.is_terminal or isinstance(event, told.RoundStarted | told.CompactionStarted | told.CompactionDone)
        )
        expected = (self._round, self._round + 1) if is_at_top else (self._round,)
        if number not in expected:
            raise Violation(f"the round must be {' or '.join(map(str, expected))}, got {number}")

    def _check_content(self, event: Event) -> None:
        if event.kind in _CALL_KINDS:
            self._calls.read(event)
            return
        if self.place == TOOLS and not (self._abrupt and isinstance(event, told.RunFailed)):
            self._calls.close(event)
        match event:
            case told.RoundStarted():
                self._open_round(event)
            case told.CompactionStarted() if self.place == ROUND:
                self._force_compaction()
            case told.AttemptStarted():
                self._open_attempt(event)
            case told.Token():
                self._add_token(event)
            case told.AttemptFailed() | told.AttemptSucceeded():
                self._close_attempt(event)
            case told.AssistantMessage(message=message):
                self._take_turn(message)
            case told.TurnDiscarded():
                self._discard(event)
            case told.RunCompleted():
                self._complete(event)
            case told.RunFailed() if self.place == ROUND and not self._abrupt and event.reason != "context-exhausted":
                raise Violation("a round that fails discards its turn, unless its request fits no window")
            case told.RunCancelled(stage=stage) if stage is not None:
                self._check_stage(stage)
        if self.place == COMMITTED and self._turn is not None and self._turn.tool_calls:
            raise Violation(f"the turn asks for {len(self._turn.tool_calls)} calls: they are announced first")

    # -- rounds and attempts -------------------------------------------------------------

    def _open_round(self, event: told.RoundStarted) -> None:
        if self._round is not None and event.round != self._round + 1:
            raise Violation(f"rounds count from 1 without gaps: expected {self._round + 1}, got {event.round}")
        self._round = event.round
        self._attempt = self._last_failure = self._discarded = self._turn = None
        self._was_forced = self._has_failed = False

    def _force_compaction(self) -> None:
        if self._was_forced:
            raise Violation("a compaction is forced once per round")
        # The chain starts over: attempts count from 1 again, at any backend.
        self._was_forced = True
        self._attempt = self._last_failure = None

    def _open_attempt(self, event: told.AttemptStarted) -> None:
        expected = self._attempt.attempt + 1 if self._attempt else 1
        if event.attempt != expected:
            raise Violation(f"attempts count from 1 without gaps: expected {expected}, got {event.attempt}")
        if self._last_failure is not None:
            _check_disposition(self._last_failure, event)
        self._attempt = event
        self._tokens = []

    def _add_token(self, event: told.Token) -> None:
        assert self._attempt is not None  # by the table
        if not event.text:
            raise Violation("a token is never empty")
        if event.attempt not in (None, self._attempt.attempt):
            raise Violation(f"a token belongs to the open attempt {self._attempt.attempt}, got {event.attempt}")
        self._tokens.append(event.text)

    def _close_attempt(self, event: told.AttemptFailed | told.AttemptSucceeded) -> None:
        assert self._attempt is not None  # by the table
        opened = (self._attempt.attempt, self._attempt.backend_index)
        if (event.attempt, event.backend_index) != opened:
            raise Violation(
                f"closes attempt {event.attempt} of backend {event.backend_index}, but attempt {opened[0]} of "
                f"backend {opened[1]} is open"
            )
        if isinstance(event, told.AttemptFailed):
            if event.backoff is not None and event.disposition != "retry-same":
                raise Violation(f"a backoff comes only with retry-same, got {event.disposition}")
            self._last_failure = event
            self._has_failed = True

    # -- verdicts and endings ------------------------------------------------------------

    def _take_turn(self, message: Message) -> None:
        if message.role != "assistant":
            raise Violation(f"a turn is the assistant's, got role {message.role!r}")
        streamed = "".join(self._tokens)
        if streamed != message.text:
            raise Violation(f"the tokens must join up to the message: expected {message.text!r}, got {streamed!r}")
        self._turn = message
        self._calls = CallLedger(message.tool_calls)

    def _discard(self, event: told.TurnDiscarded) -> None:
        if (event.reason == "limit") != (self.place == LIMITED):
            raise Violation(f"limit-reached and the reason limit belong together, got {event.reason!r} {self.place}")
        if self.place == ATTEMPT and event.reason != "cancelled" and not self._abrupt:
            raise Violation(f"only a cancel discards the turn of an open attempt, got {event.reason!r}")
        if self.place == ROUND and event.reason == "failed" and not self._has_failed:
            raise Violation("a turn fails only by a failed attempt, and there was none")
        self._discarded = event

    def _complete(self, event: told.RunCompleted) -> None:
        if self._turn is not None and event.final != self._turn.text:
            raise Violation(f"final is the last turn's text: expected {self._turn.text!r}, got {event.final!r}")
        if event.rounds not in (None, self._round):
            raise Violation(f"rounds must be {self._round}, got {event.rounds}")

    def _check_stage(self, stage: told.Stage) -> None:
        is_midway = self.place == DISCARDED and self._discarded is not None and self._discarded.reason == "cancelled"
        allowed = _STAGES[self.place] if self.place in _STAGES and (is_midway or self.place != DISCARDED) else _AT_TOP
        if stage not in allowed:
            raise Violation(f"a cancel {self.place} has stage {' or '.join(allowed)}, got {stage}")
        if stage == "backoff" and (self._last_failure is None or self._last_failure.disposition != "retry-same"):
            raise Violation("a backoff follows an attempt that failed with retry-same")


def _check_disposition(failure: told.AttemptFailed, event: told.AttemptStarted) -> None:
    """The failed attempt before this one said what would happen; it must have happened."""
    before, now = failure.backend_index, event.backend_index
    match failure.disposition:
        case "abort":
            raise Violation("no attempt follows an abort in its round")
        case "retry-same" if now != before:
            raise Violation(f"retry-same asks backend {before} again, got backend {now}")
        case "advance" if now <= before:
            raise Violation(f"advance leads to a backend behind {before}, got backend {now}")
