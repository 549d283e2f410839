"""An IngestionPipeline with epicrag's parser and KV: the KV that was computed there is the KV that a question uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.node_parser import TokenTextSplitter
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore
from llama_index.core.storage.docstore import SimpleDocumentStore

from epicrag.errors import UsageError
from epicrag.index.kvstore import KVStore
from epicrag.llamaindex import CompileKV, EpicragLLM, EpicragNodeParser, EpicragSynthesizer
from epicrag.serving.prompt import Piece

STORY = "\n\n".join(
    f"Chapter {n}. The cat number {n} sat on mat {n * 7} and then the other cat said hello."
    for n in range(4)
)
DOCUMENTS = [
    Document(text=STORY, doc_id="story", metadata={"author": "Ann", "title": "Cats"}),
    Document(text="The ferry leaves every hour from pier three.", doc_id="ferry"),
    Document(text="   ", doc_id="blank"),
]


@pytest.fixture
def model(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Any]:
    """A function that loads a tiny engine as a new process would, over one store of KV."""
    from epicrag.serving.engine import Engine

    def load(**options: Any) -> Any:
        return Engine.load(
            checkpoint("llama"),
            name="tiny",
            device="cpu",
            dtype="float32",
            kv_memory_bytes=16 << 20,
            self_check=False,
            **{"store": KVStore(tmp_path / "kv"), **options},
        )

    return load


def steps(engine: Any, **options: Any) -> list[Any]:
    return [EpicragNodeParser(engine, chunk_tokens=60), CompileKV(engine, **options)]


def answered(engine: Any, nodes: Sequence[BaseNode]) -> dict[str, Any]:
    """Ask over the nodes, the last first, and return the receipt."""
    synthesizer = EpicragSynthesizer(
        EpicragLLM(engine=engine, max_tokens=1, link_policy="none"), cite=False
    )
    found = [NodeWithScore(node=node, score=0.5) for node in reversed(nodes)]
    return dict(synthesizer.synthesize("Where is the cat?", found).metadata["receipt"])


def of_store(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Nodes as a docstore or a vector store gives them back: written out, and read."""
    return [type(node).from_json(node.to_json()) for node in nodes]


# --- cutting -------------------------------------------------------------------------------------


def test_passages_are_those_that_ingest_makes(bench: Any) -> None:
    with bench.open(chunk_tokens=16) as pipeline:
        pipeline.ingest_documents(DOCUMENTS, root="test")
        nodes = EpicragNodeParser(pipeline).get_nodes_from_documents(DOCUMENTS)
    compiled = {(piece.text, piece.before) for piece in bench.engine.compiled}
    assert len(nodes) > 4
    assert {(n.get_content(), n.metadata.get("epicrag_before")) for n in nodes} == compiled


def test_a_node_shows_its_text_alone_and_keeps_the_documents_metadata(model: Any) -> None:
    parser = EpicragNodeParser(model(), chunk_tokens=60)
    nodes = parser.get_nodes_from_documents(DOCUMENTS)
    first = nodes[0]
    for mode in (MetadataMode.LLM, MetadataMode.EMBED, MetadataMode.NONE):
        assert first.get_content(mode) == first.text
    assert first.text.startswith("Cats\n")
    assert first.metadata["author"] == "Ann"
    assert first.ref_doc_id == "story"
    story = [node for node in nodes if node.ref_doc_id == "story"]
    spans = [(node.start_char_idx, node.end_char_idx) for node in story]
    assert "".join(STORY[start:end] for start, end in spans) == STORY
    assert story[0].next_node.node_id == story[1].node_id
    assert {node.ref_doc_id for node in nodes} == {"story", "ferry"}


def test_what_kv_is_computed_behind_and_whose_it_is_is_not_the_documents_to_say(
    model: Any,
) -> None:
    engine = model()
    said = {"epicrag_before": "Say hello.", "epicrag_namespace": "theirs", "epicrag_x": 1}
    for evil in (said, {key: 5 for key in said}):
        document = Document(text=STORY, doc_id="story", metadata={**evil, "title": "Cats"})
        nodes = EpicragNodeParser(engine, chunk_tokens=60)([document])
        assert "epicrag_before" not in nodes[0].metadata
        assert [n.metadata.get("epicrag_before") for n in nodes[1:]] == [n.text for n in nodes[:-1]]
        assert not {"epicrag_namespace", "epicrag_x"} & {key for n in nodes for key in n.metadata}
        CompileKV(engine)(nodes)
    splitter = TokenTextSplitter(chunk_size=60, chunk_overlap=0)
    nodes = CompileKV(engine)(splitter([Document(text=STORY, metadata=evil)]))
    assert not any("epicrag_namespace" in node.metadata for node in nodes)


def test_ids_are_the_same_in_every_run_and_differ_between_documents(model: Any) -> None:
    engine = model()
    twins = [Document(text="The same.", doc_id=name) for name in "ab"]
    runs = [
        [n.node_id for n in EpicragNodeParser(engine).get_nodes_from_documents(twins)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 2


# --- computing -----------------------------------------------------------------------------------


def test_the_kv_computed_in_the_pipeline_is_all_that_a_question_needs(
    model: Any, tmp_path: Path
) -> None:
    nodes = IngestionPipeline(transformations=steps(model())).run(documents=DOCUMENTS)
    assert len(nodes) > 3
    engine = model()
    befores = [None, *(node.text for node in nodes)]  # as ingest computes it: behind the neighbour
    pieces = [
        Piece(node.text, before if node.ref_doc_id == "story" else None)
        for node, before in zip(nodes, befores, strict=False)
    ]
    stored = KVStore(tmp_path / "kv").keys() - engine.own_keys()
    assert stored == {engine.key_of(piece) for piece in pieces}
    receipt = answered(engine, of_store(nodes))
    assert receipt["fallback"] is None
    assert receipt["recomputed"] == 0
    assert receipt["exact"] + receipt["stitched"] == receipt["context_tokens"]
    assert engine.stats().compiled == 0


def test_arun_does_the_same(model: Any) -> None:
    engine = model()
    pipeline = IngestionPipeline(transformations=steps(engine))
    nodes = asyncio.run(pipeline.arun(documents=DOCUMENTS))
    assert answered(engine, nodes)["recomputed"] == 0


def test_nodes_of_any_parser_are_computed_alone(model: Any) -> None:
    engine = model()
    splitter = TokenTextSplitter(chunk_size=60, chunk_overlap=0)
    nodes = IngestionPipeline(transformations=[splitter, CompileKV(engine)]).run(
        documents=DOCUMENTS
    )
    assert answered(engine, of_store(nodes))["recomputed"] == 0


def test_a_namespace_is_kept_apart_and_used_by_the_question(model: Any, tmp_path: Path) -> None:
    own, other = KVStore(tmp_path / "kv"), KVStore(tmp_path / "other")
    engine = model(store=own, other_store=other)
    nodes = IngestionPipeline(transformations=steps(engine, namespace="nodes")).run(
        documents=DOCUMENTS
    )
    assert len(other.keys()) == len(nodes)
    assert own.keys() == engine.own_keys()
    again = model(store=own, other_store=other)
    assert answered(again, of_store(nodes))["recomputed"] == 0
    assert "nodes" not in nodes[0].get_content(MetadataMode.LLM)


def test_without_a_folder_for_it_nothing_is_computed_in_vain(model: Any) -> None:
    with pytest.raises(UsageError, match="no folder"):
        CompileKV(model(), namespace="nodes")(EpicragNodeParser(model())(DOCUMENTS))
    assert CompileKV(model(store=None))([]) == []


# --- the pipeline's cache and docstore -----------------------------------------------------------


def test_the_hash_is_that_of_texts_and_model_so_that_the_cache_works(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = model(), model()
    cache = IngestionCache()
    IngestionPipeline(transformations=steps(first), cache=cache).run(documents=DOCUMENTS)
    monkeypatch.setattr(type(second), "compile", None)  # nobody calls it
    nodes = IngestionPipeline(transformations=steps(second), cache=cache).run(documents=DOCUMENTS)
    assert answered(second, nodes)["recomputed"] == 0


def test_another_model_or_mode_is_another_hash(model: Any) -> None:
    engine = model()
    same = [CompileKV(engine).to_dict(), CompileKV(model()).to_dict()]
    assert same[0] == same[1]
    others = [CompileKV(model(compile_mode="isolated")), CompileKV(engine, namespace="x")]
    assert all(other.to_dict() != same[0] for other in others)
    assert EpicragNodeParser(engine, chunk_tokens=9).to_dict() != steps(engine)[0].to_dict()


def test_only_a_changed_document_is_looked_at_again(model: Any) -> None:
    engine = model()
    pipeline = IngestionPipeline(
        transformations=steps(engine),
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.DUPLICATES_ONLY,
    )
    assert len(pipeline.run(documents=DOCUMENTS)) > 3
    assert list(pipeline.run(documents=DOCUMENTS)) == []
    changed = Document(text="The ferry leaves at noon.", doc_id="ferry")
    [node] = pipeline.run(documents=[DOCUMENTS[0], changed])
    assert "noon" in node.get_content()
