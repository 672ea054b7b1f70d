"""What the demo plays: the small project, and the two scripted models that repair it.

Only texts. Each entry of a script is the answer to one request, in the order of the story; the
faults are in the answers, as a network and a vendor would make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from llm_agent import ToolRequest, Usage
from llm_agent.testing import Answer, call, error, reply

TASK: Final = "The test of this project fails. Find out why, repair it, and prove it."
SYSTEM_PROMPT: Final = "You are a coding assistant. Use the tools; look before you change anything."

BUG: Final = "return price - percent"
REPAIR: Final = "return price * (100 - percent) / 100"

PROJECT: Final = {
    "prices.py": f'''\
def discounted(price: float, percent: float) -> float:
    """Return *price* with so many percent taken off."""
    {BUG}
''',
    "test_prices.py": """\
import unittest

from prices import discounted


class DiscountTest(unittest.TestCase):
    def test_ten_percent_off_two_hundred(self) -> None:
        self.assertEqual(180, discounted(200, 10))
""",
    "shop.py": '''\
"""A shop that stays open: this program never ends."""

import time

while True:
    time.sleep(1)
''',
}

# Seconds between two pieces of text: a pace one can read along with.
_PACE: Final = 0.025
# How many events of a cut stream arrive: enough text to see it being taken back.
_EVENTS_BEFORE_CUT: Final = 8


def write_project(folder: Path) -> None:
    """Write the project with its bug into *folder*, which does not exist yet."""
    folder.mkdir()
    for name, text in PROJECT.items():
        (folder / name).write_text(text)


def primary_script() -> Sequence[Answer]:
    """What the first backend answers, request by request, to both processes."""
    return [
        # The connection breaks in mid-sentence; the same request is sent again.
        _says("I am quite sure that the discount is rounded in the wrong place, so").cut(
            after_events=_EVENTS_BEFORE_CUT
        ),
        _says("Let me see the test fail first.", call("run_tests"), tokens=210),
        _says(
            "It takes off 10, not 10 percent. Is the shop using it, too?",
            call("run_script", path="shop.py"),
            tokens=318,
        ),
        _says("That program does not end. I read the code instead.", call("read_file", path="prices.py"), tokens=371),
        error(429, "You have used up your quota for today.", code="rate_limit_exceeded", kind="requests"),
        # From here on the second process asks.
        _says(
            "I cannot know whether my edit was made, so I look before I repeat it.",
            call("read_file", path="prices.py"),
            tokens=502,
        ),
        _says("It was made. Now the proof.", call("run_tests"), tokens=560),
        _says("Repaired: the discount is a percentage of the price. The test passes.", tokens=604),
    ]


def fallback_script() -> Sequence[Answer]:
    """What the second backend answers, when the first one refuses."""
    edit = call("edit_file", path="prices.py", old=BUG, new=REPAIR)
    return [_says("The percentage must be taken of the price.", edit, tokens=431)]


def _says(text: str, *calls: ToolRequest, tokens: int = 0) -> Answer:
    """Return a streamed answer, word by word; *tokens* is what its prompt is billed."""
    words = [word + " " for word in text.split(" ")]
    words[-1] = words[-1].rstrip()
    usage = Usage(prompt_tokens=tokens, completion_tokens=len(words) + 12 * len(calls))
    return reply(text, calls=calls, pieces=words, usage=usage, every=_PACE)
