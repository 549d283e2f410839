"""What some embedders want before a question or a passage, where only their model card says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from epicrag.index.files import read_json

_BGE = "Represent this sentence for searching relevant passages: "
_E5 = {"query": "query: ", "document": "passage: "}

# The first that fits counts. `e5-…-instruct` wants a task that the passages do not have.
_FAMILIES: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        r"e5-[\w-]*instruct",
        {
            "query": "Instruct: Given a web search query, retrieve relevant passages that answer the"
            " query\nQuery: "
        },
    ),
    (r"(^|[/_-])(multilingual-)?e5-(small|base|large)", _E5),
    (r"bge-(small|base|large)-zh", {"query": "为这个句子生成表示以用于检索相关文章："}),
    (r"bge-(small|base|large)-en", {"query": _BGE}),
    (r"nomic-embed-text", {"query": "search_query: ", "document": "search_document: "}),
    (r"mxbai-embed-(large|2d)", {"query": _BGE}),
    (r"snowflake-arctic-embed-(xs|s|m|l)(-long)?$", {"query": _BGE}),
)


def prompts_of(name: str, path: Path) -> dict[str, str]:
    """Return {"query": …, "document": …} for a model of a known family; {} for any other.

    The family is told by the name, or by that which the model's own configuration was saved under. What the
    model's configuration says of prompts itself counts before this.
    """
    config = read_json(path / "config_sentence_transformers.json") or {}
    if any((config.get("prompts") or {}).values()):
        return {}
    own = (read_json(path / "config.json") or {}).get("_name_or_path")
    for one in (name, path.name, str(own or "")):
        for pattern, prompts in _FAMILIES:
            if re.search(pattern, one.lower().rstrip("/")):
                return dict(prompts)
    return {}
