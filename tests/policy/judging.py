"""What the tests of the policy share: a call, a verdict, tools that count, and a human of paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.policy import Facts, Policy, Verdict
from llm_agent.policy.evaluation import Surroundings, evaluate
from llm_agent.policy.options import checked_surroundings
from llm_agent.policy.rules import read_rules
from llm_agent.testing import ScriptedProvider

TOOLS = ("fs_read", "fs_write", "fs_list", "web_get", "sh_run", "user_ask")


def request(tool: str = "fs_read", call_id: str = "c1", /, **arguments: Any) -> ToolRequest:
    """A call as a model makes it; `from_` stands for the word Python keeps."""
    return ToolRequest(call_id, tool, {name.removesuffix("_"): value for name, value in arguments.items()})


def around(**options: Any) -> Surroundings:
    named = ("roots", "path_params", "command_params", "local_tools", "checks")
    return checked_surroundings(**{name: options.get(name, () if name == "local_tools" else None) for name in named})


def verdict(rules: Sequence[Mapping[str, Any]], call: ToolRequest, **options: Any) -> Verdict:
    """What *rules* alone say about *call*."""
    try:
        arguments: Mapping[str, Any] | None = call.args
    except ValueError:
        arguments = None
    return evaluate(read_rules(rules), Facts(call.name, arguments, around(**options)))


def tools(*names: str) -> ScriptedProvider:
    return ScriptedProvider(dict.fromkeys(names or TOOLS, "done"))


class Human:
    """Answers from a list, the last answer again and again, and remembers what was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, asked: Mapping[str, Any]) -> Any:
        self.asked.append(dict(asked))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def run(policy: Policy, *calls: ToolRequest) -> list[ToolAnswer]:
    return policy.execute_tool_calls(list(calls))


def one(policy: Policy, call: ToolRequest) -> ToolAnswer:
    return run(policy, call)[0]


def denied(answer: ToolAnswer) -> dict[str, Any]:
    """The machine's half of a refusal."""
    assert answer.is_error
    facts: dict[str, Any] = answer.structured["denied"]
    return facts
