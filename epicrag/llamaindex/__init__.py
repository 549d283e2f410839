"""epicrag in LlamaIndex: an LLM, a retriever, a synthesizer and chat engines that keep chunk boundaries byte-exact.

`query_engine()` and `chat_engine()` put them together. LlamaIndex is imported when one of the names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.llamaindex.chat import (
        EpicragCondensePlusContextChatEngine,
        EpicragContextChatEngine,
    )
    from epicrag.llamaindex.engine import EpicragQueryEngine, chat_engine, query_engine
    from epicrag.llamaindex.ingestion import CompileKV, EpicragNodeParser
    from epicrag.llamaindex.llm import EpicragLLM
    from epicrag.llamaindex.retriever import EpicragRetriever
    from epicrag.llamaindex.synthesizer import EpicragSynthesizer
    from epicrag.llamaindex.tokens import use_tokenizer

__all__ = [
    "CompileKV",
    "EpicragCondensePlusContextChatEngine",
    "EpicragContextChatEngine",
    "EpicragLLM",
    "EpicragNodeParser",
    "EpicragQueryEngine",
    "EpicragRetriever",
    "EpicragSynthesizer",
    "chat_engine",
    "query_engine",
    "use_tokenizer",
]

_HOME = {
    "CompileKV": "epicrag.llamaindex.ingestion",
    "EpicragCondensePlusContextChatEngine": "epicrag.llamaindex.chat",
    "EpicragContextChatEngine": "epicrag.llamaindex.chat",
    "EpicragLLM": "epicrag.llamaindex.llm",
    "EpicragNodeParser": "epicrag.llamaindex.ingestion",
    "EpicragQueryEngine": "epicrag.llamaindex.engine",
    "EpicragRetriever": "epicrag.llamaindex.retriever",
    "EpicragSynthesizer": "epicrag.llamaindex.synthesizer",
    "chat_engine": "epicrag.llamaindex.engine",
    "query_engine": "epicrag.llamaindex.engine",
    "use_tokenizer": "epicrag.llamaindex.tokens",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
