"""Where a conversation is cut, and what stays."""

from __future__ import annotations

import pytest
from compacting import batch, dialogue

from llm_agent import Message, notices
from llm_agent.compactor.plan import Plan, newest_request, plan_for, trim_points

SYSTEM = Message.system("s")
ASK = Message.user("do it")
SUMMARY = Message.user(f"{notices.SUMMARY_HEADER}\nnotes")


def sticky(message: Message) -> Message:
    return Message(message.role, message.content, message.tool_calls, tool_call_id=message.tool_call_id, sticky=True)


def test_the_last_messages_stay() -> None:
    """The window holds `keep_recent` of them; everything before is the middle, but for the pinned."""
    assert Plan(cut=3, kept=(), middle=(1, 2, 3)) == plan_for(dialogue(9), 6)


@pytest.mark.parametrize("keep_recent", [1, 2, 3])
def test_the_window_never_opens_on_a_result(keep_recent: int) -> None:
    """It opens on the turn that asked for it, however many results there are."""
    messages = [ASK, Message.assistant("x"), Message.assistant("y"), *batch(1, "a", "b", "c")]

    assert plan_for(messages, keep_recent).cut == 2


def test_nothing_need_be_recent() -> None:
    """With `keep_recent=0` the middle goes to the end, results and all."""
    messages = [SYSTEM, ASK, *batch(1, "a", "b")]

    assert Plan(cut=4, kept=(0, 1), middle=(2, 3, 4)) == plan_for(messages, 0)


@pytest.mark.parametrize("messages", [[], [SYSTEM], [SYSTEM, ASK], batch(1, "a", "b")])
def test_a_short_conversation_has_no_middle(messages: list[Message]) -> None:
    """Also where it begins with a batch that the window would open in."""
    assert plan_for(messages, 2).middle == ()


def test_the_newest_request_stays_in_front_of_the_summary() -> None:
    """However long ago it was made; older ones are summarised."""
    old = [Message.user("old"), Message.assistant("done")]
    messages = [SYSTEM, *old, ASK, *batch(1, "a"), *batch(2, "b"), *batch(3, "c")]

    assert Plan(cut=7, kept=(0, 3), middle=(1, 2, 4, 5, 6, 7)) == plan_for(messages, 2)


def test_a_steer_does_not_unpin_the_request_that_its_run_began_with() -> None:
    """What is said into a run adds to its task, and does not take its place; older steers are summarised."""
    steers = [Message.user("and the docs"), *batch(2, "b"), Message.user("say hi"), *batch(3, "c"), *batch(4, "d")]
    messages = [Message.user("old"), Message.assistant("done"), ASK, *batch(1, "a"), *steers]

    plan = plan_for(messages, 2)

    assert [messages[index].text for index in plan.kept] == ["do it", "say hi"]
    assert 5 in plan.middle


def test_the_task_stays_when_steers_and_summaries_stand_beside_it() -> None:
    """After a fold the kept requests stand side by side in front of the summary; the next fold still knows them."""
    messages = [SYSTEM, ASK, Message.user("say hi"), SUMMARY, *batch(3, "c"), *batch(4, "d"), *batch(5, "e")]

    plan = plan_for(messages, 2)

    assert plan.kept == (0, 1, 2)


def test_a_request_directly_before_the_window_stays_in_place() -> None:
    """The window is extended by it, so that no summary stands behind it."""
    messages = [SYSTEM, Message.user("old"), Message.assistant("ok"), ASK, *batch(1, "a")]

    assert Plan(cut=2, kept=(0,), middle=(1, 2)) == plan_for(messages, 2)
    assert Plan(cut=2, kept=(0,), middle=(1, 2)) == plan_for(messages[:4], 0)


def test_a_summary_is_nobodys_request() -> None:
    """What we wrote ourselves is not what the user wants."""
    assert newest_request([SYSTEM, ASK, SUMMARY, Message.assistant("x")]) == 1
    assert newest_request([SYSTEM, SUMMARY]) is None


def test_a_leading_system_message_stays_though_it_is_not_pinned() -> None:
    """Losing the instructions is no compaction; later system messages are part of the story."""
    messages = [SYSTEM, Message.system("a notice"), Message.assistant("x"), ASK]

    assert Plan(cut=2, kept=(0,), middle=(1, 2)) == plan_for(messages, 1)


@pytest.mark.parametrize("pinned", [1, 2, 3])
def test_a_batch_with_a_pinned_member_stays_whole(pinned: int) -> None:
    """Turn, first or second result: pinning one keeps all three."""
    messages = [Message.user("old"), *batch(1, "a", "b"), *batch(2, "c"), Message.assistant("done"), ASK]
    messages[pinned] = sticky(messages[pinned])

    plan = plan_for(messages, 1)

    assert {1, 2, 3} - {pinned} == set(plan.kept)
    assert plan.middle == (0, 4, 5, 6)


def test_trims_end_behind_batches() -> None:
    """A trim may end behind each message, and behind a turn only with its results."""
    messages = [SYSTEM, Message.user("old"), *batch(1, "a", "b"), Message.assistant("x"), ASK]

    assert trim_points(messages, plan_for(messages, 1)) == [1, 4, 5]
