"""Servers that die, hang, babble and refuse to go: every wait ends, every process is gone. Real processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from llm_agent.errors import McpError
from llm_agent.mcp import McpServer, connect_stdio
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.testing import call_context

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="survivors are looked up in /proc")

Raw = Callable[..., McpServer]
Seen = Callable[[str], list[dict[str, Any]]]
Children = Callable[[], list[int]]
Until = Callable[[Callable[[], bool]], bool]

# What an answer that comes "at once" may take under load, in seconds.
AT_ONCE = 1.0
# The promise of `close`, in seconds.
CLOSED = 5.0


def call(name: str, id: str = "c", **arguments: Any) -> ToolRequest:
    return ToolRequest(id, name, arguments)


def failed(answer: ToolAnswer) -> Any:
    return answer.structured["mcp"]["failed"] if answer.is_error and answer.structured else None


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run *function* on a thread; its result lands in the list."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


# -- death --------------------------------------------------------------------------------------------


def test_a_server_that_dies_in_a_call_fails_it_at_once(raw: Raw) -> None:
    """The answer comes at once and says how the server ended, and what it wrote last."""
    server = raw()

    started = monotonic()
    [answer] = server.execute_tool_calls([call("die")])

    assert monotonic() - started < AT_ONCE
    assert failed(answer) == "gone"
    assert all(said in answer.content for said in ("exit status 3", "cannot go on", "unknown"))
    assert server.stderr_tail == "cannot go on"


def test_a_kill_answers_every_call_that_is_out(raw: Raw, seen: Seen, children: Children, until: Until) -> None:
    """Two threads wait in one server; a SIGKILL answers both at once."""
    server = raw()
    one = in_thread(lambda: server.execute_tool_calls([call("hang", "1")]))
    two = in_thread(lambda: server.execute_tool_calls([call("hang", "2")]))
    assert until(lambda: len(seen("tools/call")) == 2)

    started = monotonic()
    os.kill(children()[0], signal.SIGKILL)
    for thread, _ in (one, two):
        thread.join(5)

    assert monotonic() - started < AT_ONCE
    for _, [[answer]] in (one, two):
        assert (failed(answer), "killed by SIGKILL" in answer.content) == ("gone", True)
    assert until(lambda: children() == [])


def test_without_restart_a_dead_server_stays_dead(raw: Raw, children: Children) -> None:
    """The next use says why; nothing is started."""
    server = raw()
    server.execute_tool_calls([call("die")])

    [answer] = server.execute_tool_calls([call("answer")])

    assert (failed(answer), "exit status 3" in answer.content, children()) == ("not-run", True, [])
    with pytest.raises(McpError, match="exit status 3"):
        server.tools_for_llm()


def test_with_restart_the_next_use_starts_a_dead_server(raw: Raw, seen: Seen) -> None:
    """The next call, of the same batch even, reaches a new server; the lost call is not sent again."""
    server = raw(restart=True)
    before = len(server.tools_for_llm())

    [lost, answered] = server.execute_tool_calls([call("die"), call("answer", text="back")])

    assert (failed(lost), answered.content, len(server.tools_for_llm())) == ("gone", "back", before)
    assert [params["name"] for params in seen("tools/call")] == ["die", "answer"]


def test_a_server_that_dies_between_calls_is_noticed(raw: Raw, children: Children, until: Until) -> None:
    """A kill while nothing is out: the next use starts it again."""
    server = raw(restart=True)
    before = children()
    os.kill(before[0], signal.SIGKILL)
    assert until(lambda: children() == [])

    [answer] = server.execute_tool_calls([call("answer", text="back")])

    assert (answer.content, children() != before) == ("back", True)


def test_a_grandchild_that_holds_the_pipes_does_not_hide_a_death(raw: Raw, children: Children, until: Until) -> None:
    """The server's exit is its end, whoever still has its pipes; the group is killed with it."""
    server = raw()
    [answer] = server.execute_tool_calls([call("nest")])
    grandchild = Path("/proc", answer.content)
    assert grandchild.exists()

    started = monotonic()
    [lost] = server.execute_tool_calls([call("die")])

    assert (failed(lost), monotonic() - started < AT_ONCE) == ("gone", True)
    assert until(lambda: not grandchild.exists() or "Z" in (grandchild / "stat").read_text().split()[2])


def test_who_fled_from_the_group_dies_with_the_server(raw: Raw, until: Until) -> None:
    """Grandchildren in a session of their own, and without a parent, are found by their mark at a close."""
    server = raw()
    [answer] = server.execute_tool_calls([call("flee")])
    fled = [Path("/proc", pid) for pid in answer.content.split()]
    assert all(process.exists() for process in fled)

    server.close()

    assert until(lambda: not any(process.exists() for process in fled))


def test_a_restart_is_told(raw: Raw) -> None:
    """That there is another process, and why, is a warning of the call that is answered by it."""
    server = raw(restart=True)
    with call_context() as told:
        server.execute_tool_calls([call("die"), call("answer")])

    [(level, said)] = told.logged
    assert (level, "exit status 3" in said, "Another connection" in said) == ("warning", True, True)


def test_a_server_that_does_not_come_up_again_is_tried_once_per_batch(raw: Raw, tmp_path: Path) -> None:
    """Ten calls to a server that dies at its start, each time: one start, and ten answers that say why."""
    script, starts = tmp_path / "server.py", tmp_path / "starts"
    script.write_text((Path(__file__).parent / "servers" / "raw.py").read_text())
    with connect_stdio(sys.executable, [script], restart=True) as server:
        server.execute_tool_calls([call("die")])
        script.write_text(f"open({str(starts)!r}, 'a').write('x')\nraise SystemExit('the key is wrong')\n")

        answers = server.execute_tool_calls([call("answer", str(number)) for number in range(10)])

    assert starts.read_text() == "x"
    assert {(failed(answer), "the key is wrong" in answer.content) for answer in answers} == {("not-run", True)}


def test_a_server_that_does_not_come_up_within_a_batch_is_tried_once(raw: Raw, tmp_path: Path) -> None:
    """The same for one that was alive when the batch began."""
    script, starts = tmp_path / "server.py", tmp_path / "starts"
    script.write_text((Path(__file__).parent / "servers" / "raw.py").read_text())
    with connect_stdio(sys.executable, [script], restart=True) as server:
        script.write_text(f"open({str(starts)!r}, 'a').write('x')\n")

        answers = server.execute_tool_calls([call("die"), *[call("answer", str(number)) for number in range(9)]])

    assert starts.read_text() == "x"
    assert [failed(answer) for answer in answers] == ["gone"] + ["not-run"] * 9


def test_no_calls_start_nothing(raw: Raw, children: Children, until: Until) -> None:
    """An empty batch is no use of a server that has died."""
    server = raw(restart=True)
    server.execute_tool_calls([call("die")])
    assert until(lambda: children() == [])

    assert (server.execute_tool_calls([]), children()) == ([], [])


# -- the beginning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["no-such-program-anywhere", "/etc", "/etc/hostname"])
def test_a_command_that_cannot_be_run_is_named(command: str) -> None:
    """Not found, no program, not executable: an McpError that names it."""
    with pytest.raises(McpError, match=command):
        connect_stdio(command)


def test_a_missing_folder_is_named() -> None:
    """A working directory that is none is what the error is about."""
    with pytest.raises(McpError, match="no/such/folder"):
        connect_stdio(sys.executable, cwd="/no/such/folder")


@pytest.mark.parametrize("protocol", ["auto", "handshake"])
def test_death_in_the_beginning_says_why(raw: Raw, children: Children, protocol: str) -> None:
    """A server that dies in initialize: its status and its words, at once."""
    started = monotonic()
    with pytest.raises(McpError, match=r"exit status 7(.|\n)*the key is missing"):
        raw("dies-at-first", protocol=protocol)

    assert (monotonic() - started < 3, children()) == (True, [])


@pytest.mark.parametrize("habit", ["silent", "garbage", "flood"])
def test_silence_in_the_beginning_ends_in_time(raw: Raw, children: Children, habit: str) -> None:
    """Silence, garbage without end, a flood on standard error: an error within the connect timeout."""
    habits = ("silent", "flood") if habit == "flood" else (habit,)
    started = monotonic()
    with pytest.raises(McpError, match=r"did not answer within 0\.5 s"):
        raw(*habits, connect_timeout=0.5)

    assert (monotonic() - started < 0.5 + AT_ONCE, children()) == (True, [])


def test_a_server_that_ignores_the_newer_greeting_is_greeted_in_the_older_way(raw: Raw) -> None:
    """Silence where "unknown method" was due costs a wait, not the connection."""
    server = raw("deaf-to-discovery", connect_timeout=3)

    assert server.protocol_version == "2025-11-25"


def test_a_slow_server_of_the_newer_kind_is_not_taken_for_an_old_one() -> None:
    """One that starts too slowly to answer the newer greeting refuses the older one, and is greeted again."""
    script = Path(__file__).parent / "servers" / "sdk.py"
    command = f"sleep 1.5; exec {sys.executable} {script} stdio"

    with connect_stdio("sh", ["-c", command], connect_timeout=4.5) as server:
        assert server.protocol_version == "2026-07-28"


def test_a_program_that_is_no_server_is_told_apart(children: Children) -> None:
    """One that exits without a word, and one that copies its input."""
    with pytest.raises(McpError, match="exit status 0"):
        connect_stdio("true")
    with pytest.raises(McpError, match="'cat'"):
        connect_stdio("cat", connect_timeout=1)

    assert children() == []


# -- babble ------------------------------------------------------------------------------------------------


def test_noise_does_not_disturb(raw: Raw, caplog: pytest.LogCaptureFixture, until: Until) -> None:
    """Garbage between messages is dropped and logged once; of megabytes of stderr the end is kept."""
    server = raw()
    with caplog.at_level(logging.WARNING, logger="llm_agent.mcp"):
        [answer] = server.execute_tool_calls([call("noise")])

    assert answer.content == "heard through the noise"
    assert ["writes what is no message" in record.message for record in caplog.records] == [True]
    assert until(lambda: server.stderr_tail.endswith("the end of the noise"))
    assert len(server.stderr_tail) < 60_000


def test_a_flood_of_stderr_holds_nobody_up(raw: Raw) -> None:
    """A server that writes to stderr as fast as it can is called, and closed in time."""
    server = raw("flood")

    answers = server.execute_tool_calls([call("answer", text=str(number)) for number in range(5)])

    started = monotonic()
    server.close()
    assert ([answer.content for answer in answers], monotonic() - started < CLOSED) == (["0", "1", "2", "3", "4"], True)


def test_an_answer_that_makes_no_sense_is_an_error_at_once(raw: Raw) -> None:
    """What is neither a result nor an error, under the id of a call, ends the wait for it; its effect is unknown."""
    server = raw(request_timeout=5)

    started = monotonic()
    [garbled, next_one] = server.execute_tool_calls([call("misdirected"), call("answer", text="hi")])

    assert monotonic() - started < AT_ONCE
    assert (failed(garbled), "unknown" in garbled.content, next_one.content) == ("unreadable", True, "hi")


def test_half_a_character_does_not_cost_the_answer(raw: Raw) -> None:
    """A text cut in the middle of a character, as JavaScript cuts it, is read like any other."""
    [answer] = raw(request_timeout=5).execute_tool_calls([call("half")])

    assert (answer.content, answer.is_error) == ("cut \ufffd", False)


def test_only_the_first_answer_to_a_call_counts(raw: Raw) -> None:
    """Answers to nobody's question, and second ones, are dropped."""
    [answer, other] = raw().execute_tool_calls([call("twice"), call("answer", text="other")])

    assert (answer.content, other.content) == ("first", "other")


@pytest.mark.parametrize(("tool", "said"), [("mute", "closed its standard output"), ("endless", "a line of more than")])
def test_a_server_that_can_say_nothing_more_is_gone(raw: Raw, children: Children, tool: str, said: str) -> None:
    """One that closes its output and lives on, and one with a line of 100 MB: ended, and started again."""
    server = raw(restart=True)

    [lost, answered] = server.execute_tool_calls([call(tool), call("answer", text="back")])

    assert (failed(lost), said in lost.content, answered.content) == ("gone", True, "back")


def test_what_waits_in_the_pipes_of_a_stopped_server_holds_nobody_up(raw: Raw, children: Children) -> None:
    """Calls that do not fit into the pipe time out; when the server goes on, so does the connection."""
    server = raw(request_timeout=0.3)
    server.tools_for_llm()
    os.kill(children()[0], signal.SIGSTOP)

    late = server.execute_tool_calls([call("echo", text="x" * 1_000_000), call("echo")])
    os.kill(children()[0], signal.SIGCONT)
    [answer] = server.execute_tool_calls([call("echo", text="y")])

    assert ([failed(each) for each in late], answer.content) == (["timeout", "timeout"], '{"text": "y"}')


# -- time --------------------------------------------------------------------------------------------------


def test_a_call_that_takes_too_long_is_given_up(raw: Raw, seen: Seen, until: Until) -> None:
    """The server is told, the model hears that the effect is unknown, and the next call works."""
    server = raw(request_timeout=0.2)

    [late, next_one] = server.execute_tool_calls([call("hang"), call("answer", text="hi")])

    assert (failed(late), "0.2 s" in late.content, next_one.content) == ("timeout", True, "hi")
    assert until(lambda: len(seen("notifications/cancelled")) == 1)


def test_a_cancel_ends_the_call_at_once_and_reaches_the_server(raw: Raw, seen: Seen, until: Until) -> None:
    """What is out is cancelled there, what is not yet out is not sent."""
    server = raw()
    cancelled = threading.Event()

    def work() -> list[ToolAnswer]:
        with call_context(cancelled=cancelled):
            return server.execute_tool_calls([call("hang", "1"), call("answer", "2")])

    thread, results = in_thread(work)
    assert until(lambda: len(seen("tools/call")) == 1)
    started = monotonic()
    cancelled.set()
    thread.join(5)

    assert monotonic() - started < AT_ONCE
    assert [failed(answer) for answer in results[0]] == ["cancelled", "not-run"]
    assert until(lambda: len(seen("notifications/cancelled")) == 1)
    assert [params["name"] for params in seen("tools/call")] == ["hang"]


def test_a_restart_can_be_cancelled(raw: Raw, tmp_path: Path) -> None:
    """A call that waits for a server to come up hears its cancel."""
    script = tmp_path / "server.py"
    script.write_text((Path(__file__).parent / "servers" / "raw.py").read_text())
    server = connect_stdio(sys.executable, [script], restart=True, name="soon silent")
    server.execute_tool_calls([call("die")])
    script.write_text("import sys\nfor line in sys.stdin: pass\n")
    cancelled = threading.Event()
    timer = threading.Timer(0.3, cancelled.set)
    timer.start()

    started = monotonic()
    with call_context(cancelled=cancelled):
        [answer] = server.execute_tool_calls([call("answer")])

    assert (failed(answer), monotonic() - started < 0.3 + AT_ONCE) == ("not-run", True)
    started = monotonic()
    server.close()
    assert monotonic() - started < CLOSED


def test_an_answer_and_a_cancel_in_the_same_moment_are_one_answer(raw: Raw) -> None:
    """Whoever is first, every call has one answer, and the connection goes on."""
    server = raw()
    kinds = set()
    for place in range(60):
        cancelled = threading.Event()
        timer = threading.Timer(place % 6 / 2000, cancelled.set)
        with call_context(cancelled=cancelled):
            timer.start()
            [answer] = server.execute_tool_calls([call("answer", text="hi")])
        timer.join(5)
        kinds.add(failed(answer) or answer.content)

    assert kinds <= {"hi", "cancelled", "not-run"}
    assert server.execute_tool_calls([call("answer", text="still here")])[0].content == "still here"


def test_many_threads_share_a_server(raw: Raw) -> None:
    """Fifty threads at once: each hears its own answers."""
    server = raw()
    threads = [
        in_thread(lambda text=str(number): server.execute_tool_calls([call("echo", text=text)])[0].content)
        for number in range(50)
    ]
    for thread, _ in threads:
        thread.join(5)

    assert [json.loads(results[0])["text"] for _, results in threads] == [str(number) for number in range(50)]


# -- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("habits", [(), ("stubborn",), ("flood", "stubborn")])
def test_close_is_bounded_and_leaves_nothing(raw: Raw, children: Children, habits: tuple[str, ...]) -> None:
    """A server that goes, and those that ignore the end of input and SIGTERM: gone within 5 s, no zombie."""
    server = raw(*habits)
    assert len(children()) == 1

    started = monotonic()
    server.close()

    assert (monotonic() - started < CLOSED, children()) == (True, [])


def test_a_stopped_server_is_closed_in_time(raw: Raw, children: Children) -> None:
    """A SIGSTOPped server cannot follow any request to go."""
    server = raw()
    os.kill(children()[0], signal.SIGSTOP)

    started = monotonic()
    server.close()

    assert (monotonic() - started < CLOSED, children()) == (True, [])


def test_close_kills_the_whole_group(raw: Raw, until: Until) -> None:
    """What the server has started goes with it."""
    server = raw()
    [answer] = server.execute_tool_calls([call("nest")])

    server.close()

    assert until(lambda: not Path("/proc", answer.content).exists())


def test_close_answers_what_is_out(raw: Raw, seen: Seen, until: Until) -> None:
    """From another thread: the waiting call is answered at once and says so."""
    server = raw()
    thread, results = in_thread(lambda: server.execute_tool_calls([call("hang")]))
    assert until(lambda: len(seen("tools/call")) == 1)

    server.close()
    thread.join(5)

    [[answer]] = results
    assert (failed(answer), "was closed" in answer.content) == ("gone", True)


def test_closing_again_and_at_once_from_many_threads_is_fine(raw: Raw) -> None:
    """Close is idempotent, from any thread; a closed server says so and is not started again."""
    server = raw(restart=True)
    threads = [in_thread(server.close)[0] for _ in range(8)]
    for thread in threads:
        thread.join(5)
    server.close()

    [answer] = server.execute_tool_calls([call("answer")])

    assert (failed(answer), "was closed" in answer.content) == ("not-run", True)
    with pytest.raises(McpError, match="was closed"):
        server.tools_for_llm()


def test_an_asker_may_close_the_server(raw: Raw) -> None:
    """From within a question, on the thread of the call: both return, and the call says what happened."""
    server = raw(on_elicit=lambda _: server.close())

    started = monotonic()
    [answer] = server.execute_tool_calls([call("ask")])

    assert (failed(answer), "was closed" in answer.content, monotonic() - started < CLOSED) == ("gone", True, True)


def test_with_closes(raw: Raw, children: Children) -> None:
    """Leaving the block ends the server, whatever left it."""
    with pytest.raises(KeyError), raw():
        raise KeyError

    assert children() == []


def test_a_forgotten_server_is_ended(raw: Raw, children: Children, until: Until) -> None:
    """Whoever drops the last reference instead of closing leaves no process."""
    server = connect_stdio(sys.executable, [Path(__file__).parent / "servers" / "raw.py"])
    assert len(children()) == 1

    del server

    assert until(lambda: children() == [])


def test_no_thread_is_left_but_the_portal(raw: Raw) -> None:
    """A connection has no thread of its own: one loop carries all of them."""
    before = set(threading.enumerate())
    servers = [raw(), raw(), raw()]
    for server in servers:
        server.execute_tool_calls([call("answer")])
        server.close()

    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"llm-agent-mcp"}


def run_script(body: str, tmp_path: Path, *habits: str) -> tuple[str, float]:
    """Run a program of a user's that has a server; its output, and how long it took."""
    head = (
        "import os, subprocess, sys, threading\n"
        "from llm_agent.mcp import connect_stdio\n"
        "from llm_agent.messages import ToolRequest\n"
        "server = connect_stdio(sys.executable, sys.argv[1:])\n"
        "def ask(name): return server.execute_tool_calls([ToolRequest('c', name, None)])[0].content\n"
        "children = subprocess.run(['pgrep', '-P', str(os.getpid()), 'python'], capture_output=True, text=True)\n"
        "print(children.stdout.strip(), flush=True)\n"
    )
    started = monotonic()
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        head + body,
        str(Path(__file__).parent / "servers" / "raw.py"),
        *habits,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path)
    assert done.stderr == ""
    return done.stdout, monotonic() - started


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "import atexit; atexit.register(server.close)",
        "threading.Thread(target=ask, args=('hang',), daemon=True).start()",
        "sys.exit(0)",
    ],
)
def test_interpreter_exit_ends_the_server(tmp_path: Path, body: str) -> None:
    """Forgotten, closed at exit, in use on a daemon thread: the program ends, quietly, and so does its server."""
    output, took = run_script(body, tmp_path, "stubborn")

    assert (Path("/proc", output.split()[0]).exists(), took < 12) == (False, True)


def test_a_signal_handler_may_close_the_server(tmp_path: Path) -> None:
    """At any moment of the main thread's, in the middle of a start as well: both come to their end."""
    body = (
        "import signal\n"
        "signal.signal(signal.SIGALRM, lambda *_: server.close())\n"
        "for place in range(12):\n"
        "    server = connect_stdio(sys.executable, sys.argv[1:], restart=True)\n"
        "    ask('die')\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.002 * place + 0.0001)\n"
        "    for _ in range(3): ask('answer')\n"
        "    server.close()\n"
        "left = subprocess.run(['pgrep', '-P', str(os.getpid()), 'python'], capture_output=True, text=True)\n"
        "print('left', len(left.stdout.split()))\n"
    )
    output, _ = run_script(body, tmp_path)

    assert output.splitlines()[-1] == "left 0"


def test_no_server_is_started_while_the_interpreter_exits(tmp_path: Path, until: Until) -> None:
    """A thread that starts a dying server again and again leaves none behind."""
    word = uuid.uuid4().hex
    body = (
        f"other = connect_stdio(sys.executable, [*sys.argv[1:], {word!r}], restart=True)\n"
        "def again():\n"
        "    while True: other.execute_tool_calls([ToolRequest('c', 'die', None)])\n"
        "for _ in range(3): threading.Thread(target=again, daemon=True).start()\n"
        "threading.Event().wait(0.3)\n"
    )
    run_script(body, tmp_path, "stubborn")

    assert until(lambda: subprocess.run(["pgrep", "-f", word], stdout=subprocess.DEVNULL, check=False).returncode == 1)


def test_interpreter_exit_ends_the_whole_group(tmp_path: Path, until: Until) -> None:
    """What a server has started goes too, although it ignores SIGTERM and its server does not."""
    output, _ = run_script("print(ask('nest'))", tmp_path)

    assert until(lambda: not any(Path("/proc", pid).exists() for pid in output.split()))


def test_a_forked_child_makes_its_own_server(tmp_path: Path) -> None:
    """The parent's connection goes on; the child's is another process, and ends with the child."""
    body = (
        "import json\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(json.dumps(ask('answer') == ''), flush=True)\n"
        "    server.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(json.dumps(ask('answer') == ''), flush=True)\n"
        "server.close()\n"
    )
    output, _ = run_script(body, tmp_path)

    assert [json.loads(line) for line in output.splitlines()[1:]] == [True, True]
