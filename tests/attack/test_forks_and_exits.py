"""Forked children and the end of the interpreter: what is the parent's stays whole, and all end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from time import monotonic

import pytest

from llm_agent.backends.openai import OpenAIBackend
from llm_agent.errors import AgentError
from llm_agent.loop.loop import Loop
from llm_agent.run import Run
from llm_agent.testing import FakeServer, Gate, ScriptedBackend, finished, hang, reply, sse

WAIT = 5.0

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_child(work: Callable[[], object]) -> int | None:
    """Return the exit code of a forked child that does *work*; `None` when it hung."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    ended = threading.Event()
    codes: list[int] = []

    def reap() -> None:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        ended.set()

    threading.Thread(target=reap, daemon=True).start()
    if ended.wait(WAIT):
        return codes[0]
    os.kill(pid, 9)
    ended.wait(WAIT)
    return None


@pytest.mark.parametrize("leave", [lambda run: run.cancel(), lambda run: run.__exit__(None, None, None)])
def test_a_forked_child_cannot_end_its_parents_stream(
    serve: Callable[..., FakeServer], leave: Callable[[Run], object]
) -> None:
    """The socket is shared: a child that leaves the `with` block must not shut it down."""
    gate = Gate()
    whole = reply("half and whole").payload
    server = serve([sse([whole[:200], gate, whole[200:]])])
    run = Loop(OpenAIBackend("m", base_url=server.url, api_key="k")).run("go")
    gate.wait_entered()

    code = in_child(lambda: leave(run))
    gate.open()

    assert code == 0
    assert finished(run).outcome.final == "half and whole"


def test_every_use_of_an_inherited_run_that_would_wait_or_be_lost_raises() -> None:
    """Nothing in the child will ever answer; what never raises returns at once."""
    run = Loop(ScriptedBackend([hang("x")])).run("go")
    reader = run.events()
    assert next(reader).kind == "run-started"

    def use() -> None:
        for refused in (
            run.result,
            run.events,
            lambda: run.steer("words"),
            lambda: run.answer("ask", "yes"),
            lambda: run.add_done_callback(print),
            lambda: list(reader),
        ):
            try:
                refused()
            except AgentError:
                continue
            os._exit(2)
        assert run.drained() is False
        run.cancel()

    code = in_child(use)
    run.cancel()
    finished(run)

    assert code == 0


# -- the end of the interpreter -------------------------------------------------------------------

_STUCK = """
import sys, threading
from llm_agent import Loop
from llm_agent.call_context import current_call
from llm_agent.testing import ScriptedBackend, ScriptedProvider, call, hang
entered = threading.Event()
def forever(*_):
    entered.set()
    threading.Event().wait()
{setup}
entered.wait(5)
"""

_SITUATIONS = {
    "an asker that never answers": """
tool = lambda: current_call().ask({"tool": "t"})
Loop(ScriptedBackend([call("t")]), tools=ScriptedProvider({"t": tool}), on_ask=forever).run("go")
""",
    "a done callback that never returns": """
Loop(ScriptedBackend(["done"])).run("go").add_done_callback(forever)
""",
    "a provider that never tells its grants": """
from llm_agent import Session
class Provider(ScriptedProvider):
    grants = forever
Loop(ScriptedBackend(["done"]), tools=Provider({}), session=Session.in_memory()).run("go")
""",
    "a stream whose cancel never returns": """
class Stream:
    def __iter__(self):
        entered.set()
        threading.Event().wait()
        yield "never"
    cancel = forever
class Backend:
    model, max_tokens = "m", None
    def stream(self, request):
        return Stream()
Loop(Backend()).run("go")
""",
    "a backend that never returns its stream": """
class Backend:
    model, max_tokens = "m", None
    stream = forever
Loop(Backend()).run("go")
""",
}


@pytest.mark.parametrize("situation", _SITUATIONS)
def test_the_interpreter_ends_whatever_is_stuck(situation: str) -> None:
    """Promptly, with code 0, and without a word."""
    started = monotonic()

    ended = subprocess.run(
        [sys.executable, "-c", _STUCK.format(setup=_SITUATIONS[situation])], capture_output=True, timeout=20, text=True
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert monotonic() - started < 10
