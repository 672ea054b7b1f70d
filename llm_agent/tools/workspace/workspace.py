"""One folder to work in, as a tool provider: read, write, edit, list, glob, grep, run.

The law is the provider's: one answer per call, in order, and nothing raised. File tools never
leave the folder (`confinement`); a command is not held by that, which is why `run` is off
unless it is asked for, and why a policy belongs around both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ArtifactStore
from llm_agent.tool_operation import Idempotency
from llm_agent.tools.function import tool
from llm_agent.tools.toolbox import Toolbox
from llm_agent.tools.workspace import listing, search, text_files
from llm_agent.tools.workspace.commands import Commands
from llm_agent.tools.workspace.confinement import Root

_DEFAULT_LINES: Final = 2_000


class Workspace:
    """The tools of one folder. Immutable; share it between loops and threads.

        Loop(..., tools=[Workspace("."), ...])
        registry.add(Workspace("."), "fs")          # fs_read, fs_write, ...

    Args:
        root: an existing folder. Links on the way to it are followed once, here.
        write: whether there are `write` and `edit`.
        run: whether there is `run`. A command may do whatever this process's user may.
        env: the whole environment of commands; by default this process's without `OPENAI_API_KEY`,
            but with whatever other secrets are in there.
        run_timeout: seconds that a command may take, and the most a model may ask for. Less when
            the call's own deadline is nearer: then it is killed shortly before, and answered.
        artifacts: keeps output that is too long to be shown (4 MiB of it at most); offer the
            model its `read_artifact`, too.

    Raises:
        ConfigError: *root* is no folder, or another argument cannot work.

    File tools follow links that stay inside and refuse those that lead out, also when links are
    swapped meanwhile. `grep` uses ripgrep where there is an `rg`; `.gitignore` files count for `glob`,
    and for `grep` without ripgrep, where `pathspec` is installed (extra `workspace`).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        write: bool = True,
        run: bool = False,
        env: Mapping[str, str] | None = None,
        run_timeout: float = 120.0,
        artifacts: ArtifactStore | None = None,
    ) -> None:
        for option, value in {"write": write, "run": run}.items():
            if not isinstance(value, bool):
                raise ConfigError(f"Workspace: {option} must be True or False, got {value!r}")
        if env is not None and not (isinstance(env, Mapping) and all(map(_is_text, (*env, *env.values())))):
            raise ConfigError("Workspace: env must be a mapping of texts, the whole environment of commands")
        if isinstance(run_timeout, bool) or not isinstance(run_timeout, int | float) or not run_timeout > 0:
            raise ConfigError(f"Workspace: run_timeout must be a number of seconds above 0, got {run_timeout!r}")
        if artifacts is not None and not callable(getattr(artifacts, "write", None)):
            raise ConfigError(f"Workspace: artifacts must be a store with write(), got {type(artifacts).__name__}")
        self._root = Root(root)
        self._commands = Commands(root=self._root, env=env, longest=float(run_timeout), artifacts=artifacts)
        tools: list[Callable[..., Any]] = [self.read, self.list_folder, self.glob, self.grep]
        tools += [self.write, self.edit] if write else []
        tools += [self.run] if run else []
        self._toolbox = Toolbox(tools)

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r}: {', '.join(self.names)})"

    @property
    def root(self) -> Path:
        """The folder, absolute and without links. For a policy's `roots`."""
        return self._root.path

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools."""
        return self._toolbox.names

    # -- the provider ------------------------------------------------------------------------

    def tools_for_llm(self) -> list[dict[str, Any]]:
        """Return one declaration per tool; the caller may change them."""
        declarations = self._toolbox.tools_for_llm()
        for function in (declaration["function"] for declaration in declarations):
            if function["name"] == "run":  # the one thing that this folder's owner decides
                timeout = function["parameters"]["properties"]["timeout"]
                timeout["description"] += f"; {self._commands.longest:g} by default and at most"
        return declarations

    def idempotency_of(self, name: str) -> Idempotency:
        """What repeating a call of *name* would do; `unknown` for other names."""
        return self._toolbox.idempotency_of(name)

    def execute_tool_calls(self, calls: Sequence[ToolRequest | Mapping[str, Any]]) -> list[ToolAnswer]:
        """Run *calls*, one after the other, and answer each; see `Toolbox.execute_tool_calls`."""
        return self._toolbox.execute_tool_calls(calls)

    # -- the tools -----------------------------------------------------------------------------

    @tool(idempotency="read-only")
    def read(self, path: str, offset: int = 1, limit: int = _DEFAULT_LINES) -> str:
        """Read a text file. Each line comes with its number and a tab in front; they are not part of the file.

        Args:
            path: the file, as a path from the root of the workspace, such as `src/main.py`
            offset: number of the first line to read
            limit: how many lines to read; about 15000 characters are shown at most
        """
        return text_files.read_page(self._root, path, offset, limit)

    @tool(idempotency="read-only", name="list")
    def list_folder(self, path: str = ".") -> str:
        """List the names in a folder. Folders end with a slash.

        Args:
            path: the folder, as a path from the root of the workspace; `.` is the root itself
        """
        return listing.list_names(self._root, path)

    @tool(idempotency="read-only")
    def glob(self, pattern: str, path: str = ".") -> str:
        """Find files by their names, in all folders below. Files that a .gitignore names may be left out.

        Args:
            pattern: such as `*.py`, `**/test_*.py` or `src/*.{c,h}`; without a slash it fits names in any folder
            path: the folder to look in; the pattern starts there
        """
        return listing.find_files(self._root, pattern, path)

    @tool(idempotency="read-only")
    def grep(self, pattern: str, path: str = ".", glob: str = "", context: int = 0, ignore_case: bool = False) -> str:
        """Find lines that match a regular expression. Binary files are left out; files in a .gitignore may be, too.

        Args:
            pattern: a regular expression such as `def \\w+`, matched within one line; `\\.` for a dot itself
            path: the file or folder to search in
            glob: search only files whose path from the root fits this pattern, such as `*.py`
            context: how many lines before and after each match to show
            ignore_case: whether upper and lower case are the same
        """
        sought = search.Sought(pattern=pattern, path=path, glob=glob, context=context, ignore_case=ignore_case)
        return search.search(self._root, sought, ripgrep=search.find_ripgrep())

    @tool(idempotency="idempotent")
    def write(self, path: str, content: str) -> str:
        """Write a whole text file: make it, with the folders it needs, or replace what was there.

        Args:
            path: the file, as a path from the root of the workspace
            content: the whole new text of the file; what is not in it is gone
        """
        return text_files.write_whole(self._root, path, content)

    @tool
    def edit(self, path: str, old: str, new: str, replace_all: bool = False) -> str:
        """Replace a text in a file by another. Shows what changed. Read the file first.

        Args:
            path: the file, as a path from the root of the workspace
            old: the text to replace, exactly as it stands in the file, white space included, without line
                numbers; it must occur once, so give enough of what is around it
            new: the text to put in its place
            replace_all: replace every occurrence instead
        """
        return text_files.edit_part(self._root, path, old, new, replace_all)

    @tool
    def run(self, command: str, args: list[str] | None = None, timeout: float | None = None) -> ToolAnswer:
        """Run a program in the root of the workspace, and wait for its end. It reads no input.

        No shell is involved: for pipes, `&&`, `*` and the like give `sh` as command and `["-c", "the line"]` as args.
        What it leaves running in the background is killed when it ends.

        Args:
            command: the program alone, such as `git`
            args: its arguments, one item each, such as `["log", "-n", "3"]`
            timeout: seconds after which it is killed
        """
        return self._commands.run(command, args or [], timeout)


def _is_text(value: object) -> bool:
    return isinstance(value, str)
