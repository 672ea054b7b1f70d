"""Which refusals mean that a request is larger than the model's window.

There is no standard: a status, a code, or a sentence tells, and each vendor has its own. They
are data here (`WORDINGS`), a row per code or sentence, each with a recorded example in the
tests. The law: what a server says about the rate of requests is no overflow, whatever else it
says. What is done about an overflow is not known here, nor are the servers that refuse without
a word (Cerebras and Mistral may send an empty 400) or cut the prompt without one (Ollama,
KoboldCpp): a declared window guards against those, `budget`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llm_agent.errors import BackendError

# A request that is wrong, too large, or not processable.
_REFUSED: Final = frozenset({400, 413, 422})
# What servers and gateways also send that take a refusal behind them for a failure of their own.
_PASSED_ON: Final = _REFUSED | {500, 502}


@attrs.frozen
class Wording:
    """One way of one vendor to say that a request is too large for the window."""

    vendor: str
    words: str
    """Part of the error's text, or its code; compared in lower case."""
    statuses: frozenset[int] = _REFUSED
    """With which it means that; inside a stream there is no status, and the words must do."""


# The vendor is the one where it was seen first: servers and routers pass each other's words on.
WORDINGS: Final[tuple[Wording, ...]] = (
    # -- codes -------------------------------------------------------------------------------
    Wording("OpenAI, Azure, Groq, Cerebras", "context_length_exceeded", _PASSED_ON),
    Wording("llama.cpp", "exceed_context_size_error"),
    Wording("GitHub Copilot", "model_max_prompt_tokens_exceeded"),
    Wording("z.ai", "model_context_window_exceeded"),
    # In bytes, not in tokens; a smaller conversation is the way out all the same.
    Wording("Anthropic", "request_too_large", frozenset({413})),
    Wording("LiteLLM", "contextwindowexceedederror", _PASSED_ON),
    # -- sentences ---------------------------------------------------------------------------
    Wording("OpenAI", "exceeds the context window"),
    Wording("Azure", "input tokens exceed the configured limit"),
    Wording("Anthropic, Fireworks", "prompt is too long", _PASSED_ON),
    Wording("Anthropic", "exceed context limit"),
    Wording("Google", "input token count"),
    Wording("Bedrock", "input is too long"),
    Wording("Bedrock", "number of input tokens exceeds maximum length"),
    Wording("Mistral", "too large for model with"),
    Wording("xAI", "maximum prompt length is"),
    Wording("Groq, Cerebras", "reduce the length of the messages"),
    Wording("Together, SGLang", "longer than the model's context length"),
    Wording("SGLang", "exceeds the model's maximum context length", _PASSED_ON),
    Wording("vLLM, DeepSeek, OpenRouter", "maximum context length is", _PASSED_ON),
    Wording("vLLM", "longer than the maximum model length", _PASSED_ON),
    Wording("Hugging Face TGI", "`inputs` tokens + `max_new_tokens` must be <="),
    Wording("Hugging Face TGI", "`inputs` must have less than"),
    Wording("Moonshot", "exceeded model token limit"),
    Wording("MiniMax", "context window exceeds limit", _PASSED_ON),
    Wording("DashScope", "range of input length should be", _PASSED_ON),
    Wording("z.ai", "prompt exceeds max length"),
    Wording("z.ai", "tokens in request more than max tokens allowed"),
    Wording("Volcengine", "exceed max message tokens"),
    Wording("watsonx", "cannot exceed the total tokens limit"),
    Wording("GitHub Copilot", "prompt token count of"),
    Wording("LiteLLM", "context window exceeded", _PASSED_ON),
    Wording("llama.cpp", "exceeds the available context size", _PASSED_ON),
    # With 500: found only while the prompt was being read.
    Wording("llama.cpp", "context size has been exceeded", _PASSED_ON),
    Wording("llama-cpp-python", "exceed context window of", _PASSED_ON),
    Wording("Ollama", "prompt too long; exceeded", _PASSED_ON),
    Wording("Ollama", "input length exceeds the context length", _PASSED_ON),
    Wording("LM Studio", "greater than the context length", _PASSED_ON),
    Wording("LM Studio", "when context the overflows", _PASSED_ON),
    Wording("LM Studio", "cannot truncate prompt with n_keep", _PASSED_ON),
    Wording("LM Studio", "reached context length of", _PASSED_ON),
    # -- what many say, each too vague for any status but 400 ------------------------------------
    Wording("Cohere", "too many tokens", frozenset({400})),
    Wording("any", "context length", frozenset({400})),
    Wording("any", "context_length", frozenset({400})),
    Wording("any", "maximum context", frozenset({400})),
)

# Groq says 413 and "Request too large", and OpenAI 429, for more tokens than a minute has;
# Bedrock's throttling says "Too many tokens". There it is the minute that is full, not the window.
RATE_WORDS: Final = (
    "rate limit",
    "rate_limit",
    "rate-limit",
    "ratelimit",
    "tokens per min",
    "tokens per day",
    "(tpm)",
    "too many requests",
    "throttl",
    "please wait",
)

# No window is smaller; most numbers in a message that are no sizes are.
_LEAST_SIZE: Final = 256

_CODE_KEYS: Final = ("code", "type", "status")
# A body is cut to a readable size and may be no whole JSON any more. What it quotes of our own
# request is a text in it, its quotes escaped: never found by this.
_CODE_IN_TEXT: Final = rf'"(?:{"|".join(_CODE_KEYS)})"\s*:\s*"([^"\\]+)"'


def says_overflow(error: BackendError, wordings: Sequence[Wording] = WORDINGS) -> bool:
    """Return whether a failed attempt means that the request is larger than the window."""
    return overflow_wording(error, wordings) is not None


def overflow_wording(error: BackendError, wordings: Sequence[Wording] = WORDINGS) -> Wording | None:
    """Return the first of *wordings* that *error* uses; `None` when it is no overflow.

    A timeout and a broken connection are none, whatever was said before. Raises: Nothing.
    """
    if error.error_class in ("timeout", "connection"):
        return None
    text = "\n".join((error.message, *_codes(error.body))).lower()
    if any(words in text for words in RATE_WORDS):
        return None
    fitting = (wording for wording in wordings if error.status is None or error.status in wording.statuses)
    return next((wording for wording in fitting if wording.words in text), None)


@attrs.frozen
class ToldSizes:
    """What a refusal says of the request and of the window, in the server's own tokens."""

    request: int
    window: int

    @property
    def share(self) -> float:
        """How much of the request the window can take; below 1."""
        return self.window / self.request


def told_sizes(error: BackendError) -> ToldSizes | None:
    """Return the two sizes that a refusal names; `None` when it does not name just two.

    Of two different numbers the smaller one is the window, else there was nothing to refuse.
    Small numbers are statuses, places and retries. llama.cpp has fields for both.
    """
    body = str(error.body or "")
    named = [re.search(rf'"{field}"\s*:\s*(\d+)', body) for field in ("n_prompt_tokens", "n_ctx")]
    if all(named):
        numbers = {int(found[1]) for found in named if found}
    else:
        numbers = {int(digits.replace(",", "")) for digits in re.findall(r"\d[\d,]*", error.message)}
    numbers = {number for number in numbers if number >= _LEAST_SIZE}
    return ToldSizes(max(numbers), min(numbers)) if len(numbers) == 2 else None


def _codes(body: Any) -> Iterator[str]:
    """The codes a body names, whatever else it holds: it may quote our own conversation."""
    if isinstance(body, str):
        yield from re.findall(_CODE_IN_TEXT, body)  # compiled when something has failed, not on import
    elif isinstance(body, Mapping):
        for part in (body, body.get("error")):
            if isinstance(part, Mapping):
                yield from (code for key in _CODE_KEYS if isinstance(code := part.get(key), str))
