"""Keep the request inside the window: before it is needed, before it is sent, and once it was refused.

Three moments, one means. *Scheduled*: at the top of a round the compactor says that it is
time. *Preflight*: a request that does not fit a backend's window is not sent there. *Forced*:
no backend can take the request, so the conversation is made smaller once, and the chain is
asked once more. The law: nothing is sent of which it is known that it cannot fit. How a
compactor is run is `compacting`; how a conversation is made smaller is the compactor's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from llm_agent.budget import Misfit, RequestSize, Window, fixed_part_misfit, truncation_target, weigh
from llm_agent.loop.compacting import compact, gains
from llm_agent.loop.state import RunState
from llm_agent.messages import Message, Usage
from llm_agent.outcome import Failed, RunStopped
from llm_agent.ports import Compactor, TokenCounter, ToolDeclaration
from llm_agent.wire_view import WireView


@attrs.frozen
class Refusal:
    """A backend that cannot take the request: what it was counted, and what it would have to be."""

    counted: int
    target: int
    """Tokens of the whole request, in the units of *counter*."""
    counter: TokenCounter
    problem: str

    @property
    def kept_share(self) -> float:
        """How much of the request the target leaves: comparable where tokens of two counters are not."""
        return self.target / max(1, self.counted)


# -- scheduled -------------------------------------------------------------------------------


def make_room(state: RunState) -> int | None:
    """Have the conversation compacted when it is time.

    Returns:
        The tokens of the conversation and the run's context; `None` where no budget cares.

    Raises:
        RunStopped: cancelled meanwhile, or it cannot be made to fit.
    """
    if state.config.budget is None:
        return None
    tokens = _measure(state)
    compactor = state.config.compactor
    if compactor is None or not compactor.needs_compaction(state.conversation.messages, tokens):
        return tokens
    if _is_too_soon(state, compactor, tokens):
        return tokens
    _check_fixed_part(state)
    compaction = compact(state, compactor, tokens)
    tokens = _measure(state)
    # Where it fits all the same, that nothing more can be gained is no reason to stop.
    if compaction.exhausted and tokens > compactor.context_budget:
        size = weigh(state.config.counter, state.conversation.wire.messages, (), state.context_messages)
        raise _exhausted(state, str(Misfit(size, Window(size=compactor.context_budget, reserve=0, margin=0))))
    is_crowded = compactor.needs_compaction(state.conversation.messages, tokens)
    state.crowded_at = tokens if is_crowded else None
    return tokens


def _is_too_soon(state: RunState, compactor: Compactor, tokens: int) -> bool:
    """Whether the last compaction left a conversation that was due for the next one, and little has come since.

    Its recent part is the large one then, and a summary per round would gain a turn each. The
    next one waits until half of the room left is used; what does not fit is still never sent.
    """
    crowded_at = state.crowded_at
    return crowded_at is not None and tokens < crowded_at + (compactor.context_budget - crowded_at) // 2


def _measure(state: RunState) -> int:
    return state.config.counter.count_request(state.conversation.wire.messages, (), state.context_messages)


# -- preflight -------------------------------------------------------------------------------


def misfit(state: RunState, index: int) -> Misfit | None:
    """Return how the request breaks the window of a backend; `None` when it fits, or none is declared."""
    counter = state.counter_for(index)
    window = state.config.window_of(index)
    if window is None:
        return None
    if window.fits(counted(state, index)):
        return None
    return Misfit(_weighed(state, counter), window)


def _weighed(state: RunState, counter: TokenCounter) -> RequestSize:
    return weigh(counter, state.conversation.wire.messages, state.tools, state.context_messages)


def unsent(state: RunState, index: int, problem: Misfit) -> Refusal:
    """What the preflight found, for the chain to remember."""
    told = f"[backend {index}] {problem}"
    return Refusal(problem.size.total, problem.window.usable, state.config.counter_of(index), told)


def sent(state: RunState, index: int, usage: Usage, problem: str, *, is_refused: bool) -> Refusal:
    """A backend said, or its bill did, that the request is too large although the count had it fit.

    Args:
        is_refused: it did not even begin to answer.
    """
    counter, window = state.config.counter_of(index), state.config.window_of(index)
    size = _weighed(state, counter)
    told = f"[backend {index}] {problem}; as counted: "
    if window is None:  # nothing is known but that it was too much
        return Refusal(size.total, size.total // 2, counter, f"{told}{size.total} tokens, no window is declared")
    target = truncation_target(window, size.total, usage.prompt_tokens, is_refused=is_refused)
    return Refusal(size.total, target, counter, told + Misfit(size, window).calculation)


def counted(state: RunState, index: int) -> int:
    """Return the tokens of the next request, as the counter of a backend sees them."""
    counter = state.config.counter_of(index)
    return counter.count_request(state.conversation.wire.messages, state.tools, state.context_messages)


# -- forced ----------------------------------------------------------------------------------


def force_room(state: RunState, refusals: Sequence[Refusal]) -> bool:
    """Make the conversation smaller once, for the whole chain: as little as lets one backend take it.

    Returns:
        Whether anything was gained, and the chain is worth asking again.

    Raises:
        RunStopped: cancelled meanwhile, or what cannot be made smaller is too large by itself.
    """
    _check_fixed_part(state)
    compactor = state.config.compactor
    if compactor is None:
        return False
    mildest = max(refusals, key=lambda refusal: refusal.kept_share)
    counter = _RequestCounter(mildest.counter, state.tools, state.context_messages)
    # The smaller conversation can only be estimated, so the aim is put into those units first:
    # between what was billed and what is estimated there may be a factor of three.
    counter.invalidate()
    target = int(counter.count_messages(state.conversation.messages) * mildest.kept_share)
    return gains(compact(state, compactor, mildest.counted, target, counter))


def exhausted(state: RunState, refusals: Sequence[Refusal]) -> RunStopped:
    """Return the stop for a request that no backend can take, though everything was done."""
    problems = "; ".join(dict.fromkeys(refusal.problem for refusal in refusals))
    done = "" if state.config.compactor is None else "; nothing more of the conversation can be summarised"
    return _exhausted(state, f"no backend can take the request: {problems}{done}")


def _exhausted(state: RunState, problem: str) -> RunStopped:
    state.is_turn_open = False  # every attempt of this round has been retracted by itself
    return RunStopped(Failed(error=problem, reason="context-exhausted"))


def _check_fixed_part(state: RunState) -> None:
    """Stop before anything is asked of a summariser, when what no summary can replace does not fit by itself."""
    fixed = [
        message
        for index, message in enumerate(state.conversation.wire.messages)
        if message.is_sticky or (index == 0 and message.role == "system")
    ]
    problems: list[str] = []
    for index in range(len(state.config.backends)):
        window = state.config.window_of(index)
        if window is None:
            return
        counter = state.config.counter_of(index)
        problem = fixed_part_misfit(counter, fixed, state.tools, state.context_messages, window)
        if problem is None:
            return
        problems.append(problem)
    raise _exhausted(state, problems[0])


@attrs.frozen
class _RequestCounter:
    """Counts a conversation as the request it would be: in wire form, with what is sent beside it."""

    _counter: TokenCounter
    _tools: tuple[ToolDeclaration, ...]
    _context: tuple[Message, ...]

    def count_messages(self, messages: Sequence[Message]) -> int:
        return self._counter.count_request(WireView.of(messages).messages, self._tools, self._context)

    def count_text(self, text: str) -> int:
        return self._counter.count_text(text)

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        return self._counter.count_request(messages, tools, context)

    def record_usage(self, **report: Any) -> None:
        """A compaction teaches no counter."""

    def invalidate(self) -> None:
        self._counter.invalidate()
