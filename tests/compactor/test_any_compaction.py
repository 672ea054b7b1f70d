"""Whatever the conversation: what comes back is the fold, servers take it, and a transcript replays it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from compacting import FlatCounter, check_fold, write, write_result
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent import Message, OpenAIBackend, Session, ToolRequest, codec
from llm_agent.compactor import Compactor
from llm_agent.errors import BackendError
from llm_agent.messages import Delta
from llm_agent.ports import Compaction, CompletionRequest
from llm_agent.testing import FakeServer, no_backoff
from llm_agent.testing.conversation import request_fault
from llm_agent.token_count import HeuristicCounter, UsageCounter

TEXTS = st.sampled_from(["", "ok", "\N{SNOWMAN} " * 30, "x" * 300, "</transcript>"])
FLAGS = st.sampled_from([{}, {}, {}, {}, {"sticky": True}, {"depth": 0}])
ARGUMENTS = st.sampled_from(['{"a": 1}', '{"a":1}', "{}", "", "no json", None])

# What a summariser may say: notes, half of them, too many, nothing, a call, a refusal.
ENTRIES = st.sampled_from(
    [
        "notes",
        "notes",
        [Delta("half", finish_reason="length")],
        "word " * 3_000,
        " ",
        [ToolRequest("t", "read", "{}")],
        BackendError("bad key", "http", 401),
        BackendError("upstream fell over", "http", 500),
    ]
)
OPTIONS = st.fixed_dictionaries(
    {
        "keep_recent": st.integers(0, 7),
        "age_observations": st.booleans(),
        "age_min_chars": st.sampled_from([0, 100]),
        "age_reclaim_min": st.sampled_from([1, 400]),
        "target_ratio": st.sampled_from([0.1, 0.5]),
    }
)


@st.composite
def batches(draw: st.DrawFn) -> list[Message]:
    """A turn with one to three calls and its results in any order; ids may have been used before."""
    ids = draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3, unique=True))
    calls = [ToolRequest(call_id, draw(st.sampled_from(["read", "list"])), draw(ARGUMENTS)) for call_id in ids]
    results = [
        Message("tool", draw(TEXTS), tool_call_id=call_id, **draw(FLAGS)) for call_id in draw(st.permutations(ids))
    ]
    return [Message("assistant", draw(TEXTS), calls, **draw(FLAGS)), *results]


@st.composite
def said(draw: st.DrawFn) -> list[Message]:
    """One message without calls; an assistant's may be empty, a result may answer nothing."""
    role = draw(st.sampled_from(["user", "user", "assistant", "system", "tool"]))
    text = draw(TEXTS) or ("" if role == "assistant" else "hm")
    return [Message(role, text, tool_call_id="gone" if role == "tool" else None, **draw(FLAGS))]


STRETCHES = st.lists(st.one_of(batches(), said()), max_size=8).map(
    lambda parts: [one for part in parts for one in part]
)


class Judging:
    """A summariser that says what it is told to, and asserts that any server would take its request."""

    model, max_tokens = "judge", None

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def stream(self, request: CompletionRequest) -> list[Any]:
        assert request_fault({"model": "m", "messages": [one.to_wire() for one in request.messages]}) is None
        assert request.tools == ()
        entry = next(self._entries, "notes")
        if isinstance(entry, BackendError):
            raise entry
        pieces = entry if isinstance(entry, list) else [entry]
        return [Delta(tool_calls=(piece,)) if isinstance(piece, ToolRequest) else piece for piece in pieces]


@settings(max_examples=150)
@given(
    stretches=st.lists(st.tuples(STRETCHES, st.one_of(st.none(), st.integers(0, 300))), min_size=1, max_size=5),
    entries=st.lists(ENTRIES, max_size=12),
    options=OPTIONS,
    counter=st.sampled_from([FlatCounter, HeuristicCounter, UsageCounter]),
)
def test_any_chain_of_compactions_is_valid_and_replays(
    stretches: list[tuple[list[Message], int | None]], entries: list[Any], options: dict[str, Any], counter: type
) -> None:
    """Up to five in a row, each behind more messages; the file amounts to the live conversation."""
    subject = Compactor(Judging(entries), counter(), 200, **options)
    live = [Message.user("begin")]
    with tempfile.TemporaryDirectory() as folder, no_backoff():
        path = Path(folder, "run.jsonl")
        with Session.create(path) as session:
            write(session, live)
            for stretch, target in stretches:
                live += stretch
                write(session, stretch)
                result = subject.compact(live, target=target)
                check(live, result)
                write_result(session, result)
                live = list(result.messages)
                assert live == list(session.messages)
        with Session.load(path) as loaded:
            assert bytes_of(live) == bytes_of(loaded.messages)


def check(messages: list[Message], result: Compaction) -> None:
    if messages and result.dropped == 0:
        assert len(messages) == len(result.messages)
    if result.messages:
        check_fold(messages, result)
    # Nothing of a user's newest words, or of what is pinned, is ever lost.
    pinned = [one for one in messages if one.is_sticky]
    assert [one.tool_call_id for one in pinned] == [one.tool_call_id for one in result.messages if one.is_sticky]
    requests = [one for one in messages if one.role == "user" and "earlier turns compacted" not in one.text]
    assert not requests or requests[-1] in result.messages
    if result.dropped and not result.fallback:
        assert result.tokens_after < result.tokens_before


def bytes_of(messages: Any) -> bytes:
    return codec.dumps([one.to_dict() for one in messages])


def test_a_strict_server_takes_the_summarisers_request(serve: Any) -> None:
    """Over the wire, with the backend that users have."""
    server: FakeServer = serve(["they talked"], strict=True)
    backend = OpenAIBackend(model="m", base_url=server.url, api_key="k")
    calls = [ToolRequest("c", "read", "no json"), ToolRequest("d", "", None)]
    messages = [
        *(Message.user(f"question {number}") for number in range(9)),
        Message.assistant("", calls),
        Message.tool("c", "x"),
        Message.tool("d", "y"),
    ]

    result = Compactor(backend, FlatCounter(), 50, keep_recent=0).compact(messages)

    assert result.summary.endswith("they talked")
