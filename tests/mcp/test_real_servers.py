"""Servers that nobody here wrote: everything, filesystem (npm), git, time (PyPI). Skipped where absent.

They are looked for in the folders of `LLM_AGENT_MCP_SERVERS` (joined by `:`), then through PATH:

    npm i @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem
    pip install mcp-server-git mcp-server-time
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from llm_agent.mcp import McpServer, connect_http, connect_stdio
from llm_agent.messages import ToolRequest
from llm_agent.testing import call_context

Children = Callable[[], list[int]]
Until = Callable[[Callable[[], bool]], bool]
FORM = {"action": "accept", "content": {"name": "Ada", "check": True}}


def program(name: str) -> str:
    """The path of a real server; the test is skipped where it is not installed."""
    folders = os.environ.get("LLM_AGENT_MCP_SERVERS", "")
    found = shutil.which(name, path=f"{folders}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed: not in LLM_AGENT_MCP_SERVERS, not in PATH")
    return found


def call(name: str, **arguments: Any) -> ToolRequest:
    return ToolRequest("c", name, arguments)


def told(server: McpServer, name: str, **arguments: Any) -> str:
    [answer] = server.execute_tool_calls([call(name, **arguments)])
    assert not answer.is_error, answer.content
    return answer.content


@contextmanager
def everything_over_http(port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [program("mcp-server-everything"), "streamableHttp"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, env={**os.environ, "PORT": str(port)}, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        give_up, pause = monotonic() + 20, threading.Event()
        while not listens(port):
            assert monotonic() < give_up, "the server does not come up"
            pause.wait(0.05)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def check_everything(server: McpServer) -> None:
    """What the everything server can do, through either transport."""
    assert told(server, "echo", message="hi") == "Echo: hi"
    assert "[image: image/png, not shown]" in told(server, "get-tiny-image")
    assert "[resource: demo://" in told(server, "get-resource-links")
    [answer] = server.execute_tool_calls([call("get-structured-content", location="New York")])
    assert answer.structured == {"temperature": 33, "conditions": "Cloudy", "humidity": 82}
    [bad] = server.execute_tool_calls([call("echo")])
    assert bad.is_error
    with call_context(answer=FORM) as recorded:
        assert "Ada" in told(server, "trigger-elicitation-request")
        told(server, "trigger-long-running-operation", duration=1, steps=4)
    assert [asked["tool"] for asked in recorded.asked] == ["trigger-elicitation-request"]
    assert len(recorded.progress_told) == 4


def test_everything_over_pipes(children: Children) -> None:
    """All kinds of content, a question, progress; nothing is left."""
    with connect_stdio(program("mcp-server-everything"), ["stdio"]) as server:
        check_everything(server)

    assert children() == []


def test_everything_over_http() -> None:
    """The same through a socket."""
    port = free_port()
    with everything_over_http(port), connect_http(f"http://127.0.0.1:{port}/mcp") as server:
        check_everything(server)


def test_a_kill_in_a_call_over_pipes(children: Children, until: Until, capsys: pytest.CaptureFixture[str]) -> None:
    """kill -9: the call answers within 1 s, the next use works, a stopped server is closed within 5 s."""
    server = connect_stdio(program("mcp-server-everything"), ["stdio"], restart=True)
    took = killed_in_a_call(server, lambda: os.kill(children()[0], signal.SIGKILL), until)
    started = monotonic()
    assert told(server, "echo", message="back") == "Echo: back"
    again = monotonic() - started
    os.kill(children()[0], signal.SIGSTOP)
    started = monotonic()
    server.close()
    closed = monotonic() - started

    with capsys.disabled():
        print(f"\nstdio: kill -9 answered in {took:.3f} s, next use {again:.2f} s, close of a stopped {closed:.2f} s")
    assert (took < 1, closed < 5, children()) == (True, True, [])


def test_a_kill_in_a_call_over_http(until: Until, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for a server that somebody else runs and starts again."""
    port = free_port()
    with everything_over_http(port) as process:
        server = connect_http(f"http://127.0.0.1:{port}/mcp")
        took = killed_in_a_call(server, process.kill, until)
    with everything_over_http(port) as process:
        assert told(server, "echo", message="back") == "Echo: back"
        os.kill(process.pid, signal.SIGSTOP)
        started = monotonic()
        server.close()
        closed = monotonic() - started

    with capsys.disabled():
        print(f"\nhttp: kill -9 answered in {took:.3f} s, close of a stopped {closed:.2f} s")
    assert (took < 1, closed < 5) == (True, True)


def killed_in_a_call(server: McpServer, kill: Callable[[], object], until: Until) -> float:
    """Seconds from the kill to the answer of the call that was out."""
    answered: SimpleQueue[Any] = SimpleQueue()
    recorded: list[Any] = []

    def work() -> None:
        with call_context() as call_made:
            recorded.append(call_made)
            slow = call("trigger-long-running-operation", duration=20, steps=100)
            answered.put(server.execute_tool_calls([slow])[0])

    thread = threading.Thread(target=work)
    thread.start()
    assert until(lambda: bool(recorded and recorded[0].progress_told))
    started = monotonic()
    kill()
    lost = answered.get(timeout=5)
    took = monotonic() - started
    thread.join(5)
    assert lost.structured == {"mcp": {"failed": "gone"}}
    return took


def test_the_file_system_server(tmp_path: Path, children: Children) -> None:
    """A real tree: written, read, and not left; annotations give the classes."""
    (tmp_path / "a.txt").write_text("hello")
    with connect_stdio(program("mcp-server-filesystem"), [tmp_path]) as server:
        assert told(server, "read_text_file", path=str(tmp_path / "a.txt")) == "hello"
        told(server, "write_file", path=str(tmp_path / "b.txt"), content="new")
        [outside] = server.execute_tool_calls([call("read_text_file", path="/etc/passwd")])
        classes = [server.idempotency_of(name) for name in ("read_text_file", "write_file", "edit_file")]

    assert (tmp_path / "b.txt").read_text() == "new"
    assert (outside.is_error, "denied" in outside.content) == (True, True)
    assert (classes[:2], children()) == (["read-only", "idempotent"], [])


def test_the_git_server(tmp_path: Path, children: Children) -> None:
    """A server of the newer generation on a real repository."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "a.txt").write_text("hello")
    with connect_stdio(program("mcp-server-git"), ["--repository", tmp_path]) as server:
        assert server.protocol_version == "2026-07-28"
        assert "a.txt" in told(server, "git_status", repo_path=str(tmp_path))

    assert children() == []


def test_the_time_server(children: Children) -> None:
    """Structured content beside text, and an error of the tool's own."""
    with connect_stdio(program("mcp-server-time")) as server:
        [right, wrong] = server.execute_tool_calls(
            [call("get_current_time", timezone="Europe/Berlin"), call("get_current_time", timezone="Moon/Tycho")]
        )

    assert (right.structured["timezone"], wrong.is_error, children()) == ("Europe/Berlin", True, [])


def test_no_thread_is_left_but_the_portal(children: Children) -> None:
    """After all of them at once, one thread carries nothing."""
    before = set(threading.enumerate())
    with (
        connect_stdio(program("mcp-server-everything"), ["stdio"]) as one,
        connect_stdio(program("mcp-server-time")) as other,
    ):
        one.tools_for_llm()
        other.tools_for_llm()
    left = {thread.name for thread in set(threading.enumerate()) - before}

    assert (left <= {"llm-agent-mcp"}, children()) == (True, [])
