"""The order of a run: rounds, turns, limits, steers, and how it ends."""

from __future__ import annotations

from llm_agent import notices
from llm_agent.events import (
    AssistantMessage,
    AttemptFailed,
    LimitReached,
    Log,
    RoundStarted,
    RunCompleted,
    RunFailed,
    RunStarted,
    TurnDiscarded,
)
from llm_agent.loop.loop import Loop
from llm_agent.messages import Delta, Message, ToolRequest, Usage
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished

ONE_TOOL_ROUND = [
    "run-started", "round-started", "attempt-started", "token", "attempt-succeeded", "assistant-message",
    "turn-committed", "tool-call", "tool-started", "tool-result", "round-started", "attempt-started", "token",
    "attempt-succeeded", "assistant-message", "turn-committed", "run-completed",
]  # fmt: skip


def test_a_tool_round_has_its_pinned_order() -> None:
    """Every event of one tool round and the answer, in order."""
    backend = ScriptedBackend([[Delta("Let me see."), call("look")], [Delta("Seen.", finish_reason="stop")]])

    run = finished(Loop(backend, tools=ScriptedProvider({"look": "a tree"})).run("What is there?"))

    assert run.kinds == ONE_TOOL_ROUND
    assert run.outcome.final == "Seen."
    assert run.outcome.rounds == 2
    assert [m.role for m in run.outcome.messages] == ["user", "assistant", "tool", "assistant"]


def test_all_calls_of_a_turn_are_announced_before_the_first_starts() -> None:
    """Two calls: announced together, run one after the other."""
    backend = ScriptedBackend([[call("a"), call("b")], "done"])

    run = finished(Loop(backend, tools=ScriptedProvider({"a": "1", "b": "2"})).run("go"))

    tools = [kind for kind in run.kinds if kind.startswith("tool-")]
    assert tools == ["tool-call", "tool-call", "tool-started", "tool-result", "tool-started", "tool-result"]


def test_the_callers_messages_are_not_touched() -> None:
    """The list is copied; the run's growth is its own."""
    messages = [Message.user("hi")]

    finished(Loop(ScriptedBackend(["yes"])).run(messages))

    assert messages == [Message.user("hi")]


def test_a_loop_without_tools_drops_calls() -> None:
    """What was never offered is not announced, not committed and not run."""
    backend = ScriptedBackend([[Delta("Hm."), call("look")]])

    run = finished(Loop(backend).run("go"))

    assert run.outcome.final == "Hm."
    assert run.outcome.messages[-1].tool_calls == ()
    assert backend.requests[0].tools == ()


def test_an_empty_catalogue_turns_tools_off() -> None:
    """A provider without tools is a chat."""
    backend = ScriptedBackend([[Delta("Hm."), call("look")]])

    assert finished(Loop(backend, tools=ScriptedProvider({})).run("go")).outcome.final == "Hm."


def test_the_catalogue_is_fetched_once_per_run() -> None:
    """However many rounds there are."""

    class Counting(ScriptedProvider):
        listed = 0

        def tools_for_llm(self) -> list[dict[str, object]]:
            self.listed += 1
            return super().tools_for_llm()

    provider = Counting({"a": "1"})

    finished(Loop(ScriptedBackend([call("a"), call("a"), "done"]), tools=provider).run("go"))

    assert provider.listed == 1


def test_a_catalogue_that_cannot_be_listed_fails_the_run() -> None:
    """A shorter catalogue would be a lie."""

    class Broken(ScriptedProvider):
        def tools_for_llm(self) -> list[dict[str, object]]:
            raise OSError("server gone")

    run = finished(Loop(ScriptedBackend([]), tools=Broken({})).run("go"))

    assert run.kinds == ["run-started", "run-failed"]
    assert "server gone" in (run.outcome.error or "")
    assert isinstance(run.outcome.exception, OSError)


def test_a_stage_that_explodes_ends_the_run_and_names_the_bug() -> None:
    """No path leaves a run without its terminal."""

    class Exploding:
        def count_messages(self, messages: object) -> int:
            return 0

        def count_text(self, text: str) -> int:
            return 0

        def count_request(self, messages: object, tools: object, context: object = ()) -> int:
            raise ZeroDivisionError("counter bug")

        def record_usage(self, **facts: object) -> None: ...

        def invalidate(self) -> None: ...

    run = finished(Loop(ScriptedBackend(["x"]), counter=Exploding(), context_budget=100).run("go"))

    assert "ZeroDivisionError: counter bug" in (run.outcome.error or "")


def test_empty_and_repeated_call_ids_are_made_unique_before_the_commit() -> None:
    """Events, transcript and requests carry the same, unambiguous ids."""
    twice = Delta(tool_calls=(ToolRequest("x", "a", "{}"), ToolRequest("x", "a", "{}"), ToolRequest("", "a", "{}")))
    backend = ScriptedBackend([[twice], [Delta(tool_calls=(ToolRequest("x", "a", "{}"),))], "done"])

    run = finished(Loop(backend, tools=ScriptedProvider({"a": "1"})).run("go"))

    ids = [c.id for m in run.outcome.messages for c in m.tool_calls]
    assert len(set(ids)) == 4
    assert "" not in ids
    assert [m.tool_call_id for m in run.outcome.messages if m.role == "tool"] == ids


# -- empty completions -------------------------------------------------------------------


def test_nothing_with_finish_reason_stop_is_an_answer() -> None:
    """The model may have nothing to say."""
    run = finished(Loop(ScriptedBackend([[Delta(finish_reason="stop")]])).run("go"))

    assert run.outcome.ok
    assert run.outcome.final == ""


def test_an_empty_turn_is_not_sent_again() -> None:
    """It stays in the history and out of the next request."""
    backend = ScriptedBackend([[Delta(finish_reason="stop")], "now"])
    loop = Loop(backend)
    first = finished(loop.run("go")).outcome

    finished(loop.run([*first.messages, Message.user("again")]))

    assert [m.role for m in backend.requests[1].messages] == ["user", "user"]


def test_nothing_without_a_stop_is_a_failed_attempt() -> None:
    """A stream that says nothing, and not why, has failed."""
    run = finished(Loop(ScriptedBackend([[Delta(reasoning="hm")], "fine"]), backoff_cap=0.01).run("go"))

    assert run.outcome.final == "fine"
    assert "neither text nor tool calls" in run.of(AttemptFailed)[0].error


def test_white_space_is_text() -> None:
    """And is committed exactly."""
    assert finished(Loop(ScriptedBackend([[Delta(" \n")]])).run("go")).outcome.final == " \n"


def test_reasoning_is_told_beside_the_message() -> None:
    """It is part of the event, and of no message."""
    run = finished(Loop(ScriptedBackend([[Delta(reasoning="think"), Delta("said")]])).run("go"))

    assert run.of(AssistantMessage)[0].reasoning == "think"
    assert run.outcome.messages[-1].text == "said"


def test_a_surrogate_pair_cut_between_deltas_is_joined() -> None:
    """Live and committed text agree, and both survive UTF-8."""
    run = finished(Loop(ScriptedBackend([[Delta("a\ud83d"), Delta("\ude00b"), Delta("\ud83d")]])).run("go"))

    assert run.outcome.final == "a\N{GRINNING FACE}b\ufffd"
    assert run.streamed == run.outcome.final


# -- limits --------------------------------------------------------------------------------


def test_a_limit_discards_the_turn_before_it_is_committed() -> None:
    """The turn that asked for too much never existed; the model answers once more without tools."""
    backend = ScriptedBackend([call("a"), call("a"), "That is all."])
    provider = ScriptedProvider({"a": "1"})

    run = finished(Loop(backend, tools=provider, max_tool_rounds=1).run("go"))

    position = run.kinds.index("limit-reached")
    assert run.kinds[position : position + 3] == ["limit-reached", "turn-discarded", "round-started"]
    assert run.of(LimitReached)[0].limit == "tool-rounds"
    assert run.of(TurnDiscarded)[0].reason == "limit"
    assert len(provider.calls) == 1
    assert backend.requests[2].tools == ()
    assert [m.text for m in run.outcome.messages if m.role == "system"] == [notices.LIMIT]
    assert run.outcome.final == "That is all."


def test_identical_calls_are_compared_by_meaning() -> None:
    """Another order of keys and other blanks are the same call; other values are not."""
    spellings = ['{"x":1,"y":2}', '{"y": 2, "x": 1}', '{"x":1,"y":3}', '{ "x":1,"y":2 }']
    entries = [[Delta(tool_calls=(ToolRequest(f"c{i}", "a", text),))] for i, text in enumerate(spellings)]
    provider = ScriptedProvider({"a": "1"})

    run = finished(Loop(ScriptedBackend([*entries, "end"]), tools=provider, max_identical_calls=2).run("go"))

    assert len(provider.calls) == 3
    assert run.of(LimitReached)[0].to_dict()["count"] == 3


def test_calls_after_a_limit_are_dropped() -> None:
    """A stubborn model gets no tools, and its text counts."""
    backend = ScriptedBackend([call("a"), [Delta("Still: "), call("a")]])

    run = finished(Loop(backend, tools=ScriptedProvider({"a": "1"}), max_tool_rounds=0).run("go"))

    assert run.outcome.final == "Still: "


# -- words from outside -----------------------------------------------------------------------


def test_steers_become_user_turns_at_the_top_of_a_round() -> None:
    """In order, behind the results of the round before."""
    pulls = iter([[], ["one", "two"]])
    backend = ScriptedBackend([call("a"), "done"])

    finished(Loop(backend, tools=ScriptedProvider({"a": "1"}), steer_source=lambda: next(pulls, [])).run("go"))

    assert [m.role for m in backend.requests[1].messages] == ["user", "assistant", "tool", "user", "user"]


def test_a_steer_that_comes_before_the_end_is_decided_gets_its_round() -> None:
    """run.steer during the last answer is not lost."""
    last_answer = Gate("Done.")
    run = Loop(ScriptedBackend([last_answer, "And now this."])).run("go")
    last_answer.wait_entered(5)
    assert run.steer("wait, also this") is True
    last_answer.open()

    outcome = finished(run).outcome

    assert [m.text for m in outcome.messages] == ["go", "Done.", "wait, also this", "And now this."]
    assert run.steer("too late") is False


def test_what_no_steer_is_is_dropped_with_a_log() -> None:
    """Blank text and other things of one pull cost one error Log, and nothing else."""
    pulls = iter([["", 3, "real"]])

    run = finished(Loop(ScriptedBackend(["ok"]), steer_source=lambda: next(pulls)).run("go"))

    assert [m.text for m in run.outcome.messages] == ["go", "real", "ok"]
    assert [log.level for log in run.of(Log)] == ["error"]


def test_a_steer_source_that_fails_half_way_delivers_nothing() -> None:
    """All of a pull or nothing; the run goes on."""

    def source() -> object:
        yield "first"
        raise RuntimeError("queue gone")

    run = finished(Loop(ScriptedBackend(["ok"]), steer_source=source).run("go"))

    assert [m.text for m in run.outcome.messages] == ["go", "ok"]
    assert "queue gone" in str(run.of(Log)[0].data)


# -- budget, context, prompt ---------------------------------------------------------------------


def test_a_request_over_the_budget_is_not_sent() -> None:
    """The run ends with the arithmetic, and no backend was asked."""
    backend = ScriptedBackend(["never"])

    run = finished(Loop(backend, context_budget=10).run("x" * 1000))

    assert backend.requests == []
    assert run.outcome.reason == "context-exhausted"
    assert [record.disposition for record in run.outcome.attempts] == ["advance"]
    assert "turn-discarded" not in run.kinds
    assert run.of(RunFailed)[0].reason == "context-exhausted"


def test_rounds_tell_tokens_only_with_a_budget() -> None:
    """Nobody counts what nobody asked for."""
    counted = finished(Loop(ScriptedBackend(["a"]), context_budget=1000).run("go"))
    uncounted = finished(Loop(ScriptedBackend(["a"])).run("go"))

    assert counted.of(RoundStarted)[0].tokens is not None
    assert uncounted.of(RoundStarted)[0].tokens is None
    assert "spent" in counted.outcome.to_dict()
    assert "spent" not in uncounted.outcome.to_dict()


def test_context_is_sent_and_not_kept() -> None:
    """What is true now goes with every request of the run, as the last system message, and into no history."""
    backend = ScriptedBackend([call("a"), "ok"])

    run = finished(Loop(backend, tools=ScriptedProvider({"a": "1"})).run("go", context="It is Tuesday."))

    fixed = f"{notices.CONTEXT_OUTRANKS}\n{notices.CONTEXT_NO_REPLY}"
    told = Message.system(f"{notices.CONTEXT_HEADING}\n\nIt is Tuesday.\n\n{fixed}")
    assert [request.messages[-1] for request in backend.requests] == [told, told]
    assert [m.role for m in run.outcome.messages] == ["user", "assistant", "tool", "assistant"]


def test_the_system_prompt_stands_in_front_of_a_conversation_without_one() -> None:
    """And gives way to one that is there."""
    backend = ScriptedBackend(["a", "b"])
    loop = Loop(backend, system_prompt="Be brief.")

    finished(loop.run("go"))
    other = finished(loop.run([Message.system("Be long."), Message.user("go")]))

    assert [m.text for m in backend.requests[0].messages] == ["Be brief.", "go"]
    assert [m.text for m in backend.requests[1].messages] == ["Be long.", "go"]
    assert [log.level for log in other.of(Log)] == ["warning"]


def test_what_a_run_was_billed_is_always_told() -> None:
    """Failed attempts count; what nobody reported stays None."""
    usage = Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12)

    spent = finished(Loop(ScriptedBackend([[Delta("ok", usage=usage)]])).run("go")).outcome.spent

    assert (spent.attempts, spent.total_tokens, spent.complete, spent.cost) == (1, 12, True, None)
    assert spent.by_model["scripted"].total_tokens == 12


def test_a_completed_run_says_how_much_there_was() -> None:
    """The terminal has the final text, the rounds and the number of messages."""
    run = finished(Loop(ScriptedBackend(["bye"])).run("go"))

    assert (run.of(RunStarted)[0].message_count, run.of(RunCompleted)[0].message_count) == (1, 2)
