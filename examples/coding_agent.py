"""A coding agent for one folder: it reads freely, and asks at the terminal before it writes or runs.

    python coding_agent.py --folder . --model gpt-5 --session run.jsonl "Make the tests pass."
    python coding_agent.py --folder . --model gpt-5 --session run.jsonl          # go on after a crash

File tools never leave the folder, whatever the model calls `..` or links to. A command may do
anything the user may, which is why a human says yes to each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import attrs

from llm_agent import ConfigError, Loop, OpenAIBackend, Run, Session, ToolAnswer, ToolRequest, current_call, terminal
from llm_agent.events import AttemptFailed, Token, ToolAbandoned, ToolCall, TurnDiscarded
from llm_agent.tools import Workspace


@attrs.frozen
class AskBeforeChanges:
    """A workspace whose reading tools are free, and whose other tools are asked about, every time."""

    workspace: Workspace

    def tools_for_llm(self) -> list[dict[str, Any]]:
        return self.workspace.tools_for_llm()

    def execute_tool_calls(self, calls: Sequence[ToolRequest]) -> list[ToolAnswer]:
        return [refusal(call, self.workspace) or self.workspace.execute_tool_calls([call])[0] for call in calls]


def refusal(call: ToolRequest, workspace: Workspace) -> ToolAnswer | None:
    """Ask the human where it takes one; the call's deadline stands still meanwhile."""
    if workspace.idempotency_of(call.name) == "read-only":
        return None
    context = current_call()
    assert context is not None  # tools are only called within a run
    paths = [str(workspace.root / call.args["path"])] if "path" in call.args else []
    said = context.ask({"kind": "permission", "tool": call.name, "arguments": call.args, "paths": paths})
    if said is not None and said["action"] == "allow-once":
        return None
    reason = said.get("reason") if said else None
    return ToolAnswer(call.id, f"The user said no{f': {reason}' if reason else '.'}", is_error=True)


def show(run: Run) -> None:
    """Print a run as it goes."""
    for event in run.events():
        match event:
            case Token(text=text):
                print(text, end="", flush=True)
            case AttemptFailed() | TurnDiscarded():
                print("\n[retracted]")
            case ToolCall(name=name, arguments=arguments):
                print(f"\n-> {name} {arguments}", flush=True)
            case ToolAbandoned(name=name):
                print(f"\n[{name} was given up]")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", default="https://api.openai.com/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--session", metavar="FILE")
    parser.add_argument("prompt", nargs="?")
    options = parser.parse_args()

    with Session.open(options.session) if options.session else Session.in_memory() as session:
        for repair in session.repair():  # calls that a crash left open; the model is told, nothing is run again
            print(f"[{repair}]")
        loop = Loop(
            backends=OpenAIBackend(options.model, base_url=options.base_url),
            tools=[AskBeforeChanges(Workspace(options.folder, run=True, run_timeout=280))],
            session=session,
            system_prompt="You are a coding assistant. Look before you change anything, and run the tests.",
            tool_deadline={"run": 300, "*": 30},
            on_ask=terminal.ask,
        )
        try:
            run = loop.run(options.prompt) if options.prompt else loop.resume()
        except ConfigError as exc:
            parser.error(f"nothing to do: {exc}")
        with run:  # Ctrl-C leaves the block: the run is cancelled, and an open question with it
            show(run)
        outcome = run.result()
    print(f"\n[{outcome.status}: {outcome.error or f'{outcome.spent.total_tokens} tokens'}]")
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
