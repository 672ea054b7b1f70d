"""What of a trace is compared: ids become places, times and the engine's wording placeholders.

Pure functions on plain data. The law: only what the engine itself said is masked, and only
into a placeholder that names what was said; what a script said stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from llm_agent import notices
from llm_agent.loop.state import LOGGER

_CHAIN: Final = "every backend failed: "
_NOTICES: Final = (
    (notices.LIMIT, "<notice:limit>"),
    (notices.ABANDONED_CANCELLED, "<notice:abandoned-cancelled>"),
    (notices.UNKNOWN_CANCELLED, "<notice:unknown-cancelled>"),
    (notices.UNKNOWN_DEADLINE, "<notice:unknown-deadline>"),
    (notices.ABANDONED_DEADLINE, "<notice:abandoned-deadline>"),
    (notices.PROVIDER_RAISED, "<notice:provider-raised>"),
    (notices.NO_RESULT, "<notice:no-result>"),
    (notices.BAD_ARGUMENTS, "<notice:bad-call>"),
    (notices.NAMELESS_CALL, "<notice:bad-call>"),
)
_SUMMARY_HEADER: Final = f"{notices.SUMMARY_HEADER}\n"

# What our events say beyond the original's.
_OURS: Final = {
    "ask-pending": ("ask-id", "call-id"),
    "ask-answered": ("ask-id", "call-id"),
    "attempt-failed": ("retry-after",),
    "run-cancelled": ("reason",),
    "compaction-done": ("aged", "error"),
}


def _pattern(notice: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w+\}", notice)
    return re.compile(".*".join(map(re.escape, parts)), re.DOTALL)


_PLACEHOLDERS: Final = tuple((_pattern(notice), placeholder) for notice, placeholder in _NOTICES)
_TRIM_NOTE: Final = _pattern(notices.SUMMARY_UNREACHABLE)


def masked_content(content: Any) -> Any:
    """Return what a tool or system message says, a notice of the engine as its placeholder."""
    if isinstance(content, str):
        for pattern, placeholder in _PLACEHOLDERS:
            if pattern.fullmatch(content):
                return placeholder
    return content


def masked_summary(content: Any) -> Any:
    """Return what stands for earlier turns with the engine's part masked; the summary itself is the model's."""
    if not isinstance(content, str) or not content.startswith(_SUMMARY_HEADER):
        return content
    notes = content.removeprefix(_SUMMARY_HEADER)
    return "<notice:compaction-fallback>" if _TRIM_NOTE.fullmatch(notes) else f"<summary-header>\n{notes}"


def masked_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the engine's words masked; what users and models say is never among them."""
    match message["role"]:
        case "tool" | "system":
            return {**message, "content": masked_content(message["content"])}
        case "user":
            return {**message, "content": masked_summary(message["content"])}
        case _:
            return dict(message)


@attrs.frozen
class Masks:
    """The placeholders of one scenario."""

    errors: frozenset[str]
    """Every error message that a backend of the scenario was told to give."""
    ids: Mapping[str, str]
    """Envelope id to `e<line>`."""
    runs: Mapping[str, str]
    """Run id to `<run:n>`."""
    has_flat_counter: bool

    def id(self, envelope_id: str) -> str:
        return self.ids.get(envelope_id, "<unknown-id>")

    # -- events and results ----------------------------------------------------------------

    def events(self, events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the events of one run, in order, as traces show them."""
        told = []
        is_worded = False
        for event in events:
            masked = self._event(event)
            if not self.has_flat_counter:
                masked = _without_tokens(masked, is_worded)
            is_worded = is_worded or _has_engine_words(masked)
            told.append(masked)
        return told

    def _event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        dropped = {"ts", "run-id", "seq", *_OURS.get(event["kind"], ())}
        told = {key: value for key, value in event.items() if key not in dropped}
        for key in ("backoff", "latency-ms"):
            if key in told:
                told[key] = "<number>"
        if "message-id" in told:
            told["message-id"] = self.id(told["message-id"])
        match told["kind"]:
            case "tool-result":
                told["content"] = masked_content(told["content"])
            case "compaction-done" if "summary" in told:
                told["summary"] = masked_summary(told["summary"])
            case "log" if told.get("logger") == LOGGER:
                told |= {"logger": "<logger>", "data": _masked_log(told["data"])}
            case "attempt-failed" | "run-failed":
                told = self._with_errors(told)
        return told

    def result(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        """Return an outcome's plain data as traces show it."""
        told = self._with_errors(outcome)
        told["messages"] = [masked_message(message) for message in told["messages"]]
        if "spent" in told:
            told["spent"] = {**told["spent"], "wall-clock": "<number>"}
        return told

    def _with_errors(self, told: Mapping[str, Any]) -> dict[str, Any]:
        masked = dict(told)
        if masked.get("error") is not None:
            masked["error"] = self._error(masked["error"])
        if "attempts" in masked:
            masked["attempts"] = [self._record(record) for record in masked["attempts"]]
        return masked

    def _record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        # A disposition stands only where a backend was skipped: no attempt, so the engine's sentence.
        was_skipped = "disposition" in record
        return {**record, "error": "<error>" if was_skipped else self._error(record["error"])}

    def _error(self, error: str) -> str:
        if error.startswith(_CHAIN):
            attempts = re.split(r"; (?=\[backend \d+\] )", error.removeprefix(_CHAIN))
            return "<error:chain> " + "; ".join(map(self._error, attempts))
        found = re.fullmatch(r"(\[backend \d+\]) (.*)", error, re.DOTALL)
        if found is None:
            return "<error>"
        prefix, text = found.groups()
        if text in self.errors:
            return error
        begun = [said for said in self.errors if re.match(re.escape(said) + r"\W", text)]
        return " ".join([prefix, *sorted(begun, key=len)[-1:], "<error>"])

    # -- the transcript --------------------------------------------------------------------

    def transcript(self, envelopes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the lines of a transcript, in order, as traces show them."""
        said_by_engine: dict[str, str] = {}  # call id to the placeholder of its latest result
        call_ids: dict[str, str] = {}
        is_worded = False
        told = []
        for envelope in envelopes:
            payload = dict(envelope["payload"])
            match envelope["type"]:
                case "message":
                    masked = masked_message(payload)
                    is_masked = masked["content"] != payload["content"]
                    is_worded = is_worded or is_masked
                    said_by_engine[payload.get("tool-call-id", "")] = masked["content"] if is_masked else ""
                    payload = masked
                case "tool-dispatched":
                    call_ids[envelope["id"]] = payload["call-id"]
                    payload = self._dispatched(payload)
                case "tool-settled":
                    notice = said_by_engine.get(call_ids.get(payload["op-id"], ""), "")
                    payload = self._settled(payload, notice)
                case "compaction":
                    payload = self._compaction(payload, is_worded)
                    is_worded = True
                case "elision":
                    items = [{**item, "id": self.id(item["id"])} for item in payload["items"]]
                    payload = {**payload, "items": items}
            kept = {key: value for key, value in envelope.items() if key != "ts"}
            told.append({**kept, "id": self.id(envelope["id"]), "payload": payload})
        return told

    def _compaction(self, payload: Mapping[str, Any], is_worded: bool) -> dict[str, Any]:
        told = {**payload, "replaces-through-id": self.id(payload["replaces-through-id"])}
        told["summary"] = masked_summary(told["summary"])
        if "kept-ids" in told:
            told["kept-ids"] = [self.id(kept) for kept in told["kept-ids"]]
        return told if self.has_flat_counter else _without_tokens(told, is_worded)

    def _dispatched(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        run_id = payload.get("run-id")
        return dict(payload) if run_id is None else {**payload, "run-id": self.runs.get(run_id, run_id)}

    def _settled(self, payload: Mapping[str, Any], notice: str) -> dict[str, Any]:
        told = {**payload, "op-id": self.id(payload["op-id"])}
        if "duration" in told:
            told["duration"] = "<number>"
        if notice and "error" in told:
            told |= {"error": notice, "result-digest": "<digest>"}
        return told


def _masked_log(data: Any) -> Any:
    return {**data, "message": "<log>"} if isinstance(data, Mapping) else "<log>"


def _has_engine_words(event: Mapping[str, Any]) -> bool:
    """Whether with *event* something of the engine's own wording entered the conversation."""
    match event["kind"]:
        case "tool-result":
            return str(event["content"]).startswith("<notice:")
        case "compaction-done":
            return "summary" in event or event["tokens-after"] < event["tokens-before"]
        case kind:
            return kind in ("tool-abandoned", "limit-reached")


def _without_tokens(told: dict[str, Any], is_worded: bool) -> dict[str, Any]:
    """Mask sizes that depend on how long the engine's sentences are.

    Args:
        told: an event, or the payload of a compaction line.
        is_worded: some are in the conversation already.
    """
    masked = dict(told)
    keys = ("tokens", "tokens-before", "tokens-after") if is_worded else ()
    for key in keys or (("tokens-after",) if "summary" in told else ()):
        if key in masked:
            masked[key] = "<tokens>"
    if is_worded and masked.get("kind") == "log" and isinstance(masked["data"], Mapping) and "needed" in masked["data"]:
        masked["data"] = {**masked["data"], "needed": "<tokens>"}
    return masked
