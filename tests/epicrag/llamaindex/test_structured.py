"""Structured output: the model is held to the class's JSON, segments stay segments, objects come out."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Annotated, Any, Literal

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, MessageRole, TextBlock
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.schema import NodeWithScore, TextNode
from pydantic import (
    AliasPath,
    BaseModel,
    Field,
    Json,
    RootModel,
    ValidationError,
    create_model,
    field_validator,
)

from epicrag.errors import UsageError
from epicrag.llamaindex import EpicragLLM, EpicragSynthesizer
from epicrag.llamaindex.shape import schema_of
from epicrag.llamaindex.structured import grammar_of
from epicrag.serving.prompt import Prompt


class Warranty(BaseModel):
    """How long something is guaranteed."""

    years: int = Field(ge=0, le=99)
    item: str = Field(max_length=8)
    tags: list[str] = []


ANSWER = ('{"years":2,', '"item":"Te', 'rn","tags":["a', '","b"]}')
TERN = Warranty(years=2, item="Tern", tags=["a", "b"])
ASKED = PromptTemplate("How long is the {what}?")
PASSAGE = "  A passage with {what} in braces.\n"
SEGMENT = CitableBlock(title="a.md", source="a", content=[TextBlock(text=PASSAGE)])


@pytest.fixture
def answering(engine: Any) -> Any:
    engine.answer = ANSWER
    return engine


def chat_of(*blocks: Any) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, blocks=list(blocks))]


# --- the four verbs ------------------------------------------------------------------------------


def test_structured_predict_gives_an_object_of_the_class(llm: Any, answering: Any) -> None:
    output = llm.structured_predict(Warranty, ASKED, what="warranty")
    assert output == TERN
    _, sampling = answering.choices[-1]
    assert sampling.grammar == grammar_of(Warranty)
    [text] = [answering.prompts[-1].question]
    assert text.startswith("How long is the warranty?")
    assert '"years"' in text and "Warranty" not in text.partition("How")[0]


def test_the_async_verb_does_the_same(llm: Any, answering: Any) -> None:
    assert asyncio.run(llm.astructured_predict(Warranty, ASKED, what="warranty")) == TERN


def test_a_stream_grows_and_ends_with_the_whole_object(llm: Any, answering: Any) -> None:
    partials = list(llm.stream_structured_predict(Warranty, ASKED, what="warranty"))
    assert partials[-1] == TERN
    assert [getattr(p, "item", None) for p in partials[:2]] == [None, "Te"]
    assert len(partials) > 2

    async def collect() -> list[Any]:
        stream = await llm.astream_structured_predict(Warranty, ASKED, what="warranty")
        return [partial async for partial in stream]

    assert [p.model_dump() for p in asyncio.run(collect())] == [p.model_dump() for p in partials]


def test_settings_of_the_call_are_passed_on(llm: Any, answering: Any) -> None:
    llm.structured_predict(Warranty, ASKED, llm_kwargs={"max_tokens": 7, "seed": 3}, what="x")
    _, sampling = answering.choices[-1]
    assert (sampling.max_tokens, sampling.seed) == (7, 3)


def test_segments_of_a_chat_prompt_stay_segments_to_the_byte(llm: Any, answering: Any) -> None:
    prompt = ChatPromptTemplate(chat_of(SEGMENT, TextBlock(text="How long is the {what}?")))
    assert llm.structured_predict(Warranty, prompt, what="warranty") == TERN
    [piece] = answering.prompts[-1].pieces
    assert piece.text == PASSAGE
    assert answering.prompts[-1].question.startswith("How long is the warranty?\n\nAnswer with")


def test_events_and_spans_are_dispatched(llm: Any, answering: Any, events: Any) -> None:
    llm.structured_predict(Warranty, ASKED, what="x")
    list(llm.stream_structured_predict(Warranty, ASKED, what="x"))
    names = events()
    assert names.count("LLMStructuredPredictStartEvent") == 2
    assert names.count("LLMStructuredPredictEndEvent") == 2
    assert "LLMStructuredPredictInProgressEvent" in names


# --- as_structured_llm ---------------------------------------------------------------------------


def test_a_structured_llm_answers_with_objects_and_keeps_braces(llm: Any, answering: Any) -> None:
    structured = llm.as_structured_llm(Warranty)
    said = structured.chat(chat_of(SEGMENT, TextBlock(text="What is {this}?")))
    assert said.raw == TERN
    assert json.loads(said.message.content) == TERN.model_dump()
    assert said.additional_kwargs["receipt"]["stitched"] == 150
    assert answering.prompts[-1].pieces[0].text == PASSAGE
    assert answering.prompts[-1].question.startswith("What is {this}?")
    assert structured.complete("What?").raw == TERN
    asked = chat_of(TextBlock(text="What?"))
    assert [r.raw for r in structured.stream_chat(asked)][-1] == TERN

    async def collect() -> list[Any]:
        stream = await structured.astream_chat(asked)
        return [(await structured.achat(asked)).raw, *[r.raw async for r in stream]]

    first, *_, last = asyncio.run(collect())
    assert first == last == TERN


# --- the synthesizer -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["output_cls", "structured llm"])
def test_a_synthesizer_gives_the_object_and_its_nodes(llm: Any, answering: Any, form: str) -> None:
    if form == "output_cls":
        synthesizer = EpicragSynthesizer(llm, output_cls=Warranty)
    else:
        synthesizer = EpicragSynthesizer(llm.as_structured_llm(Warranty))
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in (PASSAGE, "two")]
    for response in (
        synthesizer.synthesize("How long?", nodes),
        asyncio.run(synthesizer.asynthesize("How long?", nodes)),
    ):
        assert response.response == TERN
        assert [found.node.text for found in response.source_nodes] == [PASSAGE, "two"]
        assert response.metadata["receipt"]["stitched"] == 150
        assert [piece.text for piece in answering.prompts[-1].pieces] == [PASSAGE, "two"]


def test_without_nodes_there_is_no_object_but_a_word(llm: Any) -> None:
    response = EpicragSynthesizer(llm, output_cls=Warranty).synthesize("How long?", [])
    assert isinstance(response.response, str)
    assert not response.metadata["answered"]


# --- classes -------------------------------------------------------------------------------------


class Kind(Enum):
    CAT = "cat"
    DOG = "dog"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    price: Decimal
    tricks: set[str]


class Pet(BaseModel):
    animal: Cat | Dog = Field(discriminator="kind")
    like: Kind | None = None
    friends: list[Pet] = []


class Prices(BaseModel):
    """Of an Enum's members as keys pydantic says `propertyNames`."""

    price: dict[Kind, int]


def test_unions_sets_decimals_and_recursion_are_followed() -> None:
    assert grammar_of(Pet).kind == "json_schema"
    assert grammar_of(RootModel[list[int]]).kind == "json_schema"


def test_a_class_that_no_grammar_follows_is_refused_with_its_place(llm: Any) -> None:
    with pytest.raises(UsageError, match=r"#/properties/price: .*propertyNames"):
        llm.structured_predict(Prices, ASKED, what="x")


def test_an_answer_that_was_cut_says_so(llm: Any, answering: Any) -> None:
    answering.reason = "length"
    with pytest.raises(UsageError, match=r"cut off after .* tokens, before the Warranty"):
        llm.structured_predict(Warranty, ASKED, what="x")


def test_of_a_cut_answer_the_tokens_are_those_of_the_call(llm: Any, answering: Any) -> None:
    response = llm.as_structured_llm(Warranty).chat(chat_of(TextBlock(text="How long?")))
    n_tokens = response.additional_kwargs["usage"]["completion_tokens"]
    assert n_tokens != llm.max_tokens
    answering.reason = "length"
    nodes = [NodeWithScore(node=TextNode(text=PASSAGE), score=0.5)]
    with pytest.raises(UsageError, match=f"cut off after {n_tokens} tokens"):
        EpicragSynthesizer(llm, output_cls=Warranty).synthesize("How long?", nodes)


def test_what_a_validator_refuses_is_pydantics_error(llm: Any, answering: Any) -> None:
    class Strict(Warranty):
        @field_validator("years")
        @classmethod
        def odd(cls, value: int) -> int:
            if value % 2 == 0:
                raise ValueError("years are odd")
            return value

    with pytest.raises(ValidationError, match="odd"):
        llm.structured_predict(Strict, ASKED, what="x")


# --- with a model --------------------------------------------------------------------------------


def test_a_random_model_fills_the_class(tiny_engine: Any) -> None:
    class Small(BaseModel):
        ok: bool
        n: int = Field(ge=0, le=9)

    llm = EpicragLLM(engine=tiny_engine("llama"), max_tokens=40)
    prompt = ChatPromptTemplate(chat_of(SEGMENT, TextBlock(text="Is it?")))
    assert isinstance(llm.structured_predict(Small, prompt), Small)
    assert isinstance(Prompt("x"), Prompt)


# --- what pydantic takes -------------------------------------------------------------------------

KINDS = [
    float,
    Decimal,
    Annotated[Decimal, Field(max_digits=4, decimal_places=2)],
    Annotated[Decimal, Field(max_digits=3)],
    Annotated[Decimal, Field(ge=0, le=10)],
    datetime,
    date,
    time,
    timedelta,
    Annotated[bytes, Field(max_length=5)],
    set[bool],
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_whatever_the_grammar_lets_through_is_an_object(tiny_engine: Any, kind: Any) -> None:
    shape = create_model("Shape", value=(kind, ...))
    llm = EpicragLLM(engine=tiny_engine("llama"), max_tokens=64, temperature=1.0)
    for seed in range(2):
        with suppress(UsageError):  # it may be cut off
            found = llm.structured_predict(shape, ASKED, llm_kwargs={"seed": seed}, what="x")
            value = found.model_dump()["value"]
            assert not isinstance(value, float) or isfinite(value)


@pytest.mark.parametrize(
    ("kind", "told", "others"),
    [
        (
            date,
            ["2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01"],
            ["2023-02-29", "1900-02-29"],
        ),
        (date, ["2023-04-30"], ["2023-04-31", "2023-02-30", "0000-02-29", "2023-13-01"]),
        (time, ["23:59:59Z", "00:00:00.5+02:00"], ["18:45:60Z", "24:00:00Z"]),
        (timedelta, ["P1Y2M3W4DT1H", "PT5S", "P2W"], ["P", "PT", "P1DT"]),
        (Annotated[Decimal, Field(max_digits=4, decimal_places=2)], ["12.34", "-0.5"], ["123.4"]),
        (Annotated[Decimal, Field(max_digits=3)], ["123", "1.23", "0.123"], ["12.34"]),
    ],
)
def test_patterns_are_what_pydantic_takes(kind: Any, told: list[str], others: list[str]) -> None:
    shape = create_model("Shape", value=(kind, ...))
    pattern = schema_of(shape)["properties"]["value"]["pattern"]
    for text in told:
        assert re.fullmatch(pattern, text)
        shape(value=text)
    assert not [text for text in others if re.fullmatch(pattern, text)]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ((Json[bool], ...), "Json"),
        ((bool, Field(validation_alias=AliasPath("x", 0))), "AliasPath"),
        ((Annotated[set[bool], Field(min_length=2)], ...), "a set of at least 2"),
    ],
)
def test_what_no_schema_can_say_is_refused_at_once(llm: Any, field: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        llm.structured_predict(create_model("Shape", value=field), ASKED, what="x")
