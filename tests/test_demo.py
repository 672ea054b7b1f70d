"""`python -m llm_agent`, as a stranger runs it: in processes of its own, watched from outside."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from llm_agent import Message, Session
from llm_agent.cli import main as command_line
from llm_agent.cli.demo_script import REPAIR
from llm_agent.cli.screen import Screen, is_coloured
from llm_agent.events import AttemptFailed, AttemptStarted, Token, ToolCall, ToolResult, TurnDiscarded

ROOT = Path(__file__).resolve().parents[1]
# A folder in which nobody can write, not even root.
UNWRITABLE = Path("/proc")
ESCAPE = "\x1b"


def environment(**more: str) -> dict[str, str]:
    """This process's environment with the package on the path from any folder, and a proxy that is dead."""
    dead_proxy = "http://127.0.0.1:9"
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), dead_proxy)
    return {**os.environ, **proxies, "PYTHONPATH": str(ROOT), **more}


def run_cli(*arguments: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm_agent", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=60)


@attrs.frozen
class Demo:
    """One run of the demo, over."""

    process: subprocess.CompletedProcess[str]
    mark: str
    """A value in the environment of every process that it started."""

    @property
    def lines(self) -> list[str]:
        return self.process.stdout.splitlines()

    @property
    def transcript(self) -> Path:
        line = next(line for line in self.lines if line.startswith("transcript: "))
        return Path(line.split()[1])

    def has(self, *parts: str) -> bool:
        """Whether one line of the output holds all of *parts*."""
        return any(all(part in line for part in parts) for line in self.lines)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    mark = uuid.uuid4().hex
    cwd = UNWRITABLE if UNWRITABLE.is_dir() else folder
    return Demo(run_cli("demo", cwd=cwd, TMPDIR=str(folder), DEMO_TEST_MARK=mark), mark)


def test_demo_succeeds_where_it_may_not_write_and_a_proxy_is_set(demo: Demo) -> None:
    """Exit 0 and nothing on stderr, in a folder without write access, with a proxy that answers nobody."""
    assert (demo.process.returncode, demo.process.stderr) == (0, "")


def test_demo_shows_a_retraction_in_mid_sentence(demo: Demo) -> None:
    """The first answer breaks off, its text is taken back, and the same backend is asked again."""
    assert demo.has("I am quite sure")
    assert demo.has("retracted; the same backend is asked again")
    assert demo.has("the connection broke")


def test_demo_shows_a_deadline_and_goes_on(demo: Demo) -> None:
    """The command that hangs is given up as unknown, and the model speaks after it."""
    given_up = next(n for n, line in enumerate(demo.lines) if "run_script: given up (deadline)" in line)

    assert any("I read the code instead" in line for line in demo.lines[given_up:])


def test_demo_shows_a_fallback(demo: Demo) -> None:
    """The first backend refuses, and the second one answers."""
    assert demo.has("failed; the next backend is asked")
    assert demo.has("quota")
    assert demo.has("[fallback-model]")


def test_demo_shows_a_death_and_a_repair(demo: Demo) -> None:
    """The first process dies in a call; the second says what is unknown before it goes on."""
    assert demo.has("kill -9")
    assert demo.has("repair: ", "edit_file", "whether it took effect is unknown")


def test_demo_ends_with_a_summary_and_the_transcript(demo: Demo) -> None:
    """The last lines say how it ended, what it cost, and where the transcript lies."""
    tail = demo.lines[-3:]

    assert tail[0].startswith("completed: ")
    assert " tokens" in tail[0]
    assert tail[1].startswith("transcript: ")
    assert demo.transcript.is_file()


def test_demo_is_plain_without_a_terminal(demo: Demo) -> None:
    """Nothing but ASCII text goes into a pipe."""
    assert demo.process.stdout.isascii()
    assert ESCAPE not in demo.process.stdout


def test_demo_really_repairs_the_project(demo: Demo) -> None:
    """The file on the disk holds the repair."""
    assert REPAIR in (demo.transcript.parent / "project" / "prices.py").read_text()


def test_demo_leaves_a_transcript_in_which_the_edit_was_asked_for_once(demo: Demo) -> None:
    """Both processes wrote one valid conversation, and no side effect was repeated."""
    session = Session.read(demo.transcript)

    calls = [call.name for message in session.messages for call in message.tool_calls]
    assert calls == ["run_tests", "run_script", "read_file", "edit_file", "read_file", "run_tests"]
    assert session.pending_tool_operations() == []
    assert session.messages[-1].text.startswith("Repaired")


@pytest.mark.skipif(not UNWRITABLE.is_dir(), reason="needs /proc to look for processes")
def test_demo_leaves_no_process(demo: Demo) -> None:
    """No process that it started outlives it."""
    assert processes_with(demo.mark) == []


@pytest.mark.skipif(not UNWRITABLE.is_dir(), reason="needs /proc to look for processes")
def test_demo_that_is_interrupted_leaves_no_process(tmp_path: Path) -> None:
    """An interrupt while the command hangs ends the demo, its agent, and the command."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "llm_agent", "demo"]
    env = environment(TMPDIR=str(tmp_path), DEMO_TEST_MARK=mark)
    # A background job's children ignore SIGINT; the demo in a terminal does not.
    with (
        interruptible(),
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        next(line for line in process.stdout if "-> run_script" in line)
        process.send_signal(signal.SIGINT)
        status = process.wait(20)

    assert (status, processes_with(mark)) == (130, [])


@contextmanager
def interruptible() -> Iterator[None]:
    """Let children take SIGINT as they do in a terminal, however these tests were started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def processes_with(mark: str) -> list[str]:
    found = []
    for entry in UNWRITABLE.iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue  # gone, or somebody else's
    return found


def test_transcript_prints_the_conversation(demo: Demo) -> None:
    """Every turn, call and ending of the demo's transcript is there, one after the other."""
    shown = run_cli("transcript", str(demo.transcript)).stdout

    wanted = ["user", "-> run_tests", "settled", "outcome-unknown", "-> edit_file", "Repaired: "]
    places = [shown.find(word) for word in wanted]
    assert -1 not in places
    assert places == sorted(places)


def test_transcript_ends_quietly_when_its_reader_has_seen_enough(demo: Demo) -> None:
    """A closed pipe is no traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "llm_agent", "transcript", str(demo.transcript)]

    process = subprocess.run(command, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)

    assert process.stderr == ""


def test_transcript_cuts_long_texts_unless_asked_not_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text of many lines is cut, with a word about the rest; `--full` shows it whole."""
    path = transcript_of(tmp_path, "\n".join(f"line {number}" for number in range(40)))

    command_line.main(["transcript", str(path)])
    short = capsys.readouterr().out
    command_line.main(["transcript", "--full", str(path)])

    assert "(32 more lines)" in short
    assert "line 39" not in short
    assert "line 39" in capsys.readouterr().out


def test_transcript_disarms_what_would_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of a conversation are printed as escapes."""
    path = transcript_of(tmp_path, "\x1b[2Jgone\r")

    command_line.main(["transcript", str(path)])

    assert "\\x1b[2Jgone\\x0d" in capsys.readouterr().out


def test_transcript_is_printed_where_a_character_cannot_be_shown(tmp_path: Path) -> None:
    """An output that knows ASCII only gets escapes."""
    path = transcript_of(tmp_path, "caf\u00e9")

    shown = run_cli("transcript", str(path), PYTHONIOENCODING="ascii")

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "caf\\xe9" in shown.stdout


def transcript_of(folder: Path, text: str) -> Path:
    path = folder / "run.jsonl"
    with Session.create(path) as session:
        session.append_message(Message.user(text))
    return path


def test_transcript_that_cannot_be_read_is_one_line_and_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file is named, without a traceback."""
    status = command_line.main(["transcript", str(tmp_path / "missing.jsonl")])

    said = capsys.readouterr().err.splitlines()
    assert status == 1
    assert len(said) == 1
    assert "missing.jsonl" in said[0]


def test_help_names_the_commands() -> None:
    """`--help` lists what there is, and nothing that is the demo's own business."""
    shown = run_cli("--help").stdout

    assert "demo" in shown
    assert "transcript" in shown
    assert "--act" not in run_cli("demo", "--help").stdout


def test_version_is_told() -> None:
    """`--version` prints one line with the name of the distribution."""
    shown = run_cli("--version").stdout

    assert shown.startswith("llm-agent ")
    assert len(shown.splitlines()) == 1


# -- the screen --------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Iterator[io.TextIOWrapper]:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        yield stream
    os.close(master)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_has_colour_unless_somebody_does_not_want_it(
    terminal: io.TextIOWrapper, environ: dict[str, str], expected: bool
) -> None:
    """Colour is for terminals; a set `NO_COLOR` or a dumb terminal has none."""
    assert is_coloured(terminal, environ) is expected


def test_a_pipe_has_no_colour() -> None:
    """What is no terminal gets plain text."""
    assert is_coloured(io.StringIO(), {}) is False


def retraction(*, colour: bool) -> str:
    stream = io.StringIO()
    screen = Screen(stream, colour=colour, width=80)
    failure = "cut off"
    screen.show(AttemptStarted(round=1, attempt=1, backend_index=0, model="m"))
    screen.show(Token(text="wro"))
    screen.show(Token(text="ng"))
    screen.show(
        AttemptFailed(round=1, attempt=1, backend_index=0, error=failure, disposition="retry-same", backoff=0.5)
    )
    return stream.getvalue()


def test_a_retracted_text_is_struck_out_on_a_terminal() -> None:
    """The line is erased and written again, struck out."""
    assert f"\r{ESCAPE}[2K    {ESCAPE}[2;9mwrong{ESCAPE}[0m\n" in retraction(colour=True)


def test_a_retracted_text_is_followed_by_a_word_in_a_pipe() -> None:
    """The text stands, and the next line takes it back."""
    assert "    wrong\n    x  retracted; the same backend is asked again in 0.5 s\n       cut off\n" in retraction(
        colour=False
    )


def test_a_discarded_turn_is_taken_back() -> None:
    """Also text that was streamed whole is retracted when its turn is discarded."""
    screen = Screen(stream := io.StringIO(), colour=False, width=80)

    screen.show(Token(text="too much"))
    screen.show(TurnDiscarded(reason="limit"))

    assert "too much\n    x  retracted; the turn is discarded (limit)\n" in stream.getvalue()


def test_a_long_answer_of_a_tool_is_shown_by_its_end() -> None:
    """The last lines are shown, and how many stand above."""
    screen = Screen(stream := io.StringIO(), colour=False, width=80)

    screen.show(ToolResult(id="c1", content="\n".join(f"line {number}" for number in range(20))))

    assert stream.getvalue().splitlines()[:2] == ["    <- (14 lines above)", "       line 14"]


def test_a_call_cannot_steer_the_terminal() -> None:
    """Control characters in names and arguments are shown as escapes, on one line."""
    screen = Screen(stream := io.StringIO(), colour=False, width=80)

    screen.show(ToolCall(id="c1", name="r\x1b[m", arguments='{"a":\n"\x07"}'))

    assert stream.getvalue() == '    -> r\\x1b[m {"a":\\n"\\x07"}\n'
