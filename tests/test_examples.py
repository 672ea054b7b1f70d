"""The examples and the README's code, executed: real processes, a real HTTP server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests

import llm_agent
from llm_agent import Loop, Session, events
from llm_agent.testing import FakeServer, Gate, ScriptedBackend, call, error, finished

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()

Serve = Callable[..., FakeServer]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**kept, "no_proxy": "*", "PYTHONPATH": str(ROOT), **more}


def run_example(name: str, *arguments: str, cwd: Path, answers: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(), input=answers, capture_output=True, text=True, timeout=60
    )


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- quickstart --------------------------------------------------------------------------


def test_quickstart_calls_its_tool_and_prints_the_answer(serve: Serve, tmp_path: Path) -> None:
    """Against any server: the call is shown, the file is read, the answer is streamed."""
    (tmp_path / "note.txt").write_text("the door is open")
    server = serve([call("read_file", path="note.txt"), "The door is open."], strict=True)

    done = run_example("quickstart.py", "--base-url", server.url, "--model", "m", "What is in it?", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert '-> read_file {"path":"note.txt"}' in done.stdout
    assert "The door is open.\n[completed: " in done.stdout
    assert server.requests[1].body["messages"][-1]["content"] == "the door is open"


def test_quickstart_tells_why_a_run_failed(serve: Serve, tmp_path: Path) -> None:
    """A refused key is an outcome: its words, and exit status 1."""
    server = serve([error(401, "no such key")])

    done = run_example("quickstart.py", "--base-url", server.url, "--model", "m", "Hello?", cwd=tmp_path)

    assert done.returncode == 1
    assert "[failed: " in done.stdout
    assert "no such key" in done.stdout


# -- coding_agent ------------------------------------------------------------------------


def coding_agent(server: FakeServer, folder: Path, *arguments: str, answers: str = "") -> str:
    options = ["--base-url", server.url, "--model", "m", "--folder", str(folder)]
    done = run_example("coding_agent.py", *options, *arguments, cwd=folder, answers=answers)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def answers_seen(server: FakeServer) -> list[str]:
    """What the model was told by tools, in the last request."""
    return [message["content"] for message in server.requests[-1].body["messages"] if message["role"] == "tool"]


def test_coding_agent_writes_and_runs_after_a_yes(serve: Serve, tmp_path: Path) -> None:
    """With a yes to each question a file is written, edited and executed."""
    server = serve(
        [
            call("write_file", path="a/hello.sh", content="echo hullo"),
            call("edit_file", path="a/hello.sh", old="hullo", new="hello"),
            call("run", command="sh a/hello.sh"),
            "Done.",
        ],
        strict=True,
    )

    shown = coding_agent(server, tmp_path, "Say hello.", answers="y\nyes\nY\n")

    assert (tmp_path / "a" / "hello.sh").read_text() == "echo hello"
    assert "run 'sh a/hello.sh'? [y/N]" in shown
    assert answers_seen(server)[2].splitlines()[0] == "hello"


def test_coding_agent_leaves_alone_what_was_refused(serve: Serve, tmp_path: Path) -> None:
    """A no, and an input that is closed, is a no; the model is told."""
    server = serve(
        [call("write_file", path="x", content="1"), call("run", command="touch y"), "As you like."], strict=True
    )

    coding_agent(server, tmp_path, "Write.", answers="n\n")

    assert list(tmp_path.iterdir()) == []
    assert answers_seen(server) == ["The user said no.", "The user said no."]


def test_coding_agent_reads_without_a_question(serve: Serve, tmp_path: Path) -> None:
    """Reading, listing and searching ask nobody."""
    (tmp_path / "b.txt").write_text("one\ntwo\n")
    server = serve(
        [[call("list_files"), call("grep", pattern="t.o"), call("read_file", path="b.txt")], "Read."], strict=True
    )

    coding_agent(server, tmp_path, "Look around.")

    listed, found, text = answers_seen(server)
    assert (listed, text) == ("b.txt", "one\ntwo\n")
    assert found.strip().endswith("b.txt:2:two")


@pytest.mark.parametrize("path", ["../outside.txt", "link.txt", "linked/outside.txt", "/etc/hostname"])
def test_coding_agent_never_leaves_its_folder(tmp_path: Path, path: str) -> None:
    """`..`, links to files and folders, and absolute paths are refused by every file tool."""
    (tmp_path / "outside.txt").write_text("secret")
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "linked").symlink_to(tmp_path)
    tools = loaded("coding_agent").Folder(folder.resolve())

    attempts: list[tuple[Callable[..., str], tuple[str, ...]]] = [
        (tools.read_file, (path,)),
        (tools.list_files, (path,)),
        (tools.grep, ("secret", path)),
        (tools.write_file, (path, "x")),
        (tools.edit_file, (path, "secret", "x")),
    ]
    for attempt, arguments in attempts:
        with pytest.raises(PermissionError, match="outside of the folder"):
            attempt(*arguments)
    assert (tmp_path / "outside.txt").read_text() == "secret"


def test_coding_agent_searches_no_link_that_leads_out(tmp_path: Path) -> None:
    """A search below the folder does not follow links."""
    (tmp_path / "outside.txt").write_text("secret")
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")

    assert "secret" not in loaded("coding_agent").Folder(folder.resolve()).grep("secret")


def test_coding_agent_goes_on_after_a_kill(serve: Serve, tmp_path: Path) -> None:
    """Killed in a question and started again with the same session, it tells what is open and finishes."""
    transcript = tmp_path / "run.jsonl"
    server = serve([call("write_file", path="x", content="1"), "Then I stop here."], strict=True)
    options = ["--base-url", server.url, "--model", "m", "--folder", str(tmp_path), "--session", str(transcript)]
    command = [sys.executable, "-u", str(EXAMPLES / "coding_agent.py"), *options, "Write."]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **pipes) as process:  # type: ignore[call-overload]
        shown = ""
        while "[y/N]" not in shown:
            shown += process.stdout.read(1)
        process.send_signal(signal.SIGKILL)

    resumed = coding_agent(server, tmp_path, "--session", str(transcript))

    assert "of write_file was dispatched" in resumed
    assert "whether it took effect is unknown" in resumed
    assert "Then I stop here." in resumed
    assert Session.read(transcript).messages[-1].text == "Then I stop here."


# -- custom_provider ---------------------------------------------------------------------


def test_custom_provider_runs_offline(tmp_path: Path) -> None:
    """The provider of the example answers each call, a mistaken one too."""
    done = run_example("custom_provider.py", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "tool: The key is under the mat." in done.stdout
    assert "tool: There is no note 'window'." in done.stdout


# -- flask_stream ------------------------------------------------------------------------


def test_flask_stream_is_under_40_lines() -> None:
    """The view is as short as it is said to be."""
    assert len((EXAMPLES / "flask_stream.py").read_text().splitlines()) < 40


@pytest.fixture
def flask_url(serve: Serve) -> Iterator[tuple[str, FakeServer, Gate]]:
    """The example under Flask's own server, in a process; its model stops at a gate in mid-answer."""
    gate = Gate("half")
    model = serve([gate])
    command = [sys.executable, "-m", "flask", "--app", str(EXAMPLES / "flask_stream.py"), "run", "--port", "0"]
    env = environment(MODEL="m", BASE_URL=model.url, PYTHONUNBUFFERED="1")
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield address(process), model, gate
        finally:
            process.kill()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"Running on (http://\S+)", line)
        if found:
            return found[1]
    raise AssertionError("the example's server did not start")


def sent_events(response: requests.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines(chunk_size=1, decode_unicode=True):
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_flask_stream_resumes_behind_the_last_event_id(flask_url: tuple[str, FakeServer, Gate]) -> None:
    """A client that left in mid-answer gets exactly the rest, and then a 204 that ends its reconnecting."""
    url, _, gate = flask_url
    with requests.Session() as client:
        client.trust_env = False
        run_id = client.post(f"{url}/runs", json={"prompt": "Hello?"}, timeout=5).json()["id"]
        stream = f"{url}/runs/{run_id}/events"
        seen = []
        with client.get(stream, stream=True, timeout=5) as response:
            for event in sent_events(response):
                seen.append(event)
                if event["kind"] == "token":
                    break  # the client leaves
        gate.open()
        last = {"Last-Event-ID": str(seen[-1]["seq"])}
        with client.get(stream, headers=last, stream=True, timeout=5) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            seen += sent_events(response)
        over = client.get(stream, headers={"Last-Event-ID": str(seen[-1]["seq"])}, timeout=5)
        unknown = client.get(f"{url}/runs/none/events", timeout=5)

    assert [event["seq"] for event in seen] == list(range(len(seen)))
    assert [events.from_dict(event).is_terminal for event in seen] == [False] * (len(seen) - 1) + [True]
    assert (over.status_code, unknown.status_code) == (204, 404)


# -- the README --------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_readme_quick_start_is_the_example() -> None:
    """The quick start block is `examples/quickstart.py`, to the letter."""
    assert blocks("python")[0] == (EXAMPLES / "quickstart.py").read_text()


def test_readme_has_exactly_two_commands_of_one_line() -> None:
    """One line runs the demo, one runs the tests; each makes its virtual environment itself."""
    demo, tests = (block.splitlines() for block in blocks("sh"))

    assert [len(demo), len(tests)] == [1, 1]
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install ") for command in demo + tests)
    assert demo[0].endswith("-m llm_agent demo")
    assert tests[0].endswith("-m pytest")


def test_ci_runs_the_readme_test_command() -> None:
    """`.ci/run` calls the second command to the letter, may be executed, and names no package index."""
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()

    assert blocks("sh")[1].strip() in lines
    assert os.access(script, os.X_OK)
    assert not re.search(r"https?://|index-url", script.read_text())


def test_readme_grammar_is_the_one_of_the_events() -> None:
    """The framing contract is written once; the README quotes it."""
    grammar = next(block for block in blocks("text") if block.startswith("run      :="))

    quoted = "".join(f"    {line}\n" if line.strip() else "\n" for line in grammar.splitlines())
    assert quoted in (events.__doc__ or "")


def test_readme_shows_the_demo_as_it_is() -> None:
    """The transcript in the README is one of this demo: each of its turning points stands in it."""
    from llm_agent.cli import demo_script

    shown = blocks("text")[0]

    assert demo_script.TASK in shown
    for turning_point in ("retracted; ", "given up (deadline)", "[fallback-model]", "kill -9", "repair: ", "completed"):
        assert turning_point in shown


def block_with(text: str) -> str:
    return next(block for block in blocks("python") if text in block)


def test_readme_answers_a_question_from_outside() -> None:
    """The block about questions answers each one with what was typed."""

    def delete() -> str:
        context = llm_agent.current_call()
        assert context is not None
        return "deleted" if context.ask({"question": "delete it?"}) else "kept"

    typed = iter(["y"])
    run = Loop(ScriptedBackend([call("delete"), "Done."]), tools=[delete], on_ask="run").run("Delete.")
    exec(block_with("run.answer("), {"run": run, "AskPending": events.AskPending, "input": lambda _: next(typed)})

    assert [result.content for result in finished(run).of(events.ToolResult)] == ["deleted"]


def test_readme_resumes_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block about sessions begins a transcript, and continues it the next time."""
    monkeypatch.chdir(tmp_path)
    backend = ScriptedBackend(["First.", "Second."])

    for _ in range(2):
        names: dict[str, Any] = {"Session": Session, "Loop": Loop, "backend": backend, "tools": []}
        exec(block_with("session.repair()") + "    run.result(5)\n    run.drained(5)\n", names)

    assert [m.text for m in Session.read("run.jsonl").messages if m.role == "assistant"] == ["First.", "Second."]


def test_readme_test_of_an_agent_passes() -> None:
    """The test that the README shows is one."""
    names: dict[str, Any] = {"add": lambda a, b: a + b}
    names["add"].__name__ = "add"

    exec(block_with("def test_a_broken_stream_is_retried"), names)
    names["test_a_broken_stream_is_retried"]()


def test_readme_says_how_a_key_is_given_to_another_host() -> None:
    """The constructor takes what the README says it takes, and does not show it."""
    backend = llm_agent.OpenAIBackend("model", base_url="http://localhost:8080/v1", api_key="sk-secret")

    assert "sk-secret" not in repr(backend)
