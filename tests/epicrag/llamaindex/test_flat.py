"""LlamaIndex's own engines, which make one text of everything, over a real engine: they reuse what they keep whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer

from epicrag.index.kvstore import KVStore
from epicrag.llamaindex import EpicragLLM, EpicragRetriever
from epicrag.pipeline import Pipeline

FERRY = (
    "The ferry to the island leaves every hour from pier three and it takes a quarter of an hour."
)
MUSEUM = "The harbour museum opens at ten on the island and its door code is 4471, says the keeper."
QUESTION = "when does the ferry to the island museum leave"


class Letters:
    """Counts tokens for LlamaIndex's own budget, which is not what is tested here."""

    def __call__(self, text: str) -> list[str]:
        return text.split()


@pytest.fixture(scope="module")
def engine(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from epicrag.serving.engine import Engine

    return Engine.load(
        checkpoint("llama"),
        name="tiny",
        store=KVStore(tmp_path_factory.mktemp("kv")),
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        kv_memory_bytes=32 << 20,
        self_check=False,
    )


@pytest.fixture(scope="module")
def words() -> Iterator[None]:
    from llama_index.core import global_tokenizer, set_global_tokenizer

    before = global_tokenizer
    set_global_tokenizer(Letters())
    yield
    set_global_tokenizer(before)


@pytest.fixture
def pipeline(bench: Any, engine: Any, words: None) -> Iterator[Pipeline]:
    """An index of two passages, compiled; the second stands behind the first in its document."""
    bench.write("island.md", f"# Island\n\n{FERRY}\n\n## Museum\n\n{MUSEUM}\n")
    made = Pipeline(
        replace(bench.config, chunk_tokens=150, max_tokens=6, system_prompt="be brief"),
        create=True,
        embedder=bench.embedder,
        engine=engine,
        counter=engine.tokenizer,
    )
    with made:
        made.ingest([bench.docs])
        list(engine.compile(made.prompt("?", made.search(QUESTION)).pieces))
        made.recogniser.prepare(wait=True)
        yield made


class Seen:
    """The receipts and texts of an LLM's answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raw: list[dict[str, Any]] = []
        answer = EpicragLLM._answer

        def noted(this: EpicragLLM, *args: Any) -> Iterator[Any]:
            last = None
            for last in answer(this, *args):
                yield last
            self.raw.append(dict(last.raw, text=last.message.content))

        monkeypatch.setattr(EpicragLLM, "_answer", noted)


MODES = [ResponseMode.COMPACT, ResponseMode.TREE_SUMMARIZE, ResponseMode.ACCUMULATE]


@pytest.mark.parametrize("mode", MODES)
def test_stock_query_engines_reuse(pipeline: Pipeline, mode: ResponseMode, monkeypatch):
    llm = EpicragLLM(pipeline, link_policy="none")
    seen = Seen(monkeypatch)
    stock = RetrieverQueryEngine(
        EpicragRetriever(pipeline, min_score=0.0),
        get_response_synthesizer(llm=llm, response_mode=mode),
    )
    stock.query(QUESTION)
    passages = [node.node.text.strip() for node in stock.retrieve(QUESTION)]
    assert len(passages) == 2
    tokens = sum(len(pipeline.engine.tokenizer.ids(text)) for text in passages)
    receipts = [raw["receipt"] for raw in seen.raw]
    # Line ends that others put behind a passage may be those it ends with.
    assert abs(sum(receipt["stitched"] for receipt in receipts) - tokens) <= 8
    assert sum(receipt["recomputed"] for receipt in receipts) == 0
    assert sum(len(raw["segments"]) for raw in seen.raw) == 2


def test_under_full_the_answer_is_the_same_as_without_looking(pipeline: Pipeline, monkeypatch):
    llm = EpicragLLM(pipeline, link_policy="full", max_tokens=12)
    blind = EpicragLLM(pipeline, link_policy="full", max_tokens=12, recognise=False)
    seen = Seen(monkeypatch)
    for one in (llm, blind):
        synthesizer = get_response_synthesizer(llm=one, response_mode=ResponseMode.COMPACT)
        nodes = EpicragRetriever(pipeline, min_score=0.0).retrieve(QUESTION)
        synthesizer.synthesize(QUESTION, nodes)
    looked, not_looked = seen.raw
    assert looked["segments"]
    assert not not_looked["segments"]
    assert looked["text"] == not_looked["text"]
    assert looked["usage"] == not_looked["usage"]


def test_stock_chat_engine_reuses_in_every_turn(pipeline: Pipeline, monkeypatch):
    llm = EpicragLLM(pipeline, link_policy="none", max_tokens=4)
    seen = Seen(monkeypatch)
    chat = ContextChatEngine.from_defaults(
        retriever=EpicragRetriever(pipeline, min_score=0.0),
        llm=llm,
        memory=ChatMemoryBuffer.from_defaults(token_limit=10_000),
        context_template="Context:\n{context_str}\n",
    )
    chat.chat(QUESTION)
    chat.chat("and what is the door code of the museum")
    assert len(seen.raw) == 2
    for raw in seen.raw:
        assert raw["receipt"]["stitched"] > 100


def test_completion_of_a_flat_text_reuses(pipeline: Pipeline):
    llm = EpicragLLM(pipeline, link_policy="none", max_tokens=4)
    (first, *_) = pipeline.search("ferry")
    response = llm.complete(f"Read this:\n\n{first.chunk.text.strip()}\n\nSay it shorter.")
    assert response.raw["receipt"]["stitched"] > 40
