"""Recorded exchanges of real providers, served again from a real socket, assemble as they should."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_server import Collected, RawServer, answering, complete

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures"

if not FIXTURES.is_dir():
    pytest.skip("the recorded exchanges are not beside the project", allow_module_level=True)


def recorded(*formats: str) -> list[Any]:
    found = []
    for path in sorted(FIXTURES.glob("*.json")):
        fixture = json.loads(path.read_text())
        is_chat = fixture["endpoint"].endswith("/chat/completions") or fixture["format"] == "error"
        if is_chat and fixture["format"] in formats:
            found.append(pytest.param(fixture, id=path.stem))
    return found


def calls_of(expected: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """What a completion should ask for, in our terms.

    Two differences to the reference, both of form: a call whose arguments are never more than
    null or absent has none (the reference joins them to ""), and a legacy function_call is a
    call like any other, without an id.
    """
    calls = [(call["id"] or "", call["name"] or "", call["arguments"]) for call in expected["tool_calls"]]
    legacy = expected.get("function_call")
    return calls + ([("", legacy["name"], legacy["arguments"])] if legacy else [])


def text_of(expected: dict[str, Any]) -> str:
    """A refusal is what the model says: it is text here, a field of its own in the reference."""
    return str(expected["text"] + expected.get("refusal", ""))


def usage_numbers(raw: dict[str, Any] | None) -> dict[str, Any]:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: (raw or {}).get(name) for name in names}


def assert_assembled(collected: Collected, expected: dict[str, Any]) -> None:
    assert collected.text == text_of(expected)
    assert collected.reasoning == expected["reasoning"]
    assert [(i, n, a or "") for i, n, a in collected.calls] == calls_of(expected)
    assert collected.model == expected["model"]
    usage = collected.usage
    assert {name: getattr(usage, name, None) for name in usage_numbers(None)} == usage_numbers(expected["usage"])


@pytest.mark.parametrize("framing", ["chunked", "close", "length", "chunked+gzip", "close+gzip"])
@pytest.mark.parametrize("fixture", recorded("chat_sse"))
def test_a_recorded_stream_assembles_in_every_framing(
    serve: Callable[..., RawServer], fixture: dict[str, Any], framing: str
) -> None:
    """Text, reasoning, calls, finish reason, usage and model are what the provider sent."""
    expected = fixture["expected"]
    collected = complete(serve(answering(fixture["body_raw"].encode(), framing)))

    if expected["error"] is not None:
        assert collected.error is not None
        assert collected.text == text_of(expected)
        assert expected["error"]["message"] in str(collected.error)
        return
    assert collected.error is None
    assert collected.finish_reason == expected["finish_reason"]
    assert_assembled(collected, expected)


@pytest.mark.parametrize("fixture", recorded("chat_json"))
def test_a_recorded_document_is_understood(serve: Callable[..., RawServer], fixture: dict[str, Any]) -> None:
    """A server that answers a streaming request with one JSON document has answered."""
    body = fixture["body_raw"].encode()
    collected = complete(serve(answering(body, "length", headers={"Content-Type": "application/json"})))

    assert collected.error is None
    assert collected.finish_reason == fixture["expected"]["finish_reason"]
    assert_assembled(collected, fixture["expected"])


@pytest.mark.parametrize("fixture", recorded("error"))
def test_a_recorded_error_keeps_its_status_and_words(serve: Callable[..., RawServer], fixture: dict[str, Any]) -> None:
    """Class http with the status; one that came with 200 names its own."""
    status = fixture["status"]
    collected = complete(serve(answering(fixture["body_raw"].encode(), "length", status=status)))

    error = collected.error
    assert error is not None
    assert error.error_class == "http"
    assert error.status == (status if status != 200 else fixture["expected"]["error"]["status"])
    assert fixture["expected"]["error_message"] in str(error)
