"""OpenAI's messages as prompts and conversations."""

from __future__ import annotations

from typing import Any

import pytest

from epicrag.server.asked import Passage, as_chat, as_prompt, conversation, form_of
from epicrag.server.errors import ApiError
from epicrag.server.openai_types import Message
from epicrag.serving.prompt import Piece


def messages(*pairs: tuple[str, str], references: Any = None) -> list[Message]:
    """Messages by role and text; `references` are those of the last."""
    made = [Message.model_validate({"role": role, "content": text}) for role, text in pairs]
    if references is not None:
        last = {"role": made[-1].role, "content": made[-1].text, "chunk_references": references}
        made[-1] = Message.model_validate(last)
    return made


def passage(name: str, where: str = "") -> Passage:
    return Passage(Piece(f"text of {name}", namespace="api"), name)


def test_system_messages_are_joined_and_turns_keep_their_order():
    said = conversation(
        messages(
            ("system", "One."),
            ("user", "Hi"),
            ("developer", "Two."),
            ("assistant", "Yes?"),
            ("user", "Why?"),
        )
    )
    assert said.system == "One.\n\nTwo."
    assert [turn.text for turn in said.turns] == ["Hi", "Yes?"]
    assert said.question == "Why?"


@pytest.mark.parametrize("last", [("assistant", "Hm"), ("system", "Hm"), ("user", " \n")])
def test_conversation_without_a_question_is_refused(last: tuple[str, str]):
    with pytest.raises(ApiError) as refusal:
        conversation(messages(("user", "Hi"), last))
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("references", "with_documents", "form"),
    [
        (None, False, "chat"),
        (None, True, "prompt"),
        ([], False, "chat"),
        ([{"id": "a"}], False, "prompt"),
        ([{"id": "a"}], True, "prompt"),
        ([{"id": "a", "offset": 0}], False, "chat"),
        ([{"id": "a"}, {"id": "b", "offset": 99}], False, "chat"),
    ],
)
def test_passages_are_numbered_where_no_place_is_asked_for(
    references: Any, with_documents: bool, form: str
):
    assert form_of(messages(("user", "Why?"), references=references), with_documents) == form


def test_references_of_earlier_messages_stand_in_the_text():
    earlier = messages(("user", "Read this."), references=[{"id": "a"}])
    both = [*earlier, *messages(("user", "Why?"))]
    assert form_of(both, False) == "chat"
    with pytest.raises(ApiError, match="documents are numbered"):
        form_of(both, True)


def test_prompt_has_its_passages_before_the_question():
    said = conversation(messages(("user", "Why?")))
    made = as_prompt(said, [passage("a"), passage("b")], system="Default.", namespace="api")
    assert [piece.text for piece in made.pieces] == ["text of a", "text of b"]
    assert (made.question, made.system, made.namespace) == ("Why?", "Default.", "api")


def test_chat_has_chunks_before_the_text_of_their_message():
    given = messages(
        ("system", "Be brief."),
        ("user", "Why?"),
        references=[{"id": "a", "offset": 32}, {"id": "b"}],
    )
    asked_for: list[tuple[str, str]] = []

    def find(name: str, where: str) -> Passage:
        asked_for.append((name, where))
        return passage(name)

    chat = as_chat(given, find, lambda text: (text[:1], text[1:]), namespace="api")
    first, second = chat.messages
    assert first.parts == ("B", "e brief.")
    a, b, *text = second.parts
    assert (a, b) == (
        Piece("text of a", namespace="api", offset=32),
        Piece("text of b", namespace="api"),
    )
    assert text == ["W", "hy?"]
    assert asked_for[1] == ("b", "messages[1].chunk_references[1].id")
    assert chat.namespace == "api"
