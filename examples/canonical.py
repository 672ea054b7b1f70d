"""The canonical wiring: every part of the library, in the order in which they belong together.

    python canonical.py --folder ~/project --model gpt-5 --session run.jsonl "Tidy up the notes."
    python canonical.py --folder ~/project --model gpt-5 --session run.jsonl "And now the index."

A file server and a time server stand behind one registry. Reading is free, writing is free
under `notes/`, and everything else is asked at the terminal: once, or for always, and "always"
is still known in the next run. Needs the extra `mcp`, and the two servers:

    npm install @modelcontextprotocol/server-filesystem && pip install mcp-server-time
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from llm_agent import Backend, Compactor, Loop, OpenAIBackend, Policy, Run, Session, UsageCounter, prompt, terminal
from llm_agent.events import AttemptFailed, Token, ToolCall, TurnDiscarded
from llm_agent.mcp import McpServer, connect_stdio
from llm_agent.policy import danger_floor, default_rules
from llm_agent.tools import stacked

IDENTITY = "You look after the files of one folder. Read before you write, and say what you did."


def guarded(files: McpServer, clock: McpServer, folder: Path, session: Session) -> Policy:
    """Return the tools as the model may use them: one namespace, then what is allowed in it."""
    tools = stacked({"fs": files, "time": clock})
    floor = danger_floor(config=folder / ".agent")
    rules = [
        *floor,
        *default_rules("fs_", tools),  # reading, and whatever a server says only reads
        {"tool": "fs_*", "decision": "allow", "under": "notes"},
    ]
    return Policy(
        tools,
        rules,
        session,  # what was answered "always", and what will be
        roots={"fs_": folder},
        local_tools=["fs_*"],
        checks=floor.checks,
    )


def canonical(
    session: Session, backends: Sequence[Backend], tools: Policy, folder: Path, on_ask: Callable[[Any], Any]
) -> Loop:
    """Return a loop that can work for hours: it falls back, compacts, keeps and asks."""
    counter = UsageCounter()
    return Loop(
        backends,
        provider=tools,
        session=session,
        counter=counter,
        compactor=Compactor(backends[::-1], counter, context_budget=32_000, age_observations=True),
        system_prompt=prompt.assemble(
            IDENTITY,
            [
                prompt.env_block({"folder": str(folder)}),
                prompt.tool_docs(tools.tools_for_llm()),
                prompt.instructions_from_files([folder / "AGENTS.md"]),
            ],
        ),
        tool_deadline=300,
        on_ask=on_ask,
    )


def started(loop: Loop, session: Session, words: str | None) -> Run:
    """Go on where the transcript ends: answer what it waits for, or begin with *words*."""
    for repair in session.repair():  # what a crash left open; nothing is run again
        print(f"[{repair}]")
    return loop.resume() if words is None else loop.run(words)


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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=".")
    parser.add_argument("--session", default="run.jsonl")
    parser.add_argument("--base-url", default="https://api.openai.com/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--fallback-model")
    parser.add_argument("--file-server", default="npx --no-install mcp-server-filesystem")
    parser.add_argument("--time-server", default="python -m mcp_server_time")
    parser.add_argument("words", nargs="?")
    options = parser.parse_args()

    folder = Path(options.folder).resolve()
    names = [name for name in (options.model, options.fallback_model) if name]
    backends = [OpenAIBackend(name, base_url=options.base_url) for name in names]
    with ExitStack() as open_things:
        files = open_things.enter_context(connect_stdio(*command(options.file_server, str(folder)), restart=True))
        clock = open_things.enter_context(connect_stdio(*command(options.time_server), restart=True))
        session = open_things.enter_context(Session.open(options.session))
        tools = guarded(files, clock, folder, session)
        loop = canonical(session, backends, tools, folder, terminal.ask)
        with started(loop, session, options.words) as run:  # Ctrl-C leaves the block: the run is cancelled
            show(run)
        outcome = run.result()
    print(f"\n[{outcome.status}: {outcome.error or f'{outcome.spent.total_tokens} tokens'}]")
    return 0 if outcome.ok else 1


def command(line: str, *more: str) -> tuple[str, list[str]]:
    program, *args = shlex.split(line)
    return program, [*args, *more]


if __name__ == "__main__":
    raise SystemExit(main())
