"""Listing, globbing and searching real trees, with both finders."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent.messages import ToolRequest
from llm_agent.testing.tools import call_context
from llm_agent.tools import Workspace
from llm_agent.tools.workspace import listing, search
from llm_agent.tools.workspace.confinement import Root
from llm_agent.tools.workspace.listing import GlobPattern


def told(root: Path, name: str, **arguments: Any) -> str:
    (answer,) = Workspace(root).execute_tool_calls([ToolRequest("1", name, arguments)])
    assert not answer.is_error, answer.content
    return str(answer.content)


def refused(root: Path, name: str, **arguments: Any) -> str:
    (answer,) = Workspace(root).execute_tool_calls([ToolRequest("1", name, arguments)])
    assert answer.is_error, answer.content
    return str(answer.content)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project, with what git ignores in it."""
    files = {
        ".git/config": "needle\n",
        ".gitignore": "*.log\n/build/\n!keep.log\n",
        ".github/ci.yml": "needle: 1\n",
        "README.md": "# Title\nno thing\n",
        "src/main.py": "import os\n\ndef needle():\n    return 1\n",
        "src/deep/er/x.py": "# needle\n",
        "src/.gitignore": "generated.py\n",
        "src/generated.py": "needle\n",
        "build/out.py": "needle\n",
        "app.log": "needle\n",
        "keep.log": "needle\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "src" / "binary").write_bytes(b"needle\0")
    return tmp_path


# -- list and glob -------------------------------------------------------------------------------


def test_a_list_tells_folders_links_and_special_files_apart(tmp_path: Path) -> None:
    """By name; a link with where it leads."""
    (tmp_path / "b").mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "c").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "d")

    assert told(tmp_path, "list") == "a\nb/\nc -> /nowhere\nd (named pipe)"


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    """An empty answer might be taken for a mistake."""
    assert told(tmp_path, "list") == "[. is empty]"


def test_a_long_list_says_how_many_are_left_out(tmp_path: Path) -> None:
    """Bounded in entries."""
    for number in range(1_003):
        (tmp_path / f"{number:04}").touch()

    assert told(tmp_path, "list").endswith("\n0999\n[3 more entries are not shown; use glob with a pattern]")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", ".", ["src/deep/er/x.py", "src/main.py"]),
        ("**/*.py", ".", ["src/deep/er/x.py", "src/main.py"]),
        ("src/*.py", ".", ["src/main.py"]),
        ("/src/*.py", ".", ["src/main.py"]),
        ("*.py", "src/deep", ["src/deep/er/x.py"]),
        ("er/*", "src/deep", ["src/deep/er/x.py"]),
        ("*.{md,yml}", ".", [".github/ci.yml", "README.md"]),
        ("src/**", ".", ["src/.gitignore", "src/binary", "src/deep/er/x.py", "src/main.py"]),
        ("*.log", ".", ["keep.log"]),
        ("out.py", "build", ["build/out.py"]),
        ("[mM]ain.??", ".", ["src/main.py"]),
    ],
)
def test_glob_finds_what_fits_and_is_not_ignored(tree: Path, pattern: str, path: str, expected: list[str]) -> None:
    """Nested `.gitignore` files count, exceptions too; a folder that is asked for by name is looked into."""
    pytest.importorskip("pathspec")

    assert told(tree, "glob", pattern=pattern, path=path).split("\n") == expected


def test_the_nearest_ignore_file_wins(tmp_path: Path) -> None:
    """A folder can take back what one above it says."""
    pytest.importorskip("pathspec")
    (tmp_path / "src").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "src" / ".gitignore").write_text("!kept.log\n")
    for name in ("a.log", "src/a.log", "src/kept.log"):
        (tmp_path / name).touch()

    assert told(tmp_path, "glob", pattern="*.log") == "src/kept.log"


def test_glob_says_when_nothing_fits(tree: Path) -> None:
    """And with which pattern."""
    assert told(tree, "glob", pattern="*.rs") == "[no file fits *.rs]"


@pytest.mark.parametrize("pattern", ["", "/", "../*", "a/../b", "{a,b}" * 8])
def test_a_pattern_that_cannot_be_one_is_refused(tree: Path, pattern: str) -> None:
    """By glob and by grep alike."""
    refused(tree, "glob", pattern=pattern)
    if pattern:
        refused(tree, "grep", pattern="x", glob=pattern)


def test_glob_says_where_a_pattern_starts(tree: Path) -> None:
    """An absolute one fits nothing, even where the folder is the workspace."""
    assert "without / in front" in told(tree, "glob", pattern=f"{tree}/src/*.py")


def test_a_hostile_pattern_takes_no_time(tmp_path: Path) -> None:
    """Neither stars in one name nor `**` in a row make it try again and again."""
    hostile = GlobPattern("/".join(["**"] * 30) + "/" + "*a" * 30 + "b")
    started = monotonic()

    assert not hostile.matches(["a" * 255] * 60)
    assert monotonic() - started < 5


@given(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5))
def test_any_path_fits_two_stars_and_its_own_spelling(path: list[str]) -> None:
    """`**` fits everything; a pattern without wildcards fits itself."""
    assert GlobPattern("**").matches(path)
    assert GlobPattern("/" + "/".join(path)).matches(path)
    assert GlobPattern(f"**/{path[-1]}").matches(path)
    assert not GlobPattern("/" + "/".join([*path, "c"])).matches(path)


HOSTILE_TREE = """
import sys
from llm_agent.messages import ToolRequest
from llm_agent.tools import Workspace
print(Workspace(sys.argv[1]).execute_tool_calls([ToolRequest("1", "glob", {"pattern": "*"})])[0].content)
"""


@pytest.mark.parametrize("line", ["*a" * 12 + "*b", "/**/a/**/a/**/a/**/a/**/a/**/a/**/b", "**a" * 12 + "b"])
def test_a_hostile_ignore_file_takes_no_time(tmp_path: Path, line: str) -> None:
    """A repository cannot stop the process by what it ignores; the lines that could are passed over."""
    deep = tmp_path / "/".join(["a"] * 50)
    deep.mkdir(parents=True)
    (tmp_path / ".gitignore").write_text(f"{line}\n*.log\n")
    (deep / ("a" * 200)).write_text("x")
    (tmp_path / "x.log").write_text("x")

    # In a process of its own: nothing in this one could end it.
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE_TREE, str(tmp_path)], capture_output=True, text=True, timeout=20
    )

    assert done.stdout.split("\n")[0] == ".gitignore"
    assert "x.log" not in done.stdout


def test_a_cancel_ends_a_walk_within_a_folder(tmp_path: Path) -> None:
    """A folder may hold a million names."""
    (tmp_path / "a").write_text("x")
    cancelled = threading.Event()
    cancelled.set()

    with call_context(cancelled=cancelled):
        with pytest.raises(TimeoutError):
            listing.list_names(Root(tmp_path), ".")
        with pytest.raises(TimeoutError):
            listing.find_files(Root(tmp_path), "*", ".")


def test_no_name_passes_for_two(tmp_path: Path, finder: str | None) -> None:
    """A line feed in a name is spelled out, and no line of another file is shown for it."""
    (tmp_path / "x\nforged").write_text("needle\n")
    (tmp_path / "forged").write_text("something else\n")

    for shown in (told(tmp_path, "list"), told(tmp_path, "glob", pattern="*")):
        assert shown.split("\n") == ["forged", r"x\nforged [a name for commands only: no tool takes it as a path]"]
    assert "something else" not in found(tmp_path, finder, "needle")


@pytest.mark.parametrize("name", [b"caf\xe9", b"back\\slash", b"bell\a"])
def test_a_name_that_no_tool_takes_says_so(tmp_path: Path, name: bytes) -> None:
    """It would otherwise be tried in vain."""
    open(os.path.join(os.fsencode(tmp_path), name), "wb").close()

    assert told(tmp_path, "list").endswith(" [a name for commands only: no tool takes it as a path]")


def test_a_walk_follows_no_link(tmp_path: Path) -> None:
    """A link to a folder above does not make it endless, one to a file is not listed as one."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").touch()
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "y.py").symlink_to("x.py")

    assert told(tmp_path, "glob", pattern="**") == "a/x.py"


# -- grep ----------------------------------------------------------------------------------------


@pytest.fixture(params=["ripgrep", "own"])
def finder(request: pytest.FixtureRequest) -> str | None:
    """Each of the two finders."""
    if request.param == "own":
        return None
    ripgrep = search.find_ripgrep()
    if ripgrep is None:
        pytest.skip("ripgrep is not installed")
    return ripgrep


def found(root: Path, finder: str | None, pattern: str, **options: Any) -> str:
    return search.search(Root(root), search.Sought(pattern=pattern, **options), ripgrep=finder)


def test_both_finders_show_the_same(tree: Path, finder: str | None) -> None:
    """Files by name, lines by number; what git ignores, `.git` and binary files left out."""
    pytest.importorskip("pathspec")

    assert found(tree, finder, "needle") == (
        ".github/ci.yml\n1:needle: 1\nkeep.log\n1:needle\nsrc/deep/er/x.py\n1:# needle\nsrc/main.py\n3:def needle():"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"path": "src/main.py"}, "src/main.py\n3:def needle():"),
        ({"path": "src/deep"}, "src/deep/er/x.py\n1:# needle"),
        ({"path": "build"}, "build/out.py\n1:needle"),
        ({"glob": "*.yml"}, ".github/ci.yml\n1:needle: 1"),
        ({"glob": "src/*.py", "context": 1}, "src/main.py\n2-\n3:def needle():\n4-    return 1"),
        ({"glob": "*.rs"}, "[no line matches]"),
    ],
)
def test_a_search_can_be_narrowed(tree: Path, finder: str | None, options: dict[str, Any], expected: str) -> None:
    """To a file, a folder, a pattern of names; with lines around."""
    assert found(tree, finder, "needle", **options) == expected


def test_case_can_be_ignored(tree: Path, finder: str | None) -> None:
    """As asked for, and not otherwise."""
    assert found(tree, finder, "title") == "[no line matches]"
    assert found(tree, finder, "title", ignore_case=True) == "README.md\n1:# Title"


def test_lines_far_apart_are_parted(tmp_path: Path, finder: str | None) -> None:
    """A gap between two places of one file shows."""
    (tmp_path / "a").write_text("x\n1\n2\n3\n4\nx\n")

    assert found(tmp_path, finder, "x", context=1) == "a\n1:x\n2-1\n--\n5-4\n6:x"


def test_line_ends_and_encodings_do_not_matter(tmp_path: Path, finder: str | None) -> None:
    """`$` is before a CRLF, and UTF-16 is text."""
    (tmp_path / "a").write_bytes(b"end\r\n")
    (tmp_path / "b").write_bytes("first\nthe end\n".encode("utf-16"))

    assert found(tmp_path, finder, "end$") == "a\n1:end\nb\n2:the end"


def test_a_pattern_of_either_kind_is_understood(tmp_path: Path, finder: str | None) -> None:
    """What ripgrep has no word for is left to `re`."""
    (tmp_path / "a").write_text("foobar\nxbar\n")

    assert found(tmp_path, finder, "(?<=foo)bar") == "a\n1:foobar"


def test_a_pattern_that_nobody_understands_is_refused(tmp_path: Path, finder: str | None) -> None:
    """With what is wrong about it."""
    with pytest.raises(ValueError, match="not understood: missing \\)"):
        found(tmp_path, finder, "(")


@pytest.mark.parametrize("pattern", ["-e", "--files", "--pre=sh", "-"])
def test_a_pattern_is_never_an_option(tmp_path: Path, finder: str | None, pattern: str) -> None:
    """Nor is a file name."""
    (tmp_path / "--pre=sh").write_text("x -e --files --pre=sh -\n")

    assert found(tmp_path, finder, pattern).endswith("1:x -e --files --pre=sh -")
    assert found(tmp_path, finder, "x", path="--pre=sh").endswith("1:x -e --files --pre=sh -")


@pytest.mark.parametrize("pattern", ["", "x" * 5_000, "a\0b"])
def test_a_pattern_that_no_text_has_is_refused(tmp_path: Path, finder: str | None, pattern: str) -> None:
    """In words for who wrote it, before anything is started."""
    with pytest.raises(ValueError, match="pattern has"):
        found(tmp_path, finder, pattern)


def test_many_matches_are_bounded(tmp_path: Path, finder: str | None) -> None:
    """Not more lines than a model can use, and it is told."""
    for name in "abc":
        (tmp_path / name).write_text("x\n" * 5_000)

    answer = found(tmp_path, finder, "x")

    assert answer.count(":x") == 200
    assert "[only 200 matching lines are shown; search for something narrower]" in answer


def test_a_pattern_that_never_ends_is_stopped(tmp_path: Path) -> None:
    """A regular expression that backtracks takes its process down, not the call; what was found before is shown."""
    (tmp_path / "a").write_text("aaab\n")
    (tmp_path / "b").write_text("a" * 40 + "\n")

    with call_context(deadline=1.0):
        answer = found(tmp_path, None, "(a+)+b")

    assert answer.startswith("a\n1:aaab\n[the search was stopped after 1 s;")


def test_a_cancelled_call_ends_a_search(tmp_path: Path) -> None:
    """The finder is killed with the call."""
    (tmp_path / "b").write_text("a" * 40 + "\n")
    cancelled = threading.Event()
    timer = threading.Timer(0.2, cancelled.set)
    timer.start()
    started = monotonic()

    with call_context(cancelled=cancelled):
        found(tmp_path, None, "(a+)+b")

    assert monotonic() - started < 5


def test_a_finder_that_dies_is_told(tmp_path: Path) -> None:
    """What it had found is shown, and that there may be more: a mapped file that is cut short ends it."""
    (tmp_path / "a").write_text("needle\n")
    dying = tmp_path / "rg"
    dying.write_text("#!/bin/sh\nprintf './a\\0001:\\n'\nkill -BUS $$\n")
    dying.chmod(0o755)

    answer = found(tmp_path, str(dying), "needle")

    assert answer.startswith("a\n1:needle\n[the search ended early")


def test_a_huge_line_is_cut(tmp_path: Path, finder: str | None) -> None:
    """A minified file shows 500 characters of it, and says that there are more."""
    (tmp_path / "a").write_text("x" * 100_000 + "needle\n")

    assert found(tmp_path, finder, "needle") == "a\n1:" + "x" * 500 + "[... 99506 more characters]"
