"""A chat template rendered as transformers renders it, without its import.

The template of a model folder is foreign code: it runs in jinja's sandbox, and one that asks for more than
messages, plain special tokens and a few filters is left to transformers (`read_template` returns None).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

_MORE = re.compile(
    r"namespace|dict|\{%-?\s*generation\b|cycler|joiner|lipsum|__|import|include|extends"
)
"""What a template may not hold: what transformers gives in its own way, or not at all."""

_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Tokenizers of transformers whose special tokens, where a template names them, are those of the settings."""

_OLDEST = (3, 1, 6)  # of jinja: before it, the sandbox can be left


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template with the special tokens it may name."""

    chat_template: str
    tokens: Mapping[str, str]

    @property
    def bos_token(self) -> str | None:
        return self.tokens.get("bos_token")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render messages to text. Whatever the template raises, it raises."""
        assert not tokenize
        return str(
            _compiled(self.chat_template).render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.tokens,
            )
        )


def read_template(folder: Path) -> Template | None:
    """Return the chat template of a model folder, None where transformers must render it."""
    settings = _read_json(folder / "tokenizer_config.json")
    text = _text(folder, settings)
    if text is None or _MORE.search(text) or not _has_jinja():
        return None
    if settings.get("tokenizer_class") not in _CLASSES or settings.get("add_bos_token"):
        return None
    if (folder / "special_tokens_map.json").is_file() or settings.get("auto_map"):
        return None
    tokens = {key: value for key, value in settings.items() if key.endswith("_token")}
    named = {name for name in re.findall(r"\b\w+_token\b", text)} | {"bos_token"}
    if any(name in tokens and not isinstance(tokens[name], str | None) for name in named):
        return None
    if any(name not in tokens for name in named - {"bos_token"}):
        return None
    return Template(text, {key: value for key, value in tokens.items() if isinstance(value, str)})


def _text(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the one template of a folder, the file before the settings."""
    file = folder / "chat_template.jinja"
    if (folder / "additional_chat_templates").exists() or (folder / "chat_template.json").exists():
        return None
    text = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    return text if isinstance(text, str) and text else None


def _has_jinja() -> bool:
    try:
        import jinja2
    except ImportError:
        return False
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", jinja2.__version__)
    return found is not None and tuple(map(int, found.groups())) >= _OLDEST


def _compiled(text: str) -> Any:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    room = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    room.globals.clear()
    room.globals.update(range=jinja2.defaults.DEFAULT_NAMESPACE["range"])
    room.globals.update(raise_exception=_refuse, strftime_now=_now)
    room.filters["tojson"] = _to_json
    return room.from_string(text)


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _now(shape: str) -> str:
    return datetime.now().strftime(shape)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """json.dumps, where jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
