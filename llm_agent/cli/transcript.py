"""A transcript as text: who said what, what was run, and how that ended.

The file is read through `Session.read`: nothing is repaired, locked or written, and a
transcript that somebody is writing can be watched.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import attrs

from llm_agent import Message, Session
from llm_agent.cli.screen import Screen, is_coloured, printable, shown_arguments

# Lines of one text that are shown; `--full` shows all.
LINES: Final = 8
_COLUMN: Final = 11
# `2026-08-09T13:10:08.542283Z`: the clock is told, the day stands in the first line.
_CLOCK: Final = slice(11, 19)
_STYLE_BY_OUTCOME: Final = {"completed": "green", "failed": "red", "outcome-unknown": "yellow"}


def show(file: str, *, is_full: bool) -> int:
    """Print the transcript *file* and return the exit status.

    Raises:
        TranscriptError: it cannot be read.
    """
    session = Session.read(file)
    screen = Screen(sys.stdout, colour=is_coloured(sys.stdout))
    envelopes = list(session.envelopes())
    screen.line(f"{printable(file)}: {len(envelopes)} lines, {len(session.messages)} messages", "bold")
    page = _Page(screen, None if is_full else LINES)
    for envelope in envelopes:
        page.write(envelope)
    _warn(screen, session)
    return 0


def _warn(screen: Screen, session: Session) -> None:
    for warning in session.warnings:
        screen.line(f"warning: {printable(str(warning))}", "yellow")
    for operation in session.pending_tool_operations():
        screen.line(f"pending: {printable(str(operation['tool']))}: dispatched, and its outcome is unknown", "yellow")


@attrs.define(eq=False)
class _Page:
    """One transcript, envelope by envelope."""

    screen: Screen
    most_lines: int | None
    _tool_by_op: dict[str, str] = attrs.field(factory=dict, init=False)

    def write(self, envelope: Mapping[str, Any]) -> None:
        """Print one line of the file."""
        payload = envelope.get("payload")
        payload = payload if isinstance(payload, Mapping) else {}
        clock = str(envelope.get("ts", ""))[_CLOCK]
        match envelope.get("type"):
            case "message":
                self._message(clock, payload)
            case "tool-dispatched":
                tool = self._tool_by_op[str(envelope.get("id"))] = str(payload.get("tool"))
                self._row(clock, "dispatched", f"{tool} {shown_arguments(payload.get('arguments'))}", "dim")
            case "tool-settled":
                self._settled(clock, payload)
            case "compaction":
                self._compaction(clock, payload)
            case "elision":
                self._row(clock, "aged", f"{len(payload.get('items') or ())} old results became stubs", "dim")
            case kind:
                self._row(clock, str(kind), str(dict(payload)) if payload else "", "dim")

    def _message(self, clock: str, payload: Mapping[str, Any]) -> None:
        message = Message.from_dict(payload)
        style = "bold" if message.role == "user" else None
        self._row(clock, message.role, message.text, "dim" if message.role == "tool" else style)
        for request in message.tool_calls:
            self._row("", "", f"-> {request.name} {shown_arguments(request.arguments)}", "cyan")

    def _compaction(self, clock: str, payload: Mapping[str, Any]) -> None:
        sizes = f"{payload.get('tokens-before', '?')} -> {payload.get('tokens-after', '?')} tokens"
        how = "dropped without a summary" if payload.get("fallback") else "summarised"
        self._row(clock, "compaction", f"{sizes}, earlier turns {how}:\n{payload.get('summary', '')}", "yellow")

    def _settled(self, clock: str, payload: Mapping[str, Any]) -> None:
        outcome = str(payload.get("outcome"))
        tool = self._tool_by_op.get(str(payload.get("op-id")), "")
        reason = f" ({payload['reason']})" if payload.get("reason") else ""
        took = f" in {payload['duration']:.2f} s" if isinstance(payload.get("duration"), int | float) else ""
        self._row(clock, "settled", f"{tool}: {outcome}{reason}{took}", _STYLE_BY_OUTCOME.get(outcome))

    def _row(self, clock: str, head: str, text: str, style: str | None) -> None:
        lines = self._cut(printable(text).splitlines() or [""])
        for number, line in enumerate(lines):
            first = number == 0
            margin = f"{clock if first else '':8}  {printable(head) if first else '':{_COLUMN}} "
            self.screen.line((margin + (line if style is None else self.screen.paint(style, line))).rstrip())

    def _cut(self, lines: list[str]) -> list[str]:
        if self.most_lines is None or len(lines) <= self.most_lines + 1:
            return lines
        return [*lines[: self.most_lines], f"({len(lines) - self.most_lines} more lines)"]
