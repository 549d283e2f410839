"""Chat engines: a conversation of real messages, passages as segments."""

from __future__ import annotations

import asyncio
import threading

import pytest
from llama_index.core import Settings
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, TextBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.chat_engine.types import BaseChatEngine, ChatMode
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.postprocessor import SimilarityPostprocessor

import epicrag
from epicrag.ask import NOTHING_FOUND
from epicrag.errors import UsageError
from epicrag.llamaindex import (
    EpicragCondensePlusContextChatEngine,
    EpicragContextChatEngine,
    EpicragRetriever,
    chat_engine,
)
from epicrag.llamaindex.condense import ASK
from epicrag.serving.prompt import Chat, Piece, Turn

WAYS = [(False, False), (True, False), (False, True), (True, True)]
"""Streaming, and awaited."""
NASTY = "What of {context_str}, {0} and %s?"
CITED = "The code is 4471. [1]"


def say(engine, message, way=(False, False), **options):
    """One message in one of the ways, read to its end: the response, and its text."""
    streaming, is_async = way
    if not is_async:
        if not streaming:
            response = engine.chat(message, **options)
            return response, str(response)
        response = engine.stream_chat(message, **options)
        return response, "".join(response.response_gen)

    async def main():
        if not streaming:
            response = await engine.achat(message, **options)
            return response, str(response)
        response = await engine.astream_chat(message, **options)
        return response, "".join([delta async for delta in response.async_response_gen()])

    return asyncio.run(main())


def condensing(said: str = "What is the door code of the museum?"):
    """An engine's answers: `said` where it is to condense, and the ordinary ones otherwise."""

    def says(prompt):
        return said if getattr(prompt, "question", "").startswith(ASK[:30]) else None

    return says


@pytest.fixture
def made(pipeline):
    return chat_engine(pipeline, mode="context")


@pytest.mark.parametrize("way", WAYS)
def test_a_message_is_answered_from_passages_and_remembered(made, engine, chunks, way):
    response, text = say(made, NASTY, way)
    assert text == str(response) == CITED
    assert [found.node.node_id for found in response.source_nodes] == [c.id for c in chunks]
    assert response.metadata["cited"] == [1]
    assert response.metadata["receipt"]["stitched"] == 150
    assert response.sources[0].raw_input == {"message": NASTY}
    assert [(m.role.value, m.content) for m in made.chat_history] == [
        ("user", NASTY),
        ("assistant", CITED),
    ]
    prompt = engine.prompts[0]
    assert [piece.text for piece in prompt.pieces] == [chunk.model_text for chunk in chunks]
    assert (prompt.question, prompt.history) == (NASTY, ())


@pytest.mark.parametrize("way", WAYS)
def test_history_is_real_messages_with_every_brace(made, engine, chunks, way):
    say(made, NASTY, way)
    say(made, "And {query_str}?", way)
    prompt = engine.prompts[1]
    assert prompt.history == (Turn("user", NASTY), Turn("assistant", CITED))
    assert prompt.question == "And {query_str}?"
    assert len(prompt.pieces) == len(chunks)
    assert prompt.system == engine.prompts[0].system
    assert len(made.chat_history) == 4


@pytest.mark.parametrize("way", WAYS)
def test_reset_forgets_and_a_given_history_replaces(made, engine, way):
    say(made, "one", way)
    made.reset()
    assert made.chat_history == []
    say(made, "two", way, chat_history=[ChatMessage(role="user", content="zero")])
    assert engine.prompts[-1].history == (Turn("user", "zero"),)
    assert [message.content for message in made.chat_history] == ["zero", "two", CITED]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_found_is_said_and_no_model_asked(made, pipeline, engine, way):
    pipeline.scores = [0.1, 0.1, 0.1]
    response, text = say(made, "zebra?", way)
    assert (text, engine.prompts) == (NOTHING_FOUND, [])
    assert response.metadata["answered"] is False
    assert made.chat_history[-1].content == NOTHING_FOUND


@pytest.mark.parametrize("way", WAYS)
def test_without_passages_the_conversation_can_be_enough(pipeline, engine, way):
    pipeline.scores = [0.1, 0.1, 0.1]
    made = chat_engine(pipeline, mode="context", answer_without_nodes=True)
    response, text = say(made, "Hello", way)
    assert text == "The code is 4471."
    assert (engine.prompts[0].pieces, response.source_nodes) == ((), [])
    assert response.metadata["answered"] is True


def test_earlier_nodes_can_stand_in_where_nothing_is_found(made, pipeline, engine):
    nodes = EpicragRetriever(pipeline).retrieve("code?")
    pipeline.scores = [0.1, 0.1, 0.1]
    response, text = say(made, "Say that again", prev_chunks=nodes[:1])
    assert text == CITED
    assert len(engine.prompts[0].pieces) == len(response.source_nodes) == 1


# --- condensing ---


@pytest.mark.parametrize("way", WAYS)
def test_a_follow_up_is_searched_for_as_the_model_puts_it(pipeline, engine, way):
    made = chat_engine(pipeline)
    assert isinstance(made, EpicragCondensePlusContextChatEngine)
    engine.says = condensing("\n “What is the door code?” \nYes.")
    say(made, "Tell me of the museum", way)
    response, text = say(made, "And its {code}?", way)
    assert [query for query, _ in pipeline.queries] == [
        "Tell me of the museum",
        "What is the door code?",
    ]
    assert text == CITED
    assert response.sources[0].raw_input == {"message": "What is the door code?"}
    asked, answered = engine.prompts[1:]
    assert "Tell me of the museum\nassistant: The code is 4471." in asked.question
    assert "Follow-up message: And its {code}?" in asked.question
    assert engine.choices[1][1].max_tokens == 64
    assert answered.question == "And its {code}?"
    assert answered.history[0] == Turn("user", "Tell me of the museum")


def test_where_the_model_condenses_to_nothing_the_message_itself_is_searched_for(pipeline, engine):
    engine.says = condensing(" \n…\n")
    made = chat_engine(pipeline)
    say(made, "one")
    say(made, "two?")
    assert pipeline.queries[-1][0] == "two?"


def test_condensing_can_be_skipped_or_asked_for_in_words_of_ones_own(pipeline, engine, llm):
    parts = {"retriever": EpicragRetriever(pipeline), "llm": llm}
    made = EpicragCondensePlusContextChatEngine.from_defaults(**parts, skip_condense=True)
    say(made, "one")
    say(made, "two")
    assert len(engine.prompts) == 2
    made = EpicragCondensePlusContextChatEngine.from_defaults(
        **parts, condense_prompt="H: {chat_history} Q: {question}"
    )
    say(made, "{question}")
    say(made, "{chat_history}")
    assert engine.prompts[-2].question == "H: user: {question}\nassistant: " + CITED + (
        " Q: {chat_history}"
    )


# --- what fits ---


@pytest.mark.parametrize("way", WAYS)
def test_the_oldest_turns_leave_whole_before_any_passage(made, engine, way):
    for n in range(4):
        say(made, f"{n} " + "x" * 300, way)
    engine.context_window = 1500
    response, text = say(made, "last?", way)
    kept = engine.prompts[-1].history
    assert [turn.text[:2] for turn in kept] == ["2 ", "Th", "3 ", "Th"]
    assert len(engine.prompts[-1].pieces) == 3
    assert response.metadata["dropped_turns"] == 2
    assert response.metadata["notes"] == ["2 earlier turns did not fit into the model's window"]
    assert text == CITED
    assert len(made.chat_history) == 10


def test_where_nothing_but_the_question_fits_the_history_is_left_out(made, engine):
    say(made, "x" * 300)
    engine.context_window = 480
    engine.fits = 1
    response, _ = say(made, "last?")
    assert engine.prompts[-1].history == ()
    assert response.metadata["dropped_turns"] == 1


def test_condensing_takes_the_newest_turns_that_fit(pipeline, engine):
    made = chat_engine(pipeline)
    engine.says = condensing()
    for n in range(4):
        say(made, f"{n} " + "x" * 300)
    engine.context_window = 1200
    say(made, "last?")
    asked = engine.prompts[-2].question
    assert [f"{n} xx" in asked for n in range(4)] == [False, False, True, True]


# --- memories, prefixes, options ---


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [ChatMemoryBuffer, Memory])
def test_llamaindexs_memories_do(pipeline, engine, loop, kind, way):
    memory = kind.from_defaults(token_limit=3000, tokenizer_fn=list)
    made = chat_engine(pipeline, mode=ChatMode.CONTEXT, memory=memory)
    say(made, "one", way)
    say(made, "two", way)
    assert engine.prompts[-1].history == (Turn("user", "one"), Turn("assistant", CITED))
    assert len(made.chat_history) == 4


def test_a_system_message_that_a_memory_adds_is_read_as_one(pipeline, engine):
    history = [ChatMessage(role="system", content="The user is Ann.")]
    made = chat_engine(pipeline, mode="context", chat_history=history, system_prompt="S {x}")
    say(made, "one")
    assert engine.prompts[0].system == "S {x}\n\nThe user is Ann."


def test_examples_before_the_conversation_keep_their_segments(pipeline, engine, llm):
    shot = CitableBlock(title="", source="shot", content=[TextBlock(text=" shot {0}\n")])
    prefix = [
        ChatMessage(role="system", blocks=[TextBlock(text="Like:"), shot]),
        ChatMessage(role="user", content="u"),
        ChatMessage(role="assistant", content="a"),
    ]
    made = EpicragContextChatEngine.from_defaults(
        EpicragRetriever(pipeline), llm, prefix_messages=prefix
    )
    response, text = say(made, "q")
    chat = engine.prompts[0]
    assert isinstance(chat, Chat)
    assert [p.text for p in chat.messages[0].parts if isinstance(p, Piece)] == [" shot {0}\n"]
    assert [message.role for message in chat.messages] == ["system", "user", "assistant", "user"]
    assert len(chat.pieces) == 4
    assert (text, response.metadata["dropped"]) == (CITED, 0)
    engine.context_window = 420
    response, _ = say(made, "q")
    assert response.metadata["dropped"] == 3 - (len(engine.prompts[-1].pieces) - 1) > 0
    assert len(response.source_nodes) == 3 - response.metadata["dropped"]


def test_options_reach_model_retriever_and_answer(pipeline, engine):
    cut = SimilarityPostprocessor(similarity_cutoff=0.75)
    made = chat_engine(
        pipeline,
        mode="best",
        top_k=3,
        filters="year>=2020",
        max_tokens=9,
        cite=False,
        node_postprocessors=[cut],
        callback_manager=CallbackManager([]),
    )
    response, text = say(made, "q")
    assert text == "The code is 4471."
    assert (pipeline.queries, pipeline.filters) == ([("q", 3)], ["year>=2020"])
    assert engine.choices[0][1].max_tokens == 9
    assert len(response.source_nodes) == len(engine.prompts[0].pieces) == 2
    assert isinstance(made, BaseChatEngine)
    assert epicrag.chat_engine is chat_engine


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "react"}, "react"),
        ({"temprature": 1}, "temprature"),
        ({"context_template": "{context_str}"}, "context_template"),
    ],
)
def test_what_means_nothing_is_refused(pipeline, llm, options, words):
    with pytest.raises(UsageError, match=words):
        if "context_template" in options:
            EpicragContextChatEngine.from_defaults(EpicragRetriever(pipeline), llm, **options)
        else:
            chat_engine(pipeline, **options)


def test_another_llm_and_two_system_prompts_are_refused(pipeline, llm):
    retriever = EpicragRetriever(pipeline)
    with pytest.raises(UsageError, match="MockLLM"):
        EpicragContextChatEngine.from_defaults(retriever, MockLLM())
    prefix = [ChatMessage(role="system", content="a")]
    with pytest.raises(UsageError, match="system_prompt"):
        EpicragContextChatEngine.from_defaults(
            retriever, llm, system_prompt="b", prefix_messages=prefix
        )


def test_a_pipeline_that_was_given_stays_open(pipeline):
    with chat_engine(pipeline):
        pass
    assert not pipeline.is_closed


# --- streams and events ---


def test_a_stream_gives_its_first_words_before_the_last_token(made, engine):
    engine.gate = threading.Event()
    response = made.stream_chat("code?")
    assert len(response.source_nodes) == 3
    assert next(response.response_gen) == "The"
    assert made.chat_history == []
    engine.gate.set()
    assert "".join(response.response_gen).endswith("4471. [1]")
    assert response.is_done
    assert len(made.chat_history) == 2


def test_a_stream_left_halfway_is_not_remembered(made, engine):
    response = made.stream_chat("code?")
    deltas = response.response_gen
    next(deltas)
    deltas.close()
    assert made.chat_history == []
    assert say(made, "again?")[1] == CITED


@pytest.mark.parametrize("way", WAYS)
def test_a_failing_model_fails_the_call_and_leaves_no_half_turn(made, engine, way):
    engine.failure = RuntimeError("out of luck")
    with pytest.raises(RuntimeError, match="luck"):
        say(made, "code?", way)
    assert made.chat_history == []


@pytest.mark.parametrize("way", WAYS)
def test_each_event_comes_once_in_its_order(made, events, way):
    say(made, "code?", way)
    several = ("LLMChatInProgressEvent", "StreamChatDeltaReceivedEvent")
    found = [name for name in events() if name not in several]
    start = [
        "RetrievalStartEvent",
        "RetrievalEndEvent",
        "SynthesizeStartEvent",
        "GetResponseStartEvent",
        "LLMChatStartEvent",
    ]
    if way[0]:
        ends = ["GetResponseEndEvent", "SynthesizeEndEvent", "StreamChatStartEvent"]
        assert found == [*start, *ends, "LLMChatEndEvent", "StreamChatEndEvent"]
    else:
        assert found == [*start, "LLMChatEndEvent", "GetResponseEndEvent", "SynthesizeEndEvent"]


@pytest.mark.parametrize("way", WAYS)
def test_usage_is_counted_once_for_condensing_and_once_for_the_answer(pipeline, engine, way):
    counter = TokenCountingHandler(tokenizer=list)
    before = Settings.callback_manager
    Settings.callback_manager = CallbackManager([counter])
    try:
        made = chat_engine(pipeline)
        say(made, "one", way)
        say(made, "two", way)
    finally:
        Settings.callback_manager = before
    assert counter.prompt_llm_token_count == 3 * 321
    assert counter.completion_llm_token_count == 3 * 5
