"""Where the layers, the toolboxes and the engine could disagree, and do not: one rule each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from layered import Declaring, call, declared, names, raising

from llm_agent import Loop, Reasons, Registry, Toolbox, ToolRequest, UnknownKeys
from llm_agent.call_context import current_call
from llm_agent.events import ToolResult
from llm_agent.policy import Policy
from llm_agent.testing import ScriptedBackend, finished
from llm_agent.tools import combine, stacked

ALL = [{"tool": "*", "decision": "allow"}]
LAYERS: dict[str, Callable[[Any], Any]] = {
    "registry": lambda provider: Registry({"fs": provider}),
    "reasons": Reasons,
    "unknown keys": UnknownKeys,
    "policy": lambda provider: Policy(provider, ALL),
    "combined": lambda provider: combine([provider, Declaring()]),
    "all of them": lambda provider: Policy(combine([stacked({"fs": provider}), Declaring()]), ALL),
}

STOPS = [SystemExit(3), GeneratorExit(), asyncio.CancelledError()]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
@pytest.mark.parametrize("layer", LAYERS, ids=list(LAYERS))
def test_a_tool_cannot_end_its_caller(layer: str, stop: BaseException) -> None:
    """Whatever it raises is an answer to its own calls, through every layer and every way of putting tools together."""
    stack = LAYERS[layer](Declaring(declared("x"), answers=raising(stop)))
    name = names(stack)[0]

    answer = stack.execute_tool_calls([call(name)])[0]

    assert answer.is_error
    assert type(stop).__name__ in answer.content


@pytest.mark.parametrize("layer", LAYERS, ids=list(LAYERS))
def test_only_the_users_ctrl_c_passes(layer: str) -> None:
    """On the main thread; on any other a tool has raised it itself."""
    stack = LAYERS[layer](Declaring(declared("x"), answers=raising(KeyboardInterrupt())))
    calls, answers = [call(names(stack)[0])], []

    with pytest.raises(KeyboardInterrupt):
        stack.execute_tool_calls(calls)
    thread = threading.Thread(target=lambda: answers.extend(stack.execute_tool_calls(calls)))
    thread.start()
    thread.join(5)

    assert "KeyboardInterrupt" in answers[0].content


UNREADABLE = [("{", "not valid JSON"), ("[1]", "must be a JSON object, got a list"), ('{"a": NaN}', "not valid JSON")]


@pytest.mark.parametrize(("arguments", "problem"), UNREADABLE)
def test_unreadable_arguments_are_told_in_one_sentence_everywhere(arguments: str, problem: str) -> None:
    """The engine's, a toolbox's, and that of a toolbox behind other layers."""

    def look() -> str:
        """Look."""
        return "seen"

    box = Toolbox([look])
    stacks = [box, combine([box, Declaring()]), Registry().add(box, "my", "")]
    texts = {each.execute_tool_calls([call(names(each)[0], arguments)])[0].content for each in stacks}
    run = Loop(ScriptedBackend([call("look", arguments), "done"]), tools=box).run("go")
    texts |= {event.content for event in finished(run).of(ToolResult)}

    assert len(texts) == 1
    assert problem in texts.pop()


def test_a_call_has_one_name_in_the_conversation() -> None:
    """`current_call().name` is what the model wrote, for a function and for a provider of its own kind."""
    seen: list[str] = []

    def noted() -> str:
        context = current_call()
        assert context is not None
        seen.append(context.name)
        return context.name

    provider = Declaring(declared("go"), answers=lambda _: noted())
    tools = stacked({"my": Toolbox([noted]), "p": Registry({"q": provider})})

    finished(Loop(ScriptedBackend([[call("my_noted"), call("p_q_go", id="c2")], "done"]), tools=tools).run("go"))

    assert seen == ["my_noted", "p_q_go"]


@pytest.mark.parametrize("arguments", [{"deep": [1]}, '{"deep": [1]}'])
def test_a_provider_that_changes_its_arguments_does_not_change_the_conversation(arguments: Any) -> None:
    """What the model said stays what it said, in the next request."""

    def meddles(calls: Sequence[ToolRequest]) -> list[str]:
        for each in calls:
            held: Any = each.arguments if isinstance(each.arguments, dict) else each.args
            held["deep"].append("changed")
        return ["done"] * len(calls)

    backend = ScriptedBackend([ToolRequest("c1", "x", arguments), "done"])
    finished(Loop(backend, tools=Declaring(declared("x"), answers=meddles)).run("go"))

    assert backend.requests[-1].messages[1].tool_calls[0].args == {"deep": [1]}
