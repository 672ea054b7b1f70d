"""Messages in the pipes of a server process: one JSON document a line, in and out.

The SDK sees the two streams of a transport. That they end, always, is this module's law: when the
process does, when either pipe does, or when a line is too long to be a message. Then the server is
taken down, by steps that a stubborn one can draw out for seconds but not refuse.

Imports the SDK; only ever imported by those who need it.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from llm_agent.mcp.process import KILL_PATIENCE, ServerProcess
from llm_agent.mcp.wire import MAX_MESSAGE, line_of, message_of

_log = logging.getLogger("llm_agent.mcp")

_CHUNK: Final = 65_536
# How long a server has to go after the end of its input, and after SIGTERM, in seconds.
_EOF_GRACE: Final = 1.5
_TERM_GRACE: Final = 0.7
# How long output is still awaited when the server has exited and others hold its pipes, in seconds.
_LINGER: Final = 0.1
# How long an exit is awaited to say how it ended, in seconds.
_STATUS_PATIENCE: Final = 0.25
# The pause between two looks at a process where nothing tells its exit, in seconds.
_LOOK: Final = 0.02

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class StdioTransport:
    """The transport over one server process."""

    def __init__(self, process: ServerProcess, label: str, on_over: Callable[[], None]) -> None:
        self._process = process
        self._label = label
        # Called when no message can come any more.
        self._on_over = on_over
        self._input, self._output, self._errors = process.pipes()
        self._has_babbled = False
        self._heard_all = anyio.Event()
        self.problem: str | None = None
        """Why the streams were ended from this side, where they were."""
        self.is_unwanted = False
        """Set to skip every courtesy: the server never answered in the first place."""

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """Move messages until the block ends; no process is left then."""
        to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_messages, to_session)
                tasks.start_soon(self._read_errors)
                tasks.start_soon(self._write_messages, from_session)
                try:
                    yield from_server, to_server
                finally:
                    with anyio.CancelScope(shield=True):  # every wait in there has a clock
                        await self._end_process()
                    tasks.cancel_scope.cancel()
        finally:
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()
            self._process.close_pipes()

    # -- its bytes -------------------------------------------------------------------------------

    async def _read_messages(self, to_session: Incoming) -> None:
        async with anyio.create_task_group() as tasks, to_session:
            tasks.start_soon(self._stop_at_exit, tasks.cancel_scope)
            try:
                await self._pass_lines(to_session)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._drain()  # the session is gone; a server that cannot write would not read its end
            finally:
                self._on_over()  # before the session hears of it: its calls ask why
            tasks.cancel_scope.cancel()

    async def _stop_at_exit(self, reading: anyio.CancelScope) -> None:
        """A grandchild may hold the pipe for ever; the server's exit is the end all the same."""
        await self.exited()
        await anyio.sleep(_LINGER)
        reading.cancel()

    async def _pass_lines(self, to_session: Incoming) -> None:
        line = bytearray()
        while data := await _read(self._output):
            *ends, rest = data.split(b"\n")
            for end in ends:
                line += end
                await self._pass_line(bytes(line), to_session)
                line.clear()
            line += rest
            if len(line) > MAX_MESSAGE:
                self.problem = f"it sent a line of more than {MAX_MESSAGE} bytes"
                return

    async def _pass_line(self, line: bytes, to_session: Incoming) -> None:
        if not line.strip():
            return
        message = message_of(line)
        if message is not None:
            await to_session.send(SessionMessage(message))
        elif not self._has_babbled:
            self._has_babbled = True
            _log.warning("%s writes what is no message to its standard output: %r", self._label, line[:200])

    async def _drain(self) -> None:
        while await _read(self._output):
            pass

    async def _read_errors(self) -> None:
        while data := await _read(self._errors):
            self._process.last_words.feed(data)
        self._heard_all.set()

    async def _write_messages(self, from_session: Outgoing) -> None:
        async with from_session:
            async for item in from_session:
                try:
                    await _write(self._input, line_of(item.message))
                except OSError:  # it reads no more; whoever waits for an answer hears so from the other pipe's end
                    self.problem = self.problem or "it has closed its standard input"
                    self._on_over()
                    return

    # -- its end ---------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Give a server that has closed its output the moment to exit, and its last words theirs to arrive."""
        if await self._exits_within(_STATUS_PATIENCE):
            with anyio.move_on_after(_LINGER):
                await self._heard_all.wait()

    async def exited(self) -> None:
        """Wait for the exit of the server's first process."""
        if self._process.pidfd >= 0:
            await anyio.wait_readable(self._process.pidfd)
        while not self._process.has_exited:
            await anyio.sleep(_LOOK)

    async def _end_process(self) -> None:
        process = self._process
        if not self.is_unwanted:
            process.close_input()
            await self._exits_within(_EOF_GRACE)
            process.signal_group(signal.SIGTERM)
            await self._exits_within(_TERM_GRACE)
        process.signal_group(signal.SIGKILL)
        if not (await self._exits_within(KILL_PATIENCE) and process.bury()):
            _log.warning("%s (process %d) does not die of SIGKILL; it is left to the system", self._label, process.pid)

    async def _exits_within(self, seconds: float) -> bool:
        # Looked at rather than told: the reader waits for the same descriptor.
        give_up = anyio.current_time() + seconds
        while not self._process.has_exited:
            if anyio.current_time() >= give_up:
                return False
            await anyio.sleep(_LOOK / 2)
        return True


async def _read(descriptor: int) -> bytes:
    while True:
        await anyio.wait_readable(descriptor)
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            continue


async def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            await anyio.wait_writable(descriptor)
