"""Keep the request inside the window: before it is needed, before it is sent, and once it was refused.

Three moments, one means. *Scheduled*: at the top of a round the compactor says that it is
time. *Preflight*: a request that does not fit a backend's window is not sent there. *Forced*:
no backend can take the request, so the conversation is made smaller once, and the chain is
asked once more. The law: nothing is sent of which it is known that it cannot fit. How a
compactor is run is `compacting`; how a conversation is made smaller is the compactor's work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs

from llm_agent.budget import Misfit, RequestSize, Window, fixed_part_misfit, truncation_target, weigh
from llm_agent.errors import BackendError
from llm_agent.loop.compacting import compact, gains
from llm_agent.loop.state import RunState
from llm_agent.messages import Message, Usage
from llm_agent.outcome import Failed, RunStopped
from llm_agent.overflow import told_sizes
from llm_agent.ports import Compactor, TokenCounter, ToolDeclaration
from llm_agent.wire_view import WireView

MOST_VAIN_COMPACTIONS: Final = 3
"""In a row, each of them too little by the bill that followed: one more would be paid for in vain, too."""

REFUSED_SHARE: Final = 0.8
"""Of what a server says it can take; its answer needs room as well."""


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
    if compactor is None:
        return tokens
    _judge_last(state, compactor, tokens)
    if not compactor.needs_compaction(state.conversation.messages, tokens):
        return tokens
    if _is_too_soon(state, compactor, tokens):
        return tokens
    _check_fixed_part(state)
    compaction = compact(state, compactor, tokens)
    state.check_cancel("compaction")
    tokens = _measure(state)
    # Where it fits all the same, that nothing more can be gained is no reason to stop; where a
    # window is declared, that one decides, and before the request is sent.
    if compaction.exhausted and tokens > compactor.context_budget and state.config.budget.is_synthesised:
        size = weigh(state.config.counter, state.conversation.wire.messages, (), state.context_messages)
        raise _exhausted(state, str(Misfit(size, Window(size=compactor.context_budget, reserve=0, margin=0))))
    is_crowded = compactor.needs_compaction(state.conversation.messages, tokens)
    state.crowded_at = tokens if is_crowded else None
    return tokens


def _is_too_soon(state: RunState, compactor: Compactor, tokens: int) -> bool:
    """Whether the last compaction left a conversation that was due for the next one, and little has come since.

    Its recent part is the large one then, and a summary per round would gain a turn each. The
    next one waits until half of the room left is used, where little or none is left until an
    eighth of the budget has come; what does not fit is still never sent.
    """
    crowded_at = state.crowded_at
    if crowded_at is None:
        return False
    room = max(compactor.context_budget - crowded_at, compactor.context_budget // 4)
    return tokens < crowded_at + room // 2


def _judge_last(state: RunState, compactor: Compactor, tokens: int) -> None:
    """Look once, after the next bill, at what the last compaction has left: its own count was an estimate.

    A bill may be far above it, for declarations or what a server adds by itself.
    """
    length, state.folded_length = state.folded_length, None
    if length is None:
        return
    # As texts: counting fewer messages than were billed would make a counter forget the bill.
    newer = state.conversation.wire.messages[length:]
    left = tokens - sum(state.config.counter.count_text(message.wire_json.decode()) for message in newer)
    is_crowded = compactor.needs_compaction(state.conversation.messages, left)
    state.crowded_at = left if is_crowded else None
    state.vain_compactions = state.vain_compactions + 1 if left > _most_that_fits(state) else 0


def _most_that_fits(state: RunState) -> float:
    """Return the largest request, in the loop's own tokens, that fits a backend; infinite where that is not known."""
    config = state.config
    own = [index for index in range(len(config.backends)) if config.counter_of(index) is config.counter]
    windows = [config.window_of(index) for index in own]
    return max((math.inf if window is None else window.usable for window in windows), default=math.inf)


def _measure(state: RunState) -> int:
    return state.loop_counter().count_request(state.conversation.wire.messages, (), state.context_messages)


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


def refused(state: RunState, index: int, error: BackendError) -> Refusal:
    """A backend refused the request as too large, although the count had it fit.

    How much too large, its own words may tell; else a declared window does; a budget of the
    caller's own says nothing of the server's, and then half is what is left to try.
    """
    counter, window = state.config.counter_of(index), state.config.declared_window_of(index)
    size, sizes = _weighed(state, counter), told_sizes(error)
    told = f"[backend {index}] {error.message}; as counted: "
    told += f"{size}, and no window is declared" if window is None else Misfit(size, window).calculation
    if sizes is not None:
        target = int(size.total * sizes.share * REFUSED_SHARE)
    elif window is not None:
        target = truncation_target(window, size.total, is_refused=True)
    else:
        target = size.total // 2
    return Refusal(size.total, target, counter, told)


def cut(state: RunState, index: int, window: Window, usage: Usage, problem: str) -> Refusal:
    """A backend took the request and cut it, or its answer, at the end of its window."""
    counter = state.config.counter_of(index)
    size = _weighed(state, counter)
    target = truncation_target(window, size.total, usage.prompt_tokens)
    told = f"[backend {index}] {problem}; as counted: {Misfit(size, window).calculation}"
    return Refusal(size.total, target, counter, told)


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
    if state.vain_compactions >= MOST_VAIN_COMPACTIONS:
        words = f"the last {state.vain_compactions} compactions each left more than fits, by the bill that followed"
        raise _exhausted(state, f"{mildest.problem}; {words}: what is sent beside the conversation is too large")
    counter = _RequestCounter(mildest.counter, state.tools, state.context_messages)
    # The smaller conversation can only be estimated, so the aim is put into those units first:
    # between what was billed and what is estimated there may be a factor of three.
    counter.invalidate()
    target = int(counter.count_messages(state.conversation.messages) * mildest.kept_share)
    compaction = compact(state, compactor, mildest.counted, target, counter)
    if state.core.cancel.is_set:
        raise state.discard_cancelled("compaction")
    return gains(compaction)


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
class _RequestCounter(TokenCounter):
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

    def invalidate(self) -> None:
        self._counter.invalidate()
