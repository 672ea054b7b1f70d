"""A real model with a real folder: it calls a workspace tool and answers from what it found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_agent import Loop, OpenAIBackend, Policy, Session
from llm_agent.events import ToolResult
from llm_agent.policy import default_rules
from llm_agent.testing import finished
from llm_agent.tools import Workspace


@pytest.fixture(scope="module")
def url(served: Callable[[int], str]) -> str:
    """The address of a llama.cpp server with SmolLM2, whose chat template shows it how tools are called."""
    return served(4096, Path(__file__).with_name("tools.jinja"))


def test_a_small_model_reads_a_file_and_answers_from_it(url: str, tmp_path: Path) -> None:
    """It calls `read` by itself, the policy lets it, and the answer has what only the file says."""
    (tmp_path / "ledger.txt").write_text("The harbour master is called Ottilie Brandt.\n")
    backend = OpenAIBackend("smollm2", base_url=f"{url}/v1", max_tokens=96, temperature=0.0)
    workspace = Workspace(tmp_path, write=False)
    tools = Policy(workspace, default_rules("", names=workspace.names), roots={"": workspace.root})
    loop = Loop(
        backends=backend,
        provider=tools,
        session=Session.in_memory(),
        max_tool_rounds=4,
        max_identical_calls=2,
    )

    run = finished(loop.run("What does ledger.txt say?"), timeout=120)

    assert run.outcome.status == "completed", run.outcome.error
    results = run.of(ToolResult)
    assert any("Ottilie Brandt" in result.content and not result.is_error for result in results)
    assert "Ottilie" in (run.outcome.final or "")
