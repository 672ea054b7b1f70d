"""`OpenAIBackend`: any server that speaks chat completions over server-sent events.

The law: `stream` does nothing but prepare; iterating does the I/O, on the thread that
iterates, and `cancel` ends it from any other. A completion that returns is whole; whatever
else happens is one `BackendError` without a secret in it. Retrying is not decided here.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import attrs
import requests

from llm_agent.backends.completion import Completion
from llm_agent.backends.connection import Lifeline, Resolver
from llm_agent.backends.failures import Redactor
from llm_agent.backends.http import Exchange, GuestExchange, PooledExchange
from llm_agent.backends.wire import NullContent, request_body, tools_json
from llm_agent.errors import ConfigError
from llm_agent.ports import CompletionRequest, ToolDeclaration

OPENAI_URL = "https://api.openai.com/v1"

MaxTokensField = Literal["max_tokens", "max_completion_tokens"]

# Compression would only invite a proxy to collect tokens until a block is full.
_HEADERS = {
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "llm-agent",
}


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e\xa0-\xff](?:[\t\x20-\x7e\xa0-\xff]*[\x21-\x7e\xa0-\xff])?")


@attrs.frozen(eq=False, repr=False)
class OpenAIBackend:
    """A model behind an OpenAI-compatible server (OpenAI, llama.cpp, Ollama, vLLM, LM Studio, routers).

    Share one freely between loops, runs and threads. Connections are kept alive in one pool
    per process, and made anew in a forked child.

    Args:
        model: the model's name, as the server calls it.
        base_url: what `/chat/completions` is put behind; a query in it is kept and sent.
        api_key: sent as a bearer token. The default is `OPENAI_API_KEY` for OpenAI's own
            address and for the one in `OPENAI_BASE_URL`, and no key for any other; `""` is no key.
        max_tokens: the cap on one completion.
        temperature: passed on.
        extra_body: further keys of the request body; they override ours.
        headers: further headers; they override ours, and are treated as secrets.
        include_usage: ask for a usage report (`stream_options`); a few old servers refuse the question.
        connect_timeout: seconds for looking up the name, and again for connecting.
        read_timeout: seconds of silence after which a read gives up (class `timeout`). A
            backstop for those who iterate a stream themselves: the engine counts silence by
            events, and ends a stream much sooner.
        retry_after_cap: longest wait, in seconds, that a server's `Retry-After` may ask of a run.
        max_tokens_field: what the request calls *max_tokens*; OpenAI's reasoning models want
            `max_completion_tokens`.
        null_content: how the missing text of a turn with only tool calls is sent: `null`,
            `empty` (`""`) or `omit`.
        http: a session of yours, used as it is, in place of the shared pool.
        resolver: in place of `socket.getaddrinfo`; it may block.

    Raises:
        ConfigError: an option that cannot work.
    """

    model: str
    base_url: str = attrs.field(default=OPENAI_URL, kw_only=True)
    _api_key: str | None = attrs.field(default=None, kw_only=True)
    max_tokens: int | None = attrs.field(default=None, kw_only=True)
    temperature: float | None = attrs.field(default=None, kw_only=True)
    extra_body: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    _headers: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    include_usage: bool = attrs.field(default=True, kw_only=True)
    connect_timeout: float | None = attrs.field(default=10.0, kw_only=True)
    read_timeout: float | None = attrs.field(default=1800.0, kw_only=True)
    retry_after_cap: float = attrs.field(default=120.0, kw_only=True)
    max_tokens_field: MaxTokensField = attrs.field(default="max_tokens", kw_only=True)
    null_content: NullContent = attrs.field(default="null", kw_only=True)
    _http: requests.Session | None = attrs.field(default=None, kw_only=True)
    _resolver: Resolver | None = attrs.field(default=None, kw_only=True)

    _endpoint: str = attrs.field(init=False)
    _redact: Redactor = attrs.field(init=False)
    _has_key: bool = attrs.field(init=False)
    _options: dict[str, Any] = attrs.field(init=False)
    _template: requests.PreparedRequest = attrs.field(init=False)
    # The declarations sent last, and their bytes: one pair, so that threads see both or neither.
    _tools: list[tuple[tuple[ToolDeclaration, ...], bytes]] = attrs.field(factory=lambda: [((), b"[]")], init=False)

    def __attrs_post_init__(self) -> None:
        self._check()
        url = _completions_url(self.base_url)
        given = dict(self._headers or {})
        key = self._key()
        # Names of any case are one header to requests, and the last one stands.
        headers = {**_HEADERS, **({"Authorization": f"Bearer {key}"} if key else {}), **given}
        _check_headers(headers)
        derive = partial(object.__setattr__, self)  # frozen from here on: what threads share does not change
        derive("_has_key", any("auth" in name.lower() or "key" in name.lower() for name in headers))
        derive("_endpoint", urlunsplit(urlsplit(url)._replace(query="", fragment="")))
        derive("_redact", Redactor(_secrets(key, given, url)))
        derive("_options", self._body_options())
        derive("_template", _prepare(url, headers))

    def __repr__(self) -> str:
        base_url = urlunsplit(urlsplit(self.base_url)._replace(query="", fragment=""))
        return f"OpenAIBackend(model={self.model!r}, base_url={base_url!r})"

    def stream(self, request: CompletionRequest) -> Completion:
        """Prepare one completion and return its pieces; nothing is sent before they are iterated.

        Returns:
            An iterable of `str` and `Delta` with `cancel()` and `close()`.

        Raises (while iterating):
            BackendError: class `http` with a status, `timeout`, `connection` or `response`.

        Threads: iterate on one, cancel from any.
        """
        body = request_body(request, self._options, self._tools_json(request.tools), self.null_content)
        exchange = self._exchange(body)
        if request.cancelled.is_set():
            exchange.cancel()
        return Completion(exchange, self._endpoint, self._redact, self._has_key)

    def _exchange(self, body: bytes) -> Exchange:
        if self._http is not None:
            timeouts = (self.connect_timeout, self.read_timeout)
            return GuestExchange(self._http, str(self._template.url), self._template.headers, body, timeouts)
        message = self._template.copy()
        message.body = body
        message.headers["Content-Length"] = str(len(body))
        lifeline = Lifeline(
            resolver=self._resolver, connect_timeout=self.connect_timeout, read_timeout=self.read_timeout
        )
        return PooledExchange(message, lifeline)

    def _tools_json(self, tools: tuple[ToolDeclaration, ...]) -> bytes:
        # By identity: a run sends the same tuple in every round.
        known, known_json = self._tools[0]
        if tools is not known:
            known_json = tools_json(tools)
            self._tools[0] = (tools, known_json)
        return known_json

    def _body_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"model": self.model, "stream": True}
        if self.include_usage:
            options["stream_options"] = {"include_usage": True}
        if self.max_tokens is not None:
            options[self.max_tokens_field] = self.max_tokens
        if self.temperature is not None:
            options["temperature"] = self.temperature
        return options | dict(self.extra_body or {})

    def _key(self) -> str:
        if self._api_key is not None:
            return self._api_key.strip()  # a key read from a file ends in a line end
        own = {OPENAI_URL, os.environ.get("OPENAI_BASE_URL", "").rstrip("/")}
        return os.environ.get("OPENAI_API_KEY", "").strip() if self.base_url.rstrip("/") in own else ""

    def _check(self) -> None:
        _need("model", isinstance(self.model, str) and self.model.strip(), "a name", self.model)
        given = self.base_url if isinstance(self.base_url, str) else type(self.base_url)
        _need("base_url", isinstance(given, str) and given.strip(), "an address", given)
        # Of what may be secret, a message shows the type alone.
        _need("api_key", self._api_key is None or isinstance(self._api_key, str), "text", type(self._api_key))
        _need("headers", _is_mapping_or_none(self._headers), "a mapping", type(self._headers))
        _need("extra_body", _is_mapping_or_none(self.extra_body), "a mapping", type(self.extra_body))
        tokens = self.max_tokens
        _need("max_tokens", tokens is None or (type(tokens) is int and tokens >= 1), "a count of at least 1", tokens)
        _need("temperature", self.temperature is None or _is_number(self.temperature), "a number", self.temperature)
        for name in ("connect_timeout", "read_timeout"):
            seconds = getattr(self, name)
            _need(name, seconds is None or (_is_number(seconds) and seconds > 0), "seconds above 0, or None", seconds)
        cap = self.retry_after_cap
        _need("retry_after_cap", _is_number(cap) and cap >= 0, "seconds, 0 or more", cap)
        for name, words in (("max_tokens_field", get_args(MaxTokensField)), ("null_content", get_args(NullContent))):
            _need(name, getattr(self, name) in words, f"one of {', '.join(words)}", getattr(self, name))
        _need("http", self._http is None or isinstance(self._http, requests.Session), "a session", type(self._http))
        _need("resolver", self._resolver is None or callable(self._resolver), "callable", type(self._resolver))


def _need(option: str, holds: object, expected: str, got: object) -> None:
    if not holds:
        shown = got.__name__ if isinstance(got, type) else repr(got)
        raise ConfigError(f"OpenAIBackend: {option} must be {expected}, got {shown}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_mapping_or_none(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _completions_url(base_url: str) -> str:
    parts = urlsplit(base_url.strip())
    try:
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        is_complete = False
    shown = urlunsplit(parts._replace(query="", fragment="", netloc=parts.netloc.rpartition("@")[2]))
    _need("base_url", is_complete, "an address with http:// or https:// and a host", shown)
    _need("base_url", "@" not in parts.netloc, "without a user or password (use api_key= or headers=)", shown)
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return urlunsplit(parts._replace(path=f"{path}/chat/completions", fragment=""))


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        _need("headers", isinstance(name, str) and _HEADER_NAME.fullmatch(name), "named by HTTP tokens", name)
        is_sendable = isinstance(value, str) and _HEADER_VALUE.fullmatch(value)
        option = "api_key" if name == "Authorization" else f"headers[{name!r}]"
        _need(option, is_sendable, "ASCII text that fits into one header line", type(value))


def _secrets(key: str, headers: Mapping[str, str], url: str) -> tuple[str, ...]:
    queries = [value for _, value in parse_qsl(urlsplit(url).query)]
    # `Bearer abc` is a secret, and `abc` is.
    return (key, *headers.values(), *(value.split()[-1] for value in headers.values()), *queries)


def _prepare(url: str, headers: Mapping[str, str]) -> requests.PreparedRequest:
    try:
        return requests.Request("POST", url, headers=dict(headers)).prepare()
    except (requests.RequestException, UnicodeError) as exc:
        raise ConfigError(f"OpenAIBackend: base_url must be an address that can be sent to: {exc}") from exc
