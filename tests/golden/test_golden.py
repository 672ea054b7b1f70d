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
from driver import main, play, skip_reason

GOLDEN: Final = Path(__file__).resolve().parents[3] / "shared" / "golden"
ANYTHING: Final[Any] = object()


@attrs.frozen
class Differs:
    """One argued difference: where (`*` stands for anything), why, and what ours is."""

    path: str
    reason: str
    ours: Any = ANYTHING

    def allows(self, path: str, got: Any) -> bool:
        pattern = ".*".join(map(re.escape, self.path.split("*")))
        return re.fullmatch(pattern, path) is not None and (self.ours is ANYTHING or self.ours == got)


ABSENT: Final = "<absent>"

_BAD_CALL: Final = (
    "A call without a name, or with arguments that are no JSON object, never reaches the provider: "
    "the engine answers it with an error."
)
_UNREADABLE: Final = "A call's unreadable function becomes the name '', a missing id is made up before the commit."
_BY_ID: Final = "Answers of a group that carry call ids are paired by id first, so c1 is the call without an answer."
_RAISED: Final = "A backend whose call itself raises is a failed attempt of class unknown: retried, then the next one."
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
    "chain-exhausted-later": (
        Differs(".runs[0].events[17].error", _LAST_TRIP, "<error:chain> [backend 0] x; [backend 0] y"),
        Differs(".runs[0].result.error", _LAST_TRIP, "<error:chain> [backend 0] x; [backend 0] y"),
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
    scenario = _scenario(name)
    is_slow = "tool_deadline" in scenario.get("options", {})
    return (False,) if is_slow or skip_reason(name, scenario) else (False, True)


@pytest.mark.parametrize(("name", "is_cancellable"), _plays())
def test_a_scenario_leaves_the_golden_trace(name: str, is_cancellable: bool, tmp_path: Path) -> None:
    """Events, result, requests, provider calls and transcript are the original's, argued differences aside."""
    scenario = _scenario(name)
    reason = skip_reason(name, scenario)
    if reason is not None:
        pytest.skip(reason)
    golden = json.loads((GOLDEN / "traces" / f"{name}.json").read_text(encoding="utf-8"))

    trace = play(scenario, tmp_path, is_cancellable=is_cancellable)

    # As another program would read it: tuples and lists are the same there.
    found = list(_compare()(golden, json.loads(json.dumps(trace))))
    argued = DIFFERENCES.get(name, ())
    unargued = [one for one in found if not any(entry.allows(one[0], one[2]) for entry in argued)]
    unused = [entry.path for entry in argued if not any(entry.allows(path, got) for path, _, got in found)]
    assert unargued == []
    assert unused == [], "these entries of the table no longer occur"
    if name in KINDS:
        assert [event["kind"] for event in trace["runs"][0]["events"]] == KINDS[name].split()


def test_every_argued_difference_belongs_to_a_scenario() -> None:
    """A misspelled name in the table would argue for nothing."""
    if not GOLDEN.is_dir():
        pytest.skip("the golden scenarios are not beside the repository")

    assert [name for name in DIFFERENCES if not (GOLDEN / "scenarios" / f"{name}.json").is_file()] == []


def test_the_driver_writes_a_trace_and_names_what_it_skips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command plays what it can, into one file per scenario, and says why it skipped the rest."""
    scenario = {
        "backends": [{"steps": [{"text": ["hi"]}]}],
        "runs": [{"messages": [{"role": "user", "content": "go"}]}],
    }
    played, skipped = tmp_path / "small.json", tmp_path / "large.json"
    played.write_text(json.dumps(scenario))
    skipped.write_text(json.dumps(scenario | {"compactor": {}}))

    code = main(["--out", str(tmp_path / "out"), str(played), str(skipped)])

    assert code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["small.json"]
    trace = json.loads((tmp_path / "out" / "small.json").read_text())
    assert (trace["name"], trace["runs"][0]["result"]["final"]) == ("small", "hi")
    assert "large: skipped, it needs a compactor" in capsys.readouterr().out
