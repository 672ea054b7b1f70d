"""The waits of a compaction are real here, and end when nobody wants the answer any more."""

from __future__ import annotations

import threading

import pytest
from compacting import compactor, dialogue

from llm_agent.errors import BackendError
from llm_agent.testing import ScriptedBackend

pytestmark = pytest.mark.usefixtures("no_thread_left")


def test_a_cancel_ends_the_wait_between_attempts() -> None:
    """A server that asks for a minute does not hold a cancelled run."""
    cancelled = threading.Event()

    def fail(_: object) -> BackendError:
        threading.Timer(0.05, cancelled.set).start()
        return BackendError("busy", "http", 503, retry_after=60)

    backend = ScriptedBackend([fail, "never asked"])
    result = compactor(backend).compact(dialogue(9), cancelled=cancelled)

    assert (result.dropped, len(backend.requests)) == (0, 1)


def test_a_next_summariser_is_not_kept_waiting() -> None:
    """A server that asks for longer than the cap is left for the next one, without a wait."""
    busy = ScriptedBackend([BackendError("busy", "http", 503, retry_after=60)])

    result = compactor([busy, ScriptedBackend(["notes"])]).compact(dialogue(9))

    assert (result.fallback, len(busy.requests)) == (False, 1)


def test_a_refusal_is_trimmed_without_a_wait() -> None:
    """Nobody waits for an account to be unlocked."""
    refused = ScriptedBackend([BackendError("bad key", "http", 401)])

    assert compactor(refused).compact(dialogue(9)).fallback
