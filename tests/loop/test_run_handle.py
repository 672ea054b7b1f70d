"""Living with a run: cancel in every situation, timeouts, callbacks, and what holds it up."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest

from llm_agent import notices
from llm_agent.call_context import current_call
from llm_agent.errors import AgentError, BackendError, RunInProgress, RunNotCompleted
from llm_agent.events import AttemptFailed, AttemptStarted, RunCancelled, Token, ToolAbandoned, TurnDiscarded
from llm_agent.live import live_runs
from llm_agent.loop.loop import Loop
from llm_agent.messages import Message
from llm_agent.run import Run
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished, hang

WAIT = 5.0


def wait_for(run: Run, kind: type[Any]) -> Any:
    return next(event for event in run.events(timeout=WAIT) if isinstance(event, kind))


def stage_of(run: Run) -> str | None:
    return finished(run).of(RunCancelled)[0].stage


# -- cancel --------------------------------------------------------------------------------


def test_cancel_in_mid_stream() -> None:
    """The turn is discarded, and there is neither attempt-failed nor attempt-succeeded."""
    run = Loop(ScriptedBackend([hang("half")])).run("go")
    wait_for(run, Token)

    run.cancel("enough")

    done = finished(run)
    assert done.kinds[-3:] == ["token", "turn-discarded", "run-cancelled"]
    assert done.of(TurnDiscarded)[0].reason == "cancelled"
    assert done.outcome.reason == done.of(RunCancelled)[0].reason == "enough"
    assert done.outcome.messages == (Message.user("go"),)
    assert stage_of(run) == "streaming"


def test_cancel_in_a_backoff() -> None:
    """The wait is cut, and the retry never made."""
    backend = ScriptedBackend([BackendError("x", "connection"), "never"])
    run = Loop(backend).run("go")
    wait_for(run, AttemptFailed)

    run.cancel()

    assert stage_of(run) == "backoff"
    assert len(backend.requests) == 1


def test_cancel_while_a_tool_runs() -> None:
    """The call in flight is unknown, what is behind it did not run, and nobody waits for either."""
    gate = Gate()
    provider = ScriptedProvider({"slow": gate, "next": "ran"})
    run = Loop(ScriptedBackend([[call("slow"), call("next")]]), tools=provider).run("go")
    gate.wait_entered(WAIT)

    run.cancel()
    outcome = run.result(WAIT)

    assert run.drained(0) is False
    gate.open()
    done = finished(run)
    assert [(e.name, e.dispatched) for e in done.of(ToolAbandoned)] == [("slow", True), ("next", False)]
    assert [m.text for m in outcome.messages if m.role == "tool"] == [
        notices.UNKNOWN_CANCELLED,
        notices.ABANDONED_CANCELLED,
    ]
    assert stage_of(run) == "tools"
    assert "tool-result" not in done.kinds


def test_cancel_between_two_calls() -> None:
    """The settled one keeps its result; the rest did not run."""
    run: Run
    started = threading.Event()

    def stop() -> str:
        assert started.wait(WAIT)
        run.cancel()
        return "settled"

    provider = ScriptedProvider({"a": stop, "b": "never"})
    loop = Loop(ScriptedBackend([[call("a"), call("b")]]), tools=provider)
    run = loop.run("go")
    started.set()

    # The answer and the cancel race; either way the second call never ran.
    done = finished(run)
    assert done.of(ToolAbandoned)[-1].dispatched is False
    assert [c.name for c in provider.calls] == ["a"]
    assert stage_of(run) == "tools"


def test_cancel_while_an_ask_is_open() -> None:
    """The run ends at once; an ask through the run is over with it, and holds up nothing."""

    def ask() -> str:
        context = current_call()
        assert context is not None
        return str(context.ask({"tool": "t"}))

    run = Loop(ScriptedBackend([call("t")]), tools=ScriptedProvider({"t": ask}), on_ask="run").run("go")
    for event in run.events(timeout=WAIT):
        if event.kind == "ask-pending":
            run.cancel()

    assert run.drained(WAIT)
    assert run.pending_asks() == ()
    assert run.answer("any", "late") is False
    assert stage_of(run) == "tools"


def test_cancel_before_the_first_round() -> None:
    """Noticed at the top of the first round, which then never began."""
    run: Run
    started = threading.Event()

    class Listing(ScriptedProvider):
        def tools_for_llm(self) -> list[dict[str, Any]]:
            assert started.wait(WAIT)
            run.cancel()
            return super().tools_for_llm()

    run = Loop(ScriptedBackend([]), tools=Listing({"a": "1"})).run("go")
    started.set()

    done = finished(run)
    assert done.kinds == ["run-started", "run-cancelled"]
    assert "round" not in done.of(RunCancelled)[0].to_dict()


def test_a_catalogue_that_never_comes_can_be_cancelled() -> None:
    """Listing the tools is a wait like any other."""
    gate = Gate()

    class Hanging(ScriptedProvider):
        def tools_for_llm(self) -> list[dict[str, Any]]:
            gate.wait()
            return []

    run = Loop(ScriptedBackend([]), tools=Hanging({})).run("go")
    gate.wait_entered(WAIT)
    run.cancel()

    assert stage_of(run) == "start"
    gate.open()


def test_cancel_on_a_finished_run_does_nothing() -> None:
    """No flag, no event, no other run touched."""
    run = Loop(ScriptedBackend(["ok"])).run("go")
    done = finished(run)

    run.cancel()

    assert run.is_cancelled is False
    assert finished(run).events == done.events


def test_two_hundred_cancels_of_an_old_run_touch_no_new_one() -> None:
    """A run's cancel is its own."""
    loop = Loop(ScriptedBackend(["first", hang("half")]))
    old = loop.run("go")
    finished(old)
    new = loop.run("go on")
    wait_for(new, Token)

    for _ in range(200):
        old.cancel()

    assert not new.is_cancelled
    assert not new.is_done
    new.cancel()
    assert finished(new).outcome.status == "cancelled"


def test_leaving_the_block_cancels_a_live_run() -> None:
    """Ctrl-C in a script ends the run it was watching."""
    run = Loop(ScriptedBackend([hang("half")])).run("go")

    def watch() -> None:
        with run:
            wait_for(run, Token)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch()

    assert run.result(WAIT).status == "cancelled"
    assert run.drained(WAIT)


def test_a_run_cancels_itself_after_its_timeout() -> None:
    """With a reason a program can test."""
    outcome = finished(Loop(ScriptedBackend([hang("half")])).run("go", timeout=0.1)).outcome

    assert (outcome.status, outcome.reason) == ("cancelled", "timeout")


def test_a_timeout_leaves_out_the_asks() -> None:
    """A human may take their time."""
    patience = threading.Event()

    def ask() -> str:
        context = current_call()
        assert context is not None
        return str(context.ask({}, lambda request: patience.wait(0.4)))

    loop = Loop(ScriptedBackend([call("t"), "done"]), tools=ScriptedProvider({"t": ask}))

    assert finished(loop.run("go", timeout=0.25)).outcome.ok


# -- the handle ------------------------------------------------------------------------------


def test_result_raises_a_timeout_only() -> None:
    """A run that goes on says so; a failed one is data."""
    gate = hang("half")
    run = Loop(ScriptedBackend([gate])).run("go")

    with pytest.raises(TimeoutError, match="goes on"):
        run.result(0.01)

    run.cancel()
    assert run.result(WAIT).status == "cancelled"


def test_raise_for_failure_raises_what_pickles() -> None:
    """For task queues."""
    outcome = finished(Loop(ScriptedBackend([BackendError("no", "http", 401)])).run("go")).outcome

    with pytest.raises(RunNotCompleted, match="run failed") as caught:
        outcome.raise_for_failure()

    assert pickle.loads(pickle.dumps(caught.value)).outcome.error == outcome.error


def test_done_callbacks_run_once_and_may_raise() -> None:
    """On the worker after the terminal, or at once when it is over."""
    gate = Gate("x")
    calls: list[tuple[str, bool]] = []
    run = Loop(ScriptedBackend([gate])).run("go")
    run.add_done_callback(lambda _: 1 / 0)
    run.add_done_callback(lambda r: calls.append((threading.current_thread().name, r.is_done)))
    gate.open()
    finished(run)

    run.add_done_callback(lambda r: calls.append((threading.current_thread().name, r.is_done)))

    assert [done for _, done in calls] == [True, True]
    assert calls[0][0].startswith("llm-agent-run-")
    assert calls[1][0] == threading.current_thread().name


def test_status_tells_what_a_run_is_doing() -> None:
    """Streaming from which model, waiting for which tool, done."""
    gate, tool_gate = Gate("x"), Gate()
    loop = Loop(ScriptedBackend([[gate, call("t")], "end"], model="m1"), tools=ScriptedProvider({"t": tool_gate}))
    run = loop.run("go")
    wait_for(run, Token)
    streaming = run.status
    gate.open()
    tool_gate.wait_entered(WAIT)
    in_tool = run.status
    tool_gate.open()
    finished(run)

    assert (streaming.stage, streaming.backend, streaming.model, streaming.round) == ("streaming", 0, "m1", 1)
    assert (in_tool.stage, in_tool.tool) == ("tool", "t")
    assert run.status.stage == "done"
    assert run.status.last_event_at is not None


def test_a_consumer_that_stops_reading_costs_the_run_nothing() -> None:
    """It breaks out, the run completes, and another one reads it all."""
    run = Loop(ScriptedBackend(["a long answer in pieces"])).run("go")
    for event in run.events():
        if isinstance(event, AttemptStarted):
            break

    assert finished(run).outcome.ok


# -- admission --------------------------------------------------------------------------------


def test_one_live_run_per_loop() -> None:
    """The second is refused while the first works, and admitted afterwards."""
    loop = Loop(ScriptedBackend([hang("half"), "second"]))
    first = loop.run("go")
    wait_for(first, Token)

    with pytest.raises(RunInProgress, match="in flight"):
        loop.run("again")

    first.cancel()
    first.result(WAIT)
    second = loop.run("again")
    assert finished(second).outcome.final == "second"
    assert second.id != first.id


def test_a_given_up_call_keeps_the_next_run_out_until_it_returns() -> None:
    """It could still change the world under the next run."""
    gate = Gate()
    loop = Loop(ScriptedBackend([call("t"), "second"]), tools=ScriptedProvider({"t": gate}))
    first = loop.run("go")
    gate.wait_entered(WAIT)
    first.cancel()
    first.result(WAIT)

    with pytest.raises(RunInProgress, match=r"t \("):
        loop.run("again")

    gate.open()
    assert first.drained(WAIT)
    assert finished(loop.run("again")).outcome.final == "second"


def test_result_then_run_is_never_refused() -> None:
    """The instants between a result and its worker's last step are waited for, not refused."""
    loop = Loop(ScriptedBackend(["x"] * 200))

    for _ in range(200):
        assert loop.run("go").result(WAIT).ok


def test_live_runs_lists_what_is_not_drained() -> None:
    """A run is live from its start to its last work."""
    gate = hang("half")
    run = Loop(ScriptedBackend([gate])).run("go")
    wait_for(run, Token)

    assert run in live_runs()

    run.cancel()
    run.drained(WAIT)
    assert run not in live_runs()


# -- fork and exit -------------------------------------------------------------------------------


def test_a_forked_child_cannot_use_its_parents_run_and_can_start_its_own() -> None:
    """Inherited runs raise; the same loop runs anew in the child."""
    loop = Loop(ScriptedBackend([hang("half"), "child"]))
    run = loop.run("go")
    wait_for(run, Token)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child reports through the pipe and leaves without pytest's own exit
        report = b"no error"
        try:
            run.result(0)
        except AgentError as error:
            report = type(error).__name__.encode()
        final = loop.run("again").result(WAIT).final
        os.write(write_end, report + b" " + final.encode() + b" " + str(len(live_runs())).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        words = pipe.read().split()
    os.waitpid(pid, 0)
    run.cancel()

    assert words[:2] == [b"AgentError", b"child"]
    assert run.result(WAIT).status == "cancelled"


def test_the_interpreter_exits_over_a_stuck_tool() -> None:
    """A daemon thread of ours holds up nothing; the run is cancelled on the way out."""
    script = """
import threading
from llm_agent.loop.loop import Loop
from llm_agent.testing import ScriptedBackend, ScriptedProvider, call
entered = threading.Event()
def stuck():
    entered.set()
    threading.Event().wait()
run = Loop(ScriptedBackend([call("t")]), tools=ScriptedProvider({"t": stuck})).run("go")
run.add_done_callback(lambda run: print(run.result().status, run.result().reason, flush=True))
entered.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["cancelled", "interpreter", "exit"], "")
