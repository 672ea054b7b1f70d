"""A run's events as a human reads them, on a terminal or in a log.

The law: what the model took back is visibly taken back. Tokens are written as they come; a
scope that is retracted is struck out where the terminal can do that, and always followed by a
line that says so. Nothing a model or a tool writes can steer the terminal.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from typing import Any, Final, TextIO

import attrs

from llm_agent.events import (
    AssistantMessage,
    AttemptFailed,
    AttemptStarted,
    Event,
    Log,
    RoundStarted,
    RunCancelled,
    RunFailed,
    Token,
    ToolAbandoned,
    ToolCall,
    ToolProgress,
    ToolResult,
    TurnDiscarded,
)

MARGIN: Final = "    "
# Of a tool's answer the last lines are shown: commands say at the end how they went.
ANSWER_LINES: Final = 6
ARGUMENT_CHARS: Final = 60

_STYLES: Final = {"bold": "1", "dim": "2", "struck": "2;9", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ERASED_LINE: Final = "\r\x1b[2K"


def printable(text: str) -> str:
    """Return *text* with control characters as escapes; line ends and tabs stay."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def is_coloured(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether *stream* gets colour: a terminal that can, and nobody who set `NO_COLOR`.

    Source: no-color.org for the variable, which counts when it is not empty.
    """
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def shown_arguments(arguments: str | Mapping[str, Any] | None) -> str:
    """Return a call's arguments on one short line."""
    text = printable(str(arguments or "")).replace("\n", "\\n")
    text = "" if text == "{}" else text
    return text if len(text) <= ARGUMENT_CHARS else text[: ARGUMENT_CHARS - 3] + "..."


@attrs.define(eq=False)
class Screen:
    """Shows the events of one run after another. One thread."""

    stream: TextIO
    colour: bool
    width: int = attrs.field(factory=lambda: shutil.get_terminal_size().columns)
    """Columns; a retracted text is struck out only when it stands on one line."""
    _model: str | None = attrs.field(default=None, init=False)
    _scope: str = attrs.field(default="", init=False)
    """What the current attempt has written."""

    def paint(self, style: str, text: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text

    def line(self, text: str = "", style: str | None = None) -> None:
        """Write one line, below whatever stands there."""
        self._end_scope()
        self._write((text if style is None else self.paint(style, text)) + "\n")

    def block(self, text: str, mark: str, style: str) -> None:
        """Write the lines of *text* that are not blank, the last few if there are many, a mark before the first."""
        lines = [line for line in printable(text).splitlines() if line.strip()] or [""]
        hidden = len(lines) - ANSWER_LINES
        if hidden > 1:
            lines = [f"({hidden} lines above)", *lines[-ANSWER_LINES:]]
        for number, line in enumerate(lines):
            self.line(f"{MARGIN}{mark if number == 0 else ' ' * len(mark)} {line}".rstrip(), style)

    def show(self, event: Event) -> None:
        """Show one event; those that say nothing to a reader are passed over."""
        match event:
            case Token(text=text):
                self._write_token(printable(text))
            case RoundStarted(round=number):
                self.line(f"  round {number}", "dim")
            case AttemptStarted(model=model):
                self._name_model(model)
            case AttemptFailed():
                self._retract(_consequence(event), event.error)
            case TurnDiscarded(reason=reason):
                self._retract(f"the turn is discarded ({reason})")
            case AssistantMessage():
                self._end_scope()
            case _ if not self._show_tool(event):
                self._show_end(event)

    def _show_tool(self, event: Event) -> bool:
        match event:
            case ToolCall(name=name, arguments=arguments):
                self.line(f"{MARGIN}-> {printable(name)} {shown_arguments(arguments)}".rstrip(), "cyan")
            case ToolProgress(message=str(message)):
                self.line(f"{MARGIN}.. {printable(message)}", "dim")
            case ToolResult(content=content, is_error=is_error):
                self.block(content, "<-", "red" if is_error else "dim")
            case ToolAbandoned(name=name, dispatched=True, reason=reason):
                self.line(f"{MARGIN}!! {name}: given up ({reason}); whether it took effect is unknown", "yellow")
            case ToolAbandoned(name=name):
                self.line(f"{MARGIN}!! {name}: was not run", "yellow")
            case _:
                return False
        return True

    def _show_end(self, event: Event) -> None:
        match event:
            case RunFailed(error=error):
                self.line(f"  failed: {printable(error)}", "red")
            case RunCancelled(reason=reason):
                self.line(f"  cancelled{f' ({reason})' if reason else ''}", "yellow")
            case Log(level="warning" | "error" as level, data=data):
                self.line(f"{MARGIN}{level}: {printable(str(data))}", "yellow")
            case _:
                pass

    # -- the scope of an attempt -----------------------------------------------------------

    def _name_model(self, model: str) -> None:
        if model != self._model:
            self.line(f"{MARGIN}[{printable(model)}]", "bold")
        self._model = model

    def _write_token(self, text: str) -> None:
        start = "" if self._scope else MARGIN
        self._scope += text
        self._write(start + text.replace("\n", "\n" + MARGIN))

    def _retract(self, what_follows: str, why: str = "") -> None:
        taken_back, self._scope = self._scope, ""
        if taken_back:
            is_one_line = "\n" not in taken_back and len(MARGIN + taken_back) < self.width
            if self.colour and is_one_line:
                self._write(_ERASED_LINE + MARGIN + self.paint("struck", taken_back))
            self._write("\n")
        self.line(f"{MARGIN}x  {'retracted' if taken_back else 'failed'}; {what_follows}", "red")
        if why:
            self.line(f"{MARGIN}   {printable(why)}", "red")

    def _end_scope(self) -> None:
        if self._scope:
            self._scope = ""
            self._write("\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _consequence(failed: AttemptFailed) -> str:
    """Say what happens after a failed attempt."""
    match failed.disposition:
        case "retry-same":
            return f"the same backend is asked again in {failed.backoff or 0:.1f} s"
        case "advance":
            return "the next backend is asked"
        case "abort":
            return "nobody else is asked"
