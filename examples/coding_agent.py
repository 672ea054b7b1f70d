"""A coding agent for one folder: it reads freely, and asks before it writes or runs.

    python coding_agent.py --folder . --model gpt-5 --session run.jsonl "Make the tests pass."
    python coding_agent.py --folder . --model gpt-5 --session run.jsonl          # go on after a crash

File tools never leave the folder, whatever the model calls `..` or links to. A command may do
anything the user may, which is why a human says yes to each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import attrs

from llm_agent import ConfigError, Loop, OpenAIBackend, Run, Session, current_call, tool
from llm_agent.events import AskPending, AttemptFailed, Token, ToolAbandoned, ToolCall, TurnDiscarded
from llm_agent.tools.process import run_command


def permitted(question: str) -> bool:
    """Ask the human in front of the terminal; the call's deadline stands still meanwhile."""
    call = current_call()
    assert call is not None  # tools are only called within a run
    return call.ask({"tool": call.name, "question": question}) is True


@attrs.frozen
class Folder:
    """One folder, and the tools that work in it."""

    root: Path
    """Resolved: no link is left in it."""

    def inside(self, path: str) -> Path:
        found = (self.root / path).resolve()  # follows links and `..` before anything is compared
        if not found.is_relative_to(self.root):
            raise PermissionError(f"{path} is outside of the folder")
        return found

    @tool(idempotency="read-only")
    def read_file(self, path: str) -> str:
        """Read a text file."""
        return self.inside(path).read_text()

    @tool(idempotency="read-only")
    def list_files(self, path: str = ".") -> str:
        """List the names in a directory, directories with a slash."""
        return "\n".join(sorted(entry.name + "/" * entry.is_dir() for entry in self.inside(path).iterdir()))

    @tool(idempotency="read-only")
    def grep(self, pattern: str, path: str = ".") -> str:
        """Find the lines that match an extended regular expression, in all files below a directory."""
        # A process of its own: a hostile pattern in `re` would hold up this whole one. -r follows no links.
        below = self.inside(path).relative_to(self.root)
        return (
            run_command(["grep", "-rnIE", "-e", pattern, "--", str(below)], cwd=self.root).output or "no line matches"
        )

    @tool
    def write_file(self, path: str, content: str) -> str:
        """Write a text file, replacing what was there."""
        file = self.inside(path)
        if not permitted(f"write {path} ({len(content)} characters)?"):
            return "The user said no."
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return "Written."

    @tool
    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once in a file."""
        file = self.inside(path)
        text = file.read_text()
        if text.count(old) != 1:
            raise ValueError(f"the old text must occur exactly once in {path}, it occurs {text.count(old)} times")
        if not permitted(f"edit {path}\n- {old}\n+ {new}\n?"):
            return "The user said no."
        file.write_text(text.replace(old, new))
        return "Edited."

    @tool
    def run(self, command: str) -> str:
        """Run a shell command in the folder and return what it printed."""
        if not permitted(f"run {command!r}?"):
            return "The user said no."
        done = run_command(command, shell=True, cwd=self.root)
        return f"{done.output}\n(exit status {done.returncode})"

    @property
    def tools(self) -> list[object]:
        return [self.read_file, self.list_files, self.grep, self.write_file, self.edit_file, self.run]


def show(run: Run) -> None:
    """Print a run as it goes, and answer its questions; here, where Ctrl-C can end the prompt."""
    for event in run.events():
        match event:
            case Token(text=text):
                print(text, end="", flush=True)
            case AttemptFailed() | TurnDiscarded():
                print("\n[retracted]")
            case ToolCall(name=name, arguments=arguments):
                print(f"\n-> {name} {arguments}")
            case ToolAbandoned(name=name):
                print(f"\n[{name} was given up]")
            case AskPending(request=request, ask_id=str(ask_id)):
                run.answer(ask_id, says_yes(str(request["question"])))


def says_yes(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


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
            tools=Folder(Path(options.folder).resolve()).tools,
            session=session,
            system_prompt="You are a coding assistant. Look before you change anything, and run the tests.",
            tool_deadline={"run": 300, "*": 30},
            on_ask="run",
        )
        try:
            run = loop.run(options.prompt) if options.prompt else loop.resume()
        except ConfigError as exc:
            parser.error(f"nothing to do: {exc}")
        with run:
            show(run)
        outcome = run.result()
    print(f"\n[{outcome.status}: {outcome.error or f'{outcome.spent.total_tokens} tokens'}]")
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
