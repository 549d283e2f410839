"""`EpicragRetriever`: the passages of an epicrag index as LlamaIndex nodes."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    ObjectType,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import MetadataFilters

from epicrag.llamaindex.blocks import ROW_KEY
from epicrag.llamaindex.filters import to_filter

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline
    from epicrag.types import Hit


SEARCH = ("top_k", "min_score", "filters", "search_mode", "weights", "rerank")
"""What may be set for the search."""


class EpicragRetriever(BaseRetriever):
    """Finds the `top_k` best passages of an index; none, when they do not speak of what was asked.

    A score is a cosine similarity, whatever ranked the passages. `min_score` is the one that the best must have;
    where neither it nor the configuration sets one, relevance is judged as `ask` does. `filters` are
    LlamaIndex's, or a filter as the command line takes it: `year>=2020 and path~"manual/*"`. `search_mode`,
    `weights` (dense, words) and `rerank` (a model, or False) are as configured unless they are given.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        top_k: int | None = None,
        *,
        min_score: float | None = None,
        filters: MetadataFilters | str | None = None,
        search_mode: str | None = None,
        weights: tuple[float, float] | None = None,
        rerank: str | bool | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager=callback_manager)
        self._pipeline = pipeline
        self._top_k = pipeline.config.top_k if top_k is None else top_k
        self._min_score = min_score
        self._filter = to_filter(filters) if isinstance(filters, MetadataFilters) else filters
        choices: dict[str, Any] = {"mode": search_mode, "weights": weights, "rerank": rerank}
        self._choices = {name: value for name, value in choices.items() if value is not None}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        # A query transformation (HyDE) puts what it wants embedded in place of the question.
        query = "\n".join(query_bundle.embedding_strs)
        with self._pipeline.turn:
            found = self._pipeline.find(query, k=self._top_k, filter=self._filter, **self._choices)
        if self._min_score is not None:
            is_relevant = any(hit.score >= self._min_score for hit in found.hits)
        else:
            is_relevant = found.relevance.is_relevant
        return [to_node(hit) for hit in found.hits] if is_relevant else []

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def to_node(hit: Hit) -> NodeWithScore:
    """A passage as a node: its text, shown in any mode but ALL, is the chunk's `model_text` to the byte.

    `start_char_idx` and `end_char_idx` span the chunk in its document, without the header line.
    """
    chunk, place = hit.chunk, hit.chunk.place
    # A path that is not UTF-8 cannot be a pydantic string.
    path = chunk.document.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    about: dict[str, Any] = {
        "file_path": path,
        "file_name": PurePosixPath(path).name,
        "title": chunk.title,
        "page": place.page,
        "lines": list(place.lines) if place.lines else None,
        "heading": place.heading,
        "part": place.part,
        "cells": list(place.cells) if place.cells else None,
        ROW_KEY: hit.row,
    }
    metadata = {key: value for key, value in about.items() if value is not None}
    source = RelatedNodeInfo(
        node_id=path, node_type=ObjectType.DOCUMENT, metadata={"file_path": path}
    )
    node = TextNode(
        id_=chunk.id,
        text=chunk.model_text,
        start_char_idx=chunk.start,
        end_char_idx=chunk.end,
        metadata=metadata,
        excluded_llm_metadata_keys=list(metadata),
        excluded_embed_metadata_keys=list(metadata),
        relationships={NodeRelationship.SOURCE: source},
    )
    return NodeWithScore(node=node, score=hit.score)
