"""Exceptions in a server's script: the connection breaks as it would in the world."""

from __future__ import annotations

from llm_agent import BackendError, Loop, OpenAIBackend, tool
from llm_agent.events import AttemptFailed
from llm_agent.testing import FakeServer, call, finished, no_backoff


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_the_script_of_a_backend_plays_on_a_server() -> None:
    """A stream that breaks off, an exception alone, a refusal: each as a client would see it."""
    script = [
        ["The ans", ConnectionError("gone")],
        ConnectionError("gone"),
        call("add", a=2, b=3),
        BackendError("slow down", "http", 429),
        "It is 5.",
    ]
    with FakeServer(script, strict=True) as server, no_backoff():
        run = finished(Loop(OpenAIBackend("m", base_url=server.url), tools=[add]).run("2 + 3?"))

    assert run.outcome.final == "It is 5."
    assert [(e.error_class, e.error_status) for e in run.of(AttemptFailed)] == [
        ("connection", None),
        ("connection", None),
        ("http", 429),
    ]


def test_a_call_that_breaks_off_is_never_run() -> None:
    """It was sent whole, and the turn was not."""
    with FakeServer([[call("add", a=1, b=1), OSError("cut")], "fine"]) as server, no_backoff():
        run = finished(Loop(OpenAIBackend("m", base_url=server.url), tools=[add]).run("go"))

    assert "tool-started" not in run.kinds
    assert run.outcome.final == "fine"
