"""Replies in OpenAI's shapes: its own client's types are the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from epicrag.repeats import REPEATS
from epicrag.server.openai_replies import Envelope, Refused, Written
from epicrag.types import Receipt, Source, Timings, Usage

RECEIPT = Receipt("legolink(8)", "isolated", 90, 10, 70, 10, 20, ms=Timings(link=1.23456789))
SOURCE = Source(1, "/a.md", 3, (1, 2), "Head", "c0ffee", 0.5, cited=True)
WRITTEN = Written(
    "stop", Usage(110, 7), RECEIPT, (SOURCE,), ("a note",), ("a warning",), True, True
)


def envelope(with_usage: bool = False) -> Envelope:
    return Envelope("chatcmpl", "epicrag", "fp_1", with_usage)


def sent(reply: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(reply.wire())
    return body


def test_whole_answer_is_a_chat_completion():
    body = sent(envelope().chat("Yes [1].", None, WRITTEN))
    read = ChatCompletion.model_validate(body, strict=True)
    assert read.object == "chat.completion"
    assert read.id.startswith("chatcmpl-")
    assert read.choices[0].message.content == "Yes [1]."
    assert read.choices[0].message.role == "assistant"
    assert read.choices[0].finish_reason == "stop"
    assert read.usage is not None
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (110, 7)
    assert read.usage.total_tokens == 117
    assert read.usage.prompt_tokens_details is not None
    assert read.usage.prompt_tokens_details.cached_tokens == 80


def test_extension_has_receipt_sources_notes_and_warnings():
    said = sent(envelope().chat("Yes [1].", None, WRITTEN))["epicrag"]
    assert said["receipt"]["stitched"] == 70
    assert said["receipt"]["ms"]["link"] == 1.235
    assert said["sources"][0] == {
        "n": 1,
        "path": "/a.md",
        "page": 3,
        "lines": [1, 2],
        "heading": "Head",
        "chunk": "c0ffee",
        "score": 0.5,
        "cited": True,
        "part": None,
        "cells": None,
    }
    assert (said["notes"], said["warnings"]) == (["a note"], ["a warning"])
    assert (said["answered"], said["grounded"]) == (True, True)


def test_streamed_pieces_are_chunks_with_the_role_first():
    pieces = [envelope().chat_opening(), envelope().chat_delta("Yes")]
    pieces += envelope().chat_closing(WRITTEN)
    bodies = [sent(piece) for piece in pieces]
    for body in bodies:
        ChatCompletionChunk.model_validate(body, strict=True)
    assert bodies[0]["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "",
        "refusal": None,
    }
    assert bodies[1]["choices"][0]["delta"] == {"content": "Yes"}
    assert bodies[1]["choices"][0]["finish_reason"] is None
    assert bodies[2]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert bodies[2]["epicrag"]["sources"]
    assert not any("usage" in body for body in bodies)


def test_usage_comes_in_a_piece_without_choices():
    delta = sent(envelope(True).chat_delta("Yes"))
    assert delta["usage"] is None
    last, counted = map(sent, envelope(True).chat_closing(WRITTEN))
    assert last["usage"] is None
    assert "epicrag" not in last
    assert counted["choices"] == []
    assert counted["usage"]["total_tokens"] == 117
    assert counted["epicrag"]["receipt"]


@pytest.mark.parametrize(
    ("reason", "shown"), [("stop", "stop"), ("length", "length"), (REPEATS, "stop")]
)
def test_finish_reasons_are_those_that_clients_know(reason: str, shown: str):
    written = Written(reason, Usage(1, 1), RECEIPT)
    body = sent(envelope().chat("a", None, written))
    assert body["choices"][0]["finish_reason"] == shown


def test_refusal_stands_in_place_of_content():
    body = sent(envelope().chat("", "nothing was found", WRITTEN))
    ChatCompletion.model_validate(body, strict=True)
    assert body["choices"][0]["message"]["content"] is None
    assert body["choices"][0]["message"]["refusal"] == "nothing was found"
    piece = sent(envelope().chat_delta(Refused("nothing was found")))
    assert piece["choices"][0]["delta"] == {"refusal": "nothing was found"}


def test_answer_without_a_model_has_no_receipt_and_no_tokens():
    body = sent(envelope().chat("Nothing.", None, Written("stop", Usage(0, 0), answered=False)))
    assert body["epicrag"]["receipt"] is None
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_several_texts_are_choices_with_an_extension_each():
    body = sent(Envelope("cmpl", "m", "fp_1").text(["a", "b"], [WRITTEN, WRITTEN]))
    read = Completion.model_validate(body, strict=True)
    assert [choice.text for choice in read.choices] == ["a", "b"]
    assert read.usage is not None
    assert read.usage.total_tokens == 234
    assert "epicrag" not in body
    assert all(choice["epicrag"]["receipt"] for choice in body["choices"])


def test_pieces_of_a_text_are_completions():
    made = Envelope("cmpl", "m", "fp_1", with_usage=True)
    bodies = [
        sent(made.text_delta(0, "a")),
        sent(made.text_closing(0, WRITTEN, False)),
        sent(made.text_usage([WRITTEN])),
    ]
    assert (
        bodies[0]["choices"][0]["finish_reason"] is None
    )  # as OpenAI sends, whatever its types say
    for body in bodies[1:]:
        Completion.model_validate(body, strict=True)
    assert [body["usage"] is None for body in bodies] == [True, True, False]
    assert bodies[1]["choices"][0]["finish_reason"] == "stop"
    assert bodies[2]["epicrag"]["receipt"]
