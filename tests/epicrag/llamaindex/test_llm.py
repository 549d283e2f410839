"""The engine as a LlamaIndex LLM: all eight verbs, settings, usage, events."""

from __future__ import annotations

import asyncio
import threading

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, TextBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.prompts import PromptTemplate

from epicrag.config import DEFAULT_LINK_POLICY
from epicrag.errors import UsageError
from epicrag.llamaindex import EpicragLLM

WHOLE = "The code is 4471."
ASKED = [ChatMessage(role="user", content="What is the code?")]


def documents(*sources: str) -> list[ChatMessage]:
    blocks = [
        CitableBlock(title="", source=source, content=[TextBlock(text=f" {source}")])
        for source in sources
    ]
    return [ChatMessage(role="user", blocks=[*blocks, TextBlock(text="q")])]


async def gathered(stream):
    return [response async for response in await stream]


def test_metadata_describes_the_model(llm):
    about = llm.metadata
    assert (about.context_window, about.num_output, about.model_name) == (4096, 256, "told-lm")
    assert about.is_chat_model
    assert not about.is_function_calling_model


def test_every_verb_gives_the_whole_answer(llm):
    assert llm.chat(ASKED).message.content == WHOLE
    assert llm.complete("q").text == WHOLE
    assert asyncio.run(llm.achat(ASKED)).message.content == WHOLE
    assert asyncio.run(llm.acomplete("q")).text == WHOLE
    assert list(llm.stream_chat(ASKED))[-1].message.content == WHOLE
    assert list(llm.stream_complete("q"))[-1].text == WHOLE
    assert asyncio.run(gathered(llm.astream_chat(ASKED)))[-1].message.content == WHOLE
    assert asyncio.run(gathered(llm.astream_complete("q")))[-1].text == WHOLE


@pytest.mark.parametrize(
    "verb", ["stream_chat", "astream_chat", "stream_complete", "astream_complete"]
)
def test_a_stream_gives_deltas_and_the_text_so_far(llm, verb):
    stream = getattr(llm, verb)(ASKED if "chat" in verb else "q")
    responses = list(stream) if verb.startswith("s") else asyncio.run(gathered(stream))
    texts = [r.message.content if "chat" in verb else r.text for r in responses]
    assert [r.delta for r in responses] == ["The ", "code ", "is ", "4471.", ""]
    assert texts == ["The ", "The code ", "The code is ", WHOLE, WHOLE]


def test_the_first_delta_comes_before_the_last_token_is_generated(llm, engine):
    engine.gate = threading.Event()
    stream = llm.stream_chat(ASKED)
    assert next(stream).delta == "The "
    assert engine.generations[0].given < 5
    engine.gate.set()
    assert len(list(stream)) == 4


def test_the_last_response_carries_usage_and_receipt(llm):
    *_, last = llm.stream_chat(documents("one", "two"))
    for raw in (last.raw, llm.chat(documents("one", "two")).raw):
        assert raw["usage"] == {"prompt_tokens": 321, "completion_tokens": 5}
        assert raw["receipt"]["policy"] == DEFAULT_LINK_POLICY
        assert raw["receipt"]["ms"]["first_token"] == 0.0
        assert (raw["segments"], raw["segment_tokens"]) == (["one", "two"], [4, 4])
        assert raw["dropped"] == 0
        assert (raw["finish_reason"], raw["model"]) == ("stop", "told-lm")


def test_what_did_not_fit_is_known_with_the_first_delta(llm, engine):
    engine.fits = 1
    first, *_, last = llm.stream_chat(documents("one", "two"))
    assert first.raw == {"dropped": 1}
    assert last.raw["segments"] == ["one"]


def test_segments_keep_their_bytes_and_a_completion_is_a_question(llm, engine):
    llm.chat(documents("one"))
    llm.complete(" {context_str} ", formatted=True)
    assert engine.prompts[0].pieces[0].text == " one"
    assert (engine.prompts[1].question, engine.prompts[1].pieces) == (" {context_str} ", ())


def test_predict_formats_only_the_template(llm, engine):
    text = llm.predict(PromptTemplate("Say {word}."), word="{braces}")
    assert text == WHOLE
    assert engine.prompts[0].question == "Say {braces}."


# --- settings ---


def test_settings_come_from_the_pipeline_and_a_call_overrules_them(pipeline, engine):
    llm = EpicragLLM(pipeline, temperature=0.5, stop="END", link_policy="none")
    llm.chat(ASKED, max_tokens=7, stop=["A", "B"], link_policy="full", seed=None, tools=None)
    llm.complete("q", formatted=True)
    (first, one), (second, two) = engine.choices
    assert (first.name, one.max_tokens, one.temperature, one.stop) == ("full", 7, 0.5, ("A", "B"))
    assert (second.name, two.max_tokens, two.stop) == ("none", 256, ("END",))
    assert llm.documents_prompt == pipeline.config.system_prompt


@pytest.mark.parametrize("verb", ["chat", "stream_chat"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temprature": 1}, "temperature"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"link_policy": "glue"}, "glue"),
        ({"tools": [print]}, "no tools"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "x"}, "temperature"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"seed": "1"}, "seed"),
        ({"link_policy": 5}, "link_policy"),
        ({"grammar": "x"}, "grammar"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_before_the_model_runs(
    llm, engine, verb, settings, words
):
    with pytest.raises(UsageError) as caught:
        getattr(llm, verb)(ASKED, **settings)
    assert words in f"{caught.value} {caught.value.hint}"
    assert engine.prompts == []


def test_bad_settings_are_refused_when_the_model_is_made(pipeline):
    with pytest.raises(UsageError, match="top_p"):
        EpicragLLM(pipeline, top_p=0.0)
    with pytest.raises(UsageError, match="glue"):
        EpicragLLM(pipeline, link_policy="glue")
    with pytest.raises(ValueError, match="temprature"):
        EpicragLLM(pipeline, temprature=1)
    with pytest.raises(UsageError, match="no model"):
        EpicragLLM()


def test_a_bare_engine_will_do_and_knows_no_neighbours(engine):
    llm = EpicragLLM(engine=engine)
    assert llm.chat(documents("one@1")).message.content == WHOLE
    assert engine.prompts[0].pieces[0].before is None


def test_the_model_loads_only_when_it_is_needed_and_once(pipeline, engine):
    loads = []

    class Lazy:
        config, catalog, turn = pipeline.config, pipeline.catalog, pipeline.turn
        recogniser = pipeline.recogniser

        @property
        def engine(self):
            loads.append(threading.current_thread().name)
            return engine

    llm = EpicragLLM(Lazy())
    assert loads == []
    llm.chat(ASKED)
    llm.chat(ASKED)
    assert len(loads) == 1


# --- events, usage, threads ---


def test_usage_is_counted_once_for_each_verb(llm):
    counter = TokenCountingHandler(tokenizer=list)
    llm.callback_manager = CallbackManager([counter])
    llm.chat(ASKED)
    list(llm.stream_chat(ASKED))
    llm.complete("q")
    list(llm.stream_complete("q"))
    asyncio.run(llm.achat(ASKED))
    asyncio.run(gathered(llm.astream_chat(ASKED)))
    asyncio.run(llm.acomplete("q"))
    asyncio.run(gathered(llm.astream_complete("q")))
    counts = [(c.prompt_token_count, c.completion_token_count) for c in counter.llm_token_counts]
    assert counts == [(321, 5)] * 8


def test_each_verb_tells_its_own_events_once(llm, events):
    llm.chat(ASKED)
    llm.complete("q")
    assert events() == [
        "LLMChatStartEvent",
        "LLMChatEndEvent",
        "LLMCompletionStartEvent",
        "LLMCompletionEndEvent",
    ]
    list(llm.stream_chat(ASKED))
    assert events()[4:] == ["LLMChatStartEvent", *["LLMChatInProgressEvent"] * 5, "LLMChatEndEvent"]


@pytest.mark.parametrize("verb", ["achat", "astream_chat", "acomplete", "astream_complete"])
def test_the_event_loop_is_free_while_the_model_works(llm, engine, verb):
    engine.gate = threading.Event()

    async def main() -> None:
        call = getattr(llm, verb)(ASKED if "chat" in verb else "q")
        task = asyncio.create_task(gathered(call) if "stream" in verb else call)
        await asyncio.sleep(0.01)
        assert not task.done()
        engine.gate.set()  # a blocked loop would never get here
        await task

    asyncio.run(main())
    assert engine.generations[0].threads == {"epicrag-answer"}


def test_cancelling_an_answer_frees_the_engine(llm, engine):
    engine.gate = threading.Event()

    async def main() -> None:
        task = asyncio.create_task(llm.achat(ASKED))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.gate.set()

    asyncio.run(main())
    assert engine.generations[0].closed.wait(5)
    assert engine.generations[0].given < 5


def test_a_failing_engine_fails_the_call_and_is_closed(llm, engine):
    engine.failure = RuntimeError("out of luck")
    with pytest.raises(RuntimeError, match="luck"):
        llm.chat(ASKED)
    with pytest.raises(RuntimeError, match="luck"):
        list(llm.stream_chat(ASKED))
    with pytest.raises(RuntimeError, match="luck"):
        asyncio.run(llm.achat(ASKED))
    assert all(generation.closed.is_set() for generation in engine.generations)


def test_an_answer_without_a_word_still_has_its_receipt(llm, engine):
    engine.answer = ()
    response = llm.chat(ASKED)
    assert response.message.content == ""
    assert response.raw["usage"]["prompt_tokens"] == 321
    (only,) = llm.stream_chat(ASKED)
    assert only.raw["receipt"]["policy"] == DEFAULT_LINK_POLICY


def test_every_verb_stops_a_model_that_repeats_itself(llm, engine):
    engine.answer = ("The code ", "is 4471 today. ", "The code is 4471 today. ", "The code ")

    async def awaited():
        chat, completion = await llm.achat(ASKED), await llm.acomplete("q")
        chats = await gathered(llm.astream_chat(ASKED))
        completions = await gathered(llm.astream_complete("q"))
        return chat, completion, chats[-1], completions[-1]

    *_, chat = llm.stream_chat(ASKED)
    *_, completion = llm.stream_complete("q")
    found = [llm.chat(ASKED), llm.complete("q"), chat, completion, *asyncio.run(awaited())]
    for response in found:
        text = response.text if hasattr(response, "text") else response.message.content
        assert text == "The code is 4471 today. The code is 4471 today. "
        assert response.raw["finish_reason"] == "repeats"


def test_the_pipeline_can_say_what_has_to_be_computed_first(llm, pipeline):
    llm.chat(documents("a", "b"), max_tokens=9)
    llm.chat(ASKED)
    assert pipeline.foretold == [(2, 9)]
