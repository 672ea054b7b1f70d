"""The examples and the README's code, executed: real processes, a real HTTP server."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
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


@attrs.define(eq=False)
class AtTerminal:
    """An example in a terminal of its own, where somebody answers; its output is read apart from that."""

    process: subprocess.Popen[str]
    master: int

    @classmethod
    @contextmanager
    def started(cls, *arguments: str, cwd: Path) -> Iterator[AtTerminal]:
        master, slave = pty.openpty()
        # A session leader without a terminal gets the first one that it opens.
        adopt = f"import os, runpy; os.open({os.ttyname(slave)!r}, os.O_RDWR); "
        command = [sys.executable, "-c", adopt + "runpy.run_path(os.environ['EXAMPLE'], run_name='__main__')"]
        env = environment(EXAMPLE=str(EXAMPLES / "coding_agent.py"))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
        try:
            with subprocess.Popen([*command, *arguments], cwd=cwd, env=env, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
                try:
                    yield cls(process, master)
                finally:
                    process.kill()  # one that waits for an answer would hold up a test that has failed
        finally:
            os.close(slave)
            os.close(master)

    def shown(self) -> str:
        """Wait for the next question and return it."""
        text = ""
        while not text.endswith(("> ", "Why not? ")):
            ready, _, _ = select.select([self.master], [], [], 30)
            assert ready, f"no question came; this was shown: {text}"
            text += os.read(self.master, 65_536).decode().replace("\r\n", "\n")
        return text

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


def options_for(server: FakeServer, folder: Path) -> list[str]:
    return ["--base-url", server.url, "--model", "m", "--folder", str(folder)]


def coding_agent(server: FakeServer, folder: Path, *arguments: str, answers: Sequence[str] = ()) -> str:
    """Run the agent to its end, each question answered; return what was shown at the terminal."""
    shown = ""
    with AtTerminal.started(*options_for(server, folder), *arguments, cwd=folder) as example:
        for answer in answers:
            shown += example.shown()
            example.type(answer)
        output, errors = example.process.communicate(timeout=60)
    assert (example.process.returncode, errors) == (0, "")
    return shown + output


def answers_seen(server: FakeServer) -> list[str]:
    """What the model was told by tools, in the last request."""
    return [message["content"] for message in server.requests[-1].body["messages"] if message["role"] == "tool"]


def test_coding_agent_writes_and_runs_after_a_yes(serve: Serve, tmp_path: Path) -> None:
    """With a yes to each question a file is written, edited and executed; each change is shown before."""
    server = serve(
        [
            call("write", path="a/hello.sh", content="echo hullo\n"),
            call("edit", path="a/hello.sh", old="hullo", new="hello"),
            call("run", command="sh", args=["a/hello.sh"]),
            "Done.",
        ],
        strict=True,
    )

    shown = coding_agent(server, tmp_path, "Say hello.", answers=["y\n", "yes\n", "Y\n"])

    assert (tmp_path / "a" / "hello.sh").read_text() == "echo hello\n"
    assert "  | -echo hullo\n  | +echo hello\n" in shown
    assert 'args: ["a/hello.sh"]' in shown
    assert answers_seen(server)[2] == "hello\n[exit status 0]"


def test_coding_agent_leaves_alone_what_was_refused(serve: Serve, tmp_path: Path) -> None:
    """A no, and the end of the input, is a no; the model is told, with the reason where one was given."""
    server = serve(
        [
            call("write", path="x", content="1"),
            call("run", command="touch", args=["y"]),
            call("run", command="touch", args=["z"]),
            "As you like.",
        ],
        strict=True,
    )

    coding_agent(server, tmp_path, "Write.", answers=["n\n", "\x04", "w\n", "not here\n"])

    assert list(tmp_path.iterdir()) == []
    told = answers_seen(server)
    assert all("the user refused this call" in each for each in told)
    assert "The user says: not here" in told[2]


def test_coding_agent_asks_no_second_time_what_was_allowed_for_good(serve: Serve, tmp_path: Path) -> None:
    """ "Always" holds for the folder that was shown, in the next run too, and nowhere else."""
    transcript = str(tmp_path / "run.jsonl")
    server = serve([call("write", path="notes/a", content="1"), "Written."], strict=True)
    coding_agent(server, tmp_path, "--session", transcript, "Write.", answers=["h\n"])
    server = serve(
        [call("write", path="notes/b", content="2"), call("write", path="c", content="3"), "Written, but one."],
        strict=True,
    )

    shown = coding_agent(server, tmp_path, "--session", transcript, "Go on.", answers=["n\n"])

    assert (tmp_path / "notes" / "b").read_text() == "2"
    assert not (tmp_path / "c").exists()
    assert shown.count("[y] yes, this once") == 1


def test_coding_agent_denies_what_nobody_may_allow(serve: Serve, tmp_path: Path) -> None:
    """What would delete a home is not even asked."""
    server = serve([call("run", command="rm", args=["-rf", "/"]), "I see."], strict=True)

    coding_agent(server, tmp_path, "Clean up.")

    assert "deletes / or a home" in answers_seen(server)[0]


def test_coding_agent_without_a_terminal_changes_nothing(serve: Serve, tmp_path: Path) -> None:
    """Where nobody can be asked, the model is told so; what is piped into it is no answer."""
    server = serve([call("write", path="x", content="1"), "Then not."], strict=True)
    command = [sys.executable, str(EXAMPLES / "coding_agent.py"), *options_for(server, tmp_path), "Write."]

    done = subprocess.run(
        command, env=environment(), input="y\n", capture_output=True, text=True, timeout=60, start_new_session=True
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    assert "there is no terminal to ask at" in answers_seen(server)[0]


def test_coding_agent_reads_without_a_question(serve: Serve, tmp_path: Path) -> None:
    """Reading, listing and searching ask nobody."""
    (tmp_path / "b.txt").write_text("one\ntwo\n")
    server = serve([[call("list"), call("grep", pattern="t.o"), call("read", path="b.txt")], "Read."], strict=True)

    coding_agent(server, tmp_path, "Look around.")

    assert answers_seen(server) == ["b.txt", "b.txt\n2:two", "1\tone\n2\ttwo"]


def test_coding_agent_is_ended_by_ctrl_c_in_a_question(serve: Serve, tmp_path: Path) -> None:
    """The run is cancelled and the process ends; nothing was written."""
    server = serve([call("write", path="x", content="1"), "never"], strict=True)
    with AtTerminal.started(*options_for(server, tmp_path), "Write.", cwd=tmp_path) as example:
        example.shown()
        example.type("\x03")
        _, errors = example.process.communicate(timeout=30)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert list(tmp_path.iterdir()) == []


def test_coding_agent_goes_on_after_a_kill(serve: Serve, tmp_path: Path) -> None:
    """Killed in a question and started again with the same session, it tells what is open and finishes."""
    transcript = tmp_path / "run.jsonl"
    server = serve([call("write", path="x", content="1"), "Then I stop here."], strict=True)
    options = [*options_for(server, tmp_path), "--session", str(transcript)]
    with AtTerminal.started(*options, "Write.", cwd=tmp_path) as example:
        example.shown()
        example.process.send_signal(signal.SIGKILL)

    resumed = coding_agent(server, tmp_path, "--session", str(transcript))

    assert "of write was dispatched" in resumed
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


def test_readme_policy_asks_reads_and_denies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block about permission: reading and notes are free, what git keeps is denied, all else is asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    calls = [
        call("list"),
        call("write", path="notes/a", content="1"),
        call("write", path="b", content="1"),
        call("write", path=".git/config", content="1"),
    ]
    names: dict[str, Any] = {"backend": ScriptedBackend([calls, "Done."])}
    asked = []
    source = block_with("danger_floor()").replace("terminal.ask", "on_ask")

    exec(source, {**names, "on_ask": lambda request: asked.append(request["arguments"])}, names)

    told = [message.text for message in names["outcome"].messages if message.role == "tool"]
    assert asked == [{"path": "b", "content": "1"}]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("project/**/*")) == [
        "project/notes",
        "project/notes/a",
    ]
    assert "denied by the rule" in told[3]


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
