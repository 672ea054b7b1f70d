"""One compaction, from the first count to the result.

The law: what is compared was counted by the same counter in the same state. A bill may cover
more than messages, so once there is something to do it is dropped, and estimates are compared
with estimates. Who asks for a compaction, and when, is not known here.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

import attrs

from llm_agent import notices
from llm_agent.compactor.aging import Observations
from llm_agent.compactor.options import Settings
from llm_agent.compactor.plan import Plan, plan_for, sparing_summaries, trim_points
from llm_agent.compactor.rendering import condensed, rendered
from llm_agent.compactor.summary import Summarising
from llm_agent.folding import folded, with_stubs
from llm_agent.messages import Message, Usage
from llm_agent.ports import Compaction, Elision, TokenCounter


@attrs.frozen(kw_only=True)
class Fold:
    """What a conversation would be with one message in the place of some, and its size in tokens."""

    messages: list[Message]
    summary: str
    cut: int
    kept: tuple[int, ...]
    dropped: int
    size: int


class Folds:
    """The conversations that one could become."""

    def __init__(self, messages: Sequence[Message], plan: Plan, counter: TokenCounter) -> None:
        self._messages = messages
        self._plan = plan
        self._counter = counter

    def middle(self) -> list[Message]:
        """Return what would be replaced."""
        return [self._messages[index] for index in self._plan.middle]

    def with_notes(self, text: str) -> Fold:
        """Return the conversation with notes in the place of the whole middle."""
        return self._fold(self._plan.cut, text)

    def smallest(self) -> Fold:
        """Return the conversation with the note of a trim in the place of the whole middle."""
        return self._trim(self._plan.cut)

    def trimmed(self, aim: int, enough: int) -> Fold:
        """Return the least destructive trim of at most *aim* tokens, or the one that leaves least.

        Earlier summaries stay where what is left then has at most *enough* tokens: they are all
        there is of what they tell.
        """
        sparing = Folds(self._messages, sparing_summaries(self._messages, self._plan), self._counter)
        if sparing.middle():
            spared = sparing._least(aim)
            if spared.size <= enough:
                return spared
        return self._least(aim)

    def _least(self, aim: int) -> Fold:
        points = trim_points(self._messages, self._plan)
        trims: dict[int, Fold] = {}

        def fits(cut: int) -> bool:
            trims[cut] = self._trim(cut)
            return trims[cut].size <= aim

        # Each point leaves less than the one before it, so a few are counted, not all.
        place = bisect_left(points, True, key=fits)
        cut = points[min(place, len(points) - 1)]
        return trims.get(cut) or self._trim(cut)

    def _trim(self, cut: int) -> Fold:
        return self._fold(cut, notices.SUMMARY_UNREACHABLE.format(count=self._dropped(cut)))

    def _fold(self, cut: int, text: str) -> Fold:
        summary = f"{notices.SUMMARY_HEADER}\n{text}"
        kept = tuple(index for index in self._plan.kept if index <= cut)
        messages = folded(self._messages, summary, cut, kept)
        size = self._counter.count_messages(messages)
        return Fold(messages=messages, summary=summary, cut=cut, kept=kept, dropped=self._dropped(cut), size=size)

    def _dropped(self, cut: int) -> int:
        return bisect_left(self._plan.middle, cut + 1)


class Reduction:
    """One compaction of one conversation; `run` it once."""

    def __init__(
        self,
        settings: Settings,
        messages: Sequence[Message],
        cancelled: threading.Event,
        target: int | None,
        counter: TokenCounter,
    ) -> None:
        self._settings = settings
        self._input = messages
        self._cancelled = cancelled
        self._ceiling = target
        self._counter = counter
        self._stubs: dict[int, str] = {}
        self._billed: list[tuple[str, Usage]] = []
        self._problems: list[str] = []
        self.tokens_before: int | None = None
        """Of the input, as the counter knows it: a bill perhaps, with more in it than the messages."""

    def run(self) -> Compaction:
        before = self.tokens_before = self._counter.count_messages(self._input)
        if self._cancelled.is_set():
            return self.unchanged()
        plan = self._planned()
        if self._settings.age_observations:
            self._stubs = self._aged(plan)
        if not plan.middle and not self._stubs:
            return self.unchanged(is_exhausted=self.is_over(before))
        # The conversation is about to change: a bill for it is worth nothing now, and may hold
        # declarations that no estimate of a candidate holds.
        self._counter.invalidate()
        messages = with_stubs(self._input, self._stubs) if self._stubs else list(self._input)
        size = self._counter.count_messages(messages)
        if self._stubs and (not plan.middle or size <= self._enough):
            return self._elided(messages, size)
        return self._made_smaller(plan, messages, size)

    def _planned(self) -> Plan:
        """Return the usual plan, or one with a shorter recent window where the usual one cannot end well.

        One turn's results may be larger than the window. Where what stays cannot fit, the
        longest recent part that can is kept; where none can, nothing is given up.
        """
        usual = plan_for(self._input, self._settings.keep_recent)
        if not self.is_over(self.tokens_before):
            return usual
        self._counter.invalidate()  # as below: what would stay can only be estimated
        for keep_recent in range(self._settings.keep_recent, -1, -1):
            plan = plan_for(self._input, keep_recent)
            if plan.middle and not self.is_over(Folds(self._input, plan, self._counter).smallest().size):
                return plan
        return usual

    def _aged(self, plan: Plan) -> dict[int, str]:
        observations = Observations(self._settings.age_rules)
        observations.follow(self._input)
        return observations.stubs(plan.cut)

    def _made_smaller(self, plan: Plan, messages: list[Message], size: int) -> Compaction:
        folds = Folds(messages, plan, self._counter)
        # A bill may be below its estimate: both must be undercut.
        most = min(size, self.tokens_before or 0) - 1
        if self._ceiling is not None:
            most = min(most, self._ceiling)
        summary = self._summarised(folds, most)
        if summary is not None:
            return self._result(summary)
        if self._cancelled.is_set():
            return self.unchanged()
        aim = self._settings.target if self._ceiling is None else self._ceiling
        trim = folds.trimmed(aim, self._enough)
        gains = trim.size < min(size, self.tokens_before or 0)
        return self._result(trim, is_fallback=True, is_exhausted=not gains or self.is_over(trim.size))

    def _summarised(self, folds: Folds, most: int) -> Fold | None:
        """Return the conversation with a summary of at most *most* tokens in all; `None` for none."""
        middle, cap = folds.middle(), self._settings.tool_result_cap
        asking = Summarising(
            self._settings.terms,
            rendered(middle, cap),
            lambda share: condensed(middle, cap, share),
            self._cancelled,
        )
        try:
            notes = asking.first()
            if notes is None:
                return None
            fold = None if notes.is_cut else folds.with_notes(notes.text)
            if fold is None or fold.size > most:
                # Whatever passes now is smaller than the first one, which did not.
                tighter = asking.tighter(notes)
                fold = None if tighter is None else folds.with_notes(tighter.text)
            if fold is not None and fold.size <= most:
                return fold
            self._problems.append("the summary leaves the conversation too large")
            return None
        finally:
            asking.close()
            self._billed += asking.billed
            self._problems = [*asking.problems, *self._problems]

    # -- what comes back ----------------------------------------------------------------------

    @property
    def _enough(self) -> int:
        """What may stay without another means. Some way below the trigger: each pass voids the prompt cache."""
        if self._ceiling is not None:
            return self._ceiling
        return self._settings.trigger - (self._settings.trigger - self._settings.target) // 4

    def is_over(self, tokens: int | None) -> bool:
        """Whether that does not fit; an unknown size does not."""
        limit = self._settings.context_budget if self._ceiling is None else self._ceiling
        return tokens is None or tokens > limit

    def unchanged(self, *, is_exhausted: bool = False) -> Compaction:
        tokens = self.tokens_before or 0
        return Compaction(
            messages=tuple(self._input),
            tokens_before=tokens,
            tokens_after=tokens,
            exhausted=is_exhausted,
            billed=tuple(self._billed),
            problems=tuple(self._problems),
        )

    def _elided(self, messages: list[Message], size: int) -> Compaction:
        return Compaction(
            messages=tuple(messages),
            tokens_before=self.tokens_before or 0,
            tokens_after=size,
            exhausted=self.is_over(size),
            elisions=self._elisions(),
        )

    def _result(self, fold: Fold, *, is_fallback: bool = False, is_exhausted: bool = False) -> Compaction:
        return Compaction(
            messages=tuple(fold.messages),
            summary=fold.summary,
            dropped=fold.dropped,
            cut_index=fold.cut,
            kept=fold.kept,
            tokens_before=self.tokens_before or 0,
            tokens_after=fold.size,
            fallback=is_fallback,
            exhausted=is_exhausted,
            elisions=self._elisions(),
            billed=tuple(self._billed),
            problems=tuple(self._problems),
        )

    def _elisions(self) -> tuple[Elision, ...]:
        return tuple(Elision(index=index, stub=stub) for index, stub in self._stubs.items())
