"""Whatever compactors, counters, stores and bills do: the run ends as it should, and live and file agree."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from llm_agent.budget import ModelProfile, RequestBudget
from llm_agent.compactor import Compactor
from llm_agent.errors import BackendError, ConfigError, TranscriptError
from llm_agent.events import CompactionDone, Log, RunCancelled, ToolResult
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Message, ToolRequest, Usage
from llm_agent.outcome import Outcome
from llm_agent.ports import Compaction, CompletionRequest, Elision, Stored
from llm_agent.run import Run
from llm_agent.session.session import Session
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished
from llm_agent.token_count import ExactCounter, HeuristicCounter, UsageCounter

WAIT = 5.0
BUDGET = 32_000
OVERFLOW = BackendError("prompt is too long: 9000 tokens > 8000 maximum", "http", 400)
A_TALK = [Message.system("be terse"), *(Message.user(f"{n}") for n in range(8))]

pytestmark = pytest.mark.usefixtures("no_wait")


@attrs.define
class Foreign:
    """A compactor that gives what the test says; due once."""

    make: Callable[[tuple[Message, ...]], Any]
    is_due: bool = True
    context_budget: int = BUDGET

    def needs_compaction(self, messages: Sequence[Message], tokens: int | None = None) -> bool:
        is_due, self.is_due = self.is_due, False
        return is_due

    def compact(self, messages: Sequence[Message], **_: Any) -> Any:
        return self.make(tuple(messages))


def result(messages: tuple[Message, ...], **fields: Any) -> Compaction:
    return Compaction(messages=messages, **{"tokens_before": 100, "tokens_after": 10, **fields})


# -- cancels -----------------------------------------------------------------------------------


def test_a_cancel_in_a_forced_compaction_is_a_cancel_though_nothing_was_gained() -> None:
    """A compactor that is told to stop gives back what it was given; that is no exhausted window."""
    for _ in range(20):
        runs: list[Run] = []
        is_started = threading.Event()

        def stop(messages: tuple[Message, ...], runs: list[Run] = runs, started: threading.Event = is_started) -> Any:
            assert started.wait(WAIT)
            runs[0].cancel()
            return result(messages, tokens_after=100)

        runs.append(Loop(ScriptedBackend([OVERFLOW]), compactor=Foreign(stop, is_due=False)).run(A_TALK))
        is_started.set()

        assert finished(runs[0]).outcome.status == "cancelled"


def test_a_cancel_in_a_forced_summary_retracts_the_round() -> None:
    """Consumers are told that no message is coming, as with every round that a cancel ends."""
    gate, counter = Gate(), HeuristicCounter()
    compactor = Compactor(ScriptedBackend([gate]), counter, BUDGET, keep_recent=2)
    run = Loop(ScriptedBackend([OVERFLOW]), compactor=compactor).run(A_TALK)
    gate.wait_entered()

    run.cancel()
    done = finished(run)

    assert done.kinds[-3:] == ["compaction-done", "turn-discarded", "run-cancelled"]
    assert [event.stage for event in done.of(RunCancelled)] == ["compaction"]


# -- compactors that break their word ------------------------------------------------------------

NONSENSE: dict[str, Mapping[str, Any]] = {
    "a cut before the first message": {"summary": "s", "dropped": 3, "cut_index": -1},
    "a cut behind the last one": {"summary": "s", "dropped": 3, "cut_index": 99},
    "no cut": {"summary": "s", "dropped": 3, "cut_index": None},
    "kept behind the cut": {"summary": "s", "dropped": 3, "cut_index": 4, "kept": (8,)},
    "kept counted from the end": {"summary": "s", "dropped": 3, "cut_index": 4, "kept": (-2,)},
    "a summary that is no text": {"summary": None, "dropped": 3, "cut_index": 4},
    "a stub counted from the end": {"elisions": (Elision(index=-1, stub="stub"),)},
    "a stub behind the end": {"elisions": (Elision(index=99, stub="stub"),)},
    "a stub that is no text": {"elisions": (Elision(index=1, stub=None),)},  # type: ignore[arg-type]  # what is tested
    "no number": {"summary": "s", "dropped": 3, "cut_index": 4, "tokens_after": None},
    "a bill that is none": {"summary": "s", "dropped": 3, "cut_index": 4, "billed": (("sum", None),)},
    "no list": {"summary": "s", "dropped": 3, "cut_index": 4, "kept": None},
}


@pytest.mark.parametrize("fields", NONSENSE.values(), ids=NONSENSE)
def test_a_compaction_that_cannot_be_is_logged_and_left_out(fields: Mapping[str, Any], tmp_path: Path) -> None:
    """The conversation stays as it is, live and on disk, and the run goes on."""
    compactor = Foreign(lambda messages: result(messages, **fields))
    with Session.create(tmp_path / "run.jsonl") as session:
        done = finished(Loop(ScriptedBackend(["fine"]), compactor=compactor, session=session).run(A_TALK))

    assert ("completed", len(A_TALK) + 1) == (done.outcome.status, len(done.outcome.messages))
    assert [event.level for event in done.of(Log)] == ["error"]
    with Session.load(tmp_path / "run.jsonl") as again:
        assert done.outcome.messages == again.messages


class Full(Session):
    """A session whose disk is full when a summary is to be written."""

    def append_compaction(self, *_: Any, **__: Any) -> str:
        raise TranscriptError("disk full")


def test_stubs_on_record_are_live_though_the_summary_behind_them_could_not_be_written(tmp_path: Path) -> None:
    """Each line of a compaction counts by itself: what the run held is what the file holds."""

    def both(messages: tuple[Message, ...]) -> Compaction:
        return result(messages, summary="s", dropped=2, cut_index=2, elisions=(Elision(index=5, stub="stub"),))

    with Full.create(tmp_path / "run.jsonl") as session:
        outcome = Loop(ScriptedBackend([]), compactor=Foreign(both), session=session).run(A_TALK).result(WAIT)

        assert (outcome.status, outcome.error) == ("failed", "disk full")
        assert outcome.messages == session.messages
        assert session.messages[5].text == "stub"


# -- summaries that change nothing -----------------------------------------------------------------


@attrs.define
class Billing:
    """A backend that works for some rounds, and bills what was sent and *beside* tokens more."""

    rounds: int
    beside: int = 0
    model: str = "billing"
    max_tokens: int | None = None
    asked: int = 0

    def stream(self, request: CompletionRequest) -> Iterator[Delta]:
        self.asked += 1
        size = HeuristicCounter().count_request(request.messages, request.tools) + self.beside
        usage = Usage(prompt_tokens=size, completion_tokens=20)
        if self.asked == self.rounds:
            yield Delta("done", finish_reason="stop", usage=usage)
            return
        turn = ToolRequest(f"c{self.asked}", "look", json.dumps({"n": self.asked}))
        yield Delta(tool_calls=(turn,), finish_reason="tool_calls", usage=usage)


def windowed(tokens: int) -> RequestBudget:
    return RequestBudget(default_profile=ModelProfile(tokens, completion_reserve=0, input_safety_margin=0))


def worked(
    backend: Billing, request: str = "go", budget: RequestBudget | None = None, tool: str = ""
) -> tuple[Outcome, int]:
    """Return how a run of many rounds ended, and how many summaries it asked for."""
    counter, summariser = UsageCounter(), ScriptedBackend(lambda _: "notes")
    provider = ScriptedProvider({"look": "r" * 400})
    declared = {"type": "function", "function": {"name": "look", "description": tool, "parameters": {}}}
    provider.tools_for_llm = lambda: [declared]  # type: ignore[method-assign]  # any description will do
    loop = Loop(
        backend,
        provider=provider,
        counter=counter,
        compactor=Compactor(summariser, counter, BUDGET),
        request_budget=budget,
    )
    return loop.run([Message.system("be terse"), Message.user(request)]).result(30), len(summariser.requests)


@pytest.mark.parametrize(
    "tokens",
    [{"beside": 26_000}, {"tool": 26_000}, {"request": 31_000, "window": 128_000}],
    ids=["what a server adds", "declarations", "the newest request"],
)
def test_what_no_summary_can_replace_does_not_bring_a_summary_every_few_rounds(tokens: Mapping[str, int]) -> None:
    """Above the trigger all the same, a conversation is summarised for what has come since, and not for that."""
    outcome, summaries = worked(
        Billing(60, tokens.get("beside", 0)),
        request="x" * 4 * tokens.get("request", 1),
        budget=windowed(tokens.get("window", BUDGET)),
        tool="d" * 4 * tokens.get("tool", 1),
    )

    assert outcome.status == "completed"
    assert summaries <= 3


@pytest.mark.parametrize(
    ("beside", "budget"),
    [(40_000, None), (31_000, RequestBudget(default_profile=ModelProfile(BUDGET)))],
    ids=["a wish", "a declared window"],
)
def test_a_bill_that_no_compaction_brings_below_the_window_ends_the_run(
    beside: int, budget: RequestBudget | None
) -> None:
    """Not a summary per round for as long as somebody pays, but an end that says why."""
    outcome, summaries = worked(Billing(60, beside), budget=budget)

    assert (outcome.status, outcome.reason) == ("failed", "context-exhausted")
    assert "by the bill that followed" in (outcome.error or "")
    assert summaries <= 4


def test_a_request_above_the_compactors_budget_is_worked_on_while_it_fits_the_window() -> None:
    """The budget is where it is time to compact; that it cannot be kept is no end by itself."""
    outcome, _ = worked(Billing(60), request="x" * 160_000, budget=windowed(64_000))

    assert outcome.status == "completed"


def test_what_was_learned_with_another_context_brings_no_compaction() -> None:
    """The bill of a run with a large context says nothing about one without."""
    usage = Usage(prompt_tokens=9_000, completion_tokens=1)
    counter, summariser = UsageCounter(), ScriptedBackend([])
    backend = ScriptedBackend([[Delta("a", finish_reason="stop", usage=usage)], "b"])
    loop = Loop(backend, counter=counter, compactor=Compactor(summariser, counter, 10_000, keep_recent=1))
    talk = [Message.user("hi"), Message.assistant("ho"), Message.user("well")]
    first = finished(loop.run(talk, context="x" * 30_000)).outcome

    second = finished(loop.run([*first.messages, Message.user("next")]))

    assert second.outcome.status == "completed"
    assert (second.of(CompactionDone), summariser.requests) == ([], [])


@pytest.mark.parametrize("method", ["count_messages", "count_text", "count_request", "record_usage", "invalidate"])
@pytest.mark.parametrize(
    "give",
    [lambda counter: Loop(ScriptedBackend([]), counter=counter), lambda counter: ModelProfile(BUDGET, counter=counter)],
    ids=["to a loop", "to a profile"],
)
def test_a_counter_that_lacks_what_a_run_will_ask_of_it_is_refused_at_once(
    method: str, give: Callable[[Any], Any]
) -> None:
    """Not by a run that dies when its window is full."""

    class Lacking(UsageCounter):
        pass

    setattr(Lacking, method, None)

    with pytest.raises(ConfigError, match=f"{method}\\(\\)"):
        give(Lacking())


# -- stores ------------------------------------------------------------------------------------


@attrs.define
class Store:
    """A store that does what the test says."""

    act: Callable[[], Any]

    def write(self, name: str, text: str) -> Stored:
        return self.act()  # type: ignore[no-any-return]  # what is tested


def looking(store: Store) -> Run:
    loop = Loop(
        ScriptedBackend([call("look"), "done"]),
        provider=ScriptedProvider({"look": "z" * 20_000}),
        request_budget=RequestBudget(),
        artifact_store=store,
    )
    return loop.run("go")


def test_a_store_that_hangs_does_not_hold_a_cancelled_run() -> None:
    """The call has happened: its answer is on record, as an excerpt that says that the rest was not kept."""
    entered, release = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(30)

    run = looking(Store(hang))
    assert entered.wait(WAIT)

    run.cancel()
    done = finished(run, drained=False)
    release.set()

    assert done.outcome.status == "cancelled"
    assert ["was not kept" in event.content for event in done.of(ToolResult)] == [True]


def test_a_store_that_has_a_moment_left_still_keeps_what_a_cancel_found_being_written() -> None:
    """A cancel costs no result that is there."""
    entered, release = threading.Event(), threading.Event()

    def write() -> Stored:
        entered.set()
        release.wait(WAIT)
        return Stored(file="kept.txt", digest="0" * 64, bytes=20_000)

    run = looking(Store(write))
    assert entered.wait(WAIT)

    run.cancel()
    release.set()

    assert [(event.artifact or {}).get("file") for event in finished(run).of(ToolResult)] == ["kept.txt"]


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), OSError("full")])
def test_whatever_a_store_raises_costs_the_artifact_only(error: BaseException) -> None:
    """Also when it is no `Exception`: the call is answered, and the run goes on."""

    def fail() -> None:
        raise error

    done = finished(looking(Store(fail)))

    assert done.outcome.status == "completed"
    assert [event.level for event in done.of(Log)] == ["warning"]


# -- tokenizer files -------------------------------------------------------------------------------


def tokenizer(folder: Path, **parts: Any) -> Path:
    """Write a tokenizer.json that knows two letters, with *parts* in it."""
    known: Any = ("added_tokens", []), ("model", {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []})
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", **dict(known), **parts}))
    return path


def test_a_tokenizer_that_panics_is_estimated_for() -> None:
    """What native code raises then is no `Exception`; a counter raises nothing all the same."""

    class Panic(BaseException):
        pass

    def panicking(_: str) -> Sequence[int]:
        raise Panic

    counter = ExactCounter.from_tokenizer(panicking, lambda messages, _: str(messages))

    assert HeuristicCounter().count_messages(A_TALK) == counter.count_messages(A_TALK)


def test_a_tokenizer_file_that_makes_its_package_panic_is_estimated_for(tmp_path: Path) -> None:
    """As above, with the package's own panic: pieces of length 0."""
    pytest.importorskip("tokenizers", reason="the extra is not installed")
    path = tokenizer(tmp_path, pre_tokenizer={"type": "FixedLength", "length": 0})
    try:
        counter = ExactCounter.from_tokenizer_json(path, chat_template="{{ messages[0].content }}")
    except ConfigError:
        pytest.skip("this version of the package refuses the file")

    assert HeuristicCounter().count_messages(A_TALK) == counter.count_messages(A_TALK)


def test_a_template_can_have_nothing_called_past_its_sandbox(tmp_path: Path) -> None:
    """`tojson` takes the options of a spelling, and none of those that `json` would call."""
    pytest.importorskip("tokenizers", reason="the extra is not installed")
    template = "{{ cycler | tojson(default=messages[0].get) }}"
    counter = ExactCounter.from_tokenizer_json(tokenizer(tmp_path), chat_template=template)

    assert HeuristicCounter().count_messages(A_TALK) == counter.count_messages(A_TALK)
