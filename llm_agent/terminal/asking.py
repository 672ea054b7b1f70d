"""The questions of a run, put to whoever sits at the terminal: `ask`.

The law: an answer is what was typed after its prompt was shown, and only a key that was
offered allows anything; all else asks again, and the end of the input is a no. One question at
a time. What is shown, and how: `description`. Forms of servers: `forms`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import attrs

from llm_agent.call_context import current_call
from llm_agent.errors import ConfigError
from llm_agent.terminal.console import Console, Flag, NotWanted, opened
from llm_agent.terminal.description import described, rule_in_words
from llm_agent.terminal.forms import fill_in
from llm_agent.terminal.harmless import QUESTION_CHARS, QUESTION_LINES, as_text, barred, short

# How often who waits for a turn looks whether the answer is still wanted, in seconds.
_LOOK: Final = 0.05
_PROMPT: Final = "> "
# The longest rule, in words, that is offered to be remembered: what nobody reads is not allowed for ever.
_RULE_CHARS: Final = 400


def ask(request: Mapping[str, Any], *, terminal: str | None = None, cancelled: Flag | None = None) -> Any:
    """Put one question to the human at the terminal and return the answer.

    Args:
        request: what is asked, told by `kind`: `permission` (a policy's), `server-elicit` (a
            server's form or address), or any other with a `question` and perhaps `choices`.
        terminal: the device to ask at; by default the one this process belongs to, wherever
            its standard streams lead.
        cancelled: ends the question when set, beside the request's own `cancelled` and that of
            the call this thread executes.

    Returns:
        For a permission `{"action": "allow-once"}`, `{"action": "always-allow", "rule": ...}` with
        the rule that was shown, or `{"action": "deny-once"}`, with `reason` where one was typed.
        For a server `{"action": "accept", "content": ...}`, `decline` or `cancel`. For a question
        the text that was typed, or the choice. `None` when the answer is not wanted any more,
        and for a question at the end of the input.

    Raises:
        NoTerminal: there is none, or it is gone; nothing was decided.
        ConfigError: *request* is no question.
        KeyboardInterrupt: Ctrl-C, when called on the main thread, where it cancels what is
            around; on any other the main thread has it.

    Threads: any; one question at a time, and the others wait. Within a call of a run the
    deadline stands still: it is called by `current_call().ask`, whoever wires it.
    """
    if not isinstance(request, Mapping):
        raise ConfigError(f"terminal.ask: a request is a mapping, got {type(request).__name__}")
    unwanted = _flags(request, cancelled)
    try:
        with _turn(unwanted), opened(terminal, unwanted) as console:
            try:
                return _put(console, request)
            except NotWanted:
                console.take_leave()
                return None
    except NotWanted:
        return None


def _flags(request: Mapping[str, Any], cancelled: Flag | None) -> tuple[Flag, ...]:
    call = current_call()
    own = getattr(request, "cancelled", None) or request.get("cancelled")
    candidates = (cancelled, own, None if call is None else call.cancelled)
    return tuple(flag for flag in candidates if callable(getattr(flag, "is_set", None)) and flag is not None)


def _put(console: Console, request: Mapping[str, Any]) -> Any:
    kind = request.get("kind")
    if kind == "server-elicit":
        return fill_in(console, request)
    if kind == "permission":
        return _permission(console, request)
    if "question" in request:
        return _question(console, request)
    raise ConfigError(f"terminal.ask: expected a kind or a question, got the members {', '.join(map(str, request))}")


# -- one at a time ---------------------------------------------------------------------------


class _Turns:
    """Whose question is on the terminal."""

    def __init__(self) -> None:
        # Held while a question is shown.
        self.lock = threading.Lock()


_TURNS: Final = _Turns()
os.register_at_fork(after_in_child=_TURNS.__init__)  # type: ignore[misc]  # whoever held it is not in the child


@contextmanager
def _turn(unwanted: tuple[Flag, ...]) -> Iterator[None]:
    while not _TURNS.lock.acquire(timeout=_LOOK):
        if any(flag.is_set() for flag in unwanted):
            raise NotWanted
    try:
        yield
    finally:
        _TURNS.lock.release()


# -- permission ------------------------------------------------------------------------------


@attrs.frozen
class _Key:
    """What may be typed, and what it means."""

    letter: str
    words: str
    answer: Mapping[str, Any] | None
    """`None` for the two keys that only lead on."""


def _permission(console: Console, request: Mapping[str, Any]) -> dict[str, Any]:
    description = described(request, is_whole=False)
    keys = {key.letter: key for key in _keys(request, description.is_cut)}
    console.show("\n".join(["", *description.lines]))
    while True:
        console.show("\n".join(f"[{key.letter}] {key.words}" for key in keys.values()))
        typed = console.read_line(_PROMPT)
        if typed is None:
            return {"action": "deny-once"}
        key = keys.get(_letter(typed))
        if key is None:
            console.show("Please type one of these letters, and Enter:")
        elif key.answer is not None:
            return dict(key.answer)
        elif key.letter == "w":
            return _refusal(console)
        else:
            console.show("\n".join(described(request, is_whole=True).lines))


def _letter(typed: str) -> str:
    word = typed.strip().lower()
    return {"yes": "y", "no": "n"}.get(word, word)


def _keys(request: Mapping[str, Any], is_cut: bool) -> Iterator[_Key]:
    yield _Key("y", "yes, this once", {"action": "allow-once"})
    rule = request.get("suggestion")
    if isinstance(rule, Mapping) and len(words := rule_in_words(rule)) <= _RULE_CHARS:
        letter, always = _always(rule)
        yield _Key(letter, f"{always}: {words}", {"action": "always-allow", "rule": dict(rule)})
    yield _Key("n", "no", {"action": "deny-once"})
    yield _Key("w", "no, and say why", None)
    if is_cut:
        yield _Key("s", "show all of it first", None)


def _always(rule: Mapping[str, Any]) -> tuple[str, str]:
    if rule.get("command"):
        return "c", "always this command"
    if rule.get("under") or rule.get("host"):
        return "h", "always here"
    return "t", "always this tool"


def _refusal(console: Console) -> dict[str, Any]:
    reason = (console.read_line("Why not? ") or "").strip()
    return {"action": "deny-once", "reason": reason} if reason else {"action": "deny-once"}


# -- a question of a tool --------------------------------------------------------------------


def _question(console: Console, request: Mapping[str, Any]) -> Any:
    lines, _ = barred(as_text(request["question"]), QUESTION_LINES, QUESTION_CHARS)
    console.show("\n".join(["", f"{short(as_text(request.get('tool', 'A tool')))} asks:", *lines]))
    choices = request.get("choices")
    if not isinstance(choices, list | tuple) or not choices:
        return console.read_line(_PROMPT)
    texts = [as_text(choice) for choice in choices]
    while True:
        console.show("\n".join(f"[{number}] {short(text)}" for number, text in enumerate(texts, 1)))
        typed = console.read_line(_PROMPT)
        if typed is None:
            return None
        word = typed.strip()
        if word in texts:
            return choices[texts.index(word)]
        if word.isdecimal() and 1 <= int(word) <= len(texts):
            return choices[int(word) - 1]
        console.show("Please type one of these numbers, and Enter:")
