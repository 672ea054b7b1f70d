"""What a question is about, as lines for a human: the arguments first, then what they would do.

The law: a text that is cut says so, and can be shown whole; nothing is shown that `harmless`
has not gone over. Nothing is asked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llm_agent.terminal.changes import change_of
from llm_agent.terminal.harmless import SHORT_CHARS, as_text, barred, harmless, short

# What is shown at first: of one text, of one line, and of the whole call, in lines.
_LINES: Final = 40
_CHARS: Final = 400
_ALL_LINES: Final = 120


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
        label = harmless(name) if self.is_whole else short(name)
        self.is_cut = self.is_cut or (len(name) > SHORT_CHARS and not self.is_whole)
        if "\n" not in text and len(text) <= _CHARS:
            self.add(f"  {label}: {harmless(text)}")
            return
        shown, is_cut = barred(text, *((None, None) if self.is_whole else (_LINES, _CHARS)))
        self.is_cut = self.is_cut or is_cut
        self.lines += [f"  {label}:", *shown]

    def cut(self) -> None:
        """Leave out what is too much to be looked through at once."""
        if not self.is_whole and len(self.lines) > _ALL_LINES:
            self.is_cut = True
            self.lines[_ALL_LINES:] = [f"  [... {len(self.lines) - _ALL_LINES} more lines of this call]"]


def described(request: Mapping[str, Any], *, is_whole: bool) -> Description:
    """Describe a permission request (`permissions.md` 5.3: tool, arguments, paths, rule, reason).

    Args:
        is_whole: leave out nothing, however long.
    """
    description = Description(is_whole)
    description.add(
        f"The model wants to call {short(as_text(request.get('tool', 'a tool')))}. Nothing has been done yet."
    )
    arguments, paths = _mapping(request.get("arguments")), _sequence(request.get("paths"))
    change = change_of(arguments, paths)
    covered = frozenset[str]() if change is None else change[1]
    for name, value in arguments.items():
        if name in covered:
            description.add(f"  {name}: see the change below ({len(as_text(value))} characters)")
        else:
            description.add_text(str(name), as_text(value))
    if not arguments:
        description.add("  (no arguments)")
    if change is not None:
        description.add_text("change", change[0])
    if paths:
        description.add_text("paths", "\n".join(harmless(as_text(path)) for path in paths))
    description.cut()
    _add_reason(description, request)
    return description


def _add_reason(description: Description, request: Mapping[str, Any]) -> None:
    rule = _mapping(request.get("rule"))
    if rule.get("severity") == "danger":
        description.add(f"  DANGER: {short(as_text(rule.get('note') or 'this is hard to undo'))}")
    elif rule.get("note"):
        description.add(f"  note: {short(as_text(rule['note']))}")
    if request.get("reason") == "unevaluable-path":
        description.add("  It could not be told for certain what this touches.")


def rule_in_words(rule: Mapping[str, Any]) -> str:
    """Return what a rule allows, as one line: every narrower it has, and "anything" where it has none."""
    words = [f"{harmless(as_text(rule.get('tool', '*')))}"]
    if rule.get("command"):
        arguments = " ".join(as_text(one) for one in _sequence(rule.get("args")))
        command = f"{harmless(as_text(rule['command']))} {harmless(arguments)}".rstrip()
        # Without `exact`, arguments of a rule are the first ones only.
        words.append(f"with exactly {command}" if rule.get("exact") is True else f"with {command}, whatever follows")
    if rule.get("under"):
        words.append(f"under {harmless(as_text(rule['under']))}")
    if rule.get("host"):
        words.append(f"on {harmless(as_text(rule['host']))}")
    others = sorted(set(rule) - {"tool", "decision", "command", "args", "exact", "under", "host"})
    words += [f"{harmless(name)} {harmless(as_text(rule[name]))}" for name in others if rule[name]]
    return " ".join(words) if len(words) > 1 else f"{words[0]}, whatever its arguments"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
