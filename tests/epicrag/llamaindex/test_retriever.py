"""Passages as nodes: what the model sees of them is the chunk's own text."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from llama_index.core.schema import MetadataMode, QueryBundle

from epicrag.llamaindex import EpicragRetriever
from epicrag.llamaindex.retriever import to_node
from epicrag.types import Hit


def test_nodes_carry_id_place_and_score(pipeline, chunks):
    found = EpicragRetriever(pipeline).retrieve("code?")
    assert [n.node.node_id for n in found] == [chunk.id for chunk in chunks]
    assert [n.score for n in found] == pipeline.scores
    node = found[1].node
    assert (node.start_char_idx, node.end_char_idx) == (chunks[1].start, chunks[1].end)
    assert node.ref_doc_id == "/docs/house.md"
    assert {
        key: node.metadata[key] for key in ("file_path", "file_name", "page", "lines", "heading")
    } == {
        "file_path": "/docs/house.md",
        "file_name": "house.md",
        "page": 2,
        "lines": [2, 4],
        "heading": "Code",
    }
    assert "page" not in found[0].node.metadata


def test_the_text_for_model_and_embedder_is_the_chunks_own_to_the_byte(pipeline, chunks):
    found = EpicragRetriever(pipeline).retrieve("code?")
    for mode in (MetadataMode.LLM, MetadataMode.EMBED, MetadataMode.NONE):
        assert [n.node.get_content(metadata_mode=mode) for n in found] == [
            c.model_text for c in chunks
        ]
    assert found[1].node.text.startswith("Code\n    indented")


def test_top_k_is_the_configured_one_unless_it_is_given(pipeline):
    EpicragRetriever(pipeline).retrieve("a")
    assert len(EpicragRetriever(pipeline, 2).retrieve("b")) == 2
    assert pipeline.queries == [("a", pipeline.config.top_k), ("b", 2)]


def test_nothing_is_found_when_even_the_best_is_too_far_away(pipeline):
    pipeline.scores = [0.1, 0.05, 0.0]
    assert EpicragRetriever(pipeline).retrieve("zebra") == []
    assert len(EpicragRetriever(pipeline, min_score=-1.0).retrieve("zebra")) == 3


def test_a_transformed_query_is_what_is_embedded(pipeline):
    bundle = QueryBundle("q", custom_embedding_strs=["a made-up answer"])
    EpicragRetriever(pipeline).retrieve(bundle)
    assert pipeline.queries[0][0] == "a made-up answer"


def test_async_retrieval_leaves_the_loops_thread(pipeline, chunks):
    found = asyncio.run(EpicragRetriever(pipeline).aretrieve("code?"))
    assert len(found) == len(chunks)
    assert threading.current_thread().name not in pipeline.threads


def test_a_path_that_is_no_unicode_makes_a_node_all_the_same(chunks):
    chunk = replace(chunks[0], document="/docs/\udce9t\udce9.txt")
    node = to_node(Hit(1, chunk, 0.5)).node
    assert node.metadata["file_path"] == "/docs/\ufffdt\ufffd.txt"
    assert node.hash
