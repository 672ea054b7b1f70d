"""`OpenAIBackend`: its options, the request it sends, and what it keeps to itself."""

from __future__ import annotations

import json
import logging
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from raw_server import HELLO, REQUEST, Collected, RawServer, answering, backend_for, complete, framed, sse

from llm_agent.backends.openai import OPENAI_URL, OpenAIBackend
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, ToolRequest
from llm_agent.ports import Backend, CompletionRequest

Serve = Callable[..., RawServer]
KEY = "sk-very-secret-key-1234567890"
TOOLS = ({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},)


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"model": "  "},
        {"model": None},
        {"base_url": "localhost:8080/v1"},
        {"base_url": "ftp://x.test"},
        {"base_url": "http://"},
        {"base_url": "http://x.test:port/"},
        {"base_url": None},
        {"base_url": "http://user:hunter2-secret@x.test/v1"},
        {"api_key": 7},
        {"api_key": "sk-secret\nX-Evil: 1"},
        {"api_key": "sk-sécret-\u20ac"},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"max_tokens": 1.5},
        {"temperature": "hot"},
        {"connect_timeout": 0},
        {"read_timeout": -1},
        {"retry_after_cap": -1},
        {"retry_after_cap": float("nan")},
        {"max_tokens_field": "max"},
        {"null_content": None},
        {"extra_body": [1]},
        {"headers": ["x"]},
        {"headers": {"X-Secret": "sk-secret\r\n"}},
        {"headers": {"X Y": "sk-secret"}},
        {"headers": {"X-Count": 7}},
        {"http": "session"},
        {"resolver": "resolver"},
    ],
    ids=repr,
)
def test_an_option_that_cannot_work_is_refused_by_name(options: dict[str, Any]) -> None:
    """In the caller's thread, and without showing what may be secret."""
    with pytest.raises(ConfigError) as caught:
        OpenAIBackend(**{"model": "m", **options})

    shown = "".join(traceback.format_exception(caught.value))
    assert next(iter(options)) in str(caught.value)
    assert "secret" not in shown.lower().replace("x-secret", "").split("configerror", 1)[1]


def test_a_backend_is_what_the_port_asks_for() -> None:
    """Model, cap, stream."""
    backend = OpenAIBackend("m", max_tokens=9)

    assert isinstance(backend, Backend)
    assert (backend.model, backend.max_tokens, backend.retry_after_cap) == ("m", 9, 120.0)


@pytest.mark.parametrize(
    ("base_url", "target"),
    [
        ("{}/v1", "/v1/chat/completions"),
        ("{}/v1/", "/v1/chat/completions"),
        ("{}", "/chat/completions"),
        ("{}/v1/chat/completions", "/v1/chat/completions"),
        ("{}/dep?api-version=1", "/dep/chat/completions?api-version=1"),
    ],
)
def test_the_address_is_built_from_the_base(serve: Serve, base_url: str, target: str) -> None:
    """A query stays a query."""
    server = serve(answering())

    complete(server, base_url=base_url.format(f"http://127.0.0.1:{server.port}"))

    assert server.requests[0][0] == target


def sent(serve: Serve, request: CompletionRequest = REQUEST, **options: Any) -> Any:
    server = serve(answering())
    assert Collected(backend_for(server, **options).stream(request)).error is None
    return json.loads(server.requests[0][2])


def test_the_plain_request(serve: Serve) -> None:
    """Nothing is sent that was not asked for."""
    assert sent(serve) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_options_are_sent_under_their_names(serve: Serve) -> None:
    """And `extra_body`, then the request's `extra`, have the last word."""
    request = CompletionRequest(
        messages=REQUEST.messages, tools=TOOLS, tool_choice="required", extra={"seed": 2, "top_p": 1}
    )

    body = sent(
        serve,
        request,
        max_tokens=5,
        temperature=0,
        include_usage=False,
        max_tokens_field="max_completion_tokens",
        extra_body={"seed": 1, "model": "other"},
    )

    del body["messages"], body["stream"]
    assert body == {
        "model": "other",
        "max_completion_tokens": 5,
        "temperature": 0,
        "seed": 2,
        "top_p": 1,
        "tools": list(TOOLS),
        "tool_choice": "required",
    }


def test_a_choice_of_tools_without_tools_is_left_out(serve: Serve) -> None:
    """Servers refuse it."""
    assert "tool_choice" not in sent(serve, CompletionRequest(messages=REQUEST.messages, tool_choice="auto"))


@pytest.mark.parametrize(
    ("null_content", "expected"),
    [("null", {"content": None}), ("empty", {"content": ""}), ("omit", {})],
)
def test_the_missing_text_of_a_turn_of_calls_is_sent_as_asked(
    serve: Serve, null_content: str, expected: dict[str, Any]
) -> None:
    """Some servers refuse null, some the empty text."""
    calls = Message.assistant(tool_calls=[ToolRequest("A", "f", '{"x": "\\"content\\":null"}')])
    messages = (calls, Message.assistant("text"), Message.tool("A", '"content":null'))

    first, second, third = sent(serve, CompletionRequest(messages=messages), null_content=null_content)["messages"]

    tool_calls = [call.to_wire() for call in calls.tool_calls]
    assert first == {"role": "assistant", "tool_calls": tool_calls, **expected}
    assert (second["content"], third["content"]) == ("text", '"content":null')


def test_an_option_that_only_the_slow_encoder_knows_is_sent(serve: Serve) -> None:
    """Wide integers and lone surrogates do not fail the request."""
    request = CompletionRequest(messages=REQUEST.messages, tools=TOOLS)

    body = sent(serve, request, extra_body={"seed": 2**70, "note": "\ud800"})

    assert (body["seed"], body["note"]) == (2**70, "\ufffd")
    assert (body["messages"], body["tools"]) == ([{"role": "user", "content": "hi"}], list(TOOLS))


def test_old_messages_are_not_serialised_again() -> None:
    """Their bytes are made once and copied into each request."""
    message = Message.user("hi")

    assert message.wire_json is message.wire_json
    assert orjson.loads(message.wire_json) == message.to_wire()


@pytest.mark.parametrize(
    ("base_url", "environment", "key"),
    [
        (OPENAI_URL, {"OPENAI_API_KEY": "sk-environment"}, "sk-environment"),
        (OPENAI_URL + "/", {"OPENAI_API_KEY": "sk-environment\n"}, "sk-environment"),
        ("http://x.test/v1", {"OPENAI_API_KEY": "sk-environment"}, ""),
        ("http://x.test/v1", {"OPENAI_API_KEY": "sk-own", "OPENAI_BASE_URL": "http://x.test/v1/"}, "sk-own"),
        ("http://y.test/v1", {"OPENAI_API_KEY": "sk-own", "OPENAI_BASE_URL": "http://x.test/v1"}, ""),
        (OPENAI_URL, {}, ""),
    ],
)  # fmt: skip
def test_the_key_of_the_environment_goes_to_its_own_address_only(
    monkeypatch: pytest.MonkeyPatch, base_url: str, environment: dict[str, str], key: str
) -> None:
    """No other host ever receives it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert OpenAIBackend("m", base_url=base_url)._key() == key


def test_a_key_read_from_a_file_may_end_in_a_line_end(serve: Serve) -> None:
    """White space around it is no part of it."""
    server = serve(answering())

    complete(server, api_key="sk-from-file\n")

    assert server.requests[0][1]["authorization"] == "Bearer sk-from-file"


def test_streams_prepared_together_keep_their_own_requests(serve: Serve) -> None:
    """What a second one asks does not change the first."""
    server = serve(answering())
    backend = backend_for(server)
    streams = [backend.stream(CompletionRequest(messages=(Message.user(text),))) for text in ("first", "second")]

    for stream in streams:
        Collected(stream)

    assert [json.loads(body)["messages"][0]["content"] for _, _, body in server.requests] == ["first", "second"]


def test_a_backend_cannot_be_changed() -> None:
    """Threads share it: another option is another backend."""
    backend = OpenAIBackend("m")

    with pytest.raises(AttributeError):
        backend.temperature = 1.0  # type: ignore[misc]


def test_a_header_of_the_users_goes_before_the_key(serve: Serve) -> None:
    """In any case of letters; other headers come beside ours."""
    server = serve(answering())

    complete(server, headers={"authorization": "Custom xyz", "X-Title": "demo", "user-agent": "mine"})

    headers = server.requests[0][1]
    assert (headers["authorization"], headers["x-title"], headers["user-agent"]) == ("Custom xyz", "demo", "mine")


ECHOES = {
    "error body": (framed(b'{"error": {"message": "bad key %s"}}' % KEY.encode(), "length", status=401)),
    "plain body": (framed(KEY.encode() * 2, "length", status=500)),
    "in the stream": (framed(sse({"error": {"message": f"bad key {KEY}", "code": 401}}), "chunked")),
    "as an event": (framed(f"event: error\ndata: {KEY}\n\n".encode(), "chunked")),
    "not json": (framed(f"data: {KEY}\n\n".encode(), "chunked")),
    "as a page": (framed(f"<html>{KEY}".encode(), "close")),
    "as text": (framed(f"{KEY}\n\n".encode(), "close")),
    "as a document": (framed(json.dumps({"message": KEY}).encode(), "length")),
    "status line": f"HTTP/1.1 {KEY}\r\n\r\n".encode(),
    "no http": f"{KEY}\r\n\r\n".encode(),
    "chunk size": f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{KEY}\r\n".encode(),
    "redirect": framed(b"", "length", status=302, headers={"Location": f"https://x.test/?key={KEY}"}),
    "cut by the limit": framed(b"x" * 1990 + KEY.encode(), "length", status=500),
}


@pytest.mark.parametrize("place", ["api_key", "headers", "query"])
@pytest.mark.parametrize("echo", ECHOES)
def test_an_echoed_key_shows_nowhere(serve: Serve, caplog: pytest.LogCaptureFixture, echo: str, place: str) -> None:
    """Not in the error, its traceback, its body, its repr, or any log."""
    server = serve(lambda peer: peer.send(ECHOES[echo]))
    options: dict[str, dict[str, Any]] = {
        "api_key": {"api_key": KEY},
        "headers": {"api_key": "", "headers": {"Authorization": f"Bearer {KEY}", "X-Other": KEY}},
        "query": {"api_key": "", "base_url": f"{server.url}?key={KEY}"},
    }
    backend = backend_for(server, **options[place])
    if place != "query":  # urllib3 writes the address it asks to its debug log
        caplog.set_level(logging.DEBUG)

    error = Collected(backend.stream(REQUEST)).error

    assert error is not None
    shown = "".join(traceback.format_exception(error)) + repr(
        attrs.asdict(error) if attrs.has(type(error)) else vars(error)
    )
    assert KEY[:12] not in shown
    assert KEY not in caplog.text
    assert KEY not in repr(backend) + str(backend) + repr(backend.stream(REQUEST))


def test_a_refusal_without_a_key_says_how_to_give_one(serve: Serve) -> None:
    """Only where none was sent."""
    server = serve(answering(b"no", "length", status=401))

    assert "api_key=" in str(complete(server, api_key="").error)
    assert "api_key=" not in str(complete(server).error)


def test_one_backend_serves_many_threads(serve: Serve) -> None:
    """Each gets its own answer, with its own tools."""
    server = serve(answering())
    backend = backend_for(server)
    requests = [
        CompletionRequest(messages=(Message.user(str(number)),), tools=({**TOOLS[0], "number": number},))
        for number in range(16)
    ]
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda request=request: texts.append(Collected(backend.stream(request)).text))
        for request in requests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert texts == ["Hello"] * 16
    pairs = [json.loads(body) for _, _, body in server.requests]
    assert all(pair["messages"][0]["content"] == str(pair["tools"][0]["number"]) for pair in pairs)


CAPTURED = Path(__file__).resolve().parents[3] / "shared" / "counterparts" / "captured"


@pytest.mark.parametrize(
    "name", ["lcp-chat", "lcp-tools", "llmock-tools", "ls-chat", "ls-tools", "xl-tools", "kcpp-chat"]
)
def test_captured_answers_of_real_servers_are_whole(serve: Serve, name: str) -> None:
    """llama.cpp in three dresses, KoboldCpp, a mock: text or calls, and a finish reason."""
    path = CAPTURED / f"{name}.sse"
    if not path.exists():
        pytest.skip("the captured answers are not beside the project")
    body = path.read_bytes().split(b"\r\n\r\n", 1)[-1] if name == "kcpp-chat" else path.read_bytes()

    collected = complete(serve(answering(body, "close")))

    assert collected.error is None
    assert collected.finish_reason
    assert collected.text or collected.calls


@pytest.mark.parametrize("name", ["aimock-cut", "aimock-drop", "ls-killed"])
def test_captured_answers_that_were_cut_are_broken_connections(serve: Serve, name: str) -> None:
    """Killed servers and dropped streams never pass for answers.

    (llama-cpp-python ends an interrupted one with `[DONE]`: nothing tells that from a whole one.)
    """
    path = CAPTURED / f"{name}.sse"
    if not path.exists():
        pytest.skip("the captured answers are not beside the project")

    collected = complete(serve(answering(path.read_bytes(), "close")))

    assert collected.error is not None
    assert collected.error.error_class == "connection"


def test_hello_is_what_the_tests_think_it_is(serve: Serve) -> None:
    """The answer most tests are given."""
    assert complete(serve(answering(HELLO))).text == "Hello"
