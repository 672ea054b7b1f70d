"""Where a conversation may be cut, and what stays in front of the cut.

The law: a call and its results stay together, on the same side. Pure: how large anything is,
and what stands in the place of what goes, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from llm_agent import notices
from llm_agent.messages import Message

# By this the note of a trim is known from a summary: the sentence behind the number.
_TRIM_ENDS: Final = notices.SUMMARY_UNREACHABLE.partition("{count}")[2]


def is_summary(message: Message) -> bool:
    """Whether *message* stands for earlier turns: a summary of ours, or the note of a trim."""
    return message.role == "user" and message.text.startswith(notices.SUMMARY_HEADER)


@attrs.frozen(kw_only=True)
class Plan:
    """What of a conversation is replaced, as indices of it."""

    cut: int
    """The last message that the recent window does not hold; -1 for none."""
    kept: tuple[int, ...]
    """Up to the cut, not sticky, and stays all the same."""
    middle: tuple[int, ...]
    """What is replaced; neither sticky nor kept. Empty: there is nothing to do."""


def plan_for(messages: Sequence[Message], keep_recent: int) -> Plan:
    """Return where to cut.

    Args:
        messages: n >= 0 messages, no call of them unanswered.
        keep_recent: how many at the end stay as they are, 0 or more. It becomes more where the
            window would open on a tool's result, or directly behind the newest request.

    Kept are: the newest request, and the one its run began with, where that is a steer; a
    leading system message (losing the instructions is no compaction); and every turn whose
    calls or results are sticky, whole.
    """
    requests = {newest_request(messages), opening_request(messages)}
    cut = cut_for(messages, keep_recent)
    staying = {index for group in _groups(messages, cut) if _any_sticky(messages, group) for index in group}
    staying |= {request for request in requests if request is not None and request <= cut}
    if cut >= 0 and messages[0].role == "system":
        staying.add(0)
    loose = [index for index in range(cut + 1) if not messages[index].is_sticky]
    return Plan(
        cut=cut,
        kept=tuple(index for index in loose if index in staying),
        middle=tuple(index for index in loose if index not in staying),
    )


def cut_for(messages: Sequence[Message], keep_recent: int) -> int:
    """Return the last index before the recent window; see `plan_for`."""
    start = max(0, len(messages) - keep_recent)
    while 0 < start < len(messages) and messages[start].role == "tool":
        start -= 1
    # A request directly before it stays in place: better than in front of a summary of its past.
    is_request = start > 0 and _is_request(messages[start - 1])
    return start - 2 if is_request and newest_request(messages) == start - 1 else start - 1


def newest_request(messages: Sequence[Message]) -> int | None:
    """Return the index of the last thing a user said; summaries are nobody's words."""
    for index in range(len(messages) - 1, -1, -1):
        if _is_request(messages[index]):
            return index
    return None


def opening_request(messages: Sequence[Message]) -> int | None:
    """Return the index of the last request that was not made while work was going on.

    What stands behind results, or behind another request, was said into a run: a steer.
    """
    for index in range(len(messages) - 1, -1, -1):
        before = messages[index - 1] if index else None
        is_steer = before is not None and (before.role == "tool" or _is_request(before))
        if _is_request(messages[index]) and not is_steer:
            return index
    return None


def _is_request(message: Message) -> bool:
    return message.role == "user" and not is_summary(message)


def sparing_summaries(messages: Sequence[Message], plan: Plan) -> Plan:
    """Return *plan* with the summaries of earlier compactions kept; the notes of earlier trims are not."""
    spared = {
        index for index in plan.middle if is_summary(messages[index]) and not messages[index].text.endswith(_TRIM_ENDS)
    }
    return attrs.evolve(
        plan,
        kept=tuple(sorted(spared.union(plan.kept))),
        middle=tuple(index for index in plan.middle if index not in spared),
    )


def trim_points(messages: Sequence[Message], plan: Plan) -> list[int]:
    """Return where a trim may end instead, least destructive first; the last one drops the whole middle."""
    ends: list[int] = []
    for index in plan.middle:
        end = index
        while end < plan.cut and messages[end + 1].role == "tool":
            end += 1
        if not ends or end > ends[-1]:
            ends.append(end)
    return ends


def _groups(messages: Sequence[Message], cut: int) -> Iterator[range]:
    """Yield each assistant turn with calls up to *cut*, with the results behind it."""
    index = 0
    while index <= cut:
        end = index + 1
        if messages[index].tool_calls:
            while end <= cut and messages[end].role == "tool":
                end += 1
            yield range(index, end)
        index = end


def _any_sticky(messages: Sequence[Message], group: range) -> bool:
    return any(messages[index].is_sticky for index in group)
