"""Nodes to an answer, in four ways: at once and streamed, waited for and awaited."""

from __future__ import annotations

import asyncio
import threading

import pytest
from llama_index.core.llms.mock import MockLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeWithScore, TextNode

from epicrag.ask import NO_ROOM, NOTHING_FOUND
from epicrag.config import DEFAULT_LINK_POLICY
from epicrag.errors import UsageError
from epicrag.llamaindex import EpicragRetriever, EpicragSynthesizer
from epicrag.llamaindex.draft import NO_WORDS

WAYS = [(False, False), (True, False), (False, True), (True, True)]
QUESTION = "What is the {door} code?"
CITED = "The code is 4471. [1]"


@pytest.fixture
def nodes(pipeline):
    return EpicragRetriever(pipeline).retrieve(QUESTION)


def answer(llm, nodes, way=(False, False), **options):
    """Synthesize in one of the ways and read the answer to its end: the response, and its text."""
    streaming, is_async = way
    synthesizer = EpicragSynthesizer(llm, streaming=streaming, **options)
    if not is_async:
        response = synthesizer.synthesize(QUESTION, nodes)
        return response, str(response)

    async def main():
        response = await synthesizer.asynthesize(QUESTION, nodes)
        return response, str(await response.get_response() if streaming else response)

    return asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_the_answer_cites_and_names_its_sources_and_its_cost(llm, nodes, chunks, way):
    response, text = answer(llm, nodes, way)
    assert text == CITED
    assert [n.node.node_id for n in response.source_nodes] == [chunk.id for chunk in chunks]
    about = response.metadata
    assert (about["policy"], about["dropped"], about["cited"]) == (
        DEFAULT_LINK_POLICY,
        0,
        [1],
    )
    assert about["usage"] == {"prompt_tokens": 321, "completion_tokens": 5}
    assert about["receipt"]["stitched"] == 150
    assert about["answered"] is True
    assert about[chunks[0].id]["file_name"] == "house.md"


@pytest.mark.parametrize("way", WAYS)
def test_segments_reach_the_engine_byte_for_byte(llm, engine, nodes, chunks, way):
    answer(llm, nodes, way)
    prompt = engine.prompts[0]
    assert [piece.text for piece in prompt.pieces] == [chunk.model_text for chunk in chunks]
    assert [piece.before for piece in prompt.pieces] == [None, *(c.model_text for c in chunks[:2])]
    assert prompt.question == QUESTION
    assert prompt.system == llm.documents_prompt


def test_the_order_of_the_nodes_is_kept_and_equal_texts_are_sent_once(llm, engine, nodes):
    copy = NodeWithScore(node=TextNode(text=nodes[0].node.text, id_="copy"))
    response, _ = answer(llm, [nodes[2], nodes[0], copy, nodes[1]])
    assert [p.text for p in engine.prompts[0].pieces] == [nodes[i].node.text for i in (2, 0, 1)]
    assert [n.node.node_id for n in response.source_nodes] == [
        nodes[i].node.node_id for i in (2, 0, 1)
    ]
    assert response.metadata["cited"] == [2]


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_fit_leaves_the_sources_and_is_counted(llm, engine, nodes, way):
    engine.fits = 1
    response, text = answer(llm, nodes, way)
    assert text == CITED
    assert [n.node.node_id for n in response.source_nodes] == [nodes[0].node.node_id]
    assert response.metadata["dropped"] == 2
    assert response.metadata["receipt"]["dropped_chunks"] == 2
    assert nodes[1].node.node_id not in response.metadata


@pytest.mark.parametrize("way", WAYS)
def test_when_no_passage_fits_it_says_so(llm, engine, nodes, way):
    engine.fits = 0
    response, text = answer(llm, nodes, way)
    assert text == NO_ROOM
    assert (response.source_nodes, response.metadata["dropped"]) == ([], 3)
    assert response.metadata["answered"] is False


@pytest.mark.parametrize("way", WAYS)
def test_without_nodes_it_says_so_and_asks_no_model(llm, engine, way):
    response, text = answer(llm, [], way)
    assert text == NOTHING_FOUND
    assert (engine.prompts, response.source_nodes) == ([], [])
    assert (response.metadata["answered"], response.metadata["receipt"]) == (False, None)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_writes_nothing_is_told_apart(llm, engine, nodes, way):
    engine.answer = ()
    response, text = answer(llm, nodes, way)
    assert text == NO_WORDS
    assert response.metadata["answered"] is False
    assert response.metadata["usage"]["prompt_tokens"] == 321


def test_nodes_of_other_retrievers_show_their_metadata_and_need_no_index(llm, engine):
    foreign = NodeWithScore(node=TextNode(text="  The code is 4471.", metadata={"year": 2020}))
    response, _ = answer(llm, [foreign])
    assert engine.prompts[0].pieces[0].text == "year: 2020\n\n  The code is 4471."
    assert engine.prompts[0].pieces[0].before is None
    assert response.source_nodes == [foreign]


def test_a_stream_gives_its_first_words_before_the_last_token(llm, engine, nodes):
    engine.gate = threading.Event()
    response = EpicragSynthesizer(llm, streaming=True).synthesize(QUESTION, nodes)
    assert len(response.source_nodes) == 3
    assert next(response.response_gen) == "The"
    assert engine.generations[0].given < 5
    engine.gate.set()
    assert len(list(response.response_gen)) > 1


def test_a_stream_left_halfway_blocks_no_other_question(llm, engine, nodes):
    synthesizer = EpicragSynthesizer(llm, streaming=True)
    left = synthesizer.synthesize(QUESTION, nodes)
    next(left.response_gen)
    assert engine.generations[0].closed.wait(5)  # it ended by itself, though nobody reads
    assert str(synthesizer.synthesize(QUESTION, nodes)) == CITED


def test_citing_can_be_left_to_the_model(llm, nodes):
    response, text = answer(llm, nodes, cite=False)
    assert text == "The code is 4471."
    assert response.metadata["cited"] == []
    assert response.metadata["answered"] is True


def test_additional_source_nodes_are_listed_but_not_read(llm, engine, nodes):
    extra = NodeWithScore(node=TextNode(text="extra", id_="extra"))
    response = EpicragSynthesizer(llm).synthesize(QUESTION, nodes, [extra])
    assert response.source_nodes[-1] is extra
    assert len(engine.prompts[0].pieces) == 3


def test_settings_can_be_given_to_one_synthesis(llm, engine, nodes):
    EpicragSynthesizer(llm).synthesize(QUESTION, nodes, max_tokens=9, link_policy="full")
    policy, sampling = engine.choices[0]
    assert (policy.name, sampling.max_tokens) == ("full", 9)


def test_the_system_prompt_is_the_given_one_with_its_braces(llm, engine, nodes):
    answer(llm, nodes, system_prompt="Answer as {json}.")
    assert engine.prompts[0].system == "Answer as {json}."


def test_texts_without_nodes_are_answered_too(llm, engine):
    assert EpicragSynthesizer(llm).get_response("q", [" a", " a", "b"]) == "The code is 4471."
    assert [piece.text for piece in engine.prompts[0].pieces] == [" a", "b"]
    stream = EpicragSynthesizer(llm, streaming=True).get_response("q", ["a"])
    assert "".join(stream) == "The code is 4471."
    assert asyncio.run(EpicragSynthesizer(llm).aget_response("q", ["a"])) == "The code is 4471."


def test_another_llm_is_refused_since_it_would_not_see_the_documents():
    with pytest.raises(UsageError, match="MockLLM"):
        EpicragSynthesizer(MockLLM())
    with pytest.raises(UsageError, match="EpicragLLM"):
        EpicragSynthesizer()


def test_templates_are_refused_rather_than_ignored(llm):
    with pytest.raises(UsageError, match="text_qa_template"):
        EpicragSynthesizer(llm).update_prompts({"text_qa_template": PromptTemplate("{query_str}")})


@pytest.mark.parametrize("way", WAYS)
def test_events_tell_synthesis_response_and_model_in_their_order(llm, nodes, events, way):
    answer(llm, nodes, way)
    named = [name for name in events() if name != "LLMChatInProgressEvent"]
    start = ["SynthesizeStartEvent", "GetResponseStartEvent", "LLMChatStartEvent"]
    assert named[:3] == start
    ends = ["LLMChatEndEvent", "GetResponseEndEvent", "SynthesizeEndEvent"]
    # A stream is handed out before it ends.
    assert named[3:] == ([*ends[1:], ends[0]] if way[0] else ends)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_repeats_itself_is_stopped_and_told(llm, engine, nodes, way):
    engine.answer = ("The museum ", "code is 4471. ", "The museum code is 4471. ", "The ")
    response, text = answer(llm, nodes, way)
    assert text == "The museum code is 4471. [1] The museum code is 4471. [1]"
    assert response.metadata["notes"] == ["the model began to repeat itself, and was stopped"]
    assert engine.generations[0].given == 4


@pytest.mark.parametrize("way", WAYS)
def test_notes_say_what_a_reader_should_know(llm, engine, nodes, way):
    assert answer(llm, nodes, way)[0].metadata["notes"] == []
    engine.answer, engine.fits, engine.reason = ("Paris, croissant.",), 2, "length"
    fit, short, doubt = answer(llm, nodes, way)[0].metadata["notes"]
    assert fit.startswith("1 of 3 passages did not fit")
    assert short == "the answer was cut short at max_tokens"
    assert "words were not found in them" in doubt
