"""What every test can ask for: a run checked in full, servers that are closed, no thread left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from llm_agent import testing
from llm_agent.testing import FakeServer, FinishedRun

# Time is never what a property is about, and a busy machine is not a failure.
settings.register_profile("engine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("engine")


@pytest.fixture
def finished() -> Callable[..., FinishedRun]:
    """Wait for a run and assert what holds for every run; see `testing.finished`."""
    return testing.finished


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    """Start fake servers (`FakeServer`'s arguments) that are closed when the test is over."""
    servers: list[FakeServer] = []

    def start(*args: object, **options: object) -> FakeServer:
        servers.append(FakeServer(*args, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def no_wait() -> Iterator[None]:
    """Retries wait 0 s."""
    with testing.no_backoff():
        yield


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Every thread that the test starts ends within 5 s of its end."""
    before = set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:
        thread.join(5)
    left = [thread.name for thread in started if thread.is_alive()]
    assert left == []
