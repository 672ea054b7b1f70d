"""A Jinja chat template as a function from messages to the model's prompt.

The law: a template is somebody else's program. It runs in a sandbox, on data that is plain.
What templates may use beside Jinja itself (filters, globals, `{% generation %}`) is what
Hugging Face's "Writing a chat template" promises them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from llm_agent import codec
from llm_agent.errors import ConfigError
from llm_agent.token_count.tokenizer_file import missing_package, read_text

if TYPE_CHECKING:
    from llm_agent.ports import ToolDeclaration
    from llm_agent.token_count.exact import Render

# Files beside a tokenizer; the first that has a template wins.
_TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"
# Of several templates, by name: the one for requests with tools, and the one for all others.
_WITH_TOOLS = "tool_use"
_DEFAULT = "default"


def load_template(tokenizer: Path, text: str | None) -> Render:
    """Return *text* as a function, or the template that lies beside *tokenizer*.

    Raises:
        ConfigError: there is none, it does not compile, or `jinja2` is not installed.
    """
    config = _config_beside(tokenizer)
    sources = _sources(tokenizer, text, config)
    environment = _sandbox()
    compiled = {name: _compiled(environment, source, tokenizer) for name, source in sources.items()}
    # Templates write the first and the last token by name.
    words = {name: _token_text(value) for name, value in config.items() if name.endswith("_token")}

    def render(messages: list[dict[str, Any]], tools: list[ToolDeclaration]) -> str:
        template = compiled[_WITH_TOOLS if tools and _WITH_TOOLS in compiled else _DEFAULT]
        rendered: str = template.render(messages=messages, tools=tools or None, add_generation_prompt=True, **words)
        return rendered

    return render


def _config_beside(tokenizer: Path) -> Mapping[str, Any]:
    path = tokenizer.with_name(_CONFIG_FILE)
    if not path.exists():
        return {}
    expected = "a JSON object"
    try:
        config = codec.loads(read_text(path, expected))
    except ValueError as exc:
        raise ConfigError(f"ExactCounter: {path} must be {expected}, got no JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise ConfigError(f"ExactCounter: {path} must be {expected}, got {type(config).__name__}")
    return config


def _sources(tokenizer: Path, text: str | None, config: Mapping[str, Any]) -> dict[str, str]:
    if text is None and (beside := tokenizer.with_name(_TEMPLATE_FILE)).exists():
        text = read_text(beside, "a chat template")
    match config.get("chat_template") if text is None else text:
        case str(source):
            return {_DEFAULT: source}
        case [*entries] if (named := _named(entries)) and _DEFAULT in named:
            return named
        case None:
            got = f"none, and neither {_TEMPLATE_FILE} nor {_CONFIG_FILE} beside {tokenizer} has one"
        case other:
            got = codec.text_of(other)[:200]
    raise ConfigError(f"ExactCounter: chat_template must be the text of a Jinja template, got {got}")


def _named(entries: list[Any]) -> dict[str, str]:
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }


def _token_text(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def _compiled(environment: Any, source: str, tokenizer: Path) -> Any:
    import jinja2

    try:
        return environment.from_string(source)
    except jinja2.TemplateError as exc:
        raise ConfigError(
            f"ExactCounter: chat_template for {tokenizer} must compile, got {codec.error_text(exc)}"
            f" in line {getattr(exc, 'lineno', '?')}"
        ) from exc


def _sandbox() -> Any:
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as exc:
        raise missing_package(exc) from exc
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment


def _generation_tag() -> Any:
    """`{% generation %}` marks for training what the model has said; here it is only what it holds."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not Jinja's own, which escapes for HTML; and no option of `json` that would be called, past the sandbox.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(words: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(words)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
