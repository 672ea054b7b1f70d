"""Long conversations: compacted in time, never sent where they cannot fit, never paid for twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from llm_agent.budget import ModelProfile, RequestBudget
from llm_agent.compactor import Compactor
from llm_agent.errors import BackendError
from llm_agent.events import (
    AttemptFailed,
    AttemptStarted,
    CompactionDone,
    CompactionStarted,
    Log,
    RoundStarted,
    RunCancelled,
    TurnDiscarded,
)
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Message, Usage, messages_digest
from llm_agent.ports import Compaction, ToolDeclaration
from llm_agent.session.session import Session
from llm_agent.testing import (
    Gate,
    ScriptedBackend,
    ScriptedProvider,
    call,
    check_conversation,
    finished,
    hang,
    no_backoff,
)
from llm_agent.token_count import HeuristicCounter, UsageCounter

OVERFLOW = BackendError("prompt is too long: 9000 tokens > 8000 maximum", "http", 400)


@pytest.fixture(autouse=True)
def _retries_wait_nothing() -> Iterator[None]:
    with no_backoff():
        yield


@attrs.frozen
class Flat:
    """Every message costs ten tokens, and so does any lump of text."""

    def count_messages(self, messages: Sequence[Message]) -> int:
        return 10 * len(messages)

    def count_text(self, text: str) -> int:
        return 10

    def count_request(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], context: Sequence[Message] = ()
    ) -> int:
        return 10 * (len(messages) + len(context) + bool(tools))

    def record_usage(self, **report: Any) -> None: ...

    def invalidate(self) -> None: ...


def talk(turns: int) -> list[Message]:
    """A system prompt and *turns* messages of a conversation that ends with a question."""
    said = [
        Message.user(f"question {n}") if (turns - n) % 2 == 0 else Message.assistant(f"answer {n}")
        for n in range(1, turns + 1)
    ]
    return [Message("system", "You are terse.", sysprompt=True), *said]


def compactor(summariser: Any, budget: int = 100, **options: Any) -> Compactor:
    return Compactor(summariser, options.pop("counter", Flat()), budget, **{"keep_recent": 2, **options})


def billed(text: str, usage: Usage) -> list[Delta]:
    return [Delta(text), Delta(finish_reason="stop", usage=usage)]


def sent(backend: ScriptedBackend) -> list[list[str]]:
    return [[message.text for message in request.messages] for request in backend.requests]


# -- scheduled -------------------------------------------------------------------------------


def test_a_conversation_is_compacted_before_its_round_begins(tmp_path: Path) -> None:
    """The request is the compacted one, and a replay of the transcript has the same messages."""
    backend, summariser = ScriptedBackend(["fine"]), ScriptedBackend(["they talked"], model="sum")
    session = Session.create(tmp_path / "run.jsonl")

    run = finished(Loop(backend, compactor=compactor(summariser), session=session).run(talk(9)))

    assert run.kinds[:4] == ["run-started", "compaction-started", "compaction-done", "round-started"]
    done = run.of(CompactionDone)[0]
    assert (done.tokens_before, done.tokens_after, done.dropped, done.fallback) == (100, 40, 7, False)
    assert [event.tokens for event in run.of(RoundStarted)] == [40]
    assert sent(backend)[0][2:] == ["answer 8", "question 9"]
    session.close()
    with Session.load(tmp_path / "run.jsonl") as again:
        assert run.outcome.messages == again.messages


def test_the_newest_request_outlives_any_number_of_tool_rounds(tmp_path: Path) -> None:
    """However much work follows it, the model still reads in full what it was asked for."""
    rounds = [call("look", n=n) for n in range(20)]
    backend = ScriptedBackend([*rounds, "done"])
    summariser = ScriptedBackend(lambda _: "notes")
    session = Session.create(tmp_path / "run.jsonl")
    loop = Loop(
        backend,
        compactor=compactor(summariser),
        session=session,
        provider=ScriptedProvider({"look": "seen"}),
        system_prompt="You work.",
    )

    run = finished(loop.run("Find the bug in the billing module, please."))

    assert len(summariser.requests) >= 3
    assert all("Find the bug in the billing module, please." in texts for texts in sent(backend))
    for request in backend.requests:
        check_conversation(request.messages)
    session.close()
    with Session.load(tmp_path / "run.jsonl") as again:
        assert messages_digest(run.outcome.messages) == messages_digest(again.messages)


def test_a_compaction_works_without_a_session() -> None:
    """No ids, no file, the same conversation."""
    backend = ScriptedBackend(["fine"])

    run = finished(Loop(backend, compactor=compactor(ScriptedBackend(["they talked"]))).run(talk(9)))

    assert len(run.outcome.messages) == 5
    assert run.outcome.final == "fine"


def test_the_loop_counts_as_its_compactor_does() -> None:
    """Without a counter of its own a loop takes the compactor's: one budget, one kind of tokens."""
    run = finished(Loop(ScriptedBackend(["x"]), compactor=compactor(ScriptedBackend([]))).run("go"))

    assert [event.tokens for event in run.of(RoundStarted)] == [10]


def test_no_summary_is_asked_for_round_after_round_where_the_recent_part_is_the_large_one() -> None:
    """A compaction that cannot get below its trigger waits until the conversation has grown."""
    summariser = ScriptedBackend(lambda _: "notes")
    rounds = [call("look", n=n) for n in range(30)]
    folds = compactor(summariser, 1000, counter=HeuristicCounter(), keep_recent=6, trigger_ratio=0.3, target_ratio=0.1)
    provider = ScriptedProvider({"look": "x" * 300})

    run = finished(Loop(ScriptedBackend([*rounds, "done"]), compactor=folds, provider=provider).run("go"))

    assert run.outcome.ok
    assert len(summariser.requests) <= 22


def test_summaries_are_on_the_bill() -> None:
    """What a summary cost is spent like anything else, and one without a number makes the bill incomplete."""
    summary = [
        Delta("notes"),
        Delta(finish_reason="stop", usage=Usage(prompt_tokens=70, completion_tokens=5, cost=0.5)),
    ]
    answer = billed("ok", Usage(prompt_tokens=40, completion_tokens=2, cost=0.25))

    run = finished(
        Loop(
            ScriptedBackend([answer], model="big"), compactor=compactor(ScriptedBackend([summary], model="small"))
        ).run(talk(9))
    )

    assert (
        run.outcome.spent.total_tokens,
        run.outcome.spent.cost,
        run.outcome.spent.attempts,
        run.outcome.spent.complete,
    ) == (117, 0.75, 2, True)
    assert {"big", "small"} == set(run.outcome.spent.by_model)


def test_a_cancel_ends_a_running_summary_at_once_and_leaves_the_conversation_whole(tmp_path: Path) -> None:
    """Nothing is trimmed because somebody lost patience: the next run summarises properly."""
    gate = Gate()
    session = Session.create(tmp_path / "run.jsonl")
    loop = Loop(ScriptedBackend(["never"]), compactor=compactor(ScriptedBackend([gate])), session=session)
    handle = loop.run(talk(9))
    gate.wait_entered()

    handle.cancel()
    run = finished(handle)

    assert [event.stage for event in run.of(RunCancelled)] == ["compaction"]
    assert [event.dropped for event in run.of(CompactionDone)] == [0]
    assert 10 == len(run.outcome.messages) == len(session.messages)
    assert run.outcome.spent.complete is False


def test_a_compactor_that_ignores_the_cancel_does_not_hold_the_run() -> None:
    """The run ends; what still works for it is its own affair."""
    entered, release = threading.Event(), threading.Event()

    class Deaf:
        context_budget = 100

        def needs_compaction(self, messages: Sequence[Message], tokens: int | None = None) -> bool:
            return True

        def compact(self, messages: Sequence[Message], **_: Any) -> Compaction:
            entered.set()
            release.wait(5)
            raise RuntimeError("too late")

    handle = Loop(ScriptedBackend(["never"]), compactor=Deaf(), counter=Flat()).run(talk(3))
    assert entered.wait(5)

    handle.cancel()
    outcome = handle.result(timeout=2)

    assert outcome.status == "cancelled"
    release.set()


def test_what_a_cancelled_summary_was_billed_before_is_on_the_bill() -> None:
    """The attempt that failed is paid for; only the one that was cut short makes the bill incomplete."""
    failed = [Delta("half", usage=Usage(total_tokens=1010)), BackendError("down", "http", 500)]
    gate = Gate()
    handle = Loop(ScriptedBackend([]), compactor=compactor(ScriptedBackend([failed, gate]))).run(talk(9))
    gate.wait_entered()

    handle.cancel()
    spent = finished(handle).outcome.spent

    assert (spent.total_tokens, spent.attempts, spent.complete) == (1010, 2, False)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), "a summary"])
def test_a_compactor_that_breaks_its_word_costs_the_compaction_only(answer: Any) -> None:
    """It is logged, the conversation stays as it is, and the run goes on while it fits."""

    class Broken:
        context_budget = 100

        def needs_compaction(self, messages: Sequence[Message], tokens: int | None = None) -> bool:
            return True

        def compact(self, messages: Sequence[Message], **_: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    run = finished(Loop(ScriptedBackend(["fine"]), compactor=Broken(), counter=Flat()).run(talk(3)))

    assert run.outcome.final == "fine"
    assert [event.level for event in run.of(Log)] == ["error"]


def test_a_summariser_that_hangs_is_left_when_its_clock_runs_out() -> None:
    """Then the next one is asked."""
    folds = compactor(
        [ScriptedBackend([hang()]), ScriptedBackend(["they talked"])], max_attempts=1, round_trip_timeout=0.1
    )

    run = finished(Loop(ScriptedBackend(["fine"]), compactor=folds).run(talk(9)))

    assert [event.fallback for event in run.of(CompactionDone)] == [False]


# -- what cannot fit ---------------------------------------------------------------------------


def test_a_window_smaller_than_prompt_and_tools_ends_the_run_before_anything_is_sent() -> None:
    """Neither the model nor a summariser is asked, and the error names the part that is too large."""
    backend, summariser = ScriptedBackend([]), ScriptedBackend([])
    loop = Loop(
        backend,
        compactor=compactor(summariser, 200, counter=HeuristicCounter()),
        provider=ScriptedProvider({f"tool_{n}": "x" for n in range(20)}),
        system_prompt="You are terse. " * 40,
    )

    run = finished(loop.run("go"))

    assert [] == backend.requests == summariser.requests
    assert run.outcome.reason == "context-exhausted"
    assert "fixed part" in (run.outcome.error or "")
    for term in ("system prompt", "tools", "context", "margin", "reserve", "window is 200"):
        assert term in (run.outcome.error or "")


def test_a_budget_without_a_compactor_refuses_what_does_not_fit() -> None:
    """Nothing is sent, no attempt begins, nothing is discarded."""
    backend = ScriptedBackend([])

    run = finished(Loop(backend, counter=Flat(), context_budget=50).run(talk(9)))

    assert backend.requests == []
    assert (run.outcome.status, run.outcome.reason) == ("failed", "context-exhausted")
    assert [*run.of(AttemptStarted), *run.of(TurnDiscarded)] == []
    assert [record.disposition for record in run.outcome.attempts] == ["advance"]


def test_a_backend_that_always_says_overflow_is_asked_at_most_twice() -> None:
    """One compaction for the whole chain, one more round trip, then the run ends with its reason."""
    backends = [ScriptedBackend(lambda _: OVERFLOW), ScriptedBackend(lambda _: OVERFLOW)]
    summariser = ScriptedBackend(lambda _: "notes")

    run = finished(Loop(backends, compactor=compactor(summariser, 1000)).run(talk(9)))

    assert [len(backend.requests) for backend in backends] == [2, 2]
    assert len(summariser.requests) == 1
    assert run.outcome.reason == "context-exhausted"
    assert len(run.outcome.attempts) == 4
    assert run.of(TurnDiscarded) == []


def test_an_error_for_a_request_that_a_backend_refused_has_the_calculation() -> None:
    """What the backend said, and what was counted, term by term."""
    backend = ScriptedBackend(lambda _: OVERFLOW, model="m")
    budget = RequestBudget(profiles={"m": ModelProfile(1000, completion_reserve=0)})

    run = finished(Loop(backend, counter=Flat(), request_budget=budget).run("go"))

    for term in ("[backend 0] prompt is too long", "messages 10", "tools 0", "reserve 0", "the window is 1000"):
        assert term in (run.outcome.error or "")


def test_an_overflow_the_count_did_not_see_is_mended_by_one_compaction() -> None:
    """The second request is smaller, and only one turn is committed."""
    backend = ScriptedBackend([OVERFLOW, "fine"])

    run = finished(Loop(backend, compactor=compactor(ScriptedBackend(["notes"]), 1000)).run(talk(9)))

    assert run.outcome.final == "fine"
    first, second = sent(backend)
    assert len(second) < len(first)
    assert [event.disposition for event in run.of(AttemptFailed)] == ["advance"]


def test_one_backend_with_a_full_window_and_one_that_is_down_still_get_a_smaller_request() -> None:
    """History is what stands in the way at the first one; a run must not end because of it."""
    full = ScriptedBackend([OVERFLOW, "fine"])
    down = ScriptedBackend(lambda _: BackendError("slow down", "http", 429))

    run = finished(
        Loop([full, down], compactor=compactor(ScriptedBackend(["notes"]), 1000), max_retries=1).run(talk(9))
    )

    assert run.outcome.final == "fine"


def test_a_backend_whose_window_is_too_small_is_passed_over() -> None:
    """No attempt of it is announced; the record and one Log have the arithmetic."""
    small, large = ScriptedBackend([], model="small"), ScriptedBackend(["fine"], model="large")
    profile = ModelProfile(60, completion_reserve=10, input_safety_margin=5)
    budget = RequestBudget(profiles={"small": profile})

    run = finished(Loop([small, large], counter=Flat(), request_budget=budget).run(talk(9)))

    assert small.requests == []
    assert [event.backend_index for event in run.of(AttemptStarted)] == [1]
    (log,) = run.of(Log)
    assert isinstance(log.data, dict)
    assert (log.data["needed"], log.data["window"], log.data["model"]) == (105, 60, "small")
    for term in ("messages 100", "margin 5", "reserve 10", "window is 60"):
        assert term in log.data["message"]


def test_each_backend_is_weighed_by_its_own_counter() -> None:
    """A profile's counter decides for its model, and is the one that learns from its bills."""
    dear = UsageCounter(HeuristicCounter(chars_per_token=0.01))
    mine = UsageCounter()
    budget = RequestBudget(profiles={"dear": ModelProfile(1000, counter=dear, completion_reserve=0)})
    answer = billed("ok", Usage(prompt_tokens=77, completion_tokens=1))
    backends = [ScriptedBackend([], model="dear"), ScriptedBackend([answer], model="cheap")]

    run = finished(Loop(backends, counter=mine, request_budget=budget).run(talk(9)))

    assert run.outcome.ok
    assert dear.calibration() == {}
    assert mine.calibration()["prompt-tokens"] == 77


def test_the_mildest_compaction_that_lets_one_backend_answer_is_chosen() -> None:
    """The larger window decides how much has to go, in the tokens of its own counter."""
    backends = [ScriptedBackend([], model="small"), ScriptedBackend(["fine"], model="large")]
    budget = RequestBudget(
        profiles={
            "small": ModelProfile(30, completion_reserve=0, input_safety_margin=0),
            "large": ModelProfile(90, completion_reserve=0, input_safety_margin=0),
        }
    )
    refuses = ScriptedBackend(lambda _: BackendError("bad key", "http", 401))
    folds = compactor(refuses, 30, trigger_ratio=100, target_ratio=0.5)

    run = finished(Loop(backends, compactor=folds, request_budget=budget, context_budget=None).run(talk(9)))

    assert run.outcome.final == "fine"
    assert [event.tokens_after for event in run.of(CompactionDone)] == [90]


def test_a_bill_above_the_declared_window_is_an_overflow() -> None:
    """The server has cut the prompt without a word: its answer is none, and a smaller request is sent."""
    cut = billed("half", Usage(prompt_tokens=5000, completion_tokens=1))
    backend = ScriptedBackend([cut, "fine"], model="m")
    budget = RequestBudget(profiles={"m": ModelProfile(4000, completion_reserve=0, input_safety_margin=0)})
    folds = compactor(ScriptedBackend(["notes"]), 4000)

    run = finished(Loop(backend, compactor=folds, request_budget=budget).run(talk(9)))

    assert run.outcome.final == "fine"
    assert "half" not in [message.text for message in run.outcome.messages]
    assert "5000" in run.of(AttemptFailed)[0].error


def test_a_budget_of_the_callers_own_may_be_overshot_by_a_bill() -> None:
    """A `context_budget` is no vendor's window: an answer that was paid for is kept."""
    answer = billed("ok", Usage(prompt_tokens=5000, completion_tokens=1))

    run = finished(Loop(ScriptedBackend([answer]), counter=Flat(), context_budget=4000).run("go"))

    assert run.outcome.final == "ok"


def test_what_was_billed_is_the_measure_where_the_estimate_is_far_off() -> None:
    """Estimates three times too low do not keep a forced compaction from making room."""
    turn = [call("look"), Delta(finish_reason="tool_calls", usage=Usage(prompt_tokens=3000, completion_tokens=1))]
    backend = ScriptedBackend([turn, "done"], model="m")
    budget = RequestBudget(profiles={"m": ModelProfile(3005, completion_reserve=0, input_safety_margin=0)})
    counter = UsageCounter()
    folds = compactor(ScriptedBackend(["notes"]), 3005, counter=counter, trigger_ratio=1.0)
    loop = Loop(
        backend,
        compactor=folds,
        counter=counter,
        request_budget=budget,
        provider=ScriptedProvider({"look": "y" * 100}),
    )

    run = finished(loop.run(talk(59)))

    assert run.outcome.final == "done"
    assert len(run.of(CompactionStarted)) == 1
    assert len(backend.requests[1].messages) < 40


# -- truncation ----------------------------------------------------------------------------------


def cut_off(prompt: int, completion: int) -> list[Delta]:
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion)
    return [Delta("half a"), Delta(finish_reason="length", usage=usage)]


def test_a_completion_cut_by_its_own_cap_ends_the_run_and_is_never_sent_again() -> None:
    """The same bytes would be cut again; no other backend is asked either."""
    backend, other = ScriptedBackend([cut_off(40, 50)], max_tokens=50, model="m"), ScriptedBackend([])
    budget = RequestBudget(profiles={"m": ModelProfile(100_000)})

    run = finished(
        Loop([backend, other], request_budget=budget, compactor=compactor(ScriptedBackend([]), 90_000)).run(talk(3))
    )

    assert run.outcome.reason == "completion-truncated"
    assert len(backend.requests) == 1
    assert other.requests == []


def test_a_completion_cut_by_the_window_is_asked_again_once_with_a_smaller_request() -> None:
    """The fallback has its turn first; then one compaction for the whole chain."""
    backends = [ScriptedBackend([cut_off(117, 3), "fine"]), ScriptedBackend([cut_off(117, 3)])]
    folds = compactor(ScriptedBackend(["notes"]), 120, trigger_ratio=1.0)

    run = finished(Loop(backends, compactor=folds).run(talk(9)))

    assert run.outcome.final == "fine"
    assert [len(backend.requests) for backend in backends] == [2, 1]
    assert len(run.of(CompactionStarted)) == 1


def test_no_tool_call_of_a_cut_completion_is_dispatched() -> None:
    """A grammar may have closed it into valid JSON with invented arguments."""
    provider = ScriptedProvider({"write": "written"})
    usage = Usage(prompt_tokens=10, completion_tokens=20)
    backend = ScriptedBackend(
        [[call("write", path="a"), Delta(finish_reason="tool_calls", usage=usage)]], max_tokens=20
    )

    run = finished(Loop(backend, provider=provider).run("go"))

    assert run.outcome.reason == "completion-truncated"
    assert provider.calls == []


# -- counters and shapes ---------------------------------------------------------------------------


def test_another_context_or_catalogue_forgets_what_a_bill_taught() -> None:
    """A calibration holds for one model, one set of tools, one context."""
    answer = billed("ok", Usage(prompt_tokens=9000, completion_tokens=1))
    session = Session.in_memory()
    loop = Loop(ScriptedBackend([answer, "x", "y"]), session=session, context_budget=100_000)
    finished(loop.run("one"))

    same = finished(loop.run("two"))
    other = finished(loop.run("three", context="It is Monday."))

    assert (same.of(RoundStarted)[0].tokens or 0) >= 9000
    session.close()
    assert other.outcome.ok


def test_context_counts_in_the_preflight_and_for_the_trigger() -> None:
    """What a run says beside the conversation takes its place in the window too."""
    run = finished(Loop(ScriptedBackend([]), counter=Flat(), context_budget=20).run(talk(1), context="Monday"))

    assert run.outcome.reason == "context-exhausted"
    assert "context 10" in (run.outcome.error or "")


def test_tools_that_a_limit_has_turned_off_no_longer_count() -> None:
    """The last round goes out without declarations, and is weighed so."""
    backend = ScriptedBackend([call("look"), "done"])
    loop = Loop(
        backend,
        provider=ScriptedProvider({"look": "x"}),
        counter=Flat(),
        context_budget=40,
        max_tool_calls=0,
    )

    run = finished(loop.run("go"))

    assert run.outcome.final == "done"
    assert backend.requests[1].tools == ()


def test_a_chain_that_failed_for_other_reasons_too_says_so_when_nothing_can_be_gained() -> None:
    """Only where size is all that stood in the way is the context called exhausted."""
    full = ScriptedBackend(lambda _: OVERFLOW)
    down = ScriptedBackend(lambda _: BackendError("slow down", "http", 429))

    run = finished(Loop([full, down], compactor=compactor(ScriptedBackend([]), 1000), max_retries=1).run("go"))

    assert run.outcome.reason is None
    assert "slow down" in (run.outcome.error or "")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("This model's maximum context length is 4000 tokens, you requested 8000 tokens", 40),
        ("the context length is exceeded", 50),
        ("the context length of 4096 is exceeded", 50),
    ],
)
def test_a_refusal_tells_how_much_smaller_the_request_must_be(words: str, kept: int) -> None:
    """Its own numbers, where it names two; else half is left to try, for no window is known."""
    backend = ScriptedBackend([BackendError(words, "http", 400), "fine"])
    refuses = ScriptedBackend(lambda _: BackendError("bad key", "http", 401))

    run = finished(Loop(backend, compactor=compactor(refuses, 1000)).run(talk(9)))

    assert run.outcome.final == "fine"
    assert [event.tokens_after for event in run.of(CompactionDone)] == [kept]


def test_a_server_that_refuses_the_notes_too_gets_a_shorter_transcript() -> None:
    """The usual case: one local model for both; what it could not take as a whole it reads in part."""
    too_long = BackendError("the request exceeds the context length", "http", 400)
    summariser = ScriptedBackend([too_long, "notes"])
    backend = ScriptedBackend([OVERFLOW, "fine"])
    history = [Message.system("s"), *[Message.assistant("w " * 300) for _ in range(20)], Message.user("go")]

    run = finished(Loop(backend, compactor=compactor(summariser, 5000)).run(history))

    first, second = (request.messages[1].text for request in summariser.requests)
    assert len(second) < 0.6 * len(first)
    assert (run.outcome.final, run.of(CompactionDone)[0].fallback) == ("fine", False)
