"""The canonical order in one call, and one reading of arguments through all of it."""

from __future__ import annotations

from typing import Any

import pytest
from layered import Declaring, Granting, call, declared, names

from llm_agent import Reasons, Registry, Toolbox, ToolRequest, UnknownKeys, tool
from llm_agent.errors import ConfigError
from llm_agent.layers import arguments_of
from llm_agent.tools import UnknownKeysFound, stacked

TEXT = {"type": "string"}


def test_prefixes_become_a_registry_below_both_layers() -> None:
    """The model is offered a reason, and its calls reach the provider without one."""
    told: list[UnknownKeysFound] = []
    files = Declaring(declared("read", {"path": TEXT}))
    tools = stacked({"fs": files, "git": Declaring(declared("log"))}, unknown_keys=told.append)

    assert names(tools) == ["fs_read", "git_log"]
    tools.execute_tool_calls([call("fs_read", {"path": "a", "reason": "why", "zeal": 1})])

    assert files.calls[0].args == {"path": "a", "zeal": 1}
    assert [(found.tool, found.unknown_keys, found.declared_keys) for found in told] == [
        ("fs_read", ("zeal",), ("path", "reason"))
    ]


@pytest.mark.parametrize(("reasons", "unknown_keys", "kind"), [(False, True, UnknownKeys), (True, False, Reasons)])
def test_either_layer_can_be_left_out(reasons: bool, unknown_keys: bool, kind: type) -> None:
    """And without both there is what was given."""
    registry = Registry()

    assert type(stacked(registry, reasons=reasons, unknown_keys=unknown_keys)) is kind
    assert stacked(registry, reasons=False, unknown_keys=False) is registry


def test_functions_are_taken_too() -> None:
    """As a list, with providers among them, or one alone."""

    def plain() -> str:
        """Nothing much."""
        return "plain"

    assert names(stacked([plain, Declaring(declared("x"))])) == ["plain", "x"]
    assert names(stacked(plain)) == ["plain"]


@pytest.mark.parametrize("tools", [5, None, "text", Registry])
def test_what_is_no_provider_is_refused(tools: Any) -> None:
    """When the stack is made."""
    with pytest.raises(ConfigError):
        stacked(tools)


def test_the_optional_parts_reach_the_top() -> None:
    """With the names that the model uses."""
    tools: Any = stacked({"fs": Granting(declared("x")), "git": Declaring()})

    assert tools.idempotency_of("fs_x") == "read-only"
    assert tools.grants() == [{"tool": "x", "decision": "allow"}]
    assert not hasattr(stacked({"git": Declaring()}), "grants")


SHAPES: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"arguments": {"n": 1, "reason": "why"}}, {"n": 1, "reason": "why"}),
    ({"arguments": {}}, {}),
    ({"arguments": None}, {}),
    ({}, {}),
    ({"arguments": ""}, {}),
    ({"arguments": " \n\t"}, {}),
    ({"arguments": '{"n": 1, "reason": "why"}'}, {"n": 1, "reason": "why"}),
    ({"arguments": " null "}, {}),
    ({"arguments": '{"n": 1'}, None),
    ({"arguments": "[1]"}, None),
    ({"arguments": '"n"'}, None),
    ({"arguments": "1"}, None),
    ({"arguments": '{"n": NaN}'}, None),
]


@pytest.mark.parametrize(("function", "expected"), SHAPES, ids=[str(shape) for shape, _ in SHAPES])
def test_every_layer_reads_every_shape_of_arguments_alike(function: dict[str, Any], expected: Any) -> None:
    """What a layer decides by is what the tool is run with; `None` is unknown to all, and not run."""
    ran: list[dict[str, Any]] = []
    told: list[UnknownKeysFound] = []

    @tool
    def probe(n: int = 0) -> str:
        """Look."""
        ran.append({"n": n})
        return "done"

    tools = stacked({"my": Toolbox([probe])}, unknown_keys=told.append)
    tools.tools_for_llm()
    raw = {"id": "c1", "function": {"name": "my_probe", **function}}

    answer = tools.execute_tool_calls([ToolRequest.from_raw(raw)])[0]

    assert arguments_of(ToolRequest.from_raw(raw)) == expected
    assert ran == ([] if expected is None else [{"n": expected.get("n", 0)}])
    assert getattr(answer, "is_error", None) is (expected is None)
    assert told == []
