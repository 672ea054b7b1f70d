"""Whatever is stacked on whatever, what holds for every layer holds.

Layers in random order, policies with bad askers among them, over providers that answer short,
lazily, under other ids, raise, exit or change what they are given; calls that are none; inside a
run that may be cancelled half-way, and outside of one: one answer per call, in order, nothing
raised, and nobody's objects changed.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, cast

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from layered import Declaring, declared

from llm_agent import Reasons, Registry, ToolAnswer, Toolbox, ToolRequest, UnknownKeys
from llm_agent.call_context import current_call
from llm_agent.layers import requests_of
from llm_agent.policy import AskLock, Policy
from llm_agent.ports import ToolProvider
from llm_agent.testing import call_context
from llm_agent.tools import combine, stacked

EXAMPLES = int(os.environ.get("LLM_AGENT_EXAMPLES", "300"))


# -- providers -----------------------------------------------------------------------------


def _text(call: ToolRequest) -> str:
    return f"{call.name} ran with {call.arguments}"


def _answers(calls: Sequence[ToolRequest]) -> list[ToolAnswer]:
    return [ToolAnswer(call.id, _text(call)) for call in calls]


def _raises(calls: Sequence[ToolRequest]) -> Any:
    raise OSError("pipe")


def _raises_midway(calls: Sequence[ToolRequest]) -> Iterator[ToolAnswer]:
    yield from _answers(calls)
    raise OSError("pipe")


def _clears(calls: Any) -> list[ToolAnswer]:
    answers = _answers(calls)
    calls.clear()
    return answers


def _raises_anything(calls: Sequence[ToolRequest]) -> Any:
    raise asyncio.CancelledError("not an Exception")


def _exits_midway(calls: Sequence[ToolRequest]) -> Iterator[ToolAnswer]:
    yield from _answers(calls)[:1]
    raise SystemExit(3)


def _changes(calls: Sequence[ToolRequest]) -> list[ToolAnswer]:
    answers = _answers(calls)
    for call in calls:
        if isinstance(call.arguments, dict):
            call.arguments["changed"] = True
    return answers


def _cancels(calls: Sequence[ToolRequest]) -> Iterator[ToolAnswer]:
    context = current_call()
    for answer in _answers(calls):
        yield answer
        if context is not None:
            context.cancelled.set()


class Hostile(dict[str, Any]):
    """Raises whatever it is asked, and has no text either."""

    def get(self, key: str, default: Any = None) -> Any:
        raise SystemExit(3)

    def __str__(self) -> str:
        raise GeneratorExit

    __repr__ = __str__

    def __deepcopy__(self, memo: Any) -> Hostile:
        return self

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


class Undecided:
    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


BEHAVIOURS: dict[str, Callable[[Sequence[ToolRequest]], Any]] = {
    "answers": _answers,
    "bare text": lambda calls: [_text(call) for call in calls],
    "mappings": lambda calls: [{"tool_call_id": call.id, "content": _text(call), "is_error": None} for call in calls],
    "tuple": lambda calls: tuple(_answers(calls)),
    "lazy": lambda calls: iter(_answers(calls)),
    "short": lambda calls: _answers(calls)[:1],
    "surplus": lambda calls: [*_answers(calls), "more", "and more"],
    "gaps": lambda calls: [answer if place % 2 else None for place, answer in enumerate(_answers(calls))],
    "foreign ids": lambda calls: [ToolAnswer("foreign", _text(call)) for call in calls],
    "backwards": lambda calls: _answers(calls)[::-1],
    "clears its list": _clears,
    "lone text": lambda _: "lone",
    "nothing": lambda _: None,
    "a number": lambda _: 5,
    "odd values": lambda calls: [object(), {"content": object()}, b"\xff", [1]][: len(calls)],
    "raises": _raises,
    "raises midway": _raises_midway,
    "raises no exception": _raises_anything,
    "exits midway": _exits_midway,
    "changes its arguments": _changes,
    "cancels the call": _cancels,
    "one for all": lambda calls: [ToolAnswer("", "the same")] * len(calls),
    "hostile": lambda calls: [Hostile(content="x") for _ in calls],
    "undecided": lambda calls: [ToolAnswer(call.id, _text(call), is_error=cast("bool", Undecided())) for call in calls],
    "surplus without end": lambda calls: itertools.chain(_answers(calls), itertools.repeat("more", 1_000)),
}

TEXT = {"type": "string"}
DECLARATIONS: list[Any] = [
    declared("read", {"mark": TEXT}),
    declared("read", {"mark": TEXT, "reason": TEXT}),
    declared("write", {"path": TEXT}, additionalProperties=True),
    declared("ext_read"),
    declared("not legal"),
    {"type": "function", "function": {"name": "bare"}},
    {"type": "function", "function": {"name": "read", "parameters": "odd"}},
    {"type": "function", "function": None},
    "odd",
]

_behaviours = st.sampled_from(sorted(BEHAVIOURS))
_catalogues = st.lists(st.sampled_from(DECLARATIONS), max_size=3)


@attrs.frozen
class Plan:
    """A stack to build: behaviours with their catalogues, and the layers from the inside out."""

    behaviours: list[tuple[str, list[Any]]]
    layers: list[str]

    @property
    def path(self) -> str:
        """What the names of the innermost provider begin with, seen from outside."""
        return "".join(TAGS.get(layer, "") for layer in reversed(self.layers))

    def built(self) -> ToolProvider:
        rest = [Declaring(*catalogue, answers=BEHAVIOURS[name]) for name, catalogue in self.behaviours]
        stack: ToolProvider = rest.pop()
        for layer in self.layers:
            other = rest.pop() if rest else Declaring()
            stack = LAYERS[layer](stack, other)
        return stack


def _fails(*_: Any) -> Any:
    raise SystemExit(3)


RULES: list[dict[str, Any]] = [
    {"tool": "read", "decision": "allow"},
    {"tool": "f*", "decision": "allow"},
    {"tool": "bare", "decision": "deny"},
    {"tool": "write", "decision": "allow", "under": "/srv"},
    {"tool": "write", "decision": "ask", "check": "fails"},
]
CHECKS = {"fails": _fails}


def _asker(cancels: bool = False) -> Callable[[Any], Any]:
    """Answers as people and programs do: well, badly, and not at all."""
    given: list[Any] = [True, "nonsense", "allow-once", None, "always-allow", 5, OSError("no screen"), SystemExit(3)]
    given += [{"action": "always-allow", "rule": {"tool": "fs_*"}, "expires-in": 1}, Hostile(action="allow-once")]
    answers = itertools.cycle(given)

    def ask(_: Any) -> Any:
        context = current_call()
        if cancels and context is not None:
            context.cancelled.set()
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return ask


def _asking_itself(stack: Any, _: Any) -> Policy:
    """Its prompt calls its own tools before it answers."""

    def ask(_: Any) -> bool:
        asked = policy.execute_tool_calls([ToolRequest("inside", "write", '{"path": "a"}')])
        return len(asked) == 1

    policy = Policy(stack, RULES, on_ask=ask, on_warn=_quiet, checks=CHECKS)
    return policy


def echo(mark: int = 0) -> str:
    """Echo."""
    return f"mark {mark}"


def _quiet(_: object) -> None:
    """Rules for tools that are not there are nothing to tell of here."""


def _fails_as_read(mark: int = 0) -> str:
    """Fail."""
    raise SystemExit(3)


LOCK = AskLock()

# Each takes the stack so far, and a provider that may stand beside it.
LAYERS: dict[str, Callable[[Any, Any], ToolProvider]] = {
    "reasons": lambda stack, _: Reasons(stack),
    "unknown keys": lambda stack, _: UnknownKeys(stack, lambda found: 1 / 0),
    "registry": lambda stack, other: Registry({"fs": stack, "fs_ext": other}),
    "registry without separator": lambda stack, other: Registry().add(other, "git", "-").add(stack, "f", ""),
    "policy": lambda stack, _: Policy(
        stack, RULES, on_ask=_asker(), on_grant=_fails, on_warn=_quiet, checks=CHECKS, roots={"": "/srv"}
    ),
    "policy that nobody answers": lambda stack, _: Policy(stack, RULES, on_warn=_quiet, checks=CHECKS),
    "policy in a run that is cancelled": lambda stack, _: Policy(
        stack, RULES, on_ask=_asker(cancels=True), on_warn=_quiet, checks=CHECKS, local_tools=["*"], ask_lock=LOCK
    ),
    "policy with a clock": lambda stack, _: Policy(
        stack, on_ask=_asker(), ask_timeout=5, ask_lock=LOCK, filter_tools=False, claim_elicits=True
    ),
    "policy that asks itself": _asking_itself,
    "combined": lambda stack, other: Reasons(combine([stack, other])),
    "beside functions": lambda stack, _: combine([echo, stack, Toolbox([_fails_as_read])]),
    "stacked": lambda stack, other: stacked({"s": stack, "t": [echo]}, unknown_keys=_fails),
}

TAGS = {"registry": "fs_", "registry without separator": "f", "stacked": "s_"}

_plans = st.builds(
    Plan,
    st.lists(st.tuples(_behaviours, _catalogues), min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5),
)


# -- calls ---------------------------------------------------------------------------------

_names = st.sampled_from(
    [
        "read", "write", "bare", "fs_read", "fs_ext_read", "fs_ext_", "fs_", "f", "fread", "git-read", "ffs_read",
        "echo", "t_echo", "_fails_as_read", "", "é", "*", "fs_*", "re\x00ad", "ｒead", "\ud800", "{tool}", "n" * 10_000,
    ]
)  # fmt: skip
_ids = st.sampled_from(["", "a", "b", "c", "d", "e", "f"])
# Each call's arguments carry a mark, so that an answer tells whose it is.
_spellings = st.sampled_from(
    [
        '{{"mark":{0},"reason":"why"}}',
        '{{"mark":{0}}}',
        '{{"reason":1,"z":{{}},"mark":{0}}}',
        '["mark",{0}]',
        '{{"mark":{0}',
        '{{"mark":{0},"path":"/srv/a"}}',
        '{{"mark":{0},"path":"../a","command":"rm -rf /","url":"http://a.org@b.org"}}',
        '{{"mark":{0},"deep":' + "[" * 600 + "]" * 600 + "}}",
        '{{"mark":{0},"long":"' + "x" * 50_000 + '"}}',
    ]
)
_odd_calls: st.SearchStrategy[Any] = st.sampled_from(
    [None, 5, "text", [], {}, {"id": "a"}, {"function": {}}, {"id": 7, "function": {"name": 7}}, Hostile(id="a")]
)


@st.composite
def _batches(draw: st.DrawFn, path: str) -> list[Any]:
    """Calls of any kind; half of those that have a name reach the innermost provider if they are let through."""
    named = _names | st.sampled_from([f"{path}read", f"{path}write"])
    batch: list[Any] = []
    for mark in range(draw(st.integers(0, 5))):
        if draw(st.integers(0, 9)) == 0:
            batch.append(draw(_odd_calls))
            continue
        call_id, name, text = draw(_ids), draw(named), draw(_spellings).format(mark)
        arguments: Any = draw(
            st.sampled_from([text, text, {"mark": mark, "deep": {"reason": [mark]}, "reason": "why"}])
        )
        if draw(st.booleans()):
            batch.append(ToolRequest(call_id, name, arguments))
        else:
            batch.append({"id": call_id, "function": {"name": name, "arguments": arguments}, "index": mark})
    return batch


def _mark_of(text: str) -> int | None:
    found = re.search(r"mark\W+(\d+)", text)
    return None if found is None else int(found[1])


@settings(max_examples=EXAMPLES)
@given(
    case=_plans.flatmap(lambda plan: st.tuples(st.just(plan), _batches(plan.path))),
    lists_first=st.booleans(),
    is_in_a_run=st.booleans(),
)
def test_every_call_has_its_answer_and_nothing_is_raised(
    case: tuple[Plan, list[Any]], lists_first: bool, is_in_a_run: bool
) -> None:
    """One answer per call, under its id and in its place; callers' and providers' objects untouched."""
    plan, batch = case
    calls, catalogues = copy.deepcopy(batch), copy.deepcopy(plan.behaviours)
    stack = plan.built()
    if lists_first:
        try:
            stack.tools_for_llm()
        except (ValueError, TypeError, AttributeError):  # a listing may be refused; answers may not
            pass

    with call_context(on_ask=_asker()) if is_in_a_run else nullcontext():
        answers = stack.execute_tool_calls(batch)

    assert plan.behaviours == catalogues
    # A typed call goes down as the same object: whoever changes it there changes it.
    may_change = any(name == "changes its arguments" for name, _ in plan.behaviours)
    kept = [not (may_change and isinstance(call, ToolRequest)) for call in batch]
    assert list(itertools.compress(batch, kept)) == list(itertools.compress(calls, kept))
    requests = requests_of(calls)
    assert [getattr(answer, "tool_call_id", None) for answer in answers] == [call.id for call in requests]
    for call, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, ToolAnswer)
        assert answer.is_error in (True, False)
        mark = _mark_of(answer.content)
        # Answers in another order can only be told apart by ids, where the calls have some.
        if mark is not None and not (_is_backwards(plan) and _ids_are_shared(requests)):
            assert mark == _mark_of(str(call.arguments))


def _is_backwards(plan: Plan) -> bool:
    return any(name == "backwards" for name, _ in plan.behaviours)


def _ids_are_shared(calls: Sequence[ToolRequest]) -> bool:
    ids = [call.id for call in calls]
    return "" in ids or len(set(ids)) < len(ids)
