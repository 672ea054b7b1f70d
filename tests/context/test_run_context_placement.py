"""Where a request carries a run's context, for vendors of every strictness."""

from __future__ import annotations

from itertools import count, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent.messages import Message, ToolRequest
from llm_agent.run_context import HeadPlace, RunContext, TailPlace, placed
from llm_agent.testing.conversation import check_conversation

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SYSTEM, USER, ANSWER = Message.system("You code."), Message.user("Fix it."), Message.assistant("Done.")
ASKS = Message.assistant("", [ToolRequest("c1", "read", "{}"), ToolRequest("c2", "read", "{}")])
RESULTS = [Message.tool("c1", "x"), Message.tool("c2", "y")]


def context(tail_as: TailPlace = "system", head_as: HeadPlace = "system") -> RunContext:
    return RunContext(
        head_sections={"h": "HEAD"}, facts={"f": "FACT"}, tail_sections={"t": "TAIL"}, tail_as=tail_as, head_as=head_as
    )


def tail_text() -> str:
    return context().messages[1].text


def shown(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    """Role and a letter for what is said: H(ead), T(ail), or both behind the message's own text."""
    return [
        (message.role, message.text.replace(tail_text(), "T").replace("HEAD", "H").replace("\n\n", "+"))
        for message in messages
    ]


# -- by rule --------------------------------------------------------------------------------


def test_by_default_the_conversation_stands_between_head_and_tail() -> None:
    """What never changes comes first and what changes last, so that caches hold."""
    request = placed([SYSTEM, USER], context())

    assert shown(request) == [("system", "H"), ("system", "You code."), ("user", "Fix it."), ("system", "T")]


def test_a_tail_as_user_message_stands_at_the_end() -> None:
    """Behind the results of a turn, too, never between."""
    request = placed([USER, ASKS, *RESULTS], context("user"))

    assert [message.role for message in request] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert shown(request)[-1] == ("user", "T")


def test_a_merged_tail_stands_behind_the_words_of_the_last_user_message() -> None:
    """Also when turns followed it; earlier user messages stay as they are."""
    request = placed([USER, ANSWER, Message.user("Again."), ASKS, *RESULTS], context("merged"))

    assert shown(request)[1:4] == [("user", "Fix it."), ("assistant", "Done."), ("user", "Again.+T")]
    assert (ASKS, *RESULTS) == request[4:]


def test_a_merged_tail_joins_content_parts_as_one_more() -> None:
    """The image stays where it was."""
    looked = Message.user([{"type": "text", "text": "Look."}, IMAGE])

    request = placed([looked], context("merged"))

    assert (*looked.content, {"type": "text", "text": tail_text()}) == request[1].content


def test_a_merged_tail_needs_no_words_before_it() -> None:
    """An empty user message becomes the tail, without blank lines in front."""
    assert shown(placed([Message.user("")], context("merged")))[-1] == ("user", "T")


def test_a_merged_tail_without_a_user_message_is_one_itself() -> None:
    """It stands at the end, as that of `user` would."""
    request = placed([SYSTEM, ANSWER], context("merged"))

    assert shown(request)[1:] == [("system", "You code."), ("assistant", "Done."), ("user", "T")]


def test_a_merged_head_stands_behind_the_words_of_the_system_message() -> None:
    """One system message remains, and it begins as it always does."""
    request = placed([SYSTEM, USER], context("user", "merged"))

    assert shown(request) == [("system", "You code.+H"), ("user", "Fix it."), ("user", "T")]


def test_a_merged_head_joins_content_parts_as_one_more() -> None:
    """A system message may be parts, with marks for a cache on them."""
    prompt = Message("system", ({"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral"}},))

    request = placed([prompt, USER], context("system", "merged"))

    assert (*prompt.content, {"type": "text", "text": "HEAD"}) == request[0].content


@pytest.mark.parametrize("messages", [[], [USER], [USER, SYSTEM]], ids=["none", "user", "later system"])
def test_a_merged_head_without_a_leading_system_message_is_one_itself(messages: list[Message]) -> None:
    """A system message further down is no place for it."""
    request = placed(messages, context("system", "merged"))

    assert (context().messages[0], *messages) == request[:-1]


@pytest.mark.parametrize("nothing", [None, RunContext(), RunContext(facts={"a": ""}, tail_as="merged")])
def test_with_nothing_to_say_the_conversation_goes_out_as_it_is(nothing: RunContext | None) -> None:
    """The very same messages."""
    assert placed([SYSTEM, USER], nothing) == (SYSTEM, USER)
    assert placed([], nothing) == ()


def test_flags_of_a_merged_message_stay() -> None:
    """Only its content is longer."""
    pinned = Message("system", "You code.", sysprompt=True, sticky=True, depth=0)

    merged = placed([pinned], context("user", "merged"))[0]

    assert (merged.sysprompt, merged.sticky, merged.depth) == (True, True, 0)


@pytest.mark.parametrize(("tail_as", "role"), [("system", "system"), ("user", "user"), ("merged", "user")])
def test_for_counting_head_and_tail_are_messages_of_their_own(tail_as: TailPlace, role: str) -> None:
    """In the role that they have, or would have, in a request."""
    beside = context(tail_as, "merged").messages

    assert ["system", role] == [message.role for message in beside]


def test_own_messages_of_a_request_are_those_for_counting() -> None:
    """The same objects in every round, so that their bytes are made once."""
    said = context()

    request = placed([USER], said)

    assert request[0] is said.messages[0]
    assert request[-1] is said.messages[1]


# -- for any conversation -------------------------------------------------------------------

TEXTS = st.text("ab \n", max_size=4)
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXTS), min_size=1, max_size=2)
USER_CONTENT = TEXTS | PARTS.map(lambda parts: [*parts, IMAGE])
SYSTEM_CONTENT = TEXTS | PARTS


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Anything a server accepts, parallel calls and system messages anywhere included; maybe nothing."""
    ids = count()
    messages: list[Message] = []
    for kind in draw(st.lists(st.sampled_from(["system", "user", "assistant", "calls"]), max_size=8)):
        match kind:
            case "system":
                messages.append(Message("system", draw(SYSTEM_CONTENT)))
            case "user":
                messages.append(Message("user", draw(USER_CONTENT), sticky=draw(st.booleans())))
            case "assistant":
                messages.append(Message.assistant(draw(st.text("ab", min_size=1, max_size=3))))
            case "calls":
                calls = [ToolRequest(f"c{next(ids)}", "read", "{}") for _ in range(draw(st.integers(1, 3)))]
                results = draw(st.permutations([Message.tool(call.id, "r") for call in calls]))
                messages += [Message.assistant(draw(TEXTS), calls), *results]
    return messages


CONTEXTS = st.builds(
    lambda head, facts, tail, places: RunContext(
        head_sections=head, facts=facts, tail_sections=tail, tail_as=places[0], head_as=places[1]
    ),
    *(st.lists(st.tuples(st.just("n"), st.none() | st.text(max_size=3)), max_size=2) for _ in range(3)),
    st.sampled_from(list(product(["system", "user", "merged"], ["system", "merged"]))),
)


@settings(max_examples=300)
@given(conversations(), CONTEXTS)
def test_a_placed_conversation_is_as_valid_as_before(messages: list[Message], said: RunContext) -> None:
    """Whatever is said, and wherever: no vendor refuses the request for it."""
    request = placed(messages, said)

    if request:
        check_conversation(request)


@settings(max_examples=300)
@given(conversations(), CONTEXTS)
def test_all_of_the_conversation_goes_out_and_none_of_it_is_changed(messages: list[Message], said: RunContext) -> None:
    """In its order and in the same objects, but for the message that something is merged into."""
    before = [(message, message.to_dict()) for message in messages]

    request = placed(messages, said)

    assert before == [(message, message.to_dict()) for message in messages]
    is_ours = {id(message) for message in said.messages} - {id(message) for message in messages}
    rest = [message for message in request if id(message) not in is_ours]
    longer = [(ours, sent) for ours, sent in zip(messages, rest, strict=True) if ours is not sent]
    merged = len(said.messages) - (len(request) - len(rest))
    assert merged == len(longer)
    assert all(begins_with(sent.content, ours.content) for ours, sent in longer)


@settings(max_examples=300)
@given(conversations(), CONTEXTS)
def test_everything_that_is_said_goes_out_once(messages: list[Message], said: RunContext) -> None:
    """Whether apart or merged."""
    extra = "".join(message.text for message in placed(messages, said)).replace("\n\n", "")
    expected = "".join(message.text for message in (*messages, *said.messages)).replace("\n\n", "")

    assert sorted(expected.replace("\n", "")) == sorted(extra.replace("\n", ""))


def begins_with(longer: Any, start: Any) -> bool:
    return type(longer) is type(start) and longer[: len(start)] == start
