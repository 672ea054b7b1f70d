"""Overflows, by what each vendor says; and what only sounds like one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_agent.backends.failures import Redactor, from_error_value, from_response
from llm_agent.errors import BackendError, ErrorClass
from llm_agent.overflow import WORDINGS, Wording, overflow_wording, says_overflow, told_sizes

NOTHING_SECRET = Redactor(())


def refusal(status: int, body: Any) -> BackendError:
    """The failure our HTTP backend makes of a response."""
    raw = body if isinstance(body, str) else json.dumps(body)
    return from_response(status, {}, raw.encode(), endpoint="POST http://test/v1", redact=NOTHING_SECRET, has_key=True)


def in_stream(value: Any) -> BackendError:
    """The failure our HTTP backend makes of an error inside a 200 stream."""
    return from_error_value(value, endpoint="POST http://test/v1", redact=NOTHING_SECRET)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


# The words each vendor is recognised by, with the status and the body it sends them in.
SEEN: list[tuple[str, str, int, Any]] = [
    (
        "OpenAI, Azure, Groq, Cerebras",
        "context_length_exceeded",
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        ),
    ),
    (
        "llama.cpp",
        "exceed_context_size_error",
        400,
        error("it does not fit", code=400, type="exceed_context_size_error", n_prompt_tokens=2300, n_ctx=2048),
    ),
    (
        "GitHub Copilot",
        "model_max_prompt_tokens_exceeded",
        400,
        error("prompt token count of 140000 exceeds the limit of 128000", code="model_max_prompt_tokens_exceeded"),
    ),
    ("z.ai", "model_context_window_exceeded", 400, error("model_context_window_exceeded", code="1261")),
    (
        "Anthropic",
        "request_too_large",
        413,
        {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
    ),
    (
        "LiteLLM",
        "contextwindowexceedederror",
        400,
        error("litellm.ContextWindowExceededError: litellm.BadRequestError: it is full", code="400"),
    ),
    ("OpenAI", "exceeds the context window", 400, error("Your input exceeds the context window of this model.")),
    (
        "Azure",
        "input tokens exceed the configured limit",
        400,
        error("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens."),
    ),
    (
        "Anthropic, Fireworks",
        "prompt is too long",
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 213462 tokens > 200000 maximum"},
        },
    ),
    (
        "Anthropic",
        "exceed context limit",
        400,
        error("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length"),
    ),
    (
        "Google",
        "input token count",
        400,
        [
            error(
                "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
                code=400,
                status="INVALID_ARGUMENT",
            )
        ],
    ),
    ("Bedrock", "input is too long", 400, {"message": "Input is too long for requested model."}),
    (
        "Bedrock",
        "number of input tokens exceeds maximum length",
        400,
        {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input."},
    ),
    (
        "Mistral",
        "too large for model with",
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
            "type": "invalid_request_prompt",
            "code": 3051,
        },
    ),
    (
        "xAI",
        "maximum prompt length is",
        400,
        {"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."},
    ),
    (
        "Groq, Cerebras",
        "reduce the length of the messages",
        400,
        error("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"),
    ),
    (
        "Together, SGLang",
        "longer than the model's context length",
        400,
        error("The input (9000 tokens) is longer than the model's context length (8192 tokens)."),
    ),
    (
        "SGLang",
        "exceeds the model's maximum context length",
        400,
        error("Requested token count exceeds the model's maximum context length of 8192 tokens."),
    ),
    (
        "vLLM, DeepSeek, OpenRouter",
        "maximum context length is",
        400,
        {
            "object": "error",
            "message": "This endpoint's maximum context length is 65536 tokens. However, you requested about 80000",
            "code": 400,
        },
    ),
    (
        "vLLM",
        "longer than the maximum model length",
        400,
        error("The decoder prompt (length 9000) is longer than the maximum model length of 8192."),
    ),
    (
        "Hugging Face TGI",
        "`inputs` tokens + `max_new_tokens` must be <=",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 2058 `inputs`",
            "error_type": "validation",
        },
    ),
    (
        "Hugging Face TGI",
        "`inputs` must have less than",
        422,
        {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"},
    ),
    (
        "Moonshot",
        "exceeded model token limit",
        400,
        error("Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)"),
    ),
    (
        "MiniMax",
        "context window exceeds limit",
        400,
        error("invalid params, context window exceeds limit (2013)", type="bad_request_error"),
    ),
    (
        "DashScope",
        "range of input length should be",
        400,
        error(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
            code="invalid_parameter_error",
        ),
    ),
    ("z.ai", "prompt exceeds max length", 400, error("Prompt exceeds max length", code="1261")),
    (
        "z.ai",
        "tokens in request more than max tokens allowed",
        400,
        error("tokens in request more than max tokens allowed", code="1210"),
    ),
    (
        "Volcengine",
        "exceed max message tokens",
        400,
        error("Total tokens of image and text exceed max message tokens.", code="InvalidParameter"),
    ),
    (
        "watsonx",
        "cannot exceed the total tokens limit",
        400,
        {
            "errors": [
                {
                    "code": "invalid_input_argument",
                    "message": "the number of input tokens 4098 cannot exceed the total tokens limit 4096",
                }
            ],
            "status_code": 400,
        },
    ),
    ("GitHub Copilot", "prompt token count of", 400, error("prompt token count of 140000 exceeds the limit of 128000")),
    (
        "LiteLLM",
        "context window exceeded",
        400,
        error("Context Window exceeded for given call. No models have context window large enough for this call."),
    ),
    (
        "llama.cpp",
        "exceeds the available context size",
        400,
        error("request (2300 tokens) exceeds the available context size (2048 tokens), try increasing it", code=400),
    ),
    (
        "llama.cpp",
        "context size has been exceeded",
        500,
        error("Context size has been exceeded.", code=500, type="server_error"),
    ),
    (
        "llama-cpp-python",
        "exceed context window of",
        500,
        error("Requested tokens (2100) exceed context window of 2048", type="internal_server_error"),
    ),
    ("Ollama", "prompt too long; exceeded", 400, error("prompt too long; exceeded max context length by 20 tokens")),
    (
        "Ollama",
        "input length exceeds the context length",
        500,
        {"error": "the input length exceeds the context length"},
    ),
    (
        "LM Studio",
        "greater than the context length",
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    ),
    (
        "LM Studio",
        "when context the overflows",
        400,
        {"error": "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded"},
    ),
    (
        "LM Studio",
        "cannot truncate prompt with n_keep",
        400,
        {"error": "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"},
    ),
    (
        "LM Studio",
        "reached context length of",
        400,
        {"error": "Reached context length of 4096 tokens with model (arch: gpt-oss)"},
    ),
    (
        "Cohere",
        "too many tokens",
        400,
        {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292."},
    ),
    ("any", "context length", 400, error("the context length is 4096 and no more")),
    ("any", "context_length", 400, error("bad input", code="context_length_error")),
    ("any", "maximum context", 400, error("over the maximum context")),
]


@pytest.mark.parametrize(("vendor", "words", "status", "body"), SEEN, ids=[f"{v}: {w}" for v, w, _, _ in SEEN])
def test_an_overflow_is_recognised_in_the_words_of_its_vendor(vendor: str, words: str, status: int, body: Any) -> None:
    """One row, one refusal as it came over the wire."""
    wording = overflow_wording(refusal(status, body))

    assert wording is not None
    assert (vendor, words) == (wording.vendor, wording.words)


def test_every_wording_has_an_example() -> None:
    """The table and the examples above are the same list."""
    assert [(row.vendor, row.words) for row in WORDINGS] == [(vendor, words) for vendor, words, _, _ in SEEN]


def test_wordings_are_lower_case() -> None:
    """They are compared with text in lower case."""
    assert [row.words for row in WORDINGS if row.words != row.words.lower()] == []


@pytest.mark.parametrize(
    "value",
    [
        {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"},
        {"message": "it broke", "code": "context_length_exceeded"},
        {"code": 400, "message": "This endpoint's maximum context length is 65536 tokens."},
        "Reached context length of 4096 tokens with model",
        {"message": "Provider returned error", "code": 502, "metadata": {"raw": '{"code":"context_length_exceeded"}'}},
    ],
)
def test_an_overflow_inside_a_stream_counts(value: Any) -> None:
    """Behind a 200 there may be no status; the code or the words do."""
    assert says_overflow(in_stream(value))


def test_a_router_that_passes_a_refusal_on_is_understood() -> None:
    """What the server behind it said is in the metadata."""
    raw = '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}'
    routed = error("Provider returned error", code=400, metadata={"raw": raw, "provider_name": "Anthropic"})

    assert says_overflow(refusal(400, routed))
    assert says_overflow(in_stream(routed["error"]))


GROQ_MINUTE = error(
    "Request too large for model `llama-3.1-8b-instant` in organization `org` service tier `on_demand` on tokens per "
    "minute (TPM): Limit 6000, Requested 12328, please reduce your message size and try again.",
    type="tokens",
    code="rate_limit_exceeded",
)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, GROQ_MINUTE),
        (400, GROQ_MINUTE),
        (429, error("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.")),
        (429, error("too many tokens: maximum context length is 8", code="context_length_exceeded")),
        (400, {"message": "Too many tokens, please wait before trying again.", "__type": "ThrottlingException"}),
        (400, error("maximum context length is 8, reached", code="rate_limit_exceeded")),
    ],
)
def test_a_rate_limit_is_no_overflow(status: int, body: Any) -> None:
    """However large the request is called: it is the minute that is full, not the window."""
    assert not says_overflow(refusal(status, body))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, "<html><body>413 Request Entity Too Large</body></html>"),
        (413, {"message": "too many tokens"}),
        (400, ""),
        (400, error("messages.0: Input does not match the expected shape.", type="invalid_request_error")),
        (400, error("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens")),
        (400, error("max_tokens is too large: 200000. This model supports at most 16384 completion tokens")),
        (400, error("Range of max_tokens should be [1, 8192]")),
        (401, error("maximum context length is 8", code="context_length_exceeded")),
        (503, error("maximum context length is 8", code="context_length_exceeded")),
        (500, error("too many tokens")),
    ],
)
def test_what_only_sounds_like_an_overflow_is_none(status: int, body: Any) -> None:
    """A proxy's size limit, a completion's cap, a refused key, an outage."""
    assert not says_overflow(refusal(status, body))


def test_a_conversation_that_a_server_quotes_back_is_not_the_servers_word() -> None:
    """A validation error that repeats its input must not be read as what the input talks about."""
    quoted = '{"code": "context_length_exceeded"} prompt is too long'
    body = {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": quoted}]}

    assert not says_overflow(refusal(422, body))


def test_a_code_is_found_in_a_body_that_was_cut() -> None:
    """The body of an error is kept to a readable size and may be no whole JSON."""
    cut = '{"error":{"code":400,"type":"exceed_context_size_error","message":"no room","prompt":"' + "x" * 9

    assert says_overflow(BackendError("HTTP 400", "http", 400, body=cut))


@pytest.mark.parametrize("body", [{"code": "context_length_exceeded"}, {"error": {"type": "context_length_exceeded"}}])
def test_a_body_that_is_a_mapping_is_read_too(body: Any) -> None:
    """Backends of others may hand in what they parsed."""
    assert says_overflow(BackendError("HTTP 400", "http", 400, body=body))


@pytest.mark.parametrize("body", [b"\xff", 3, ["context_length_exceeded"], {"error": 3, "code": 400}, None])
def test_a_body_of_any_shape_is_borne(body: Any) -> None:
    """Nothing is raised; there is just no code in it."""
    assert not says_overflow(BackendError("HTTP 400", "http", 400, body=body))


@pytest.mark.parametrize(
    ("error_class", "is_overflow"),
    [("response", True), ("unknown", True), ("timeout", False), ("connection", False)],
)
def test_a_failure_without_a_status_is_judged_by_its_words(error_class: ErrorClass, is_overflow: bool) -> None:
    """A backend built on a vendor's own library may raise whatever that raises."""
    assert says_overflow(BackendError("prompt is too long: 9 > 8", error_class)) is is_overflow


def test_a_wording_of_ones_own_can_be_added() -> None:
    """Vendors change their words faster than libraries are released."""
    failure = refusal(400, error("your novel is too thick"))
    own = (*WORDINGS, Wording("house model", "too thick"))

    assert not says_overflow(failure)
    assert says_overflow(failure, own)


def test_no_recorded_error_is_taken_for_an_overflow() -> None:
    """None of the errors on record is one; a completion's cap inside a 200 is among them."""
    recorded = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures"
    if not recorded.is_dir():
        pytest.skip("the recorded fixtures are not beside this checkout")
    records = [json.loads(path.read_text()) for path in sorted(recorded.glob("*.json"))]
    errors = [(r["id"], r["status"], r["expected"]["error"]) for r in records if r.get("expected", {}).get("error")]

    taken = [
        name
        for name, status, value in errors
        if says_overflow(refusal(status, {"error": value}) if status != 200 else in_stream(value))
    ]

    assert len(errors) > 10
    assert taken == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("maximum context length is 4,096 tokens, however you requested 5,000", (5000, 4096)),
        ("prompt is too long: 9000 tokens > 8000 maximum (status 400)", None),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", None),
        ("too many tokens", None),
        ("[backend 0] 9000 > 8000", (9000, 8000)),
    ],
)
def test_a_refusal_that_names_two_sizes_tells_request_and_window(message: str, expected: Any) -> None:
    """More numbers than two, or fewer, are no answer."""
    told = told_sizes(BackendError(message, "http", 400))

    assert (told and (told.request, told.window)) == expected


def test_fields_for_the_sizes_are_read_before_the_words() -> None:
    """llama.cpp says both in its body."""
    body = '{"error":{"code":400,"message":"x","n_prompt_tokens":2100,"n_ctx":2048}}'

    told = told_sizes(BackendError("exceeds 1, 2 and 3000", "http", 400, body=body))

    assert told is not None
    assert (told.request, told.window) == (2100, 2048)
