"""Plays golden scenarios through the public API and writes their traces.

    driver.py --out DIR [--cancellable] SCENARIO.json...

One trace per scenario, `DIR/NAME.json`, in the shape that the golden traces have. What is
compared, and what is not, is decided in `masks`; what the scripted parts do, in `scripted`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from masks import Masks, masked_message
from scripted import (
    EXHAUSTED,
    PATIENCE,
    FlatCounter,
    Play,
    ScriptedBackend,
    ScriptedProvider,
    Stage,
    provider_for,
    steer_source_for,
)

from llm_agent import (
    AgentError,
    Compactor,
    HeuristicCounter,
    Loop,
    Message,
    Run,
    Session,
    TranscriptError,
    UsageCounter,
)
from llm_agent.ports import TokenCounter


def play(scenario: Mapping[str, Any], folder: Path, *, is_cancellable: bool = False) -> dict[str, Any]:
    """Play *scenario* with its transcript in *folder*; return the trace.

    Args:
        is_cancellable: the scripted streams have `cancel()`, so the run's worker reads them.
    """
    return _Player(scenario, folder / "transcript.jsonl", is_cancellable).play()


@attrs.frozen
class _Played:
    """One run that was let in, with what was seen of it."""

    play: Play
    run: Run
    events: list[dict[str, Any]]


class _Player:
    """One scenario, from the loading of its session to its trace."""

    def __init__(self, scenario: Mapping[str, Any], path: Path, is_cancellable: bool) -> None:
        self._scenario = scenario
        self._path = path
        self._stage = Stage()
        self._session: Session | None = None
        self._session_script = scenario.get("session", {})
        self._compactor_script = dict(scenario.get("compactor", {}))
        self._backends = [
            ScriptedBackend(self._stage, index, script, is_cancellable=is_cancellable)
            for index, script in enumerate(scenario["backends"])
        ]
        self._summarizer = ScriptedBackend(
            self._stage,
            "summarizer",
            self._compactor_script.pop("summarizer", {}),
            is_cancellable=is_cancellable,
        )
        self._provider: ScriptedProvider | None = provider_for(self._stage, scenario.get("provider"))
        self._runs = scenario.get("runs", [{"messages": [{"role": "user", "content": "go"}]}])
        self._has_steers = any("steers" in run for run in self._runs)

    def play(self) -> dict[str, Any]:
        trace: dict[str, Any] = {"name": self._scenario["name"]}
        try:
            trace |= self._open_session()
        except TranscriptError:
            return trace | {"load": "<error>", "file": self._path.read_text(encoding="utf-8")}
        try:
            self._stage.loop = self._new_loop()
        except AgentError:
            self._close_session()
            return trace | {"construction": "<error>"}
        played = [self._play_run(script) for script in self._runs]
        self._stage.all_attempted.set()
        for one in played:
            _wait_drained(one)
        self._close_session()
        if self._stage.script_exhausted:
            trace["script-exhausted"] = True
        return trace | self._told(played)

    # -- the session and the loop ------------------------------------------------------------

    def _open_session(self) -> dict[str, Any]:
        """Create or load the session; returns what the trace says about it."""
        if self._session_script is False:
            return {}
        if "raw" not in self._session_script:
            self._session = Session.create(self._path, meta=self._session_script.get("meta", {}))
            return {}
        self._path.write_bytes(self._session_script["raw"].encode("utf-8"))
        self._session = Session.load(self._path)
        return {"load": {"warnings": _warnings(self._session), "pending": _pending(self._session)}}

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()

    def _new_loop(self) -> Loop:
        counter = _counter(self._scenario.get("counter", {"kind": "usage"}))
        return Loop(
            self._backends,
            provider=self._provider,
            session=self._session,
            counter=counter,
            compactor=self._new_compactor(counter),
            steer_source=steer_source_for(self._stage) if self._has_steers else None,
            **self._scenario.get("options", {}),
        )

    def _new_compactor(self, counter: TokenCounter) -> Compactor | None:
        if not self._compactor_script:
            return None
        # How long a summariser's retry waits is in no trace.
        return Compactor(self._summarizer, counter, **self._compactor_script, backoff_cap=0.01)

    # -- one run -------------------------------------------------------------------------------

    def _play_run(self, script: Mapping[str, Any]) -> _Played | None:
        """Play one run to its end, as far as the script waits for it; `None` when it was refused."""
        messages = self._prepared(script)
        loop = self._stage.playing_loop
        earlier, play = self._stage.play, Play(script)
        self._stage.play = play
        try:
            run = loop.run(messages)
        except AgentError:
            self._stage.play = earlier
            if earlier is not None:  # nothing ran meanwhile but what the earlier run had left behind
                earlier.batches += play.batches
            return None
        play.handle.set_result(run)
        events = []
        for event in run.events(timeout=PATIENCE):
            events.append(event.to_dict())
            play.event(event.kind)
        run.result(PATIENCE)
        played = _Played(play, run, events)
        if script.get("wait", "drained") == "drained":
            _wait_drained(played)
        if script.get("cancel_after_end"):
            run.cancel()
        return played

    def _prepared(self, script: Mapping[str, Any]) -> list[Message]:
        """Do what comes before a run, and return its messages."""
        if script.get("reload"):
            self._close_session()
            self._session = Session.load(self._path)
            self._stage.loop = self._new_loop()
        session = self._session
        if session is not None and "resolve_pending" in script:
            for operation in session.pending_tool_operations():
                session.resolve_tool_operation(operation["op-id"], script["resolve_pending"])
        for message in script.get("pre_append", ()):
            assert session is not None  # only scenarios with a session append from outside
            session.append_message(Message(**message))
        seen = list(session.messages) if session is not None and script.get("from_session") else []
        return [*seen, *(Message(**message) for message in script.get("messages", ()))]

    # -- the trace -----------------------------------------------------------------------------

    def _told(self, played: list[_Played | None]) -> dict[str, Any]:
        envelopes = self._envelopes()
        masks = Masks(
            errors=frozenset(_scripted_errors(self._scenario)),
            ids={envelope["id"]: f"e{line}" for line, envelope in enumerate(envelopes)},
            runs={one.run.id: f"<run:{number}>" for number, one in enumerate(played, 1) if one is not None},
            has_flat_counter=self._scenario.get("counter", {}).get("kind") == "flat",
        )
        trace: dict[str, Any] = {"runs": [self._run_told(one, masks) for one in played]}
        if self._session is not None:
            trace |= {"transcript": masks.transcript(envelopes), "replay": self._replayed(masks)}
            if "raw" in self._session_script:
                trace["line-ends"] = _line_ends(self._path.read_bytes())
        return trace

    def _envelopes(self) -> list[dict[str, Any]]:
        if self._session is None:
            return []
        # On 0x0A only: `splitlines` would split inside a JSON string.
        lines = self._path.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]

    def _run_told(self, one: _Played | None, masks: Masks) -> dict[str, Any]:
        if one is None:
            return {"refused": True}
        seqs = [event["seq"] for event in one.events]
        trace: dict[str, Any] = {
            "events": masks.events(one.events),
            "result": masks.result(one.run.result(0).to_dict()),
            "requests": [_request_told(request) for request in one.play.requests],
            "batches": one.play.batches,
            "seq-contiguous": seqs == list(range(len(seqs))),
            "is-cancelled": one.run.is_cancelled,
        }
        if self._has_steers:
            trace["steer-pulls"] = one.play.steer_pulls
        return trace

    def _replayed(self, masks: Masks) -> dict[str, Any]:
        """Load the file again: what tomorrow's process finds."""
        session = Session.load(self._path)
        try:
            return {
                "messages": [masked_message(message.to_dict()) for message in session.messages],
                "message-ids": [masks.id(message_id) for message_id in session.message_ids],
                "grants": list(session.grants),
                "pending": _pending(session),
            }
        finally:
            session.close()


def _wait_drained(one: _Played | None) -> None:
    if one is not None and not one.run.drained(PATIENCE):
        raise TimeoutError(f"run {one.run.id} still works after {PATIENCE:g} s")


def _counter(script: Mapping[str, Any]) -> TokenCounter:
    options = {key: value for key, value in script.items() if key != "kind"}
    match script["kind"]:
        case "usage":
            return UsageCounter()
        case "heuristic":
            return HeuristicCounter(**options)
        case "flat":
            return FlatCounter(**options)
        case other:
            raise ValueError(f"the scenario has a counter that nobody knows: {other!r}")


def _scripted_errors(scenario: Mapping[str, Any]) -> Iterator[str]:
    yield EXHAUSTED
    for backend in scenario["backends"]:
        for step in backend.get("steps", ()):
            if "error" in step:
                yield step["error"]["message"]


def _warnings(session: Session) -> list[dict[str, Any]]:
    return [{"line": warning.line, "raw": warning.raw} for warning in session.warnings]


def _pending(session: Session) -> list[str]:
    return [operation["call-id"] for operation in session.pending_tool_operations()]


def _request_told(request: Mapping[str, Any]) -> dict[str, Any]:
    if request["kind"] == "blocking":
        return {**request, "messages": "<summary-request>"}
    return {**request, "messages": [masked_message(message) for message in request["messages"]]}


def _line_ends(data: bytes) -> dict[str, Any]:
    crlf = data.count(b"\r\n")
    return {"crlf": crlf, "lf": data.count(b"\n") - crlf, "final": data.endswith(b"\n")}


# -- the command -------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Play scenarios from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--cancellable", action="store_true", help="scripted streams have cancel()")
    parser.add_argument("scenarios", type=Path, nargs="+", metavar="SCENARIO.json")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for path in given.scenarios:
        scenario = {"name": path.stem} | json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            trace = play(scenario, Path(folder), is_cancellable=given.cancellable)
        text = json.dumps(trace, ensure_ascii=False, indent=1, sort_keys=True)
        (given.out / f"{path.stem}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{path.stem}: played")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
