"""How one text became another: readable, bounded, and true."""

from __future__ import annotations

import re
from time import monotonic

from hypothesis import given
from hypothesis import strategies as st

from llm_agent.line_diff import line_diff

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c"]), max_size=12).map("".join)


def patched(before: str, diff: str) -> str:
    """Apply a diff, as `patch` would."""
    old = re.findall(r"[^\n]*\n|[^\n]+", before)
    new: list[str] = []
    at, was_removed = 0, False
    for line in diff.split("\n") if diff else []:
        place = re.match(r"@@ -(\d+)(?:,(\d+))?", line)
        if place is not None:
            start = int(place[1]) - (place[2] != "0")
            new += old[at:start]
            at = start
        elif line.startswith("\\"):
            if not was_removed:
                new[-1] = new[-1].removesuffix("\n")
        else:
            was_removed = line.startswith("-")
            new += [] if was_removed else [f"{line[1:]}\n"]
            at += not line.startswith("+")
    return "".join(new + old[at:])


@given(before=TEXTS, after=TEXTS)
def test_a_diff_leads_from_the_one_text_to_the_other(before: str, after: str) -> None:
    """Applied to the old text it gives the new one; equal texts have none."""
    diff = line_diff(before, after)

    assert patched(before, diff) == after
    assert (diff == "") == (before == after)


def test_lines_have_their_real_numbers() -> None:
    """However much is the same before."""
    before = "".join(f"{number}\n" for number in range(1, 1001))

    assert line_diff(before, before.replace("900\n", "")).startswith("@@ -897,7 +897,6 @@\n 897\n")


def test_texts_with_nothing_in_common_take_no_time() -> None:
    """What would be compared by the square of its size is told as removed and added."""
    started = monotonic()

    diff = line_diff("a\nb\n" * 50_000, "c\nd\n" * 50_000)

    assert monotonic() - started < 5
    assert diff.startswith("@@ -1,100000 +1,100000 @@\n-a\n-b\n")
    assert diff.endswith("[... 199801 more lines of this diff]")


def test_long_lines_are_cut() -> None:
    """With how much is missing."""
    assert line_diff("", "x" * 600 + "\n") == "@@ -0,0 +1 @@\n+" + "x" * 499 + "[... 101 more]"
