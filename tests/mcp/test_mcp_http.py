"""MCP over HTTP: both generations, a server that is killed, stopped, absent, or none at all. Real sockets."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from llm_agent.errors import McpError
from llm_agent.mcp import McpServer, connect_http
from llm_agent.messages import ToolRequest
from llm_agent.testing import FakeServer, ScriptedBackend, call_context
from llm_agent.testing import call as tool_call
from llm_agent.testing.tools import Progress

SCRIPT = Path(__file__).parent / "servers" / "sdk.py"
GENERATIONS = [("auto", "2026-07-28"), ("handshake", "2025-11-25")]
AT_ONCE = 1.0
CLOSED = 5.0


def call(name: str, **arguments: Any) -> ToolRequest:
    return ToolRequest("c", name, arguments)


class RunningServer:
    """`servers/sdk.py` on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        command = [sys.executable, str(SCRIPT), "http", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        give_up, pause = monotonic() + 20, threading.Event()
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                assert monotonic() < give_up, "the server does not come up"
                pause.wait(0.02)

    def end(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def start() -> Iterator[Callable[..., RunningServer]]:
    """Start a server on a port; ended when the test is over."""
    servers: list[RunningServer] = []

    def begin(port: int | None = None) -> RunningServer:
        servers.append(RunningServer(port or free_port()))
        return servers[-1]

    yield begin
    for server in servers:
        server.end()


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    """One server for the tests that do it no harm."""
    server = RunningServer(free_port())
    yield server
    server.end()


@pytest.fixture
def connect() -> Iterator[Callable[..., McpServer]]:
    """`connect_http`, closed when the test is over."""
    servers: list[McpServer] = []

    def begin(url: str, *args: Any, **options: Any) -> McpServer:
        servers.append(connect_http(url, *args, **options))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


Connect = Callable[..., McpServer]
Start = Callable[..., RunningServer]


@pytest.mark.parametrize(("protocol", "version"), GENERATIONS)
def test_a_server_over_http_is_a_provider(shared: RunningServer, connect: Connect, protocol: str, version: str) -> None:
    """Catalogue, answers, progress and questions are what they are over pipes, in both generations."""
    server = connect(shared.url, protocol=protocol)

    with call_context(answer={"action": "accept", "content": {"name": "Ada"}}) as told:
        answers = server.execute_tool_calls([call("add", a=1, b=2), call("work"), call("ask"), call("nope")])

    assert server.protocol_version == version
    assert [answer.content for answer in answers[:3]] == ["3", "worked", "Ada"]
    assert (told.progress_told, told.logged) == (
        [Progress(1, 2, "half"), Progress(2, 2, "whole")],
        [("info", "working")],
    )
    assert [asked["tool"] for asked in told.asked] == ["ask"]


@pytest.mark.parametrize("protocol", ["auto", "handshake"])
def test_questions_find_the_call_they_belong_to(shared: RunningServer, connect: Connect, protocol: str) -> None:
    """Over HTTP a question travels with its call: two threads in one connection are each asked their own."""
    server = connect(shared.url, protocol=protocol)
    server.tools_for_llm()
    both_ask = threading.Barrier(2)
    answers: dict[str, str] = {}

    def work(name: str) -> None:
        def asker(_: Any) -> dict[str, Any]:
            both_ask.wait(5)
            return {"action": "accept", "content": {"name": name}}

        with call_context(on_ask=asker):
            answers[name] = server.execute_tool_calls([call("ask")])[0].content

    threads = [threading.Thread(target=work, args=(name,)) for name in ("Ada", "Bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert answers == {"Ada": "Ada", "Bob": "Bob"}


@pytest.mark.parametrize("protocol", ["auto", "handshake"])
def test_a_killed_server_answers_at_once_and_is_found_again(start: Start, connect: Connect, protocol: str) -> None:
    """A SIGKILL in a call: an answer within a second; when somebody listens there again, the next use works."""
    running = start()
    asked = threading.Event()

    def asker(_: Any) -> str:
        running.end()
        asked.set()
        return "decline"

    server = connect(running.url, protocol=protocol, on_elicit=asker)
    server.tools_for_llm()
    started = monotonic()
    [lost] = server.execute_tool_calls([call("ask")])
    took = monotonic() - started
    [absent] = server.execute_tool_calls([call("add", a=1, b=2)])
    start(running.port)
    [answer] = server.execute_tool_calls([call("add", a=1, b=2)])

    assert (asked.is_set(), lost.structured, took < AT_ONCE) == (True, {"mcp": {"failed": "gone"}}, True)
    assert (absent.structured, answer.content) == ({"mcp": {"failed": "not-run"}}, "3")


def test_without_reconnect_a_lost_connection_stays_lost(start: Start, connect: Connect) -> None:
    """The next use says why, also when somebody listens there again."""
    running = start()
    server = connect(running.url, protocol="handshake", reconnect=False, on_elicit=lambda _: running.end())
    server.execute_tool_calls([call("ask")])
    start(running.port)

    [answer] = server.execute_tool_calls([call("add", a=1, b=2)])

    assert (answer.structured, "is gone" in answer.content) == ({"mcp": {"failed": "not-run"}}, True)


def test_a_stopped_server_is_left_in_time(start: Start, connect: Connect) -> None:
    """A server that has stopped answering holds up neither a call nor the close."""
    running = start()
    server = connect(running.url, protocol="handshake", request_timeout=0.3)
    server.tools_for_llm()
    os.kill(running.process.pid, signal.SIGSTOP)

    [answer] = server.execute_tool_calls([call("add", a=1, b=2)])
    started = monotonic()
    server.close()

    assert (answer.structured, monotonic() - started < CLOSED) == ({"mcp": {"failed": "timeout"}}, True)


def test_nobody_there_is_said_at_once() -> None:
    """A refused connection is an McpError with the address, not a group of groups."""
    url = f"http://127.0.0.1:{free_port()}/mcp"
    started = monotonic()
    with pytest.raises(McpError, match=url) as caught:
        connect_http(url)

    assert monotonic() - started < 3
    assert "TaskGroup" not in str(caught.value)


def test_a_name_that_does_not_resolve_is_said() -> None:
    """Resolving happens on a thread of its own, and its failure is an McpError."""
    with pytest.raises(McpError, match="nowhere"):
        connect_http("http://nowhere.invalid/mcp", connect_timeout=4)


def test_a_server_that_is_none_is_told_apart(serve: Callable[..., FakeServer]) -> None:
    """Somebody listens, and does not speak the protocol."""
    other = serve([])
    with pytest.raises(McpError, match=r"127\.0\.0\.1"):
        connect_http(other.url, connect_timeout=3)


def test_silence_ends_in_time(no_thread_left: None) -> None:
    """A server that accepts and never answers: an error within the connect timeout."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        started = monotonic()
        with pytest.raises(McpError, match=r"did not answer within 0\.5 s"):
            connect_http(f"http://127.0.0.1:{deaf.getsockname()[1]}/mcp", connect_timeout=0.5)
        assert monotonic() - started < 0.5 + AT_ONCE


def test_headers_are_sent(connect: Connect) -> None:
    """The caller's headers are on every request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard: list[bytes] = []

        def listen() -> None:
            peer, _ = listening.accept()
            with peer:
                heard.append(peer.recv(65_536))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(McpError):
            connect(
                f"http://127.0.0.1:{listening.getsockname()[1]}/mcp",
                {"Authorization": "Bearer t0ken"},
                connect_timeout=1,
            )
        thread.join(5)

    assert b"Bearer t0ken" in heard[0]


def test_readme_wires_two_servers_behind_a_policy(shared: RunningServer) -> None:
    """The block about MCP: what a server says only reads is free, and all else is asked."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    block = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "connect_http(" in block)
    for said, meant in {
        'connect_stdio("mcp-server-time"': f'connect_stdio({sys.executable!r}, [{str(SCRIPT)!r}, "stdio"]',
        "http://localhost:8000/mcp": shared.url,
        "terminal.ask": "asked.append",
    }.items():
        assert said in block
        block = block.replace(said, meant)
    calls = [tool_call("time_add", a=1, b=2), tool_call("tickets_work", reason="It is due.")]
    names: dict[str, Any] = {"key": "k", "backend": ScriptedBackend([calls, "Done."]), "asked": []}

    exec(block + "    outcome = loop.run('Work.').result(20)\n", names)

    told = [message.text for message in names["outcome"].messages if message.role == "tool"]
    assert told[0] == "3"
    assert [request["arguments"] for request in names["asked"]] == [{"reason": "It is due."}]
    assert "the user refused" in told[1]
