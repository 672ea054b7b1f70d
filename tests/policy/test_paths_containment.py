"""Where a path leads: the weak spots of a lexical reading, each closed, and a look at the disk."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from judging import one, request, tools, verdict

from llm_agent.errors import ConfigError
from llm_agent.messages import ToolRequest
from llm_agent.policy import Policy

ALLOW = [{"tool": "fs_*", "decision": "allow", "under": "/srv"}]
DENY = [{"tool": "fs_*", "decision": "deny", "under": "/srv/secret"}]
ROOTS = {"fs_": "/srv"}

INSIDE = [
    "/srv", "/srv/", "/srv/a", "/srv//a", "/srv/./a", "/srv/a/.", "a", "./a", ".", "./", "a/b.txt", ".hidden",
    ".git/x", "a b.txt", "Foo$Bar.class", "x-y_z", "12:30.log/x"[6:], "caf\u00e9", "日本語/字", "a/b:c", "{{name}}/x",
    "100%", "a~b", "a...b", "..a", "a..", "-rf", "*", "a?b", "[x]", "#x", "'q'", '"q"', "a&b", "a;b", "a|b", "@scope/x",
]  # fmt: skip

# From public lists: path traversal cheat sheets, fuzzing word lists, advisories on archive and
# upload handlers, and the ways Windows, macOS, URLs and shells read a name differently.
TRICKS = [
    "..", "../", "../etc/passwd", "../../etc/passwd", "a/../../etc/passwd", "/srv/../etc/passwd", "/srv/a/../../etc",
    "./../x", ".//../x", "a/..", "a/../b", "/..", "/srv/..", "..//x", "..\\x", "..\\..\\windows\\win.ini", "a\\..\\b",
    "\\x", "\\\\server\\share", "\\\\?\\C:\\x", "\\\\.\\pipe\\x", "/srv\\..\\etc", "C:", "C:/Windows/x", "c:x",
    "C:\\Windows", "Z:/x", "./C:/x", "//server/share", "//srv/x", "///etc/passwd", "//./C:/x", "//?/C:/x", "/srv2/x",
    "/srv-backup/x", "/srvx", "/etc/passwd", "/", "/root/.ssh/id_rsa", "/proc/self/root/etc/passwd", "/dev/fd/0",
    "~", "~/.ssh/id_rsa", "~root/x", "~+/x", "./~/x", " ~/x", "$HOME/.ssh/id", "${HOME}/x", "a/$HOME/x", "$(pwd)/x",
    "`pwd`/x", "%USERPROFILE%/x", "%HOME%", "x/%APPDATA%/y", "%2e%2e/x", "%2e%2e%2fetc%2fpasswd", "..%2fx", "..%5cx",
    "%252e%252e%252fx", "..%c0%afx", "%c0%ae%c0%ae/x", "..%ef%bc%8fx", "%u002e%u002e/x", "..%00/x", "a%00.txt", "a%0a",
    "a\0b", "a\0", "\0", "../\0", "a\nb", "a\rb", "a\tb", "a\x1bb", "a\x7fb", "a\x85b", "\x08/x",
    "...", ".../x", "..../x", "....//x", "....//....//etc/passwd", "..;/x"[:2] + " /x", ".. /x", " ../x", " .. /x",
    ". ./x", "a/ ../b", "a/.. /b", "a/. /b", "a./b", "a /b", "a.", "a ", "a. . .", " ", "  ", ". .", "a/ /b",
    " /etc/passwd",
    "\u200b../x", ".\u200b./x", "a\u202eb", "a\u2066b", "\ufeff../x", "a\u00adb", "a\u2028b", "\uff0e\uff0e/x",
    "\u2025/x", "\u2024\u2024/x", "\u2026/x", "..\uff0fx", "a\uff3cb", "\uff5e/x", "C\uff1a/x", "a\u00a0/b", "\u3000/x",
    "a\u2003", "\u2100/x", "a\ud800", "\ue000x", "file:///etc/passwd", "file:/etc/passwd", "file:x", "http://x/y",
    "data:x", "x.txt::$DATA", "secret::$INDEX_ALLOCATION/x", "PROGRA~1/x", "SECRET~1/x", "a/b~2.txt", "{..,x}/y",
    "{.,.}{.,.}/x", "x/{a..c}", "", "/SRV/x", "/Srv/a", "/ſrv/x", None, 3, True, [], ["a", "../x"], [["a"]], [3],
    {"path": "a"},
]  # fmt: skip


@pytest.mark.parametrize("path", INSIDE)
def test_ordinary_names_inside_are_allowed(path: str) -> None:
    """Strictness costs no name that people use; two end in dots and are asked about."""
    decision = verdict(ALLOW, request(path=path), roots=ROOTS).decision

    assert decision == ("ask" if path == "a.." else "allow")


@pytest.mark.parametrize("path", TRICKS, ids=lambda path: ascii(path)[:40])
def test_no_trick_is_allowed(path: Any) -> None:
    """Out of the folder, or not certainly in it: asked, never allowed, by each way of naming it."""
    for argument in ("path", "from", "to"):
        call = ToolRequest("c", "fs_x", {argument: path})
        assert verdict(ALLOW, call, roots=ROOTS).decision == "ask"


def test_no_trick_reaches_the_tool() -> None:
    """All of them through a whole policy, with nobody to ask; prints the counts."""
    provider = tools()
    policy = Policy(provider, ALLOW, roots=ROOTS)

    answers = policy.execute_tool_calls([ToolRequest(str(i), "fs_x", {"path": path}) for i, path in enumerate(TRICKS)])

    print(f"adversarial paths: {len(TRICKS)}, allowed: {len(provider.calls)}; ordinary names: {len(INSIDE)}")
    assert len(TRICKS) >= 100
    assert provider.calls == []
    assert all(answer.is_error for answer in answers)


SAME_PLACE = [
    "/srv/secret", "/srv/secret/", "/srv//secret/x", "/srv/./secret", "secret/x", "./secret/x", "/srv/a/../secret/x",
    "a/../secret", "/srv/SECRET/x", "Secret/x", "/SRV/secret/x", "secret./x", "secret /x", "secret::$DATA",
    "SECRET~1/x",
    "/srv/secret:x", "/srv/secret::$INDEX_ALLOCATION/x", "/srv/secret:$I30:$INDEX_ALLOCATION/x", "/srv/SECRET:x",
    "/srv/s*", "/srv/secre?/x", "/srv/[s]ecret", "*", "/srv/*/x", "S*T/x",
    "secret/" + "./" * 2049 + "x",
    "%73ecret/x", "s\u200becret/x", "\uff53ecret/x", "ſecret/x", "{secret,x}/y", "..\\srv\\secret", "~/../srv/secret",
]  # fmt: skip


@pytest.mark.parametrize("path", SAME_PLACE, ids=lambda path: ascii(path)[:40])
def test_no_spelling_walks_round_a_denied_folder(path: str) -> None:
    """What may be the folder is denied as the folder, beside an allow for all around it."""
    assert verdict([*ALLOW, *DENY], request(path=path), roots=ROOTS).decision == "deny"


@pytest.mark.parametrize("composed", ["NFC", "NFD"])
@pytest.mark.parametrize("given", ["NFC", "NFD"])
def test_one_name_in_two_compositions_is_not_certainly_one_file(composed: Any, given: Any) -> None:
    """Some file systems keep both, some make one of them: an allow asks, and a deny denies."""
    folder = "/srv/" + unicodedata.normalize(composed, "caf\u00e9")
    call = request(path="/srv/" + unicodedata.normalize(given, "caf\u00e9") + "/x")

    def decided(decision: str) -> str:
        return verdict([{"tool": "*", "decision": decision, "under": folder}], call).decision

    assert decided("allow") == ("allow" if composed == given else "ask")
    assert decided("deny") == "deny"


@pytest.mark.parametrize("name", ["fs_read", "notes:2026", "a*b", "[slug]", "secrets", "my-secret", "secret.txt"])
def test_a_name_that_only_sounds_like_a_denied_folder_is_another_one(name: str) -> None:
    """Strictness towards what may be the same is not suspicion of everything."""
    assert verdict([*ALLOW, *DENY], request(path=f"/srv/{name}/x"), roots=ROOTS).decision == "allow"


@pytest.mark.parametrize(
    ("roots", "under", "path", "decision"),
    [
        ({"fs_": "/srv"}, "/srv", "a", "allow"),
        ({"fs_*": "/srv"}, "/srv", "a", "allow"),
        ({"": "/srv"}, "/srv", "a", "allow"),
        ({"": "/etc", "fs_": "/srv"}, "/srv", "a", "allow"),
        ({"fs_": "/etc", "fs_re": "/srv"}, "/srv", "a", "allow"),
        ({"web_": "/srv"}, "/srv", "a", "ask"),
        ({"fs_": "/srv"}, "src", "src/a", "allow"),
        ({"fs_": "/srv"}, "src", "/srv/src/a", "allow"),
        ({"fs_": "/srv"}, "src", "a", "ask"),
        ({"fs_": "/srv"}, ".", "a", "allow"),
        ({"fs_": "/srv"}, "/", "a", "allow"),
        ({}, "src", "src/a", "allow"),
        ({}, "/srv", "src/a", "ask"),
        ({}, "src", "/srv/src", "ask"),
    ],
)
def test_relative_paths_start_from_the_longest_root(roots: Any, under: str, path: str, decision: str) -> None:
    """Arguments and `under` alike; relative and absolute are not compared without one."""
    rules = [{"tool": "fs_*", "decision": "allow", "under": under}]

    assert verdict(rules, request(path=path), roots=roots).decision == decision


def test_other_arguments_are_places_where_that_is_said() -> None:
    """`path_params` replaces the usual names, for the pattern that says most; `[]` is no place at all."""
    params = {"fs_*": ["file", "folder"], "fs_list": "directory", "fs_none": []}

    def decided(tool: str, **arguments: Any) -> str:
        return verdict(ALLOW, request(tool, **arguments), path_params=params).decision

    assert decided("fs_read", file="/srv/x") == "allow"
    assert decided("fs_read", file="/srv/x", folder="/etc") == "ask"
    assert decided("fs_read", path="/srv/x") == "ask"
    assert decided("fs_list", directory="/srv") == "allow"
    assert decided("fs_none", path="/srv") == "ask"


@pytest.mark.parametrize(
    ("paths", "decision"),
    [(["/srv/a", "b"], "allow"), (["/srv/a", "/etc"], "ask"), (["a", 3], "ask"), ([], "ask"), ("/srv/a", "allow")],
)
def test_a_list_of_paths_is_as_many_places(paths: Any, decision: str) -> None:
    """Every one of them counts; an empty list names no place, so that nothing is certain."""
    assert verdict(ALLOW, request("fs_read_many", paths=paths), roots=ROOTS).decision == decision


@pytest.mark.parametrize("argument", ["path", "paths", "file_path", "from", "to", "source", "destination"])
def test_the_usual_names_of_paths_are_looked_at_unasked(argument: str) -> None:
    """Nobody has to say so for what servers commonly call them."""
    call = ToolRequest("c", "fs_x", {argument: "/srv/secret/x"})

    assert verdict([*ALLOW, *DENY], call, roots=ROOTS).decision == "deny"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"roots": ["/srv"]}, "roots: expected a mapping"),
        ({"roots": {"fs_": "srv"}}, "it is not absolute"),
        ({"roots": {"fs_": "~/srv"}}, r"roots\['fs_'\]: expected an absolute path"),
        ({"roots": {"fs_": "/srv/../x"}}, r"it holds \.\.$"),
        ({"roots": {"f*s": "/srv"}}, "expected a prefix of tool names"),
        ({"roots": {3: "/srv"}}, "expected a prefix of tool names"),
        ({"path_params": ["path"]}, "path_params: expected a mapping"),
        ({"path_params": {3: "path"}}, "path_params: expected a tool name or a prefix ending in *"),
        ({"path_params": {"f*s": "path"}}, "path_params: a \\* may only stand at the end, got 'f\\*s'"),
        ({"command_params": {3: "run"}}, "command_params: expected a tool name or a prefix ending in *"),
        ({"command_params": {"f*s": "run"}}, "command_params: a \\* may only stand at the end"),
        ({"local_tools": ["f*s"]}, "local_tools: a \\* may only stand at the end"),
        ({"path_params": {"fs_*": [3]}}, r"path_params\['fs_\*'\]: expected argument names"),
        ({"local_tools": "fs_*"}, "local_tools: expected a list"),
    ],
)
def test_options_about_paths_are_checked(options: Any, problem: str) -> None:
    """What cannot be meant is refused by name."""
    with pytest.raises(ConfigError, match=problem):
        Policy(tools(), **options)


# -- the disk ------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with links out of it, into a denied folder, in a ring, and to nothing."""
    root = tmp_path.resolve() / "root"
    (root / "docs").mkdir(parents=True)
    (root / "secret").mkdir()
    (tmp_path / "outside").mkdir()
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "new").symlink_to(tmp_path / "outside" / "not-there")
    (root / "hole").symlink_to(root / "secret")
    (root / "home").symlink_to(root / "docs")
    (root / "ring").symlink_to(root / "ring")
    (tmp_path / "alias").symlink_to(root)
    return root


@pytest.mark.parametrize(
    ("path", "by_disk", "by_text"),
    [
        ("docs/x", "allow", "allow"),
        ("not/there/yet", "allow", "allow"),
        ("home/x", "allow", "allow"),
        ("out/x", "ask", "allow"),
        ("out", "ask", "allow"),
        ("new", "ask", "allow"),
        ("new/x", "ask", "allow"),
        ("docs/../docs/x", "ask", "ask"),
        ("secret/x", "deny", "deny"),
        ("hole/x", "deny", "allow"),
        ("hole", "deny", "allow"),
    ],
)
def test_links_are_followed_where_the_tool_is_ours(tree: Path, path: str, by_disk: str, by_text: str) -> None:
    """A link out allows nothing, a link into a denied folder is denied; elsewhere only the text counts."""
    rules = [
        {"tool": "fs_*", "decision": "allow", "under": str(tree)},
        {"tool": "fs_*", "decision": "deny", "under": "secret"},
    ]
    call = request(path=path)

    # An allow for the whole root does not fire where the deny is unsure of a way out of it.
    unsure = {"out/x", "out", "new", "new/x", "docs/../docs/x"}
    found = verdict(rules[:1] if path in unsure else rules, call, roots={"fs_": tree}, local_tools=["fs_*"])

    assert found.decision == by_disk
    assert verdict(rules[:1] if path in unsure else rules, call, roots={"fs_": tree}).decision == by_text


def test_a_root_behind_a_link_is_still_the_root(tree: Path) -> None:
    """Both sides are resolved, so that a folder is in itself by any of its names."""
    alias = tree.parent / "alias"
    rules = [{"tool": "fs_*", "decision": "allow", "under": str(alias)}]

    assert verdict(rules, request(path="docs/x"), roots={"fs_": alias}, local_tools=["fs_read"]).decision == "allow"


def test_a_look_at_the_disk_never_allows_what_the_text_does_not(tree: Path) -> None:
    """A path outside that leads inside by a link is still asked about."""
    (tree.parent / "back").symlink_to(tree / "docs")
    rules = [{"tool": "fs_*", "decision": "allow", "under": str(tree)}]
    call = request(path=str(tree.parent / "back" / "x"))

    assert verdict(rules, call, local_tools=["fs_*"]).decision == "ask"


def test_a_link_in_a_ring_is_not_allowed_out(tree: Path) -> None:
    """What cannot be resolved stays where its text is, and the tool cannot open it either."""
    rules = [{"tool": "fs_*", "decision": "allow", "under": str(tree / "docs")}]
    call = request(path=str(tree / "ring" / "x"))

    assert verdict(rules, call, local_tools=["fs_*"]).decision == "ask"


def test_a_link_is_looked_at_again_for_every_call(tree: Path) -> None:
    """Nothing of the disk is remembered between calls."""
    policy = Policy(
        tools(), [{"tool": "fs_*", "decision": "allow", "under": str(tree)}], roots={"fs_": tree}, local_tools=["fs_*"]
    )
    before = one(policy, request(path="docs/x"))
    (tree / "docs").rmdir()
    os.symlink(tree.parent / "outside", tree / "docs")

    after = one(policy, request(path="docs/x"))

    assert (before.is_error, after.is_error) == (False, True)
