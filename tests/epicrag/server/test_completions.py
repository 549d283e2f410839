"""POST /v1/completions over the museum's index."""

from __future__ import annotations

import json
from typing import Any

from openai.types import Completion

PATH = "/v1/completions"
DOOR = "What is the door code of the museum?"


def asked(server: Any, prompt: Any, model: str = "epicrag", **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, {"model": model, "prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    said: dict[str, Any] = response.json()
    Completion.model_validate(said, strict=True)
    return said


def streamed(server: Any, prompt: Any, **fields: Any) -> list[Any]:
    body = {"model": "epicrag", "prompt": prompt, "stream": True, **fields}
    lines = server.post(PATH, body).text.split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


def test_prompt_is_answered_from_the_index(server: Any):
    said = asked(server, DOOR)
    (choice,) = said["choices"]
    assert "4471" in choice["text"]
    assert choice["finish_reason"] == "stop"
    assert said["id"].startswith("cmpl-")
    assert said["epicrag"]["sources"]


def test_prompt_reaches_the_model_as_a_message_of_the_user(server: Any):
    server.engine.answer = "Hello."
    said = asked(server, "Say hello", model="stub-lm", max_tokens=3)
    assert said["choices"][0]["text"] == "Hello."
    (message,) = server.engine.prompts[-1].messages
    assert (message.role, message.parts) == ("user", ("Say hello",))
    assert server.engine.samplings[-1].max_tokens == 3


def test_several_prompts_make_several_choices(server: Any):
    said = asked(server, [DOOR, "How often does the ferry leave?"])
    assert [choice["index"] for choice in said["choices"]] == [0, 1]
    assert "4471" in said["choices"][0]["text"]
    assert "hour" in said["choices"][1]["text"]
    assert said["usage"]["completion_tokens"] == 10
    assert said["choices"][1]["epicrag"]["sources"][0]["path"].endswith("ferry.txt")


def test_stream_of_several_prompts_says_of_which_each_piece_is(server: Any):
    chunks = streamed(
        server, [DOOR, "How often does the ferry leave?"], stream_options={"include_usage": True}
    )
    texts = ["", ""]
    reasons = []
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        reasons.append(choice["finish_reason"])
    assert "4471" in texts[0]
    assert "hour" in texts[1]
    assert reasons.count("stop") == 2
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 200


def test_stream_of_one_prompt_ends_with_the_extension(server: Any):
    *_, last = streamed(server, DOOR)
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["epicrag"]["receipt"]


def test_arrays_of_tokens_are_refused(server: Any):
    response = server.post(PATH, {"model": "epicrag", "prompt": [1, 2, 3]})
    assert response.status_code == 400
    assert "arrays of tokens" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "prompt"
