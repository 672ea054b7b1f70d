"""What every tool provider that wraps another one does alike: a layer of the stack.

The law: n calls in, n answers out, answer i for call i, and nothing raised but the user's own
Ctrl-C; what the provider behind a layer does instead becomes answers here, and only here. What a
layer is for (prefixes, permissions, reasons) does not live here; the loop reads answers with the
same functions.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs

from llm_agent import codec, notices
from llm_agent.call_context import current_call, is_given_up
from llm_agent.canonical import data_digest
from llm_agent.errors import ConfigError
from llm_agent.messages import ToolAnswer, ToolRequest
from llm_agent.ports import ToolDeclaration, ToolProvider
from llm_agent.slot import walked

METHODS: Final = ("tools_for_llm", "execute_tool_calls")
OPTIONAL_PARTS: Final = ("grants", "idempotency_of")
"""What a provider may have besides; a layer has each of them where the provider behind it has."""

LINE_CHARS: Final = 2_000
"""Characters of the first line of an error, or of another text without a bound of its own, that are shown."""

# Outside of a run, nobody cancels.
_NEVER: Final = threading.Event()
# A schema with one of these may have properties in any of its parts.
_COMPOSING: Final = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})


def checked_provider(value: Any, owner: str) -> ToolProvider:
    """Return *value*, which has both methods of a provider.

    Args:
        owner: whose argument it is, for the error: `Reasons`, `tools[2]`.

    Raises:
        ConfigError: a class, half a provider, or something else altogether; names what came.
    """
    kind = type(value).__name__
    present = [method for method in METHODS if callable(getattr(value, method, None))]
    if isinstance(value, type):
        raise ConfigError(f"{owner}: {value.__qualname__} is a class; hand over an object of it")
    if not present:
        way_out = "; `llm_agent.tools.stacked` makes one of a list" if isinstance(value, list | tuple) else ""
        raise ConfigError(f"{owner}: expected a tool provider ({'() and '.join(METHODS)}()), got {kind}{way_out}")
    if len(present) == 1:
        missing = next(method for method in METHODS if method not in present)
        raise ConfigError(f"{owner}: a provider needs {missing}() too; {kind} has only {present[0]}()")
    return cast("ToolProvider", value)


class Layer:
    """A provider in front of another one, with the optional parts that the other one has.

    A subclass that has such a part of its own simply defines it.
    """

    def __init__(self, provider: ToolProvider) -> None:
        self._provider = checked_provider(provider, type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        if name in OPTIONAL_PARTS:
            return getattr(self._provider, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Several:
    """Providers side by side: with the grants of all of them while one of them has any.

    The port looks for `grants` anew each time, and so does this.
    """

    def _members(self) -> Iterable[ToolProvider]:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name == "grants" and any(callable(getattr(member, name, None)) for member in self._members()):
            return self._grants
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _grants(self) -> list[Any]:
        return joined(grants_told_by(member) for member in self._members())


def let_ctrl_c_pass(failure: BaseException) -> None:
    """Raise *failure* again where it is the user's Ctrl-C, the one thing that no layer stops.

    On another thread than the main one somebody's code has raised it itself: a failure like any
    other. So is `SystemExit`, and whatever else is no `Exception`: a tool must not end its caller.
    """
    if isinstance(failure, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise failure


# -- calls, on the way in ------------------------------------------------------------------


def requests_of(calls: Iterable[Any]) -> list[ToolRequest]:
    """Return *calls* typed: a `ToolRequest` as the same object, a mapping read, all else without a name."""
    return [_request(call) for call in calls]


def _request(raw: Any) -> ToolRequest:
    try:
        return ToolRequest.from_raw(raw)
    except BaseException as failure:  # a shield: a foreign mapping may raise while it is read
        let_ctrl_c_pass(failure)
        return ToolRequest("", "")


def arguments_of(call: ToolRequest) -> dict[str, Any] | None:
    """Return the arguments, or `None` where they are no JSON object: nothing is known of such a call."""
    try:
        return call.args
    except ValueError:
        return None


def unreadable(call: ToolRequest) -> ToolAnswer | None:
    """Return the answer to a call that no provider is asked; `None` for one with a name and readable arguments."""
    if not call.name:
        return refused(call, notices.NAMELESS_CALL)
    try:
        _ = call.args
    except ValueError as problem:
        return refused(call, notices.BAD_ARGUMENTS.format(problem=problem))
    return None


# -- answers, on the way out ---------------------------------------------------------------


def forwarded(provider: ToolProvider, calls: Sequence[ToolRequest], owner: str) -> list[ToolAnswer]:
    """Have *provider* run *calls*, the very same objects, and return one answer per call, in order.

    Args:
        owner: who stands in front of the provider, for the answer that says it failed.

    Returns:
        A `ToolAnswer` under the right id as the provider gave it; other shapes read, other ids
        corrected, missing answers and those of a provider that raised as errors. Without calls,
        and once the call at hand is cancelled, the provider is not asked.

    Raises:
        Nothing, but for Ctrl-C on the main thread.
    """
    if not calls:
        return []
    if is_given_up():
        return [refused(call, notices.ABANDONED_CANCELLED) for call in calls]
    try:
        results = results_of(provider, calls)
    except BaseException as failure:  # the contract: a layer does not raise, whatever is behind it
        let_ctrl_c_pass(failure)
        text = notices.PROVIDER_BEHIND_RAISED.format(owner=owner, failure=first_line_of(failure))
        return [refused(call, text) for call in calls]
    answers = paired([call.id for call in calls], results)
    return [_addressed(call, answer) for call, answer in zip(calls, answers, strict=True)]


def refused(call: ToolRequest, text: str, **facts: Any) -> ToolAnswer:
    """Return the error answer to *call* that says *text*; *facts*, if any, are its `structured["denied"]`."""
    return ToolAnswer(call.id, text, is_error=True, structured={"denied": facts} if facts else None)


def results_of(provider: ToolProvider, calls: Sequence[ToolRequest]) -> list[Any]:
    """Return what *provider* gives for *calls*, walked to its end on this thread, as it came.

    Raises:
        Whatever the provider raises.
    """
    results: Any = _at_once(provider.execute_tool_calls(list(calls)), "execute_tool_calls")
    # A lone answer is what a provider of one call is likely to return by mistake.
    if isinstance(results, str | bytes | Mapping | ToolAnswer):
        return [results]
    context = current_call()
    is_over = _NEVER if context is None else context.cancelled
    # What comes after twice as many answers as calls is surplus, whatever its ids, and not kept.
    most = 2 * len(calls)
    kept: list[Any] = []
    for result in walked(results, is_over):
        if len(kept) < most:
            kept.append(result)
    return kept


def _at_once(value: Any, method: str) -> Any:
    """What a provider returned, and has not only promised."""
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"{method}() returned a coroutine; a provider works on the thread that calls it")
    return value


def paired(ids: Sequence[str], results: Sequence[Any]) -> list[ToolAnswer | None]:
    """Return an answer, or `None`, for each call: by id first, what is left by position.

    Args:
        ids: the calls', in their order. One that several calls share says nothing.
        results: what the provider gave. A result without an id, or under a foreign one, is left
            to its position; a surplus one goes nowhere.
    """
    given = [answer_read(result) for result in results]
    if len(ids) == len(given) == 1:
        return [*given]
    chosen: list[ToolAnswer | None] = [None] * len(ids)
    spare: dict[int, ToolAnswer | None] = dict(enumerate(given))
    uses = Counter(ids)
    places = {call_id: place for place, call_id in enumerate(ids) if call_id and uses[call_id] == 1}
    for index, answer in enumerate(given):
        place = None if answer is None else places.pop(answer.tool_call_id, None)
        if place is not None:
            chosen[place] = spare.pop(index)
    return [spare.pop(place, None) if answer is None else answer for place, answer in enumerate(chosen)]


def answer_read(result: Any) -> ToolAnswer | None:
    """Return what a provider gave for one call, whatever its shape; `None` where it gave nothing. Never raises.

    The id is the provider's, `""` where it named none.
    """
    try:
        return _read(result)
    except BaseException as error:  # a shield: an answer that cannot be read is one that says so
        let_ctrl_c_pass(error)
        return ToolAnswer("", notices.PROVIDER_RAISED.format(failure=first_line_of(error)), is_error=True)


def first_line_of(error: BaseException) -> str:
    """The first line of an error, cut where it is endless: a traceback in a message is not for the model."""
    return shortened(next(iter(codec.error_text(error).splitlines()), ""))


def shortened(text: str, most: int = LINE_CHARS) -> str:
    """*text*, cut where it has more than *most* characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def _read(result: Any) -> ToolAnswer | None:
    match result:
        case None:
            return None
        case ToolAnswer():
            is_error, is_unknown = _is_true(result.is_error), _is_true(result.outcome_unknown)
            if result.is_error is is_error and result.outcome_unknown is is_unknown:
                return result
            return attrs.evolve(result, is_error=is_error, outcome_unknown=is_unknown)
        case Mapping():
            call_id = result.get("tool_call_id")
            return ToolAnswer(
                codec.text_of(call_id) if call_id else "",
                _text(result.get("content")),
                is_error=_is_true(result.get("is_error")),
                structured=result.get("structured", result.get("structured_content")),
                outcome_unknown=_is_true(result.get("outcome_unknown")),
            )
        case _:
            return ToolAnswer("", _text(result))


def _is_true(value: Any) -> bool:
    """Whether an answer says so: that it is an error, that its outcome is unknown; what will not say does not."""
    try:
        return bool(value)
    except Exception:  # a shield: arrays, for one, have no truth
        return False


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "replace")
        case Mapping() | list() | tuple():
            return codec.dumps(value).decode()
        case _:
            return codec.text_of(value)


def _addressed(call: ToolRequest, answer: ToolAnswer | None) -> ToolAnswer:
    """*answer* under the call's own id, the same object where it is so already."""
    if answer is None:
        return ToolAnswer(call.id, notices.NO_RESULT, is_error=True)
    return answer if answer.tool_call_id == call.id else attrs.evolve(answer, tool_call_id=call.id)


# -- the catalogue, and the optional parts -------------------------------------------------


def declarations_of(provider: ToolProvider) -> list[ToolDeclaration]:
    """Return what *provider* declares, the very same objects.

    Raises:
        Whatever the provider raises: a shorter catalogue would be a lie.
    """
    return list(_at_once(provider.tools_for_llm(), "tools_for_llm") or ())


def declared_name(declaration: Any) -> str | None:
    """The name in a declaration; `None` for one that is unreadable, which layers pass on untouched."""
    name = _function_in(declaration).get("name")
    return name if isinstance(name, str) and name else None


def _function_in(declaration: Any) -> Mapping[str, Any]:
    function = declaration.get("function") if isinstance(declaration, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def declared_parameters(declaration: Any) -> Mapping[str, Any] | None:
    """The schema of the arguments, where it says by itself what they are.

    `None` for one that is not an object's, or is put together from others (`$ref`, `allOf`, ...).
    """
    parameters = _function_in(declaration).get("parameters")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        return None
    if not isinstance(parameters.get("properties", {}), Mapping) or not _COMPOSING.isdisjoint(parameters):
        return None
    return parameters


def declared_keys(declaration: Any) -> frozenset[str] | None:
    """The names of the arguments that a declaration has; `None` where it does not say by itself which there are."""
    parameters = declared_parameters(declaration)
    return None if parameters is None else frozenset(map(str, parameters.get("properties") or ())) or None


def declared_names(provider: ToolProvider) -> list[str]:
    """Return the names that *provider* declares, in its order.

    Raises:
        Whatever the provider raises.
    """
    names = map(declared_name, declarations_of(provider))
    return [name for name in names if name is not None]


def grants_of(provider: ToolProvider) -> list[Any] | None:
    """Return the grants that *provider* lists; `None` for one that has no such part.

    Raises:
        Whatever the provider raises.
    """
    grants = getattr(provider, "grants", None)
    return list(grants() or ()) if callable(grants) else None


def grants_told_by(provider: ToolProvider) -> list[Any]:
    """Return what `grants_of` does; `[]` for a provider without that part, or one that raises: others keep theirs."""
    try:
        return grants_of(provider) or []
    except Exception:  # a shield, by the contract of the port
        return []


def joined(books: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the grants of several *books* in order, without those that an earlier book has.

    Policies of one transcript all begin with its grants: listed twice, they would double from run to run.
    """
    listed: list[Any] = []
    known: set[str] = set()
    for book in books:
        digests = [data_digest(grant) for grant in book]
        listed += [grant for grant, digest in zip(book, digests, strict=True) if digest not in known]
        known.update(digests)
    return listed
