"""HTTP servers that refuse, forget, redirect, trickle and break off, as raw bytes. Real sockets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any

import pytest

from llm_agent.errors import McpError
from llm_agent.mcp import McpServer, connect_http
from llm_agent.messages import ToolAnswer, ToolRequest

AT_ONCE = 1.0
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("say", "wait")]
CAPABLE = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}


class Wayward(ThreadingHTTPServer):
    """A server of the handshake generation that answers what a test tells it to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/mcp"
        self.seen: list[tuple[str, str | None]] = []
        """(path, method) of every message."""
        self.answer_all: Callable[[_Handler, Any], None] | None = None
        self.answer_call: Callable[[_Handler, Any], None] | None = None
        self.may_go_on = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Wayward

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.say(405, b"")

    do_HEAD = do_DELETE = do_GET  # named by the base class

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number, method = message.get("id"), message.get("method")
        self.server.seen.append((self.path, method))
        if self.server.answer_all is not None:
            self.server.answer_all(self, number)
        elif number is None:
            self.say(202, b"")
        elif method == "initialize":
            self.result(number, CAPABLE, **{"mcp-session-id": "s"})
        elif method == "tools/list":
            self.result(number, {"tools": TOOLS})
        elif method != "tools/call":
            self.error(number, -32601, "Method not found")
        elif message["params"]["name"] == "wait":
            self.server.may_go_on.wait(5)
            self.result(number, said("waited"))
        elif self.server.answer_call is not None:
            self.server.answer_call(self, number)
        else:
            self.result(number, said("hi"))

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def result(self, number: Any, result: Any, **headers: str) -> None:
        self.say(200, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode(), **headers)

    def error(self, number: Any, code: int, message: str, status: int = 200) -> None:
        error = {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
        self.say(status, json.dumps(error).encode())

    def begin(self, content_type: str) -> None:
        """The head of an answer that ends with its connection."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("connection", "close")
        self.end_headers()


def said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


@pytest.fixture
def wayward() -> Iterator[Wayward]:
    """A running server, shut down when the test is over."""
    server = Wayward()
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    yield server
    server.may_go_on.set()
    server.shutdown()
    thread.join(5)
    server.server_close()


@pytest.fixture
def connected(wayward: Wayward) -> Iterator[McpServer]:
    """A connection to it."""
    with connect_http(wayward.url, name="wayward", request_timeout=2) as server:
        yield server


def ask(server: McpServer, name: str = "say") -> ToolAnswer:
    return server.execute_tool_calls([ToolRequest("c", name, {})])[0]


def failed(answer: ToolAnswer) -> Any:
    return answer.structured["mcp"]["failed"] if answer.structured else None


def greetings(wayward: Wayward) -> int:
    return [method for _, method in wayward.seen].count("initialize")


# -- the beginning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "404 Not Found", "503 Service Unavailable"])
def test_a_refused_greeting_says_its_status(wayward: Wayward, status: str) -> None:
    """Whoever has forgotten a key reads so, in plain words."""
    wayward.answer_all = lambda handler, _: handler.say(int(status[:3]), b"{}")

    with pytest.raises(McpError, match=rf"cannot be used: it answered {status}$"):
        connect_http(wayward.url)


def test_a_redirect_to_elsewhere_is_not_followed(wayward: Wayward) -> None:
    """Headers may be secrets: the address is named, and nothing is sent there."""
    elsewhere = Wayward()
    wayward.answer_all = lambda handler, _: handler.say(307, b"", location=elsewhere.url)

    with elsewhere, pytest.raises(McpError, match=rf"cannot be used: Redirect to {elsewhere.url} not followed"):
        connect_http(wayward.url, headers={"X-Key": "secret"})


def test_a_redirect_on_the_spot_is_followed(wayward: Wayward) -> None:
    """A slash more at the end of the path is no other server."""

    def move(handler: _Handler, number: Any) -> None:
        if handler.path == "/mcp":
            handler.say(307, b"", location="/mcp/")
        elif number is None:
            handler.say(202, b"")
        else:
            handler.result(number, CAPABLE)

    wayward.answer_all = move
    with connect_http(wayward.url, protocol="handshake") as server:
        assert server.protocol_version == "2025-11-25"


# -- answers that are none ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["401 Unauthorized", "429 Too Many Requests", "502 Bad Gateway"])
def test_a_call_that_is_answered_with_a_status_says_so(wayward: Wayward, connected: McpServer, status: str) -> None:
    """A gateway knows nothing of what the call did; the connection lives on."""
    wayward.answer_call = lambda handler, _: handler.say(int(status[:3]), b"<html>", **{"content-type": "text/html"})
    answer = ask(connected)
    wayward.answer_call = None

    assert (failed(answer), f"it answered {status}" in answer.content) == ("unreadable", True)
    assert (ask(connected).content, greetings(wayward)) == ("hi", 1)


@pytest.mark.parametrize(
    "body",
    [b"{{{{", b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"2.0","id":9,"result":{"content":[{"text":"\\ud83d"}]}}'],
)
def test_an_answer_that_cannot_be_read_ends_the_wait(wayward: Wayward, connected: McpServer, body: bytes) -> None:
    """Garbage, no result, half a character: an answer at once, and its effect is unknown."""
    wayward.answer_call = lambda handler, _: handler.say(200, body)

    started = monotonic()
    answer = ask(connected)

    assert (failed(answer), monotonic() - started < AT_ONCE) == ("unreadable", True)


def test_an_error_of_the_servers_own_does_not_cost_the_session(wayward: Wayward, connected: McpServer) -> None:
    """The code -32000 is free for servers: it means the end only in the SDK's words or with a bad status."""
    wayward.answer_call = lambda handler, number: handler.error(number, -32000, "database is locked")
    answer = ask(connected)

    assert (failed(answer), "database is locked" in answer.content) == ("refused", True)
    assert (failed(ask(connected)), greetings(wayward)) == ("refused", 1)


def test_a_large_answer_arrives_in_an_event(wayward: Wayward, connected: McpServer) -> None:
    """Images are larger than what the SDK takes unless it is told."""

    def answer(handler: _Handler, number: Any) -> None:
        handler.begin("text/event-stream")
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": said("x" * 3_000_000)})
        handler.wfile.write(f"event: message\ndata: {body}\n\n".encode())

    wayward.answer_call = answer

    assert len(ask(connected).content) == 3_000_000


def test_an_answer_without_end_is_not_read_without_end(wayward: Wayward, connected: McpServer) -> None:
    """A JSON body of more than a message may have is given up."""

    def answer(handler: _Handler, _: Any) -> None:
        handler.begin("application/json")
        while True:
            handler.wfile.write(b" " * 1_000_000)

    wayward.answer_call = answer

    assert "longer than" in ask(connected).content


def test_a_trickle_is_no_answer(wayward: Wayward, connected: McpServer) -> None:
    """Signs of life without an answer do not stop the clock of a call."""

    def answer(handler: _Handler, _: Any) -> None:
        handler.begin("text/event-stream")
        while not wayward.may_go_on.wait(0.05):
            handler.wfile.write(b": still here\n\n")

    wayward.answer_call = answer

    assert failed(ask(connected)) == "timeout"


# -- broken off ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(404, -32001), (404, None), (400, -32000)])
def test_a_lost_session_is_made_anew(wayward: Wayward, connected: McpServer, status: int, code: int | None) -> None:
    """However a server says that it does not know the session: the call says so, the next use makes another."""

    def forget(handler: _Handler, _: Any) -> None:
        if code is None:
            handler.say(status, b"")
        else:
            handler.error(None, code, "Session not found", status)

    wayward.answer_call = forget
    answer = ask(connected)
    wayward.answer_call = None

    assert (failed(answer), f"({status}" in answer.content or f"answered {status}" in answer.content) == ("gone", True)
    assert (ask(connected).content, greetings(wayward)) == ("hi", 2)


def test_the_stream_of_one_call_breaks_off_for_that_call_alone(wayward: Wayward, connected: McpServer) -> None:
    """Somebody is still there: the call is lost at once, another one that is out is answered."""
    wayward.answer_call = lambda handler, _: handler.begin("text/event-stream")
    answers: list[ToolAnswer] = []
    connected.tools_for_llm()
    other = threading.Thread(target=lambda: answers.append(ask(connected, "wait")))
    other.start()

    started = monotonic()
    lost = ask(connected)
    took = monotonic() - started
    wayward.may_go_on.set()
    other.join(5)

    assert (failed(lost), took < AT_ONCE) == ("unreadable", True)
    assert ([answer.content for answer in answers], greetings(wayward)) == (["waited"], 1)


def test_a_plain_script_reads_nothing_of_the_sdk(wayward: Wayward) -> None:
    """Garbage, a broken stream, a status: standard error of a program without logging stays empty."""
    ways: Iterator[Callable[[_Handler, Any], None]] = iter(
        [
            lambda handler, _: handler.say(200, b"{{{{"),
            lambda handler, _: handler.say(200, b"<html>", **{"content-type": "text/html"}),
            lambda handler, _: handler.begin("text/event-stream"),
            lambda handler, _: handler.say(404, b""),
        ]
    )
    wayward.answer_call = lambda handler, number: next(ways)(handler, number)
    body = (
        "import sys\n"
        "from llm_agent.mcp import connect_http\n"
        "from llm_agent.messages import ToolRequest\n"
        "with connect_http(sys.argv[1]) as server:\n"
        "    for _ in range(4): print(server.execute_tool_calls([ToolRequest('c', 'say', {})])[0].is_error)\n"
    )
    command = [sys.executable, "-W", "error", "-c", body, wayward.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert (done.stdout.split(), done.stderr) == (["True"] * 4, "")
