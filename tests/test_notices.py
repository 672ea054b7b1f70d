"""What the engine says to a model is certain, and says no more than is known."""

from __future__ import annotations

import string

import pytest

from llm_agent import notices

SENTENCES = {name: text for name, text in vars(notices).items() if name.isupper() and isinstance(text, str)}
FIELDS = {
    "NOT_RUN_TOO_MANY_DETACHED": {"running"},
    "PROVIDER_RAISED": {"failure"},
    "PROVIDER_BEHIND_RAISED": {"owner", "failure"},
    "NO_PROVIDER": {"tool", "tags"},
    "BAD_ARGUMENTS": {"problem"},
    "MCP_MEDIA": {"kind", "media_type"},
    "MCP_RESOURCE": {"uri"},
    "MCP_NOT_RUN": {"reason"},
    "MCP_CANCELLED": {"server"},
    "MCP_TIMEOUT": {"server", "seconds"},
    "MCP_GONE": {"reason"},
    "MCP_REFUSED": {"server", "problem"},
    "MCP_UNREADABLE": {"server", "problem"},
    "DENIED_BY_RULE": {"tool", "rule", "unsure", "paths"},
    "DENIED_BY_GRANT": {"tool", "rule", "unsure", "paths"},
    "DENIED_BY_HUMAN": {"tool", "why"},
    "DENIED_ALWAYS": {"tool", "rules", "why"},
    "DENIED_HEADLESS": {"tool", "unsure", "paths"},
    "DENIED_PROMPT_FAILED": {"tool", "problem"},
    "DENIED_EXPIRED": {"tool"},
    "DENIED_REENTERED": {"tool"},
    "DENIED_POLICY_FAILED": {"tool", "failure"},
    "DENIED_PATHS": {"paths"},
    "DENIED_WHY": {"why"},
    "REPAIR_RESULT_LOST": {"outcome"},
    "UNFIT_ARGUMENTS": {"tool", "problems"},
    "NO_SUCH_TOOL": {"tool", "hint", "tools"},
    "OUTPUT_LEFT_OUT": {"count"},
    "SUMMARY_UNREACHABLE": {"count"},
    "TRUNCATED_OUTPUT": {"count"},
    "TRUNCATED_ARGUMENTS": {"count"},
    "ELIDED_RESULT": {"count", "kind"},
    "EXCERPT_STORED": {"elided", "start", "end", "bytes", "file", "digest"},
    "EXCERPT_NOT_STORED": {"elided", "start", "end", "bytes", "digest"},
}


@pytest.mark.parametrize("name", [name for name in SENTENCES if "ABANDONED" in name or "DID_NOT_RUN" in name])
def test_a_call_that_never_left_did_not_run(name: str) -> None:
    """Abandoned is certain, and is never called unknown."""
    assert "did not run" in SENTENCES[name]
    assert "unknown" not in SENTENCES[name]


@pytest.mark.parametrize("name", [name for name in SENTENCES if "UNKNOWN" in name or name == "NO_RESULT"])
def test_a_call_that_left_is_unknown_and_never_called_failed(name: str) -> None:
    """Nobody knows whether it took effect; that is all that is said."""
    assert "unknown" in SENTENCES[name]
    assert "did not run" not in SENTENCES[name]
    assert "fail" not in SENTENCES[name].lower()


@pytest.mark.parametrize("name", SENTENCES)
def test_every_sentence_names_the_fields_it_is_given(name: str) -> None:
    """A field that nobody fills would reach the model in braces."""
    fields = {field for _, field, _, _ in string.Formatter().parse(SENTENCES[name]) if field is not None}

    assert fields == FIELDS.get(name, set())


def test_no_two_sentences_are_the_same() -> None:
    """Each tells its own situation."""
    assert len(set(SENTENCES.values())) == len(SENTENCES)
