"""A `tokenizer.json` as a function from text to a number of tokens.

The law: the number is the one that encoding the whole text would give. Needs the package
`tokenizers`; what the text is made of (messages, a template) does not live here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from llm_agent import codec
from llm_agent.errors import ConfigError

# Characters of text whose numbers are kept: four windows of a million tokens, at four each.
_KEPT_CHARACTERS = 16_000_000


def load_tokenizer(path: Path) -> Callable[[str], int]:
    """Return what counts the tokens of a text; special ones are recognised, none is added.

    Threads: any.

    Raises:
        ConfigError: *path* is no tokenizer, or `tokenizers` is not installed.
    """
    try:
        import tokenizers
    except ImportError as exc:
        raise missing_package(exc) from exc
    text = read_text(path, "a tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as exc:  # what the package raises is a plain Exception
        raise ConfigError(
            f"ExactCounter: {path} must be a tokenizer.json, got {_kind(text)}: {codec.error_text(exc)}"
        ) from exc
    # Both would change the number, and a file from training may have them set.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    raw = _raw_tokens(tokenizer)
    # A token that looks at what stands before it is no place to cut, yet may hide one that is.
    seams = frozenset(token.content for token in raw if not token.lstrip and not token.single_word)
    return _Pieces(tokenizer=tokenizer, raw=_any_of(raw), seams=seams).count


def missing_package(exc: ImportError) -> ConfigError:
    """Return the refusal for what the extra `tokenizers` would have installed."""
    return ConfigError(
        "ExactCounter: from_tokenizer_json needs the packages tokenizers and jinja2 (the extra [tokenizers] of "
        f"this library), but: {codec.error_text(exc)}"
    )


def read_text(path: Path, expected: str) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"ExactCounter: {path} must be {expected}, got {codec.error_text(exc)}") from exc


def _kind(text: str) -> str:
    try:
        return f"JSON ({type(codec.loads(text)).__name__}) that is none"
    except ValueError:
        return "no JSON"


def _raw_tokens(tokenizer: Any) -> list[Any]:
    """The added tokens that are looked for before anything else is done to a text."""
    return [token for token in tokenizer.get_added_tokens_decoder().values() if token.content and not token.normalized]


def _any_of(tokens: list[Any]) -> re.Pattern[str]:
    # The longest of those that begin at one place is the one that counts.
    longest_first = sorted((token.content for token in tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) if tokens else "(?!)")


@attrs.define(eq=False, kw_only=True)
class _Pieces:
    """Counts piece by piece, and each piece once: a conversation is counted again in every round.

    Exact, because a tokenizer cuts a text at its raw tokens before anything else, and works on
    what is between them piece by piece. Each piece begins with the token before which it was
    cut, so that nothing in it takes itself for the beginning of the text.
    """

    tokenizer: Any
    raw: re.Pattern[str]
    seams: frozenset[str]
    _known: dict[str, int] = attrs.field(factory=dict, init=False)
    # Two threads may lose a subtraction: it is a bound on memory, and a soft one.
    _room: int = attrs.field(default=_KEPT_CHARACTERS, init=False)

    def count(self, text: str) -> int:
        return sum(self._count_piece(piece) for piece in self._cut(text) if piece)

    def _cut(self, text: str) -> Iterator[str]:
        start = 0
        for found in self.raw.finditer(text):
            if found[0] in self.seams:
                yield text[start : found.start()]
                start = found.start()
        yield text[start:]

    def _count_piece(self, piece: str) -> int:
        known = self._known.get(piece)
        if known is None:
            known = self._known[piece] = len(self.tokenizer.encode(piece, add_special_tokens=False).ids)
            self._keep_small(len(piece))
        return known

    def _keep_small(self, added: int) -> None:
        self._room -= added
        if self._room < 0:
            self._known, self._room = {}, _KEPT_CHARACTERS
