"""A conversation's turns: what does not fit leaves whole, from the oldest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from epicrag.llamaindex.messages import SYSTEM


def turns_of(history: Sequence[ChatMessage]) -> list[list[ChatMessage]]:
    """Each message of the user with all that follows it up to the next; system messages are in none."""
    turns: list[list[ChatMessage]] = []
    for message in history:
        if message.role in SYSTEM:
            continue
        if message.role == MessageRole.USER or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def newest(
    history: Sequence[ChatMessage], fits: Callable[[list[ChatMessage]], bool]
) -> tuple[list[ChatMessage], int]:
    """Return the longest end of a history, in whole turns, that fits; and how many turns that leaves out.

    System messages stay, at the front. A history that fits makes every end of it fit.
    """
    system = [message for message in history if message.role in SYSTEM]
    turns = turns_of(history)

    def end(start: int) -> list[ChatMessage]:
        return [*system, *(message for turn in turns[start:] for message in turn)]

    low, high = 0, len(turns)  # the oldest turn that may stay is one of these
    if not turns or fits(end(0)):
        return end(0), 0
    low = 1
    while low < high:
        middle = (low + high) // 2
        if fits(end(middle)):
            high = middle
        else:
            low = middle + 1
    return end(low), low
