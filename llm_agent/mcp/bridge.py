"""An MCP server as a tool provider.

The law: one answer per call, in order, and nothing raised, whatever the server does. A call is
sent once; where its answer is lost, the model is told that its effect is unknown.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

import attrs

from llm_agent import notices
from llm_agent.call_context import Asker
from llm_agent.canonical import canonical_arguments
from llm_agent.layers import refused, requests_of, shortened, unreadable
from llm_agent.mcp.catalogue import Catalogue
from llm_agent.mcp.client import Client
from llm_agent.mcp.exchange import Exchange, Lost, answer_to, not_run
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.tool_operation import Idempotency

# Characters of the names that the answer to an unknown one lists: a server may have hundreds.
_MOST_NAMES: Final = 1_000


class McpServer:
    """The tools of one MCP server; made by `connect_stdio` and `connect_http`.

    May be shared by loops and threads. Usable in `with`, which closes it. After `os.fork()` a
    child that uses it makes a connection, and a server process, of its own.
    """

    def __init__(
        self, client: Client, *, request_timeout: float | None, tool_concurrency: int, on_elicit: Asker | None
    ) -> None:
        self._client = client
        self._request_timeout = request_timeout
        self._tool_concurrency = tool_concurrency
        self._on_elicit = on_elicit
        # At interpreter exit the processes are ended in any case.
        weakref.finalize(self, client.let_go).atexit = False

    def __repr__(self) -> str:
        return f"<McpServer {self._client.name!r}>"

    def __enter__(self) -> McpServer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and the server process with whatever it has started.

        Takes less than 5 s, whatever the server does: the end of its input, SIGTERM, SIGKILL.
        Calls that are out are answered at once. Again is fine; any thread; never raises. A server
        that was forgotten is ended when it is collected, and at interpreter exit at the latest.
        """
        self._client.close()

    # -- the provider ----------------------------------------------------------------------------

    def tools_for_llm(self) -> list[dict[str, Any]]:
        """Return the server's declarations, under the server's names.

        Asked for once per connection, and again when the server says that they changed.

        Raises:
            McpError: the server is gone, or cannot list.
        """
        return self._client.live().catalogue().declarations()

    def execute_tool_calls(self, calls: Sequence[Any]) -> list[ToolAnswer]:
        """Run *calls*, one after the other unless all of them are annotated read-only and idempotent.

        Args:
            calls: `ToolRequest`s, or calls in the wire's form.

        Returns:
            One answer per call, in order. An unknown tool is answered without asking the server.
            An answer carries the server's structured content as `structured`, or, where the call
            got no result, `{"mcp": {"failed": kind}}`: `gone`, `timeout`, `cancelled` and
            `unreadable` (with `outcome_unknown`), `refused`, `not-run`.

        Raises:
            Nothing, but for Ctrl-C on the main thread.

        Threads: questions of the server are put on this thread, through `current_call().ask`;
            progress and logs go to that call. The clock of a request stands still meanwhile.
        """
        requests = requests_of(calls)
        if not requests:
            return []
        catalogue, unreachable = self._catalogue()
        answers = [self._answer_without_asking(call, catalogue, unreachable) for call in requests]
        open_calls = [call for call, answer in zip(requests, answers, strict=True) if answer is None]
        given = iter(self._run(open_calls, catalogue))
        return [next(given) if answer is None else answer for answer in answers]

    def _catalogue(self) -> tuple[Catalogue | None, Lost | None]:
        """The catalogue, `None` where it cannot be had: then no tool can be ruled out; and why nothing can be sent."""
        try:
            link = self._client.live()
        except Exception as problem:  # McpError, and whatever else it is: each answer says so
            return None, not_run(problem)
        try:
            return link.catalogue(), None
        except Exception:  # the calls are sent, and fail on their merits
            return None, None

    def _answer_without_asking(
        self, call: ToolRequest, catalogue: Catalogue | None, unreachable: Lost | None
    ) -> ToolAnswer | None:
        answer = unreadable(call)
        if answer is not None:
            return answer
        if unreachable is not None:
            return answer_to(call, unreachable)
        if catalogue is None or call.name in catalogue.tools:
            return None
        tools = shortened(", ".join(catalogue.tools), _MOST_NAMES) or "none"
        return refused(call, notices.NO_SUCH_TOOL.format(tool=call.name[:64], hint="", tools=tools))

    def _run(self, calls: list[ToolRequest], catalogue: Catalogue | None) -> list[ToolAnswer]:
        is_wide = catalogue is not None and all(catalogue.may_overlap(call.name) for call in calls)
        if not is_wide or self._tool_concurrency == 1 or len(calls) < 2:
            return self._exchange(calls, 1)
        # Identical calls of a wide batch are one request: what is read twice at once reads the same.
        keys = [(call.name, canonical_arguments(call.args)) for call in calls]
        distinct = dict(zip(reversed(keys), reversed(calls), strict=True))
        given = dict(zip(distinct, self._exchange(list(distinct.values()), self._tool_concurrency), strict=True))
        return [attrs.evolve(given[key], tool_call_id=call.id) for key, call in zip(keys, calls, strict=True)]

    def _exchange(self, calls: list[ToolRequest], width: int) -> list[ToolAnswer]:
        if not calls:
            return []
        exchange = Exchange(self._client.name, calls, self._request_timeout, self._on_elicit)
        return exchange.run(self._client.live, width)

    # -- what the server says of itself --------------------------------------------------------------

    def idempotency_of(self, name: str) -> Idempotency:
        """What repeating a call would do, by the server's annotations; `unknown` before a listing. Never waits."""
        catalogue = self._known_catalogue
        return "unknown" if catalogue is None else catalogue.idempotency_of(name)

    def tool_annotations(self, name: str) -> dict[str, Any] | None:
        """Return a tool's annotations as the server sent them; `None` for a tool it does not have.

        They are hints of the server about itself, and only as good as it is.

        Raises:
            McpError: the server is gone, or cannot list.
        """
        return self._client.live().catalogue().annotations(name)

    @property
    def _known_catalogue(self) -> Catalogue | None:
        link = self._client.link
        return None if link is None else link.known_catalogue

    @property
    def stderr_tail(self) -> str:
        """The last lines that the server process wrote to standard error, at most 50; `""` over HTTP."""
        link = self._client.link
        return "" if link is None else link.last_words

    @property
    def protocol_version(self) -> str:
        """The version of the protocol that was agreed on.

        Raises:
            McpError: the server is gone.
        """
        return self._client.live().session.protocol_version

    @property
    def instructions(self) -> str | None:
        """What the server says about how its tools are used, where it says something.

        Raises:
            McpError: the server is gone.
        """
        return self._client.live().session.instructions
