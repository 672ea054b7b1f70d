"""Reading, writing and editing real files: what a model is shown, and what is left on the disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llm_agent.messages import ToolRequest
from llm_agent.tools import Workspace
from llm_agent.tools.workspace import text_files
from llm_agent.tools.workspace.encodings import UTF_8


def told(root: Path, name: str, **arguments: Any) -> str:
    """The answer of one tool, which is no error."""
    (answer,) = Workspace(root).execute_tool_calls([ToolRequest("1", name, arguments)])
    assert not answer.is_error, answer.content
    return str(answer.content)


def refused(root: Path, name: str, **arguments: Any) -> str:
    """The error of one tool."""
    (answer,) = Workspace(root).execute_tool_calls([ToolRequest("1", name, arguments)])
    assert answer.is_error, answer.content
    return str(answer.content)


# -- reading -------------------------------------------------------------------------------------


def test_lines_come_with_their_numbers(tmp_path: Path) -> None:
    """A number, a tab, the line; nothing else where there is nothing else to say."""
    (tmp_path / "a").write_text("".join(f"line {number}\n" for number in range(1, 11)))

    lines = told(tmp_path, "read", path="a").split("\n")

    assert (lines[0], lines[9], len(lines)) == (" 1\tline 1", "10\tline 10", 10)


def test_a_part_says_how_to_read_on(tmp_path: Path) -> None:
    """Which lines, of how many, and the next offset."""
    (tmp_path / "a").write_text("1\n2\n3\n4\n")

    assert (
        told(tmp_path, "read", path="a", offset=2, limit=2) == "2\t2\n3\t3\n[lines 2 to 3 of 4; read on with offset 4]"
    )
    assert told(tmp_path, "read", path="a", offset=3) == "3\t3\n4\t4\n[lines 3 to 4 of 4; this is the end]"


def test_pages_in_a_row_are_the_file(tmp_path: Path) -> None:
    """Reading on by the offsets that are told misses no line and doubles none."""
    lines = [f"{number} " + "x" * (number % 300) for number in range(700)]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    seen, offset = [], 1

    while True:
        page = told(tmp_path, "read", path="a", offset=offset)
        assert len(page) < 16_384  # the loop would make an excerpt of it
        *shown, note = page.split("\n")
        seen += [line.partition("\t")[2] for line in shown]
        if "this is the end" in note:
            break
        offset = int(note.rpartition("offset ")[2].rstrip("]"))

    assert seen == lines


@pytest.mark.parametrize("arguments", [{"offset": 0}, {"offset": -1}, {"limit": 0}])
def test_numbers_below_one_are_refused(tmp_path: Path, arguments: dict[str, int]) -> None:
    """Lines are counted from 1."""
    (tmp_path / "a").write_text("1\n")

    assert "offset is a line number from 1 on" in refused(tmp_path, "read", path="a", **arguments)


def test_an_offset_behind_the_end_says_where_the_end_is(tmp_path: Path) -> None:
    """The way out is in the answer."""
    (tmp_path / "a").write_text("1\n2\n")

    assert "past the end: a has 2 lines" in refused(tmp_path, "read", path="a", offset=9)


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    """An empty answer might be taken for a mistake."""
    (tmp_path / "a").touch()

    assert told(tmp_path, "read", path="a") == "[a is empty]"


def test_a_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    """A line that nobody wrote by hand does not fill the conversation."""
    (tmp_path / "a").write_text("x" * 5_000 + "\nend\n")

    first, second = told(tmp_path, "read", path="a").split("\n")

    assert first == "1\t" + "x" * 2_000 + "[... 3000 more characters]"
    assert second == "2\tend"


def test_a_missing_last_line_end_is_told(tmp_path: Path) -> None:
    """Whoever appends has to know."""
    (tmp_path / "a").write_text("1\n2")

    assert told(tmp_path, "read", path="a") == "1\t1\n2\t2\n[the last line has no line end]"


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (b"a\r\nb\r\n", "[line ends are CRLF; write and edit keep them, give plain line feeds]"),
        (b"a\r\nb\n", "[some line ends are CRLF, some LF; write and edit keep them, give plain line feeds]"),
        (b"\xef\xbb\xbfa\nb\n", "[the file is UTF-8 with a byte order mark]"),
        ("a\nb\n".encode("utf-16"), "[the file is UTF-16 with a byte order mark]"),
        ("a\nb\n".encode("utf-32"), "[the file is UTF-32 with a byte order mark]"),
        (b"\xfe\xff" + "a\nb\n".encode("utf-16-be"), "[the file is UTF-16 with a byte order mark]"),
    ],
)
def test_how_a_file_is_written_down_is_told(tmp_path: Path, data: bytes, note: str) -> None:
    """The text is the same whatever the bytes; what is special comes below it."""
    (tmp_path / "a").write_bytes(data)

    assert told(tmp_path, "read", path="a") == f"1\ta\n2\tb\n{note}"


def test_what_is_not_utf_8_is_shown_as_latin_1_and_said_to_be(tmp_path: Path) -> None:
    """Honest about a guess."""
    (tmp_path / "a").write_bytes("café\n".encode("latin-1"))

    assert told(tmp_path, "read", path="a") == "1\tcafé\n[the file is not UTF-8; it is shown as Latin-1]"


def test_a_character_across_two_pieces_is_whole(tmp_path: Path) -> None:
    """Where a read happens to end is not seen in the text."""
    (tmp_path / "a").write_text("x" * ((1 << 20) - 1) + "é\nend\n")

    assert told(tmp_path, "read", path="a", offset=2) == "2\tend\n[lines 2 to 2 of 2; this is the end]"
    assert "the file is not" not in told(tmp_path, "read", path="a", limit=1)


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0", "PNG image"),
        ("a.bin", b"\0\1\2", "application/octet-stream"),
        ("a", b"\x7fELF\0", "ELF program or library"),
        ("a.tar", b"x\0", "application/x-tar"),
        ("a", b"x\0", "unknown kind"),
    ],
)
def test_a_binary_file_is_named_and_not_shown(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    """What it is and how large: enough to decide what to do with it."""
    (tmp_path / name).write_bytes(data)

    assert told(tmp_path, "read", path=name) == (
        f"[{name} is a binary file ({kind}, {len(data)} bytes); it cannot be read as text]"
    )


def test_a_huge_file_costs_the_memory_of_a_page(tmp_path: Path) -> None:
    """A sparse file of 4 GiB and one line of 64 MiB are read in a few MiB."""
    with open(tmp_path / "huge", "wb") as file:
        file.write(b"first\n" * 20_000)
        file.seek(4 << 30)
        file.write(b"\n")
    (tmp_path / "line").write_bytes(b"x" * (64 << 20))
    tracemalloc.start()

    page = told(tmp_path, "read", path="huge", limit=3)
    line = told(tmp_path, "read", path="line")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert page.endswith(f"[lines 1 to 3 of more; the file has {(4 << 30) + 1} bytes; read on with offset 4]")
    assert line.startswith("1\txxx")
    assert peak < 16 << 20


def test_a_file_that_grows_while_it_is_read_comes_to_an_end(tmp_path: Path) -> None:
    """A log that is written faster than it is read is not read for ever."""
    line = b"x" * (1 << 20) + b"\n"
    (tmp_path / "a").write_bytes(line)

    seen = 0
    with open(tmp_path / "a", "rb", buffering=0) as file, open(tmp_path / "a", "ab", buffering=0) as writer:
        for _ in text_files.lines_of(file, UTF_8):
            seen += 1
            writer.write(line * 2)
            assert seen < 100

    assert seen > 1


# -- writing -------------------------------------------------------------------------------------


def test_a_new_file_comes_with_its_folders(tmp_path: Path) -> None:
    """The answer says that it is new, and how large."""
    assert told(tmp_path, "write", path="a/b/c.txt", content="é\n") == "Created a/b/c.txt (3 bytes)."
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"\xc3\xa9\n"


def test_a_new_file_has_the_mode_that_the_user_asks_for(tmp_path: Path) -> None:
    """The process's mask applies, as to any other file."""
    before = os.umask(0o027)
    try:
        told(tmp_path, "write", path="a", content="")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    """A script stays one."""
    (tmp_path / "a").write_text("old\n")
    (tmp_path / "a").chmod(0o751)

    assert told(tmp_path, "write", path="a", content="new!\n") == "Replaced a (5 bytes, 4 before)."
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o751


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        (b"a\r\nb\r\n", "1\n2\n", b"1\r\n2\r\n"),
        (b"a\r\n", "1\r\n2\r\n", b"1\r\n2\r\n"),
        (b"a\n", "1\r\n", b"1\r\n"),
        (b"\xef\xbb\xbfa\n", "1\n", b"\xef\xbb\xbf1\n"),
        (b"\xff\xfea\0\n\0", "1\n", b"\xff\xfe1\0\n\0"),
        (b"caf\xe9\n", "th\xe9\n", b"th\xe9\n"),
        (b"caf\xe9\n", "\u8336\n", "\u8336\n".encode()),
        (b"\0binary", "text\n", b"text\n"),
    ],
)
def test_a_replaced_file_is_written_down_as_before(tmp_path: Path, before: bytes, content: str, after: bytes) -> None:
    """Line ends, mark and encoding stay, as far as the new text can be said in them."""
    (tmp_path / "a").write_bytes(before)

    told(tmp_path, "write", path="a", content=content)

    assert (tmp_path / "a").read_bytes() == after


def test_a_write_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    """The draft is renamed, or gone."""
    (tmp_path / "folder").mkdir()
    told(tmp_path, "write", path="a", content="x")
    refused(tmp_path, "write", path="folder", content="x")

    assert sorted(os.listdir(tmp_path)) == ["a", "folder"]


def test_a_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    """A file is replaced, not written over: whoever has it open reads a whole one."""
    (tmp_path / "a").write_text("old")
    with open(tmp_path / "a") as file:
        told(tmp_path, "write", path="a", content="new")

        assert file.read() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is write-protected for root")
def test_a_write_protected_file_stays(tmp_path: Path) -> None:
    """The rename would succeed; the user has said no."""
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o444)

    assert "write-protected" in refused(tmp_path, "write", path="a", content="new")


def test_without_write_there_is_no_tool_that_writes(tmp_path: Path) -> None:
    """They are not declared, and not executed."""
    workspace = Workspace(tmp_path, write=False)

    (answer,) = workspace.execute_tool_calls([ToolRequest("1", "write", {"path": "a", "content": ""})])

    assert workspace.names == ("read", "list", "glob", "grep")
    assert answer.is_error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["", ".", "new/", "new/deep/"])
def test_a_folder_is_not_written_as_a_file(tmp_path: Path, path: str) -> None:
    """A slash at the end means a folder; nothing is made, and the answer says what to give."""
    assert "names a folder; give the path of a file" in refused(tmp_path, "write", path=path, content="x")
    assert os.listdir(tmp_path) == []


def test_another_name_of_a_replaced_file_keeps_what_it_had(tmp_path: Path) -> None:
    """A hard link is another file from then on: what it is linked to elsewhere is never written."""
    outside = tmp_path / "outside"
    outside.write_text("old")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a").hardlink_to(outside)

    told(tmp_path / "root", "edit", path="a", old="old", new="new")

    assert ((tmp_path / "root" / "a").read_text(), outside.read_text()) == ("new", "old")


REWRITE_FOR_EVER = """
import sys
from llm_agent.messages import ToolRequest
from llm_agent.tools import Workspace
workspace = Workspace(sys.argv[1])
while True:
    for letter in "ab":
        call = ToolRequest("1", "write", {"path": "file", "content": letter * int(sys.argv[2])})
        print(workspace.execute_tool_calls([call])[0].content, flush=True)
"""


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Never a half of one: a process that rewrites a file is killed in the middle of it, again and again."""
    size = 2_000_000
    for _ in range(3):
        command = [sys.executable, "-c", REWRITE_FOR_EVER, str(tmp_path), str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(3):  # some writes are whole; the next is under way
                process.stdout.readline()
            process.kill()
        text = (tmp_path / "file").read_text()
        assert (len(text), len(set(text))) == (size, 1)


# -- editing -------------------------------------------------------------------------------------


def test_an_edit_shows_what_changed(tmp_path: Path) -> None:
    """A diff with the lines around, by their real numbers."""
    (tmp_path / "a").write_text("".join(f"{number}\n" for number in range(1, 101)))

    answer = told(tmp_path, "edit", path="a", old="50\n", new="fifty\n")

    assert answer == "Replaced 1 place in a.\n@@ -47,7 +47,7 @@\n 47\n 48\n 49\n-50\n+fifty\n 51\n 52\n 53"
    assert (tmp_path / "a").read_text().splitlines()[49] == "fifty"


def test_a_text_that_occurs_more_than_once_is_not_replaced(tmp_path: Path) -> None:
    """How often, where, and the two ways out."""
    (tmp_path / "a").write_text("x = 1\ny = 1\nx = 1\n")

    answer = refused(tmp_path, "edit", path="a", old="x = 1", new="x = 2")

    assert "occurs 2 times in a, at lines 1, 3" in answer
    assert "replace_all" in answer
    assert (tmp_path / "a").read_text() == "x = 1\ny = 1\nx = 1\n"


def test_all_places_are_replaced_when_asked_for(tmp_path: Path) -> None:
    """`replace_all` says how many there were."""
    (tmp_path / "a").write_text("x x\nx\n")

    assert told(tmp_path, "edit", path="a", old="x", new="yy", replace_all=True).startswith("Replaced 3 places in a.")
    assert (tmp_path / "a").read_text() == "yy yy\nyy\n"


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("def f():\n  return 1", "only white space differs from line 2 on; the text there is\ndef f():\n    return 1"),
        ("def  f():", "only white space differs from line 2 on"),
        ("2\tdef f():\n3\t    return 1", "line numbers that read puts in front; leave them out"),
        ("def f():\n    return 2", "its first line is found at line 2, but what follows differs"),
        ("class C:", "nothing in it comes near; read it again"),
    ],
)
def test_a_text_that_does_not_occur_is_told_with_what_comes_nearest(tmp_path: Path, old: str, hint: str) -> None:
    """The model learns what to change in its call."""
    (tmp_path / "a").write_text("import os\ndef f():\n    return 1\n")

    assert hint in refused(tmp_path, "edit", path="a", old=old, new="x")


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("x", "x"), ("x\r\n", "x\n")])
def test_an_edit_that_changes_nothing_is_refused(tmp_path: Path, old: str, new: str) -> None:
    """An empty text is everywhere, and a text is not replaced by itself."""
    (tmp_path / "a").write_text("x\n")

    refused(tmp_path, "edit", path="a", old=old, new=new)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nb\r\nc\r\n", b"1\r\n2\r\nc\r\n"),
        (b"a\nb\nc\r\n", b"1\n2\nc\r\n"),
        (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbf1\n2\n"),
        ("a\nb\n".encode("utf-16"), "1\n2\n".encode("utf-16")),
        (b"a\nb\ncaf\xe9\n", b"1\n2\ncaf\xe9\n"),
        (b"a\nb", b"1\n2"),
    ],
)
def test_an_edit_leaves_the_rest_as_it_was(tmp_path: Path, before: bytes, after: bytes) -> None:
    """Line ends, mark, encoding, and a missing last line end: byte for byte."""
    (tmp_path / "a").write_bytes(before)

    told(tmp_path, "edit", path="a", old="a\nb", new="1\n2")

    assert (tmp_path / "a").read_bytes() == after


def test_half_of_a_line_end_is_not_replaced(tmp_path: Path) -> None:
    """A carriage return is found where it stands alone."""
    (tmp_path / "a").write_bytes(b"a\rb\r\n")

    told(tmp_path, "edit", path="a", old="\r", new="-")

    assert (tmp_path / "a").read_bytes() == b"a-b\r\n"


def test_bytes_that_are_no_text_survive_an_edit(tmp_path: Path) -> None:
    """Far behind the beginning by which a file is judged, too."""
    (tmp_path / "a").write_bytes(b"x\n" * 40_000 + b"\xff\xfe\n" + b"end\n")

    told(tmp_path, "edit", path="a", old="end", new="the end")

    assert (tmp_path / "a").read_bytes() == b"x\n" * 40_000 + b"\xff\xfe\n" + b"the end\n"


def test_a_text_that_nearly_fits_everywhere_takes_no_time(tmp_path: Path) -> None:
    """Finding takes linear time: no other thread moves while a text is searched."""
    (tmp_path / "a").write_bytes(b"x\r\n" * 1_000_000)
    begun = monotonic()

    refused(tmp_path, "edit", path="a", old="x\n" * 10_000 + "y", new="z")

    assert monotonic() - begun < 5  # by a regular expression: minutes


def test_a_damaged_file_is_not_edited(tmp_path: Path) -> None:
    """Half of a UTF-16 character cannot be kept as it was."""
    (tmp_path / "a").write_bytes(b"\xff\xfea\0b\0c")

    assert "damaged UTF-16" in refused(tmp_path, "edit", path="a", old="a", new="b")
    assert (tmp_path / "a").read_bytes() == b"\xff\xfea\0b\0c"


def test_no_edit_of_many_at_once_is_lost(tmp_path: Path) -> None:
    """Who comes too late is told to read again; whoever was told "replaced" is in the file."""
    (tmp_path / "a").write_text("".join(f"{name} 0\n" for name in "abc"))
    workspace = Workspace(tmp_path)

    def count(name: str) -> None:
        done = 0
        while done < 100:
            arguments = {"path": "a", "old": f"{name} {done}\n", "new": f"{name} {done + 1}\n"}
            (answer,) = workspace.execute_tool_calls([ToolRequest("1", "edit", arguments)])
            if answer.is_error and "was changed by somebody else meanwhile" not in str(answer.content):
                return
            done += not answer.is_error

    threads = [threading.Thread(target=count, args=(name,)) for name in "abc"]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they do come between each other
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
    finally:
        sys.setswitchinterval(usual)

    assert (tmp_path / "a").read_text() == "a 100\nb 100\nc 100\n"


def test_a_character_that_the_encoding_lacks_is_refused(tmp_path: Path) -> None:
    """The file is as it was, and the answer names the character."""
    (tmp_path / "a").write_bytes(b"caf\xe9\n")

    assert "Latin-1, which has no '\u8336'" in refused(tmp_path, "edit", path="a", old="caf", new="\u8336")
    assert (tmp_path / "a").read_bytes() == b"caf\xe9\n"


@pytest.mark.parametrize("data", [b"\0x", b"\x89PNG\r\n\x1a\n\0x"])
def test_a_binary_file_is_not_edited(tmp_path: Path, data: bytes) -> None:
    """Whatever text may stand in it."""
    (tmp_path / "a").write_bytes(data)

    assert "binary file" in refused(tmp_path, "edit", path="a", old="x", new="y")


def test_a_file_too_large_to_edit_is_refused(tmp_path: Path) -> None:
    """Before anything of it is read."""
    with open(tmp_path / "a", "wb") as file:
        file.truncate(1 << 30)

    assert "are not edited here" in refused(tmp_path, "edit", path="a", old="x", new="y")


def test_a_file_that_somebody_else_changed_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """Between the reading and the writing of an edit, another's work is not lost."""
    from llm_agent.tools.workspace.confinement import Root

    file = tmp_path / "a"
    file.write_text("one")
    with Root(tmp_path).place("a") as place:
        seen = place.status()
        file.write_text("another's")
        with pytest.raises(OSError, match="changed by somebody else"):
            place.replace(b"ours", seen)

    assert file.read_text() == "another's"
    assert os.listdir(tmp_path) == ["a"]


TEXTS = st.text(st.sampled_from("ab \t\r\né茶\U0001f389"), max_size=40)


@example(before="\r\n", old="\r", new="a", mark="utf-8")
@given(before=TEXTS, old=TEXTS.filter(bool), new=TEXTS, mark=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
def test_an_edit_is_a_replacement_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, before: str, old: str, new: str, mark: str
) -> None:
    """For texts without CRLF: exactly `str.replace`, in any encoding; with them, no other line end changes."""
    root = tmp_path_factory.getbasetemp()
    (root / "edited").write_bytes(before.encode(mark))
    request = ToolRequest("1", "edit", {"path": "edited", "old": old, "new": new, "replace_all": True})
    (answer,) = Workspace(root).execute_tool_calls([request])

    after = (root / "edited").read_bytes().decode(mark)
    if answer.is_error:
        assert after == before
    elif "\r" not in before + old + new:
        assert after == before.replace(old, new)
    else:
        plain = [text.replace("\r\n", "\n") for text in (before, old, new, after)]
        assert plain[0].replace(plain[1], plain[2]).replace("\r", "") == plain[3].replace("\r", "")
