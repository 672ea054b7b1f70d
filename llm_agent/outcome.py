"""How a run ends: the three endings, and the outcome a caller holds afterwards.

An ending is what the loop decides; the outcome is everything a program asks about it later.
A failed run is data. `RunStopped` carries an ending from the stage that found it to the one
place that ends runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs

from llm_agent.codec import clean_value
from llm_agent.errors import RunNotCompleted
from llm_agent.events import AttemptRecord, RunCancelled, RunCompleted, RunFailed, Stage, Terminal
from llm_agent.messages import Message, Usage
from llm_agent.tool_operation import SAFE_TO_REPEAT, Idempotency

if TYPE_CHECKING:
    from decimal import Decimal

Status = Literal["completed", "failed", "cancelled"]


@attrs.frozen
class Completed:
    """The model had its last word."""

    final: str
    rounds: int


@attrs.frozen(kw_only=True)
class Failed:
    """The run could not go on; *error* says why in words, *reason* in a word a program can test."""

    error: str
    reason: str | None = None
    exception: BaseException | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Cancelled:
    """Somebody asked for the end, and it was noticed in *stage*."""

    stage: Stage


Ending = Completed | Failed | Cancelled


class RunStopped(BaseException):  # no error: it carries how the run ends
    """Raised by a stage that finds the run must end.

    A `BaseException`, so that the shields around foreign code (`except Exception`) let it pass.
    """

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


@attrs.frozen(kw_only=True)
class ModelSpend:
    """What one model was billed in a run."""

    attempts: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int = 0
    cached_prompt_tokens: int | None = None
    cost: float | None = None
    cost_estimated: bool = False
    complete: bool = True

    def plus(self, usage: Usage, estimated_cost: float | None = None) -> ModelSpend:
        """Return this with one more attempt; what it did not report adds nothing.

        Args:
            estimated_cost: stands in for a cost that was not reported.
        """
        total = usage.billed_total
        is_estimated = usage.cost is None and estimated_cost is not None
        return ModelSpend(
            attempts=self.attempts + 1,
            prompt_tokens=_sum(self.prompt_tokens, usage.prompt_tokens),
            completion_tokens=_sum(self.completion_tokens, usage.completion_tokens),
            total_tokens=self.total_tokens + (total or 0),
            cached_prompt_tokens=_sum(self.cached_prompt_tokens, usage.cached_prompt_tokens),
            cost=_sum_of_costs(self.cost, estimated_cost if is_estimated else usage.cost),
            cost_estimated=self.cost_estimated or is_estimated,
            complete=self.complete and total is not None,
        )

    def to_dict(self) -> dict[str, Any]:
        return _told_spend(self)


def as_decimal(amount: int | float | Decimal) -> Decimal:
    """Return *amount* as the decimal number it is written as: 0.1 is a tenth."""
    from decimal import Decimal  # not at the top: 2 % of importing the library, for runs that report a cost

    return Decimal(str(amount))


def _sum_of_costs(known: float | None, more: float | None) -> float | None:
    if known is None or more is None:
        return more if known is None else known
    # Costs are floats, as they come; added as decimals, or 0.7 and 0.1 would stay below a cap of 0.8.
    return float(as_decimal(known) + as_decimal(more))


def _sum(known: Any, more: Any) -> Any:
    if known is None or more is None:
        return more if known is None else known
    return known + more


@attrs.frozen(kw_only=True)
class Spent:
    """What a run was billed and how long it worked. A number nobody reported is `None`."""

    attempts: int = 0
    """Requests that were started, failed and cancelled ones included."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int = 0
    cached_prompt_tokens: int | None = None
    """Part of *prompt_tokens*."""
    cost: float | None = None
    cost_estimated: bool = False
    """Whether part of *cost* was computed from a price table, because a provider reported none."""
    wall_clock: float = 0.0
    """Seconds the run worked."""
    complete: bool = True
    """Whether every attempt reported its total, and nothing was asked whose bill never came."""
    by_model: Mapping[str, ModelSpend] = attrs.field(factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Kebab-case, unreported numbers absent; `cost-estimated` only where it is true."""
        told = _told_spend(self)
        told["by-model"] = {model: spend.to_dict() for model, spend in self.by_model.items()}
        return told


def _told_spend(spend: ModelSpend | Spent) -> dict[str, Any]:
    told = _told(spend)
    if not spend.cost_estimated:
        del told["cost-estimated"]
    return told


def _told(record: Any) -> dict[str, Any]:
    values = {f.name.replace("_", "-"): getattr(record, f.name) for f in attrs.fields(type(record))}
    return {key: value for key, value in values.items() if value is not None}


@attrs.frozen(kw_only=True)
class UnknownOperation:
    """A call that was handed over in this run and whose outcome nobody knows."""

    op_id: str
    call_id: str
    tool: str
    arguments: str
    idempotency: Idempotency
    reason: str | None = None
    """`cancelled`, `deadline`, or `answer-lost`: its provider said so."""

    def to_dict(self) -> dict[str, Any]:
        return _told(self)


@attrs.frozen(kw_only=True)
class Outcome:
    """How a run ended. Kept for ever; reading it never raises."""

    status: Status
    final: str = ""
    """The last committed turn's text, for a completed run."""
    messages: tuple[Message, ...] = ()
    error: str | None = None
    exception: BaseException | None = attrs.field(default=None, eq=False)
    """What raised, where something of the caller's did; not part of `to_dict`."""
    reason: str | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    """Every failed attempt of a failed run, recovered ones included; otherwise empty."""
    rounds: int = 0
    spent: Spent = attrs.field(factory=Spent)
    unknown: tuple[UnknownOperation, ...] = ()
    """Operations dispatched in this run whose outcome is unknown."""
    undelivered: tuple[str, ...] = ()
    """Steers that arrived too late for a round."""
    # Whether something counted the bill (a budget): the wire form has the key only then.
    _bill_is_told: bool = attrs.field(default=False, alias="bill_is_told", repr=False, eq=False)

    @property
    def outcome(self) -> Status:
        """The same as *status*, under its wire key."""
        return self.status

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    @property
    def safe_to_retry(self) -> bool:
        """Whether asking for the same again repeats no side effect that may have happened."""
        return all(op.idempotency in SAFE_TO_REPEAT for op in self.unknown)

    def raise_for_failure(self) -> Outcome:
        """Return this outcome, or raise.

        Raises:
            RunNotCompleted: the run failed or was cancelled.
        """
        if not self.ok:
            raise RunNotCompleted(self) from self.exception
        return self

    def to_dict(self) -> dict[str, Any]:
        """Kebab-case plain data: the six keys of every outcome, and `spent` where a budget counted."""
        told: dict[str, Any] = {
            "outcome": self.status,
            "final": self.final,
            "messages": [message.to_dict() for message in self.messages],
            # An error's words may quote a file name that is no UTF-8.
            "error": clean_value(self.error),
            "attempts": [record.to_dict() for record in self.attempts],
            "reason": clean_value(self.reason),
        }
        if self._bill_is_told:
            spent = self.spent.to_dict()
            told["spent"] = {key: value for key, value in spent.items() if key not in ("attempts", "by-model")}
            told["spent"]["wall-clock"] = round(self.spent.wall_clock, 3)
        return told

    def __getstate__(self) -> dict[str, Any]:
        # Exceptions of foreign code may not pickle; their words are in *error*.
        return {f.name: getattr(self, f.name) for f in attrs.fields(Outcome) if f.name != "exception"} | {
            "exception": None
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


def terminal_of(ending: Ending, outcome: Outcome, round_no: int | None) -> Terminal:
    """Return the event that tells *outcome*; the same facts, in the words of the stream."""
    match ending:
        case Completed():
            return RunCompleted(final=outcome.final, rounds=outcome.rounds, message_count=len(outcome.messages))
        case Failed():
            return RunFailed(
                error=outcome.error or "", attempts=outcome.attempts, round=round_no, reason=outcome.reason
            )
        case Cancelled(stage=stage):
            return RunCancelled(stage=stage, round=round_no, reason=outcome.reason)
