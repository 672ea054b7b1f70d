"""One streamed completion: from an exchange's bytes to the deltas of the port.

The law: it ends normally only if the completion is whole (a finish reason or `[DONE]` was
seen, or one JSON document came in full); everything else is raised as a `BackendError`.
The inner loop runs once per token: what is rare is kept out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import orjson

from llm_agent import codec
from llm_agent.backends import failures
from llm_agent.backends.assembler import Assembler, plain_text
from llm_agent.backends.http import Exchange
from llm_agent.backends.sse import MAX_EVENT_BYTES, EventParser, NamedEvent
from llm_agent.backends.wire import error_in
from llm_agent.errors import BackendError
from llm_agent.messages import Delta

# After a finish reason only a usage report can follow; a server that sends neither that nor an
# end is not waited for any longer than this, in seconds.
FINISH_GRACE = 5.0
# What is read of an error's body, and for how long it may be silent, in seconds.
_ERROR_BODY_BYTES = 65_536
ERROR_BODY_SILENCE = 5.0
# Kept of a body that turns out to be no event stream, to show it.
_HEAD_BYTES = 4_096
_NOTHING = Delta()
_BOM = b"\xef\xbb\xbf"


@attrs.define(eq=False)
class Completion:
    """What `stream` returns: iterate once, on one thread; cancel from any.

    Yields:
        `str` for a piece of text, `Delta` for anything else; an empty one for an event that
        brings nothing yet. The calls, each complete and once, and the finish reason come last.

    Raises (while iterating):
        BackendError: the attempt failed; also after a cancel.
    """

    _exchange: Exchange
    _endpoint: str
    _redact: failures.Redactor = attrs.field(repr=False)
    _has_key: bool
    finish_grace: float = attrs.field(default=FINISH_GRACE, init=False, repr=False)
    error_silence: float = attrs.field(default=ERROR_BODY_SILENCE, init=False, repr=False)
    _parser: EventParser = attrs.field(factory=EventParser, init=False, repr=False)
    _assembler: Assembler = attrs.field(factory=Assembler, init=False, repr=False)
    _is_done: bool = attrs.field(default=False, init=False)
    _pieces: Iterator[Delta | str] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._pieces = self._shielded()

    def __iter__(self) -> Iterator[Delta | str]:
        # The generator itself: a `__next__` of ours would cost every token a call.
        return self._pieces

    def __next__(self) -> Delta | str:
        return next(self._pieces)

    def cancel(self) -> None:
        """Wake the reader at once; it raises. Idempotent, any thread, never raises, never waits."""
        self._exchange.cancel()

    def close(self) -> None:
        """Give up what is left of the stream. Any thread; a reader that is inside is woken."""
        self._exchange.cancel()
        try:
            self._pieces.close()  # type: ignore[attr-defined]  # a generator, seen as an iterator
        except ValueError:  # it is running on another thread, and cleans up there
            pass

    def _shielded(self) -> Iterator[Delta | str]:
        failure: BackendError
        try:
            yield from self._run()
        except BackendError as exc:
            failure = exc
        except Exception as exc:  # a shield: of the network, or of a guest's session
            failure = failures.from_exception(
                exc, endpoint=self._endpoint, is_connected=self._exchange.is_connected, redact=self._redact
            )
        else:
            return
        finally:
            self._exchange.close()
        if self._exchange.cancelled:
            failure = BackendError(f"{self._endpoint}: cancelled", "connection")
        # Outside the handler: a context would carry the request, and with it the key.
        raise failure

    def _run(self) -> Iterator[Delta | str]:
        exchange = self._exchange
        if not exchange.cancelled:
            exchange.open()
        if exchange.cancelled:
            raise BackendError("cancelled", "connection")
        if not 200 <= exchange.status < 300:
            raise self._refusal()
        head = self._head()
        if head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"[", b"<"):
            yield from self._document(head)  # no event stream begins so, whatever its headers say
        else:
            yield from self._events(head)
        final = self._assembler.result()
        if final != _NOTHING:
            yield final
        exchange.finish()

    def _refusal(self) -> BackendError:
        body = b""
        try:
            self._exchange.expect_end(self.error_silence)
            while len(body) < _ERROR_BODY_BYTES and (chunk := self._exchange.read()):
                body += chunk
        except Exception:  # a shield: the status is the news, its words are a bonus
            pass
        return failures.from_response(
            self._exchange.status,
            self._exchange.headers,
            body[:_ERROR_BODY_BYTES],
            endpoint=self._endpoint,
            redact=self._redact,
            has_key=self._has_key,
        )

    def _head(self) -> bytes:
        """Read until something else than white space has come; `b""` when nothing does."""
        while chunk := self._exchange.read():
            if chunk.strip():
                return chunk
        return b""

    def _events(self, chunk: bytes) -> Iterator[Delta | str]:
        feed, loads, assembler = self._parser.feed, orjson.loads, self._assembler
        head = chunk[:_HEAD_BYTES]
        is_plain = False
        while chunk:
            for event in feed(chunk):
                try:
                    value = loads(event) if is_plain and isinstance(event, bytes) else None
                    text = plain_text(value)
                    if text is not None:
                        yield text
                        continue
                except ValueError:
                    value = None
                yield from self._take(event) if value is None else self._chunk(value)
                if self._is_done:
                    return
                is_plain = assembler.allows_shortcut
            chunk = self._read_on()
        yield from self._tail()
        if not assembler.finish_reason and not self._is_done:
            raise self._break(head)

    def _read_on(self) -> bytes:
        if not self._assembler.finish_reason:
            return self._exchange.read()
        try:
            self._exchange.expect_end(self.finish_grace)
            return self._exchange.read()
        except Exception:  # a shield: the completion is whole, however its connection ends
            if self._exchange.cancelled:
                raise
            return b""

    def _take(self, event: bytes | NamedEvent) -> Iterator[Delta | str]:
        """The long way of one event."""
        name, data = ("", event) if isinstance(event, bytes) else (event.name, event.data)
        data = data.strip()
        if not data or data[:1] == b":":  # a comment that a proxy has put into a data line
            return
        if data == b"[DONE]":
            self._is_done = True
            return
        for value in self._parse(data, name):
            yield from self._chunk(value, name)
            if self._is_done:
                return

    def _parse(self, data: bytes, name: str) -> list[Any]:
        try:
            return [_loads(data)]
        except ValueError:
            pass
        if name == "error":
            return [data.decode("utf-8", "replace")]
        lines = data.split(b"\n")
        try:  # some servers forget the blank line between two events
            return ["[DONE]" if line.strip() == b"[DONE]" else _loads(line) for line in lines if line.strip()]
        except ValueError:
            pass
        if self._assembler.finish_reason:
            return []
        raise failures.not_a_completion(
            "an event of the stream is not JSON", data, endpoint=self._endpoint, redact=self._redact
        )

    def _chunk(self, value: Any, name: str = "") -> Iterator[Delta | str]:
        if value == "[DONE]":
            self._is_done = True
            return
        delta = self._assembler.feed(value) if isinstance(value, Mapping) else _NOTHING
        error = error_in(value)
        if error is None and (name == "error" or (isinstance(value, str) and value)):
            error = value
        if error is None or delta != _NOTHING:
            yield delta
        if error is not None:
            raise failures.from_error_value(error, endpoint=self._endpoint, redact=self._redact)

    def _tail(self) -> Iterator[Delta | str]:
        """What was not ended by a blank line: taken only if it is whole by itself."""
        for event in self._parser.finish():
            data = (event if isinstance(event, bytes) else event.data).strip()
            try:
                whole = data == b"[DONE]" or isinstance(_loads(data), dict)
            except ValueError:
                whole = False
            if whole:
                yield from self._take(event)

    def _break(self, head: bytes) -> BackendError:
        if self._parser.is_event_stream:
            return BackendError(
                f"{self._endpoint}: the stream broke off: neither a finish reason nor [DONE] was seen", "connection"
            )
        what = "the body is not an event stream" if head else "the body is empty"
        return failures.not_a_completion(what, head, endpoint=self._endpoint, redact=self._redact)

    def _document(self, head: bytes) -> Iterator[Delta | str]:
        """A body in one piece: a completion as one JSON document, an error, or a web page."""
        parts, size, chunk = [head], 0, head
        while chunk and size <= MAX_EVENT_BYTES:
            yield _NOTHING  # a sign of life
            chunk = self._exchange.read()
            parts.append(chunk)
            size += len(chunk)
        body = b"".join(parts)
        try:
            value = _loads(body.removeprefix(_BOM))
        except ValueError:
            value = None
        if error_in(value) is not None:
            yield from self._chunk(value)
        if not isinstance(value, Mapping) or not isinstance(value.get("choices"), list):
            raise failures.not_a_completion(
                "the body is neither an event stream nor a completion",
                body[:_HEAD_BYTES],
                endpoint=self._endpoint,
                redact=self._redact,
            )
        yield from self._chunk(value)


def _loads(data: bytes) -> Any:
    try:
        return codec.loads(data)
    except UnicodeDecodeError:  # bad bytes cost a character, never the stream
        return codec.loads(data.decode("utf-8", "replace"))
