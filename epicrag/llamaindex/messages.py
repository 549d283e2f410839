"""Chat messages as what the engine is asked: CitableBlocks are segments, wherever they stand.

Documents of the last message alone make a `Prompt`: numbered passages, then the question. With documents in other
messages, or with known passages found in flat text, the conversation is a `Chat`, which keeps every text in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, CitableBlock, MessageRole, TextBlock

from epicrag.errors import UsageError
from epicrag.llamaindex.blocks import PassageBlock
from epicrag.serving.prompt import ASKING, LEAD, TAIL, Chat, Message, Piece, Prompt, Turn

Recogniser = Callable[[str], Sequence[str | Piece]]
"""Splits flat text at the passages it knows; joined back, the parts are the text."""

SYSTEM = (MessageRole.SYSTEM, MessageRole.DEVELOPER)
_ASSISTANT = (MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL)
_SILENT = ("cache", "citation", "thinking")
"""Kinds of blocks that say how a message came about: there is nothing in them for the model to read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How messages are read: what stands in for a system message, and where passages are known from."""

    documents_prompt: str = ""
    before: Callable[[str], str | None] = lambda source: None
    """The passage that stands before a segment in its document, by the segment's source."""
    recognise: Recogniser | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the engine is asked, with the source of each of its pieces."""

    prompt: Prompt | Chat
    sources: tuple[str, ...] = ()
    earlier: int = 0
    """Pieces that stand in messages before the last, or were found in flat text: none is left out for want of room."""
    given: int = 0
    """Segments of the last message, those included that were left out."""

    def dropped(self, used: int) -> int:
        """How many of the last message's segments were left out, where the engine used so many pieces."""
        return self.earlier + self.given - used


def to_asked(
    messages: Sequence[ChatMessage], reading: Reading, *, most: int | None = None
) -> Asked:
    """Lay messages out for the engine; every text goes in as it is, no template is applied.

    System messages become the system prompt (`documents_prompt` where there are documents but none of them). Of
    the last message, which must be the user's, the segments stand first and its texts, those before and those
    after, are the question. `most` of its segments go in, from the first. UsageError: there is no question, or
    something the model cannot read.
    """
    turns = [message for message in messages if message.role not in SYSTEM]
    if not turns or turns[-1].role != MessageRole.USER:
        raise UsageError(
            "the last message is not the user's", "end the messages with a question of role user"
        )
    for message in turns:
        _voice(message)
    blocks = _readable(turns[-1].blocks)
    cited = [block for block in blocks if isinstance(block, CitableBlock)]
    texts = [block.text for block in blocks if isinstance(block, TextBlock) and block.text.strip()]
    if not texts:
        raise UsageError("the question is empty", "put it into the last message as text")
    question = "\n\n".join(texts)
    others = [*(m for m in messages if m.role in SYSTEM), *turns[:-1]]
    if any(isinstance(block, CitableBlock) for m in others for block in _readable(m.blocks)):
        asked = _conversation(messages, turns, cited[:most], question, reading)
        return replace(asked, given=len(cited))
    system = [_flat(m) for m in messages if m.role in SYSTEM]
    prompt = Prompt(
        question=question,
        pieces=tuple(piece_of(block, reading.before) for block in cited[:most]),
        system="\n\n".join(system) if system else reading.documents_prompt if cited else "",
        history=tuple(Turn(_voice(m), _flat(m)) for m in turns[:-1]),
    )
    if cited or reading.recognise is None:
        return Asked(prompt, tuple(block.source for block in cited[:most]), given=len(cited))
    return _recognised(prompt, reading.recognise)


def _conversation(
    messages: Sequence[ChatMessage],
    turns: Sequence[ChatMessage],
    cited: Sequence[CitableBlock],
    question: str,
    reading: Reading,
) -> Asked:
    """Segments in several messages: each stays in its own."""
    sources: list[str] = []

    def parts(blocks: Sequence[str | CitableBlock]) -> Iterator[str | Piece]:
        for block in blocks:
            if isinstance(block, CitableBlock):
                sources.append(block.source)
                yield piece_of(block, reading.before)
            else:
                yield block

    system: list[str | CitableBlock] = []
    for message in messages:
        if message.role in SYSTEM:
            system += [*(["\n\n"] if system else []), *_bare(message)]
    laid = [Message("system", tuple(parts(system or [reading.documents_prompt])))]
    laid += [Message(_voice(m), tuple(parts(_laid(m)))) for m in turns[:-1]]
    earlier = len(sources)
    laid.append(Message("user", tuple(parts(_numbered(cited, question)))))
    return Asked(Chat(tuple(laid)), tuple(sources), earlier)


def _recognised(prompt: Prompt, recognise: Recogniser) -> Asked:
    """The same text with the passages that are known in it; the prompt itself where there are none."""
    said = [("system", prompt.system), *((turn.role, turn.text) for turn in prompt.history)]
    said.append(("user", prompt.question))
    laid = tuple(
        Message(role, tuple(recognise(text)) if text.strip() else (text,))  # type: ignore[arg-type]
        for role, text in said
    )
    chat = Chat(laid)
    if not chat.pieces:
        return Asked(prompt)
    sources = tuple(_content_id(piece.text) for piece in chat.pieces)
    return Asked(chat, sources, len(sources))


def _laid(message: ChatMessage) -> list[str | CitableBlock]:
    """An earlier message as it was laid out when it was the last; an assistant's as it is."""
    blocks = _readable(message.blocks)
    cited = [block for block in blocks if isinstance(block, CitableBlock)]
    texts = [block.text for block in blocks if isinstance(block, TextBlock) and block.text.strip()]
    if message.role == MessageRole.USER and cited and texts:
        return _numbered(cited, "\n\n".join(texts))
    return _bare(message)


def _numbered(cited: Sequence[CitableBlock], question: str) -> list[str | CitableBlock]:
    """Documents and a question in the words of a `Prompt`."""
    if not cited:
        return [question]
    parts: list[str | CitableBlock] = ["Documents:"]
    for n, block in enumerate(cited, 1):
        parts += [f"{TAIL}{n}{LEAD}", block]
    return [*parts, f"{ASKING} {question}"]


def _bare(message: ChatMessage) -> list[str | CitableBlock]:
    """The blocks one below the other, a line between."""
    parts: list[str | CitableBlock] = []
    for block in _readable(message.blocks):
        if parts:
            parts.append("\n")
        parts.append(block.text if isinstance(block, TextBlock) else block)
    return parts


def piece_of(block: CitableBlock, before: Callable[[str], str | None] | None = None) -> Piece:
    """A segment as the engine knows it; `before` says what stands before a source that does not know itself."""
    known = block if isinstance(block, PassageBlock) else None
    behind = known.before if known else None
    if behind is None and before is not None:
        behind = before(block.source)
    return Piece(_text(block), behind, known.namespace if known else "")


def _content_id(text: str) -> str:
    """The id of a chunk of the index with this text (`types.Chunk.id`)."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _voice(message: ChatMessage) -> Any:
    if message.role == MessageRole.USER:
        return "user"
    if message.role in _ASSISTANT:
        return "assistant"
    raise UsageError(
        f"a message has the role {message.role.value}",
        "system, user and assistant are possible: this model calls no tools",
    )


def _flat(message: ChatMessage) -> str:
    return "\n".join(
        block.text for block in _readable(message.blocks) if isinstance(block, TextBlock)
    )


def _text(block: CitableBlock) -> str:
    inner = _readable(block.content)
    return "\n".join(block.text for block in inner if isinstance(block, TextBlock))


def _readable(blocks: Sequence[Any]) -> list[TextBlock | CitableBlock]:
    """The blocks that have text for the model; UsageError for what it cannot read."""
    found: list[TextBlock | CitableBlock] = []
    for block in blocks:
        if isinstance(block, TextBlock | CitableBlock):
            found.append(block)
        elif block.block_type not in _SILENT:
            raise UsageError(
                f"a message holds a block of kind {block.block_type}",
                "this model reads text only: TextBlock and CitableBlock",
            )
    return found
