"""An optional reason on every call: offered, and taken out again where it was offered."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from layered import Declaring, Granting, call, declared, raising

from llm_agent import Reasons, ToolRequest
from llm_agent.errors import ConfigError
from llm_agent.policy import Policy

TEXT = {"type": "string"}


def listed(*declarations: Any) -> tuple[Reasons, Declaring]:
    """A layer that has listed, and the provider behind it."""
    provider = Declaring(*declarations)
    layer = Reasons(provider)
    layer.tools_for_llm()
    return layer, provider


def schema(declaration: Any) -> dict[str, Any]:
    """The schema of a tool as the model is shown it."""
    shown: dict[str, Any] = Reasons(Declaring(declaration)).tools_for_llm()[0]["function"]["parameters"]
    return shown


def test_what_is_no_provider_is_refused() -> None:
    """Naming the layer."""
    with pytest.raises(ConfigError, match="Reasons: Declaring is a class"):
        Reasons(Declaring)  # type: ignore[arg-type]


def test_the_reason_is_offered_and_never_required() -> None:
    """Beside the tool's own properties, which come first."""
    shown = schema(declared("x", {"path": TEXT}, required=["path"]))

    assert list(shown["properties"]) == ["path", "reason"]
    assert shown["properties"]["reason"]["type"] == "string"
    assert shown["required"] == ["path"]


@pytest.mark.parametrize(
    "function", [{"name": "x"}, {"name": "x", "parameters": None}, {"name": "x", "parameters": {}}]
)
def test_a_tool_without_arguments_gets_a_schema_for_it(function: dict[str, Any]) -> None:
    """Of type object, as vendors want it."""
    shown = schema({"type": "function", "function": function})

    assert shown["type"] == "object"
    assert list(shown["properties"]) == ["reason"]


def test_the_providers_declarations_are_not_changed() -> None:
    """The argument stands on copies."""
    declarations = [declared("x", {"path": TEXT})]
    before = copy.deepcopy(declarations)

    listed(*declarations)

    assert declarations == before


@pytest.mark.parametrize(
    "declaration",
    [
        declared("x", {"reason": TEXT}),
        declared("x", {}, required=["reason"]),
        declared("x", {}, required=5),
        declared("x", {}, **{"$ref": "#/$defs/x"}),
        declared("x", {}, anyOf=[{"properties": {"reason": TEXT}}]),
        {"type": "function", "function": {"name": "x", "strict": True, "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}},
        {"type": "function", "function": {"name": "x", "parameters": "text"}},
        {"type": "function", "function": {"parameters": {"type": "object"}}},
        {"type": "function"},
        "odd",
    ],
)
def test_a_tool_that_may_have_its_own_is_left_alone_both_ways(declaration: Any) -> None:
    """Its declaration is the same object, and so is a call of it."""
    layer, provider = listed(declaration)
    request = call("x", {"reason": "its own"})

    layer.execute_tool_calls([request])

    assert layer.tools_for_llm()[0] is declaration
    assert layer.augmented_tools() == []
    assert provider.calls[0] is request


@pytest.mark.parametrize("arguments", [{"path": "a", "reason": "why"}, '{"reason": "why", "path": "a"}'])
def test_the_reason_is_taken_out_of_either_shape(arguments: Any) -> None:
    """The shape stays: text as text, a mapping as a mapping."""
    layer, provider = listed(declared("x", {"path": TEXT}))

    layer.execute_tool_calls([call("x", arguments)])

    arrived = provider.calls[0]
    assert arrived.args == {"path": "a"}
    assert isinstance(arrived.arguments, type(arguments))


def test_the_text_that_is_left_is_compact_and_sorted() -> None:
    """Equal calls stay equal, however the model wrote the reason in."""
    layer, provider = listed(declared("x"))

    layer.execute_tool_calls([call("x", '{ "z": 1, "reason": "why", "a": [1, 2] }')])

    assert provider.calls[0].arguments == '{"a":[1,2],"z":1}'


@pytest.mark.parametrize(
    "value",
    ["123456789012345678901234567890", '"\\ud83d"', '"é\\u0000"', "0.1", "-0.0", "[" * 200 + "]" * 200],
    ids=lambda value: value[:20],
)
def test_every_other_value_arrives_as_it_was_sent(value: str) -> None:
    """Wide integers, half characters, deep nesting: taking out one key changes no other."""
    layer, provider = listed(declared("x"))
    text = f'{{"v": {value}, "reason": "why"}}'

    layer.execute_tool_calls([call("x", text)])

    assert json.dumps(json.loads(provider.calls[0].arguments)["v"]) == json.dumps(json.loads(value))  # type: ignore[arg-type]
    assert "reason" not in provider.calls[0].args


def test_arguments_that_cannot_be_written_again_keep_their_reason() -> None:
    """A number beyond all floats would arrive as something else."""
    layer, provider = listed(declared("x"))
    request = call("x", '{"v": 1e400, "reason": "why"}')

    layer.execute_tool_calls([request])

    assert provider.calls[0] is request


@pytest.mark.parametrize(
    "arguments", [None, "", "  ", "null", "{}", '{"n":1}', '{"n":', "[1]", '"reason"', {}, {"n": 1}]
)
def test_a_call_without_a_reason_is_the_same_object(arguments: Any) -> None:
    """Also one that cannot be read: whose arguments they are is not known."""
    layer, provider = listed(declared("x"))
    request = call("x", arguments)

    layer.execute_tool_calls([request])

    assert provider.calls[0] is request


def test_calls_before_a_listing_and_of_unlisted_tools_are_untouched() -> None:
    """Only what was offered is taken back."""
    provider = Declaring(declared("x"))
    layer = Reasons(provider)
    calls = [call("x", {"reason": "a"}), call("y", {"reason": "b"})]

    layer.execute_tool_calls(calls[:1])
    layer.tools_for_llm()
    layer.execute_tool_calls(calls[1:])

    assert all(arrived is sent for arrived, sent in zip(provider.calls, calls, strict=True))


def test_the_last_listing_decides() -> None:
    """A tool that has meanwhile a reason of its own keeps it."""
    layer, provider = listed(declared("x"), declared("y"))
    assert layer.augmented_tools() == ["x", "y"]

    provider.declarations = [declared("x", {"reason": TEXT})]
    layer.tools_for_llm()

    assert layer.augmented_tools() == []
    layer.execute_tool_calls([call("x", {"reason": "its own"})])
    assert provider.calls[0].args == {"reason": "its own"}


def test_a_listing_that_fails_is_not_hidden_and_changes_nothing() -> None:
    """What was offered before is still taken out."""
    layer, provider = listed(declared("x"))
    provider.declarations = ConnectionError("server gone")

    with pytest.raises(ConnectionError):
        layer.tools_for_llm()

    assert layer.augmented_tools() == ["x"]


def test_a_dead_provider_is_one_error_per_call() -> None:
    """The layer does not raise."""
    layer = Reasons(Declaring(answers=raising(OSError("pipe"))))

    answers = layer.execute_tool_calls([call("x", id="a"), call("y", id="b")])

    assert [(answer.tool_call_id, answer.is_error) for answer in answers] == [("a", True), ("b", True)]
    assert answers[0].content == "The tool provider behind Reasons failed: OSError: pipe"


def test_whoever_stands_in_front_sees_the_reason() -> None:
    """The model's own call stays as it is: a prompt can show it, the transcript keeps it."""
    layer, provider = listed(declared("x"))
    request = call("x", {"reason": "why"})
    raw: dict[str, Any] = {"id": "b", "function": {"name": "x", "arguments": {"reason": "why"}}}

    layer.execute_tool_calls([request, raw])

    assert request.args == raw["function"]["arguments"] == {"reason": "why"}
    assert [arrived.args for arrived in provider.calls] == [{}, {}]


def test_under_a_policy_the_prompt_sees_the_reason_and_the_tool_does_not() -> None:
    """The person reads it beside the arguments; no rule rests on it."""
    asked: list[Any] = []
    provider = Declaring(declared("x"))
    policy = Policy(Reasons(provider), on_ask=lambda each: asked.append(each["arguments"]) or True)
    policy.tools_for_llm()

    policy.execute_tool_calls([call("x", {"n": 1, "reason": "why"})])

    assert asked == [{"n": 1, "reason": "why"}]
    assert provider.calls[0].args == {"n": 1}


def test_the_optional_parts_pass() -> None:
    """Grants and repeating are not this layer's business."""
    layer: Any = Reasons(Granting())

    assert layer.grants() == [{"tool": "x", "decision": "allow"}]
    assert layer.idempotency_of("x") == "read-only"
    assert not hasattr(Reasons(Declaring()), "grants")


def test_no_calls_are_no_answers() -> None:
    """Nothing in, nothing out."""
    layer, _ = listed(declared("x"))
    nothing: list[ToolRequest] = []

    assert layer.execute_tool_calls(nothing) == []
