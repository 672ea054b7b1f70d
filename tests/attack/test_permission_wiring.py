"""Policies, registries, workspaces and runs put together: no permission is lost, bypassed or made up on the way."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from llm_agent import Loop, Policy, Registry, Session
from llm_agent.call_context import current_call
from llm_agent.events import AskAnswered, AskPending, ToolResult
from llm_agent.policy import AskLock, Grants, danger_floor
from llm_agent.testing import Gate, ScriptedBackend, ScriptedProvider, call, finished
from llm_agent.tools import Workspace, stacked
from llm_agent.tools.artifacts import ArtifactFolder

WAIT = 5.0
ALLOW_ALL = {"tool": "*", "decision": "allow"}


def always(_: Any) -> str:
    return "always-allow"


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "work"
    root.mkdir()
    return Workspace(root, run=True)


def guarded(workspace: Workspace) -> Policy:
    return Policy(workspace, on_ask=always)


# -- grants, through every layer -------------------------------------------------------------------

SHAPES: dict[str, Any] = {
    "alone": guarded,
    "in a list": lambda workspace: [guarded(workspace), shout],
    "in a registry": lambda workspace: Registry({"fs": guarded(workspace)}),
    "stacked": lambda workspace: stacked({"fs": guarded(workspace), "more": shout}),
    "behind a policy": lambda workspace: Policy(guarded(workspace), [ALLOW_ALL]),
    "behind a policy, in a registry": lambda workspace: Policy(Registry({"fs": guarded(workspace)}), [ALLOW_ALL]),
    "behind a policy, stacked in a list": lambda workspace: [
        Policy(stacked({"fs": [guarded(workspace), shout]}), [ALLOW_ALL])
    ],
}


def prefix_of(shape: str) -> str:
    return "fs_" if "registry" in shape or "stacked" in shape else ""


@pytest.mark.parametrize("shape", SHAPES)
def test_an_always_is_in_the_transcript_wherever_the_policy_stands(shape: str, workspace: Workspace) -> None:
    """In a list, a registry, behind another policy: what the human said is written."""
    backend = ScriptedBackend([call(prefix_of(shape) + "write", path="a", content="1"), "done"])
    with Session.in_memory() as session:
        finished(Loop(backend, tools=SHAPES[shape](workspace), session=session).run("go"))

        assert [grant["rule"] for grant in session.grants] == [{"tool": "write", "decision": "allow", "under": "."}]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_may_be_repeated_is_known_through_every_layer(shape: str, workspace: Workspace) -> None:
    """A read-only call is recorded as one; a command that was cancelled is not safe to retry."""
    prefix = prefix_of(shape)
    backend = ScriptedBackend([call(prefix + "read", path="a"), call(prefix + "run", command="sleep", args=["60"])])
    with Session.in_memory() as session:
        run = Loop(backend, tools=SHAPES[shape](workspace), session=session).run("go")
        for event in run.events(timeout=WAIT):
            if event.kind == "ask-answered" and event.to_dict()["request"]["tool"].endswith("run"):
                run.cancel()
        outcome = finished(run).outcome
        dispatched = [line["payload"] for line in session.envelopes() if line["type"] == "tool-dispatched"]

    assert [line["idempotency"] for line in dispatched] == ["read-only", "unknown"]
    assert ([operation.tool for operation in outcome.unknown], outcome.safe_to_retry) == ([prefix + "run"], False)


def test_the_grants_of_several_policies_do_not_grow_from_run_to_run(workspace: Workspace, tmp_path: Path) -> None:
    """All are seeded with what the transcript has, and each grant is told once."""
    counts = []
    for day in range(4):
        with Session.open(tmp_path / "t.jsonl") as session:
            policies = [
                Policy(workspace, grants=session.grants, on_ask=always),
                Policy(ScriptedProvider({"other": "1"}), grants=session.grants),
            ]
            backend = ScriptedBackend([call("write", path=f"day{day}/a", content="1"), "done"])
            finished(Loop(backend, tools=policies, session=session).run("go"))
            counts.append(len(session.grants))

    assert counts == [1, 2, 3, 4]


def test_a_provider_that_cannot_tell_its_grants_costs_nobody_elses(workspace: Workspace) -> None:
    """One that raises is none; the human's "always" beside it is written all the same."""

    class Broken(ScriptedProvider):
        def grants(self) -> list[Any]:
            raise RuntimeError("the book is on fire")

    with Session.in_memory() as session:
        backend = ScriptedBackend([call("write", path="a", content="1"), "done"])
        finished(Loop(backend, tools=[guarded(workspace), Broken({"x": "1"})], session=session).run("go"))

        assert len(session.grants) == 1


def test_an_older_snapshot_of_grants_never_lands_on_a_newer_one() -> None:
    """A thread that is late with what it has read does not take back what another one has written."""
    book, gate = ["a"], Gate()

    class Book(ScriptedProvider):
        def grants(self) -> list[Any]:
            told = list(book)
            if threading.current_thread().name == "late":
                gate.wait()
            return told

    def tool() -> str:
        context = current_call()
        assert context is not None
        book.append("b")
        late = threading.Thread(target=context.grants_changed, name="late")
        late.start()
        gate.wait_entered()
        book.append("c")
        context.grants_changed()
        gate.open()
        late.join(WAIT)
        return "done"

    with Session.in_memory() as session:
        finished(Loop(ScriptedBackend([call("x"), "done"]), tools=Book({"x": tool}), session=session).run("go"))
        written = [line["payload"]["grants"] for line in session.envelopes() if line["type"] == "grants"]

    assert written == [["a", "b", "c"]]


def test_a_grant_of_one_conversation_is_not_known_in_another(workspace: Workspace) -> None:
    """Unless a store is shared, and the human did not say "in this conversation only"."""
    store = Grants()
    asked: list[str] = []

    def ask(request: Any) -> dict[str, Any]:
        asked.append(request["tool"])
        return {"action": "always-allow", "scope": "session" if len(asked) == 1 else "project"}

    for _ in range(3):
        tools = Policy(workspace, store=store, on_ask=ask)
        finished(Loop(ScriptedBackend([call("write", path="a", content="1"), "done"]), tools=tools).run("go"))

    assert asked == ["write", "write"]


# -- refusals in a group, and by name --------------------------------------------------------------


def test_a_denied_call_in_a_group_of_three_costs_the_others_nothing(workspace: Workspace) -> None:
    """Each answer stands under its own call, and the denied one has no effect."""
    tools = Policy(
        stacked({"fs": workspace}),
        [{"tool": "fs_write", "decision": "deny", "under": "no"}, {"tool": "fs_write", "decision": "allow"}],
        roots={"fs_": workspace.root},
        local_tools=["fs_*"],
    )
    turn = [call("fs_write", path=path, content=path) for path in ("a", "no/b", "c")]

    done = finished(Loop(ScriptedBackend([turn, "done"]), tools=tools, concurrent_tools=["fs_*"]).run("go"))

    assert [result.is_error for result in done.of(ToolResult)] == [False, True, False]
    assert sorted(path.name for path in workspace.root.iterdir()) == ["a", "c"]


def test_identical_calls_are_judged_one_by_one() -> None:
    """A once is a once, also where two calls of a group are the same."""
    provider = ScriptedProvider({"look": "seen"})
    answers = iter(["allow-once", "deny-once", "allow-once"])
    tools = Policy(provider, on_ask=lambda _: next(answers))

    done = finished(
        Loop(ScriptedBackend([[call("look", at=1)] * 3, "done"]), tools=tools, concurrent_tools=["*"]).run("go")
    )

    assert [result.is_error for result in done.of(ToolResult)] == [False, True, False]
    assert len(provider.calls) == 2


NAMES = ["FS_WRITE", "fs_ｗrite", "fs_write ", " fs_write", "fs_write\u200b", "fs_wri\u0301te", "fs_", "fs_*", "*"]
NAMES += [
    "write",
    "fs_fs_write",
    "fs_write\n",
    "fs__write",
    "fs_write\0",
    "f\u0455_write",
    "fs_\u202ewrite",
    "fs-write",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_spelling_of_a_denied_name_gets_through(name: str, workspace: Workspace) -> None:
    """A rule that allows everything else does not allow what only looks like the tool."""
    tools = Policy(stacked({"fs": workspace}), [ALLOW_ALL, {"tool": "fs_write", "decision": "deny"}])
    backend = ScriptedBackend([call(name, path="a", content="1"), "done"])

    done = finished(Loop(backend, tools=tools).run("go"))

    assert list(workspace.root.iterdir()) == []
    assert done.outcome.ok
    assert all(result.is_error for result in done.of(ToolResult))


def mover(origin: str, target: str) -> str:
    """Move a file."""
    return f"moved {origin} to {target}"


def test_an_argument_that_the_tool_does_not_take_opens_no_door() -> None:
    """A `path` in the allowed folder, beside the `origin` and `target` that are read: the call is asked."""
    asked: list[Any] = []

    def ask(request: Any) -> bool:
        asked.append((request["tool"], request["suggestion"]))
        return False

    rules = [
        {"tool": "fs_*", "decision": "allow", "under": "notes"},
        {"tool": "fs_*", "decision": "allow", "host": "a.org"},
        {"tool": "fs_*", "decision": "allow", "command": "git"},
    ]
    tools = Policy(stacked({"fs": mover}), rules, roots={"fs_": "/project"}, on_ask=ask)
    real = {"origin": "src/a", "target": "/etc/b"}
    decoys: list[dict[str, Any]] = [{"path": "notes/a"}, {"url": "https://a.org"}, {"command": "git", "args": ["log"]}]
    script = [call("fs_mover", **real, **decoy) for decoy in decoys]

    done = finished(Loop(ScriptedBackend([*script, "done"]), tools=tools).run("go"))

    assert all(result.is_error for result in done.of(ToolResult))
    assert asked == [("fs_mover", None)] * 3


def test_an_argument_that_the_tool_does_not_take_is_denied_all_the_same() -> None:
    """A server may read more than it says: what must not be named, must not be named anywhere."""
    rules = [ALLOW_ALL, {"tool": "*", "decision": "deny", "host": "evil.org"}]
    script = [call("fs_mover", origin="a", target="b", url="https://evil.org"), "done"]

    done = finished(Loop(ScriptedBackend(script), tools=Policy(stacked({"fs": mover}), rules)).run("go"))

    assert "denied by the rule" in done.of(ToolResult)[0].content


def test_the_inner_policy_still_asks_when_the_outer_one_allows(workspace: Workspace) -> None:
    """Both must agree; two questions are two questions, never at once, also under one lock."""
    asked: list[str] = []

    def ask(request: Any) -> bool:
        asked.append(request["tool"])
        return len(asked) < 2

    lock = AskLock()
    inner = Policy(workspace, on_ask=ask, ask_lock=lock)
    outer = Policy(Registry({"fs": inner}), on_ask=ask, ask_lock=lock)

    done = finished(Loop(ScriptedBackend([call("fs_write", path="a", content="1"), "done"]), tools=outer).run("go"))

    assert asked == ["fs_write", "write"]
    assert [result.is_error for result in done.of(ToolResult)] == [True]
    assert list(workspace.root.iterdir()) == []


def test_the_floor_holds_for_commands_behind_a_prefix(workspace: Workspace) -> None:
    """Nobody is asked about what destroys a home, whatever else is allowed; the name has a prefix there."""
    floor = danger_floor(home="/home/ada")
    tools = Policy(stacked({"fs": workspace}), [*floor, ALLOW_ALL], roots={"fs_": workspace.root}, checks=floor.checks)
    backend = ScriptedBackend([call("fs_run", command="rm", args=["-rf", "/home/ada"], reason="tidy"), "done"])

    done = finished(Loop(backend, tools=tools, on_ask=always).run("go"))

    assert "denied by the rule" in done.of(ToolResult)[0].content
    assert done.of(AskPending) == []


# -- answers that are none -------------------------------------------------------------------------


class Unspeakable:
    """Has no words for itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


ENDLESS: dict[str, Any] = {}
ENDLESS["action"] = ENDLESS
NONSENSE = [Unspeakable(), {"action": Unspeakable()}, ENDLESS, {Unspeakable(): 1}, 1, [True], b"allow-once", "yes"]
NONSENSE += [
    "allow-once\0",
    {"action": ["allow-once"]},
    {"action": "allow-once", "x": 1},
    float("nan"),
    "x" * 1_000_000,
]
NONSENSE += [{"action": "always-allow", "rule": {"tool": "*"}, "rules": [{"tool": "*"}]}]


@pytest.mark.parametrize("answer", NONSENSE, ids=lambda answer: type(answer).__name__)
def test_a_nonsense_answer_refuses_and_the_run_goes_on(answer: Any, workspace: Workspace) -> None:
    """Whatever a page hands in: no effect, no grant, and every event can be written as JSON."""
    tools = Policy(workspace)
    run = Loop(ScriptedBackend([call("write", path="a", content="1"), "done"]), tools=tools, on_ask="run").run("go")
    for event in run.events(timeout=WAIT):
        if isinstance(event, AskPending):
            assert event.ask_id is not None
            run.answer(event.ask_id, answer)
    done = finished(run)

    assert [result.is_error for result in done.of(ToolResult)] == [True]
    assert tools.grants() == []
    assert list(workspace.root.iterdir()) == []
    assert all(json.dumps(event.to_dict()) for event in done.of(AskAnswered))


@pytest.mark.parametrize("timeout", [None, WAIT])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_prompt_that_exits_ends_only_itself(
    error: BaseException, timeout: float | None, workspace: Workspace
) -> None:
    """On its own thread or on the call's: the call is refused, and the run goes on."""

    def ask(_: Any) -> Any:
        raise error

    tools = Policy(workspace, on_ask=ask, ask_timeout=timeout)
    done = finished(Loop(ScriptedBackend([call("write", path="a", content="1"), "done"]), tools=tools).run("go"))

    assert done.outcome.ok
    assert "gave no usable answer" in done.of(ToolResult)[0].content


# -- waiting ---------------------------------------------------------------------------------------


def test_a_run_that_waits_for_another_ones_prompt_can_be_cancelled(workspace: Workspace) -> None:
    """Its call ran nothing, and the one who has the prompt is not disturbed."""
    gate, lock = Gate("x"), AskLock()

    def ask(_: Any) -> bool:
        gate.wait()
        return True

    def started(path: str) -> Any:
        tools = Policy(workspace, on_ask=ask, ask_lock=lock)
        return Loop(ScriptedBackend([call("write", path=path, content="1"), "done"]), tools=tools).run("go")

    first = started("first")
    gate.wait_entered()
    second = started("second")
    next(event for event in second.events(timeout=WAIT) if event.kind == "tool-started")
    second.cancel()
    done = finished(second)
    gate.open()

    assert done.outcome.status == "cancelled"
    assert finished(first).outcome.ok
    assert [path.name for path in workspace.root.iterdir()] == ["first"]


def test_a_question_for_a_page_expires_and_the_next_run_is_asked(workspace: Workspace) -> None:
    """Three runs, one lock, nobody there: each expires in its turn, and none waits for ever."""
    lock = AskLock()
    runs = [
        Loop(
            ScriptedBackend([call("write", path="a", content="1"), "done"]),
            tools=Policy(workspace, ask_timeout=0.05, ask_lock=lock),
            on_ask="run",
        ).run("go")
        for _ in range(3)
    ]

    results = [finished(run).of(ToolResult)[0].content for run in runs]

    assert all("nobody answered in time" in result for result in results)


@pytest.mark.usefixtures("no_thread_left")
def test_twenty_runs_share_one_workspace_one_book_and_one_lock(workspace: Workspace) -> None:
    """The first always decides for all of them; every run ends, and no thread is left."""
    store, lock, asked = Grants(), AskLock(), []
    guard = threading.Lock()

    def ask(request: Any) -> str:
        with guard:
            asked.append(request["tool"])
        return "always-allow"

    runs = []
    for number in range(20):
        tools = Policy(stacked({"fs": workspace}), store=store, ask_lock=lock, on_ask=ask)
        script = [call("fs_write", path=f"{number}", content="1"), call("fs_run", command="true"), "done"]
        runs.append(Loop(ScriptedBackend(script), tools=tools).run("go"))

    assert all(finished(run, 20.0).outcome.ok for run in runs)
    assert sorted(asked) == ["fs_run", "fs_write"]
    assert len(list(workspace.root.iterdir())) == 20


# -- long answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [True, False])
def test_a_long_output_is_cut_once(keeps: bool, workspace: Workspace, tmp_path: Path) -> None:
    """Also where the loop takes less than a workspace shows: one gap, and what is said of it is true."""
    with Session.create(tmp_path / "t.jsonl") as session:
        store = ArtifactFolder.beside(tmp_path / "t.jsonl")
        tools = Policy(
            stacked({"fs": Workspace(workspace.root, run=True, artifacts=store if keeps else None)}), [ALLOW_ALL]
        )
        backend = ScriptedBackend([call("fs_run", command="seq", args=["1", "20000"]), "done"])
        done = finished(Loop(backend, tools=tools, session=session, context_budget=32_000).run("go"))
    [result] = done.of(ToolResult)

    assert len(re.findall(r"\[\.\.\. ", result.content)) == 1
    assert result.content.endswith("20000\n[exit status 0]")
    whole = "".join(f"{number}\n" for number in range(1, 20_001))
    told = re.findall(r"the whole text .* is kept as artifact (\S+),", result.content)
    kept = [path.read_text() for name in told for path in tmp_path.rglob(name)]

    assert kept == ([whole] if keeps else [])


def test_a_page_of_a_file_is_whole_where_the_window_is_small(workspace: Workspace) -> None:
    """It says on which line to read on, so nothing may be missing before that."""
    (workspace.root / "long").write_text("".join(f"line {number}\n" for number in range(1, 3_000)))
    (workspace.root / "many").mkdir()
    for number in range(900):
        (workspace.root / "many" / f"a-rather-long-name-of-a-file-{number:04}").touch()
    script = [call("read", path="long"), call("list", path="many"), call("grep", pattern="line", path="long"), "done"]

    done = finished(Loop(ScriptedBackend(script), tools=workspace, context_budget=10_000).run("go"))

    assert [result.content.count("left out") for result in done.of(ToolResult)] == [0, 0, 0]
    assert "read on with offset" in done.of(ToolResult)[0].content
