"""epicrag: RAG with its own engine, where every document chunk's KV cache is computed once.

The names below are the face for users; inside the project import each from the module it lives in.
Nothing heavy is imported until one of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.errors import EpicragError
    from epicrag.llamaindex import chat_engine, query_engine
    from epicrag.pipeline import Pipeline
    from epicrag.types import Answer, Chunk, Document, Receipt, Source

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "Chunk",
    "Document",
    "EpicragError",
    "Pipeline",
    "Receipt",
    "Source",
    "chat_engine",
    "query_engine",
]

_HOME = {
    "Answer": "epicrag.types",
    "Chunk": "epicrag.types",
    "Document": "epicrag.types",
    "EpicragError": "epicrag.errors",
    "Pipeline": "epicrag.pipeline",
    "Receipt": "epicrag.types",
    "Source": "epicrag.types",
    "chat_engine": "epicrag.llamaindex",
    "query_engine": "epicrag.llamaindex",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
