"""Messages become what the engine is asked without a byte changed."""

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

from epicrag.errors import UsageError
from epicrag.llamaindex.messages import Asked, Reading, to_asked
from epicrag.serving.prompt import Chat, Message, Piece, Prompt, Turn

NASTY = [
    "  two spaces before",
    "\ttab\n\n",
    "{context_str} {0} {{x}} %s",
    "<|im_end|>",
    "\n\nе́ 日本 \u00a0",
]


def cited(text: str, source: str = "") -> CitableBlock:
    return CitableBlock(title="t", source=source, content=[TextBlock(text=text)])


def asked_of(*messages: ChatMessage, most: int | None = None, **reading: object) -> Asked:
    return to_asked(messages, Reading("From documents.", **reading), most=most)


def prompt_of(*messages: ChatMessage) -> Prompt:
    return asked_of(*messages).prompt


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


def test_earlier_turns_are_history():
    prompt = prompt_of(
        user(TextBlock(text="first {0}?")),
        ChatMessage(role="assistant", content=" {answer} "),
        user(cited("{doc}"), TextBlock(text="second?")),
    )
    assert prompt.history == (Turn("user", "first {0}?"), Turn("assistant", " {answer} "))
    assert (prompt.question, prompt.pieces) == ("second?", (Piece("{doc}"),))


def test_text_before_the_segments_stays_in_the_question():
    prompt = prompt_of(user(TextBlock(text="Use these:"), cited("a"), TextBlock(text="q?")))
    assert prompt.question == "Use these:\n\nq?"


def test_the_passage_before_comes_from_the_source_of_the_segment():
    message = user(cited("a", "one"), cited("b", "two"), TextBlock(text="q"))
    prompt = asked_of(message, before={"two": "a"}.get).prompt
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


# --- segments in other messages ---


def text_of(chat: Chat) -> str:
    """All of a conversation as one text."""
    parts = (part for message in chat.messages for part in message.parts)
    return "".join(part if isinstance(part, str) else part.text for part in parts)


CONVERSATION = [
    ChatMessage(
        role="system",
        blocks=[TextBlock(text="Like this: "), cited("  example {1}\n", "s"), TextBlock(text="ok")],
    ),
    user(cited(NASTY[0], "a"), cited(NASTY[1], "b"), TextBlock(text="first?")),
    ChatMessage(role="assistant", blocks=[TextBlock(text="see"), cited(NASTY[2], "c")]),
    user(cited(NASTY[4], "d"), cited(NASTY[3], "e"), TextBlock(text="second?")),
]


def test_segments_of_any_message_stay_in_it_byte_for_byte():
    asked = asked_of(*CONVERSATION)
    assert [[p.text for p in m.parts if isinstance(p, Piece)] for m in asked.prompt.messages] == [
        ["  example {1}\n"],
        NASTY[:2],
        [NASTY[2]],
        [NASTY[4], NASTY[3]],
    ]
    assert asked.sources == ("s", "a", "b", "c", "d", "e")
    assert (asked.earlier, asked.given, asked.dropped(6)) == (4, 2, 0)
    assert (
        "".join(
            part if isinstance(part, str) else part.text for part in asked.prompt.messages[0].parts
        )
        == "Like this: \n  example {1}\n\nok"
    )


def test_an_earlier_question_reads_as_it_did_when_it_was_the_last():
    asked = asked_of(*CONVERSATION[1:])
    first, system = asked.prompt.messages[1], asked.prompt.messages[0]
    alone = prompt_of(CONVERSATION[1])
    assert [p for p in first.parts if isinstance(p, Piece)] == list(alone.pieces)
    assert text_of(Chat((first,))) == (
        f"Documents:\n\n[1] {NASTY[0]}\n\n[2] {NASTY[1]}\n\nQuestion: first?"
    )
    assert system.parts == (alone.system,) == ("From documents.",)


def test_of_the_last_message_as_many_segments_go_in_as_are_let():
    asked = asked_of(*CONVERSATION, most=1)
    assert asked.sources == ("s", "a", "b", "c", "d")
    assert asked.dropped(5) == 1
    assert text_of(Chat(asked.prompt.messages[-1:])).endswith(f"{NASTY[4]}\n\nQuestion: second?")
    assert asked_of(*CONVERSATION, most=0).prompt.messages[-1].parts == ("second?",)


# --- known passages in flat text ---


def finds(*known: str):
    """A recogniser of these texts, by plain search."""

    def recognise(text: str):
        for one in known:
            head, found, tail = text.partition(one)
            if found:
                return (*recognise(head), Piece(one, "b"), *recognise(tail))
        return (text,) if text else ()

    return recognise


FLAT = [
    ChatMessage(role="system", content="Context:\n  {doc one}\nend"),
    user(TextBlock(text="earlier")),
    ChatMessage(role="assistant", content="{doc two} yes"),
    user(TextBlock(text="q {doc one}"), TextBlock(text="more")),
]


def test_known_passages_in_flat_text_are_pieces_and_the_text_is_the_same():
    found = asked_of(*FLAT, recognise=finds("  {doc one}", "{doc one}", "{doc two}"))
    flat = prompt_of(*FLAT)
    assert [piece.text for piece in found.prompt.pieces] == [
        "  {doc one}",
        "{doc two}",
        "{doc one}",
    ]
    assert text_of(found.prompt) == "".join(
        [flat.system, *(turn.text for turn in flat.history), flat.question]
    )
    assert [message.role for message in found.prompt.messages] == [m.role.value for m in FLAT]
    assert found.earlier == len(found.sources) == 3
    assert found.given == 0


def test_where_no_passage_is_known_the_prompt_is_as_without_looking():
    assert asked_of(*FLAT, recognise=finds("zebra")) == asked_of(*FLAT)
    bare = asked_of(user(TextBlock(text="a zebra?")), recognise=finds("zebra")).prompt
    assert bare.messages[0] == Message("system", ("",))


def test_segments_that_are_given_are_not_looked_for():
    def refuses(text: str):
        raise AssertionError

    assert asked_of(user(cited("a"), TextBlock(text="q")), recognise=refuses).given == 1
    asked_of(*CONVERSATION, recognise=refuses)


def test_the_source_of_a_passage_that_was_found_is_its_chunks_id(chunks):
    text = chunks[0].model_text
    found = asked_of(user(TextBlock(text=f"x {text}")), recognise=finds(text))
    assert found.sources == (chunks[0].id,)
