"""What went wrong with an attempt, as a `BackendError`: its class, its words, its wait.

The law: judged by the type of an exception and of its causes, never by words in its text;
and no secret passes. The causes are not attached to what is raised: they hold the request,
and with it the key. Pure but for the clock that a date in `Retry-After` is compared with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any

import attrs
import requests
import urllib3.exceptions

from llm_agent import codec
from llm_agent.errors import BackendError, ErrorClass

# What a reader of a log can bear, in characters.
MESSAGE_CHARS = 2_000
# A shorter secret would blank out ordinary words.
_SHORTEST_SECRET = 6
_HIDDEN = "[redacted]"

_NEVER_CONNECTED = (
    requests.ConnectTimeout,
    requests.exceptions.ProxyError,
    requests.exceptions.SSLError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ProxyError,
    urllib3.exceptions.SSLError,
)
_QUIET = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)
_UNREADABLE = (requests.exceptions.ContentDecodingError, urllib3.exceptions.DecodeError)
# requests refuses what it was given: nothing of the network.
_OUR_FAULT = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)
# AttributeError: what urllib3 gives when a connection is taken away under it.
_NETWORK = (OSError, HTTPException, urllib3.exceptions.HTTPError, AttributeError)
# Wrappers of others' errors; what they wrap says more.
_WRAPPERS = (requests.RequestException, urllib3.exceptions.HTTPError)


def _worth_hiding(secrets: Iterable[str]) -> tuple[str, ...]:
    # Longest first: one secret may be part of another.
    return tuple(sorted({secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True))


@attrs.frozen
class Redactor:
    """Takes secrets out of text. Its repr shows none."""

    secrets: tuple[str, ...] = attrs.field(converter=_worth_hiding, repr=False)

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def causes(exc: BaseException) -> Iterator[BaseException]:
    """Walk *exc* and everything it wraps or came from, each once, outermost first."""
    waiting: list[object] = [exc]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop(0)
        if not isinstance(cause, BaseException) or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__]


def class_of(exc: BaseException, *, is_connected: bool) -> ErrorClass:
    """Judge an exception of the network: a connect that never stood is `connection`, silence after it `timeout`."""
    chain = list(causes(exc))

    def holds(*types: type[BaseException]) -> bool:
        return any(isinstance(cause, types) for cause in chain)

    if not holds(*_NETWORK) or holds(*_OUR_FAULT):
        return "unknown"
    if not is_connected or holds(*_NEVER_CONNECTED):
        return "connection"
    if holds(*_QUIET):
        return "timeout"
    return "response" if holds(*_UNREADABLE) else "connection"


def from_exception(exc: Exception, *, endpoint: str, is_connected: bool, redact: Redactor) -> BackendError:
    """Name what the network, or a guest's code, raised."""
    error_class = class_of(exc, is_connected=is_connected)
    detail = _shorten(redact(_words(exc)))
    match error_class:
        case "connection":
            what = "the connection broke" if is_connected else "no connection"
        case "timeout":
            what = "the server went quiet"
        case "response":
            what = "the body cannot be decoded"
        case _:
            what = f"unexpected {type(exc).__name__}"
    return BackendError(f"{endpoint}: {what}: {detail}", error_class)


def _words(exc: BaseException) -> str:
    plain = [cause for cause in causes(exc) if not isinstance(cause, _WRAPPERS)]
    told = plain[-1] if plain else exc
    text = (told.strerror if isinstance(told, OSError) else None) or str(told)
    return text or type(told).__name__


def from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, endpoint: str, redact: Redactor, has_key: bool
) -> BackendError:
    """Name an answer whose status is not 2xx; *body* is as much of its body as was read."""
    text = redact(body.decode("utf-8", "replace"))
    message = f"{endpoint}: HTTP {status}"
    if 300 <= status < 400:
        target = redact(headers.get("location") or "nowhere")
        message += f", a redirect to {target} that a POST cannot follow; base_url must name the final address"
    detail = _text_of_body(text)
    if detail:
        message += f": {_shorten(detail)}"
    if status in (401, 403) and not has_key:
        message += " (no API key was sent: pass api_key=)"
    return BackendError(message, "http", status, retry_after(headers), text[:MESSAGE_CHARS] or None)


def _text_of_body(text: str) -> str:
    try:
        return message_of(codec.loads(text))
    except ValueError:
        return _without_markup(text)


def _without_markup(text: str) -> str:
    if "<" in text:
        import html  # not at the top: its tables would be 2 % of importing the library

        text = re.sub(r"(?is)<(script|style)\b.*?</\1\s*>", " ", text)
        text = html.unescape(re.sub(r"(?s)<[^>]*>", " ", text))
    return " ".join(text.split())


def from_error_value(value: Any, *, endpoint: str, redact: Redactor) -> BackendError:
    """Name an error that came inside a 200: an object, a text, a list, whatever holds it."""
    status = _status_in(value)
    message = f"{endpoint}: the server reports an error: {_shorten(redact(message_of(value)))}"
    body = redact(codec.dumps(value).decode())[:MESSAGE_CHARS]
    return BackendError(message, "http" if status else "response", status, body=body)


def not_a_completion(what: str, text: bytes, *, endpoint: str, redact: Redactor) -> BackendError:
    """A body that is something else than what was asked for."""
    excerpt = redact(text.decode("utf-8", "replace"))
    detail = _shorten(_without_markup(excerpt))
    return BackendError(
        f"{endpoint}: {what}" + (f": {detail}" if detail else ""), "response", body=excerpt[:MESSAGE_CHARS] or None
    )


def _status_in(value: Any) -> int | None:
    """The HTTP status an error value names, wherever vendors put it; a numeric text counts."""
    if isinstance(value, list):
        return next((status for item in value if (status := _status_in(item))), None)
    if not isinstance(value, Mapping):
        return None
    for key in ("code", "status_code", "status", "http_status"):
        code = value.get(key)
        if isinstance(code, str) and re.fullmatch(r"\s*\d{3}\s*", code):
            code = int(code)
        if isinstance(code, int | float) and not isinstance(code, bool) and 400 <= code < 600:
            return int(code)
    return _status_in(value.get("error"))


def message_of(value: Any) -> str:
    """The sentence inside an error body of any vendor's shape; its JSON when there is none."""
    match value:
        case str():
            return value
        case [first, *_]:
            return message_of(first)
        case Mapping():
            return _message_in(value)
        case _:
            return codec.dumps(value).decode()


def _message_in(value: Mapping[str, Any]) -> str:
    inner = next((value[key] for key in ("error", "message", "detail", "msg") if value.get(key)), None)
    if inner is None:
        return codec.dumps(value).decode()
    message = message_of(inner)
    # A code in words tells what the sentence may leave out (`context_length_exceeded`).
    code = value.get("code") or value.get("type")
    if isinstance(code, str) and not code.isdigit() and code not in message:
        message += f" ({code})"
    # What a router passes on of the server behind it.
    metadata = value.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        message += f": {metadata['raw']}"
    return message


def _shorten(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS else text[:MESSAGE_CHARS] + "…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the server asks to be left alone, `None` when it does not say so usably."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    due = _date(value)
    # Both dates are of the server's clock, where it sends one; ours may differ by minutes.
    now = _date(headers.get("date")) or datetime.now(UTC)
    return (due - now).total_seconds() if due is not None and due > now else None


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return number if number >= 0 and math.isfinite(number) else None


def _date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value) if value else None
    except (ValueError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=UTC) if date is not None and date.tzinfo is None else date
