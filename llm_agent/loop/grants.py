"""Write a changed snapshot of standing permissions; never stop a run over it.

What a human answered "always" must be on disk before the next call, or a crash would ask
again. Only changes made during a run are written: the baseline is taken at its start.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any, Final

import attrs

from llm_agent.cancel import CancelToken
from llm_agent.canonical import data_digest
from llm_agent.codec import error_text
from llm_agent.loop.state import RunState
from llm_agent.slot import Answered, GaveUp, walked

# How long a provider may take to tell its grants, in seconds; it may hold a lock for a human.
READ_SECONDS: Final = 1.0


@attrs.define(eq=False)
class GrantLedger:
    """What of the grants is on disk."""

    digest: str | None = None
    turns: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    """Taken before a snapshot: who changes the grants takes one afterwards, so the highest turn has all changes."""
    newest: int = attrs.field(default=-1, init=False)
    """The turn of what is on disk."""
    # Guards the digest and the newest turn, and orders the writes.
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)


def _reader(state: RunState) -> Callable[[], Any] | None:
    grants = getattr(state.config.provider, "grants", None)
    return grants if callable(grants) and state.config.session is not None else None


def take_baseline(state: RunState, ledger: GrantLedger) -> None:
    """Remember the grants as they are: they are no change of this run. A cancel ends the wait."""
    snapshot = _read_on_slot(state, state.core.cancel)
    if snapshot is None:
        return
    ledger.digest = data_digest(snapshot)
    if not snapshot and any(map(_is_standing, getattr(state.config.session, "grants", ()))):
        state.log(
            "warning", "the transcript has standing permissions, and the tools know none: give the policy the session"
        )


def _is_standing(grant: Any) -> bool:
    """Whether a recorded permission holds until it is revoked."""
    return not (isinstance(grant, Mapping) and "expires-at" in grant)


def sync(state: RunState, ledger: GrantLedger) -> None:
    """Write the grants if they have changed. From the run's worker, with nothing in flight. Never raises."""
    # A token of its own: a cancelled run still writes the grants it was given.
    turn = next(ledger.turns)
    snapshot = _read_on_slot(state, CancelToken())
    if snapshot is not None:
        _write(state, ledger, turn, snapshot)


def sync_from_call(state: RunState, ledger: GrantLedger) -> None:
    """The same from the thread of a tool call, where the provider can be asked directly."""
    read = _reader(state)
    if read is None:
        return
    turn = next(ledger.turns)
    try:
        snapshot = list(read() or ())
    except Exception:  # a shield: no grants to tell is nothing to write
        return
    _write(state, ledger, turn, snapshot)


def _read_on_slot(state: RunState, cancel: CancelToken) -> list[Any] | None:
    """Return the snapshot; `None` for a provider without grants, or one that cannot tell now."""
    read = _reader(state)
    if read is None:
        return None
    give_up = monotonic() + READ_SECONDS
    is_over = threading.Event()
    try:
        call = state.slot.start(lambda: list(walked(read(), is_over)))
    except RuntimeError:  # no thread to be had: the next sync tries again
        return None
    end = call.wait(cancel, lambda: give_up - monotonic())
    is_over.set()
    match end:
        case Answered(snapshot):
            return list(snapshot)
        case GaveUp("deadline"):
            state.log("warning", f"the provider did not tell its grants within {READ_SECONDS:g} s; none are written")
    return None


def _write(state: RunState, ledger: GrantLedger, turn: int, snapshot: list[Any]) -> None:
    session = state.config.session
    assert session is not None  # _reader has looked
    try:
        with ledger.lock:
            digest = data_digest(snapshot)
            if turn > ledger.newest and digest != ledger.digest:
                session.append_grants(snapshot)
                ledger.digest = digest  # after the write: a failed one is tried again
            ledger.newest = max(turn, ledger.newest)
    except Exception as exc:  # a shield: a run is not lost over a grant
        state.log("error", f"grants could not be written: {error_text(exc)}")
