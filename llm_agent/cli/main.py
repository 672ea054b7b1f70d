"""The commands of `python -m llm_agent`, and how they end.

A command returns its exit status: 0 for done, 1 for not done, 2 for a wrong command line. What
the caller got wrong is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from llm_agent import AgentError

DONE: Final = 0
NOT_DONE: Final = 1
# What a shell reports of a command that was ended by Ctrl-C.
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; by default this process's own.

    Returns:
        The exit status.

    Raises:
        SystemExit: from the parser, for `--help`, `--version` and a wrong command line.
    """
    # A terminal that cannot show a character shows its escape; output never fails for it.
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        status = _command(options)
        sys.stdout.flush()
        return status
    except AgentError as exc:
        print(f"llm_agent: {exc}", file=sys.stderr)
        return NOT_DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE


def _command(options: argparse.Namespace) -> int:
    # Imported where they are used: `--help` needs neither a server nor a backend.
    match options.command:
        case "demo" if options.act is not None:
            from llm_agent.cli import demo_agent

            return demo_agent.play(options.act, options.folder, options.server)
        case "demo":
            from llm_agent.cli import demo

            return demo.play()
        case "transcript":
            from llm_agent.cli import transcript

            return transcript.show(options.file, is_full=options.full)
        case _:
            _parser().print_help()
            return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_agent",
        description="The engine behind a coding agent: a demo of it, and a reader of its transcripts.",
    )
    parser.add_argument("--version", action="version", version=f"llm-agent {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_demo(commands)
    _add_transcript(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="watch an agent repair a small project, through failures; no key, no network",
        description=(
            "Watch an agent repair a small project in a temporary folder. The model is scripted and stands "
            "behind real HTTP servers on this machine; files, processes, faults and the transcript are real."
        ),
    )
    # The demo calls itself for each of its two processes; these are between them.
    demo.add_argument("--act", choices=("begin", "resume"), help=argparse.SUPPRESS)
    demo.add_argument("--folder", help=argparse.SUPPRESS)
    demo.add_argument("--server", action="append", help=argparse.SUPPRESS)


def _add_transcript(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    transcript = commands.add_parser(
        "transcript",
        help="print a transcript in a readable form",
        description="Print a transcript in a readable form. The file is only read, also while a run writes it.",
    )
    transcript.add_argument("file", metavar="FILE", help="a transcript (.jsonl)")
    transcript.add_argument("--full", action="store_true", help="print long texts whole")


def _version() -> str:
    try:
        return metadata.version("llm-agent")
    except metadata.PackageNotFoundError:
        return "(not installed)"
