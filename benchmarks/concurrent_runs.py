"""Many runs at once in one process: 100 of them at 50 tokens/s each, one consumer thread per run.

The server is a process of its own and writes into each token when it was sent; the consumer
compares. Runs start one after the other, spread over the first seconds. Told: latency from
server to consumer, CPU of this process, and how much memory a run adds while all of them live.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from array import array
from time import monotonic_ns
from typing import Any

import measure

from llm_agent import Loop, OpenAIBackend
from llm_agent.events import Token

PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    measure.serve_as_child({"runs": runs})
    asked = measure.options(__doc__, runs=100, rate=50, seconds=30.0, stagger=4.0)
    with measure.paced_server() as url:
        record = measure.in_child(__file__, "runs", url, asked.runs, asked.rate, asked.seconds, asked.stagger)
    note = f"memory: once all had started, each with its two threads and {record['kept']:.0f} tokens on average"
    figures = [
        figure("latency, p50", "ms", record["p50"]),
        figure("latency, p95", "ms", record["p95"], target="<= 20 ms"),
        figure("latency, p99", "ms", record["p99"]),
        figure("latency, worst", "ms", record["worst"]),
        figure("CPU per token", "us", record["cpu_us"]),
        figure("CPU of one core", "%", record["cpu_percent"]),
        figure("memory per run", "KiB", record["kib_per_run"], note=note),
        figure("runs that ended well", "runs", record["well"], target=f"= {asked.runs}"),
    ]
    measure.report(figures, as_json=asked.json)


def figure(what: str, unit: str, value: float, **rest: Any) -> measure.Figure:
    return measure.figure("concurrent_runs", "llm_agent", what, unit, [value], **rest)


def runs(url: str, count: str, rate: str, seconds: str, stagger: str) -> dict[str, Any]:
    """The measured process: start the runs, read them all, tell."""
    tokens, pace_ms = int(float(seconds) * int(rate)), round(1000 / int(rate))
    late: list[array[float]] = []
    backend = OpenAIBackend(model=f"paced-{tokens}-{pace_ms}-chunked", base_url=url, api_key=measure.API_KEY)
    consumer = Consumer(backend)
    consumer.warm_up(url)
    before, cpu, wall = resident_kib(), time.process_time(), time.perf_counter()
    threads = []
    for number in range(int(count)):
        late.append(array("d"))
        threads.append(threading.Thread(target=consumer.consume, args=(late[number],)))
        threads[-1].start()
        time.sleep(float(stagger) / int(count))
    kept = statistics.mean(len(one) for one in late)
    kib = resident_kib() - before
    for thread in threads:
        thread.join()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    well = sum(len(one) == tokens for one in late)
    values = sorted(value for one in late for value in one)
    steps = statistics.quantiles(values, n=100)
    return {
        "p50": steps[49],
        "p95": steps[94],
        "p99": steps[98],
        "worst": values[-1],
        "cpu_us": cpu / len(values) * 1e6,
        "cpu_percent": cpu / wall * 100,
        "kib_per_run": kib / int(count),
        "kept": kept,
        "well": well,
    }


class Consumer:
    """Starts a run and reads it; one thread each."""

    def __init__(self, backend: OpenAIBackend) -> None:
        self._backend = backend

    def warm_up(self, url: str) -> None:
        backend = OpenAIBackend(model="paced-5-1-chunked", base_url=url, api_key=measure.API_KEY)
        assert Loop(backends=[backend]).run(measure.PROMPT).result(10).ok

    def consume(self, late: array[float]) -> None:
        for event in Loop(backends=[self._backend]).run(measure.PROMPT).events():
            if isinstance(event, Token):
                late.append((monotonic_ns() - int(event.text)) / 1e6)


def resident_kib() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE / 1024


if __name__ == "__main__":
    main()
