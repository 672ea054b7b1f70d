"""Many runs at once in one process: 100 of them at 50 tokens/s each, one consumer thread per run.

The server is a process of its own and writes into each token when it was sent; the consumer
compares. Runs start one after the other, spread over the first seconds. Told: latency from
server to consumer, CPU of the process, and how much memory a run adds while all of them live.
Beside it the least there is: one thread per stream, a `raw.read1` reader, no engine; its
latency is what the machine allows at this moment.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import first_token
import measure

PAGE = os.sysconf("SC_PAGE_SIZE")


# What is told: words, unit, and the target of ours.
TOLD = (
    ("p50", "latency, p50", "ms", ""),
    ("p95", "latency, p95", "ms", "<= 20 ms"),
    ("p99", "latency, p99", "ms", ""),
    ("worst", "latency, worst", "ms", ""),
    ("cpu_us", "CPU per token", "us", ""),
    ("cpu_percent", "CPU of one core", "%", ""),
    ("kib_per_run", "memory per run", "KiB", ""),
    ("well", "runs that ended well", "runs", "all"),
)


def main() -> None:
    measure.serve_as_child({"bare": bare, "engine": engine})
    asked = measure.options(__doc__, n=1, runs=100, rate=50, seconds=30.0, stagger=4.0)
    sizes = (asked.runs, asked.rate, asked.seconds, asked.stagger)
    with measure.paced_server() as url:
        records = measure.interleaved(
            ["bare", "engine"], asked.n, lambda name: measure.in_child(__file__, name, url, *sizes)
        )
    kept = records["engine"][0]["kept"]
    note = f"memory: once all had started, each with its threads and {kept:.0f} tokens on average"
    figures = []
    for key, what, unit, target in TOLD:
        values = {name: [row[key] for row in rows] for name, rows in records.items()}
        base = measure.figure("concurrent_runs", "bare threads", what, unit, values["bare"])
        ours = measure.figure(
            "concurrent_runs", "llm_agent", what, unit, values["engine"], floor=base.median, target=target, note=note
        )
        figures += [base, ours]
    measure.report(figures, as_json=asked.json)


def bare(url: str, *sizes: str) -> dict[str, Any]:
    """The streams read by threads of ours, with `requests` alone."""

    def consume(model: str, late: array[float]) -> None:
        late.extend(first_token.bare(url)(model))

    return measured(consume, *sizes)


def engine(url: str, *sizes: str) -> dict[str, Any]:
    """The streams as runs, each consumed by a thread of ours."""
    from llm_agent import Loop, OpenAIBackend
    from llm_agent.events import Token

    def consume(model: str, late: array[float]) -> None:
        backend = OpenAIBackend(model=model, base_url=url, api_key=measure.API_KEY)
        for event in Loop(backends=[backend]).run(measure.PROMPT).events():
            if isinstance(event, Token):
                late.append(first_token.lateness(event.text))

    return measured(consume, *sizes)


def measured(
    consume: Callable[[str, array[float]], None], count: str, rate: str, seconds: str, stagger: str
) -> dict[str, Any]:
    """Start *count* streams, each on a thread, wait for them all, tell."""
    tokens, pace_ms = int(float(seconds) * int(rate)), round(1000 / int(rate))
    late = [array("d") for _ in range(int(count))]
    consume("paced-5-1-chunked", array("d"))  # what is made once is made now
    before, cpu, wall = resident_kib(), time.process_time(), time.perf_counter()
    threads = []
    for mine in late:
        threads.append(threading.Thread(target=consume, args=(f"paced-{tokens}-{pace_ms}-chunked", mine)))
        threads[-1].start()
        time.sleep(float(stagger) / int(count))
    kept, kib = statistics.mean(len(one) for one in late), resident_kib() - before
    for thread in threads:
        thread.join()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return summary(late, cpu, wall) | {
        "kib_per_run": kib / int(count),
        "kept": kept,
        "well": sum(len(one) == tokens for one in late),
    }


def summary(late: list[array[float]], cpu: float, wall: float) -> dict[str, Any]:
    values = sorted(value for one in late for value in one)
    steps = statistics.quantiles(values, n=100)
    return {
        "p50": steps[49],
        "p95": steps[94],
        "p99": steps[98],
        "worst": values[-1],
        "cpu_us": cpu / len(values) * 1e6,
        "cpu_percent": cpu / wall * 100,
    }


def resident_kib() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE / 1024


if __name__ == "__main__":
    main()
