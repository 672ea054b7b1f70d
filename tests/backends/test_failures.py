"""Exceptions by type, waits by header, sentences by vendor."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Any

import pytest
import requests
import urllib3.exceptions as u3

from llm_agent.backends.failures import Redactor, class_of, from_exception, message_of, retry_after

DATE = "Wed, 02 Dec 2026 01:00:00 GMT"
LATER = "Wed, 02 Dec 2026 01:00:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "86400"}, 86400.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": LATER, "date": DATE}, 30.0),
        ({"retry-after": DATE, "date": LATER}, None),
        ({"retry-after": "Wed, 02 Dec 1998 01:00:00 GMT"}, None),
        ({"retry-after": "Wed, 99 Dec 2026 01:00:00 GMT"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "-1", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "x"}, None),
    ],
)
def test_the_wait_a_server_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, milliseconds, or a date by the server's own clock; nothing else is a wait."""
    assert retry_after(headers) == seconds


def test_a_date_without_a_clock_beside_it_is_compared_with_ours() -> None:
    """Far in the future is a long wait."""
    wait = retry_after({"retry-after": "Wed, 02 Dec 2099 01:00:00 GMT"})

    assert wait is not None
    assert wait > 1_000_000


def wrapped(*chain: BaseException) -> Exception:
    """Each exception holds the next, as urllib3 and requests do it, in their different ways."""
    outer = requests.ConnectionError("outer")
    current: BaseException = outer
    for exc in chain:
        current.__cause__ = exc
        current = exc
    return outer


POOL: Any = None


@pytest.mark.parametrize(
    ("exc", "is_connected", "expected"),
    [
        (requests.ConnectTimeout("timeout"), True, "connection"),
        (requests.ReadTimeout("x"), True, "timeout"),
        (requests.ReadTimeout("x"), False, "connection"),
        (requests.exceptions.ProxyError("x"), True, "connection"),
        (requests.exceptions.SSLError("timeout"), True, "connection"),
        (requests.exceptions.ChunkedEncodingError("timeout"), True, "connection"),
        (requests.exceptions.ContentDecodingError("x"), True, "response"),
        (requests.exceptions.InvalidHeader("x"), False, "unknown"),
        (u3.ReadTimeoutError(POOL, "", "x"), True, "timeout"),
        (u3.ProtocolError("timed out", http.client.IncompleteRead(b"")), True, "connection"),
        (u3.ProtocolError("aborted", TimeoutError()), True, "timeout"),
        (u3.DecodeError("x"), True, "response"),
        (wrapped(u3.MaxRetryError(POOL, "", u3.ConnectTimeoutError(POOL, "x"))), True, "connection"),
        (wrapped(u3.ConnectTimeoutError(POOL, "x"), TimeoutError()), True, "connection"),
        (wrapped(ValueError(), TimeoutError()), True, "timeout"),
        (http.client.RemoteDisconnected("x"), True, "connection"),
        (http.client.IncompleteRead(b""), True, "connection"),
        (ConnectionResetError("timeout"), True, "connection"),
        (socket.gaierror(-2, "timeout"), False, "connection"),
        (ssl.SSLError("x"), True, "connection"),
        (AttributeError("'NoneType' object has no attribute 'readline'"), True, "connection"),
        (TimeoutError("x"), True, "timeout"),
        (ValueError("connection timeout"), True, "unknown"),
        (ZeroDivisionError(), False, "unknown"),
    ],
)
def test_an_exception_is_judged_by_type_and_causes(exc: Exception, is_connected: bool, expected: str) -> None:
    """Never by the words in its text."""
    assert class_of(exc, is_connected=is_connected) == expected


def test_the_words_are_the_innermost_ones() -> None:
    """What the system said, not how often it was wrapped."""
    refused = ConnectionRefusedError(111, "Connection refused")
    exc = wrapped(u3.MaxRetryError(POOL, "/secret", u3.NewConnectionError(POOL, f"failed: {refused}")), refused)

    error = from_exception(exc, endpoint="http://x.test", is_connected=False, redact=Redactor(()))

    assert str(error) == "http://x.test: no connection: Connection refused"


def test_exceptions_that_hold_each_other_are_walked_once() -> None:
    """A circle ends."""
    one, two = OSError("one"), OSError("two")
    one.__cause__, two.__cause__ = two, one

    assert class_of(one, is_connected=True) == "connection"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"message": "m"}, "m"),
        ({"detail": "m"}, "m"),
        ({"detail": [{"loc": ["body"], "msg": "m"}]}, "m"),
        ({"detail": {"msg": "m", "type": "bad_input"}}, "m (bad_input)"),
        ([{"error": {"message": "m", "code": 404}}], "m"),
        ("m", "m"),
        ({"error": {"message": "m", "code": "context_length_exceeded"}}, "m (context_length_exceeded)"),
        ({"error": {"message": "m", "metadata": {"raw": "the cause"}}}, "m: the cause"),
        ({"error": {"odd": 1}}, '{"odd":1}'),
        (None, "null"),
    ],
)
def test_the_sentence_of_an_error_is_found(value: Any, message: str) -> None:
    """Every vendor hides it elsewhere."""
    assert message_of(value) == message


def test_a_redactor_hides_whole_and_nested_secrets() -> None:
    """The longest first; its repr has none; short words stay words."""
    redact = Redactor(("secret-1", "secret-1-long", "no"))

    assert redact("secret-1-long and secret-1, no") == "[redacted] and [redacted], no"
    assert "secret" not in repr(redact)
