"""The fake server over real sockets, as a client sees it: answers, scripts, strictness, life and death."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme

from llm_agent import codec
from llm_agent.messages import Usage
from llm_agent.testing import Answer, FakeServer, Gate, call, cut, document, error, hang, pause, reply, sse

ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}
Serve = Callable[..., FakeServer]


@pytest.fixture
def client() -> Iterator[requests.Session]:
    """A session that reuses connections and ignores the machine's proxies."""
    with requests.Session() as session:
        session.trust_env = False
        yield session


def post(client: requests.Session, server: FakeServer, body: Any = ASK, **options: Any) -> requests.Response:
    return client.post(f"{server.url}/chat/completions", json=body, timeout=5, **options)


def declaration(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", **function}}


def chunks_of(response: requests.Response) -> list[dict[str, Any]]:
    datas = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [codec.loads(data) for data in datas if data != "[DONE]"]


def text_of(response: requests.Response) -> str:
    deltas = [choice["delta"] for chunk in chunks_of(response) for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


# -- what a completion looks like ------------------------------------------------------


def test_a_reply_is_streamed_in_openai_events(client: requests.Session, serve: Serve) -> None:
    """Role first, then text, the finish reason, and the end marker."""
    response = post(client, serve([reply("Hello!")]))

    chunks = chunks_of(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(response) == "Hello!"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert response.text.endswith("data: [DONE]\n\n")


def test_pieces_can_be_chosen(client: requests.Session, serve: Serve) -> None:
    """A list of pieces is one delta each."""
    response = post(client, serve([reply(pieces=["a", "", "b"])]))

    contents = [chunk["choices"][0]["delta"].get("content") for chunk in chunks_of(response)]
    assert contents == ["", "a", "", "b", None]


def test_calls_are_streamed_in_fragments(client: requests.Session, serve: Serve) -> None:
    """The head of a call comes first, its arguments in pieces that join up."""
    response = post(client, serve([reply(calls=[call("add", a=1), call("add", _id="mine")])]))

    told = [chunk["choices"][0]["delta"] for chunk in chunks_of(response)]
    deltas = [delta["tool_calls"][0] for delta in told if "tool_calls" in delta]
    first = [delta for delta in deltas if delta["index"] == 0]
    assert first[0]["id"]
    assert first[0]["function"] == {"name": "add", "arguments": ""}
    assert "".join(delta["function"]["arguments"] for delta in first) == '{"a":1}'
    assert [delta["id"] for delta in deltas if delta["index"] == 1 and "id" in delta] == ["mine"]
    assert chunks_of(response)[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_reasoning_usage_and_finish_reason_are_reported(client: requests.Session, serve: Serve) -> None:
    """Each has its place in the stream; `Usage` is spelled as on the wire."""
    usage = Usage(prompt_tokens=3, completion_tokens=1, cached_prompt_tokens=2)
    response = post(client, serve([reply("x", reasoning="hm", usage=usage, finish_reason="length")]))

    chunks = chunks_of(response)
    assert chunks[1]["choices"][0]["delta"] == {"reasoning_content": "hm"}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_no_finish_reason_can_be_played(client: requests.Session, serve: Serve) -> None:
    """`None` leaves it out, the end marker stays."""
    response = post(client, serve([reply("x", finish_reason=None)]))

    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks_of(response))
    assert "[DONE]" in response.text


@pytest.mark.parametrize("asked", ["by the request", "by the script"])
def test_one_document_is_sent_where_no_stream_is_wanted(client: requests.Session, serve: Serve, asked: str) -> None:
    """A request that does not stream gets JSON; so does any, when the script says so."""
    is_scripted = asked == "by the script"
    server = serve([reply("Hi", calls=[call("look", _id="c1")], usage={"total_tokens": 9}, as_json=is_scripted)])

    told = post(client, server, {**ASK, "stream": is_scripted}).json()

    assert told["object"] == "chat.completion"
    assert told["choices"][0]["message"]["content"] == "Hi"
    assert told["choices"][0]["message"]["tool_calls"][0]["id"] == "c1"
    assert told["choices"][0]["finish_reason"] == "tool_calls"
    assert told["usage"] == {"total_tokens": 9}


def test_the_words_of_a_scripted_backend_are_understood(client: requests.Session, serve: Serve) -> None:
    """A text, a call, a list of both and a callable stand for replies."""
    server = serve(["Hi", call("a"), ["text ", call("b")], lambda request: request.messages[0]["content"]])

    bodies = [post(client, server) for _ in range(4)]

    assert [text_of(body) for body in bodies] == ["Hi", "", "text ", "go"]
    assert ['"name":"a"' in bodies[1].text, '"name":"b"' in bodies[2].text] == [True, True]


# -- errors and other documents --------------------------------------------------------


def test_an_error_has_a_status_a_body_and_headers(client: requests.Session, serve: Serve) -> None:
    """A refusal carries OpenAI's error object and what the client needs to wait."""
    server = serve([error(503, "overloaded", retry_after=1.5, code="busy", headers={"x-request-id": "r1"})])

    response = post(client, server)

    assert (response.status_code, response.reason) == (503, "Service Unavailable")
    assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("1.5", "r1")
    told = response.json()["error"]
    assert (told["message"], told["code"], told["type"]) == ("overloaded", "busy", "invalid_request_error")


def test_documents_are_json_html_or_bytes(client: requests.Session, serve: Serve) -> None:
    """What is no stream is told by its content type."""
    server = serve([document({"a": 1}), document("<html>", status=502), document(b"\x00", content_type="x/y")])

    told = [post(client, server) for _ in range(3)]

    assert [one.headers["content-type"] for one in told] == ["application/json", "text/html; charset=utf-8", "x/y"]
    assert [one.content for one in told] == [b'{"a":1}', b"<html>", b"\x00"]
    assert told[1].status_code == 502


def test_an_unnamed_status_can_be_played(client: requests.Session, serve: Serve) -> None:
    """Proxies invent statuses; so can a script."""
    assert post(client, serve([error(529)])).status_code == 529


def test_an_exhausted_script_says_how_far_it_went(client: requests.Session, serve: Serve) -> None:
    """The refusal is one that no client asks again about."""
    server = serve(["only"])
    post(client, server)

    response = post(client, server)

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "script exhausted after 1"


def test_a_script_that_raises_is_told_to_the_client(client: requests.Session, serve: Serve) -> None:
    """A bug in a callable ends up where the test looks."""
    server = serve(lambda request: request.nonsense)

    response = post(client, server)

    assert response.status_code == 400
    assert "the script raised AttributeError" in response.json()["error"]["message"]


def test_something_that_is_no_answer_is_named(client: requests.Session, serve: Serve) -> None:
    """A script's typo is said in words."""
    assert "cannot answer with 7: expected a text" in post(client, serve([7])).text
    assert "cannot send a int: 7" in post(client, serve([lambda request: sse([7])])).text  # type: ignore[list-item]


# -- what is recorded ------------------------------------------------------------------


def test_requests_are_recorded_with_headers_and_body(client: requests.Session, serve: Serve) -> None:
    """What a client really sent can be asserted."""
    server = serve(["Hi"])

    post(client, server, headers={"Authorization": "Bearer k"})

    (request,) = server.requests
    assert (request.method, request.path, request.connection) == ("POST", "/v1/chat/completions", 1)
    assert request.headers["authorization"] == "Bearer k"
    assert request.body == ASK
    assert request.messages == ASK["messages"]
    assert request.streams
    assert codec.loads(request.raw) == ASK


def test_a_chunked_request_is_read(client: requests.Session, serve: Serve) -> None:
    """A body without a length arrives whole."""
    server = serve([reply("Hi"), reply("again")])

    client.post(server.url, data=iter([b'{"a"', b":1}"]), timeout=5)
    post(client, server)

    assert [request.body for request in server.requests] == [{"a": 1}, ASK]
    assert [request.path for request in server.requests] == ["/v1", "/v1/chat/completions"]


def test_a_body_that_is_no_json_is_kept_as_it_came(client: requests.Session, serve: Serve) -> None:
    """`body` is None then, `raw` has the bytes."""
    server = serve(["Hi"])

    client.post(server.url, data=b"{oops", timeout=5)

    assert (server.requests[0].body, server.requests[0].raw) == (None, b"{oops")


def test_a_reused_connection_is_counted_once(client: requests.Session, serve: Serve) -> None:
    """Keep-alive works for chunked and sized answers, so that reuse can be asserted."""
    server = serve([reply("a"), error(500), reply("b", gzip=True), reply("c", as_json=True)])

    for _ in range(4):
        post(client, server)

    assert server.connections == 1
    assert [request.connection for request in server.requests] == [1, 1, 1, 1]


def test_a_client_that_asks_to_close_is_not_kept(client: requests.Session, serve: Serve) -> None:
    """`Connection: close` ends the connection behind the answer."""
    server = serve(["a", "b"])

    responses = [post(client, server, headers={"Connection": "close"}) for _ in range(2)]

    assert [response.headers["connection"] for response in responses] == ["close", "close"]
    assert server.connections == 2


def test_requests_can_be_waited_for(client: requests.Session, serve: Serve) -> None:
    """A test learns that a request is there, and that another is not."""
    server = serve([hang()])
    asking = threading.Thread(target=_ask_and_never_read, args=(client, server))

    asking.start()
    (request,) = server.wait_requests()
    with pytest.raises(TimeoutError, match="expected 2 requests, got 1"):
        server.wait_requests(2, timeout=0)
    server.close()
    asking.join(5)

    assert request.body == ASK
    assert not request.answered.is_set()
    assert not request.client_left.is_set()


def test_whoever_waits_for_a_request_is_woken_by_it(client: requests.Session, serve: Serve) -> None:
    """The wait ends with the request, not with its timeout."""
    server = serve(["Hi"])
    waiting = threading.Thread(target=server.wait_requests, args=(1, 60), daemon=True)

    waiting.start()
    post(client, server)
    waiting.join(5)

    assert not waiting.is_alive()


def test_a_played_answer_is_marked_as_answered(client: requests.Session, serve: Serve) -> None:
    """The server knows when it has said everything."""
    server = serve(["Hi"])

    post(client, server)

    assert server.requests[0].answered.wait(5)
    assert not server.requests[0].client_left.is_set()


@pytest.mark.parametrize(
    "answer",
    [hang(), hang("Hel"), sse([b": hello\n\n", pause(60)]), reply("x", then=[hang()])],
    ids=["before the headers", "in the text", "in a pause", "behind the end"],
)
def test_a_client_that_leaves_is_noticed_at_once(serve: Serve, answer: Any) -> None:
    """A stall ends when nobody listens, and the request says that the client left."""
    server = serve([answer])
    with requests.Session() as session:
        session.trust_env = False
        try:
            response = session.post(server.url, json=ASK, stream=True, timeout=(5, 0.05))
            response.close()
        except requests.ReadTimeout:
            pass  # before the headers there is nothing to close but the session

    (request,) = server.wait_requests()
    assert request.client_left.wait(5)
    assert not request.answered.is_set()


# -- strictness ------------------------------------------------------------------------


def test_a_strict_server_accepts_a_sound_conversation(client: requests.Session, serve: Serve) -> None:
    """Calls, answers in any order, images: what vendors take is taken."""
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("a", _id="1").to_wire(), call("b", _id="2").to_wire()],
    }
    messages = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        turn,
        {"role": "tool", "tool_call_id": "2", "content": "b"},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
    ]
    server = serve(["Hi"], strict=True)

    assert text_of(post(client, server, {**ASK, "messages": messages})) == "Hi"
    assert server.refusals == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**ASK, "messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]}, "messages.[0].tool_call_id"),
        ({**ASK, "messages": []}, "messages"),
        ({"messages": ASK["messages"]}, "model"),
        ({**ASK, "messages": "go"}, "messages"),
        ({**ASK, "tools": []}, "tools"),
        ({**ASK, "tools": ["look"]}, "tools.[0]"),
        ({**ASK, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.[0].function.name"),
        ({**ASK, "tools": [declaration(), declaration()]}, "tools.[1].function.name"),
        ({**ASK, "tools": [declaration(parameters="x")]}, "tools.[0].function.parameters"),
        ({**ASK, "tool_choice": "auto"}, "tool_choice"),
        ({"model": "m", "messages": ASK["messages"], "stream_options": {}}, "stream_options"),
        ({**ASK, "stream": "yes"}, "stream"),
        ([], "body"),
    ],
)
def test_a_strict_server_refuses_as_vendors_do(client: requests.Session, serve: Serve, body: Any, param: str) -> None:
    """400, an error object that names the place, and the script waits for a sound request."""
    server = serve(["Hi"], strict=True)

    refused = post(client, server, body)
    served = post(client, server)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert [fault.param for fault in server.refusals] == [param]
    assert text_of(served) == "Hi"


def test_a_strict_server_knows_one_address(client: requests.Session, serve: Serve) -> None:
    """A wrong path, method or body is refused like a wrong conversation."""
    server = serve(["Hi"], strict=True)

    refused = [client.post(server.url, json=ASK, timeout=5), client.get(f"{server.url}/chat/completions", timeout=5)]
    garbage = client.post(f"{server.url}/chat/completions", data=b"{", timeout=5)

    assert [one.json()["error"]["param"] for one in refused] == ["url", "url"]
    assert garbage.json()["error"]["param"] == "body"


# -- life and death --------------------------------------------------------------------


def test_close_leaves_no_thread_whatever_it_plays(no_thread_left: None) -> None:
    """Idle connections, stalls, pauses and blocked writes all end with the server."""
    answers = ["Hi", hang(), hang("Hel"), sse([pause(600)]), sse([b"x" * 50_000_000])]
    with FakeServer(answers) as server, requests.Session() as session:
        session.trust_env = False
        session.post(server.url, json=ASK, timeout=5)
        readers = [requests.Session() for _ in answers[1:]]
        for number, reader in enumerate(readers, start=2):
            reader.trust_env = False
            asking = threading.Thread(target=_ask_and_never_read, args=(reader, server))
            asking.start()
            server.wait_requests(number)
        server.close()
        server.close()
        alive = [thread.name for thread in threading.enumerate() if thread.name.startswith("fake-server")]
        for reader in readers:
            reader.close()

    assert alive == []


def _ask_and_never_read(session: requests.Session, server: FakeServer) -> None:
    try:
        session.post(server.url, json=ASK, stream=True, timeout=5)
    except requests.RequestException:
        pass  # the server closes before it answers


def test_a_closed_server_accepts_nobody(client: requests.Session, serve: Serve) -> None:
    """After `close` the port is free."""
    server = serve([])
    server.close()

    with pytest.raises(requests.ConnectionError):
        post(client, server)


def test_a_script_that_blocks_is_named_at_close(serve: Serve) -> None:
    """A callable that never returns is said, not waited for without end."""
    gate = Gate()
    server = serve([lambda request: str(gate.wait(5))])
    with requests.Session() as session:
        session.trust_env = False
        asking = threading.Thread(target=_ask_and_never_read, args=(session, server))
        asking.start()
        gate.wait_entered()

        with pytest.raises(RuntimeError, match="does its script block"):
            server.close(timeout=0.05)
        gate.open()
        asking.join(5)


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Whom the clients of these tests trust."""
    return trustme.CA()


def test_tls_is_spoken_with_a_certificate_in_files(serve: Serve, authority: trustme.CA, tmp_path: Path) -> None:
    """A certificate and its key serve the same answers, keep-alive included."""
    leaf = authority.issue_cert("127.0.0.1")
    root, certificate, key = tmp_path / "root.pem", tmp_path / "leaf.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(str(root))
    leaf.cert_chain_pems[0].write_to_path(str(certificate))
    leaf.private_key_pem.write_to_path(str(key))
    server = serve(repeat("Hi"), tls=(str(certificate), str(key)))

    with requests.Session() as session:
        session.trust_env = False
        session.verify = str(root)
        texts = [text_of(post(session, server)) for _ in range(2)]

    assert server.url.startswith("https://")
    assert texts == ["Hi", "Hi"]
    assert server.connections == 1


@pytest.mark.parametrize(("answer", "is_whole"), [(sse([b"x"], framing="close"), True), (sse([b"x", cut()]), False)])
def test_tls_ends_properly_unless_it_is_cut(
    serve: Serve, authority: trustme.CA, answer: Answer, is_whole: bool
) -> None:
    """The end of a close-delimited body is announced; a cut is not, and a careful client can tell."""
    context, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(trusting)
    server = serve([answer], tls=context)

    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as plain,
        trusting.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as client,
    ):
        client.sendall(b"POST /v1 HTTP/1.1\r\n\r\n")
        try:
            while client.recv(65536):
                pass
            ended_properly = True
        except ssl.SSLEOFError:
            ended_properly = False

    assert ended_properly is is_whole


def test_a_client_that_leaves_is_noticed_over_tls(serve: Serve, authority: trustme.CA) -> None:
    """Encryption hides neither end of the connection."""
    context, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(trusting)
    server = serve([hang()], tls=context)

    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as plain,
        trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(b"POST /v1 HTTP/1.1\r\n\r\n")
        (request,) = server.wait_requests()

    assert request.client_left.wait(5)


def test_a_handshake_that_never_ends_does_not_hold_up_close(
    no_thread_left: None, serve: Serve, authority: trustme.CA
) -> None:
    """A client that falls silent in the middle of the handshake is let go."""
    context, hello = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.MemoryBIO()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    server = serve([], tls=context)

    with socket.create_connection(("127.0.0.1", server.port), 5) as silent:
        silent.sendall(hello.read())
        began = silent.recv(65536)
        server.close()

    assert began


@pytest.mark.parametrize("scheme", ["http:", "https:"])
def test_a_silent_server_never_answers(serve: Serve, scheme: str) -> None:
    """The connection is accepted, nothing is read, and nothing ever comes: a handshake hangs."""
    server = serve([reply("Hi")], silent=True)

    with requests.Session() as session:
        session.trust_env = False
        with pytest.raises(requests.Timeout):
            session.get(server.url.replace("http:", scheme), timeout=(0.1, 0.1))

    assert server.connections == 1
    assert server.requests == []


def test_a_hundred_clients_are_served_at_once(no_thread_left: None, serve: Serve) -> None:
    """A gate shows that all streams are open together; opened, each gets its whole answer."""
    gate = Gate()
    server = serve(repeat(sse([reply("Hello").payload[:200], gate, reply("Hello").payload[200:]])))
    texts: list[str] = []

    def ask() -> None:
        with requests.Session() as session:
            session.trust_env = False
            texts.append(text_of(session.post(server.url, json=ASK, timeout=5)))

    clients = [threading.Thread(target=ask) for _ in range(100)]
    for one in clients:
        one.start()
    gate.wait_entered(times=100)
    gate.open()
    for one in clients:
        one.join(5)

    assert texts == ["Hello"] * 100
    assert server.connections == 100
