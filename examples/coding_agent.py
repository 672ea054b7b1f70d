"""A coding agent for one folder: it reads freely, and asks at the terminal before it writes or runs.

    python coding_agent.py --folder . --model gpt-5 --session run.jsonl "Make the tests pass."
    python coding_agent.py --folder . --model gpt-5 --session run.jsonl          # go on after a crash

File tools never leave the folder, whatever the model calls `..` or links to. A command may do
anything the user may, which is why a human says yes to it: once, or for good. What was answered
"always" is in the transcript, and known in the next run. Commands are told apart better with
the extra `shell`; without it, whatever goes through a shell is asked.
"""

from __future__ import annotations

import argparse

from llm_agent import ConfigError, Loop, OpenAIBackend, Policy, Run, Session, terminal
from llm_agent.events import AttemptFailed, Token, ToolAbandoned, ToolCall, TurnDiscarded
from llm_agent.policy import danger_floor, default_rules
from llm_agent.tools import Workspace


def guarded(workspace: Workspace, session: Session) -> Policy:
    """Return the tools of *workspace* behind a policy: reading is free, all else is asked.

    An answer may be "always here" or "always this command"; what is dangerous is denied, or
    asked about each new command line.
    """
    floor = danger_floor()
    return Policy(
        workspace,
        [*floor, *default_rules("", workspace)],
        session,  # what was answered "always", and what will be
        roots={"": workspace.root},
        local_tools=["*"],  # the policy follows links, as the tools do
        checks=floor.checks,
    )


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
            provider=guarded(Workspace(options.folder, run=True, run_timeout=280), session),
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
