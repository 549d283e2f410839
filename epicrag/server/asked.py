"""OpenAI's messages as what the engine is asked: numbered passages before a question, or free text with chunks in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from epicrag.server.errors import ApiError
from epicrag.server.openai_types import ChunkReference, Message

if TYPE_CHECKING:
    from epicrag.serving import prompt
    from epicrag.serving.prompt import Piece, Turn

Role: TypeAlias = Literal["system", "user", "assistant"]
Form: TypeAlias = Literal["prompt", "chat"]

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage that came with a request: by reference, or as a document."""

    piece: Piece
    id: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, taken apart for a prompt: system messages, turns, and the question that the last turn is."""

    system: str
    turns: tuple[Turn, ...]
    question: str


def conversation(messages: Sequence[Message]) -> Conversation:
    """ApiError 400 where the last message is not the user's: then nothing is asked."""
    from epicrag.serving.prompt import Turn

    *before, last = messages
    if last.role != "user":
        raise ApiError(
            400,
            f"the last message is of the role {last.role}",
            "end the messages with the user's question",
            param="messages",
        )
    if not last.text.strip():
        raise ApiError(
            400,
            "the last message has no text",
            "put the question into it",
            param=f"messages[{len(before)}].content",
        )
    turns = [
        Turn("user" if message.role == "user" else "assistant", message.text)
        for message in before
        if ROLES[message.role] != "system"
    ]
    system = [message.text for message in before if ROLES[message.role] == "system"]
    return Conversation("\n\n".join(system), tuple(turns), last.text)


def form_of(messages: Sequence[Message], with_documents: bool) -> Form:
    """Which form a request takes: passages are numbered where they stand before the last question and nowhere else.

    ApiError 400 where both forms would be needed.
    """
    *before, last = [message.chunk_references or [] for message in messages]
    is_free = any(before) or any(reference.offset is not None for reference in last)
    if is_free and with_documents:
        raise ApiError(
            400,
            "documents are numbered before the last question, and so must chunk_references be that come with them",
            "leave out their offsets and those of earlier messages, or the documents",
            param="documents",
        )
    return "prompt" if with_documents or (last and not is_free) else "chat"


def references_of(message: Message, n: int) -> list[tuple[ChunkReference, str]]:
    """The references of message `n`, each with the name of the field that it stands in."""
    given = message.chunk_references or []
    return [(one, f"messages[{n}].chunk_references[{m}].id") for m, one in enumerate(given)]


def as_prompt(
    said: Conversation, passages: Sequence[Passage], *, system: str, namespace: str
) -> prompt.Prompt:
    """Numbered passages before the question; `system` where no message says another."""
    from epicrag.serving.prompt import Prompt

    return Prompt(
        question=said.question,
        pieces=tuple(passage.piece for passage in passages),
        system=said.system or system,
        history=said.turns,
        namespace=namespace,
    )


def as_chat(
    messages: Sequence[Message],
    passage: Callable[[str, str], Passage],
    parts: Callable[[str], Sequence[str | Piece]],
    *,
    namespace: str,
    is_raw: bool = False,
) -> prompt.Chat:
    """Messages as they are, chunks before the text of theirs; known chunks in that text are `parts` of it.

    `passage` gets an id, and the name of the field that it stands in.
    """
    from epicrag.serving.prompt import Chat
    from epicrag.serving.prompt import Message as Laid

    laid = []
    for n, message in enumerate(messages):
        pieces = [
            replace(passage(reference.id, where).piece, offset=reference.offset)
            for reference, where in references_of(message, n)
        ]
        laid.append(Laid(ROLES[message.role], (*pieces, *parts(message.text))))
    return Chat(tuple(laid), namespace, is_raw)
