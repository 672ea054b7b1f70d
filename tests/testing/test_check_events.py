"""Every rule of the event grammar refuses the stream that breaks it, and no stream that keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agent import events as ev
from llm_agent.events import Event
from llm_agent.messages import Message, ToolRequest
from llm_agent.testing import check_events
from llm_agent.testing.events import GRAMMAR

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "traces"


def stream(*events: Event | Sequence[Event], first: int = 0) -> list[Event]:
    """Stamp events as a run's channel does; lists are unpacked."""
    flat: list[Event] = []
    for one in events:
        flat += one if isinstance(one, list | tuple) else [one]  # type: ignore[list-item]
    return [event.stamped("r", seq) for seq, event in enumerate(flat, start=first)]


START = ev.RunStarted(message_count=1)
LOG = ev.Log(data="x")
COMPACTION = [ev.CompactionStarted(), ev.CompactionDone()]
CANCELLED = ev.RunCancelled()
FAILED = ev.RunFailed(error="x")


def opened(round: int = 1, attempt: int = 1, backend: int = 0) -> Event:
    return ev.AttemptStarted(round=round, attempt=attempt, backend_index=backend, model="m")


def broke(disposition: Any, round: int = 1, attempt: int = 1, backend: int = 0, **more: Any) -> Event:
    return ev.AttemptFailed(
        round=round, attempt=attempt, backend_index=backend, error="x", disposition=disposition, **more
    )


def succeeded(round: int = 1, attempt: int = 1, backend: int = 0) -> Event:
    return ev.AttemptSucceeded(round=round, attempt=attempt, backend_index=backend)


def spoken(text: str, round: int = 1) -> list[Event]:
    """A completion that streamed *text*, up to its verdict."""
    return [opened(round), *(ev.Token(text=letter) for letter in text), succeeded(round)]


def turn(text: str = "", *calls: str, round: int = 1) -> list[Event]:
    """A round with a committed turn that asks for *calls*, announced."""
    requests = [ToolRequest(one, "look", "{}") for one in calls]
    message = ev.AssistantMessage(message=Message.assistant(text, requests), round=round)
    announced = [ev.ToolCall(id=one, name="look", round=round) for one in calls]
    return [ev.RoundStarted(round=round), *spoken(text, round), message, ev.TurnCommitted(), *announced]


def called(*ids: str) -> list[Event]:
    """One group of calls, started and answered."""
    started = [ev.ToolStarted(id=one, name="look") for one in ids]
    return [*started, *(ev.ToolResult(id=one, content="ok") for one in ids)]


def abandoned(id: str, dispatched: bool, reason: Any = "cancelled") -> Event:
    return ev.ToolAbandoned(id=id, name="look", reason=reason, dispatched=dispatched)


def pending(ask: str = "a1", call: str | None = "1") -> Event:
    return ev.AskPending(request={}, ask_id=ask, call_id=call)


def answered(ask: str = "a1", call: str | None = "1") -> Event:
    return ev.AskAnswered(request={}, ask_id=ask, call_id=call)


def completed(final: str = "ok", rounds: int | None = 1) -> Event:
    return ev.RunCompleted(final=final, rounds=rounds)


ONE = [*turn("ok"), completed()]
STARTED = ev.ToolStarted(id="1", name="look")
RESULT = ev.ToolResult(id="1", content="ok")
ROUND = ev.RoundStarted(round=1)
DISCARDED = {
    "limit": ev.TurnDiscarded(reason="limit"),
    "failed": ev.TurnDiscarded(reason="failed"),
    "cancelled": ev.TurnDiscarded(reason="cancelled"),
}

SOUND: dict[str, list[Event]] = {
    "an answer": stream(START, ONE),
    "logs anywhere": stream(
        LOG, START, LOG, ROUND, LOG, opened(), LOG, succeeded(), LOG, turn()[-2], LOG, turn()[-1], LOG, completed("")
    ),
    "an empty answer": stream(START, turn(""), completed("")),
    "a tool round": stream(START, turn("", "1"), called("1"), turn("ok", round=2), completed(rounds=2)),
    "groups": stream(
        START, turn("hm", "1", "2", "3"), called("1", "2"), called("3"), turn("ok", round=2), completed(rounds=2)
    ),
    "progress and asks": stream(
        START, turn("", "1"), STARTED, ev.ToolProgress(id="1", progress=1), pending(), answered(), RESULT,
        turn("ok", round=2), completed(rounds=None),
    ),
    "an ask without a call id": stream(
        START, turn("", "1"), STARTED, pending(call=None), answered(call=None), RESULT, FAILED
    ),
    "retry and fallback": stream(
        START, ROUND, opened(), ev.Token(text="retracted"), broke("retry-same", backoff=0.5),
        opened(attempt=2), broke("advance", attempt=2), opened(attempt=3, backend=1), ev.Token(text="ok"),
        succeeded(attempt=3, backend=1), turn("ok")[-2:], completed(),
    ),
    "abort": stream(START, ROUND, opened(), broke("abort"), DISCARDED["failed"], FAILED),
    "compaction": stream(START, COMPACTION, ONE),
    "a forced compaction": stream(
        START, ROUND, opened(), broke("advance"), COMPACTION, spoken("ok"), turn("ok")[-2:], completed()
    ),
    "nothing fits": stream(START, ROUND, ev.RunFailed(error="x", reason="context-exhausted")),
    "cancelled at the start": stream(START, ev.RunCancelled(stage="start")),
    "cancelled between rounds": stream(START, turn("", "1"), called("1"), ev.RunCancelled(stage="start", round=1)),
    "cancelled behind a compaction": stream(START, COMPACTION, ev.RunCancelled(stage="compaction", round=1)),
    "cancelled before an attempt": stream(START, ROUND, DISCARDED["cancelled"], CANCELLED),
    "cancelled in an attempt": stream(
        START, ROUND, opened(), ev.Token(text="x"), DISCARDED["cancelled"], ev.RunCancelled(stage="streaming", round=1)
    ),
    "cancelled in a backoff": stream(
        START, ROUND, opened(), broke("retry-same", backoff=1), DISCARDED["cancelled"],
        ev.RunCancelled(stage="backoff"),
    ),
    "cancelled in a call": stream(
        START, turn("", "1", "2", "3"), called("1"), ev.ToolStarted(id="2", name="look"), abandoned("2", True),
        abandoned("3", False), ev.RunCancelled(stage="tools"),
    ),
    "cancelled in an ask": stream(START, turn("", "1"), STARTED, pending(), abandoned("1", True), CANCELLED),
    "a deadline": stream(
        START, turn("", "1", "2"), STARTED, abandoned("1", True, "deadline"), abandoned("2", False, "deadline"),
        turn("ok", round=2), completed(rounds=2),
    ),
    "no room for a call": stream(
        START, turn("", "1", "2", "3"), abandoned("1", False, "deadline"), called("2"), abandoned("3", False), CANCELLED
    ),
    "a limit": stream(
        START, ROUND, spoken("no"), ev.LimitReached(limit="rounds"), DISCARDED["limit"], turn("ok", round=2),
        completed(rounds=2),
    ),
    "a steer behind an answer": stream(START, turn("first"), turn("ok", round=2), completed(rounds=2)),
    "a budget at the top of a round": stream(
        START, turn("", "1"), called("1"), ev.RunFailed(error="x", round=2, reason="budget-exhausted")
    ),
    "a transcript that refuses the turn": stream(START, ROUND, spoken("x"), DISCARDED["failed"], FAILED),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_a_stream_that_keeps_the_grammar_passes_and_is_returned(case: str) -> None:
    """What comes in comes out, as a list."""
    assert check_events(iter(SOUND[case])) == SOUND[case]


@pytest.mark.parametrize("case", SOUND)
def test_the_wire_form_is_judged_like_the_events(case: str) -> None:
    """A relay's dicts are read back and give equal events."""
    assert check_events(event.to_dict() for event in SOUND[case]) == SOUND[case]


UNSOUND: dict[str, tuple[list[Event], str]] = {
    # the envelope
    "a gap in seq": (SOUND["an answer"][:1] + SOUND["an answer"][2:], r"seq 2 .*: seq must be contiguous: expected 1"),
    "not from 0": (stream(START, first=1), "expected 0, got 1"),
    "unstamped": ([START], "expected 0, got None"),
    "no run id": ([attrs.evolve(START, seq=0)], "carries its run id, got none"),
    "another run": ([*stream(START), CANCELLED.stamped("q", 1)], "one run id: expected 'r', got 'q'"),
    # the run
    "nothing": ([], "without a terminal"),
    "no terminal": (SOUND["an answer"][:-1], r"end behind a committed turn without a terminal"),
    "no start": (stream(ONE), "may not come before the run; expected one of run-started"),
    "a second start": (stream(START, START), "may not come between rounds"),
    "behind the terminal": (stream(START, CANCELLED, CANCELLED), "nothing comes behind the terminal"),
    "a log behind the terminal": (stream(START, CANCELLED, LOG), "nothing comes behind the terminal"),
    "completed without a turn": (stream(START, completed()), "may not come between rounds"),
    "completed with open calls": (stream(START, turn("", "1"), completed()), "may not come among a turn's calls"),
    "another final": (stream(START, turn("ok"), completed("no")), "final is the last turn's text: expected 'ok'"),
    "another count": (stream(START, turn("ok"), completed(rounds=2)), "rounds must be 1, got 2"),
    # rounds
    "rounds from 0": (stream(START, ev.RoundStarted(round=0)), "the round must be|rounds count from 1"),
    "a skipped round": (stream(START, turn("a"), ev.RoundStarted(round=3)), "round must be 1 or 2, got 3"),
    "a repeated round": (stream(START, turn("a"), ROUND), "expected 2, got 1"),
    "an event of another round": (stream(START, ROUND, opened(round=2)), "the round must be 1, got 2"),
    "an attempt outside a round": (stream(START, opened()), "may not come between rounds"),
    "a round within a round": (stream(START, ROUND, ev.RoundStarted(round=2)), "may not come in a round"),
    "cancelled within a round": (stream(START, ROUND, CANCELLED), "may not come in a round"),
    # compaction
    "a compaction without end": (stream(START, COMPACTION[0], ROUND), "may not come in a compaction"),
    "an end without compaction": (stream(START, COMPACTION[1]), "may not come between rounds"),
    "two compactions": (stream(START, COMPACTION, COMPACTION), "between a compaction and its round"),
    "forced twice": (stream(START, ROUND, COMPACTION, COMPACTION), "forced once per round"),
    "a compaction in an attempt": (stream(START, ROUND, opened(), COMPACTION), "may not come in an attempt"),
    # attempts
    "an attempt in an attempt": (stream(START, ROUND, opened(), opened(attempt=2)), "may not come in an attempt"),
    "attempts from 2": (stream(START, ROUND, opened(attempt=2)), "attempts count from 1 .*: expected 1, got 2"),
    "a token outside": (stream(START, ROUND, ev.Token(text="x")), "may not come in a round"),
    "an empty token": (stream(START, ROUND, opened(), ev.Token(text="")), "a token is never empty"),
    "a token of another attempt": (
        stream(START, ROUND, opened(), ev.Token(text="x", attempt=2)), "open attempt 1, got 2"),
    "another attempt closed": (stream(START, ROUND, opened(), succeeded(attempt=2)), "closes attempt 2"),
    "another backend closed": (stream(START, ROUND, opened(), broke("abort", backend=1)), "of backend 1, but"),
    "a backoff and advance": (stream(START, ROUND, opened(), broke("advance", backoff=1)), "only with retry-same"),
    "on after an abort": (stream(START, ROUND, opened(), broke("abort"), opened(attempt=2)), "follows an abort"),
    "a retry elsewhere": (
        stream(START, ROUND, opened(), broke("retry-same"), opened(attempt=2, backend=1)), "asks backend 0 again"),
    "an advance that stays": (
        stream(START, ROUND, opened(), broke("advance"), opened(attempt=2)), "a backend behind 0, got backend 0"),
    "failed in an attempt": (stream(START, ROUND, opened(), FAILED), "may not come in an attempt"),
    "cancelled in an attempt": (stream(START, ROUND, opened(), CANCELLED), "may not come in an attempt"),
    "an attempt discarded as failed": (
        stream(START, ROUND, opened(), DISCARDED["failed"]), "only a cancel discards the turn of an open attempt"),
    # verdicts
    "no verdict": (stream(START, ROUND, spoken("x"), FAILED), "between a succeeded attempt and its verdict"),
    "a retry of a success": (stream(START, ROUND, spoken("x"), opened(attempt=2)), "and its verdict"),
    "other text": (stream(START, ROUND, spoken("x"), turn("y")[-2:]), "join up to the message: expected 'y'"),
    "no assistant": (
        stream(START, ROUND, spoken("x"), ev.AssistantMessage(message=Message.user("x"))), "got role 'user'"),
    "no commit": (stream(START, turn("ok")[:-1], completed()), "between an assistant message and its commit"),
    "both verdicts": (stream(START, turn("ok"), DISCARDED["failed"]), "may not come behind a committed turn"),
    "a limit without discard": (stream(START, ROUND, spoken("x"), ev.LimitReached(limit="l"), FAILED), "reached limit"),
    "a limit discarded as failed": (
        stream(START, ROUND, spoken("x"), ev.LimitReached(limit="l"), DISCARDED["failed"]), "belong together"),
    "limit without a limit": (stream(START, ROUND, spoken("x"), DISCARDED["limit"]), "belong together"),
    "on after a cancel": (
        stream(START, ROUND, DISCARDED["cancelled"], ev.RoundStarted(round=2)), "followed by run-cancelled"),
    "on after a failure": (
        stream(START, ROUND, opened(), broke("abort"), DISCARDED["failed"], CANCELLED), "followed by run-failed"),
    "failed without a discarded turn": (stream(START, ROUND, opened(), broke("abort"), FAILED), "discards its turn"),
    "a wrong stage among calls": (
        stream(START, turn("", "1"), abandoned("1", False), ev.RunCancelled(stage="streaming")), "tools or start"),
    "a wrong stage in a stream": (
        stream(START, ROUND, DISCARDED["cancelled"], ev.RunCancelled(stage="start")), "streaming or backoff"),
    "a wrong stage between rounds": (stream(START, ev.RunCancelled(stage="tools")), "has stage start or compaction"),
    "a backoff without a failure": (
        stream(START, ROUND, DISCARDED["cancelled"], ev.RunCancelled(stage="backoff")), "failed with retry-same"),
    "failed without a failure": (stream(START, ROUND, DISCARDED["failed"]), "only by a failed attempt"),
    # calls
    "calls not announced": (stream(START, turn("", "1")[:-1], FAILED), "asks for 1 calls: they are announced first"),
    "only some announced": (stream(START, turn("", "1", "2")[:-1], STARTED), "announced .*: 2 is missing"),
    "an announced stranger": (stream(START, turn(""), ev.ToolCall(id="1", name="look")), "asks for 0 calls"),
    "announced out of order": (
        stream(START, turn("", "1", "2")[:-2], ev.ToolCall(id="2", name="look")), "model's order: expected '1'"),
    "announced under another name": (
        stream(START, turn("", "1")[:-1], ev.ToolCall(id="1", name="x")), r"expected '1' \(look\), got '1' \(x\)"),
    "an id twice": (stream(START, turn("", "1", "1")), "unique within a turn"),
    "announced late": (stream(START, turn("", "1"), STARTED, ev.ToolCall(id="2", name="look")), "before the first"),
    "a result without a start": (stream(START, turn("", "1"), RESULT), "'1' has not started"),
    "two results": (stream(START, turn("", "1"), called("1"), RESULT), "'1' is over"),
    "two starts": (stream(START, turn("", "1"), STARTED, STARTED), "can start once"),
    "a start out of order": (
        stream(START, turn("", "1", "2"), ev.ToolStarted(id="2", name="look")), "start in the order announced"),
    "an end out of order": (
        stream(START, turn("", "1", "2"), called("1", "2")[:2], ev.ToolResult(id="2", content="")), "end in the order"),
    "an unannounced start": (stream(START, turn("", "1"), ev.ToolStarted(id="x", name="look")), "no call 'x'"),
    "another name": (stream(START, turn("", "1"), ev.ToolStarted(id="1", name="x")), "is of 'look', got 'x'"),
    "overlapping groups": (
        stream(START, turn("", "1", "2", "3"), called("1", "2")[:3], ev.ToolStarted(id="3", name="look")),
        "only when the group before it has ended"),
    "a start in a group at work": (
        stream(START, turn("", "1", "2"), STARTED, pending(), answered(), ev.ToolStarted(id="2", name="look")),
        "only when the group before it has ended"),
    "never ended": (stream(START, turn("", "1"), STARTED, ev.RoundStarted(round=2)), "1 did not"),
    "never started": (stream(START, turn("", "1", "2"), called("1"), CANCELLED), "2 did not"),
    "progress of nothing": (stream(START, turn("", "1"), ev.ToolProgress(id="1", progress=1)), "has not started"),
    "progress behind the end": (
        stream(START, turn("", "1"), called("1"), ev.ToolProgress(id="1", progress=1)), "'1' is over"),
    "abandoned, wrongly dispatched": (stream(START, turn("", "1"), abandoned("1", True)), "it had not, got True"),
    "abandoned, wrongly not": (stream(START, turn("", "1"), STARTED, abandoned("1", False)), "it had, got False"),
    "two reasons": (
        stream(START, turn("", "1", "2"), abandoned("1", False), abandoned("2", False, "deadline")), "for one reason"),
    "a start behind an abandoned call": (
        stream(START, turn("", "1", "2"), abandoned("1", False), ev.ToolStarted(id="2", name="look")), "nothing st"),
    "an answer behind an abandoned call": (
        stream(START, turn("", "1", "2"), called("1", "2")[:2], abandoned("1", True), called("2")[-1]),
        "no call is answered behind"),
    "on after cancelled calls": (
        stream(START, turn("", "1"), abandoned("1", False), ev.RoundStarted(round=2)), "followed by run-cancelled"),
    "on after a spent budget": (
        stream(START, turn("", "1"), abandoned("1", False, "budget-exhausted"), CANCELLED), "followed by run-failed"),
    # asks
    "an ask of nothing": (stream(START, turn("", "1"), pending()), "has not started"),
    "an ask without a call": (stream(START, turn("", "1"), pending(call=None)), "none does"),
    "an ask twice": (stream(START, turn("", "1"), STARTED, pending(), pending()), "opened once"),
    "an answer to nothing": (stream(START, turn("", "1"), STARTED, answered()), "closes an open ask"),
    "two answers": (stream(START, turn("", "1"), STARTED, pending(), answered(), answered()), "closes an open ask"),
    "a result with a nameless open ask": (
        stream(START, turn("", "1"), STARTED, pending("a1", None), RESULT), "'a1' is still open"),
    "a result with an open ask": (stream(START, turn("", "1"), STARTED, pending(), RESULT), "'a1' is still open"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSOUND)
def test_a_stream_that_breaks_a_rule_is_refused(case: str) -> None:
    """The error says which rule."""
    events, complaint = UNSOUND[case]

    with pytest.raises(AssertionError, match=complaint):
        check_events(events)


def test_an_error_names_the_event_and_what_came_before_it() -> None:
    """Seq, kind, rule and the last kinds: enough to find the place in a log."""
    with pytest.raises(AssertionError) as caught:
        check_events(stream(START, ROUND, ev.Token(text="x")))

    assert str(caught.value) == (
        "event seq 2 (token): may not come in a round, no attempt open; expected one of attempt-started, "
        "compaction-started, turn-discarded, run-failed [before it: run-started, round-started]"
    )


# -- streams that are not whole --------------------------------------------------------


def test_a_live_run_may_lack_its_terminal() -> None:
    """`complete=False` judges what is there."""
    check_events(SOUND["an answer"][:-1], complete=False)


@pytest.mark.parametrize("after", range(17))
def test_a_later_start_is_accepted_when_announced(after: int) -> None:
    """A reader that resumes behind any event sees a sound rest."""
    events = SOUND["a tool round"]

    check_events(events[after + 1 :], after=after, complete=after < len(events) - 1)


def test_a_later_start_is_judged_from_the_next_round_on() -> None:
    """The rest of the round is taken as it comes, the next one is not."""
    rest = stream(RESULT, ev.RoundStarted(round=2), ev.Token(text="x"), first=9)

    with pytest.raises(AssertionError, match="seq 11"):
        check_events(rest, after=8)


@pytest.mark.parametrize(
    "events",
    [
        stream(START, ROUND, opened(), FAILED),
        stream(START, ROUND, opened(), DISCARDED["failed"], FAILED),
        stream(START, COMPACTION[0], FAILED),
        stream(START, turn("", "1"), STARTED, FAILED),
        stream(START, ROUND, spoken("x"), FAILED),
    ],
)
def test_a_run_that_died_may_leave_things_open_when_allowed(events: list[Event]) -> None:
    """`abrupt=True` is for errors inside the engine; without it each of these is refused."""
    check_events(events, abrupt=True)
    with pytest.raises(AssertionError):
        check_events(events)


# -- the checker as a whole ------------------------------------------------------------


def _is_harmless(events: list[Event], place: int, mutation: str) -> bool:
    """Whether a mutation leaves a stream that no consumer could tell from a sound one.

    These are: whatever happens to a log or a progress report (swaps with one may leave what
    it belongs to, so they stay undecided), to a token that is retracted, a swap of equals,
    and what makes it the stream of another sound run.
    """
    touched = [events[place], events[place + 1]] if mutation == "swap" else [events[place]]
    kinds = [event.kind for event in touched]
    if "log" in kinds or "tool-progress" in kinds:
        return True
    if mutation == "swap" and len({str(attrs.evolve(event, seq=0, at_us=0)) for event in touched}) == 1:
        return True
    fates = (e.kind for e in events[place:] if e.kind in ("attempt-failed", "turn-discarded", "turn-committed"))
    if set(kinds) == {"token"} and next(fates, "") != "turn-committed":
        return True
    following = events[place + 1].kind if place + 1 < len(events) else ""
    return (mutation, *sorted(kinds), following if mutation == "drop" else "") in ANOTHER_RUN


ANOTHER_RUN = {
    # One group becomes two, or two become one.
    ("swap", "tool-result", "tool-started", ""),
    # It failed, or asked nobody, a moment earlier.
    ("drop", "round-started", "run-failed"),
    ("drop", "ask-pending", "tool-abandoned"),
}


def _mutated(events: list[Event], place: int, mutation: str) -> list[Event]:
    changed = list(events)
    match mutation:
        case "drop":
            del changed[place]
        case "double":
            changed.insert(place, changed[place])
        case "swap":
            changed[place : place + 2] = reversed(changed[place : place + 2])
    return [event.stamped("r", seq) for seq, event in enumerate(changed)]


def _survivors(events: list[Event]) -> list[tuple[str, int]]:
    """The mutations of one event that the check lets pass although a consumer could trip over them."""
    passed = []
    for mutation in ("drop", "double", "swap"):
        for place in range(len(events) - (mutation == "swap")):
            try:
                check_events(_mutated(events, place, mutation))
            except AssertionError:
                continue
            if not _is_harmless(events, place, mutation):
                passed.append((mutation, place))
    return passed


@pytest.mark.parametrize("case", SOUND)
def test_every_single_mistake_in_a_sound_stream_is_refused(case: str) -> None:
    """Each event dropped, doubled or swapped with the next: refused, but where no consumer could tell."""
    assert _survivors(SOUND[case]) == []


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """A run of any number of rounds with retries, groups, asks, logs and compactions, that completes."""
    events: list[Event] = [START]
    rounds = draw(st.integers(1, 3))
    for number in range(1, rounds + 1):
        text = draw(st.text("ab", max_size=3))
        calls = [f"{number}-{n}" for n in range(draw(st.integers(1, 4)))] if number < rounds else []
        whole = turn(text, *calls, round=number)
        events += draw(st.sampled_from([[], [LOG], COMPACTION]))
        events.append(whole[0])
        failures = draw(st.integers(0, 2))
        for attempt in range(1, failures + 1):
            events += [opened(number, attempt), *draw(st.sampled_from([[], [ev.Token(text="x")]]))]
            events.append(broke("retry-same", number, attempt, backoff=0.0))
        events += [opened(number, failures + 1), *whole[2 : 2 + len(text)], succeeded(number, failures + 1)]
        events += whole[3 + len(text) :]
        events += draw(groups(calls))
    return stream(events, completed(text, rounds))


@st.composite
def groups(draw: st.DrawFn, calls: list[str]) -> list[Event]:
    """The calls of a turn in groups, with asks and progress while they run."""
    events: list[Event] = []
    while calls:
        size = draw(st.integers(1, len(calls)))
        group, calls = calls[:size], calls[size:]
        chatter: list[Event] = []
        for one in draw(st.lists(st.sampled_from(group), max_size=2)):
            chatter += [pending(one, one), answered(one, one), ev.ToolProgress(id=one, progress=1)]
        events += called(*group)[:size] + chatter + called(*group)[size:]
    return events


@settings(max_examples=15)
@given(runs())
def test_any_completed_run_passes_and_every_single_mistake_in_it_is_refused(events: list[Event]) -> None:
    """What holds for the written streams holds for generated ones."""
    assert check_events(events) == events
    assert _survivors(events) == []


def test_every_kind_has_its_place_in_the_grammar() -> None:
    """A new event class cannot be forgotten here; only logs are outside the table."""
    placed = {kind for row in GRAMMAR.values() for kind in row}

    assert placed == set(ev.KINDS) - {"log"}


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the recorded traces lie beside the repository")
def test_recorded_runs_keep_the_grammar() -> None:
    """Every recorded run passes, but for one where the original let an attempt open."""
    refused = []
    for path in sorted(GOLDEN.glob("*.json")):
        for run in json.loads(path.read_text()).get("runs", ()):
            told = [{**event, "run-id": "r", "seq": seq} for seq, event in enumerate(run.get("events", ()))]
            try:
                check_events(told, complete=bool(told))
            except AssertionError as broken:
                refused.append((path.stem, str(broken).split(";")[0]))

    # A backend whose call raises is a failed attempt here; there the run died within it.
    assert refused == [("backend-raises", "event seq 3 (run-failed): may not come in an attempt")]
