"""What OpenAI's clients send, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from epicrag.server.openai_types import ChatRequest, CompletionRequest

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def refusal(**fields: Any) -> tuple[str, str]:
    """The field that a chat request is refused for, and why."""
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({**HELLO, **fields})
    first = caught.value.errors()[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def test_parts_of_text_are_joined_as_they_are():
    parts = [{"type": "text", "text": "Goods can "}, {"type": "text", "text": "be returned."}]
    request = ChatRequest.model_validate(
        {**HELLO, "messages": [{"role": "user", "content": parts, "name": "ann"}]}
    )
    assert request.messages[0].text == "Goods can be returned."


def test_unknown_fields_are_ignored():
    extra = {"user": "ann", "store": True, "metadata": {"a": "b"}, "parallel_tool_calls": False}
    assert ChatRequest.model_validate({**HELLO, **extra}).messages[0].text == "hello"


def test_image_parts_are_refused_by_their_field():
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    where, why = refusal(messages=[{"role": "user", "content": [image]}])
    assert where == "messages.0.content.(list).0"
    assert "image_url" in why
    assert "text only" in why


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"50256": -100}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "mp3"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("function_call", {"name": "f"}),
        ("web_search_options", {}),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(field: str, value: object):
    where, why = refusal(**{field: value})
    assert where == field
    assert "this server" in why


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("n", None),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("logit_bias", {}),
        ("modalities", ["text"]),
        ("tool_choice", "auto"),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("stop", ["a", "b"]),
        ("max_tokens", 8.0),
        ("temperature", 1),
        ("seed", -1),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
    ],
)
def test_what_changes_nothing_is_taken(field: str, value: object):
    ChatRequest.model_validate({**HELLO, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "1"),
        ("temperature", float("nan")),
        ("temperature", 2.5),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("stop", ""),
        ("stop", [""]),
        ("stream", "yes"),
        ("messages", []),
        ("response_format", {"type": "xml"}),
    ],
)
def test_values_that_mean_nothing_are_refused(field: str, value: object):
    assert refusal(**{field: value})[0].startswith(field)


def test_misspelt_setting_of_our_own_is_refused():
    assert refusal(epicrag={"polciy": "full"})[0] == "epicrag.polciy"


def test_tool_messages_are_refused_with_a_reason():
    where, why = refusal(messages=[{"role": "tool", "content": "4", "tool_call_id": "x"}])
    assert where == "messages.0.role"
    assert "calls no tools" in why


def test_half_a_surrogate_pair_is_refused():
    assert "surrogate" in refusal(messages=[{"role": "user", "content": "a\ud800b"}])[1]


def test_prompt_may_be_one_or_several():
    assert CompletionRequest.model_validate({"model": "m", "prompt": "a"}).prompts == ["a"]
    assert CompletionRequest.model_validate({"model": "m", "prompt": ["a", "b"]}).prompts == [
        "a",
        "b",
    ]


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]], ["a", 1]])
def test_arrays_of_tokens_are_refused_clearly(prompt: object):
    with pytest.raises(ValidationError, match="arrays of tokens are not taken"):
        CompletionRequest.model_validate({"model": "m", "prompt": prompt})


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("suffix", "x"), ("best_of", 2), ("logprobs", 1)]
)
def test_old_options_are_refused_by_their_names(field: str, value: object):
    with pytest.raises(ValidationError, match=field):
        CompletionRequest.model_validate({"model": "m", "prompt": "a", field: value})


def test_schema_says_what_is_taken():
    schema = ChatRequest.model_json_schema()
    assert schema["properties"]["n"]["anyOf"][0] == {"const": 1, "type": "integer"}
    assert schema["properties"]["max_tokens"]["anyOf"][0]["minimum"] == 1
    assert "additionalProperties" not in schema
    assert schema["$defs"]["Settings"]["additionalProperties"] is False


def test_a_million_mistakes_are_one():
    part = {"type": "image_url"}
    wrong = [{"role": "user", "content": [part] * 100}] * 100
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"model": "m", "messages": wrong})
    assert caught.value.error_count() == 1
