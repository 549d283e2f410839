"""`query_engine()`: one line, from an index to answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine

import epicrag
from epicrag.ask import NOTHING_FOUND
from epicrag.config import Config
from epicrag.errors import IndexEmptyError, UsageError
from epicrag.llamaindex import query_engine
from epicrag.pipeline import Pipeline

QUESTION = "What is the door code?"
CITED = "The code is 4471. [1]"


def test_one_line_answers_with_sources(pipeline):
    engine = query_engine(pipeline)
    response = engine.query(QUESTION)
    assert isinstance(engine, RetrieverQueryEngine)
    assert str(response) == CITED
    assert len(response.source_nodes) == 3
    assert epicrag.query_engine is query_engine


def test_it_streams_and_it_is_awaited(pipeline):
    streaming = query_engine(pipeline, streaming=True)
    deltas = list(streaming.query(QUESTION).response_gen)
    assert len(deltas) > 1
    assert "".join(deltas) == CITED
    assert str(asyncio.run(query_engine(pipeline).aquery(QUESTION))) == CITED

    async def main():
        response = await streaming.aquery(QUESTION)
        return [delta async for delta in response.async_response_gen()]

    assert "".join(asyncio.run(main())) == CITED


def test_events_come_in_the_order_query_retrieval_synthesis_model(pipeline, events):
    query_engine(pipeline).query(QUESTION)
    assert events() == [
        "QueryStartEvent",
        "RetrievalStartEvent",
        "RetrievalEndEvent",
        "SynthesizeStartEvent",
        "GetResponseStartEvent",
        "LLMChatStartEvent",
        "LLMChatEndEvent",
        "GetResponseEndEvent",
        "SynthesizeEndEvent",
        "QueryEndEvent",
    ]


def test_usage_reaches_the_callback_manager_of_llamaindexs_settings(pipeline):
    counter = TokenCountingHandler(tokenizer=list)
    before = Settings.callback_manager
    Settings.callback_manager = CallbackManager([counter])
    try:
        str(query_engine(pipeline, streaming=True).query(QUESTION))
    finally:
        Settings.callback_manager = before
    (count,) = counter.llm_token_counts
    assert (count.prompt_token_count, count.completion_token_count) == (321, 5)


def test_options_reach_retriever_model_and_synthesizer(pipeline, engine):
    made = query_engine(
        pipeline, top_k=2, max_tokens=5, link_policy="full", system_prompt="S", cite=False
    )
    assert str(made.query(QUESTION)) == "The code is 4471."
    policy, sampling = engine.choices[0]
    assert (policy.name, sampling.max_tokens, engine.prompts[0].system) == ("full", 5, "S")
    assert pipeline.queries == [(QUESTION, 2)]


def test_postprocessors_run_between_retrieval_and_synthesis(pipeline, engine):
    cut = SimilarityPostprocessor(similarity_cutoff=0.75)
    response = query_engine(pipeline, node_postprocessors=[cut]).query(QUESTION)
    assert len(response.source_nodes) == len(engine.prompts[0].pieces) == 2


def test_nothing_relevant_means_no_model(pipeline, engine):
    pipeline.scores = [0.1, 0.1, 0.1]
    response = query_engine(pipeline).query("zebra?")
    assert str(response) == NOTHING_FOUND
    assert engine.prompts == []


def test_many_questions_at_once_get_each_its_answer(pipeline, engine):
    made = query_engine(pipeline)

    async def main():
        return await asyncio.gather(*(made.aquery(f"question {n}") for n in range(20)))

    assert [str(response) for response in asyncio.run(main())] == [CITED] * 20
    assert {prompt.question for prompt in engine.prompts} == {f"question {n}" for n in range(20)}


def test_a_pipeline_that_was_given_stays_open(pipeline):
    with query_engine(pipeline):
        pass
    assert not pipeline.is_closed


def test_an_index_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(IndexEmptyError):
        query_engine(tmp_path / "none", home=tmp_path)


def test_an_option_that_is_none_is_refused(pipeline, tmp_path):
    with pytest.raises(UsageError, match="temprature"):
        query_engine(pipeline, temprature=1)
    with pytest.raises(UsageError, match="temprature"):
        query_engine(tmp_path, temprature=1)


def test_the_face_imports_llamaindex_only_when_it_is_used():
    code = "import sys, epicrag.llamaindex; assert 'llama_index' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- with a real engine ---


def one_vector(text):
    import numpy as np

    vector = np.ones(8, np.float32)
    vector[len(text) % 8] += 0.1
    return vector / np.linalg.norm(vector)


class AnyEmbedder:
    """All texts are about equally near."""

    name, fingerprint, dim = "any", "any-1", 8

    def query(self, text):
        return one_vector(text)

    def passages(self, texts):
        return [one_vector(text)[None] for text in texts]


def test_a_real_engine_answers_from_a_folder_and_reuses_what_it_compiled(tiny_engine, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "cat.txt").write_text("the cat sat on the mat and said {hello}\n")
    (docs / "code.py").write_text("def cat():\n    return 'the mat'\n")
    lm = tiny_engine("llama")
    config = Config(home=tmp_path, index=tmp_path / "index", max_tokens=12)
    with Pipeline(
        config, create=True, embedder=AnyEmbedder(), engine=lm, counter=lm.tokenizer
    ) as pipeline:
        pipeline.ingest([docs], kv=False)
        made = query_engine(pipeline, cite=False)
        first = made.query("where is the cat?")
        second = made.query("and the mat?")
        streamed = query_engine(pipeline, streaming=True, cite=False).query("where is the cat?")
        deltas = list(streamed.response_gen)
        awaited = asyncio.run(made.aquery("where is the cat?"))
    assert len(first.source_nodes) == 2
    assert len(deltas) > 1
    assert "".join(deltas) == str(first) == str(awaited)
    receipt = second.metadata["receipt"]
    assert receipt["exact"] + receipt["stitched"] > 0
    assert receipt["context_tokens"] == sum(receipt[k] for k in ("exact", "stitched", "recomputed"))
    assert first.metadata["usage"]["completion_tokens"] <= 12
