"""`Compactor`: makes a conversation smaller, by the mildest means that does it.

In this order: stubs for old results (where asked for), a summary of the middle, the same
summary tightened once, and without any summary a note that says what is gone. The law: what
comes back is smaller, in the same units, or says that nothing more can be gained; and it is
what `folding` makes of it, so that a replayed transcript has the same messages.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from llm_agent.cancel import WakingEvent
from llm_agent.compactor.aging import Observations
from llm_agent.compactor.options import Settings, checked_counter, terms_of
from llm_agent.compactor.plan import cut_for
from llm_agent.compactor.reduction import Reduction
from llm_agent.messages import Message
from llm_agent.ports import Backend, Compaction, TokenCounter

_log: Final = logging.getLogger("llm_agent.compactor")


class Compactor:
    """Summarises the middle of a conversation before it fills the window.

    What stays as it is: the last messages, the newest user request, sticky messages, and a
    leading system message. One per conversation, cheap to make.

    Args:
        backend: writes the summaries; a list is tried in its order. No tools are offered to it.
        counter: the loop's own, so that both speak of the same tokens.
        context_budget: tokens that a conversation may have.
        trigger_ratio: above this part of the budget it is time to compact.
        target_ratio: a trim without a summary aims at this part of the budget; below the trigger.
        keep_recent: messages at the end that stay, 0 or more.
        tool_result_cap: characters of one result, and of one call's arguments, that the
            summariser reads. The conversation itself is not cut by it.
        max_attempts: at one summariser, the first one included.
        age_observations: whether old tool results are first replaced by stubs.
        age_min_chars: only results longer than this age; an older answer to a repeated call
            always does.
        age_reclaim_min: characters of content that must have come after a result before it
            ages; and as many are worth a pass before the trigger is reached.
        backoff_cap: longest wait between attempts, in seconds.
        round_trip_timeout: seconds a summariser may be silent.
        attempt_timeout: seconds one attempt may take in total; `None` for no limit.

    Raises:
        ConfigError: names the option that cannot work.
    """

    def __init__(
        self,
        backend: Backend | Sequence[Backend],
        counter: TokenCounter,
        context_budget: int,
        *,
        trigger_ratio: float = 0.8,
        target_ratio: float = 0.4,
        keep_recent: int = 6,
        tool_result_cap: int = 2000,
        max_attempts: int = 3,
        age_observations: bool = False,
        age_min_chars: int = 2048,
        age_reclaim_min: int = 49_152,
        backoff_cap: float = 30.0,
        round_trip_timeout: float = 120.0,
        attempt_timeout: float | None = 600.0,
    ) -> None:
        self._settings = Settings(
            context_budget=context_budget,
            trigger_ratio=trigger_ratio,
            target_ratio=target_ratio,
            keep_recent=keep_recent,
            tool_result_cap=tool_result_cap,
            age_min_chars=age_min_chars,
            age_reclaim_min=age_reclaim_min,
            age_observations=age_observations,
            terms=terms_of(backend, max_attempts, backoff_cap, round_trip_timeout, attempt_timeout),
        )
        self._counter = checked_counter(counter)
        # For `needs_compaction` alone: an abandoned `compact` may still run on another thread.
        self._observations = Observations(self._settings.age_rules)

    @property
    def context_budget(self) -> int:
        """Tokens that a conversation may have."""
        return self._settings.context_budget

    @property
    def counter(self) -> TokenCounter:
        """What sizes are counted with; a loop without a counter of its own takes this one."""
        return self._counter

    @property
    def trigger(self) -> int:
        """Tokens above which it is time."""
        return self._settings.trigger

    @property
    def target(self) -> int:
        """Tokens that a trim without a summary aims at."""
        return self._settings.target

    @property
    def age_observations(self) -> bool:
        """Whether results may become stubs: a session must then be able to write elisions."""
        return self._settings.age_observations

    def needs_compaction(self, messages: Sequence[Message], tokens: int | None = None) -> bool:
        """Whether it is time: the size is above the trigger, or a pass of stubs is worth its price.

        Args:
            messages: the conversation; cheap to ask about again after it grew.
            tokens: its size, where it is known.

        Threads: the run's worker. Raises: what the counter raises.
        """
        size = self._counter.count_messages(messages) if tokens is None else tokens
        if size > self.trigger:
            return True
        if not self.age_observations:
            return False
        self._observations.follow(messages)
        cut = cut_for(messages, self._settings.keep_recent)
        return self._observations.pool(cut) >= self._settings.age_reclaim_min

    def compact(
        self,
        messages: Sequence[Message],
        *,
        cancelled: threading.Event | None = None,
        target: int | None = None,
        counter: TokenCounter | None = None,
    ) -> Compaction:
        """Return a conversation that is smaller, or say that there is none.

        A cancel returns the conversation as it is, at once, rather than a trimmed one: a run that
        is resumed will have it summarised properly.

        Args:
            messages: n >= 1 messages, no call of them unanswered; shared, never changed.
            cancelled: set when nobody wants the answer any more.
            target: tokens that the result must not exceed. The aim of a trim, the limit of a
                summary, and what `exhausted` is judged by.
            counter: replaces the compactor's counter for every count of this call.

        Returns:
            `messages` equals `folded(with_stubs(...))` of the input. `exhausted`: nothing more can
            be gained, and the size is above *target* or else the budget; also where the size
            cannot be told.

        Raises:
            Nothing: what a counter or a backend raises beside the rules leaves the conversation
            as it is, and is an error of the `logging` module.

        Threads: any, one call at a time.
        """
        work = Reduction(
            self._settings,
            messages,
            WakingEvent() if cancelled is None else cancelled,
            target,
            self._counter if counter is None else counter,
        )
        try:
            return work.run()
        except BaseException:  # a shield: foreign code, on a thread whose end nobody would see
            _log.exception("the compaction failed; the conversation stays as it is")
            return work.unchanged(is_exhausted=work.is_over(work.tokens_before))
