"""Messages become the engine's prompt without a byte changed."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    ImageBlock,
    TextBlock,
)
from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from epicrag.errors import UsageError
from epicrag.llamaindex.blocks import Segment, distinct, passage_before, to_prompt
from epicrag.serving.prompt import Prompt, Turn

NASTY = [
    "  two spaces before",
    "\ttab\n\n",
    "{context_str} {0} {{x}} %s",
    "<|im_end|>",
    "\n\nе́ 日本 \u00a0",
]


def cited(text: str, source: str = "") -> CitableBlock:
    return CitableBlock(title="t", source=source, content=[TextBlock(text=text)])


def prompt_of(*messages: ChatMessage) -> Prompt:
    return to_prompt(messages, documents_prompt="From documents.", before=lambda source: None)


def user(*blocks: object) -> ChatMessage:
    return ChatMessage(role="user", blocks=list(blocks))


def test_segments_and_question_arrive_byte_for_byte_in_their_order():
    prompt = prompt_of(user(*map(cited, NASTY), TextBlock(text=" {query_str}?\t")))
    assert [piece.text for piece in prompt.pieces] == NASTY
    assert prompt.question == " {query_str}?\t"


def test_a_system_message_is_the_system_prompt():
    prompt = prompt_of(
        ChatMessage(role="system", content="Be {brief}. "), user(TextBlock(text="q"))
    )
    assert prompt.system == "Be {brief}. "


def test_documents_without_a_system_message_get_the_prompt_for_documents():
    assert prompt_of(user(cited("a"), TextBlock(text="q"))).system == "From documents."
    assert prompt_of(user(TextBlock(text="q"))).system == ""


def test_earlier_turns_are_history_with_their_documents_as_text():
    prompt = prompt_of(
        user(cited("{doc}"), TextBlock(text="first?")),
        ChatMessage(role="assistant", content=" {answer} "),
        user(TextBlock(text="second?")),
    )
    assert prompt.history == (Turn("user", "{doc}\nfirst?"), Turn("assistant", " {answer} "))
    assert (prompt.question, prompt.pieces) == ("second?", ())


def test_text_before_the_segments_stays_in_the_question():
    prompt = prompt_of(user(TextBlock(text="Use these:"), cited("a"), TextBlock(text="q?")))
    assert prompt.question == "Use these:\n\nq?"


def test_the_passage_before_comes_from_the_source_of_the_segment():
    message = user(cited("a", "one"), cited("b", "two"), TextBlock(text="q"))
    prompt = to_prompt([message], documents_prompt="", before={"two": "a"}.get)
    assert [piece.before for piece in prompt.pieces] == [None, "a"]


def test_marks_without_text_are_passed_over():
    mark = CachePoint(cache_control=CacheControl(type="ephemeral"))
    assert prompt_of(user(mark, TextBlock(text="q"))).question == "q"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "last message"),
        ([ChatMessage(role="system", content="s")], "last message"),
        ([ChatMessage(role="assistant", content="a")], "last message"),
        ([user(cited("a"), TextBlock(text=" \n"))], "question is empty"),
        ([user(ImageBlock(image=b"png"), TextBlock(text="what?"))], "kind image"),
        ([ChatMessage(role="tool", content="42"), user(TextBlock(text="q"))], "role tool"),
    ],
)
def test_what_the_model_cannot_read_is_refused_in_words(messages, words):
    with pytest.raises(UsageError, match=words):
        prompt_of(*messages)


def test_the_text_of_a_foreign_node_is_what_it_shows_to_an_llm():
    node = TextNode(text="body", metadata={"year": 2020, "path": "/x"})
    node.excluded_llm_metadata_keys = ["path"]
    segment = Segment.of(NodeWithScore(node=node))
    assert segment.text == "year: 2020\n\nbody"
    assert segment.source == node.node_id


def test_equal_texts_are_one_segment_and_images_are_none():
    nodes = [TextNode(text="a", id_="1"), TextNode(text="b", id_="2"), TextNode(text="a", id_="3")]
    found = [NodeWithScore(node=node) for node in [*nodes, ImageNode(image="aGk=")]]
    assert [segment.source for segment in distinct(map(Segment.of, found))] == ["1", "2"]


def test_the_passage_before_is_looked_up_only_for_the_very_chunk(pipeline, chunks):
    source = f"{chunks[1].id}@2"
    assert passage_before(pipeline.catalog, source) == chunks[0].model_text
    first, moved, gone = f"{chunks[0].id}@1", f"{chunks[1].id}@3", f"{chunks[1].id}@99"
    foreign = ["", "node", "node@", "a@b", "@2", "x@²", "x@" + "9" * 40]
    for other in [first, moved, gone, *foreign]:
        assert passage_before(pipeline.catalog, other) is None
