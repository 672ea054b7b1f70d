"""The one thread of this process on which an event loop runs; everything asynchronous happens there.

The law: nobody outside this package sees a coroutine, a task or the loop. Callers hand in a
coroutine and wait on a plain future, with a clock of their own. The thread is a daemon, made on
first use, and made anew in a forked child. What runs on it does not live here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class _Loop(asyncio.SelectorEventLoop):
    """An event loop without a thread pool: an idle pool's threads outlive the call, a busy one's the interpreter."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Resolve a name on a daemon thread of its own: a resolver that hangs holds up nobody else."""
        answer: asyncio.Future[Any] = self.create_future()

        def resolve() -> None:
            found: Any = None
            problem: BaseException | None = None
            try:
                found = socket.getaddrinfo(host, port, **options)
            except BaseException as error:  # it belongs to whoever asked, whatever it is
                problem = error
            self.call_soon_threadsafe(_settle, answer, found, problem)

        threading.Thread(target=resolve, name="llm-agent-mcp-resolver", daemon=True).start()
        return await answer


def _settle(answer: asyncio.Future[Any], found: Any, problem: BaseException | None) -> None:
    if answer.done():  # nobody waits any more
        return
    if problem is None:
        answer.set_result(found)
    else:
        answer.set_exception(problem)


class Portal:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        # Guards the two below; a leaf. Re-entrant, because a signal handler may close a server
        # while its own thread is in here.
        self._lock = threading.RLock()
        self._loop: _Loop | None = None
        self._thread: threading.Thread | None = None

    def start(self, coroutine: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Start *coroutine* and return its future; cancelling that cancels the coroutine. Any thread.

        Raises:
            RuntimeError: there is no thread to be had; nothing has started.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._running())
        except BaseException:
            coroutine.close()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Have *function* called on the loop's thread, soon. Any thread."""
        self._running().call_soon_threadsafe(function)

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def _running(self) -> _Loop:
        with self._lock:
            if self._loop is None:
                loop = _Loop()
                thread = threading.Thread(target=loop.run_forever, name="llm-agent-mcp", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread  # only now: a loop without a thread would never answer
            return self._loop

    def forget(self) -> None:
        """In a forked child: the thread has stayed with the parent."""
        if self._loop is not None:
            # Kept for good: it counts as running, and whatever ended it would touch the parent's descriptors.
            _INHERITED.append(self._loop)
        self.__init__()  # type: ignore[misc]  # the one object everybody imported, made anew


PORTAL = Portal()
_INHERITED: list[_Loop] = []

os.register_at_fork(after_in_child=PORTAL.forget)
