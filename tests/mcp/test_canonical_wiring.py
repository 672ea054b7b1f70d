"""`examples/canonical.py`, end to end: real MCP servers, a real HTTP server with a scripted model."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from llm_agent import OpenAIBackend, Session
from llm_agent.mcp import McpServer, connect_stdio
from llm_agent.testing import FakeServer, call, error, finished, no_backoff

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "canonical.py"))
SERVERS = Path(__file__).parent / "servers"
FOLDERS = os.pathsep.join([os.environ.get("LLM_AGENT_MCP_SERVERS", "node_modules/.bin"), os.environ.get("PATH", "")])


def file_servers() -> list[Any]:
    """Ours on the SDK, and the reference server of the protocol's authors where it is installed."""
    real = shutil.which("mcp-server-filesystem", path=FOLDERS)
    absent = pytest.mark.skip(reason="mcp-server-filesystem is not on PATH, nor in LLM_AGENT_MCP_SERVERS")
    return [
        pytest.param((sys.executable, str(SERVERS / "files.py")), id="sdk"),
        pytest.param((real,), id="reference", marks=() if real else absent),
    ]


@attrs.define
class Human:
    """Answers always; remembers what was asked."""

    asked: list[tuple[str, list[str]]] = attrs.field(factory=list)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((request["tool"], request["paths"]))
        return {"action": "always-allow"}


@pytest.fixture(params=file_servers())
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[McpServer, McpServer, Path]]:
    folder = tmp_path / "project"
    (folder / "notes").mkdir(parents=True)
    (folder / "src").mkdir()
    (folder / "AGENTS.md").write_text("Keep the notes short.")
    (folder / "src" / "a.py").write_text("a = 1\n")
    program, *args = request.param
    with ExitStack() as opened:
        files = opened.enter_context(connect_stdio(program, [*args, str(folder)], name="files", restart=True))
        other = opened.enter_context(connect_stdio(sys.executable, [SERVERS / "sdk.py", "stdio"], name="other"))
        yield files, other, folder


def played(servers: tuple[McpServer, McpServer, Path], script: list[Any], human: Human, words: str) -> Any:
    """One run of the example, in a session of its own on the same transcript."""
    files, other, folder = servers
    with FakeServer(lambda _: error(429)) as full, FakeServer(script, strict=True) as free:
        backends = [OpenAIBackend("primary", base_url=full.url), OpenAIBackend("fallback", base_url=free.url)]
        with Session.open(folder.parent / "run.jsonl") as session, no_backoff():
            tools = EXAMPLE["guarded"](files, other, folder, session)
            loop = EXAMPLE["canonical"](session, backends, tools, folder, human)
            run = finished(EXAMPLE["started"](loop, session, words), 20.0)
        return run, [request.body for request in free.requests]


def test_the_second_run_resumes_and_asks_nothing_that_was_answered_always(
    servers: tuple[McpServer, McpServer, Path],
) -> None:
    """Reading and the notes are free, the rest is asked once; the next process still knows."""
    folder = servers[2]
    human = Human()
    path = str(folder / "src" / "a.py")
    work = [
        call("fs_read_text_file", path=path),
        call("time_add", a=2, b=3),
        call("fs_write_file", path=str(folder / "notes" / "n.md"), content="read\n"),
        call("fs_write_file", path=path, content="a = 2\n", reason="to see it change"),
        "done",
    ]

    first, requests = played(servers, work, human, "Change a.")
    asked_first = list(human.asked)
    again, more = played(servers, [call("fs_write_file", path=path, content="a = 3\n"), "done"], human, "Again.")

    assert (first.outcome.status, again.outcome.status) == ("completed", "completed")
    assert asked_first == [("fs_write_file", [path])]
    assert human.asked == asked_first
    assert (folder / "src" / "a.py").read_text() == "a = 3\n"
    assert "Keep the notes short." in str(requests[0])
    assert len(more[0]["messages"]) > len(requests[-1]["messages"])
    print(f"\nrequests {len(requests)} + {len(more)}, asks {len(asked_first)} + 0, tool calls 4 + 1")
