"""Tools of real MCP servers, over the official SDK: the extra `mcp`.

The SDK is asynchronous; its event loop lives on one background thread (`portal`), and nothing of
it is ever seen from outside: threads, plain values and `McpError` are all there is.

From the user's side to the server's: `connect` checks the arguments, `bridge` is the provider,
`client` has a `link` (one connection) and makes another one where that is allowed, `exchange`
waits for a batch of calls on the thread that makes them, `session` speaks the SDK's words, and
`ways` leads to a process (`process`, `stdio`) or to an address (`http`).
"""

from __future__ import annotations

from llm_agent.mcp.bridge import McpServer as McpServer
from llm_agent.mcp.connect import connect_http as connect_http
from llm_agent.mcp.connect import connect_stdio as connect_stdio

__all__ = ["McpServer", "connect_http", "connect_stdio"]
