"""The scripted backend keeps the port's contract and plays what is written."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.errors import BackendError, ConfigError
from llm_agent.messages import Delta, Message, ToolRequest, Usage
from llm_agent.ports import Backend, CancellableStream, CompletionRequest
from llm_agent.testing import Gate, ScriptedBackend, call, hang

REQUEST = CompletionRequest(messages=(Message.user("go"),))


def text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def calls_of(deltas: Iterable[Delta]) -> list[ToolRequest]:
    return [request for delta in deltas for request in delta.tool_calls]


def test_it_is_a_backend_as_the_port_says() -> None:
    """The port's own protocol recognises the backend and its stream."""
    backend = ScriptedBackend(["Hi"], model="m1", max_tokens=7)

    assert isinstance(backend, Backend)
    assert isinstance(backend.stream(REQUEST), CancellableStream)
    assert (backend.model, backend.max_tokens) == ("m1", 7)


@given(st.text())
def test_a_text_is_streamed_in_a_few_pieces_that_join_up_to_it(text: str) -> None:
    """No text is lost, none is empty, and the end says stop."""
    *pieces, end = ScriptedBackend([text]).stream(REQUEST)

    assert text_of(pieces) == text
    assert len(pieces) <= 4
    assert all(piece.text for piece in pieces)
    assert end == Delta(finish_reason="stop")


def test_the_same_text_is_always_cut_the_same_way() -> None:
    """Two plays of one script give equal deltas."""
    backend = ScriptedBackend(["Hello, world", "Hello, world"])

    assert list(backend.stream(REQUEST)) == list(backend.stream(REQUEST))


def test_calls_get_ids_that_are_unique_within_the_backend() -> None:
    """A call without an id gets a fresh one in every turn; a given one is kept."""
    backend = ScriptedBackend([call("add", a=1, b=2), [call("add", _id="mine"), call("add")]])

    first, second = calls_of(backend.stream(REQUEST)), calls_of(backend.stream(REQUEST))

    assert first == [ToolRequest("call_1", "add", '{"a":1,"b":2}')]
    assert [request.id for request in second] == ["mine", "call_2"]


def test_a_turn_may_hold_text_and_calls() -> None:
    """A list is one turn, and ends with the reason tool_calls when it asks for one."""
    deltas = list(ScriptedBackend([["Let me see. ", call("look")]]).stream(REQUEST))

    assert text_of(deltas) == "Let me see. "
    assert [request.name for request in calls_of(deltas)] == ["look"]
    assert deltas[-1].finish_reason == "tool_calls"


def test_arguments_can_be_written_verbatim() -> None:
    """A model that does not write JSON can be scripted."""
    assert call("x", _arguments='{"a":').arguments == '{"a":'


def test_deltas_are_streamed_exactly_as_written() -> None:
    """Where a delta is written, no finish reason is invented."""
    written = [Delta("a", reasoning="hm"), Delta(usage=Usage(prompt_tokens=3))]

    assert list(ScriptedBackend([written]).stream(REQUEST)) == written


def test_an_exception_is_raised_by_the_attempt() -> None:
    """An entry that is an exception fails the attempt at once, and only that one."""
    backend = ScriptedBackend([BackendError("down", "connection"), "up"])

    with pytest.raises(BackendError, match="down"):
        backend.stream(REQUEST)
    assert text_of(backend.stream(REQUEST)) == "up"


def test_an_exception_within_a_turn_breaks_it_off_there() -> None:
    """What stands before the exception is streamed."""
    stream = iter(ScriptedBackend([["half", BackendError("cut", "connection")]]).stream(REQUEST))
    seen: list[Delta] = []

    with pytest.raises(BackendError, match="cut"):
        seen.extend(stream)
    assert text_of(seen) == "half"


def test_a_callable_writes_its_entry_from_the_request() -> None:
    """The callable sees the request, and what it returns is played."""
    backend = ScriptedBackend([lambda request: request.messages[-1].text.upper()])

    assert text_of(backend.stream(REQUEST)) == "GO"


def test_a_callable_in_place_of_the_script_writes_every_entry() -> None:
    """It is asked once per attempt, for ever."""
    turns = itertools.count(1)
    backend = ScriptedBackend(lambda request: f"answer {next(turns)}")

    assert [text_of(backend.stream(REQUEST)) for _ in range(3)] == ["answer 1", "answer 2", "answer 3"]


def test_requests_are_kept_in_order() -> None:
    """Every attempt is remembered, the refused ones too."""
    backend = ScriptedBackend([])

    with pytest.raises(BackendError):
        backend.stream(REQUEST)
    assert backend.requests == [REQUEST]


def test_an_exhausted_script_fails_in_a_way_that_is_not_retried() -> None:
    """The error says how far the script went, and its class and status abort the chain."""
    backend = ScriptedBackend(["only"])
    backend.stream(REQUEST)

    with pytest.raises(BackendError, match="script exhausted after 1") as caught:
        backend.stream(REQUEST)
    assert (caught.value.error_class, caught.value.status) == ("http", 400)


@pytest.mark.parametrize("script", ["text", Gate(), call("x"), Delta("x")])
def test_a_script_that_is_one_entry_is_refused(script: object) -> None:
    """A forgotten pair of brackets is said, not played letter by letter."""
    with pytest.raises(ConfigError, match="must be a list of entries"):
        ScriptedBackend(script)  # type: ignore[arg-type]


def test_something_unstreamable_in_a_turn_is_named() -> None:
    """The error says what stood in the script."""
    with pytest.raises(ConfigError, match="cannot stream a int: 7"):
        list(ScriptedBackend(iter([["a", 7]])).stream(REQUEST))  # type: ignore[list-item]  # seen when it is its turn


def test_a_gate_holds_the_stream_until_it_opens() -> None:
    """The text before the gate arrives, the text behind it only after `open`."""
    gate = Gate("wait... ")
    seen: list[Delta] = []
    stream = ScriptedBackend([[gate, "done"]]).stream(REQUEST)
    reader = threading.Thread(target=lambda: seen.extend(stream))

    reader.start()
    gate.wait_entered()
    before = text_of(seen)
    gate.open()
    reader.join(5)

    assert before == "wait... "
    assert text_of(seen) == "wait... done"


def test_a_cancel_wakes_a_reader_at_a_gate(no_thread_left: None) -> None:
    """`cancel` from another thread ends a hanging stream with an error."""
    gate = hang("thinking")
    stream = ScriptedBackend([gate]).stream(REQUEST)
    failures: list[BaseException] = []

    def read() -> None:
        try:
            list(stream)
        except BackendError as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    gate.wait_entered()
    stream.cancel()
    reader.join(5)

    assert not reader.is_alive()
    assert [str(failure) for failure in failures] == ["the scripted stream was cancelled"]


def test_a_cancel_before_the_gate_is_not_forgotten() -> None:
    """A stream that was cancelled while it streamed does not block at a later gate."""
    stream = ScriptedBackend([["a", hang()]]).stream(REQUEST)
    reader = iter(stream)
    next(reader)

    stream.cancel()

    with pytest.raises(BackendError, match="cancelled"):
        next(reader)


def test_an_opened_gate_opens_no_other() -> None:
    """Behind a gate that let the stream pass, the next one still holds it."""
    first, second = Gate(), Gate()
    first.open()
    seen: list[Delta] = []
    stream = ScriptedBackend([[first, second, "done"]]).stream(REQUEST)
    reader = threading.Thread(target=lambda: seen.extend(stream))

    reader.start()
    second.wait_entered()
    reader.join(0.05)
    before = list(seen)
    second.open()
    reader.join(5)

    assert before == []
    assert text_of(seen) == "done"


def test_several_threads_share_one_script_without_losing_an_entry() -> None:
    """Each entry is served exactly once, whoever asks."""
    backend = ScriptedBackend([f"<{n}>" for n in range(200)])
    seen: list[str] = []
    threads = [
        threading.Thread(target=lambda: seen.extend(text_of(backend.stream(REQUEST)) for _ in range(25)))
        for _ in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    assert sorted(seen) == sorted(f"<{n}>" for n in range(200))
    assert len(backend.requests) == 200


@pytest.mark.parametrize("entry", [3, ["text", 3], None, object()])
def test_an_entry_that_no_attempt_can_play_is_refused_when_it_is_written(entry: object) -> None:
    """By its number, and not as a failed attempt in the middle of a run."""
    with pytest.raises(ConfigError, match="entry 2 must be a text"):
        ScriptedBackend(["fine", entry])  # type: ignore[list-item]  # the slip under test
