"""The pieces of a system prompt, to the character."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from llm_agent.errors import ConfigError
from llm_agent.prompt import assemble, env_block, instructions_from_files, looked_up, tool_docs

# -- joining --------------------------------------------------------------------------------


def test_parts_are_joined_by_one_blank_line() -> None:
    """White space at the end of a part is cut, at its beginning kept; nothing and blanks are left out."""
    message = assemble("You are.  \n\n", ["  one\n", None, "", " \n ", "two"])

    assert message.text == "You are.\n\n  one\n\ntwo"


def test_the_result_is_a_pinned_system_message() -> None:
    """Compaction keeps it."""
    message = assemble("You are.")

    assert (message.role, message.sysprompt, message.sticky, message.text) == ("system", True, True, "You are.")


@pytest.mark.parametrize("identity", ["", " \n\t", None, 7])
def test_an_identity_that_says_nothing_is_refused(identity: Any) -> None:
    """A prompt without one is a mistake."""
    with pytest.raises(ConfigError, match="identity must be text that is not blank"):
        assemble(identity)


@pytest.mark.parametrize("sections", ["one text", [7], [b"x"]])
def test_sections_that_are_no_list_of_texts_are_refused(sections: Any) -> None:
    """A bare text would be joined letter by letter."""
    with pytest.raises(ConfigError, match=r"prompt\.assemble: (sections|a section) must be"):
        assemble("You are.", sections)


# -- the machine ----------------------------------------------------------------------------


def test_the_machine_is_described_in_three_lines() -> None:
    """Heading, blank line, bullets; no working directory, nothing else inferred."""
    lines = env_block().split("\n")

    assert lines[:2] == ["## Environment", ""]
    assert [line.split(": ")[0] for line in lines[2:]] == ["- platform", "- os", "- date"]
    assert f"({os.uname().machine})" in lines[2]
    assert datetime.fromisoformat(lines[4].removeprefix("- date: "))


def test_extras_follow_sorted_by_key() -> None:
    """Whatever order they were given in."""
    lines = env_block({"shell": "zsh", "branch": "main"}).split("\n")

    assert lines[5:] == ["- branch: main", "- shell: zsh"]


def test_an_extra_named_like_a_line_takes_its_place() -> None:
    """The order stays."""
    lines = env_block({"os": "Plan 9", "a": 1}).split("\n")

    assert lines[3] == "- os: Plan 9"
    assert len(lines) == 6


def test_none_leaves_a_line_out_and_zero_does_not() -> None:
    """Also a line of the machine: a prompt without a date can be cached for longer."""
    block = env_block({"date": None, "gone": None, "zero": 0, "no": False, "empty": ""})

    assert "date" not in block
    assert "gone" not in block
    assert block.endswith("- empty: \n- no: False\n- zero: 0")


def test_what_cannot_be_looked_up_is_unknown() -> None:
    """A machine that does not tell costs no prompt."""

    def fail() -> str:
        raise OSError("no such file")

    assert looked_up(fail) == "unknown"
    assert looked_up(lambda: " ") == "unknown"
    assert looked_up(lambda: "Linux ") == "Linux"


# -- tools ----------------------------------------------------------------------------------


def declared(name: Any = "read", description: Any = None, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def with_parameters(properties: Any, required: Any = ()) -> str:
    return tool_docs([declared(parameters={"type": "object", "properties": properties, "required": list(required)})])


@pytest.mark.parametrize(
    "tools", [[], [7], [None], [{}], [declared("")], [declared("  ")], [{"function": "x"}]], ids=str
)
def test_no_tool_is_no_text(tools: list[Any]) -> None:
    """Malformed entries are no tools."""
    assert tool_docs(tools) == ""


def test_tools_are_blocks_in_the_order_given() -> None:
    """Name, description, parameters; required first in the schema's order, the rest by name."""
    write = declared(
        "write",
        " Write a file. \n",
        {
            "type": "object",
            "properties": {
                "mode": {"type": ["string", "null"], "description": " octal "},
                "text": {"type": "string"},
                "path": {"type": "string", "description": "where"},
                "append": {"type": "boolean"},
            },
            "required": ["path", "text", "path", "ghost", 7],
        },
    )

    assert tool_docs([write, None, declared("now")]) == (
        "## Tools\n\n"
        "### write\nWrite a file.\n\n"
        "Parameters:\n"
        "- path (string, required) - where\n"
        "- text (string, required)\n"
        "- append (boolean)\n"
        "- mode (string|null) - octal\n\n"
        "### now\n\n"
        "Takes no arguments."
    )


@pytest.mark.parametrize("parameters", [None, 7, [], {}, {"properties": {}}, {"properties": [1]}], ids=str)
def test_no_parameters_are_said_so(parameters: Any) -> None:
    """Whatever stands in their place."""
    assert tool_docs([declared(parameters=parameters)]) == "## Tools\n\n### read\n\nTakes no arguments."


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": ["integer", "string"]}, "integer|string"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "string"}]}, "string|null"),
        ({"oneOf": [{"type": "string"}, {"const": 1}]}, "string|any"),
        ({"enum": ["a"]}, "any"),
        ({"type": []}, "any"),
        ({}, "any"),
        (True, "any"),
    ],
    ids=str,
)
def test_a_type_is_named_and_a_union_joined(schema: Any, kind: str) -> None:
    """Where the schema does not say, anything goes."""
    assert with_parameters({"x": schema}).endswith(f"\n- x ({kind})")


@pytest.mark.parametrize("required", ["x", 7, {"x": 1}, None])
def test_a_malformed_list_of_required_names_requires_nothing(required: Any) -> None:
    """A text is not a list of its letters."""
    text = tool_docs([declared(parameters={"properties": {"x": {"type": "string"}}, "required": required})])

    assert text.endswith("- x (string)")


def test_a_bare_function_part_is_understood() -> None:
    """Some servers' tool lists come without the wrapping."""
    assert tool_docs([{"name": "now"}]) == tool_docs([declared("now")])


# -- instruction files ----------------------------------------------------------------------


def test_files_are_quoted_under_their_names_in_the_order_given(tmp_path: Path) -> None:
    """Missing files and folders are left out, an empty file is its heading."""
    (tmp_path / "b.md").write_text("second \n\n")
    (tmp_path / "a.md").write_text("  first\n")
    (tmp_path / "empty.md").write_text(" \n")
    paths = [tmp_path / "b.md", tmp_path / "missing.md", tmp_path, str(tmp_path / "a.md"), tmp_path / "empty.md"]

    assert instructions_from_files(paths) == "## b.md\n\nsecond\n\n## a.md\n\n  first\n\n## empty.md"


def test_no_files_are_no_text(tmp_path: Path) -> None:
    """So the result can be given to `assemble` as it is."""
    assert instructions_from_files([]) == instructions_from_files([tmp_path / "missing.md"]) == ""


def test_a_byte_order_mark_and_line_ends_of_windows_are_no_text(tmp_path: Path) -> None:
    """Editors add them; models need not see them."""
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")

    assert instructions_from_files([tmp_path / "a.md"]) == "## a.md\n\none\ntwo"


def test_a_file_that_is_no_utf8_raises(tmp_path: Path) -> None:
    """Rules that were meant to hold do not vanish silently; the path is named."""
    (tmp_path / "a.md").write_bytes(b"caf\xe9")

    with pytest.raises(ConfigError, match=r"cannot read '.*a\.md'") as raised:
        instructions_from_files([tmp_path / "a.md"])
    assert isinstance(raised.value.__cause__, UnicodeDecodeError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_raises(tmp_path: Path) -> None:
    """There, but not readable: not the same as missing."""
    (tmp_path / "a.md").write_text("x")
    (tmp_path / "a.md").chmod(0)

    with pytest.raises(ConfigError, match=r"cannot read '.*a\.md'") as raised:
        instructions_from_files([tmp_path / "a.md"])
    assert isinstance(raised.value.__cause__, OSError)
