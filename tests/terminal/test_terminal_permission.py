"""Permission at a real terminal: what is shown, what a key means, and when nobody answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any, Protocol

import pytest

from llm_agent import Loop, Policy, terminal
from llm_agent.errors import ConfigError
from llm_agent.events import ToolResult
from llm_agent.testing import ScriptedBackend, call, finished
from llm_agent.testing.tools import call_context
from llm_agent.tools import Toolbox


class Typist(Protocol):
    device: str
    master: int
    seen: str

    def ask(self, request: Any, **options: Any) -> None: ...
    def wait_for(self, text: str) -> str: ...
    def type(self, text: str, after: str = "> ") -> None: ...
    def answer(self) -> Any: ...
    def hang_up(self) -> None: ...


def permission(tool: str = "run", suggestion: Any = None, **facts: Any) -> dict[str, Any]:
    return {
        "kind": "permission",
        "tool": tool,
        "arguments": {},
        "call": {},
        "rule": None,
        "reason": "no-match",
        "paths": [],
        "suggestion": suggestion,
        **facts,
    }


def careful() -> str:
    """A tool that is asked about."""
    return "done"


COMMAND = {"tool": "run", "decision": "allow", "command": "git", "args": ["status"]}
FOLDER = {"tool": "write", "decision": "allow", "under": "/srv/app"}
WHOLE_TOOL = {"tool": "run", "decision": "allow"}


@pytest.mark.parametrize(
    ("suggestion", "typed", "expected"),
    [
        (None, "y", {"action": "allow-once"}),
        (None, " YES ", {"action": "allow-once"}),
        (None, "n", {"action": "deny-once"}),
        (COMMAND, "c", {"action": "always-allow", "rule": COMMAND}),
        (FOLDER, "h", {"action": "always-allow", "rule": FOLDER}),
        ({"tool": "get", "host": "a.org"}, "h", {"action": "always-allow", "rule": {"tool": "get", "host": "a.org"}}),
        (WHOLE_TOOL, "t", {"action": "always-allow", "rule": WHOLE_TOOL}),
    ],
)
def test_each_key_is_one_answer(typist: Typist, suggestion: Any, typed: str, expected: dict[str, Any]) -> None:
    """What is typed becomes the answer that a policy reads; "always" carries the rule that was shown."""
    typist.ask(permission(suggestion=suggestion))
    typist.type(f"{typed}\n")

    assert typist.answer() == expected


def test_no_with_a_reason_carries_the_reason(typist: Typist) -> None:
    """What the human says goes back to the model."""
    typist.ask(permission())
    typist.type("w\n")
    typist.type("use the tests instead\n", after="Why not? ")

    assert typist.answer() == {"action": "deny-once", "reason": "use the tests instead"}


@pytest.mark.parametrize("typed", ["", "a", "h", "c", "t", "yy", "always", "1"])
def test_only_a_key_that_was_offered_allows_anything(typist: Typist, typed: str) -> None:
    """Anything else, the letter of an "always" that was not offered included, asks again."""
    typist.ask(permission())
    typist.type(f"{typed}\n")
    typist.wait_for("Please type one of these letters, and Enter:\n[y] yes, this once\n")
    typist.type("n\n")

    assert typist.answer() == {"action": "deny-once"}


def test_the_end_of_the_input_is_a_no(typist: Typist) -> None:
    """Ctrl-D on an empty line refuses."""
    typist.ask(permission(suggestion=WHOLE_TOOL))
    typist.type("\x04")

    assert typist.answer() == {"action": "deny-once"}


def test_what_was_typed_before_the_question_is_no_answer(typist: Typist) -> None:
    """A line typed ahead, meant for something else, allows nothing."""
    os.write(typist.master, b"y\n")
    typist.ask(permission())
    typist.type("n\n")

    assert typist.answer() == {"action": "deny-once"}


@pytest.mark.parametrize("typed", ["oops\ny\n", "s\ny\ny\n"])
def test_what_was_pasted_behind_a_line_is_no_answer(typist: Typist, typed: str) -> None:
    """A "y" in a text of many lines, meant for something else, answers no question that is put after it."""
    typist.ask(permission(arguments={"script": "x\n" * 100}))
    typist.type(typed)
    typist.type("n\n")

    assert typist.answer() == {"action": "deny-once"}


def test_two_questions_are_put_one_after_the_other(typist: Typist) -> None:
    """Each of two threads gets the answer to its own question."""
    answers: dict[str, Any] = {}

    def ask(tool: str) -> None:
        answers[tool] = terminal.ask(permission(tool), terminal=typist.device)

    threads = [threading.Thread(target=ask, args=(tool,)) for tool in ("first", "second")]
    for thread in threads:
        thread.start()
    for _ in threads:
        shown = typist.wait_for("> ")
        assert ("call first." in shown) != ("call second." in shown)
        typist.type("y\n" if "call first." in shown else "n\n")
    for thread in threads:
        thread.join(5)

    assert answers == {"first": {"action": "allow-once"}, "second": {"action": "deny-once"}}


def test_arguments_are_shown_before_everything_else(typist: Typist) -> None:
    """The tool, its arguments, the paths, the danger and the rule to remember, in this order."""
    rule = {"tool": "*", "decision": "ask", "severity": "danger", "note": "rewrites history"}
    asked = permission(
        arguments={"command": "git", "args": ["push", "--force"], "reason": "trust me"},
        paths=["/srv/app"],
        rule=rule,
        suggestion={**COMMAND, "args": ["push"]},
    )
    typist.ask(asked)
    shown = typist.wait_for("> ")
    typist.type("n\n")
    typist.answer()

    parts = [
        "The model wants to call run. Nothing has been done yet.",
        "command: git",
        'args: ["push","--force"]',
        "reason: trust me",
        "paths: /srv/app",
        "DANGER: rewrites history",
        "[c] always this command: run with git push, whatever follows\n",
    ]
    assert sorted(parts, key=shown.index) == parts


def test_a_rule_without_a_narrower_says_so(typist: Typist) -> None:
    """Before a whole tool is allowed for ever, the human reads that it is the whole of it."""
    typist.ask(permission(suggestion=WHOLE_TOOL))
    typist.wait_for("[t] always this tool: run, whatever its arguments\n")
    typist.type("n\n")
    typist.answer()


def test_a_rule_that_nobody_would_read_is_not_offered(typist: Typist) -> None:
    """What is allowed for ever can be seen at a glance."""
    typist.ask(permission(suggestion={**COMMAND, "args": ["x" * 1_000]}))
    shown = typist.wait_for("> ")
    typist.type("c\n")
    typist.type("n\n")

    assert typist.answer() == {"action": "deny-once"}
    assert "always" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        {f"argument {number}": number for number in range(1_000)},
        {"name " * 10_000: 1},
        {"script": "\x1b" * 10_000},
        {"script": "\u0301" * 10_000},
    ],
)
def test_a_flood_of_arguments_is_cut_and_can_be_seen_whole(typist: Typist, arguments: dict[str, Any]) -> None:
    """The question stays on the screen whatever a model sends; what is left out is said and can be seen."""
    typist.ask(permission("tool " * 1_000, arguments=arguments))
    shown = typist.wait_for("> ")
    typist.type("s\n")
    whole = typist.wait_for("[y]")
    typist.wait_for("> ")
    typist.type("n\n")
    typist.answer()

    assert "[s] show all of it first" in shown
    assert "[... " in shown
    assert len(shown) < 10_000
    assert len(whole) > len(shown)


def test_a_long_argument_is_cut_and_can_be_seen_whole(typist: Typist) -> None:
    """Nobody has to say yes to a line that was left out."""
    script = "\n".join(f"step {number}" for number in range(60))
    typist.ask(permission(arguments={"script": script}))
    first = typist.wait_for("[s] show all of it first")
    typist.type("s\n")
    whole = typist.wait_for("| step 59")
    typist.type("n\n")
    typist.answer()

    assert "step 59" not in first
    assert "[... 20 more lines]" in first
    assert "[..." not in whole.partition("wants to call")[2]


# -- changes -----------------------------------------------------------------------------------


def test_a_write_is_shown_as_a_diff_against_the_file(typist: Typist, tmp_path: Path) -> None:
    """What is in the file is compared with what would be."""
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\nthree\n")
    asked = permission("write", arguments={"path": "a.txt", "content": "one\n2\nthree\n"}, paths=[str(file)])
    typist.ask(asked)
    shown = typist.wait_for("[y]")
    typist.type("n\n")
    typist.answer()

    assert "  | @@ -1,3 +1,3 @@\n  |  one\n  | -two\n  | +2\n  |  three\n" in shown
    assert "content: see the change below (12 characters)" in shown


def test_a_new_file_is_shown_as_added(typist: Typist, tmp_path: Path) -> None:
    """Where there is no file yet, every line is new."""
    asked = permission("write", arguments={"path": "b", "content": "1\n2\n"}, paths=[str(tmp_path / "b")])
    typist.ask(asked)
    typist.wait_for("  | +1\n  | +2\n")
    typist.type("n\n")
    typist.answer()


@pytest.mark.parametrize(
    "arguments",
    [
        {"old": "two", "new": "2"},
        {"old_string": "two", "new_string": "2"},
        {"edits": [{"oldText": "two", "newText": "2"}]},
    ],
)
def test_an_edit_is_shown_as_a_diff_of_the_file(typist: Typist, tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Under whatever names the two texts come, with the lines around them."""
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\nthree\n")
    typist.ask(permission("edit", arguments={"path": "a.txt", **arguments}, paths=[str(file)]))
    typist.wait_for("  |  one\n  | -two\n  | +2\n  |  three\n")
    typist.type("n\n")
    typist.answer()


def test_an_edit_of_an_unknown_file_is_shown_by_its_texts(typist: Typist) -> None:
    """A path that only the tool can resolve is not guessed at."""
    typist.ask(permission("edit", arguments={"path": "a", "old": "two", "new": "2"}, paths=["a"]))
    typist.wait_for("  | -two\n")
    typist.type("n\n")
    typist.answer()


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "one\ntwo\n"},  # perhaps a tool that sends a text, not one that writes a file
        {"old": "two", "new": "two"},
        {"old": "two", "new": "2", "old_string": ["rm -rf /"]},
        {"edits": [{"old": "two", "new": "2"}, {"command": "rm -rf /"}]},
        {"edits": [{"old": "two", "new": "2", "command": "rm -rf /"}]},
        {"edits": [{"old": "two", "new": "2"}, "rm -rf /"]},
    ],
)
def test_nothing_is_hidden_behind_a_change(typist: Typist, tmp_path: Path, arguments: dict[str, Any]) -> None:
    """An argument is replaced by a diff only where the diff says all of it."""
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    typist.ask(permission("edit", arguments={"path": "a.txt", **arguments}, paths=[str(file)]))
    shown = typist.wait_for("> ")
    typist.type("n\n")
    typist.answer()

    assert ("rm -rf /" in shown) == ("rm -rf /" in str(arguments))
    assert ("| two" in shown or "old: two" in shown) == ("rm -rf /" not in str(arguments))


@pytest.mark.parametrize("kind", ["pipe", "folder", "binary"])
def test_what_is_no_text_file_is_not_compared(typist: Typist, tmp_path: Path, kind: str) -> None:
    """A pipe is not waited for, a folder not opened: the content is shown as it is."""
    place = tmp_path / "x"
    {"pipe": os.mkfifo, "folder": os.mkdir, "binary": lambda path: Path(path).write_bytes(b"\0\1")}[kind](place)
    typist.ask(permission("write", arguments={"path": "x", "content": "new text"}, paths=[str(place)]))
    typist.wait_for("content: new text\n")
    typist.type("n\n")
    typist.answer()


# -- text that would act on the terminal ---------------------------------------------------------


def test_no_character_of_a_model_acts_on_the_terminal(typist: Typist) -> None:
    """Escape sequences, carriage returns, direction marks and invisible characters are spelled out."""
    hostile = "ls \x1b[2K\x1b]0;t\x07\r\b\x9b31m \u202egnp.exe\u202c \u200b\ud800 \u2028 end"
    typist.ask(permission("run\x1b[8m", arguments={"command": hostile, "\x1b[1A": "x"}, paths=["/a\x1b[0m"]))
    shown = typist.wait_for("[y]")
    typist.type("n\n")
    typist.answer()

    assert not [character for character in shown if character != "\n" and not character.isprintable()]
    assert r"ls \u{1b}[2K\u{1b}]0;t\u{7}\r\u{8}\u{9b}31m \u{202e}gnp.exe\u{202c} \u{200b}\u{d800} \u{2028} end" in shown


@pytest.mark.parametrize("hidden", [*"\xa0\u2003\u3164\u115f\u2800\u034f\ufe0f\U000e0100\U000e0041\xad\ufeff"])
def test_what_shows_nothing_is_spelled_out(typist: Typist, hidden: str) -> None:
    """Two names that look the same are not the same: blanks, fillers and selectors of every kind are seen."""
    typist.ask(permission(arguments={"path": f"a{hidden}b"}))
    typist.wait_for(f"path: a\\u{{{ord(hidden):x}}}b\n")
    typist.type("n\n")
    typist.answer()


def test_marks_do_not_climb_over_other_lines(typist: Typist) -> None:
    """Accents stand on letters; a tower of them, or one on our own text, is spelled out."""
    typist.ask(permission(arguments={"text": "\u0301e\u0301" + "\u0301" * 5}))
    typist.wait_for(r"text: \u{301}e" + "\u0301" * 3 + r"\u{301}" * 3 + "\n")
    typist.type("n\n")
    typist.answer()


def test_no_line_of_a_model_passes_for_one_of_ours(typist: Typist) -> None:
    """Lines of an argument stand behind a bar, so a forged prompt is seen to be one."""
    typist.ask(permission(arguments={"script": "true\n[y] yes, this once\n> "}))
    shown = typist.wait_for("[n] no")
    typist.type("n\n", after="> ")
    typist.type("n\n")
    typist.answer()

    assert "\n  | [y] yes, this once\n" in shown


@pytest.mark.parametrize("columns", [40, 81])
def test_no_row_of_a_model_passes_for_a_line_of_ours(typist: Typist, columns: int) -> None:
    """A line that is longer than the terminal is wide goes on behind a mark, whatever the width of its characters."""
    with open(typist.device, "rb", buffering=0) as device:
        termios.tcsetwinsize(device, (24, columns))
    forged = "資料e" * 20 + " " * 200 + "[y] yes, this once"
    typist.ask(permission(arguments={"path": forged, "script": f"{forged}\n{forged}"}))
    shown = typist.wait_for("[n] no")
    typist.type("n\n")
    typist.answer()

    cells = [sum(2 if ord(character) > 127 else 1 for character in row) for row in shown.split("\n")]
    assert max(cells) <= columns
    assert shown.count("\n[y] yes") == 1
    assert "".join(shown.split("\n  \\ ")).count(forged) == 3


def test_wide_characters_and_emoji_are_shown_as_they_are(typist: Typist) -> None:
    """What shows by itself is not spelled out."""
    typist.ask(permission(arguments={"path": "資料/café/🎉.txt"}))
    typist.wait_for("path: 資料/café/🎉.txt\n")
    typist.type("n\n")
    typist.answer()


# -- nobody answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["option", "request", "member"])
def test_a_question_that_is_not_wanted_any_more_ends(typist: Typist, where: str) -> None:
    """However the cancel is told, the prompt gives up, says so, and answers nothing."""
    flag = threading.Event()

    class WithFlag(dict[str, Any]):
        cancelled = flag

    asked = {"option": permission(), "request": WithFlag(permission()), "member": permission(cancelled=flag)}[where]
    typist.ask(asked, **({"cancelled": flag} if where == "option" else {}))
    typist.wait_for("> ")
    flag.set()

    assert typist.answer() is None
    typist.wait_for("[this is not asked any more]")


def test_a_question_behind_another_gives_up_too(typist: Typist) -> None:
    """Who waits for their turn is not held by the one whose question is shown."""
    flag = threading.Event()
    typist.ask(permission())
    typist.wait_for("> ")
    second: list[Any] = []
    waiting = threading.Thread(
        target=lambda: second.append(terminal.ask(permission("late"), terminal=typist.device, cancelled=flag))
    )
    waiting.start()
    flag.set()
    waiting.join(5)
    typist.type("y\n")

    assert second == [None]
    assert typist.answer() == {"action": "allow-once"}
    assert "late" not in typist.seen


def test_a_terminal_that_hangs_up_decides_nothing(typist: Typist) -> None:
    """A closed window is not a yes, and is said to be what it is."""
    typist.ask(permission())
    typist.wait_for("> ")
    typist.hang_up()

    with pytest.raises(terminal.NoTerminal, match="the terminal is gone"):
        typist.answer()


def test_without_a_terminal_it_says_so(tmp_path: Path) -> None:
    """A process without one, its streams redirected, gets an error with the way out, and no answer."""
    script = (
        "from llm_agent import terminal\n"
        "try:\n    terminal.ask({'kind': 'permission', 'tool': 't'})\n"
        "except terminal.NoTerminal as e:\n    print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input="y\n", capture_output=True, text=True, timeout=30, start_new_session=True
    )

    assert done.stdout.startswith("there is no terminal to ask at; ")
    assert done.stderr == ""


def test_what_is_no_terminal_is_refused(tmp_path: Path) -> None:
    """A file in the place of a device cannot answer."""
    (tmp_path / "tty").write_text("y\n")

    with pytest.raises(terminal.NoTerminal):
        terminal.ask(permission(), terminal=str(tmp_path / "tty"))


@pytest.mark.parametrize("request_", [None, "may I?", {}, {"kind": "unheard-of"}])
def test_what_is_no_question_is_refused(typist: Typist, request_: Any) -> None:
    """A mistake in the wiring is the caller's, not the human's."""
    with pytest.raises(ConfigError):
        terminal.ask(request_, terminal=typist.device)


# -- in a run, in a process ------------------------------------------------------------------------


def test_the_deadline_stands_still_while_a_human_thinks(typist: Typist) -> None:
    """A call whose deadline is far shorter than the answer takes is answered all the same."""
    from llm_agent import current_call

    waited = threading.Event()

    def careful() -> str:
        context = current_call()
        assert context is not None
        answer = context.ask(permission("careful"))
        return f"{answer['action']} with {context.deadline > 0}"  # type: ignore[operator]

    loop = Loop(
        ScriptedBackend([call("careful"), "Done."]),
        tools=[careful],
        tool_deadline=0.3,
        on_ask=lambda request: terminal.ask(request, terminal=typist.device),
    )
    run = loop.run("Be careful.")
    typist.wait_for("> ")
    waited.wait(0.5)  # longer than the deadline; nobody sets it
    typist.type("y\n")

    assert [result.content for result in finished(run).of(ToolResult)] == ["allow-once with True"]


def test_a_cancelled_run_ends_the_question(typist: Typist) -> None:
    """The flag of the call that is executed ends the wait without any wiring."""
    flag = threading.Event()
    answers: list[Any] = []

    def within_call() -> None:
        with call_context(cancelled=flag):
            answers.append(terminal.ask(permission(), terminal=typist.device))

    thread = threading.Thread(target=within_call)
    thread.start()
    typist.wait_for("> ")
    flag.set()
    thread.join(5)

    assert answers == [None]


def test_cancelling_a_run_ends_the_question_and_leaves_the_terminal_as_it_was(typist: Typist) -> None:
    """The run does not wait for the human; half an answer is not left for whoever reads next."""
    with open(typist.device, "rb", buffering=0) as device:
        before = termios.tcgetattr(device)
        loop = Loop(
            ScriptedBackend([call("careful")]),
            provider=Policy(
                Toolbox([careful]), on_ask=lambda request: terminal.ask(request, terminal=typist.device), rules=[]
            ),
        )
        run = loop.run("Be careful.")
        typist.type("y")  # and no Enter
        typist.wait_for("y")
        run.cancel()

        assert run.result(5).status == "cancelled"
        assert run.drained(5)
        typist.wait_for("[this is not asked any more]")
        assert termios.tcgetattr(device) == before
        os.write(typist.master, b"next\n")
        assert os.read(device.fileno(), 100) == b"next\n"


SCRIPT = """
import sys
from llm_agent import terminal
try:
    print("answer:", terminal.ask({"kind": "permission", "tool": "t", "suggestion": None}))
except KeyboardInterrupt:
    print("interrupted")
"""


def in_terminal_of_its_own(device: str, script: str) -> subprocess.Popen[str]:
    """A process whose controlling terminal is *device*, and whose streams lead elsewhere."""
    # A session leader without a terminal gets the first one that it opens.
    adopt = f"import os; os.open({device!r}, os.O_RDWR)\n"
    return subprocess.Popen(
        [sys.executable, "-c", adopt + script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_it_asks_at_the_terminal_wherever_the_streams_lead(typist: Typist) -> None:
    """With standard input closed and output redirected, the human still sees and answers the question."""
    with in_terminal_of_its_own(typist.device, SCRIPT) as process:
        typist.type("y\n")
        output, _ = process.communicate(timeout=5)

    assert output == "answer: {'action': 'allow-once'}\n"


def test_ctrl_c_interrupts_the_question(typist: Typist) -> None:
    """On the main thread it raises, so that a run around it is cancelled; it is never taken for an answer."""
    with in_terminal_of_its_own(typist.device, SCRIPT) as process:
        typist.type("\x03")
        output, _ = process.communicate(timeout=5)

    assert output == "interrupted\n"
    assert process.returncode != -signal.SIGINT


RUN_SCRIPT = """
from llm_agent import Loop, Policy, terminal
from llm_agent.testing import ScriptedBackend, call
from llm_agent.tools import Toolbox

def careful() -> str:
    return "done"

loop = Loop(ScriptedBackend([call("careful")]), provider=Policy(Toolbox([careful]), rules=[], on_ask=terminal.ask))
try:
    with loop.run("Be careful.") as run:
        for event in run.events():
            pass
except KeyboardInterrupt:
    print("interrupted", run.result(5).status, run.drained(5))
"""


def test_ctrl_c_at_a_question_cancels_the_run_around_it(typist: Typist) -> None:
    """The question is on the run's thread, the signal on the main one: the run ends, and the question with it."""
    with in_terminal_of_its_own(typist.device, RUN_SCRIPT) as process:
        typist.type("\x03")
        output, _ = process.communicate(timeout=5)

    assert output == "interrupted cancelled True\n"
    typist.wait_for("[this is not asked any more]")
