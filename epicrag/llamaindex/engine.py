"""`query_engine()`: an epicrag index as a LlamaIndex query engine, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.settings import Settings
from llama_index.core.vector_stores.types import MetadataFilters

from epicrag.errors import UsageError
from epicrag.llamaindex.llm import SETTINGS, EpicragLLM
from epicrag.llamaindex.retriever import EpicragRetriever
from epicrag.llamaindex.synthesizer import EpicragSynthesizer
from epicrag.pipeline import Pipeline


class EpicragQueryEngine(RetrieverQueryEngine):
    """A query engine over one pipeline; `close`, or leaving a `with` block, closes one that it opened."""

    pipeline: Pipeline
    _owns: bool = False

    def close(self) -> None:
        if self._owns:
            self.pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def query_engine(
    index: Pipeline | str | Path | None = None,
    *,
    streaming: bool = False,
    cite: bool = True,
    top_k: int | None = None,
    min_score: float | None = None,
    filters: MetadataFilters | str | None = None,
    system_prompt: str | None = None,
    node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    callback_manager: CallbackManager | None = None,
    **options: Any,
) -> EpicragQueryEngine:
    """Open an index (a folder, a Pipeline, or the configured one) and return a query engine over it.

    `top_k`, `min_score` and `filters` limit retrieval. `options` are settings of the model (max_tokens, temperature,
    top_p, seed, stop, link_policy) and, unless a Pipeline is given, of the configuration (model,
    embed_model, device …). UsageError: an option is neither. IndexEmptyError: there is no such index.
    """
    settings = {name: options.pop(name) for name in SETTINGS if name in options}
    pipeline = _opened(index, options)
    manager = callback_manager or Settings.callback_manager
    try:
        llm = EpicragLLM(pipeline, callback_manager=manager, **settings)
        engine = EpicragQueryEngine(
            retriever=EpicragRetriever(
                pipeline, top_k, min_score=min_score, filters=filters, callback_manager=manager
            ),
            response_synthesizer=EpicragSynthesizer(
                llm,
                system_prompt=system_prompt,
                streaming=streaming,
                cite=cite,
                callback_manager=manager,
            ),
            node_postprocessors=list(node_postprocessors),
            callback_manager=manager,
        )
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
