"""Retriever and model as parts of LlamaIndex's own: postprocessors, fusion, routers, sub-questions, events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, TextBlock
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.postprocessor import (
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    SimilarityPostprocessor,
)
from llama_index.core.query_engine import (
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
)
from llama_index.core.question_gen.llm_generators import LLMQuestionGenerator
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.settings import Settings
from llama_index.core.tools import QueryEngineTool
from llama_index.core.utils import get_tokenizer

from epicrag.llamaindex import (
    EpicragLLM,
    EpicragRetriever,
    EpicragSynthesizer,
    chat_engine,
    query_engine,
    use_tokenizer,
)

QUESTION = "What is the door code?"
CITED = "The code is 4471. [1]"


def asked(make, *, is_async: bool):
    """Ask an engine that `make` makes, waiting or awaiting: the response."""
    if not is_async:
        return make.query(QUESTION) if hasattr(make, "query") else make.chat(QUESTION)
    return asyncio.run(make.aquery(QUESTION) if hasattr(make, "aquery") else make.achat(QUESTION))


# --- postprocessors, through both faces ---


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("face", [query_engine, chat_engine])
def test_stock_postprocessors_choose_order_and_replace(pipeline, engine, chunks, face, is_async):
    made = face(
        pipeline,
        node_postprocessors=[
            SimilarityPostprocessor(similarity_cutoff=0.65),
            MetadataReplacementPostProcessor(target_metadata_key="heading"),
            LongContextReorder(),
        ],
    )
    response = asked(made, is_async=is_async)
    texts = [piece.text for piece in engine.prompts[0].pieces]
    assert sorted(texts) == sorted([chunks[0].model_text, "Code", chunks[2].model_text])
    assert texts != [chunks[0].model_text, "Code", chunks[2].model_text]
    assert [found.node.get_content() for found in response.source_nodes] == texts


def test_the_model_itself_can_rerank(pipeline, engine, llm):
    engine.says = lambda prompt: (
        "Doc: 3, Relevance: 9\nDoc: 1, Relevance: 7" if "Relevance" in str(prompt) else None
    )
    rerank = LLMRerank(llm=llm, top_n=1)
    response = query_engine(pipeline, node_postprocessors=[rerank]).query(QUESTION)
    assert len(response.source_nodes) == 1
    assert engine.prompts[-1].pieces[0].text.strip() == "Goods can be returned within 45 days."


@pytest.mark.parametrize("face", [query_engine, chat_engine])
def test_search_options_reach_the_search(pipeline, face):
    made = face(
        pipeline, filters="year>=2020", search_mode="words", weights=(0.5, 2.0), rerank=False
    )
    asked(made, is_async=False)
    assert pipeline.filters == ["year>=2020"]
    assert pipeline.options == [{"mode": "words", "weights": (0.5, 2.0), "rerank": False}]


# --- parts of others ---


def test_fusion_asks_several_questions_and_each_passage_stands_once(pipeline, engine, llm):
    engine.says = lambda prompt: "the code?\nthe door?" if "search queries" in str(prompt) else None
    retrievers = [EpicragRetriever(pipeline), EpicragRetriever(pipeline, 2)]
    fused = QueryFusionRetriever(
        retrievers, llm=llm, num_queries=3, similarity_top_k=3, mode="reciprocal_rerank"
    )
    response = asyncio.run(RetrieverQueryEngine(fused, EpicragSynthesizer(llm)).aquery(QUESTION))
    assert str(response) == CITED
    assert {query for query, _ in pipeline.queries} == {QUESTION, "the code?", "the door?"}
    assert len(engine.prompts[-1].pieces) == 3


def tools(*engines):
    return [
        QueryEngineTool.from_defaults(made, name=f"tool{n}", description=f"Tool number {n}.")
        for n, made in enumerate(engines)
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_router_chooses_by_the_models_words(pipeline, engine, llm, is_async):
    choice = json.dumps([{"choice": 2, "reason": "r"}])
    engine.says = lambda prompt: choice if "choices" in str(prompt) else None
    engines = [query_engine(pipeline, top_k=1), query_engine(pipeline, top_k=2)]
    router = RouterQueryEngine(
        selector=LLMSingleSelector.from_defaults(llm=llm),
        query_engine_tools=tools(*engines),
        llm=llm,
    )
    response = asked(router, is_async=is_async)
    assert str(response) == CITED
    assert len(response.source_nodes) == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_sub_questions_are_answered_each_from_the_index(pipeline, engine, llm, is_async):
    items = [{"sub_question": "Which door?", "tool_name": "tool0"}]
    engine.says = lambda prompt: (
        f"```json\n{json.dumps({'items': items})}\n```" if "sub_question" in str(prompt) else None
    )
    made = SubQuestionQueryEngine.from_defaults(
        tools(query_engine(pipeline)),
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm=llm),
        response_synthesizer=EpicragSynthesizer(llm),
        use_async=is_async,
        verbose=False,
    )
    response = asked(made, is_async=is_async)
    assert pipeline.queries[0][0] == "Which door?"
    assert "Sub question: Which door?" in engine.prompts[-1].pieces[0].text
    assert str(response).startswith("The code is 4471.")


# --- at the same time ---


def test_a_search_does_not_wait_for_an_answer(pipeline, engine):
    """Retrieval has a lock of its own: an answer that takes long holds up no search."""
    engine.gate = threading.Event()
    made = query_engine(pipeline)

    async def main():
        slow = asyncio.create_task(made.aquery(QUESTION))
        while not engine.generations:
            await asyncio.sleep(0.001)
        found = await asyncio.gather(*(made.retriever.aretrieve("q") for _ in range(8)))
        assert not slow.done()
        engine.gate.set()
        return found, await slow

    found, response = asyncio.run(main())
    assert [len(nodes) for nodes in found] == [3] * 8
    assert str(response) == CITED


# --- both systems of events, and counting ---

ONCE = [
    "RetrievalStartEvent",
    "RetrievalEndEvent",
    "SynthesizeStartEvent",
    "SynthesizeEndEvent",
    "GetResponseStartEvent",
    "GetResponseEndEvent",
    "LLMChatStartEvent",
    "LLMChatEndEvent",
]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("face", [query_engine, chat_engine])
def test_each_step_is_told_once_in_either_system(pipeline, events, face, is_async):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    made = face(pipeline, callback_manager=CallbackManager([debug]))
    asked(made, is_async=is_async)
    told = Counter(events())
    assert {name: told[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
    for kind in (CBEventType.RETRIEVE, CBEventType.SYNTHESIZE, CBEventType.LLM):
        assert len(debug.get_event_pairs(kind)) == 1, kind
    assert len(debug.get_event_pairs(CBEventType.QUERY)) == (face is query_engine)


def test_events_of_a_failure_end_too(pipeline, engine):
    engine.failure = RuntimeError("out of luck")
    debug = LlamaDebugHandler(print_trace_on_end=False)
    with pytest.raises(RuntimeError, match="luck"):
        query_engine(pipeline, callback_manager=CallbackManager([debug])).query(QUESTION)
    for kind in (CBEventType.QUERY, CBEventType.SYNTHESIZE, CBEventType.LLM):
        assert len(debug.get_event_pairs(kind)) == 1, kind


def test_events_name_the_segments_of_every_message_and_their_tokens(pipeline, raws):
    def cited(source):
        return CitableBlock(title="", source=source, content=[TextBlock(text=f"<{source}>")])

    messages = [
        ChatMessage(role="system", blocks=[TextBlock(text="s"), cited("one")]),
        ChatMessage(role="user", blocks=[cited("three"), TextBlock(text="q")]),
    ]
    EpicragLLM(pipeline).chat(messages)
    list(EpicragLLM(pipeline).stream_chat(messages))
    for raw in raws:
        assert raw["segments"] == ["one", "three"]
        assert raw["segment_tokens"] == [5, 7]
    assert len(raws) == 2


def test_llamaindex_counts_with_the_models_tokenizer_where_it_is_told_to(llm):
    before = get_tokenizer()
    with use_tokenizer(llm):
        assert Settings.tokenizer("twelve chars") == [ord(letter) for letter in "twelve chars"]
    assert get_tokenizer() is before
