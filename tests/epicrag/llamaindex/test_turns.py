"""What of a conversation is kept: its newest turns, whole."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import ChatMessage

from epicrag.llamaindex.turns import newest, turns_of


def said(*texts: str) -> list[ChatMessage]:
    """`u…` is the user's, `a…` the assistant's, `s…` the system's."""
    roles = {"u": "user", "a": "assistant", "s": "system"}
    return [ChatMessage(role=roles[text[0]], content=text) for text in texts]


def words(messages: list[ChatMessage]) -> list[str]:
    return [message.content for message in messages]


def test_a_turn_is_a_message_of_the_user_and_all_that_follows():
    history = said("a0", "u1", "a1", "s", "a1b", "u2", "u3", "a3")
    turns = [["a0"], ["u1", "a1", "a1b"], ["u2"], ["u3", "a3"]]
    assert [words(turn) for turn in turns_of(history)] == turns


@pytest.mark.parametrize("room", range(8))
def test_the_longest_end_that_fits_is_kept_in_whole_turns(room):
    history = said("s", "u1", "a1", "u2", "a2", "a2b", "u3", "a3")
    kept, left = newest(history, lambda some: len(some) <= room + 1)
    whole = {0: [], 2: ["u3", "a3"], 5: ["u2", "a2", "a2b", "u3", "a3"], 7: words(history[1:])}
    most = max(n for n in whole if n <= room)
    assert words(kept) == ["s", *whole[most]]
    assert left == 3 - [0, 2, 5, 7].index(most)


def test_nothing_is_asked_of_an_empty_history():
    assert newest([], lambda some: False) == ([], 0)


def test_a_long_history_is_not_tried_turn_by_turn():
    history = said(*(f"u{n}" for n in range(1000)))
    tried = []
    kept, left = newest(history, lambda some: tried.append(some) or len(some) <= 10)
    assert (len(kept), left) == (10, 990)
    assert len(tried) < 15
