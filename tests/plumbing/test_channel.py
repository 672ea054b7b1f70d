"""The event log: replay for everybody, at any pace, from any position."""

from __future__ import annotations

import threading

import pytest

from llm_agent.channel import EventChannel, EventReader
from llm_agent.events import Event, Log, RunCompleted, Token

WAIT = 5.0


def channel_with(count: int) -> EventChannel:
    channel = EventChannel("run-1")
    for number in range(count):
        channel.publish(Log(data=str(number)))
    return channel


def collect(reader: EventReader) -> tuple[threading.Thread, list[Event]]:
    seen: list[Event] = []
    thread = threading.Thread(target=lambda: seen.extend(reader), daemon=True)
    thread.start()
    return thread, seen


def close(channel: EventChannel) -> bool:
    return channel.close(RunCompleted(final=""), lambda: None)


def test_published_events_are_stamped_copies() -> None:
    """The caller's object stays untouched; the copy has the run's id and the next seq."""
    channel = EventChannel("run-1")
    event = Log(data="x")

    channel.publish(event)
    stamped = next(channel.reader(None, WAIT))

    assert (event.run_id, event.seq) == (None, None)
    assert (stamped.run_id, stamped.seq) == ("run-1", 0)


def test_every_reader_replays_the_whole_run() -> None:
    """Early, late and after the end: each reader sees every event once and in order."""
    channel = EventChannel("run-1")
    early_thread, early = collect(channel.reader(None, None))
    for number in range(100):
        channel.publish_token(str(number), 1, 1)
    late_thread, late = collect(channel.reader(None, None))
    close(channel)
    early_thread.join(WAIT)
    late_thread.join(WAIT)

    afterwards = list(channel.reader(None, None))

    assert early == late == afterwards
    assert [event.seq for event in early] == list(range(101))


def test_after_starts_behind_the_given_seq() -> None:
    """A reconnecting browser passes the last seq it has seen."""
    channel = channel_with(5)
    close(channel)

    assert [event.seq for event in channel.reader(3, WAIT)] == [4, 5]


def test_after_beyond_the_end_of_a_finished_run_is_empty() -> None:
    """Having seen everything is no error."""
    channel = channel_with(1)
    close(channel)

    assert list(channel.reader(99, WAIT)) == []


def test_a_timeout_leaves_the_reader_usable() -> None:
    """A consumer may do something else and come back."""
    channel = channel_with(1)
    reader = channel.reader(0, 0.01)
    with pytest.raises(TimeoutError):
        next(reader)

    channel.publish(Log(data="later"))

    assert next(reader).seq == 1


def test_closing_a_reader_ends_a_blocked_iteration() -> None:
    """Any thread may end a reader that waits."""
    channel = EventChannel("run-1")
    reader = channel.reader(None, None)
    thread, seen = collect(reader)

    reader.close()
    thread.join(WAIT)

    assert not thread.is_alive()
    assert seen == []


def test_closing_a_reader_ends_it_although_events_are_left() -> None:
    """A closed reader says nothing more, whatever the run has said."""
    reader = channel_with(3).reader(None, WAIT)
    next(reader)

    reader.close()

    assert list(reader) == []


def test_nothing_is_published_after_the_close() -> None:
    """What comes late is dropped, and the caller is told."""
    channel = channel_with(0)
    close(channel)

    assert channel.publish(Log(data="late")) is False
    assert channel.publish_token("late", 1, 1) is False
    assert close(channel) is False
    assert [event.kind for event in channel.reader(None, WAIT)] == ["run-completed"]


def test_whoever_sees_the_terminal_finds_it_settled() -> None:
    """The result is there before the terminal can be read."""
    channel = EventChannel("run-1")
    settled: list[str] = []
    found: list[bool] = []

    def read() -> None:
        found.extend(bool(settled) for event in channel.reader(None, None) if event.is_terminal)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    channel.close(RunCompleted(final=""), lambda: settled.append("done"))
    thread.join(WAIT)

    assert found == [True]


def test_publishing_to_nobody_wakes_nobody() -> None:
    """A reader that is not parked gets no wake token, however much is published."""
    channel = channel_with(0)
    reader = channel.reader(None, WAIT)

    for number in range(50):
        channel.publish_token(str(number), 1, 1)

    assert reader._wakes.empty()


def test_an_abandoned_reader_costs_nothing() -> None:
    """A consumer that breaks out leaves nothing behind in the channel."""
    channel = channel_with(3)
    for _ in channel.reader(None, WAIT):
        break

    channel.publish(Log(data="x"))

    assert channel._parked == []


@pytest.mark.parametrize("_", range(25))
def test_many_threads_publish_without_gaps(_: int) -> None:
    """Four producers and three readers: one order, contiguous, the same for all."""
    channel = EventChannel("run-1")
    readers = [collect(channel.reader(None, None)) for _ in range(3)]

    def produce() -> None:
        for _ in range(50):
            channel.publish_token("x", 1, 1)

    producers = [threading.Thread(target=produce, daemon=True) for _ in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(WAIT)
    close(channel)
    for thread, _seen in readers:
        thread.join(WAIT)

    assert all(seen == readers[0][1] for _, seen in readers)
    assert [event.seq for event in readers[0][1]] == list(range(201))
    assert sum(isinstance(event, Token) for event in readers[0][1]) == 200
