"""Golden scenarios, played on our engine and compared with the traces of the original one.

`DIFFERENCES` is the whole of what may differ, each entry with its reason and, where it can be
said, with our value. The law: a difference that is not in the table fails, and so does an entry
that no longer occurs.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from driver import main, play

GOLDEN: Final = Path(__file__).resolve().parents[3] / "shared" / "golden"
ANYTHING: Final[Any] = object()


@attrs.frozen
class Differs:
    """One argued difference: where (`*` stands for anything), why, and what ours is.

    Where elements are missing or added, those behind them shift: *path* is the whole list then,
    and *ours* all of it.
    """

    path: str
    reason: str
    ours: Any = ANYTHING

    def allows(self, path: str, got: Any, trace: Any) -> bool:
        pattern = ".*".join(map(re.escape, self.path.split("*")))
        if re.fullmatch(pattern, path) is not None:
            return self.ours is ANYTHING or bool(self.ours == got)
        whole = re.match(pattern + r"(?=[.\[])", path)
        return whole is not None and bool(self.ours == _at(trace, whole[0]))


def _at(trace: Any, path: str) -> Any:
    """Return the part of *trace* that a path of `differences` names."""
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        trace = trace[key] if key else trace[int(index)]
    return trace


ABSENT: Final = "<absent>"

_BAD_CALL: Final = (
    "A call without a name, or with arguments that are no JSON object, never reaches the provider: "
    "the engine answers it with an error."
)
_UNREADABLE: Final = "A call's unreadable function becomes the name '', a missing id is made up before the commit."
_BY_ID: Final = "Answers of a group that carry call ids are paired by id first, so c1 is the call without an answer."
_RAISED: Final = "A backend whose call itself raises is a failed attempt of class unknown: retried, then the next one."
_CANCELLED: Final = (
    "A cancel is no failure of the summariser: the conversation stays, and a resumed run has it summarised."
)
_NEWEST: Final = (
    "The newest request stays as it is: in front of the summary, or in the recent window, when that begins behind it."
)
_PINNED: Final = "What is pinned does not fit by itself: the run ends before anything is asked of a summariser."
_BILLED: Final = "A request for a summary is billed like any other, and this one did not report what it used."
_LAST_TRIP: Final = "'every backend failed' names the failures of the last round trip; the outcome lists all."


def _answered_by_engine(*, message: int, event: int, line: int, was_run: bool) -> tuple[Differs, ...]:
    """The places of a tool message that is the engine's own, and of its settle line behind it."""
    settled = f".transcript[{line + 1}].payload"
    says = (
        Differs(f"*.messages[{message}].content", _BAD_CALL, "<notice:bad-call>"),
        Differs(f".runs[0].events[{event}].content", _BAD_CALL, "<notice:bad-call>"),
        Differs(f".transcript[{line}].payload.content", _BAD_CALL, "<notice:bad-call>"),
        Differs(f"{settled}.error", _BAD_CALL, "<notice:bad-call>"),
        Differs(f"{settled}.result-digest", _BAD_CALL, "<digest>"),
    )
    if not was_run:
        return says
    return (
        *says,
        Differs(f".runs[0].events[{event}].is-error", _BAD_CALL, True),
        Differs(f".transcript[{line}].payload.is-error", _BAD_CALL, True),
        Differs(f"{settled}.outcome", _BAD_CALL, "failed"),
    )


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _batch(*calls: tuple[str, str], result: str = "ok: a") -> list[dict[str, Any]]:
    """A turn that calls the tool `a`, each call with its id and arguments, and the results."""
    called = [{"id": name, "type": "function", "function": {"name": "a", "arguments": text}} for name, text in calls]
    results = [{"role": "tool", "content": result, "tool-call-id": name} for name, _ in calls]
    return [_assistant("") | {"tool-calls": called}, *results]


def _ends_with(reason: str, messages: list[dict[str, Any]], ids: str) -> tuple[Differs, ...]:
    """The conversation at the end: in the result, and as the file gives it."""
    return (
        Differs(".runs[0].result.messages", reason, messages),
        Differs(".replay.messages", reason, messages),
        Differs(".replay.message-ids", reason, ids.split()),
    )


_TERSE: Final = {"role": "system", "content": "You are terse.", "sysprompt": True}
_TEN_MESSAGES: Final = [
    _TERSE,
    *(_user(f"question {n}") if n % 2 else _assistant(f"answer {n}") for n in range(1, 10)),
]
_PINS: Final = [_user(f"pin {n}") | {"sticky": True} for n in range(11)]
_FIRST_FOLD: Final = [
    _TERSE,
    _user("go"),
    _user("<summary-header>\nfirst notes"),
    *_batch(("c3", '{"n":3}'), ("c4", '{"n":4}')),
]
_SECOND_FOLD: Final = [
    _TERSE,
    _user("go"),
    _user("<summary-header>\nsecond notes"),
    *_batch(("c5", '{"n":5}'), ("c6", '{"n":6}')),
]
_BILLED_FOLD: Final = [
    _TERSE,
    _user("<summary-header>\nnotes"),
    _user("question 7"),
    *_batch(("c1", "{}"), result="r" * 400),
]

DIFFERENCES: Final[Mapping[str, tuple[Differs, ...]]] = {
    "backend-raises": (
        Differs(".runs[0].events*", _RAISED),  # their kinds: see KINDS
        Differs(".runs[0].result.outcome", _RAISED, "completed"),
        Differs(".runs[0].result.final", _RAISED, "spare"),
        Differs(".runs[0].result.error", _RAISED, None),
        Differs("*.messages[1]", _RAISED, {"role": "assistant", "content": "spare"}),
        Differs(".replay.message-ids[1]", _RAISED, "e2"),
        Differs(".runs[0].requests[*]", _RAISED),
        Differs(".transcript[2]", _RAISED),
        Differs(".script-exhausted", "The retry finds the first backend's script at its end.", True),
    ),
    "cancel-in-summarizer": (
        Differs(
            ".runs[0].events[2]",
            _CANCELLED,
            {
                "kind": "compaction-done",
                "round": 1,
                "tokens-before": 100,
                "tokens-after": 100,
                "dropped": 0,
                "fallback": False,
            },
        ),
        *_ends_with(_CANCELLED, _TEN_MESSAGES, "e1 e2 e3 e4 e5 e6 e7 e8 e9 e10"),
        Differs(".runs[0].result.spent.complete", _BILLED, False),
        Differs(".transcript[11]", _CANCELLED, ABSENT),
    ),
    "chain-exhausted-later": (
        Differs(".runs[0].events[17].error", _LAST_TRIP, "<error:chain> [backend 0] x; [backend 0] y"),
        Differs(".runs[0].result.error", _LAST_TRIP, "<error:chain> [backend 0] x; [backend 0] y"),
    ),
    "compaction-exhausted-sticky": (
        Differs(
            ".runs[0].events",
            _PINNED,
            [
                {"kind": "run-started", "message-count": 15},
                {
                    "kind": "run-failed",
                    "round": 1,
                    "error": "<error>",
                    "reason": "context-exhausted",
                    "attempts": [],
                },
            ],
        ),
        Differs(".runs[0].requests", _PINNED, []),
        Differs(".runs[0].result.attempts", _PINNED, []),
        *_ends_with(
            _PINNED,
            [*_PINS, _assistant("x"), _user("y"), _assistant("z"), _user("go")],
            "e1 e2 e3 e4 e5 e6 e7 e8 e9 e10 e11 e12 e13 e14 e15",
        ),
        Differs(".transcript[16]", _PINNED, ABSENT),
        Differs(".transcript[17]", _PINNED, ABSENT),
    ),
    "compaction-in-run": (
        Differs(".runs[0].events[24].dropped", _NEWEST, 3),
        Differs(".runs[0].events[24].tokens-after", _NEWEST, 60),
        Differs(".runs[0].events[25].tokens", _NEWEST, 60),
        Differs(".runs[0].events[36].message-count", _NEWEST, 9),
        Differs(".runs[0].events[36].tokens-before", _NEWEST, 90),
        Differs(".runs[0].events[37].tokens-before", _NEWEST, 90),
        Differs(".runs[0].events[37].tokens-after", _NEWEST, 60),
        Differs(".runs[0].events[38].tokens", _NEWEST, 60),
        Differs(".runs[0].events[44].message-count", _NEWEST, 7),
        Differs(".runs[0].requests[3].messages", _NEWEST, _FIRST_FOLD),
        Differs(".runs[0].requests[5].messages", _NEWEST, _SECOND_FOLD),
        *_ends_with(_NEWEST, [*_SECOND_FOLD, _assistant("done")], "e1 e2 e25 e18 e20 e23 e26"),
        Differs(".transcript[17].payload.kept-ids", _NEWEST, ["e2"]),
        Differs(".transcript[17].payload.tokens-after", _NEWEST, 60),
        Differs(".transcript[25].payload.kept-ids", _NEWEST, ["e2"]),
        Differs(".transcript[25].payload.tokens-before", _NEWEST, 90),
        Differs(".transcript[25].payload.tokens-after", _NEWEST, 60),
    ),
    "compaction-usage-invalidates": (
        Differs(".runs[0].events[10].dropped", _NEWEST, 6),
        Differs(".runs[0].events[17].message-count", _NEWEST, 6),
        Differs(".runs[0].requests[2].messages", _NEWEST, _BILLED_FOLD),
        *_ends_with(_NEWEST, [*_BILLED_FOLD, _assistant("done")], "e1 e13 e8 e9 e11 e14"),
        Differs(".transcript[13].payload.replaces-through-id", _NEWEST, "e7"),
    ),
    "group-short-answer": (
        Differs(".runs[0].events*", _BY_ID),  # no Log, so they shift; their kinds: see KINDS
        Differs("*.messages[2].content", _BY_ID, "<notice:no-result>"),
        Differs("*.messages[3].content", _BY_ID, "ok: task"),
        Differs(".transcript[5].payload.content", _BY_ID, "<notice:no-result>"),
        Differs(".transcript[5].payload.is-error", _BY_ID, True),
        Differs(".transcript[6].payload.error", _BY_ID, "<notice:no-result>"),
        Differs(".transcript[6].payload.outcome", _BY_ID, "failed"),
        Differs(".transcript[6].payload.result-digest", _BY_ID, "<digest>"),
        Differs(".transcript[7].payload.content", _BY_ID, "ok: task"),
        Differs(".transcript[7].payload.is-error", _BY_ID, ABSENT),
        Differs(".transcript[8].payload.error", _BY_ID, ABSENT),
        Differs(".transcript[8].payload.outcome", _BY_ID, "completed"),
        Differs(".transcript[8].payload.result-digest", _BY_ID),
    ),
    "length-near-window-twice": (Differs(".runs[0].result.spent.complete", _BILLED, False),),
    "limit-identical-distinct": (
        *_answered_by_engine(message=6, event=24, line=12, was_run=True),
        Differs(".runs[0].batches[2]", _BAD_CALL, ABSENT),
    ),
    "tool-canonical-args": (
        *_answered_by_engine(message=3, event=15, line=7, was_run=True),
        *_answered_by_engine(message=4, event=17, line=10, was_run=True),
        *_answered_by_engine(message=6, event=21, line=16, was_run=True),
        Differs(".runs[0].batches[1][0]", _BAD_CALL, "c4"),
        Differs(".runs[0].batches[2][0]", _BAD_CALL, "c6"),
        Differs(".runs[0].batches[3]", _BAD_CALL, ABSENT),
        Differs(".runs[0].batches[4]", _BAD_CALL, ABSENT),
        Differs(".runs[0].batches[5]", _BAD_CALL, ABSENT),
    ),
    "tool-malformed": (
        *_answered_by_engine(message=2, event=9, line=4, was_run=False),
        *_answered_by_engine(message=3, event=11, line=7, was_run=True),
        Differs(".runs[0].batches[0]", _BAD_CALL, ABSENT),
        Differs(".runs[0].batches[1]", _BAD_CALL, ABSENT),
        Differs("*calls[0].function", _UNREADABLE, {"name": ""}),
        Differs("*calls[1].id", _UNREADABLE, "call_1"),
        Differs("*.messages[3].tool-call-id", _UNREADABLE, "call_1"),
        Differs(".runs[0].events[7].id", _UNREADABLE, "call_1"),
        Differs(".runs[0].events[10].id", _UNREADABLE, "call_1"),
        Differs(".runs[0].events[11].id", _UNREADABLE, "call_1"),
        Differs(".transcript[6].payload.call-id", _UNREADABLE, "call_1"),
        Differs(".transcript[7].payload.tool-call-id", _UNREADABLE, "call_1"),
    ),
    "tool-nameless": (
        *_answered_by_engine(message=2, event=8, line=4, was_run=False),
        Differs(".runs[0].batches[0]", _BAD_CALL, ABSENT),
        Differs("*calls[0].function.name", _UNREADABLE, ""),
    ),
}

# Where events are missing or added, those behind them shift: the kinds of ours, in order.
KINDS: Final[Mapping[str, str]] = {
    "backend-raises": (
        "run-started round-started attempt-started attempt-failed attempt-started attempt-failed attempt-started token "
        "attempt-succeeded assistant-message turn-committed run-completed"
    ),
    "group-short-answer": (
        "run-started round-started attempt-started attempt-succeeded assistant-message turn-committed tool-call "
        "tool-call tool-started tool-started tool-result tool-result round-started attempt-started token "
        "attempt-succeeded assistant-message turn-committed run-completed"
    ),
}


@cache
def _scenario(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((GOLDEN / "scenarios" / f"{name}.json").read_text(encoding="utf-8"))
    return {"name": name} | read


@cache
def _compare() -> Callable[[Any, Any], Iterator[tuple[str, Any, Any]]]:
    """Return the goldens' own function: (path, golden, ours) for each difference of two traces."""
    # Run, not imported: it is no part of this repository, and its folder shall keep no cache.
    differences: Callable[[Any, Any], Iterator[tuple[str, Any, Any]]]
    differences = runpy.run_path(str(GOLDEN / "compare.py"))["differences"]
    return differences


def _plays() -> list[Any]:
    names = sorted(path.stem for path in (GOLDEN / "scenarios").glob("*.json"))
    if not names:
        absent = pytest.mark.skip(reason="the golden scenarios are not beside the repository")
        return [pytest.param("absent", False, marks=absent)]
    return [
        pytest.param(name, is_cancellable, id=f"{name}-{'cancellable' if is_cancellable else 'generator'}")
        for name in names
        for is_cancellable in _ways(name)
    ]


def _ways(name: str) -> tuple[bool, ...]:
    """Both ways to stream, where that can matter; what waits for a tool's deadline is played once."""
    is_slow = "tool_deadline" in _scenario(name).get("options", {})
    return (False,) if is_slow else (False, True)


@pytest.mark.parametrize(("name", "is_cancellable"), _plays())
def test_a_scenario_leaves_the_golden_trace(name: str, is_cancellable: bool, tmp_path: Path) -> None:
    """Events, result, requests, provider calls and transcript are the original's, argued differences aside."""
    golden = json.loads((GOLDEN / "traces" / f"{name}.json").read_text(encoding="utf-8"))

    trace = play(_scenario(name), tmp_path, is_cancellable=is_cancellable)

    # As another program would read it: tuples and lists are the same there.
    trace = json.loads(json.dumps(trace))
    found = list(_compare()(golden, trace))
    argued = DIFFERENCES.get(name, ())
    unargued = [one for one in found if not any(entry.allows(one[0], one[2], trace) for entry in argued)]
    unused = [entry.path for entry in argued if not any(entry.allows(path, got, trace) for path, _, got in found)]
    assert unargued == []
    assert unused == [], "these entries of the table no longer occur"
    if name in KINDS:
        assert [event["kind"] for event in trace["runs"][0]["events"]] == KINDS[name].split()


def test_every_argued_difference_belongs_to_a_scenario() -> None:
    """A misspelled name in the table would argue for nothing."""
    if not GOLDEN.is_dir():
        pytest.skip("the golden scenarios are not beside the repository")

    assert [name for name in DIFFERENCES if not (GOLDEN / "scenarios" / f"{name}.json").is_file()] == []


def test_the_driver_writes_one_trace_per_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command plays what it is given, each scenario into a file of its name."""
    scenario = {
        "backends": [{"steps": [{"text": ["hi"]}]}],
        "runs": [{"messages": [{"role": "user", "content": "go"}]}],
    }
    given = tmp_path / "small.json"
    given.write_text(json.dumps(scenario))

    code = main(["--out", str(tmp_path / "out"), str(given)])

    assert code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["small.json"]
    trace = json.loads((tmp_path / "out" / "small.json").read_text())
    assert (trace["name"], trace["runs"][0]["result"]["final"]) == ("small", "hi")
    assert capsys.readouterr().out == "small: played\n"
