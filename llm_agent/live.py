"""The runs of this process that still work, and what becomes of them at its end.

At interpreter exit they are cancelled and given a moment to close their transcripts properly.
A forked child starts with none: the runs it inherited belong to its parent.
"""

from __future__ import annotations

import atexit
import os
import threading
from time import monotonic
from typing import Any, Final

from llm_agent.run import Run
from llm_agent.run_core import RunCore

# How long all live runs together may hold up the interpreter's exit, in seconds.
EXIT_GRACE: Final = 0.25

_lock = threading.Lock()  # guards the dict below; a leaf
_live: dict[RunCore, tuple[Run, Any]] = {}


def live_runs() -> tuple[Run, ...]:
    """Return this process's runs that are not drained yet, oldest first."""
    with _lock:
        return tuple(run for run, _ in _live.values())


def enlist(core: RunCore, run: Run, session: Any) -> RunCore | None:
    """Enter a run; when another run that is not done works on *session*, return that one instead."""
    core.on_drained(lambda: _strike(core))  # first: whatever interrupts this, a withdrawn run is struck off
    with _lock:
        for other, (_, other_session) in _live.items():
            if session is not None and other_session is session and not other.finished.is_set():
                return other
        _live[core] = (run, session)
    return None


def _strike(core: RunCore) -> None:
    with _lock:
        _live.pop(core, None)


def _end_live_runs() -> None:
    runs = live_runs()
    for run in runs:
        run.cancel("interpreter exit")
    give_up = monotonic() + EXIT_GRACE
    for run in runs:
        run._core.left.wait(max(0.0, give_up - monotonic()))


def _forget_parents_runs() -> None:
    global _lock
    _lock = threading.Lock()  # the parent's may have been held at the fork
    _live.clear()


atexit.register(_end_live_runs)
os.register_at_fork(after_in_child=_forget_parents_runs)
