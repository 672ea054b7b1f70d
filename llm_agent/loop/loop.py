"""The loop: assembly, the worker thread, and the story of a run.

What remains here is the order of things. Every stage returns what the next one needs, or
raises `RunStopped` with the ending it found; that is caught in one place.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal

from llm_agent import live
from llm_agent.bill import checked_prices
from llm_agent.budget import RequestBudget
from llm_agent.call_context import Asker, leave_call
from llm_agent.codec import error_text, text_of
from llm_agent.errors import AgentError, ConfigError, RunInProgress, TranscriptError, UnansweredCalls
from llm_agent.limits import Limits
from llm_agent.loop import config as options
from llm_agent.loop import dispatch, grants, hooks, intake, refusal, window, wiring
from llm_agent.loop.roundtrip import round_trip
from llm_agent.loop.state import Host, RunState, Shape
from llm_agent.messages import Message, unanswered_calls
from llm_agent.outcome import Cancelled, Completed, Ending, Failed, Outcome, RunStopped, terminal_of
from llm_agent.patterns import checked_patterns
from llm_agent.ports import ArtifactStore, Backend, Compactor, TokenCounter, ToolProvider, Transcript
from llm_agent.retry import RetryPolicy, classify_error
from llm_agent.run import Run
from llm_agent.run_context import RunContext
from llm_agent.run_core import RunCore
from llm_agent.watchdog import WATCHDOG

# A run that is past its result and only has to leave its worker: how long a next run waits
# for it instead of being refused, in seconds.
EPILOGUE_GRACE: Final = 0.05


class Loop:
    """Runs conversations: one at a time, each on a worker thread of its own.

    Cheap to make; make one per conversation. Backends, tools and providers may be shared
    between loops and threads.
    """

    def __init__(
        self,
        backends: Sequence[Backend] | Backend,
        *,
        tools: Any = None,
        provider: ToolProvider | None = None,
        session: Transcript | None = None,
        system_prompt: str | Message | None = None,
        counter: TokenCounter | None = None,
        context_budget: int | None = None,
        compactor: Compactor | None = None,
        request_budget: RequestBudget | None = None,
        prices: Mapping[str, Any] | None = None,
        artifact_store: ArtifactStore | None = None,
        max_tool_rounds: int = 1000,
        max_tool_calls: int = 10_000,
        max_identical_calls: int = 30,
        identical_call_exempt: Sequence[str] = (),
        max_retries: int = 3,
        backoff_cap: float = 30.0,
        round_trip_timeout: float = 120.0,
        attempt_timeout: float | None = None,
        tool_deadline: float | Mapping[str, float | None] | None = None,
        idempotency_rules: Sequence[Mapping[str, str]] = (),
        concurrent_tools: Sequence[str] = (),
        steer_source: Callable[[], Any] | None = None,
        on_ask: Asker | Literal["run"] | None = None,
        classify: options.Classify | None = None,
        max_abandoned_calls: int = 8,
        close_session: bool = False,
    ) -> None:
        """Check everything and start nothing.

        Args:
            backends: the chain; each round trip starts again at the first one.
            tools: functions, `@tool`s and providers in a list, or one provider.
            provider: the same for exactly one provider.
            session: where turns are kept, and what a run continues.
            system_prompt: put in front of a conversation that has none.
            counter: how sizes are counted; one per loop, by default a `UsageCounter`.
            context_budget: tokens a request may have; one that is over is not sent.
            compactor: makes the conversation smaller before it outgrows its budget.
            request_budget: windows by model, caps on what a run may cost, the largest tool result.
            prices: model to `Price`: costs where a provider reports none.
            artifact_store: where tool results are kept whole that are too large for the
                conversation; by default a folder beside the session's file.
            max_tool_rounds: tool rounds of one run; the next one is refused.
            max_tool_calls: calls of one run.
            max_identical_calls: calls of one run with the same tool and arguments.
            identical_call_exempt: tool patterns that do not count as identical.
            max_retries: attempts per backend and round trip, the first one included.
            backoff_cap: longest wait between two attempts, in seconds.
            round_trip_timeout: seconds without a sign of life before an attempt is given up.
            attempt_timeout: seconds one attempt may take in total; `None` for no bound.
            tool_deadline: working seconds of a call, or tool patterns to seconds (first match).
            idempotency_rules: `{"tool": pattern, "idempotency": class}`, first match wins.
            concurrent_tools: tool patterns whose neighbouring calls share one provider call.
            steer_source: asked for user turns at the top of every round; must not block.
            on_ask: answers a tool's questions: a callable, or `"run"` for `Run.answer`.
            classify: replaces `retry.classify_error`; must not block.
            max_abandoned_calls: with that many given-up calls still out, further ones are not run.
            close_session: close the session before a run's result becomes readable.

        Raises:
            ConfigError: an option that cannot work, named with what was expected and what came.
        """
        wired = wiring.wired_provider(tools, provider)
        chain = options.checked_backends(backends)
        folds = options.checked_compactor(compactor)
        budget = options.checked_budget(context_budget, request_budget, folds, chain)
        exempt = checked_patterns("Loop: identical_call_exempt", identical_call_exempt)
        self._config = options.LoopConfig(
            backends=chain,
            provider=wired,
            counter=wiring.default_counter(folds) if counter is None else options.checked_counter(counter),
            session=options.checked_session(session, has_provider=wired is not None, compactor=folds),
            system_prompt=wiring.wired_prompt(system_prompt),
            compactor=folds,
            budget=budget,
            prices=checked_prices(prices),
            artifact_store=wiring.default_store(session, budget)
            if artifact_store is None
            else options.checked_store(artifact_store),
            limits=Limits(
                max_tool_rounds=options.checked_count("max_tool_rounds", max_tool_rounds, 0),
                max_tool_calls=options.checked_count("max_tool_calls", max_tool_calls, 0),
                max_identical_calls=options.checked_count("max_identical_calls", max_identical_calls, 1),
                identical_call_exempt=exempt,
            ),
            retry=RetryPolicy(
                max_attempts=options.checked_count("max_retries", max_retries, 1),
                backoff_cap=options.checked_seconds("backoff_cap", backoff_cap),
            ),
            classify=classify_error if classify is None else classify,
            round_trip_timeout=options.checked_seconds("round_trip_timeout", round_trip_timeout),
            attempt_timeout=None
            if attempt_timeout is None
            else options.checked_seconds("attempt_timeout", attempt_timeout),
            deadlines=options.checked_deadlines(tool_deadline),
            max_abandoned_calls=options.checked_count("max_abandoned_calls", max_abandoned_calls, 1),
            idempotency_rules=options.checked_rules(idempotency_rules),
            concurrent_tools=checked_patterns("Loop: concurrent_tools", concurrent_tools),
            steer_source=options.checked_steer_source(steer_source),
            on_ask=options.checked_on_ask(on_ask),
            close_session=close_session,
        )
        self._newest: RunCore | None = None
        self._current: tuple[RunState, grants.GrantLedger] | None = None
        self._shapes: dict[int, Shape] = {}
        self._admission = threading.Lock()  # guards `_newest` while a run is let in

    # -- starting a run ----------------------------------------------------------------------

    def run(
        self,
        messages: str | Sequence[Message],
        *,
        context: RunContext | str | None = None,
        data: Any = None,
        timeout: float | None = None,
    ) -> Run:
        """Start a run on its own worker thread and hand back its handle at once.

        Args:
            messages: the whole conversation, extending what the session holds; or text, which
                is what the session holds and then this user message.
            context: what is true now, for the model; part of every request of this run and of
                no history.
            data: anything, for tools, as `current_call().data`.
            timeout: seconds, asks excluded, after which the run cancels itself.

        Raises:
            ConfigError: there is nothing to run, or something in it is no message.
            RunInProgress: an earlier run still works.
            UnansweredCalls: the conversation has calls that nobody answered.
        """
        if timeout is not None:
            options.checked_seconds("timeout", timeout)
        told = None if context is None else RunContext.of(context)
        with self._admitted() as run:
            return self._start(run, self._opening(messages), told, data, timeout)

    def resume(self, *, context: RunContext | str | None = None, data: Any = None, timeout: float | None = None) -> Run:
        """Repair the session and go on where it ends, without a new user turn.

        Raises:
            ConfigError: there is no session, or its last turn waits for no reply.
            RunInProgress: an earlier run still works.
        """
        session: Any = self._config.session
        if session is None or not hasattr(session, "repair"):
            raise ConfigError("Loop: resume needs a session that can be repaired")
        if timeout is not None:
            options.checked_seconds("timeout", timeout)
        told = None if context is None else RunContext.of(context)
        with self._admitted() as run:  # a run in flight has calls that only look as if they were lost
            session.repair()
            if not session.needs_reply:
                raise ConfigError("Loop: the session waits for no reply; start a run with a new user turn instead")
            return self._start(run, self._opening(session.messages), told, data, timeout)

    def _opening(self, messages: str | Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages a run begins with, checked."""
        if not isinstance(messages, Iterable):
            raise ConfigError(f"Loop.run: messages must be text or a list of Messages, got {type(messages).__name__}")
        recorded = () if self._config.session is None else tuple(self._config.session.messages)
        given = (*recorded, Message.user(messages)) if isinstance(messages, str) else tuple(messages)
        if isinstance(messages, str) and not messages.strip():
            raise ConfigError("Loop.run: the user message is blank")
        if not given:
            raise ConfigError("Loop.run: messages is empty; give at least one message")
        for index, message in enumerate(given):
            if not isinstance(message, Message):
                got = type(message).__name__
                raise ConfigError(f"Loop.run: messages[{index}] must be a Message (Message.user(text), say), got {got}")
        open_calls = _unanswered(recorded)
        if open_calls:
            raise UnansweredCalls(open_calls)
        open_calls = _unanswered(given)
        if open_calls:
            raise UnansweredCalls(open_calls, "answer each with a tool message directly after its turn")
        prompt = self._config.system_prompt
        if prompt is None or recorded or any(message.role == "system" for message in given):
            return given
        return (prompt, *given)

    @contextmanager
    def _admitted(self) -> Iterator[Run]:
        """Let a run in, before anything is read or repaired for it; what fails then leaves nothing behind.

        Raises:
            RunInProgress: an earlier run of this loop, or any on its session, still works.
        """
        core = RunCore()
        run = Run(core)
        try:
            with self._admission:
                self._check_free()
                busy = live.enlist(core, run, self._config.session)
                if busy is not None:
                    raise RunInProgress(f"run {busy.id} is in flight on this session; wait for its result")
                self._newest = core
            yield run
        except BaseException:
            if core.claim():
                core.withdraw()
            else:  # a Ctrl-C, when the worker had begun: nobody will hold this run
                run.cancel("interrupted")
            raise

    def _start(
        self,
        run: Run,
        conversation: Sequence[Message],
        context: RunContext | None,
        data: Any,
        timeout: float | None,
    ) -> Run:
        core = run._core
        state = RunState(core, self._config, conversation, context, self._shapes)
        ledger = grants.GrantLedger()
        state.write_grants = partial(grants.sync_from_call, state, ledger)
        self._current = (state, ledger)
        core.begin_work()
        if timeout is not None:
            core.watch_timeout(WATCHDOG.watch(timeout, lambda: run.cancel("timeout")))
        _start_worker(f"llm-agent-run-{core.id[:8]}", lambda: self._work(state, ledger, data))
        return run

    def _check_free(self) -> None:
        """Refuse while an earlier run of this loop is not drained."""
        core = self._newest
        if core is None or not core.is_owned or core.drained.is_set():
            return
        # Past its result, only its worker's last steps to go: not worth a refusal.
        if core.finished.is_set() and core.work_sections <= 1 and core.drained.wait(EPILOGUE_GRACE):
            return
        raise RunInProgress(
            f"run {core.id} of this loop is in flight: {_still_out(core)}; wait until it is drained, or cancel it"
        )

    # -- the worker --------------------------------------------------------------------------

    def _work(self, state: RunState, ledger: grants.GrantLedger, data: Any) -> None:
        """The worker thread: one drive, one ending, whatever happened."""
        if not state.core.claim():  # taken back before it began
            return
        ending: Ending
        try:
            ending = self._drive(state, ledger, data)
        except RunStopped as stop:
            ending = stop.ending
            if state.round_no:  # before the first round nothing can have been granted
                grants.sync(state, ledger)
        except BaseException as bug:  # no one above us on this thread could answer for it
            ending = _died(bug)
            if state.is_turn_open:  # streamed, and then the transcript refused it, say
                state.discard_turn("failed")
        self._finish(state, ending)

    def _drive(self, state: RunState, ledger: grants.GrantLedger, data: Any) -> Completed:
        """Take a run from its first message to the model's last word.

        A stage that finds the run must end raises `RunStopped`; what you read here is the way
        of a run that goes well.
        """
        state.begin()  # RunStarted; the transcript learns what it has not seen
        grants.take_baseline(state, ledger)
        self._warn_of_other_prompt(state)
        dispatch.list_tools(state)

        while True:
            round_no = state.next_round()  # where a cancel between rounds is noticed
            intake.admit(state)  # words from outside, before anything is measured
            state.check_bill()  # money, tokens, time: what the run may cost
            tokens = window.make_room(state)  # compact before it is needed
            state.check_cancel("compaction")
            state.begin_round(tokens)

            reply = round_trip(state)  # attempts, retries, fallback

            if refusal.refuses(state, reply):  # a limit: this turn never existed
                continue  # one last round, without tools

            turn = state.commit(reply)  # memory, transcript, events: in that order

            if not turn.message.tool_calls:
                if state.core.seal_steers():  # a steer that came in time gets its round
                    return Completed(final=turn.text, rounds=round_no)
                continue

            operations = dispatch.propose(state, turn)
            for batch in operations.batches():  # the model's order, while still proposed
                dispatch.run(state, operations, batch, data)  # answered, unknown or never run
                grants.sync(state, ledger)  # an "always" is on disk before the next batch
            state.tally.rounds += 1

    def _finish(self, state: RunState, ending: Ending) -> None:
        """The one terminal event, and the result before it."""
        core = state.core
        core.dismiss_timeout()
        state.slot.close()
        if self._config.close_session:
            _close_shielded(state)
        outcome = _outcome(state, ending)
        core.finish(terminal_of(ending, outcome, state.round_no or None), outcome)
        core.left.set()
        core.end_work()

    def _warn_of_other_prompt(self, state: RunState) -> None:
        prompt = self._config.system_prompt
        if prompt is None:
            return
        recorded = next((m for m in state.conversation.messages if m.role == "system"), None)
        if recorded is None or recorded.text != prompt.text:
            state.log("warning", "the recorded conversation has another system prompt; it is kept as recorded")

    # -- hooks for what lives outside a call ---------------------------------------------------

    def _in_flight(self) -> Host | None:
        return None if self._current is None else self._current[0].live_call

    def wrap_ask(self, asker: Asker) -> Asker:
        """Return *asker* as one that the run can see: events around it, the deadline paused."""
        return hooks.asker_through(self._in_flight, asker)

    def log_hook(self, params: Mapping[str, Any]) -> None:
        """Take a server's log notification (`level`, `logger`, `data`) for the call in flight."""
        hooks.log_through(self._in_flight, params)

    def progress_hook(self, params: Mapping[str, Any]) -> None:
        """Take a server's progress notification (`tool-call-id`, `progress`, `total`, `message`)."""
        hooks.progress_through(self._in_flight, params)

    def grant_hook(self, *_: Any) -> None:
        """Write the grants now if they have changed; for a policy that has just been given one."""
        current = self._current
        if current is not None and current[0].live_call is not None:
            grants.sync_from_call(*current)


def _start_worker(name: str, work: Callable[[], None]) -> None:
    """Start *work* on a daemon thread that sees the caller's context variables."""
    caller = contextvars.copy_context()
    caller.run(leave_call)  # a tool may start a run; that run's worker executes no call
    threading.Thread(target=caller.run, args=(work,), name=name, daemon=True).start()


def _unanswered(messages: Sequence[Message]) -> list[str]:
    return [call.id for call in unanswered_calls(messages)]


def _still_out(core: RunCore) -> str:
    if not core.finished.is_set():
        return "it has no result yet"
    out = ", ".join(f"{call.tool} ({call.call_id})" for call in core.detached)
    return f"given-up calls have not returned: {out}" if out else "its worker has not left"


def _died(bug: BaseException) -> Failed:
    """Return the failure for what escaped the stages; nobody's bug may hang a run."""
    if isinstance(bug, TranscriptError):
        return Failed(error=text_of(bug), exception=bug)
    if isinstance(bug, AgentError):
        return Failed(error=f"the run died: {text_of(bug)}", exception=bug)
    return Failed(error=f"the run died: {error_text(bug).splitlines()[0]}", exception=bug)


def _close_shielded(state: RunState) -> None:
    try:
        close = getattr(state.config.session, "close", None)
        if callable(close):
            close()
    except BaseException as exc:  # a shield: the result is known, and closing changes nothing about it
        state.log("error", f"the session could not be closed: {error_text(exc)}")


def _outcome(state: RunState, ending: Ending) -> Outcome:
    facts: dict[str, Any] = {
        # Nothing is in the conversation of a run whose messages were refused.
        "messages": tuple(state.conversation.messages) or state.given,
        "rounds": state.rounds_begun,
        "spent": state.spent(),
        "unknown": state.unknown_operations(),
        "undelivered": state.core.refuse_steers(),
        "bill_is_told": state.config.budget is not None,
    }
    match ending:
        case Completed(final=final, rounds=rounds):
            return Outcome(status="completed", final=final, **(facts | {"rounds": rounds}))
        case Failed(error=error, reason=reason, exception=exception):
            failures = tuple(state.failures)
            return Outcome(status="failed", error=error, reason=reason, exception=exception, attempts=failures, **facts)
        case Cancelled():
            return Outcome(status="cancelled", reason=state.core.cancel.reason, **facts)
