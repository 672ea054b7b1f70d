"""One tool call's life, as a table.

    proposed ──dispatch──▶ dispatched ──settle──▶ completed | failed | outcome-unknown
        └────abandon────▶ abandoned

Every move is win-or-lose: the first one that is legal in the table happens, a later one
answers False and changes nothing. `abandoned` is certain (the call never left), and
`outcome-unknown` is certain too: that nobody knows. The law of this room: nothing ever
leads from one of them to the other.

Times are monotonic seconds and are passed in; the clock lives elsewhere.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal, get_args

import attrs

from llm_agent.canonical import data_digest
from llm_agent.errors import ConfigError

Idempotency = Literal["read-only", "idempotent", "destructive", "unknown"]
IDEMPOTENCIES: tuple[str, ...] = get_args(Idempotency)

# What may be repeated without harm, should its outcome be unknown.
SAFE_TO_REPEAT = frozenset({"read-only", "idempotent"})

Settlement = Literal["completed", "failed", "outcome-unknown"]
SETTLEMENTS: tuple[str, ...] = get_args(Settlement)

EXTRA_BY_OUTCOME: Final[Mapping[str, Mapping[str, Any]]] = {
    "completed": {},
    "failed": {"is-error": True},
    "outcome-unknown": {"outcome-unknown": True},
}
"""The keys beside a tool message that say how its call ended, when it did not just succeed."""


def call_signature(tool: str, arguments: str) -> str:
    """Return what makes two calls the same call: the tool, and its arguments in canonical text."""
    return f"{tool}\0{arguments}"


class OperationState(StrEnum):
    PROPOSED = "proposed"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    FAILED = "failed"
    OUTCOME_UNKNOWN = "outcome-unknown"
    ABANDONED = "abandoned"


class Verb(StrEnum):
    DISPATCH = "dispatch"
    SETTLE = "settle"
    ABANDON = "abandon"


_S, _V = OperationState, Verb

# The machine: what each verb leads to from each state. A pair that is missing is a lost
# race (answered False), except those in BUGS below.
TRANSITIONS: dict[OperationState, dict[Verb, frozenset[OperationState]]] = {
    _S.PROPOSED: {
        _V.DISPATCH: frozenset({_S.DISPATCHED}),
        _V.ABANDON: frozenset({_S.ABANDONED}),
    },
    _S.DISPATCHED: {
        _V.SETTLE: frozenset({_S.COMPLETED, _S.FAILED, _S.OUTCOME_UNKNOWN}),
    },
    _S.COMPLETED: {},
    _S.FAILED: {},
    _S.OUTCOME_UNKNOWN: {},
    _S.ABANDONED: {},
}
TERMINAL_STATES = frozenset(state for state, moves in TRANSITIONS.items() if not moves)

# Moves that no race explains: whoever tries one has lost track, and is told so.
BUGS = frozenset({(_S.PROPOSED, _V.SETTLE)})


@attrs.define(eq=False, kw_only=True)
class ToolOperation:
    """One call, from proposed to its end. Safe to use from several threads."""

    call_id: str
    tool: str
    """The tool's name as the model wrote it, perhaps `""`."""
    arguments: str = ""
    """Canonical text of the arguments."""
    idempotency: Idempotency = attrs.field(default="unknown")
    """Words for a repair, from configuration; nothing is ever retried on its strength."""
    run_id: str | None = None
    round: int | None = None
    op_id: str = attrs.field(factory=lambda: str(uuid.uuid4()))
    proposed_at: datetime = attrs.field(factory=lambda: datetime.now(UTC))

    state: OperationState = attrs.field(default=OperationState.PROPOSED, init=False)
    reason: str | None = attrs.field(default=None, init=False)
    """Why it was abandoned, or why its outcome is unknown."""

    # Guards the state, the reason and the three clock readings below; a leaf.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    _dispatched: float | None = attrs.field(default=None, init=False)
    _settled: float | None = attrs.field(default=None, init=False)
    _ask_seconds: float = attrs.field(default=0.0, init=False)
    _ask_depth: int = attrs.field(default=0, init=False)
    _ask_opened: float = attrs.field(default=0.0, init=False)

    @idempotency.validator
    def _known_idempotency(self, _: object, value: object) -> None:
        if value not in IDEMPOTENCIES:
            raise ConfigError(f"ToolOperation: idempotency must be one of {', '.join(IDEMPOTENCIES)}, got {value!r}")

    @property
    def arguments_digest(self) -> str:
        return data_digest(self.arguments)

    @property
    def signature(self) -> str:
        return call_signature(self.tool, self.arguments)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def outcome(self) -> str | None:
        """The terminal state, or `None` before it."""
        return self.state.value if self.is_terminal else None

    def dispatch(self, now: float, op_id: str = "") -> bool:
        """Mark the call as handed over (it *may* have reached the provider from now on)."""
        with self._lock:
            if not self._move(Verb.DISPATCH, OperationState.DISPATCHED):
                return False
            self.op_id = op_id or self.op_id
            self._dispatched = now
            return True

    def settle(self, outcome: Settlement, now: float, reason: str | None = None) -> bool:
        """Record how a dispatched call ended. The first answer stands.

        Raises:
            ValueError: *outcome* is no settlement (a call that left cannot be abandoned), or
                the call was never dispatched.
        """
        if outcome not in SETTLEMENTS:
            raise ValueError(
                f"tool call {self.call_id!r}: outcome must be one of {', '.join(SETTLEMENTS)}, got {outcome!r}"
            )
        with self._lock:
            if not self._move(Verb.SETTLE, OperationState(outcome)):
                return False
            self.reason = reason
            self._close_ask(now)
            self._settled = now
            return True

    def abandon(self, reason: str = "cancelled") -> bool:
        """Record that the call will never be handed over: it did not run."""
        with self._lock:
            if not self._move(Verb.ABANDON, OperationState.ABANDONED):
                return False
            self.reason = reason
            return True

    def _move(self, verb: Verb, target: OperationState) -> bool:
        if (self.state, verb) in BUGS:
            raise ValueError(f"tool call {self.call_id!r}: cannot {verb} while {self.state}")
        if target not in TRANSITIONS[self.state].get(verb, ()):
            return False
        self.state = target
        return True

    # -- the clock that pauses while a human is asked ------------------------------------

    def begin_ask(self, now: float) -> None:
        """Stop the working clock; asks nest, and the first one opens the span.

        An ask after the end (a provider that nobody waits for any more) changes nothing.
        """
        with self._lock:
            if self._settled is not None:
                return
            if self._ask_depth == 0:
                self._ask_opened = now
            self._ask_depth += 1

    def end_ask(self, now: float) -> None:
        """Close the innermost ask; the last one starts the working clock again."""
        with self._lock:
            if self._ask_depth == 1:
                self._close_ask(now)
            elif self._ask_depth > 1:
                self._ask_depth -= 1

    def _close_ask(self, now: float) -> None:
        if self._ask_depth:
            self._ask_depth = 0
            self._ask_seconds += max(0.0, now - self._ask_opened)

    @property
    def is_asking(self) -> bool:
        return self._ask_depth > 0

    @property
    def ask_seconds(self) -> float:
        """Seconds spent in asks that are over."""
        return self._ask_seconds

    def working_seconds(self, now: float) -> float:
        """Seconds since dispatch without the asks; 0 before dispatch, frozen after settling."""
        with self._lock:
            if self._dispatched is None:
                return 0.0
            end = now if self._settled is None else self._settled
            open_ask = max(0.0, end - self._ask_opened) if self._ask_depth else 0.0
            return max(0.0, end - self._dispatched - self._ask_seconds - open_ask)

    @property
    def duration(self) -> float | None:
        """Seconds from dispatch to settling, asks included; `None` until both are known."""
        if self._dispatched is None or self._settled is None:
            return None
        return self._settled - self._dispatched

    def to_dict(self) -> dict[str, Any]:
        """Kebab-case, what is not known yet absent."""
        told: dict[str, Any] = {
            "op-id": self.op_id,
            "call-id": self.call_id,
            "tool": self.tool,
            "arguments": self.arguments,
            "arguments-digest": self.arguments_digest,
            "idempotency": self.idempotency,
            "state": self.state.value,
            "proposed-at": self.proposed_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "run-id": self.run_id,
            "round": self.round,
            "reason": self.reason,
            "duration": self.duration,
            "ask-seconds": self._ask_seconds or None,
        }
        return {key: value for key, value in told.items() if value is not None}
