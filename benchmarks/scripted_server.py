"""A server for the benchmarks where the shared one is not there: model names are scripts.

`text-N` says N deltas, `tools-R` asks for R rounds of the tool `echo`, `flaky-P` fails P % of
its requests. `FakeServer` plays them: slower than a server made for speed, yet the same for
every subject of a run. Prints one JSON line with its port, and lives until it is ended.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Iterator

from measure import expected_text

from llm_agent.testing import Answer, FakeServer, RecordedRequest, call, error, reply

FLAKY_TOKENS = 40
FINAL_TOKENS = 10
_USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}


@functools.lru_cache(maxsize=16)
def text(model: str, count: int) -> Answer:
    whole = expected_text(count)
    return reply(whole, pieces=[whole[at : at + 4] for at in range(0, len(whole), 4)], usage=_USAGE, model=model)


def tools(model: str, rounds: int, request: RecordedRequest) -> Answer:
    done = sum(message["role"] == "tool" for message in request.messages)
    if done >= rounds:
        return text(model, FINAL_TOKENS)
    asked = call("echo", _id=f"call_{done:06d}", text=f"payload {done}", times=1, mode="plain")
    return reply(calls=[asked], usage=_USAGE, model=model)


@functools.cache
def failures(percent: int) -> Iterator[str]:
    """How the requests of a flaky model end, one after the other; `""` is well."""
    kinds = itertools.cycle(("500", "cut", "500", "eof"))
    return (next(kinds) if seen * percent // 100 > (seen - 1) * percent // 100 else "" for seen in itertools.count(1))


def flaky(model: str, percent: int) -> Answer:
    whole = text(model, FLAKY_TOKENS)
    match next(failures(percent)):
        case "500":
            return error(500, "the server had an error")
        case "cut":
            return whole.cut(after_events=FLAKY_TOKENS // 2)
        case "eof":
            half = expected_text(FLAKY_TOKENS // 2)
            return reply(half, finish_reason=None, model=model).cut(after_events=5)
        case _:
            return whole


def answer(request: RecordedRequest) -> Answer:
    model = str(request.body["model"])
    kind, _, number = model.partition("-")
    match kind:
        case "text":
            return text(model, int(number))
        case "tools":
            return tools(model, int(number), request)
        case "flaky":
            return flaky(model, int(number))
        case _:
            return error(404, f"no such model: {model}")


def main() -> None:
    server = FakeServer(answer)
    print(json.dumps({"port": server.port}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
