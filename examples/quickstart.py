"""Ask a model on any OpenAI-compatible server, and let it read files.

python quickstart.py --model gpt-5 "What does setup.cfg say?"
python quickstart.py --model qwen3 --base-url http://localhost:8080/v1 "What does setup.cfg say?"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from llm_agent import Loop, OpenAIBackend, tool
from llm_agent.events import AttemptFailed, Token, ToolCall, TurnDiscarded


@tool(idempotency="read-only")
def read_file(path: str) -> str:
    """Read a text file.

    Args:
        path: relative to the current folder
    """
    return Path(path).read_text()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", default="https://api.openai.com/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("prompt")
    options = parser.parse_args()

    backend = OpenAIBackend(options.model, base_url=options.base_url)  # OpenAI's key: OPENAI_API_KEY
    loop = Loop(backends=backend, tools=[read_file], tool_deadline=30)
    with loop.run(options.prompt) as run:  # leaving the block early (Ctrl-C) cancels the run
        for event in run.events():
            match event:
                case Token(text=text):
                    print(text, end="", flush=True)
                case AttemptFailed(error=error):
                    print(f"\n[retracted: {error}]")
                case TurnDiscarded():
                    print("\n[retracted]")
                case ToolCall(name=name, arguments=arguments):
                    print(f"\n-> {name} {arguments}")
    outcome = run.result()  # a failed run is data, not an exception
    print(f"\n[{outcome.status}: {outcome.error or outcome.reason or f'{outcome.spent.total_tokens} tokens'}]")
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
