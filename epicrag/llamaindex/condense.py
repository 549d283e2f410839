"""A message in a conversation as one question that stands alone, in the model's words: what to search for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.prompts import BasePromptTemplate

from epicrag.llamaindex.llm import EpicragLLM
from epicrag.llamaindex.messages import SYSTEM
from epicrag.llamaindex.turns import newest

ASK = (
    "Given this conversation and a follow-up message of the user, write one question that asks for the same and can "
    "be understood without the conversation. Write the question only.\n\nConversation:\n"
)
MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Condensing:
    messages: list[ChatMessage]
    max_tokens: int = MAX_TOKENS


def condensing(
    llm: EpicragLLM,
    history: Sequence[ChatMessage],
    message: str,
    template: BasePromptTemplate | None = None,
) -> Condensing:
    """What to ask the model; of a conversation that does not fit, its newest turns. The texts are never expanded."""

    def asked(kept: Sequence[ChatMessage]) -> list[ChatMessage]:
        said = "\n".join(f"{m.role.value}: {m.content or ''}" for m in kept if m.role not in SYSTEM)
        if template is not None:
            text = template.format(chat_history=said, question=message)
        else:
            text = f"{ASK}{said}\n\nFollow-up message: {message}\n\nQuestion:"
        return [ChatMessage(role=MessageRole.USER, content=text)]

    def fits(kept: list[ChatMessage]) -> bool:
        return llm.segments_in(asked(kept), max_tokens=MAX_TOKENS) is not None

    kept, _ = newest(history, fits)
    return Condensing(asked(kept))


def condensed(response: ChatResponse, message: str) -> str:
    """The question that the model wrote: its first line with words. The message itself where it wrote none."""
    for line in (response.message.content or "").splitlines():
        line = line.strip().strip('"“”')
        if any(character.isalnum() for character in line):
            return line
    return message
