"""Tokenizer files and chat templates: exact where they are good, refused with the path where they are not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.messages import Message, ToolRequest
from llm_agent.token_count import ExactCounter, HeuristicCounter
from llm_agent.token_count.tokenizer_file import load_tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra tokenizers")
pytest.importorskip("jinja2", reason="needs the extra tokenizers")

TEXTS = Path(__file__).resolve().parents[2] / "benchmarks" / "texts"
TOOLS = [{"type": "function", "function": {"name": "read_file"}}]
SPECIAL = {
    "<|im_start|>": {},
    "<|im_end|>": {},
    "<|im_end|><|im_start|>": {},
    "<left>": {"lstrip": True},
    "<right>": {"rstrip": True},
    "word": {"single_word": True},
    "a<|im_start|>": {"single_word": True},
    "norm": {"normalized": True},
}
CHAT = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"""


def made(normalizer: Any = None, pre_tokenizer: Any = None) -> Any:
    """A small BPE tokenizer, trained on the texts of the benchmark."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, show_progress=False)
    tokenizer.train_from_iterator([path.read_text() for path in sorted(TEXTS.glob("*.txt"))], trainer)
    added = [
        tokenizers.AddedToken(content, special=True, **{"normalized": False, **options})
        for content, options in SPECIAL.items()
    ]
    tokenizer.add_special_tokens(added)
    # What is put around a single text in training has no place in a rendered conversation.
    around = [("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<|im_start|> $A", special_tokens=around)
    return tokenizer


KINDS = {
    "bytes": made(),
    "prefix space": made(pre_tokenizer=tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "first word": made(pre_tokenizer=tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")),
    "prepended": made(tokenizers.normalizers.Prepend("▁"), tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")),
    "normalized": made(tokenizers.normalizers.NFKC()),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    KINDS["bytes"].save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<right>"}, "add_bos_token": true}')
    return tmp_path / "tokenizer.json"


def tokens(text: str) -> int:
    return len(KINDS["bytes"].encode(text, add_special_tokens=False).ids)


# -- exact --------------------------------------------------------------------------------------


def test_a_conversation_is_rendered_and_encoded(path: Path) -> None:
    """The template's own words, the named tokens and the beginning of the answer are counted."""
    counter = ExactCounter.from_tokenizer_json(path, chat_template=CHAT)

    expected = "<right><|im_start|>user\nWhat is größer?<|im_end|><|im_start|>assistant"
    assert counter.count_messages([Message.user("What is größer?")]) == tokens(expected)


def test_declarations_and_arguments_are_rendered_as_json(path: Path) -> None:
    """Spelled as Hugging Face spells it: spaces, no HTML escapes."""
    counter = ExactCounter.from_tokenizer_json(path, chat_template=CHAT)
    call = ToolRequest("c", "n", '{"a":"<ü>"}')

    expected = (
        '<right><|im_start|>assistant\n{"a": "<ü>"}<|im_end|>'
        '[{"type": "function", "function": {"name": "read_file"}}]<|im_start|>assistant'
    )
    assert counter.count_request([Message.assistant("", [call])], TOOLS) == tokens(expected)


def counting(kind: str) -> Any:
    """The counter of a saved file, as hypothesis cannot have a fixture for each example."""
    with tempfile.TemporaryDirectory() as folder:
        KINDS[kind].save(f"{folder}/tokenizer.json")
        return load_tokenizer(Path(folder) / "tokenizer.json")


COUNTERS = {kind: counting(kind) for kind in KINDS}

PIECES = st.one_of(
    st.sampled_from([*SPECIAL, " ", "  ", "\n", "e\u0301", "ﬁ", "＜", "<|im_", "日本"]), st.text(max_size=4)
)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=4))
def test_counting_by_pieces_is_counting_the_whole(kind: str, texts: list[str]) -> None:
    """Whatever was counted before, and wherever special tokens stand."""
    count = COUNTERS[kind]

    for text in texts:
        assert count(text) == len(KINDS[kind].encode(text, add_special_tokens=False).ids)


def test_truncation_in_the_file_does_not_cap_the_count(path: Path) -> None:
    """Files from training cut and pad; a conversation is neither."""
    limited = tokenizers.Tokenizer.from_file(str(path))
    limited.enable_truncation(4)
    limited.enable_padding(length=100)
    limited.save(str(path))
    counter = ExactCounter.from_tokenizer_json(path, chat_template="{{ messages[0].content }}")

    assert counter.count_messages([Message.user("many words " * 50)]) == tokens("many words " * 50)
    assert counter.count_messages([Message.user("one")]) == tokens("one")
    assert counter.count_messages([Message.user("")]) == 0


def test_a_refusing_template_leaves_it_to_the_estimate(path: Path) -> None:
    """For that conversation only."""
    template = "{% if messages[0].role == 'tool' %}{{ raise_exception('no') }}{% endif %}x"
    counter = ExactCounter.from_tokenizer_json(path, chat_template=template)
    orphan = [Message.tool("c", "abc")]

    assert counter.count_messages(orphan) == HeuristicCounter().count_messages(orphan)
    assert counter.count_messages([Message.user("abc")]) == tokens("x")


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{% generation %}a b{% endgeneration %}", "a b"),
        ("{% for one in [1, 2, 3] %}{% if one == 2 %}{% break %}{% endif %}x {% endfor %}", "x "),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ 'none at all' if tools is none }}", "none at all"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
    ],
    ids=range(5),
)
def test_what_templates_may_use_is_there(path: Path, template: str, rendered: str) -> None:
    """Tags, globals and the trimming of blocks that templates are written for."""
    counter = ExactCounter.from_tokenizer_json(path, chat_template=template)

    assert counter.count_messages([Message.user("abc")]) == tokens(rendered)


@pytest.mark.parametrize("escape", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_is_kept_in_a_sandbox(path: Path, escape: str) -> None:
    """It reaches nothing of ours and changes nothing it is given: such a count is an estimate."""
    counter = ExactCounter.from_tokenizer_json(path, chat_template=escape + "x" * 500)

    assert counter.count_messages([Message.user("abc")]) == HeuristicCounter().count_messages([Message.user("abc")])


# -- where the template comes from ----------------------------------------------------------------


def config(path: Path, **entries: Any) -> None:
    path.with_name("tokenizer_config.json").write_bytes(codec.dumps(entries))


def test_the_template_file_beside_wins_over_the_configuration(path: Path) -> None:
    """As Hugging Face reads them."""
    config(path, chat_template="a b c d e f g h")
    path.with_name("chat_template.jinja").write_text("x")

    assert ExactCounter.from_tokenizer_json(path).count_messages([Message.user("abc")]) == tokens("x")


def test_the_template_of_the_configuration_is_taken(path: Path) -> None:
    """A path may be text."""
    config(path, chat_template="one two")

    assert ExactCounter.from_tokenizer_json(str(path)).count_messages([Message.user("abc")]) == tokens("one two")


def test_of_several_templates_the_one_for_tools_counts_requests_with_tools(path: Path) -> None:
    """They are named `default` and `tool_use`."""
    named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "one two three"}]
    config(path, chat_template=named)
    counter = ExactCounter.from_tokenizer_json(path)

    assert counter.count_request([Message.user("abc")], []) == tokens("x")
    assert counter.count_request([Message.user("abc")], TOOLS) == tokens("one two three")


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (None, "FileNotFoundError"),
        (b"", "no JSON"),
        (b"PK\x03\x04\xff\xfe", "UnicodeDecodeError"),
        (b"not json", "no JSON"),
        (b"[1, 2]", r"JSON \(list\) that is none"),
        (b'{"model": "gpt"}', r"JSON \(dict\) that is none"),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}', r"JSON \(dict\) that is none"),
    ],
    ids=range(7),
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes | None, got: str) -> None:
    """The message names the path, what was expected and what came."""
    path = tmp_path / "some.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=rf"ExactCounter: .*some\.json must be a tokenizer\.json, got .*{got}"):
        ExactCounter.from_tokenizer_json(path, chat_template="x")


def test_a_folder_is_no_tokenizer(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(ConfigError, match=r"must be a tokenizer\.json, got IsADirectoryError"):
        ExactCounter.from_tokenizer_json(tmp_path, chat_template="x")


def test_without_a_template_a_tokenizer_is_refused(path: Path) -> None:
    """The message names the places where one was looked for."""
    with pytest.raises(ConfigError, match=r"neither chat_template\.jinja nor tokenizer_config\.json beside .* has one"):
        ExactCounter.from_tokenizer_json(path)


@pytest.mark.parametrize("template", ["{% if %}", "{{ ", "{% unknown %}", "{{ 1 | nofilter }}"])
def test_a_template_that_does_not_compile_is_refused(path: Path, template: str) -> None:
    """With the path, the compiler's words and the line."""
    with pytest.raises(
        ConfigError, match=r"chat_template for .*tokenizer\.json must compile, got Template.* in line 1"
    ):
        ExactCounter.from_tokenizer_json(path, chat_template=template)


@pytest.mark.parametrize("template", [4, [], [{"name": "other", "template": "x"}], {"default": "x"}], ids=repr)
def test_a_template_that_is_no_text_is_refused(path: Path, template: Any) -> None:
    """Wherever it comes from."""
    config(path, chat_template=template)

    with pytest.raises(ConfigError, match="chat_template must be the text of a Jinja template, got"):
        ExactCounter.from_tokenizer_json(path)
    with pytest.raises(ConfigError, match="chat_template must be the text of a Jinja template, got 7"):
        ExactCounter.from_tokenizer_json(path, chat_template=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(("content", "got"), [("{", "no JSON"), ("[]", "list")])
def test_a_broken_configuration_is_refused(path: Path, content: str, got: str) -> None:
    """It would have named the tokens that a template writes."""
    path.with_name("tokenizer_config.json").write_text(content)

    with pytest.raises(ConfigError, match=rf"tokenizer_config\.json must be a JSON object, got {got}"):
        ExactCounter.from_tokenizer_json(path, chat_template="x")


@pytest.mark.parametrize("missing", ["tokenizers", "jinja2.sandbox"])
def test_a_missing_package_is_named_with_its_extra(path: Path, missing: str) -> None:
    """In a process of its own, where it cannot be imported."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from llm_agent.token_count import ExactCounter\n"
        f"try: ExactCounter.from_tokenizer_json({str(path)!r}, chat_template='x')\n"
        "except Exception as exc: print(type(exc).__name__, exc)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.startswith(
        "ConfigError ExactCounter: from_tokenizer_json needs the packages tokenizers and jinja2"
    )


def test_counting_is_cheap_to_import() -> None:
    """Neither package is touched before it is needed."""
    program = "import sys, llm_agent.token_count; print({'tokenizers', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "set()"
