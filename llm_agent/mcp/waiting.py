"""Waiting for the portal from another thread: always with a clock, and with a cancel where there is one."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from llm_agent.call_context import current_call
from llm_agent.cancel import when_set
from llm_agent.errors import McpError
from llm_agent.watchdog import bounded

Answer = TypeVar("Answer")


class NobodyWaits(McpError):
    """The call this thread executes was cancelled."""


def result_of(future: Future[Answer], timeout: float | None) -> Answer:
    """Wait for *future* on this thread; it is left as it is when the wait ends before it.

    Raises:
        TimeoutError: it took longer than *timeout* seconds.
        NobodyWaits: `current_call()` was cancelled meanwhile.
        Whatever the future holds.
    """
    if future.done():
        return future.result()
    context = current_call()
    cancelled = threading.Event() if context is None else context.cancelled
    wakes: SimpleQueue[None] = SimpleQueue()
    future.add_done_callback(lambda _: wakes.put(None))
    forget = when_set(cancelled, lambda: wakes.put(None)) if context is not None else None
    try:
        wakes.get(timeout=bounded(timeout))
    except Empty:
        pass
    finally:
        if forget is not None:
            forget()
    if future.done():
        return future.result()
    if cancelled.is_set():
        raise NobodyWaits("the call was cancelled")
    raise TimeoutError
