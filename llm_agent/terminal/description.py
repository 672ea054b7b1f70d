"""What a question is about, as lines for a human: the arguments first, then what they would do.

The law: a text that is cut says so, and can be shown whole; nothing is shown that `harmless`
has not gone over. Nothing is asked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llm_agent.terminal.changes import change_of
from llm_agent.terminal.harmless import as_text, barred, harmless

_LINES: Final = 40
_CHARS: Final = 400


@attrs.define
class Description:
    """Lines, and whether some were left out."""

    is_whole: bool
    """Whether nothing may be left out."""
    lines: list[str] = attrs.field(factory=list)
    is_cut: bool = False

    def add(self, line: str) -> None:
        self.lines.append(line)

    def add_text(self, name: str, text: str) -> None:
        """Add a text under its name; on one line where it fits there."""
        if "\n" not in text and len(text) <= _CHARS:
            self.add(f"  {harmless(name)}: {harmless(text)}")
            return
        shown, is_cut = barred(text, *((None, None) if self.is_whole else (_LINES, _CHARS)))
        self.is_cut = self.is_cut or is_cut
        self.lines += [f"  {harmless(name)}:", *shown]


def described(request: Mapping[str, Any], *, is_whole: bool) -> Description:
    """Describe a permission request (`permissions.md` 5.3: tool, arguments, paths, rule, reason).

    Args:
        is_whole: leave out nothing, however long.
    """
    told = Description(is_whole)
    told.add(f"{harmless(as_text(request.get('tool', 'a tool')))} wants to be run. Nothing has been done yet.")
    arguments, paths = _mapping(request.get("arguments")), _sequence(request.get("paths"))
    change = change_of(arguments, paths)
    told_below = frozenset[str]() if change is None else change[1]
    for name, value in arguments.items():
        if name in told_below:
            told.add(f"  {harmless(name)}: see the change below ({len(as_text(value))} characters)")
        else:
            told.add_text(str(name), as_text(value))
    if not arguments:
        told.add("  (no arguments)")
    if change is not None:
        told.add_text("change", change[0] or "none: the file has this text already")
    if paths:
        told.add_text("paths", "\n".join(as_text(path) for path in paths))
    _add_reason(told, request)
    return told


def _add_reason(told: Description, request: Mapping[str, Any]) -> None:
    rule = _mapping(request.get("rule"))
    if rule.get("severity") == "danger":
        told.add(f"  DANGER: {harmless(as_text(rule.get('note') or 'this is hard to undo'))}")
    elif rule.get("note"):
        told.add(f"  note: {harmless(as_text(rule['note']))}")
    if request.get("reason") == "unevaluable-path":
        told.add("  It could not be told for certain what this touches.")


def rule_in_words(rule: Mapping[str, Any]) -> str:
    """Return what a rule allows, as one line: every narrower it has, and "anything" where it has none."""
    words = [f"{harmless(as_text(rule.get('tool', '*')))}"]
    if rule.get("command"):
        arguments = " ".join(as_text(one) for one in _sequence(rule.get("args")))
        words.append(f"running {harmless(as_text(rule['command']))} {harmless(arguments)}".rstrip())
    if rule.get("under"):
        words.append(f"under {harmless(as_text(rule['under']))}")
    if rule.get("host"):
        words.append(f"on {harmless(as_text(rule['host']))}")
    others = sorted(set(rule) - {"tool", "decision", "command", "args", "under", "host"})
    words += [f"{harmless(name)} {harmless(as_text(rule[name]))}" for name in others if rule[name]]
    return " ".join(words) if len(words) > 1 else f"{words[0]}, whatever its arguments"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
