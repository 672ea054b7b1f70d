"""What a shell script would run, read by a real grammar: text in, simple commands out.

The law: every part of the tree is on a list of parts that are understood here, every character
of the text belongs to one of them, and where either fails the whole script is unclear. A parser
for editors recovers from errors and guesses; a guess is not a reading.

Needs the extra `shell` (tree-sitter and its bash grammar); without it every script is unclear.
What the commands mean (wrappers, shells in shells) does not live here.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import attrs

_log: Final = logging.getLogger("llm_agent.policy")

# A word as the shell would pass it on; `None`: unreadable, and it may become any number of words.
Word: TypeAlias = str | None

# Longest script that is read, in characters; the grammar's error recovery is not linear.
MAX_SCRIPT: Final = 10_000
# Deepest nesting of the tree that is walked: far beyond hands, far below the interpreter's limit.
MAX_NESTING: Final = 120


def names(text: str) -> frozenset[str]:
    """A set of names, written as a text with spaces between them."""
    return frozenset(text.split())


_GROUPS: Final = names(
    "program list pipeline negated_command subshell compound_statement if_statement elif_clause else_clause "
    "while_statement do_group command_substitution process_substitution"
)
_CONNECTIVES: Final = names("; & && || | |& ( ) { } ! if then elif else fi while until do done $( ` <( >(")
_REDIRECTIONS: Final = names("< > >> >| <> &> &>> >& <&")
# In a place where a command is expected these are grammar; there, the tree has misread something.
_KEYWORDS: Final = names("! { } [[ ]] if then elif else fi case esac for select while until do done in function")
# In `[ ... ]`: what the tree takes for a sign or an option is a word like the others; `<` and `>` would redirect.
_TEST_WORDS: Final = names("test_operator ! = == !=")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_EXPANSION: Final = re.compile(
    r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]|\{(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])\})"
)
# Control characters, a line that goes on in the next one, and what may be one character in some old encoding.
_UNCLEAR: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|\\\n|[^\x00-\x7f][\\`]|[\ud800-\udfff]")
# The grammar's scanner reads outside of its memory on some of these; to a shell, each is a letter in a string.
_BEYOND: Final = re.compile(r"[^\x00-\x7f]")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_GLOB: Final = re.compile(r"[*?\[\]]")
_WORD: Final = re.compile(r"(?:[^\s\\\"'`$;&|<>()]|\\[^\n])+", re.ASCII)
# A dollar sign that is only a dollar sign, in every shell.
_LONE_DOLLAR: Final = re.compile(r"\$(?=[\s/.,:;%)|]|$)")


class Unclear(Exception):
    """The script holds something that is not understood here."""


@attrs.frozen
class Simple:
    """One simple command of a script, as it is written."""

    words: tuple[Word, ...] = ()
    assigned: tuple[str, ...] = ()
    """Names of the variables set for it, or in the shell when there are no words."""
    redirects: tuple[Word, ...] = ()
    """Files it is redirected to or from."""


def simple_commands(text: str) -> tuple[Simple, ...] | None:
    """Return every simple command in *text*, in order, those in substitutions included.

    `None`: the script is not fully understood, or the extra `shell` is not installed. Nothing of
    it may be called safe then. Threads: any.
    """
    if len(text) > MAX_SCRIPT or "<<" in text or _UNCLEAR.search(text):
        return None
    try:
        return _read(text)
    except Unclear:
        return None
    except ImportError:
        _tell_of_missing_parser()
        return None


@functools.lru_cache(256)
def _read(text: str) -> tuple[Simple, ...]:
    import tree_sitter

    parser = tree_sitter.Parser(_grammar())  # one each: a parser is not for two threads
    return tuple(_Script(text).read(parser.parse(_BEYOND.sub("x", text).encode()).root_node))


@functools.cache  # once is enough
def _tell_of_missing_parser() -> None:
    _log.warning("shell lines are not understood, so none is allowed: install the extra `shell` of llm_agent")


@functools.cache
def _grammar() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


class _Script:
    """One walk over one tree, whose bytes are the characters of *text*."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[Simple] = []
        self._depth = 0

    def read(self, root: Any) -> list[Simple]:
        if root.has_error:
            raise Unclear("a syntax error")
        _check_gaps(root)
        self._statement(root)
        return self._found

    def _statement(self, node: Any) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise Unclear("too deep")
        match node.type:
            case "command":
                self._command(node, ())
            case "redirected_statement":
                self._redirected(node)
            case "variable_assignment" | "variable_assignments":
                self._assignment(node)
            case "for_statement":
                self._for(node)
            case "test_command":
                self._found.append(Simple(tuple(self._test(node))))
            case "file_redirect":  # $(< file)
                self._found.append(Simple(redirects=(self._redirect(node)[0],)))
            case kind if kind in _GROUPS:
                self._group(node)
            case kind:
                raise Unclear(kind)
        self._depth -= 1

    def _group(self, node: Any) -> None:
        # Inside backquotes a backslash is taken away before the inner script is read.
        if node.type == "command_substitution" and node.text.startswith(b"`") and b"\\" in node.text:
            raise Unclear("a backslash in backquotes")
        for child in node.children:
            if child.is_named:
                self._statement(child)
            elif child.text.strip() and child.type not in _CONNECTIVES:
                raise Unclear(child.type)

    def _for(self, node: Any) -> None:
        keyword, name, *rest = node.children
        if keyword.type != "for" or rest[-1].type != "do_group":
            raise Unclear(node.type)  # `select` asks whoever is at the terminal
        self._check_one_line([child for child in node.children[:-1] if child.type != ";"])
        self._found.append(Simple(assigned=(self._matched(_NAME, name),)))
        for child in rest[:-1]:
            if child.is_named:
                self._word(child)
            elif child.type not in ("in", ";"):
                raise Unclear(child.type)
        self._statement(rest[-1])

    def _test(self, node: Any) -> Iterator[Word]:
        """The words of `[ ... ]`; the tree makes an expression of them, and of what only `[[` may hold."""
        parts = list(_operands(node, 0))
        self._check_one_line(parts)
        opening, *operands, closing = parts
        if (opening.type, closing.type) != ("[", "]"):
            raise Unclear("a condition")
        yield "["
        for part in operands:
            if part.type in _TEST_WORDS:
                yield self._written(part)
            elif part.is_named:
                yield self._word(part)
            else:
                raise Unclear(part.type)
        yield "]"

    def _assignment(self, node: Any) -> None:
        parts = node.children if node.type == "variable_assignments" else [node]
        self._found.append(Simple(assigned=tuple(self._assigned(part) for part in parts)))

    def _redirected(self, node: Any) -> None:
        _check_apart(node.children)
        body = [child for child in node.children if child.type != "file_redirect"]
        targets, words = self._redirects(child for child in node.children if child.type == "file_redirect")
        if len(body) == 1 and body[0].type == "command":
            self._command(body[0], words, targets)
            return
        if words:  # `{ a; } > file b` is none of ours
            raise Unclear("words after a redirection")
        before = len(self._found)
        for child in body:
            self._statement(child)
        # `a && b > x` comes as a redirected list: which command writes is nothing a rule asks.
        last = self._found.pop() if len(self._found) > before else Simple()
        self._found.append(attrs.evolve(last, redirects=(*last.redirects, *targets)))

    def _redirects(self, nodes: Iterator[Any]) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
        targets: list[Word] = []
        words: list[Word] = []
        for node in nodes:
            target, *rest = self._redirect(node)
            targets += [] if target == "" else [target]
            words += rest
        return tuple(targets), tuple(words)

    def _redirect(self, node: Any) -> list[Word]:
        """The target (empty for a descriptor) and, since the grammar reads `<x y` as one, the words after it."""
        parts = [child for child in node.children if child.type != "file_descriptor"]
        if len(parts) < 2 or parts[0].type not in _REDIRECTIONS:
            raise Unclear("a redirection")
        _check_apart(parts[1:])
        target, *rest = (self._word(part) for part in parts[1:])
        if parts[0].type in (">&", "<&") and target is not None and target[:1] in "-0123456789":
            if not re.fullmatch(r"[0-9]+|-", target):  # bash takes the dash, and `>&-x` has a word x
                raise Unclear("a descriptor")
            target = ""
        return [target, *rest]

    def _command(self, node: Any, more: tuple[Word, ...], targets: tuple[Word, ...] = ()) -> None:
        assigned: list[str] = []
        words: list[Word] = []
        _check_apart(node.children)
        for child in node.children:
            match child.type:
                case "variable_assignment":
                    assigned.append(self._assigned(child))
                case "file_redirect":
                    inner, rest = self._redirects(iter([child]))
                    targets += inner
                    words += rest
                case "command_name":
                    words.append(self._word(_only(child)))
                case _:
                    words.append(self._word(child))
        if words and words[0] in _KEYWORDS:
            raise Unclear("a keyword as a command")
        self._found.append(Simple((*words, *more), tuple(assigned), targets))

    def _assigned(self, node: Any) -> str:
        name, sign, *value = node.children
        if name.type != "variable_name" or sign.type not in ("=", "+=") or len(value) > 1:
            raise Unclear("an assignment")
        for part in value:
            self._word(part)
        return self._matched(_NAME, name)

    def _word(self, node: Any) -> Word:
        match node.type:
            case "word" | "number" | "extglob_pattern":  # what a `!=` is followed by
                return _unquoted(self._matched(_WORD, node))
            case "raw_string":
                return self._written(node)[1:-1]
            case "string":
                return self._string(node)
            case "concatenation":
                return self._concatenation(node)
            case "simple_expansion" | "expansion":
                self._matched(_PLAIN_EXPANSION, node)
                return None
            case "command_substitution" | "process_substitution":
                self._statement(node)
                return None
        raise Unclear(node.type)

    def _concatenation(self, node: Any) -> Word:
        words = [self._word(child) for child in node.children]
        text = self._written(node)
        if "{" in text and ("," in text or ".." in text):  # one word that becomes several
            return None
        known = [word for word in words if word is not None]
        return "".join(known) if len(known) == len(words) else None

    def _string(self, node: Any) -> Word:
        inner = self._written(node)
        expansions = [child for child in node.children if child.type not in ('"', "string_content")]
        for child in reversed(expansions):
            self._word(child)
            start = child.start_byte - node.start_byte
            inner = inner[:start] + inner[start + child.end_byte - child.start_byte :]
        inner = inner[1:-1]
        plain = _LONE_DOLLAR.sub("", _ESCAPED.sub("", inner))
        if any(sign in plain for sign in '$`"'):
            raise Unclear("a string that the tree reads as plain")
        return None if expansions else re.sub(r'\\([$`"\\])', r"\1", inner)

    def _matched(self, pattern: re.Pattern[str], node: Any) -> str:
        text = self._written(node)
        if not pattern.fullmatch(text) or not text.isascii():
            raise Unclear(text)
        return text

    def _check_one_line(self, nodes: Sequence[Any]) -> None:
        """A line that ends between two words ends the command, whatever the tree makes of it."""
        _check_apart(nodes)
        if any("\n" in self._text[one.end_byte : next_one.start_byte] for one, next_one in pairwise(nodes)):
            raise Unclear("words on two lines")

    def _written(self, node: Any) -> str:
        return self._text[node.start_byte : node.end_byte]


def _unquoted(text: str) -> Word:
    """A bare word: its backslashes taken away; `None` where the shell would expand it."""
    bare = _ESCAPED.sub("", text)
    if text.startswith("#"):
        raise Unclear("a comment")
    if _GLOB.search(bare) or ("{" in bare and ("," in bare or ".." in bare)):
        return None
    return _ESCAPED.sub(r"\1", text)


def _check_gaps(root: Any) -> None:
    """Whatever lies between two leaves is blank: the grammar drops what it calls extras."""
    text, end = root.text, 0
    offset = root.start_byte
    for start, stop in _leaves(root, 0):
        if text[end : start - offset].strip(b" \t\n"):
            raise Unclear("text outside of the tree")
        end = stop - offset
    if text[end:].strip(b" \t\n"):
        raise Unclear("text outside of the tree")


def _leaves(node: Any, depth: int) -> Iterator[tuple[int, int]]:
    if depth > MAX_NESTING:
        raise Unclear("too deep")
    if not node.children or node.type == "string":  # of a string, `_string` sees every character
        yield node.start_byte, node.end_byte
        return
    for child in node.children:
        yield from _leaves(child, depth + 1)


def _check_apart(nodes: Sequence[Any]) -> None:
    """Words that touch are one word to a shell, and `a2>b` writes with no descriptor 2."""
    for one, next_one in pairwise(nodes):
        if one.end_byte == next_one.start_byte:
            is_sign = next_one.type == "file_redirect" and next_one.children[0].type != "file_descriptor"
            if not is_sign:
                raise Unclear("words that touch")


def _operands(node: Any, depth: int) -> Iterator[Any]:
    """What a condition is made of, from left to right."""
    if depth > MAX_NESTING:
        raise Unclear("too deep")
    for child in node.children:
        if child.type in ("unary_expression", "binary_expression"):
            yield from _operands(child, depth + 1)
        else:
            yield child


def _only(node: Any) -> Any:
    if len(node.children) != 1:
        raise Unclear(node.type)
    return node.children[0]
