"""Chat messages and the engine's prompt: a CitableBlock is a segment that is cached and reused as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, CitableBlock, MessageRole, TextBlock
from llama_index.core.schema import MetadataMode, NodeWithScore

from epicrag.errors import UsageError
from epicrag.serving.prompt import Piece, Prompt, Turn

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog

ROW_KEY = "epicrag_row"
"""Metadata key of a node's row in the catalog, hidden from every text."""

_SYSTEM = (MessageRole.SYSTEM, MessageRole.DEVELOPER)
_ASSISTANT = (MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL)
_SILENT = ("cache", "citation", "thinking")
"""Kinds of blocks that say how a message came about: there is nothing in them for the model to read."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A passage on its way to the model: its exact text, and the node it comes from if there is one."""

    text: str
    source: str = ""
    title: str = ""
    node: NodeWithScore | None = None

    @classmethod
    def of(cls, found: NodeWithScore) -> Segment:
        """Any LlamaIndex node: what it shows to an LLM is the text."""
        node = found.node
        row = node.metadata.get(ROW_KEY)
        source = node.node_id if row is None else f"{node.node_id}@{row}"
        title = str(node.metadata.get("file_name") or "")
        return cls(node.get_content(metadata_mode=MetadataMode.LLM), source, title, found)

    def block(self) -> CitableBlock:
        return CitableBlock(
            title=self.title, source=self.source, content=[TextBlock(text=self.text)]
        )


def distinct(segments: Iterable[Segment]) -> list[Segment]:
    """Keep the first of equal texts, in order; what has no text (an image) is left out."""
    first: dict[str, Segment] = {}
    for segment in segments:
        if segment.text.strip():
            first.setdefault(segment.text, segment)
    return list(first.values())


def passage_before(catalog: Catalog, source: str) -> str | None:
    """Return the passage that stands before a segment in its document; None where that is not known.

    `source` is a `Segment.source`. It counts only while it names the very chunk that the catalog holds.
    """
    chunk_id, _, row = source.rpartition("@")
    if not (row.isdecimal() and len(row) <= 18):
        return None
    try:
        if catalog.chunk(int(row)).id != chunk_id:
            return None
    except KeyError:
        return None
    before = catalog.previous(int(row))
    return before.model_text if before else None


def to_prompt(
    messages: Sequence[ChatMessage],
    *,
    documents_prompt: str,
    before: Callable[[str], str | None],
) -> Prompt:
    """Lay messages out for the engine; every text goes in as it is, no template is applied.

    System messages become the system prompt (`documents_prompt` when there are documents but none of
    them), earlier turns the history. Of the last message, which must be the user's, the CitableBlocks
    become pieces in their order and its texts, those before and those after, the question.
    """
    turns = [message for message in messages if message.role not in _SYSTEM]
    if not turns or turns[-1].role != MessageRole.USER:
        raise UsageError(
            "the last message is not the user's", "end the messages with a question of role user"
        )
    blocks = _readable(turns[-1].blocks)
    cited = [block for block in blocks if isinstance(block, CitableBlock)]
    texts = [block.text for block in blocks if isinstance(block, TextBlock) and block.text.strip()]
    if not texts:
        raise UsageError("the question is empty", "put it into the last message as text")
    system = [_flat(m) for m in messages if m.role in _SYSTEM]
    return Prompt(
        question="\n\n".join(texts),
        pieces=tuple(Piece(_text(block), before(block.source)) for block in cited),
        system="\n\n".join(system) if system else documents_prompt if cited else "",
        history=tuple(Turn(_voice(m), _flat(m)) for m in turns[:-1]),
    )


def sources_of(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the sources of the segments of the last turn, in their order."""
    *_, last = (message for message in messages if message.role not in _SYSTEM)
    return [block.source for block in last.blocks if isinstance(block, CitableBlock)]


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
    """All of a message as one text: documents of earlier turns are read, not reused."""
    return "\n".join(
        block.text if isinstance(block, TextBlock) else _text(block)
        for block in _readable(message.blocks)
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
