"""A file server on the official SDK for one folder: reads, lists and writes text files.

files.py FOLDER
"""

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

folder = Path(sys.argv[1]).resolve()
server = MCPServer("files")
looks = ToolAnnotations(read_only_hint=True)


def inside(path: str) -> Path:
    place = (folder / path).resolve()
    if not place.is_relative_to(folder):
        raise ValueError(f"{path} is outside of the folder")
    return place


@server.tool(annotations=looks)
def read_text_file(path: str) -> str:
    """Read a text file."""
    return inside(path).read_text()


@server.tool(annotations=looks)
def list_directory(path: str) -> str:
    """List a folder."""
    return "\n".join(sorted(entry.name for entry in inside(path).iterdir()))


@server.tool()
def write_file(path: str, content: str) -> str:
    """Write a text file."""
    place = inside(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)
    return f"wrote {path}"


server.run("stdio")
