"""`query_engine()` and `chat_engine()`: an epicrag index as an engine of LlamaIndex, in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.chat_engine.types import ChatMode
from llama_index.core.memory import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.settings import Settings

from epicrag.errors import UsageError
from epicrag.llamaindex.chat import (
    EpicragCondensePlusContextChatEngine,
    EpicragContextChatEngine,
)
from epicrag.llamaindex.llm import SETTINGS, EpicragLLM
from epicrag.llamaindex.owner import Owner
from epicrag.llamaindex.retriever import SEARCH, EpicragRetriever
from epicrag.llamaindex.synthesizer import EpicragSynthesizer
from epicrag.pipeline import Pipeline

T = TypeVar("T", bound=Owner)


class EpicragQueryEngine(Owner, RetrieverQueryEngine):
    """A query engine over one pipeline; `close`, or leaving a `with` block, closes one that it opened."""


@dataclass(frozen=True, slots=True)
class _Parts:
    llm: EpicragLLM
    retriever: EpicragRetriever
    manager: CallbackManager


def query_engine(
    index: Pipeline | str | Path | None = None,
    *,
    streaming: bool = False,
    cite: bool = True,
    output_cls: type[BaseModel] | None = None,
    system_prompt: str | None = None,
    node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    callback_manager: CallbackManager | None = None,
    **options: Any,
) -> EpicragQueryEngine:
    """Open an index (a folder, a Pipeline, or the configured one) and return a query engine over it.

    With `output_cls`, a pydantic class, answers are objects of it: `response.response`.
    `options` are those of `EpicragRetriever` (top_k, min_score, filters, search_mode, weights, rerank), settings
    of the model (max_tokens, temperature, top_p, seed, stop, link_policy) and, unless a Pipeline is given, of the
    configuration (model, embed_model, device …). UsageError: an option is none of these. IndexEmptyError: there is
    no such index.
    """

    def made(parts: _Parts) -> EpicragQueryEngine:
        return EpicragQueryEngine(
            retriever=parts.retriever,
            response_synthesizer=EpicragSynthesizer(
                parts.llm,
                system_prompt=system_prompt,
                streaming=streaming,
                cite=cite,
                output_cls=output_cls,
                callback_manager=parts.manager,
            ),
            node_postprocessors=list(node_postprocessors),
            callback_manager=parts.manager,
        )

    return _owned(index, callback_manager, options, made)


def chat_engine(
    index: Pipeline | str | Path | None = None,
    *,
    mode: ChatMode | str = ChatMode.CONDENSE_PLUS_CONTEXT,
    cite: bool = True,
    system_prompt: str | None = None,
    memory: BaseMemory | None = None,
    chat_history: Sequence[ChatMessage] | None = None,
    node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    answer_without_nodes: bool = False,
    callback_manager: CallbackManager | None = None,
    **options: Any,
) -> EpicragContextChatEngine:
    """Open an index and return a chat engine over it: "context" or "condense_plus_context".

    `answer_without_nodes`: where nothing is found, answer from the conversation alone. The rest is as for
    `query_engine`.
    """
    kind = _kind(mode)

    def made(parts: _Parts) -> EpicragContextChatEngine:
        return kind.from_defaults(
            retriever=parts.retriever,
            llm=parts.llm,
            memory=memory,
            chat_history=chat_history,
            system_prompt=system_prompt,
            node_postprocessors=node_postprocessors,
            cite=cite,
            answer_without_nodes=answer_without_nodes,
            callback_manager=parts.manager,
        )

    return _owned(index, callback_manager, options, made)


def _kind(mode: ChatMode | str) -> type[EpicragContextChatEngine]:
    kinds = {
        ChatMode.CONTEXT.value: EpicragContextChatEngine,
        ChatMode.CONDENSE_PLUS_CONTEXT.value: EpicragCondensePlusContextChatEngine,
        ChatMode.BEST.value: EpicragCondensePlusContextChatEngine,
    }
    name = mode.value if isinstance(mode, ChatMode) else mode
    if name not in kinds:
        raise UsageError(
            f"there is no chat engine of mode {name!r}", f"possible: {', '.join(kinds)}"
        )
    return kinds[name]


def _owned(
    index: Pipeline | str | Path | None,
    callback_manager: CallbackManager | None,
    options: dict[str, Any],
    made: Callable[[_Parts], T],
) -> T:
    """Make an engine from its parts. A pipeline that was opened for it is its own, and closed if that fails."""
    search = {
        name: options.pop(name) for name in SEARCH if name in options
    }  # top_k among them: passages, not tokens
    settings = {name: options.pop(name) for name in SETTINGS if name in options}
    pipeline = _opened(index, options)
    manager = callback_manager or Settings.callback_manager
    try:
        llm = EpicragLLM(pipeline, callback_manager=manager, **settings)
        retriever = EpicragRetriever(pipeline, callback_manager=manager, **search)
        engine = made(_Parts(llm, retriever, manager))
    except BaseException:
        if pipeline is not index:
            pipeline.close()
        raise
    engine.pipeline, engine._owns = pipeline, pipeline is not index
    return engine


def _opened(index: Pipeline | str | Path | None, flags: dict[str, Any]) -> Pipeline:
    if not isinstance(index, str | Path | None):
        if flags:
            raise UsageError(
                f"a Pipeline that is open already cannot take {', '.join(flags)}",
                "give them to Pipeline.open(), or a folder in place of the Pipeline",
            )
        return index
    return Pipeline.open(index=index, **flags)
