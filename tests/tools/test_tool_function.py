"""`@tool` and what can be one."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from llm_agent.call_context import ToolCallContext, current_call
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.testing.tools import call_context
from llm_agent.tools import Toolbox, tool


def called(function: Callable[..., Any], /, **arguments: Any) -> ToolAnswer:
    box = Toolbox([function])
    return box.execute_tool_calls([ToolRequest("c1", box.names[0], arguments)])[0]


class Folder:
    """A folder with tools as methods."""

    def __init__(self, root: str) -> None:
        self.root = root

    @tool
    def locate(self, name: str) -> str:
        """Locate a file."""
        return f"{self.root}/{name}"

    @tool(name="remove_file", idempotency="destructive")
    def remove(self, name: str) -> str:
        return f"removed {self.root}/{name}"

    @tool(name="outer_static")
    @staticmethod
    def above(name: str) -> str:
        return name

    @staticmethod
    @tool(name="inner_static")
    def below(name: str) -> str:
        return name

    @tool
    @classmethod
    def kind(cls, name: str) -> str:
        return cls.__name__ + name

    def plain(self, name: str) -> str:
        return name


def test_a_tool_is_still_the_function() -> None:
    """The decorator returns the very object it was given."""

    def double(n: int) -> int:
        return 2 * n

    assert tool(double) is double
    assert tool(name="twice", description="x", idempotency="idempotent")(double) is double
    assert double(4) == 8


def test_options_reach_the_declaration() -> None:
    """Name and description as told."""

    @tool(name="twice", description="Double it.")
    def double(n: int) -> int:
        """Something else."""
        return 2 * n

    declaration = Toolbox([double]).tools_for_llm()[0]

    assert declaration["type"] == "function"
    assert declaration["function"]["name"] == "twice"
    assert declaration["function"]["description"] == "Double it."


def test_bound_methods_are_tools() -> None:
    """Marked or not, each works on its own object."""
    one, other = Folder("a"), Folder("b")

    assert called(one.locate, name="f").content == "a/f"
    assert called(other.locate, name="f").content == "b/f"
    assert called(one.remove, name="f").content == "removed a/f"
    assert called(one.plain, name="f").content == "f"
    assert Toolbox([one.locate, one.remove]).names == ("locate", "remove_file")
    assert tool(one.plain)("x") == "x"


def test_static_and_class_methods_are_tools() -> None:
    """In either order of the decorators."""
    assert Toolbox([Folder.above, Folder.below]).names == ("outer_static", "inner_static")
    assert called(Folder.above, name="x").content == "x"
    assert called(Folder.kind, name="x").content == "Folderx"


def test_a_method_without_its_object_is_refused() -> None:
    """The error says to hand over the bound method."""
    with pytest.raises(ConfigError, match="bound method"):
        Toolbox([Folder.locate])


def test_partials_are_tools() -> None:
    """With the name and docstring of what they bind, or with options of their own."""

    def search(root: str, query: str) -> str:
        """Search."""
        return f"{root}:{query}"

    assert called(functools.partial(search, "here"), query="q").content == "here:q"
    assert called(functools.partial(search, root="there"), query="q").content == "there:q"
    named = tool(name="find")(functools.partial(search, "here"))
    assert Toolbox([named]).names == ("find",)


def test_what_a_partial_has_bound_cannot_be_overruled() -> None:
    """Not even by way of `**options`."""

    def search(query: str, root: str = "/", **options: Any) -> str:
        raise AssertionError("executed with the model's root")

    answer = called(functools.partial(search, root="safe"), query="q", root="/etc")

    assert answer.is_error
    assert "- root: this name cannot be used" in answer.content


def test_objects_that_can_be_called_are_tools() -> None:
    """Named by their class; documented by it or by `__call__`."""

    class lookup:
        """Look something up."""

        def __call__(self, key: str) -> str:
            return key.upper()

    declaration = Toolbox([lookup()]).tools_for_llm()[0]["function"]

    assert declaration["name"] == "lookup"
    assert declaration["description"] == "Look something up."
    assert called(lookup(), key="a").content == "A"


def test_wrapped_functions_keep_their_parameters() -> None:
    """A decorator that uses functools.wraps is looked through."""

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return f"logged {function(*args, **kwargs)}"

        return wrapper

    @logged
    @tool(name="renamed")
    def greet(who: str) -> str:
        return f"hello {who}"

    assert Toolbox([greet]).names == ("renamed",)
    assert called(greet, who="you").content == "logged hello you"


async def coroutine() -> None: ...


async def generator() -> AsyncIterator[int]:
    yield 1


class AsyncCallable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "function", [coroutine, generator, AsyncCallable(), functools.partial(coroutine), staticmethod(coroutine)]
)
def test_asynchronous_functions_are_refused(function: Any) -> None:
    """However they are dressed up."""
    with pytest.raises(ConfigError, match="asynchronous"):
        tool(function)


@pytest.mark.parametrize("thing", [Folder, 5, "read_file", int])
def test_what_is_no_function_is_refused(thing: Any) -> None:
    """Classes too: calling one makes an object, not an answer."""
    with pytest.raises(ConfigError, match="tool"):
        tool(thing)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": "no spaces"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": ""}, "name"),
        ({"description": 5}, "description"),
        ({"idempotency": "maybe"}, "idempotency"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], word: str) -> None:
    """At the decorator, naming the option."""
    with pytest.raises(ConfigError, match=word):
        tool(**options)


def test_a_function_whose_name_is_illegal_needs_one() -> None:
    """A lambda is not nameless, but no vendor takes its name."""
    with pytest.raises(ConfigError, match=r"@tool\(name=\.\.\.\)"):
        Toolbox([lambda: None])

    assert Toolbox([tool(name="nothing")(lambda: None)]).names == ("nothing",)


def test_options_on_a_bound_method_are_refused() -> None:
    """They would be lost: a bound method is made anew each time."""
    with pytest.raises(ConfigError, match="cannot carry options"):
        tool(name="x")(Folder("a").plain)


def test_the_context_is_injected() -> None:
    """A parameter annotated ToolCallContext gets the current call's."""
    seen: list[ToolCallContext | None] = []

    def look(name: str, ctx: ToolCallContext, maybe: ToolCallContext | None) -> None:
        seen.extend([ctx, maybe, current_call()])

    box = Toolbox([look])
    with call_context(id="group", name="other", data="mine"):
        box.execute_tool_calls([ToolRequest("c7", "look", {"name": "x"})])

    assert all(context is seen[0] for context in seen)
    assert seen[0] is not None
    assert (seen[0].id, seen[0].name, seen[0].data) == ("c7", "look", "mine")


def test_a_required_context_needs_a_run() -> None:
    """Outside of a call an optional one is None, a required one an error answer."""

    def optional(ctx: ToolCallContext | None) -> str:
        return str(ctx)

    def required(ctx: ToolCallContext) -> None:
        raise AssertionError("executed without a context")

    assert called(optional).content == "None"
    assert "ToolCallContext" in called(required).content
    assert called(required).is_error


def test_the_model_cannot_fill_the_context() -> None:
    """Its name is no argument."""

    def look(ctx: ToolCallContext | None, **more: Any) -> str:
        return str(ctx)

    answer = called(look, ctx={"id": "forged"})

    assert answer.is_error
    assert "- ctx: this name cannot be used" in answer.content


def test_generators_are_walked_inside_the_call() -> None:
    """Text is joined, anything else is a list, and an exception on the way is the tool's."""

    def lines() -> Iterator[str]:
        yield "a"
        yield "b"

    def numbers() -> Iterator[int]:
        yield from (1, 2)

    def broken() -> Iterator[str]:
        yield "a"
        raise RuntimeError("half way")

    assert called(lines).content == "ab"
    assert called(numbers).content == "[1,2]"
    assert called(broken) == ToolAnswer("c1", "RuntimeError: half way", is_error=True)


def test_a_coroutine_that_is_returned_is_an_error() -> None:
    """It is closed, so that nobody is warned about it."""

    def hidden() -> Any:
        return coroutine()

    assert called(hidden).is_error
    assert "coroutine" in called(hidden).content
