"""One conversation with a server in the SDK's words: handshake, catalogue, calls, what it tells.

Both generations of the protocol: the handshake (`initialize`, to 2025-11-25), where a server asks
its questions in requests of its own, and discovery (`server/discover`, from 2026-07-28), where a
call is answered with questions and sent again with the answers. What comes back is plain data.

Imports the SDK; only ever imported by those who need it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any, Final

import anyio
import mcp_types
from anyio.abc import TaskGroup
from mcp import ClientSession, MCPError
from mcp.client.session import ClientRequestContext
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from llm_agent.mcp.catalogue import NO_PARAMETERS
from llm_agent.mcp.content import KNOWN_BLOCKS, text_of_block

_log = logging.getLogger("llm_agent.mcp")

# What a server does wrong arrives here as an error in any case. The SDK logs it besides, with its
# tracebacks, which Python would print where a program has set up no logging.
for _chatty in ("mcp", "client"):
    logging.getLogger(_chatty).addHandler(logging.NullHandler())

# How long a server may take to say that it does not know `server/discover`, in seconds, and as a
# part of the whole. Old servers that stay silent instead of saying so are asked to initialize then.
_DISCOVERY_PATIENCE: Final = 5.0
_DISCOVERY_SHARE: Final = 1 / 3
# How many pages a catalogue may have, and how often one call may be answered with questions.
_MOST_PAGES: Final = 100
_MOST_QUESTIONS: Final = 8
# The pause before a call that was answered with neither a result nor a question, in seconds.
_ASK_AGAIN: Final = 0.1

Elicit = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Asked with the question as plain data; answers `{"action", "content"?}`."""
Tell = Callable[[str, Any, str | None], None]
"""Told a log line: level, data, logger."""
Report = Callable[[float, float | None, str | None], None]
"""Told how far a call is."""

_CALL_RESULT: TypeAdapter[Any] = TypeAdapter(mcp_types.CallToolResult | mcp_types.InputRequiredResult)


class _LenientDispatcher(JSONRPCDispatcher[Any]):
    """Passes on what the SDK would refuse whole for a part of it.

    What a tool did is not lost by the kind of its content, nor a catalogue by what one tool says
    of itself.
    """

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **related: Any
    ) -> dict[str, Any]:
        result = await super().send_raw_request(method, params, opts, **related)
        blocks, tools = result.get("content"), result.get("tools")
        if method == "tools/call" and isinstance(blocks, list):
            return {**result, "content": [_readable(block) for block in blocks]}
        if method == "tools/list" and isinstance(tools, list):
            return {**result, "tools": [_usable(tool) for tool in tools]}
        return result


def _usable(tool: Any) -> Any:
    """What is used of a tool; a schema, a description or a hint of a wrong form is as good as none."""
    if not isinstance(tool, Mapping):
        return tool
    schema, description, hints = tool.get("inputSchema"), tool.get("description"), tool.get("annotations")
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        schema = NO_PARAMETERS
    usable: dict[str, Any] = {"name": tool.get("name"), "inputSchema": {"type": "object", **schema}}
    if isinstance(description, str):
        usable["description"] = description
    if isinstance(hints, Mapping):
        usable["annotations"] = {
            name: value for name, value in hints.items() if isinstance(value, str if name == "title" else bool)
        }
    return usable


def _readable(block: Any) -> Any:
    if isinstance(block, Mapping) and block.get("type") in KNOWN_BLOCKS:
        return block
    return {"type": "text", "text": text_of_block(block)}


class SdkSession:
    """A conversation over the two streams of a transport. Only ever used on the portal."""

    def __init__(
        self,
        streams: Any,
        *,
        elicit: Elicit | None,
        tell: Tell,
        on_tools_changed: Callable[[], None],
        log_level: Any,
    ) -> None:
        self._elicit = elicit
        self._tell = tell
        self._on_tools_changed = on_tools_changed
        self._log_level = log_level
        self._sdk = ClientSession(
            dispatcher=_LenientDispatcher(*streams),
            client_info=mcp_types.Implementation(name="llm-agent", version=metadata.version("llm-agent")),
            elicitation_callback=None if elicit is None else self._answer_question,
            logging_callback=self._pass_log,
            message_handler=self._hear,
            log_level=log_level,
        )
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hear and be heard until the block ends."""
        async with self._sdk, anyio.create_task_group() as self._tasks:
            try:
                yield
            finally:
                self._tasks.cancel_scope.cancel()

    # -- the beginning ---------------------------------------------------------------------------

    async def greet(self, protocol: str, connect_timeout: float) -> None:
        """Agree on a version of the protocol.

        Args:
            protocol: `auto`, or `handshake` for servers that do not take being asked.
            connect_timeout: seconds that the caller will wait.
        """
        patience = min(_DISCOVERY_PATIENCE, connect_timeout * _DISCOVERY_SHARE)
        if protocol == "handshake" or not await self._discovers(patience):
            try:
                await self._sdk.initialize()
            except MCPError as problem:
                # A server of the newer kind that only was slow: it has heard the first question meanwhile.
                if problem.code != mcp_types.UNSUPPORTED_PROTOCOL_VERSION or protocol == "handshake":
                    raise
                await self._sdk.discover()
        capabilities = self._sdk.server_capabilities
        is_modern = self.protocol_version in MODERN_PROTOCOL_VERSIONS
        tools = None if capabilities is None else capabilities.tools
        assert self._tasks is not None  # `running` has begun
        if is_modern and tools is not None and tools.list_changed:
            self._tasks.start_soon(self._listen)
        if not is_modern and capabilities is not None and capabilities.logging and self._log_level:
            self._tasks.start_soon(self._set_log_level)

    async def _discovers(self, patience: float) -> bool:
        with anyio.move_on_after(patience):
            try:
                await self._sdk.discover()
                return True
            except (MCPError, ValidationError, RuntimeError):  # it does not know the word, or no version of ours
                return False
        return False

    async def _listen(self) -> None:
        """Hear of changes in the catalogue, where that is said on a stream of its own."""
        try:
            async with listen(self._sdk, tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_tools_changed()
        except (MCPError, SubscriptionLost, TimeoutError) as problem:
            _log.debug("no news of changes in the catalogue: %s", problem)
        self._on_tools_changed()  # from here on nobody would say so

    async def _set_log_level(self) -> None:
        request = mcp_types.SetLevelRequest(params=mcp_types.SetLevelRequestParams(level=self._log_level))
        try:
            await self._sdk.send_request(request, mcp_types.EmptyResult)
        except (MCPError, ValidationError) as problem:
            _log.debug("the server does not take a log level: %s", problem)

    @property
    def protocol_version(self) -> str:
        return self._sdk.protocol_version or ""

    @property
    def instructions(self) -> str | None:
        return self._sdk.instructions

    # -- requests --------------------------------------------------------------------------------

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return every tool as the wire has it: `name`, `description`?, `inputSchema`, `annotations`?, ..."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._sdk.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
            found += [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise RuntimeError(f"the catalogue has more than {_MOST_PAGES} pages")

    async def call_tool(self, name: str, arguments: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """Call a tool and return the result as the wire has it; questions on the way are asked and answered."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            report(progress, total, message)

        answers: Any = None
        state: str | None = None
        for _ in range(_MOST_QUESTIONS + 1):
            # Not `ClientSession.call_tool`: it drops a result that does not fit the tool's own schema.
            params = mcp_types.CallToolRequestParams(
                name=name, arguments=dict(arguments), input_responses=answers, request_state=state
            )
            request = mcp_types.CallToolRequest(params=params)
            result = await self._sdk.send_request(request, _CALL_RESULT, progress_callback=on_progress)
            if not isinstance(result, mcp_types.InputRequiredResult):
                dumped: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
                return dumped
            answers, state = await self._answer_all(result.input_requests or {}), result.request_state
        raise RuntimeError(f"it was answered with questions more than {_MOST_QUESTIONS} times")

    async def _answer_all(self, questions: Mapping[str, Any]) -> dict[str, Any] | None:
        if not questions:  # it wants to be asked again, and not at once
            await anyio.sleep(_ASK_AGAIN)
        answers: dict[str, Any] = {}
        for key, question in questions.items():
            context = ClientRequestContext(session=self._sdk, request_id=key)
            answer = await self._sdk.dispatch_input_request(context, question)
            if isinstance(answer, mcp_types.ErrorData):
                raise MCPError.from_error_data(answer)
            answers[key] = answer
        return answers or None

    # -- what the server says on its own -----------------------------------------------------------

    async def _answer_question(self, context: Any, params: Any) -> Any:
        assert self._elicit is not None
        question = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        question.pop("_meta", None)
        answer = await self._elicit(question)
        try:
            return mcp_types.ElicitResult.model_validate(answer)
        except ValidationError:
            _log.warning("an answer to a server's question has content that is no flat form; it was declined")
            return mcp_types.ElicitResult(action="decline")

    async def _pass_log(self, params: Any) -> None:
        self._tell(params.level, params.data, params.logger)

    async def _hear(self, message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._on_tools_changed()
