"""How long a cancel takes: from `run.cancel()` to the run's terminal, in every phase a run can be in.

Each try is a run of its own. A reader on another thread says when the phase is reached; the
main thread then lets the run settle into its wait, cancels, and waits for the outcome. A try
above the limit is repeated once, and both are told.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import attrs
import measure

from llm_agent import Loop, OpenAIBackend, Run, current_call
from llm_agent.events import AskPending, AttemptFailed, Event, Token, ToolStarted
from llm_agent.testing import Answer, FakeServer, call, error, hang, reply, sse

LIMIT_MS = 250.0
# From "about to block" to blocked, in seconds.
SETTLE = 0.03
PATIENCE = 10.0


@attrs.frozen
class Setting:
    """A run about to be cancelled, and how to know that it is where it should be."""

    run: Run
    wait_reached: Callable[[], object]


Phase = Callable[[ExitStack], Setting]


def start(url: str, *, tools: Any = None, **options: Any) -> Run:
    backend = OpenAIBackend(model="scripted", base_url=url, api_key=measure.API_KEY, **options)
    return Loop(backends=[backend], tools=tools, on_ask="run").run(measure.PROMPT)


def reached(run: Run, *kinds: type[Event]) -> Callable[[], object]:
    """Return a wait for the first event of one of *kinds*; a consumer goes on reading on its own thread."""
    seen = threading.Event()

    def consume() -> None:
        for event in run.events():
            if isinstance(event, kinds):
                seen.set()

    threading.Thread(target=consume, daemon=True).start()
    return lambda: seen.wait(PATIENCE)


# -- the phases ------------------------------------------------------------------------------


def name_resolution(cleanup: ExitStack) -> Setting:
    asked, release = threading.Event(), threading.Event()

    def resolver(*_: Any) -> list[Any]:
        asked.set()
        release.wait(PATIENCE)
        return []

    cleanup.callback(release.set)
    run = start("http://stuck.invalid/v1", resolver=resolver)
    return Setting(run, lambda: asked.wait(PATIENCE))


def connect(cleanup: ExitStack) -> Setting:
    """A listener whose queue is full: the next connection is not even refused."""
    listener = cleanup.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(2):
        filler = cleanup.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    asked = threading.Event()

    def resolver(*question: Any) -> list[Any]:
        asked.set()
        return list(socket.getaddrinfo(*question))

    run = start(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", resolver=resolver)
    return Setting(run, lambda: asked.wait(PATIENCE))


def tls_handshake(cleanup: ExitStack) -> Setting:
    """A server that takes the client's first words and says nothing."""
    listener = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
    greeted = threading.Event()

    def listen() -> None:
        connection = cleanup.enter_context(listener.accept()[0])
        connection.recv(1)
        greeted.set()

    threading.Thread(target=listen, daemon=True).start()
    run = start(f"https://127.0.0.1:{listener.getsockname()[1]}/v1")
    return Setting(run, lambda: greeted.wait(PATIENCE))


def before_headers(cleanup: ExitStack) -> Setting:
    server = cleanup.enter_context(FakeServer([hang()]))
    return Setting(start(server.url), lambda: server.wait_requests(1, PATIENCE))


def body(**framing: Any) -> Phase:
    """A body of one token and then silence."""

    def phase(cleanup: ExitStack) -> Setting:
        return answered(cleanup, sse([hang("one token")], **framing), Token)

    return phase


def answered(cleanup: ExitStack, answer: Answer, *kinds: type[Event]) -> Setting:
    server = cleanup.enter_context(FakeServer(lambda _: answer))
    run = start(server.url)
    return Setting(run, reached(run, *kinds))


def backoff(cleanup: ExitStack) -> Setting:
    return answered(cleanup, error(500), AttemptFailed)


def retry_after(cleanup: ExitStack) -> Setting:
    return answered(cleanup, error(429, retry_after=60), AttemptFailed)


def running_tool(cleanup: ExitStack) -> Setting:
    release = threading.Event()
    cleanup.callback(release.set)

    def stuck() -> str:
        """Do not return."""
        release.wait(PATIENCE)
        return ""

    server = cleanup.enter_context(FakeServer([reply(calls=[call("stuck")])]))
    run = start(server.url, tools=[stuck])
    return Setting(run, reached(run, ToolStarted))


def open_ask(cleanup: ExitStack) -> Setting:
    def asking() -> str:
        """Ask, and wait for the answer."""
        context = current_call()
        return str(context.ask({"tool": "asking"})) if context is not None else ""

    server = cleanup.enter_context(FakeServer([reply(calls=[call("asking")])]))
    run = start(server.url, tools=[asking])
    return Setting(run, reached(run, AskPending))


PHASES: dict[str, Phase] = {
    "name resolution": name_resolution,
    "connect": connect,
    "TLS handshake": tls_handshake,
    "before headers": before_headers,
    "chunked body": body(framing="chunked"),
    "close-delimited body": body(framing="close"),
    "gzip body": body(gzip=True),
    "backoff": backoff,
    "Retry-After wait": retry_after,
    "running tool": running_tool,
    "open ask": open_ask,
}


# -- measuring -------------------------------------------------------------------------------


def timed(phase: Phase) -> float:
    """Bring a run into *phase* and cancel it; returns the milliseconds it took."""
    with ExitStack() as cleanup:
        setting = phase(cleanup)
        setting.wait_reached()
        time.sleep(SETTLE)
        assert not setting.run.is_done, f"the run ended by itself: {setting.run.result(0).error}"
        started = time.perf_counter()
        setting.run.cancel()
        outcome = setting.run.result(PATIENCE)
        took = (time.perf_counter() - started) * 1e3
        assert outcome.status == "cancelled", outcome.status
        return took


def tries(name: str, count: int) -> tuple[list[float], str]:
    """Return the milliseconds of *count* tries, and what has to be said about slow ones."""
    values, notes = [], []
    for _ in range(count):
        took = timed(PHASES[name])
        if took > LIMIT_MS:
            again = timed(PHASES[name])
            notes.append(f"{took:.0f} ms, repeated: {again:.0f} ms")
        values.append(took)
    return values, f"{name}: above {LIMIT_MS:.0f} ms: {'; '.join(notes)}" if notes else ""


def main() -> None:
    asked = measure.options(__doc__, n=20)
    figures = []
    for name in PHASES:
        values, note = tries(name, asked.n)
        target = "median <= 50 ms, max <= 250 ms"
        figures.append(measure.figure("cancel", name, "cancel to terminal", "ms", values, target=target, note=note))
    measure.report(figures, as_json=asked.json)


if __name__ == "__main__":
    main()
