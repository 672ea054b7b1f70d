"""A run as server-sent events. Start: `MODEL=... BASE_URL=... flask --app examples/flask_stream.py run`."""

import json
import os
from collections.abc import Iterator

from flask import Flask, Response, abort, request

from llm_agent import Loop, OpenAIBackend, Run

app = Flask(__name__)
backend = OpenAIBackend(os.environ["MODEL"], base_url=os.environ["BASE_URL"])
runs: dict[str, Run] = {}  # of this one process; an application that lives long drops old ones


@app.post("/runs")
def start() -> tuple[dict[str, str], int]:
    run = Loop(backends=backend).run(request.get_json()["prompt"])
    runs[run.id] = run
    return {"id": run.id}, 201


@app.get("/runs/<run_id>/events")
def events(run_id: str) -> Response:
    run, last = runs.get(run_id) or abort(404), request.headers.get("Last-Event-ID", type=int)
    if run.is_done and next(run.events(after=last), None) is None:
        return Response(status=204)  # all seen: a browser stops reconnecting
    return Response(frames(run, last), mimetype="text/event-stream")


def frames(run: Run, last: int | None) -> Iterator[str]:
    stream = run.events(after=last, timeout=15)
    while True:
        try:
            for event in stream:
                yield f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(event.to_dict())}\n\n"
            return
        except TimeoutError:  # quiet for 15 s: a comment, by which we notice that a client has left
            yield ": nothing yet\n\n"
