"""An MCP server as a provider: catalogue, answers, order, progress, logs, questions. Real processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from llm_agent.errors import ConfigError, McpError
from llm_agent.mcp import McpServer, connect_http, connect_stdio
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.testing import call_context
from llm_agent.testing.tools import Progress

Raw = Callable[..., McpServer]
Seen = Callable[[str], list[dict[str, Any]]]

GENERATIONS = [("auto", "2026-07-28"), ("handshake", "2025-11-25")]


# What `seen` finds without a method: answers to the server's questions.
ANSWERS: Any = None


def call(name: str, id: str = "c", **arguments: Any) -> ToolRequest:
    return ToolRequest(id, name, arguments)


def names_of(server: McpServer) -> set[str]:
    return {tool["function"]["name"] for tool in server.tools_for_llm()}


# -- both generations of the protocol -----------------------------------------------------------


@pytest.mark.parametrize(("protocol", "version"), GENERATIONS)
def test_a_call_is_answered(sdk: Raw, protocol: str, version: str) -> None:
    """Either generation of the protocol lists, answers, and sends structured content beside the text."""
    server = sdk(protocol=protocol)

    [answer] = server.execute_tool_calls([call("add", a=1, b=2)])

    assert (version, ToolAnswer("c", "3"), {"result": 3}) == (server.protocol_version, answer, answer.structured)


@pytest.mark.parametrize(("protocol", "version"), GENERATIONS)
def test_progress_and_logs_reach_the_call(sdk: Raw, protocol: str, version: str) -> None:
    """What a server tells during a call is told to `current_call()`."""
    server = sdk(protocol=protocol)

    with call_context() as told:
        server.execute_tool_calls([call("work")])

    assert [Progress(1, 2, "half"), Progress(2, 2, "whole")] == told.progress_told
    assert told.logged == [("info", "working")]


@pytest.mark.parametrize(("protocol", "version"), GENERATIONS)
def test_a_question_is_asked_through_the_call(sdk: Raw, protocol: str, version: str) -> None:
    """A server's question is an ask of the call, and the answer reaches the server."""
    server = sdk(protocol=protocol)

    with call_context(answer={"action": "accept", "content": {"name": "Ada"}}) as told:
        [answer] = server.execute_tool_calls([call("ask")])

    [asked] = told.asked
    assert answer.content == "Ada"
    assert (
        asked["kind"],
        asked["tool"],
        asked["server"],
        asked["request"]["message"],
    ) == ("server-elicit", "ask", "sdk", "Who is there?")


@pytest.mark.parametrize(("protocol", "version"), GENERATIONS)
def test_a_changed_catalogue_is_asked_for_again(sdk: Raw, protocol: str, version: str) -> None:
    """A tool that a server offers later is found after it said so, and can be called."""
    server = sdk(protocol=protocol)
    before = names_of(server)
    server.execute_tool_calls([call("grow")])

    # The word of the change is no answer to anything: it arrives when it does.
    arrived = any("late" in names_of(server) for _ in range(1000))

    assert ("late" in before, arrived) == (False, True)
    assert [answer.content for answer in server.execute_tool_calls([call("late")])] == ["late"]


# -- answers ----------------------------------------------------------------------------------------


def test_a_server_says_what_its_tools_do(raw: Raw) -> None:
    """Annotations are read apart from the declarations, and give the classes of repeating a call."""
    server = raw()
    before = server.idempotency_of("meet")
    hints = server.tool_annotations("meet")

    assert (before, hints) == ("unknown", {"readOnlyHint": True, "idempotentHint": True})
    assert [server.idempotency_of(name) for name in ("meet", "again", "drop", "answer")] == [
        "read-only",
        "idempotent",
        "destructive",
        "unknown",
    ]
    assert (server.tool_annotations("nope"), server.tool_annotations("answer")) == (None, {})


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"inputSchema": None},
        {"inputSchema": {}},
        {"inputSchema": {"type": "string"}},
        {"annotations": []},
        {"annotations": {"readOnlyHint": "yes"}},
        {"description": 7},
        {"outputSchema": []},
        {"icons": "none"},
    ],
)
def test_what_a_tool_says_wrongly_of_itself_costs_no_catalogue(raw: Raw, tool: dict[str, Any]) -> None:
    """A schema, a description, a hint of a wrong form is as good as none; all tools are there."""
    server = raw(env={"MORE_TOOLS": json.dumps([{"name": "odd", **tool}])})

    declared = {each["function"]["name"]: each["function"] for each in server.tools_for_llm()}

    assert "answer" in declared
    assert (declared["odd"]["parameters"]["type"], "description" in declared["odd"]) == ("object", False)
    assert server.idempotency_of("odd") == "unknown"


def test_a_tool_without_a_name_is_an_error(raw: Raw) -> None:
    """It cannot be offered, and a shorter catalogue would be a lie."""
    with pytest.raises(McpError, match=r"did not list its tools(.|\n)*name"):
        raw(env={"MORE_TOOLS": '[{"inputSchema": {"type": "object"}}]'}).tools_for_llm()


def test_an_unknown_tool_costs_no_round_trip(raw: Raw, seen: Seen) -> None:
    """A tool that the server does not have is answered here, and names those that it has."""
    server = raw()

    [unknown, known] = server.execute_tool_calls([call("nope"), call("answer", text="hi")])

    assert (unknown.is_error, "answer, die" in unknown.content, known.content) == (True, True, "hi")
    assert [params["name"] for params in seen("tools/call")] == ["answer"]


def test_a_server_that_cannot_list_is_called_all_the_same(raw: Raw) -> None:
    """Without a catalogue no tool can be ruled out; the listing itself raises."""
    server = raw("lists-nothing")

    [answer] = server.execute_tool_calls([call("answer", text="hi")])

    assert answer.content == "hi"
    with pytest.raises(McpError, match="the shelf is on fire"):
        server.tools_for_llm()


def test_every_shape_of_call_gets_one_answer(raw: Raw) -> None:
    """Dicts, JSON text, garbage: one answer per call, in order, under the call's own id."""
    server = raw()
    calls: list[Any] = [
        {"id": "1", "function": {"name": "answer", "arguments": '{"text": "from text"}'}},
        {"id": "2", "function": {"name": "answer", "arguments": "{"}},
        {"id": "3", "function": {"name": "answer", "arguments": "[]"}},
        "no call at all",
        ToolRequest("5", "", None),
        ToolRequest("", "answer", None),
        ToolRequest("7", "answer", {"text": "sorry", "fail": True}),
    ]

    answers = server.execute_tool_calls(calls)

    assert [answer.tool_call_id for answer in answers] == ["1", "2", "3", "", "5", "", "7"]
    assert [answer.is_error for answer in answers] == [False, True, True, True, True, False, True]
    assert (answers[0].content, answers[6].content) == ("from text", "sorry")


def test_no_calls_are_no_answers(raw: Raw, seen: Seen) -> None:
    """An empty batch is answered by an empty list."""
    assert raw().execute_tool_calls([]) == []


def test_content_of_an_unknown_kind_is_not_lost(raw: Raw) -> None:
    """A block that the SDK has no type for is its JSON; the rest of the result is as it was."""
    [answer] = raw().execute_tool_calls([call("strange")])

    assert (answer.content, answer.structured) == ('{"a":[2],"b":1,"type":"hologram"}\nand text', {"n": 1})


@pytest.mark.parametrize(
    ("tool", "kind", "said"), [("refuse", "refused", "no such day"), ("garbled", "unreadable", "cannot be read")]
)
def test_what_is_no_result_is_an_error_answer(raw: Raw, tool: str, kind: str, said: str) -> None:
    """A protocol error and a malformed result are answers that say so; the connection lives on."""
    server = raw()

    [bad, good] = server.execute_tool_calls([call(tool), call("answer", text="hi")])

    assert (True, {"mcp": {"failed": kind}}, True) == (bad.is_error, bad.structured, said in bad.content)
    assert good.content == "hi"


def test_a_server_sees_no_secret_of_ours(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process's environment a server gets what finds programs; the rest it is given by name."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    [answer] = raw(env={"GIVEN": "yes"}).execute_tool_calls([call("environment")])

    environment = json.loads(answer.content)
    assert ("PATH" in environment, environment["GIVEN"], "OPENAI_API_KEY" in environment) == (True, "yes", False)


# -- order --------------------------------------------------------------------------------------------


def test_harmless_calls_run_side_by_side(raw: Raw) -> None:
    """Calls that are all read-only and idempotent are out together: each waits for the others here."""
    calls = [call("meet", str(number), company=3, number=number) for number in range(3)]

    answers = raw(request_timeout=5).execute_tool_calls(calls)

    assert [(a.tool_call_id, a.content) for a in answers] == [("0", "met 3"), ("1", "met 3"), ("2", "met 3")]


def test_identical_harmless_calls_are_one_request(raw: Raw, seen: Seen) -> None:
    """The answer of the one request goes to each of them under its own id."""
    calls = [call("meet", str(number), company=2, a=1) for number in range(3)] + [call("meet", "9", company=2, a=2)]

    answers = raw(request_timeout=5).execute_tool_calls(calls)

    assert [answer.tool_call_id for answer in answers] == ["0", "1", "2", "9"]
    assert (2, {"met 2"}) == (len(seen("tools/call")), {answer.content for answer in answers})


@pytest.mark.parametrize("options", [{"tool_concurrency": 1}, {}])
def test_one_call_that_is_not_harmless_makes_a_batch_serial(raw: Raw, seen: Seen, options: dict[str, Any]) -> None:
    """Without everybody's annotation, or with a width of one, calls go out one after the other."""
    other = [] if options else [call("again", "x")]
    server = raw(request_timeout=0.3, **options)

    answers = server.execute_tool_calls([call("meet", "1", company=2, a=1), *other, call("meet", "2", company=2, a=2)])

    # The first waits for company that is not sent before it has timed out.
    assert answers[0].structured == {"mcp": {"failed": "timeout"}}


# -- progress, logs, questions --------------------------------------------------------------------------


def test_only_the_calls_own_news_is_told(raw: Raw, seen: Seen) -> None:
    """Late progress and progress under a foreign token are dropped; fractions and messages are kept."""
    server = raw()

    with call_context() as told:
        server.execute_tool_calls([call("news"), call("answer")])

    assert [Progress(1, 4, "at 1"), Progress(2.5, 4, "at 2.5")] == told.progress_told
    assert told.logged == [("warning", {"disk": "full"})]
    assert seen("logging/setLevel") == [{"level": "info"}]


def test_no_log_level_asks_for_no_logs(raw: Raw, seen: Seen) -> None:
    """Log lines that nobody wants are not asked for."""
    raw(log_level=None).execute_tool_calls([call("answer")])

    assert seen("logging/setLevel") == []


def test_a_question_without_an_asker_is_declined(raw: Raw) -> None:
    """Outside of a run, and in one where nobody answers, a server gets a no."""
    server = raw()

    [outside] = server.execute_tool_calls([call("ask")])
    with call_context():
        [inside] = server.execute_tool_calls([call("ask")])

    assert [outside.content, inside.content] == ['{"action": "decline"}'] * 2


def test_on_elicit_answers_on_the_thread_that_called(raw: Raw) -> None:
    """The asker of a server runs on the calling thread, in a run or outside of one."""
    threads = []

    def asker(_: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return {"action": "accept", "content": {"name": "Ada"}}

    server = raw(on_elicit=asker)

    [answer] = server.execute_tool_calls([call("ask")])

    assert ([threading.current_thread()], {"name": "Ada"}) == (threads, json.loads(answer.content)["content"])


def test_an_asker_that_raises_declines(raw: Raw) -> None:
    """A broken asker is a no, and the call is answered."""

    def asker(_: Any) -> None:
        raise RuntimeError("no screen")

    [answer] = raw(on_elicit=asker).execute_tool_calls([call("ask")])

    assert answer.content == '{"action": "decline"}'


def test_content_that_is_no_form_declines(raw: Raw) -> None:
    """An answer that the protocol cannot carry is a no rather than an error."""
    [answer] = raw(on_elicit=lambda _: {"action": "accept", "content": {"a": {"b": 1}}}).execute_tool_calls(
        [call("ask")]
    )

    assert answer.content == '{"action": "decline"}'


def test_half_a_character_in_an_answer_does_not_cost_the_connection(raw: Raw) -> None:
    """What a human typed reaches the server cleaned."""
    server = raw(on_elicit=lambda _: {"action": "accept", "content": {"name": "A\ud83d"}})

    [answer, other] = server.execute_tool_calls([call("ask"), call("answer", text="hi")])

    assert (json.loads(answer.content)["content"], other.content) == ({"name": "A\ufffd"}, "hi")


def test_a_server_cannot_ask_without_end(raw: Raw, seen: Seen, until: Callable[[Callable[[], bool]], bool]) -> None:
    """While somebody thinks about a question, a thousand more may wait; the rest is declined meanwhile."""
    asked: list[Any] = []

    def think(request: Any) -> str:
        asked.append(request)
        if len(asked) == 1:
            assert until(lambda: len(seen(ANSWERS)) >= 500)
        return "decline"

    [answer] = raw(on_elicit=think).execute_tool_calls([call("insist", times=2000)])

    assert (answer.content, len(asked) <= 1500) == ("insisted", True)


def test_a_request_does_not_time_out_while_a_human_thinks(raw: Raw) -> None:
    """The clock of a request stands still during a question."""
    thinking = threading.Event()

    def asker(_: Any) -> str:
        thinking.wait(0.6)
        return "cancel"

    [answer] = raw(request_timeout=0.3, on_elicit=asker).execute_tool_calls([call("ask")])

    assert answer.content == '{"action": "cancel"}'


def test_a_question_that_could_be_anybodys_is_declined(
    raw: Raw, seen: Seen, until: Callable[[Callable[[], bool]], bool]
) -> None:
    """With calls of two threads out, a question without an address is put to nobody."""
    asked: list[Any] = []
    server = raw(on_elicit=asked.append, request_timeout=5)
    server.tools_for_llm()
    cancelled = threading.Event()

    def hang() -> None:
        with call_context(cancelled=cancelled):
            server.execute_tool_calls([call("hang")])

    other = threading.Thread(target=hang)
    other.start()
    assert until(lambda: len(seen("tools/call")) == 1)
    answer = server.execute_tool_calls([call("ask")])[0]
    cancelled.set()
    other.join(5)

    assert (asked, answer.content) == ([], '{"action": "decline"}')


def test_a_server_may_not_be_offered_to_ask(raw: Raw, seen: Seen) -> None:
    """With `elicitation=False` the capability is not declared."""
    raw(elicitation=False)

    assert "elicitation" not in seen("initialize")[0]["capabilities"]


# -- arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": ""}, "command"),
        ({"command": 7}, "command"),
        ({"command": "x", "args": "one text"}, "args"),
        ({"command": "x", "args": [1]}, "args"),
        ({"command": "x", "args": ["a\0b"]}, "NUL"),
        ({"command": "x", "env": {"A": 1}}, "env"),
        ({"command": "x", "args": ["a\ud800"]}, "half a character"),
        ({"command": "x", "cwd": 5}, "cwd"),
        ({"command": "x", "cwd": "a\0b"}, "cwd"),
        ({"command": "x", "env": ["A=1"]}, "env"),
        ({"command": "x", "env": {"A=B": "1"}}, "env"),
        ({"command": "x", "env": {"A": "\ud800"}}, "env"),
        ({"command": "x", "connect_timeout": 10**400}, "connect_timeout"),
        ({"command": "x", "connect_timeout": 0}, "connect_timeout"),
        ({"command": "x", "request_timeout": True}, "request_timeout"),
        ({"command": "x", "tool_concurrency": 0}, "tool_concurrency"),
        ({"command": "x", "protocol": "old"}, "protocol"),
        ({"command": "x", "log_level": "loud"}, "log_level"),
        ({"command": "x", "on_elicit": "yes"}, "on_elicit"),
        ({"command": "x", "on_elicit": print, "elicitation": False}, "elicitation"),
        ({"command": "x", "name": 7}, "name"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "localhost:80"}, "url"),
        ({"url": "http://[::1/"}, "url"),
        ({"url": "http://host:99999/"}, "url"),
        ({"url": "http://a host/"}, "url"),
        ({"url": "http://x", "headers": {"A": "1\r\nB: 2"}}, "headers"),
        ({"url": "http://x", "headers": {"A B": "1"}}, "headers"),
        ({"url": "http://x", "headers": {"A": "\u20ac"}}, "headers"),
        ({"url": "http://x", "headers": {"A": None}}, "headers"),
    ],
)
def test_an_argument_that_cannot_work_is_refused(arguments: dict[str, Any], said: str) -> None:
    """The caller's fault is a ConfigError that names the argument; nothing is started."""
    connect = connect_stdio if "command" in arguments else connect_http

    with pytest.raises(ConfigError, match=said):
        connect(**arguments)


def test_no_secret_is_shown() -> None:
    """What stands in an environment or a header is in no error and no text."""
    with pytest.raises(ConfigError) as refused:
        connect_stdio("x", env={"TOKEN": b"s3cret"})  # type: ignore[dict-item]
    with pytest.raises(McpError) as unreachable:
        connect_http("http://user:s3cret@127.0.0.1:1/mcp?key=s3cret", {"Authorization": "s3cret"})

    assert "s3cret" not in f"{refused.value} {unreachable.value}"
