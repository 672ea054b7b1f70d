"""Stub servers as real child processes, and what is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from llm_agent.mcp import McpServer, connect_stdio

SERVERS = Path(__file__).parent / "servers"


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Callable[..., McpServer]]:
    """Connect to `servers/raw.py` with some habits; closed when the test is over."""
    servers: list[McpServer] = []

    def start(*habits: str, **options: Any) -> McpServer:
        args = [SERVERS / "raw.py", *habits, "--seen", tmp_path / "seen"]
        servers.append(connect_stdio(sys.executable, args, name="raw", **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def seen(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """What the raw server has read so far: the parameters of every message with that method."""

    def of(method: str) -> list[dict[str, Any]]:
        lines = (tmp_path / "seen").read_text().splitlines()
        return [message.get("params", {}) for message in map(json.loads, lines) if message.get("method") == method]

    return of


@pytest.fixture(scope="module")
def sdk() -> Iterator[Callable[..., McpServer]]:
    """Connect to `servers/sdk.py`, once per set of options: it takes a second to start."""
    servers: dict[str, McpServer] = {}

    def start(**options: Any) -> McpServer:
        key = repr(options)
        if key not in servers:
            servers[key] = connect_stdio(sys.executable, [SERVERS / "sdk.py", "stdio"], name="sdk", **options)
        return servers[key]

    yield start
    for server in servers.values():
        server.close()


@pytest.fixture
def children() -> Callable[[], list[int]]:
    """The child processes that this test has, zombies among them."""

    def living() -> list[int]:
        found = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
        own = {int(pid) for pid in found.stdout.split()}
        return sorted(pid for pid in own - before if Path(f"/proc/{pid}").exists())

    before: set[int] = set()
    before = set(living())
    return living


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], bool]:
    """Wait for something that another process does; False after 5 s."""

    def wait(condition: Callable[[], bool]) -> bool:
        give_up, pause = monotonic() + 5, threading.Event()
        while not condition():
            if monotonic() > give_up:
                return False
            pause.wait(0.01)
        return True

    return wait
