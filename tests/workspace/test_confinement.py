"""The walls of a workspace: nothing outside is opened, whatever lies on the way."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.tools import Workspace
from llm_agent.tools.workspace import search
from llm_agent.tools.workspace.confinement import Root

SECRET = "the secret of the neighbours"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace beside which lies what it must not reach."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    inside = tmp_path / "inside"
    (inside / "src").mkdir(parents=True)
    (inside / "src" / "a.txt").write_text("a\n")
    return inside


def call(workspace: Workspace, name: str, **arguments: Any) -> ToolAnswer:
    (answer,) = workspace.execute_tool_calls([ToolRequest("1", name, arguments)])
    return answer


def every_tool(path: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("read", {"path": path}),
        ("write", {"path": path, "content": "changed"}),
        ("edit", {"path": path, "old": "secret", "new": "changed"}),
        ("list", {"path": path}),
        ("glob", {"pattern": "*", "path": path}),
        ("grep", {"pattern": "secret", "path": path}),
    ]


def links(root: Path) -> None:
    """Every kind of link that leads out."""
    outside = root.parent / "outside"
    (root / "file").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "relative").symlink_to("../outside")
    (root / "chain").symlink_to("folder")
    (root / "src" / "up").symlink_to("../../outside")
    (root / "dots").symlink_to(root / ".." / "outside")
    (root / "root").symlink_to("/")


LEADING_OUT = [
    "file",
    "folder",
    "folder/secret.txt",
    "relative/secret.txt",
    "chain/secret.txt",
    "src/up/secret.txt",
    "dots/secret.txt",
    "root/etc/passwd",
    "/etc/passwd",
    "/",
]
MISUNDERSTOOD = [
    "..",
    "../outside/secret.txt",
    "src/../../outside/secret.txt",
    "src/..",
    "~/secret.txt",
    "~root/x",
    "C:/secret.txt",
    "c:secret.txt",
    "src\\a.txt",
    "..\\outside",
    "src/a.txt\0",
    "src/\x1b[2Ja.txt",
    "a\nb",
]


@pytest.mark.parametrize("path", LEADING_OUT)
def test_what_leads_out_is_refused_by_every_tool(root: Path, path: str) -> None:
    """Absolute paths and links out, in any component: refused with the reason, and nothing is touched."""
    links(root)
    workspace = Workspace(root)

    for name, arguments in every_tool(path):
        answer = call(workspace, name, **arguments)
        assert answer.is_error, name
        assert "outside of the workspace" in str(answer.content), name
    assert (root.parent / "outside" / "secret.txt").read_text() == SECRET
    assert os.listdir(root.parent / "outside") == ["secret.txt"]


@pytest.mark.parametrize("path", MISUNDERSTOOD)
def test_what_others_read_differently_is_refused_by_every_tool(root: Path, path: str) -> None:
    """`..`, `~`, drives, backslashes, control characters: refused, and the answer says what to give instead."""
    workspace = Workspace(root)

    for name, arguments in every_tool(path):
        answer = call(workspace, name, **arguments)
        assert answer.is_error, name
        assert "path" in str(answer.content), name


@pytest.mark.parametrize(
    "path", ["src/a.txt", "./src//./a.txt", "lib/a.txt", "abs", "deep/a.txt", "hop", "{root}/src/a.txt"]
)
def test_what_stays_inside_is_followed(root: Path, path: str) -> None:
    """Odd spellings, absolute paths below the root, and links of any kind that stay inside."""
    (root / "lib").symlink_to("src")
    (root / "abs").symlink_to(root / "src" / "a.txt")
    (root / "deep").symlink_to("src/../src")
    (root / "hop").symlink_to("lib/a.txt")

    assert call(Workspace(root), "read", path=path.format(root=root)).content == "1\ta\n".rstrip()


def test_a_root_behind_a_link_is_known_by_both_names(root: Path) -> None:
    """A model that was told the one or the other reaches the same file."""
    link = root.parent / "link"
    link.symlink_to(root)
    workspace = Workspace(link)

    assert workspace.root == root
    for spelling in (link, root):
        assert call(workspace, "read", path=f"{spelling}/src/a.txt").content == "1\ta"


def test_a_neighbour_with_the_same_beginning_is_outside(root: Path) -> None:
    """Containment is by folder, not by letters."""
    (root.parent / "inside2").mkdir()
    (root.parent / "inside2" / "x").write_text(SECRET)

    assert call(Workspace(root), "read", path=f"{root}2/x").is_error


def test_links_in_a_circle_come_to_an_end(root: Path) -> None:
    """A link to itself is an error, not a walk without end."""
    (root / "loop").symlink_to("loop")

    answer = call(Workspace(root), "read", path="loop/x")

    assert answer.is_error
    assert "too many symbolic links" in str(answer.content)


def test_writing_through_a_link_inside_writes_its_target(root: Path) -> None:
    """As an editor would: the link stays one."""
    (root / "link").symlink_to("src/a.txt")

    call(Workspace(root), "write", path="link", content="new\n")

    assert (root / "link").is_symlink()
    assert (root / "src" / "a.txt").read_text() == "new\n"


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_special_files_are_refused_at_once(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to does not hold up a call, and is not replaced."""
    monkeypatch.chdir(root)  # the name of a socket has 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        if kind == "socket":
            server.bind("x")
        else:
            (os.mkfifo if kind == "pipe" else os.mkdir)(root / "x")
        workspace = Workspace(root)

        refused = {"read", "write", "edit"} | ({"list", "glob", "grep"} if kind != "folder" else set())
        begun = monotonic()
        for name, arguments in every_tool("x"):
            assert call(workspace, name, **arguments).is_error == (name in refused), name
        assert monotonic() - begun < 5


@pytest.mark.parametrize("path", ["d/" * 900 + "x", "x" * 5_000, "d/" * 2_500 + "x", "x" * 300])
def test_a_path_that_cannot_be_one_is_refused_shortly(root: Path, path: str) -> None:
    """Too deep or too long: nothing is made on the way, and the path is not told back whole."""
    workspace, before = Workspace(root), sorted(os.listdir(root))

    for name, arguments in every_tool(path):
        answer = call(workspace, name, **arguments)
        assert answer.is_error, name
        assert len(str(answer.content)) < 500, name
        assert "Errno" not in str(answer.content), name
    assert sorted(os.listdir(root)) == before


@pytest.mark.parametrize("becomes", ["missing", "link", "file"])
def test_a_root_that_is_gone_is_not_looked_for_elsewhere(root: Path, becomes: str) -> None:
    """What a link in its place leads to is not the workspace; every tool says what is wrong."""
    workspace = Workspace(root, run=True)
    root.rename(root.with_name("moved"))
    if becomes == "link":
        root.symlink_to(root.parent / "outside")
    elif becomes == "file":
        root.write_text(SECRET)

    for name, arguments in [*every_tool("secret.txt"), ("run", {"command": "ls"})]:
        answer = call(workspace, name, **arguments)
        assert answer.is_error, name
        assert "the root of the workspace cannot be entered" in str(answer.content), name


def test_what_became_a_link_after_it_was_looked_up_is_not_opened(root: Path) -> None:
    """The last step follows no link, neither to a file nor to a folder."""
    for path, outside in (("src/a.txt", "secret.txt"), ("src", "")):
        with Root(root).place(path) as place:
            (root / path).rename(root / "aside")
            (root / path).symlink_to(root.parent / "outside" / outside)
            with pytest.raises(OSError, match=path), place.opened() if outside else place.as_folder():
                pass
        (root / path).unlink()
        (root / "aside").rename(root / path)


def flip_links(path: Path, outside: Path, stop: threading.Event) -> None:
    """Let *path* be a link inside and a link out by turns, as fast as possible, never missing."""
    draft = path.with_name("draft")
    while not stop.is_set():
        for target in (outside, Path("src")):
            draft.symlink_to(target)
            os.replace(draft, path)


def flip_folder(path: Path, outside: Path, stop: threading.Event) -> None:
    """Let *path* be a folder and a link out by turns, as fast as possible."""
    aside = path.with_name("aside")
    while not stop.is_set():
        os.rename(path, aside)
        path.symlink_to(outside)
        path.unlink()
        os.rename(aside, path)


@pytest.fixture
def flipping(root: Path) -> Iterator[threading.Event]:
    """`swap` leads inside and outside by turns, all the time."""
    (root / "swap").symlink_to("src")
    (root / "src" / "secret.txt").write_text("harmless")
    stop = threading.Event()
    thread = threading.Thread(target=flip_links, args=(root / "swap", root.parent / "outside", stop))
    thread.start()
    yield stop
    stop.set()
    thread.join(5)


def test_a_link_that_is_swapped_never_leads_out(root: Path, flipping: threading.Event) -> None:
    """With a link flipped in a loop, every read is of the inside or refused, and no write gets out."""
    workspace = Workspace(root)
    allowed = refused = 0
    begun = monotonic()

    while monotonic() < begun + 1 or (not (allowed and refused) and monotonic() < begun + 5):
        answer = call(workspace, "read", path="swap/secret.txt")
        assert SECRET not in str(answer.content)
        refused += answer.is_error
        allowed += not answer.is_error
        call(workspace, "write", path="swap/secret.txt", content="harmless")
        call(workspace, "write", path="swap/new/x.txt", content="harmless")
        call(workspace, "list", path="swap")

    assert allowed > 0
    assert refused > 0
    assert os.listdir(root.parent / "outside") == ["secret.txt"]
    assert (root.parent / "outside" / "secret.txt").read_text() == SECRET


def test_a_folder_that_is_swapped_for_a_link_never_leads_out(root: Path) -> None:
    """Between the look at a component and its opening, too."""
    (root / "src" / "secret.txt").write_text("harmless")
    stop = threading.Event()
    thread = threading.Thread(target=flip_folder, args=(root / "src", root.parent / "outside", stop))
    thread.start()
    workspace, seen, harmless = Workspace(root), set(), "1\tharmless\n[the last line has no line end]"
    begun = monotonic()

    while monotonic() < begun + 1 or (harmless not in seen and monotonic() < begun + 5):
        seen.add(str(call(workspace, "read", path="src/secret.txt").content))
    stop.set()
    thread.join(5)

    assert harmless in seen
    assert not [content for content in seen if SECRET in content]


@pytest.mark.parametrize("engine", ["ripgrep", "own"])
def test_a_search_led_out_by_a_swapped_link_shows_nothing_of_it(
    root: Path, flipping: threading.Event, engine: str
) -> None:
    """Neither finder can be made to show a line of outside, since no line of theirs is shown."""
    ripgrep = search.find_ripgrep() if engine == "ripgrep" else None
    if engine == "ripgrep" and ripgrep is None:
        pytest.skip("ripgrep is not installed")

    for _ in range(10):
        try:
            found = search.search(Root(root), search.Sought(pattern="secret|harm", path="swap"), ripgrep=ripgrep)
        except OSError:  # the link led out when it was looked at first
            continue
        assert SECRET not in found


PIECES = st.sampled_from(
    ["src", "a.txt", "..", ".", "", "file", "folder", "chain", "root", "etc", "up", "secret.txt", "~"]
)


@given(parts=st.lists(PIECES, max_size=6), is_absolute=st.booleans())
def test_no_combination_of_components_reaches_outside(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], is_absolute: bool
) -> None:
    """Whatever components a path has, what is read is inside."""
    root = _prepared(tmp_path_factory)
    path = "/" * is_absolute + "/".join(parts)

    for name in ("read", "list", "grep"):
        arguments = {"path": path, **({"pattern": "neighbours"} if name == "grep" else {})}
        content = str(call(Workspace(root), name, **arguments).content)
        assert SECRET not in content
        assert "root:x:0" not in content  # of /etc/passwd


_PREPARED: list[Path] = []


def _prepared(factory: pytest.TempPathFactory) -> Path:
    if not _PREPARED:
        base = factory.mktemp("walls")
        (base / "outside").mkdir()
        (base / "outside" / "secret.txt").write_text(SECRET)
        root = base / "inside"
        (root / "src").mkdir(parents=True)
        (root / "src" / "a.txt").write_text("a\n")
        links(root)
        _PREPARED.append(root)
    return _PREPARED[0]


@pytest.mark.parametrize("root", [None, 3, b"x"])
def test_a_root_that_is_no_path_is_refused(root: Any) -> None:
    """The caller's fault, before anything starts."""
    with pytest.raises(ConfigError, match="root must be a path"):
        Workspace(root)


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    """A missing folder is not made."""
    with pytest.raises(ConfigError, match="existing folder"):
        Workspace(tmp_path / "none")
