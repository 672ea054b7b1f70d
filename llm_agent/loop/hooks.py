"""Thin adapters for code that lives outside a call, such as a tool server's reader thread.

Inside a call the normal way is `current_call()`. An adapter speaks for the call whose context
it finds on its thread, else for the batch that is in flight at this moment; with neither it
says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from llm_agent.call_context import Asker, current_call
from llm_agent.loop.state import Host


def _speaker(in_flight: Callable[[], Host | None]) -> Host | None:
    context = current_call()
    if context is not None:
        return cast("Host", context._host)
    return in_flight()


def asker_through(in_flight: Callable[[], Host | None], asker: Asker) -> Asker:
    """Return *asker* with AskPending and AskAnswered around it, and the deadline standing still."""

    def ask(request: Mapping[str, Any]) -> Any:
        host = _speaker(in_flight)
        if host is None:
            return asker(request)
        context = current_call()
        return host.ask((context or host.context).id, request, asker)

    return ask


def log_through(in_flight: Callable[[], Host | None], params: Mapping[str, Any]) -> None:
    """Turn a server's log notification into a Log event."""
    host = _speaker(in_flight)
    if host is None:
        return
    logger, data = params.get("logger"), params.get("data")
    host.log(params.get("level") or "info", "" if data is None else data, logger if isinstance(logger, str) else None)


def progress_through(in_flight: Callable[[], Host | None], params: Mapping[str, Any]) -> None:
    """Turn a server's progress notification into a ToolProgress event, if it names a call in flight."""
    host = _speaker(in_flight)
    call_id = params.get("tool-call-id")
    if host is not None and isinstance(call_id, str):
        host.progress(call_id, params.get("progress"), params.get("total"), params.get("message"))
