"""The two doors: `connect_stdio` and `connect_http`. Arguments are checked here, once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from llm_agent.call_context import Asker
from llm_agent.errors import ConfigError
from llm_agent.mcp.bridge import McpServer
from llm_agent.mcp.client import Client
from llm_agent.mcp.link import LinkOptions
from llm_agent.mcp.ways import Address, Command

ProtocolChoice = Literal["auto", "handshake"]
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

_CHOICES: Final = get_args(ProtocolChoice)
_LEVELS: Final = get_args(LogLevel)
# Source: RFC 9110, section 5.6.2, the token.
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def connect_stdio(
    command: str | os.PathLike[str],
    args: Sequence[str | os.PathLike[str]] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    restart: bool = False,
    *,
    name: str | None = None,
    connect_timeout: float = 30,
    request_timeout: float | None = 60,
    tool_concurrency: int = 4,
    on_elicit: Asker | None = None,
    elicitation: bool = True,
    log_level: LogLevel | None = "info",
    protocol: ProtocolChoice = "auto",
) -> McpServer:
    """Start an MCP server as a child process and return its tools as a provider.

    Args:
        command: the program, found through PATH. No shell is involved.
        env: variables beside the few that a server inherits (`HOME`, `LANG`, `PATH`, `TMPDIR`,
            `USER` and the like). Nothing else of this process's environment reaches it, keys of
            model vendors least of all.
        restart: whether the next use after the server has died starts it again. A call is never
            sent twice in any case.
        name: what the server is called in answers, errors and questions; the program's name by default.
        connect_timeout: seconds in which the server must have answered.
        request_timeout: seconds in which a call must be answered, `None` for ever; they stand
            still while a human answers the server's questions. The deadline of the run's tool call
            holds besides.
        tool_concurrency: how many calls may be out at once when all of a batch are annotated
            read-only and idempotent; otherwise they are run one after the other.
        on_elicit: answers the server's questions: called with `{"kind": "server-elicit", "tool",
            "server", "request"}` on the thread that made the call; `request` is the wire's
            (`mode`, `message`, `requestedSchema` or `url`). The call's deadline stands still
            meanwhile; `policy.elicit_hook` asks in turn with the policy's own questions, and
            `loop.wrap_ask` tells the run. It returns `{"action", "content"?}`, a
            bare action (`accept`, `decline`, `cancel`) or a bool. Without one the policy in front is
            asked if it has `claim_elicits=True`, or else the loop's `on_ask`; without any of them
            the question is declined. A prompt cannot be taken back: that
            the server has died meanwhile is the answer to the call once the prompt is over.
        elicitation: False does not even offer the server to ask.
        log_level: the least important log lines that are wanted, as Log events; `None` for none.
        protocol: `handshake` for a server that cannot bear being asked for a newer version, or that
            asks its questions by itself (`ctx.elicit` of the SDK), which the newer ones have no way for.

    Raises:
        ConfigError: an argument that cannot work, or the extra `mcp` is not installed.
        McpError: the server could not be started, died, or did not answer in time.

    Threads: any. Whatever a server writes to standard error is read at once and its end is kept.
    """
    parts = [_program(command), *_arguments(args)]
    _check_texts("env", env, _is_variable)
    _check_folder(cwd)
    way = Command(command=parts[0], args=parts[1:], env=env, cwd=cwd)
    options = _options(protocol, connect_timeout, request_timeout, elicitation, log_level, on_elicit)
    return _connected(way, name, options, restart, tool_concurrency, on_elicit)


def connect_http(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    name: str | None = None,
    reconnect: bool = True,
    connect_timeout: float = 30,
    request_timeout: float | None = 60,
    tool_concurrency: int = 4,
    on_elicit: Asker | None = None,
    elicitation: bool = True,
    log_level: LogLevel | None = "info",
    protocol: ProtocolChoice = "auto",
) -> McpServer:
    """Connect to an MCP server over streamable HTTP and return its tools as a provider.

    Args:
        url: the address of the server's endpoint, `http` or `https`.
        headers: sent with every request, an `Authorization` for one. Never shown in errors.
        reconnect: whether the next use after the connection was lost makes another one, in a new
            session of the server's. A call is never sent twice in any case.
        name, connect_timeout, request_timeout, tool_concurrency, on_elicit, elicitation, log_level, protocol:
            as for `connect_stdio`.

    Raises:
        ConfigError: an argument that cannot work, or the extra `mcp` is not installed.
        McpError: nobody listens there, what does is no MCP server, or it did not answer in time.

    Threads: any.
    """
    if not isinstance(url, str) or not _is_address(url):
        raise ConfigError(f"connect_http: url must be an http or https address, got {url!r}")
    _check_texts("headers", headers, _is_header)
    options = _options(protocol, connect_timeout, request_timeout, elicitation, log_level, on_elicit)
    way = Address(url=url, headers=dict(headers or {}), connect_timeout=connect_timeout)
    return _connected(way, name, options, reconnect, tool_concurrency, on_elicit)


def _connected(
    way: Command | Address,
    name: str | None,
    options: LinkOptions,
    may_restart: bool,
    tool_concurrency: int,
    on_elicit: Asker | None,
) -> McpServer:
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"mcp: name must be a text, got {type(name).__name__}")
    if isinstance(tool_concurrency, bool) or not isinstance(tool_concurrency, int) or tool_concurrency < 1:
        raise ConfigError(f"mcp: tool_concurrency must be a number of calls, at least 1, got {tool_concurrency!r}")
    _load_sdk()
    client = Client(way, options, may_restart, name)
    try:
        client.live()
    except BaseException:
        client.close()
        raise
    return McpServer(
        client, request_timeout=options.request_timeout, tool_concurrency=tool_concurrency, on_elicit=on_elicit
    )


def _load_sdk() -> None:
    """Import what the portal will need, here: it takes a second, in which nobody else is held up.

    Raises:
        ConfigError: the SDK is not there, or too old.
    """
    try:
        import llm_agent.mcp.http
        import llm_agent.mcp.session
        import llm_agent.mcp.stdio  # noqa: F401
    except ImportError as problem:
        hint = "install the extra: pip install 'llm-agent[mcp]'"
        raise ConfigError(f"mcp: the official SDK, 2.3 or later, is needed; {hint} ({problem})") from problem


def _options(
    protocol: str,
    connect_timeout: float,
    request_timeout: float | None,
    elicitation: bool,
    log_level: str | None,
    on_elicit: Any,
) -> LinkOptions:
    if protocol not in _CHOICES:
        raise ConfigError(f"mcp: protocol must be one of {', '.join(_CHOICES)}, got {protocol!r}")
    if log_level is not None and log_level not in _LEVELS:
        raise ConfigError(f"mcp: log_level must be None or one of {', '.join(_LEVELS)}, got {log_level!r}")
    if on_elicit is not None and not callable(on_elicit):
        raise ConfigError(f"mcp: on_elicit must be callable, got {type(on_elicit).__name__}")
    if on_elicit is not None and not elicitation:
        raise ConfigError("mcp: on_elicit answers nothing with elicitation=False; drop one of them")
    _check_seconds("connect_timeout", connect_timeout)
    if request_timeout is not None:
        _check_seconds("request_timeout", request_timeout)
    return LinkOptions(
        protocol=protocol,
        connect_timeout=connect_timeout,
        request_timeout=request_timeout,
        elicitation=elicitation,
        log_level=log_level,
    )


def _check_seconds(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise ConfigError(f"mcp: {name} must be seconds above 0, got {value!r}")


def _program(command: Any) -> str:
    if not isinstance(command, str | os.PathLike) or not os.fspath(command):
        raise ConfigError(f"connect_stdio: command must be a program, got {command!r}")
    return _whole(os.fsdecode(command))


def _arguments(args: Any) -> list[str]:
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise ConfigError(f"connect_stdio: args must be a list of texts or paths, got {args!r}")
    try:
        return [_whole(os.fsdecode(arg)) for arg in args]
    except TypeError as problem:
        raise ConfigError(f"connect_stdio: args are texts or paths: {problem}") from None


def _whole(text: str) -> str:
    if not _is_system_text(text):
        raise ConfigError(f"connect_stdio: a command cannot hold a NUL character or half a character, got {text!r}")
    return text


def _check_folder(cwd: Any) -> None:
    if cwd is not None and not (isinstance(cwd, str | os.PathLike) and _is_system_text(os.fsdecode(cwd))):
        raise ConfigError(f"connect_stdio: cwd must be a folder, got {cwd!r}")


def _check_texts(name: str, values: Any, is_fit: Callable[[str, str], bool]) -> None:
    """Refuse what is no mapping of fitting texts; never shows a value: they are secrets."""
    if values is None:
        return
    if not isinstance(values, Mapping):
        raise ConfigError(f"mcp: {name} must be a mapping of text to text, got {type(values).__name__}")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigError(f"mcp: {name}[{key!r}] must be text, got {type(value).__name__}")
        if not is_fit(key, value):
            raise ConfigError(f"mcp: {name}[{key!r}] has characters in its name or its value that cannot be sent")


def _is_variable(name: str, value: str) -> bool:
    return name != "" and "=" not in name and _is_system_text(name + value)


def _is_header(name: str, value: str) -> bool:
    return _HEADER_NAME.fullmatch(name) is not None and value.isascii() and value.isprintable()


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address, a port that is none
        return False
    return parts.scheme in ("http", "https") and has_place and url.isprintable() and " " not in url


def _is_system_text(text: str) -> bool:
    """Whether the operating system can be given *text*."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
