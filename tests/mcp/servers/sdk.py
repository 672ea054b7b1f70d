"""A tool server on the official SDK, which speaks both generations of the protocol.

sdk.py stdio | http PORT
"""

import sys
import warnings
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("sdk", instructions="Add before you ask.")


class Who(BaseModel):
    name: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def work(ctx: Context) -> str:
    """Tell of progress and write to the log."""
    await ctx.report_progress(1, 2, "half")
    await ctx.report_progress(2, 2, "whole")
    with warnings.catch_warnings(action="ignore"):  # logging is deprecated in the newer generation, and still there
        await ctx.info("working")
    return "worked"


async def who() -> Elicit[Who]:
    return Elicit("Who is there?", Who)


@server.tool()
async def ask(who: Annotated[Who, Resolve(who)]) -> str:
    """Ask who is there: in a request of its own, or in an answer, as the generation has it."""
    return who.name


def late() -> str:
    """Come late."""
    return "late"


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one tool more."""
    server.add_tool(late)
    await ctx.notify_tools_changed()  # to who listens, in the newer generation
    await ctx.session.send_tool_list_changed()  # to everybody, in the older one
    return "grown"


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
