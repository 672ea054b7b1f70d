"""The plan of the house is a test: an import may only go down, never up or sideways."""

from __future__ import annotations

import ast
from pathlib import Path

import llm_agent

PACKAGE = Path(llm_agent.__file__).parent

# Floor by floor; on floors 0 to 2 a module may also import those listed before it.
FLOORS: dict[int, tuple[str, ...]] = {
    0: (
        "errors", "codec", "canonical", "notices", "messages", "folding", "run_context", "wire_view",
        "tool_operation", "events", "outcome",
    ),
    1: (
        "cancel", "watchdog", "channel", "slot", "jsonl", "retry", "overflow", "patterns", "limits", "excerpt",
        "line_diff", "bill", "process_table", "child_processes",
    ),
    2: ("ports", "budget", "scope", "streaming", "call_context", "layers", "asks", "run_core", "run", "live"),
    3: ("token_count", "prompt", "compactor", "session", "tools", "backends", "policy", "terminal", "mcp"),
    4: ("loop",),
    5: ("testing",),
    6: ("cli", "__main__"),
}  # fmt: skip

# What `from llm_agent import ...` gives, beside modules: for the command line, as for any user.
TOP = max(FLOORS)
PUBLIC_NAMES = set(llm_agent.__all__) - {room for rooms in FLOORS.values() for room in rooms}

# Rooms that keep their own corridor: which modules inside may import which.
LOOP_PAIRS = {
    ("roundtrip", "attempt"),
    ("roundtrip", "window"),
    ("window", "compacting"),
    ("dispatch", "settle"),
    ("dispatch", "live_call"),
    ("settle", "observation"),
}
LOOP_COMMON = {"state", "config"}  # what every stage may import
# The default wiring (functions as tools, the counter, the prompt) meets the services in one place.
LOOP_MAY_IMPORT_SERVICES = {"wiring"}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def floor_of(room: str) -> tuple[int, int]:
    for floor, rooms in FLOORS.items():
        if room in rooms:
            return floor, rooms.index(room)
    raise AssertionError(f"{room} has no place in the house: add it to FLOORS")


def imports(path: Path) -> list[str]:
    found = []
    tree = ast.parse(path.read_text())
    # What only a type checker sees ties no rooms together at run time.
    unseen = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "llm_agent":
            found += [node.module] if node.module != "llm_agent" else [f"llm_agent.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] == "llm_agent"]
    return found


def modules() -> list[tuple[str, Path]]:
    rows = []
    for path in sorted(PACKAGE.rglob("*.py")):
        dotted = ".".join(("llm_agent", *path.relative_to(PACKAGE).with_suffix("").parts))
        rows.append((dotted.removesuffix(".__init__"), path))
    return rows


def may_import(importer: str, imported: str) -> bool:
    here, there = room_of(importer), room_of(imported)
    if here == "__init__" or here == there:
        return True
    floor, place = floor_of(here)
    if there in PUBLIC_NAMES:
        return floor == TOP
    other_floor, other_place = floor_of(there)
    if other_floor == floor:
        return floor in (0, 1, 2, TOP) and other_place < place
    if floor == 4 and other_floor == 3:
        return importer.split(".")[-1] in LOOP_MAY_IMPORT_SERVICES
    return other_floor < floor


def test_imports_only_go_down() -> None:
    """No module imports from its own floor sideways or from a floor above."""
    offences = [
        f"{module} imports {imported}"
        for module, path in modules()
        for imported in imports(path)
        if imported != "llm_agent" and not may_import(module, imported)
    ]

    assert offences == []


def test_stages_of_the_loop_do_not_know_each_other() -> None:
    """Only loop.py orders the stages; the pairs above work together by design."""
    offences = []
    for module, path in modules():
        if not module.startswith("llm_agent.loop.") or module.endswith(".loop"):
            continue
        stage = module.split(".")[-1]
        for imported in imports(path):
            other = imported.removeprefix("llm_agent.loop.") if imported.startswith("llm_agent.loop.") else None
            if other and other != stage and other not in LOOP_COMMON and (stage, other) not in LOOP_PAIRS:
                offences.append(f"{stage} imports {other}")

    assert offences == []


def test_every_room_is_small_enough_to_read() -> None:
    """A file above 450 lines is split, or argued here."""
    argued = {
        # One event class each, and the grammar they keep: the taxonomy is one page by design.
        "events.py",
    }
    long = {
        path.name: len(path.read_text().splitlines())
        for _, path in modules()
        if path.name not in argued and len(path.read_text().splitlines()) > 450
    }

    assert long == {}
