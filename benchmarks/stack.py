"""What the layers in front of a tool cost: CPU per call, layer by layer.

One call at a time, as the loop makes them: a file to write, as JSON text with a reason in it. The
provider answers at once, so all that is measured is the way there and back; each subject has the
layers of the one before it, and one more. The policy looks at the real file system for this call.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

from llm_agent import Reasons, Registry, ToolAnswer, ToolRequest, UnknownKeys
from llm_agent.policy import Policy, danger_floor, default_rules

PARAMETERS = {"path": {"type": "string"}, "content": {"type": "string"}}
NAMES = ("read", "list", "glob", "stat", "grep", "map", "write", "edit", "move", "delete")
ARGUMENTS = '{"path": "src/module.py", "content": "%s", "reason": "The test wants it."}' % ("x = 1\\n" * 40)
TARGET = "<= 200 us"


class Files:
    """Ten tools that do nothing."""

    def tools_for_llm(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": PARAMETERS, "required": ["path"]}
        return [{"type": "function", "function": {"name": name, "parameters": schema}} for name in NAMES]

    def execute_tool_calls(self, calls: list[ToolRequest]) -> list[ToolAnswer]:
        return [ToolAnswer(call.id, "done") for call in calls]


def policy(provider: Any, root: str) -> Policy:
    """What a project has: the danger floor, tools that may always run, one folder to write in."""
    floor = danger_floor()
    rules = [*floor, *default_rules("fs_"), {"tool": "fs_write", "decision": "allow", "under": "src"}]
    return Policy(provider, rules, roots={"fs_": root}, local_tools=["fs_*"], checks=floor.checks)


def layers(root: str) -> dict[str, Callable[[Any], Any]]:
    """Each layer by its name, from the inside out."""
    return {
        "registry": lambda provider: Registry({"git": Files(), "fs": provider, "web": Files()}),
        "+ reasons": Reasons,
        "+ unknown keys": UnknownKeys,
        "+ policy": lambda provider: policy(provider, root),
    }


def subjects(root: str) -> dict[str, tuple[Any, str]]:
    """Each stack, listed, and the tool's name in it."""
    stack: Any = Files()
    built: dict[str, tuple[Any, str]] = {"provider alone": (stack, "write")}
    for name, layer in layers(root).items():
        stack = layer(stack)
        built[name] = (stack, "fs_write")
    for each, _ in built.values():
        each.tools_for_llm()
    return built


def cost(provider: Any, name: str, calls: int) -> dict[str, float]:
    """CPU of one call, in us."""
    requests = [ToolRequest(f"c{number}", name, ARGUMENTS) for number in range(calls)]
    before = time.process_time()
    for request in requests:
        (answer,) = provider.execute_tool_calls([request])
        assert not answer.is_error, answer.content
    return {"us": (time.process_time() - before) / calls * 1e6}


def main() -> None:
    asked = measure.options(__doc__, n=15, calls=2_000)
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "src").mkdir()
        built = subjects(root)
        records = measure.interleaved(list(built), asked.n, lambda subject: cost(*built[subject], asked.calls))
    figures = [
        measure.figure(
            "stack", subject, "CPU per call", "us", [row["us"] for row in rows], target=TARGET if place else ""
        )
        for place, (subject, rows) in enumerate(records.items())
    ]
    measure.report(figures, as_json=asked.json)


if __name__ == "__main__":
    main()
