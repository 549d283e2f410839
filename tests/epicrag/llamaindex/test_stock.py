"""LlamaIndex's own engines over EpicragLLM: they make one text of everything, and the passages are found in it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from llama_index.core import get_response_synthesizer
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine

from epicrag.config import Config
from epicrag.llamaindex import EpicragLLM, EpicragRetriever, use_tokenizer
from epicrag.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("loop")

DOCS = {
    "cat.txt": "the cat sat on the mat and the other cat sat on the other mat while it was raining.",
    "dog.md": "# dogs\n\n    the dog ran to the sea and to the hill, and the {dog} came back in the evening.",
    "sea.txt": "the sea is wide and the hill is high, and the house at the sea has a red door.",
}
QUESTION = "where is the cat?"
# A letter is about a token to the tiny model, and its window 1024.
CONTEXT = PromptTemplate("Context:\n{context_str}\n-----\nAnswer {query_str}")
MORE = PromptTemplate("{existing_answer}\nMore context:\n{context_msg}\n-----\nAnswer {query_str}")
TEMPLATES = {"text_qa_template": CONTEXT, "refine_template": MORE, "summary_template": CONTEXT}
MODES = [
    "compact",
    "refine",
    "tree_summarize",
    "simple_summarize",
    "accumulate",
]


def one_vector(text: str) -> np.ndarray:
    vector = np.ones(8, np.float32)
    vector[len(text) % 8] += 0.1
    return vector / np.linalg.norm(vector)


class AnyEmbedder:
    """All texts are about equally near."""

    name, fingerprint, dim = "any", "any-1", 8

    def query(self, text: str) -> np.ndarray:
        return one_vector(text)

    def passages(self, texts: list[str]) -> list[np.ndarray]:
        return [one_vector(text)[None] for text in texts]


@pytest.fixture(scope="module")
def pipeline(tiny_engine, tmp_path_factory):
    """A real index of three passages, and a real, tiny model."""
    folder = tmp_path_factory.mktemp("stock")
    docs = folder / "docs"
    docs.mkdir()
    for name, text in DOCS.items():
        (docs / name).write_text(text)
    lm = tiny_engine("llama")
    config = Config(home=folder, index=folder / "index", max_tokens=4)
    with Pipeline(
        config, create=True, embedder=AnyEmbedder(), engine=lm, counter=lm.tokenizer
    ) as made:
        made.ingest([docs], kv=False)
        made.ask(QUESTION, chunks=made.search(QUESTION))  # computes the KV of all three
        yield made


@pytest.fixture
def llm(pipeline):
    with use_tokenizer(found := EpicragLLM(pipeline)):
        yield found


@pytest.fixture
def retriever(pipeline):
    return EpicragRetriever(pipeline, min_score=-1.0)


def reused(raws) -> list[int]:
    return [raw["receipt"]["exact"] + raw["receipt"]["stitched"] for raw in raws]


@pytest.mark.parametrize("mode", MODES)
def test_a_response_mode_answers_and_reuses(llm, retriever, raws, mode):
    synthesizer = get_response_synthesizer(llm=llm, response_mode=mode, **TEMPLATES)
    response = RetrieverQueryEngine(retriever, synthesizer).query(QUESTION)
    assert str(response)
    assert len(response.source_nodes) == 3
    ids = {found.node.node_id for found in response.source_nodes}
    found = [source for raw in raws for source in raw["segments"]]
    assert set(found) <= ids
    # simple_summarize shows the model a list as Python writes it, line ends escaped.
    assert len(set(found)) >= (2 if mode == "simple_summarize" else 3)
    assert sum(reused(raws)) > 0


@pytest.mark.parametrize("kind", [ContextChatEngine, CondensePlusContextChatEngine])
def test_a_chat_engine_answers_and_reuses(llm, retriever, raws, kind):
    memory = ChatMemoryBuffer.from_defaults(token_limit=200)
    name = "context_template" if kind is ContextChatEngine else "context_prompt"
    refine = name.replace("context_", "context_refine_")
    short = {name: "Context:\n{context_str}\n-----\n", refine: "{existing_answer}{context_msg}"}
    engine = kind.from_defaults(  # (skip_condense: the tiny model writes no question)
        retriever, llm=llm, memory=memory, skip_condense=True, **short
    )
    first = engine.chat(QUESTION)
    second = engine.chat("and the {context_str}?")
    assert str(first)
    assert len(second.source_nodes) == 3
    assert len(raws[-1]["segments"]) == 3
    assert reused(raws)[-1] > 0
    streamed = "".join(engine.stream_chat("and the sea?").response_gen)
    assert streamed.strip() == engine.chat_history[-1].content


def test_a_conversation_without_documents_is_a_plain_one(llm, raws):
    engine = SimpleChatEngine.from_defaults(llm=llm, memory=ChatMemoryBuffer.from_defaults())
    engine.chat("hello")
    assert str(asyncio.run(engine.achat("and again?")))
    assert [raw["segments"] for raw in raws] == [[], []]


def test_the_answer_is_the_same_to_the_token_where_all_is_computed(pipeline, retriever, raws):
    """Finding passages changes what is computed, and nothing of what the model reads."""
    found = EpicragLLM(pipeline, link_policy="full")
    blind = EpicragLLM(pipeline, link_policy="full", recognise=False)
    for llm in (found, blind):
        with use_tokenizer(llm):
            synthesizer = get_response_synthesizer(llm=llm, response_mode="compact", **TEMPLATES)
            RetrieverQueryEngine(retriever, synthesizer).query(QUESTION)
    assert (len(raws[0]["segments"]), raws[1]["segments"]) == (3, [])
    assert raws[0]["usage"] == raws[1]["usage"]
    assert sum(raws[0]["segment_tokens"]) < raws[0]["usage"]["prompt_tokens"]
