"""A gate stops whoever comes, and tells who came."""

from __future__ import annotations

import threading

import pytest

from llm_agent.testing import Gate, hang


def test_a_gate_nobody_enters_says_so() -> None:
    """Waiting for an arrival that does not come ends in an error that counts."""
    with pytest.raises(TimeoutError, match=r"expected 1 arrivals within 0 s, got 0"):
        Gate().wait_entered(timeout=0)


def test_arrivals_are_counted() -> None:
    """A second arrival can be waited for."""
    gate = Gate()
    gate.open()
    for _ in range(2):
        gate.wait()

    gate.wait_entered(times=2)

    assert gate.arrivals == 2


def test_opening_lets_everybody_pass_for_good() -> None:
    """Those who wait and those who come later pass; opening twice is the same."""
    gate = Gate()
    waiting = threading.Thread(target=gate.wait)
    waiting.start()
    gate.wait_entered()

    gate.open()
    gate.open()
    waiting.join(5)

    assert not waiting.is_alive()
    assert gate.wait(0)
    assert gate.is_open


def test_waiting_can_be_given_up() -> None:
    """A timeout says False and leaves nothing behind at the gate."""
    gate = Gate()

    assert not gate.wait(0)
    assert gate._wakers == []


def test_hang_is_a_gate_with_a_text() -> None:
    """The text is what comes before the silence."""
    assert hang("partial").text == "partial"
    assert not hang().is_open
