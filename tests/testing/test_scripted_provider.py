"""The scripted provider answers as written; a tool can be tested without a run."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from llm_agent.call_context import current_call
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ToolProvider
from llm_agent.testing import Gate, Progress, ScriptedProvider, call, call_context

ADD = call("add", _id="c1", a=1, b=2)


def answers(provider: ScriptedProvider, *calls: ToolRequest) -> list[object]:
    return list(provider.execute_tool_calls(list(calls)))


def test_it_is_a_provider_as_the_port_says() -> None:
    """The port's own protocol recognises it."""
    assert isinstance(ScriptedProvider({}), ToolProvider)


def test_every_scripted_tool_is_declared() -> None:
    """The model is told each name, in the OpenAI form."""
    declared = ScriptedProvider({"add": "3", "look": "x"}).tools_for_llm()

    assert [one["function"]["name"] for one in declared] == ["add", "look"]
    assert all(one["type"] == "function" and one["function"]["parameters"]["type"] == "object" for one in declared)


def test_a_text_is_the_answer() -> None:
    """A `str` is handed back as it is."""
    assert answers(ScriptedProvider({"add": "3"}), ADD) == ["3"]


def test_a_mapping_is_the_answers_wire_form() -> None:
    """The call's id and the role are filled in, and can be overwritten."""
    provider = ScriptedProvider({"add": [{"content": "3"}, {"content": "4", "tool_call_id": "other"}]})

    assert answers(provider, ADD) == [{"role": "tool", "tool_call_id": "c1", "content": "3"}]
    assert answers(provider, ADD) == [{"role": "tool", "tool_call_id": "other", "content": "4"}]


def test_a_tool_answer_without_an_id_gets_the_calls() -> None:
    """An id that is written stays, a missing one is filled in."""
    provider = ScriptedProvider({"add": [ToolAnswer("", "no", is_error=True), ToolAnswer("odd", "yes")]})

    assert answers(provider, ADD) == [ToolAnswer("c1", "no", is_error=True)]
    assert answers(provider, ADD) == [ToolAnswer("odd", "yes")]


def test_a_callable_gets_the_arguments_by_keyword() -> None:
    """A plain function can stand for a tool; `None` is an empty answer."""
    provider = ScriptedProvider({"add": [lambda a, b: str(a + b), lambda **_: None]})

    assert answers(provider, ADD, ADD) == ["3", ""]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), RuntimeError])
def test_an_exception_is_raised(failure: BaseException) -> None:
    """The provider call raises, as a real one might."""
    with pytest.raises(RuntimeError):
        answers(ScriptedProvider({"add": failure}), ADD)


def test_a_list_holds_successive_answers_and_repeats_the_last() -> None:
    """One answer per call, then the last again and again."""
    provider = ScriptedProvider({"add": ["first", "last"]})

    assert answers(provider, ADD, ADD, ADD) == ["first", "last", "last"]


def test_an_empty_list_of_answers_is_refused() -> None:
    """A tool that can never answer is a mistake of the script."""
    with pytest.raises(ConfigError, match="'add' needs at least one answer"):
        ScriptedProvider({"add": []})


def test_an_unscripted_tool_is_answered_with_an_error() -> None:
    """A model that invents a tool is told so."""
    (answer,) = answers(ScriptedProvider({}), ADD)

    assert isinstance(answer, ToolAnswer)
    assert answer.is_error
    assert "'add'" in answer.content


def test_calls_and_batches_are_kept() -> None:
    """What was asked is remembered, also by provider call."""
    provider = ScriptedProvider({"add": "3"})

    answers(provider, ADD, ADD)
    answers(provider, ADD)

    assert provider.calls == [ADD, ADD, ADD]
    assert provider.batches == [(ADD, ADD), (ADD,)]


@pytest.mark.parametrize("way", ["answer", "gates"])
def test_a_gate_holds_the_answer_back(way: str) -> None:
    """A call waits at its gate, as an answer or beside one."""
    gate = Gate("opened")
    provider = (
        ScriptedProvider({"add": gate}) if way == "answer" else ScriptedProvider({"add": "opened"}, gates={"add": gate})
    )
    got: list[object] = []
    worker = threading.Thread(target=lambda: got.extend(answers(provider, ADD)))

    worker.start()
    gate.wait_entered()
    before = list(got)
    gate.open()
    worker.join(5)

    assert before == []
    assert got == ["opened"]


def test_gates_must_name_scripted_tools() -> None:
    """A typo in a gate's name is refused."""
    with pytest.raises(ConfigError, match=r"got ad$"):
        ScriptedProvider({"add": "3"}, gates={"ad": Gate()})


def test_latency_is_waited_out() -> None:
    """A call takes at least its latency."""
    start = monotonic()

    answers(ScriptedProvider({"add": "3"}, latency=0.02), ADD)

    assert monotonic() - start >= 0.02


# -- a tool alone ---------------------------------------------------------------------


def test_call_context_sets_the_current_call_and_takes_it_back() -> None:
    """A tool sees what it was given, and nothing afterwards."""
    stop = threading.Event()

    with call_context(id="c9", name="add", run_id="r", data={"user": 1}, cancelled=stop, deadline=3.0):
        seen = current_call()

    assert seen is not None
    assert (seen.id, seen.name, seen.run_id, seen.data, seen.deadline) == ("c9", "add", "r", {"user": 1}, 3.0)
    assert seen.cancelled is stop
    assert seen.calls == (ToolRequest("c9", "add"),)
    assert current_call() is None


def test_call_context_records_what_the_tool_says() -> None:
    """Progress, logs and asks are kept, in order."""
    with call_context(answer="yes") as recorded:
        context = current_call()
        assert context is not None
        context.progress(1, 2, "half")
        context.log("info", "working")
        answer = context.ask({"tool": "rm"})

    assert answer == "yes"
    assert recorded.progress_told == [Progress(1, 2, "half")]
    assert recorded.logged == [("info", "working")]
    assert recorded.asked == [{"tool": "rm"}]


def test_asks_go_to_on_ask_unless_the_tool_brings_an_asker() -> None:
    """The tool's own asker wins, as in a run."""
    with call_context(on_ask=lambda request: request["n"] + 1):
        context = current_call()
        assert context is not None

        assert context.ask({"n": 1}) == 2
        assert context.ask({"n": 1}, lambda request: "own") == "own"


def test_an_ask_that_nobody_answers_is_a_mistake_of_the_test() -> None:
    """Without an asker the tool gets the engine's own error."""
    with call_context():
        context = current_call()
        assert context is not None

        with pytest.raises(ConfigError, match="answer= or on_ask="):
            context.ask({})


def test_answer_and_on_ask_exclude_each_other() -> None:
    """Two ways to answer one question are refused."""
    with pytest.raises(ConfigError, match="not both"), call_context(answer=None, on_ask=lambda request: None):
        pass
