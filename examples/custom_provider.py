"""Tools from any object with two methods; runs offline on a scripted model.

    python custom_provider.py

`@tool` functions are the short way; a provider is for tools that come from somewhere else.
"""

from __future__ import annotations

from typing import Any

from llm_agent import Loop, ToolAnswer, ToolRequest
from llm_agent.testing import ScriptedBackend, call


class Notebook:
    """Notes by title. Nothing to inherit from."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def tools_for_llm(self) -> list[dict[str, Any]]:
        return [
            _declared("note", "Keep a text under a title.", "title", "text"),
            _declared("look_up", "Return the text under a title.", "title"),
        ]

    def execute_tool_calls(self, calls: list[ToolRequest]) -> list[ToolAnswer]:
        return [self._answer(request) for request in calls]  # one answer per call, in the same order

    def _answer(self, request: ToolRequest) -> ToolAnswer:
        title = request.args.get("title", "")
        match request.name:
            case "note":
                self.notes[title] = request.args.get("text", "")
                return ToolAnswer(request.id, "Noted.")
            case "look_up" if title in self.notes:
                return ToolAnswer(request.id, self.notes[title])
            case _:
                return ToolAnswer(request.id, f"There is no note {title!r}.", is_error=True)


def _declared(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def main() -> None:
    model = ScriptedBackend(
        [
            call("note", title="door", text="The key is under the mat."),
            [call("look_up", title="door"), call("look_up", title="window")],
            "The key is under the mat; nothing is known of the window.",
        ]
    )
    outcome = Loop(backends=model, provider=Notebook()).run("Where is the key?").result(timeout=10)
    for message in outcome.messages:
        print(f"{message.role:>9}: {message.text or [f'{c.name} {c.arguments}' for c in message.tool_calls]}")


if __name__ == "__main__":
    main()
