"""What a `FakeServer` plays: HTTP answers, written as the bytes and pauses that make them.

An answer is a frozen value and encoded once, however often it is played. Who plays it, and on
which socket, is `connection`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, Literal, cast

import attrs

from llm_agent import codec
from llm_agent.errors import BackendError, ConfigError
from llm_agent.messages import ToolRequest, Usage
from llm_agent.testing.completions import Completion, error_document, event, split_parts, usage_on_the_wire
from llm_agent.testing.script import CallIds, Gate, pieces_of

Framing = Literal["chunked", "close", "length", "raw"]
"""How the end of a body is told: chunk by chunk, by closing, beforehand; `raw`: no HTTP at all."""
Ending = Literal["fin", "rst"]

_STREAM_HEADERS: Final = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_JSON_HEADERS: Final = {"content-type": "application/json"}
_IDS: Final = CallIds()


@attrs.frozen
class Pause:
    """Nothing is sent for so many seconds; counted from when the last pause was due, so paces hold."""

    seconds: float


@attrs.frozen
class Cut:
    """The connection ends here: `fin` closes it, `rst` resets it."""

    how: Ending = "fin"


@attrs.frozen
class Keepalives:
    """A comment every so many seconds, until the client leaves or the server closes."""

    every: float
    block: bytes = b": keepalive\n\n"


Step = bytes | Pause | Gate | Cut | Keepalives
Before = Pause | Gate | None


@attrs.frozen(kw_only=True)
class Answer:
    """One HTTP answer. Made by `reply`, `sse`, `error`, `document` and `raw`."""

    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: tuple[Step, ...] = ()
    framing: Framing = "chunked"
    gzip: bool = False
    before: Before = None
    """What happens before the status line."""
    unstreamed: bytes | None = attrs.field(default=None, repr=False)
    """The JSON document for a request that does not stream."""
    byte_limit: int | None = None
    """After so many bytes of the body, as framed, the connection ends in *byte_limit_cut*."""
    byte_limit_cut: Cut = Cut()

    def cut(self, how: Ending = "fin", *, after_events: int | None = None, after_bytes: int | None = None) -> Answer:
        """Return this answer broken off: behind an event, or behind a byte.

        Args:
            how: `fin` closes the connection, `rst` resets it.
            after_events: how many parts of the body are sent whole; an event is one part.
            after_bytes: how many bytes are sent behind the headers, chunk framing counted.
        """
        if (after_events is None) == (after_bytes is None):
            raise ConfigError("Answer.cut: give after_events or after_bytes, and not both")
        if after_events is None:
            return attrs.evolve(self, byte_limit=after_bytes, byte_limit_cut=Cut(how), unstreamed=None)
        kept: list[Step] = []
        for step in self.body:
            if after_events == 0 and isinstance(step, bytes):
                break
            after_events -= isinstance(step, bytes)
            kept.append(step)
        return attrs.evolve(self, body=(*kept, Cut(how)), unstreamed=None)

    @property
    def payload(self) -> bytes:
        """The bytes of the body before compression and framing, pauses left out."""
        return b"".join(step for step in self.body if isinstance(step, bytes))

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can serve another request afterwards."""
        return self.framing in ("chunked", "length") and self.headers.get("connection") != "close"

    def closing(self) -> Answer:
        """Return this answer as the last one of its connection, and saying so."""
        return attrs.evolve(self, headers={**self.headers, "connection": "close"})

    def for_request(self, *, streams: bool) -> Answer:
        """Return what is played to a request that asked to stream, or did not."""
        if streams or self.unstreamed is None:
            return self
        return attrs.evolve(self, body=(self.unstreamed,), headers=_JSON_HEADERS, framing="length", unstreamed=None)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The body as it goes out: compressed, framed, neighbouring bytes joined."""
        steps = _gzipped(self.body) if self.gzip else iter(self.body)
        return tuple(_joined(_chunked(steps) if self.framing == "chunked" else steps))

    @cached_property
    def head(self) -> bytes:
        """The status line and the headers; nothing for a raw answer."""
        if self.framing == "raw":
            return b""
        headers = {**self.headers, **self._framing_headers()}
        if self.gzip:
            headers["content-encoding"] = "gzip"
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}"] + [f"{name}: {headers[name]}" for name in headers]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _framing_headers(self) -> dict[str, str]:
        match self.framing:
            case "chunked":
                return {"transfer-encoding": "chunked"}
            case "close":
                return {"connection": "close"}
            case _:
                return {"content-length": str(sum(len(step) for step in self.steps if isinstance(step, bytes)))}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unnamed"


def _gzipped(steps: Iterable[Step]) -> Iterator[Step]:
    """Compress each part so that it can be read as soon as it has come."""
    # 31: the largest window, in gzip's format.
    pen = zlib.compressobj(wbits=31)
    for step in steps:
        match step:
            case bytes():
                yield pen.compress(step) + pen.flush(zlib.Z_SYNC_FLUSH)
            case Keepalives(every, block):
                # A full flush before it: the block refers to nothing, so it can be repeated as it is.
                yield pen.flush(zlib.Z_FULL_FLUSH)
                yield Keepalives(every, pen.compress(block) + pen.flush(zlib.Z_SYNC_FLUSH))
            case _:
                yield step
    yield pen.flush()


def _chunked(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        match step:
            case b"":
                continue  # an empty chunk would be the end
            case bytes():
                yield _chunk(step)
            case Keepalives(every, block):
                yield Keepalives(every, _chunk(block))
            case _:
                yield step
    yield b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _joined(steps: Iterable[Step]) -> Iterator[Step]:
    """Join neighbouring bytes: one call of the kernel sends what no pause divides."""
    run: list[bytes] = []
    for step in steps:
        if isinstance(step, bytes):
            run.append(step)
            continue
        if run:
            yield b"".join(run)
            run = []
        yield step
    if run:
        yield b"".join(run)


# -- how a script is written ------------------------------------------------------------


def pause(seconds: float) -> Pause:
    """Return a pause, for a list of parts or for *before*."""
    return Pause(seconds)


def cut(how: Ending = "fin") -> Cut:
    """Return an end of the connection, for a list of parts."""
    return Cut(how)


def keepalives(every: float) -> Keepalives:
    """Return comments every so many seconds, for ever, for a list of parts."""
    return Keepalives(every)


Part = bytes | str | Mapping[str, Any] | Pause | Gate | Cut | Keepalives


def reply(
    text: str = "",
    *,
    calls: Sequence[ToolRequest] = (),
    reasoning: str = "",
    usage: Usage | Mapping[str, Any] | None = None,
    finish_reason: str | None = "",
    pieces: int | Sequence[str] = 4,
    every: float | None = None,
    then: Sequence[Part] = (),
    model: str = "scripted",
    as_json: bool = False,
    framing: Framing = "chunked",
    gzip: bool = False,
    before: Before = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return a completion as a server streams it, or as one document if the request does not stream.

    Args:
        text: the answer.
        calls: tool calls; those without an id get one.
        reasoning: sent as `reasoning_content`.
        usage: reported in an event of its own.
        finish_reason: by default `tool_calls` with calls, else `stop`; `None` sends none.
        pieces: into how many deltas the text is cut, or the deltas themselves.
        every: seconds between two events.
        then: more parts behind the end marker, such as `hang()` for a socket that stays open.
        model: which model claims to have answered.
        as_json: answer with one JSON document although the request streams.
        framing, gzip, before, headers: see `Answer`.
    """
    if finish_reason == "":
        finish_reason = "tool_calls" if calls else "stop"
    texts = pieces_of(text, pieces) if isinstance(pieces, int) else list(pieces)
    said = Completion(
        texts=tuple(texts),
        reasoning=reasoning,
        calls=tuple(_IDS.fill(call) for call in calls),
        finish_reason=finish_reason,
        usage=None if usage is None else usage_on_the_wire(usage),
        model=model,
    )
    events: list[Step] = [*said.opening(), *said.closing()]
    if every is not None:
        events = [step for one in events for step in (one, Pause(every))][:-1]
    answer = Answer(
        headers={**_STREAM_HEADERS, **(headers or {})},
        body=(*events, *_steps(then)),
        framing=framing,
        gzip=gzip,
        before=before,
        unstreamed=said.document(),
    )
    return answer.for_request(streams=False) if as_json else answer


def sse(
    parts: Sequence[Part],
    *,
    status: int = 200,
    framing: Framing = "chunked",
    gzip: bool = False,
    before: Before = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return an event stream written part by part.

    Args:
        parts: `bytes` and `str` go out as they are, each as one chunk; a mapping as an event
            `data: {json}`; beside them `pause`, `cut`, `keepalives`, and gates (a gate's text
            goes out as a delta).
        status, framing, gzip, before, headers: see `Answer`.
    """
    return Answer(
        status=status,
        headers={**_STREAM_HEADERS, **(headers or {})},
        body=tuple(_steps(parts)),
        framing=framing,
        gzip=gzip,
        before=before,
    )


def document(
    content: bytes | str | Mapping[str, Any],
    *,
    status: int = 200,
    content_type: str | None = None,
    framing: Framing = "length",
    gzip: bool = False,
    before: Before = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return an answer that is no stream: a mapping as JSON, a text as HTML, bytes as they are."""
    guessed = "application/json" if isinstance(content, Mapping) else "text/html; charset=utf-8"
    data = content if isinstance(content, bytes) else _encoded(content)
    return Answer(
        status=status,
        headers={"content-type": content_type or guessed, **(headers or {})},
        body=(data,),
        framing=framing,
        gzip=gzip,
        before=before,
    )


def error(
    status: int,
    message: str = "",
    *,
    retry_after: float | str | None = None,
    code: str | None = None,
    kind: str = "invalid_request_error",
    headers: Mapping[str, str] | None = None,
    before: Before = None,
) -> Answer:
    """Return a refusal with an error object in OpenAI's form.

    Args:
        status: the HTTP status.
        message: what the error object says.
        retry_after: the header, in seconds or verbatim.
        code, kind: further fields; *kind* is the one called `type` of the error object.
        headers, before: see `Answer`.
    """
    waits = {} if retry_after is None else {"retry-after": str(retry_after)}
    body = error_document(message or _phrase(status), kind=kind, code=code)
    return document(
        body,
        status=status,
        content_type="application/json",
        before=before,
        headers={**waits, **(headers or {})},
    )


def raw(parts: Sequence[Part]) -> Answer:
    """Return bytes that are played without any HTTP around them; the connection closes behind them."""
    return Answer(framing="raw", body=tuple(_steps(parts)))


def _steps(parts: Iterable[Part]) -> Iterator[Step]:
    for part in parts:
        match part:
            case str():
                yield part.encode()
            case Mapping():
                yield event(part)
            case Gate(text=text):
                if text:
                    yield Completion().chunk({"content": text})
                yield part
            case bytes() | Pause() | Cut() | Keepalives():
                yield part
            case _:
                raise ConfigError(f"FakeServer: cannot send a {type(part).__name__}: {part!r}")


def _encoded(content: str | Mapping[str, Any]) -> bytes:
    return content.encode() if isinstance(content, str) else codec.dumps(content)


Scripted = Answer | Gate | str | ToolRequest | BaseException | Sequence[str | ToolRequest | BaseException]


def as_answer(scripted: Scripted) -> Answer:
    """Return what an entry of a server's script stands for.

    Raises:
        ConfigError: it stands for nothing.
    """
    match scripted:
        case Answer():
            return scripted
        case str():
            return reply(scripted)
        case ToolRequest():
            return reply(calls=[scripted])
        case Gate(text=""):
            return reply(before=scripted)
        case Gate():
            said = Completion(finish_reason="stop")
            return sse([*said.opening(), scripted, *said.closing()])
        case list() | tuple() if all(isinstance(part, str | ToolRequest) for part in scripted):
            text, calls = split_parts(scripted)
            return reply(text, calls=calls)
        case BackendError(status=int(status)):
            return error(status, scripted.message)
        case BaseException():
            return sse([cut()])
        case [*parts, BaseException()] if all(isinstance(part, str | ToolRequest) for part in parts):
            return _broken_off(*split_parts(cast("list[str | ToolRequest]", parts)))
        case _:
            raise ConfigError(
                f"FakeServer: cannot answer with {scripted!r}: expected a text, call(...), a list of these (an "
                "exception as its last item breaks the stream off), an exception, a Gate, or what reply(), sse(), "
                "error(), document() and raw() return"
            )


def _broken_off(text: str, calls: tuple[ToolRequest, ...]) -> Answer:
    """A turn whose connection closes before anything says that it is whole."""
    said = Completion(texts=tuple(pieces_of(text)), calls=calls)
    return sse([*said.opening(), *said.closing()[:-1], cut()])
