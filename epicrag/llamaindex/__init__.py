"""epicrag in LlamaIndex: an LLM, a retriever and a synthesizer that keep chunk boundaries byte-exact.

`query_engine()` puts the three together. LlamaIndex is imported when one of the names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.llamaindex.engine import EpicragQueryEngine, query_engine
    from epicrag.llamaindex.llm import EpicragLLM
    from epicrag.llamaindex.retriever import EpicragRetriever
    from epicrag.llamaindex.synthesizer import EpicragSynthesizer

__all__ = [
    "EpicragLLM",
    "EpicragQueryEngine",
    "EpicragRetriever",
    "EpicragSynthesizer",
    "query_engine",
]

_HOME = {
    "EpicragLLM": "epicrag.llamaindex.llm",
    "EpicragQueryEngine": "epicrag.llamaindex.engine",
    "EpicragRetriever": "epicrag.llamaindex.retriever",
    "EpicragSynthesizer": "epicrag.llamaindex.synthesizer",
    "query_engine": "epicrag.llamaindex.engine",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
