"""Which models there are, and texts as vectors."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest


def embed(server: Any, text: Any, **more: Any) -> Any:
    return server.post("/v1/embeddings", {"input": text, **more})


def vectors(answer: Any) -> np.ndarray:
    return np.array([row["embedding"] for row in answer.json()["data"]], np.float32)


def test_models_are_listed_and_shown(server: Any):
    listed = server.client.get("/v1/models").json()
    names = [model["id"] for model in listed["data"]]
    assert names == ["epicrag", "stub-lm", "all-minilm-l6-v2"]
    assert server.client.get("/v1/models/stub-lm").json() == listed["data"][1]
    answer = server.client.get("/v1/models/gpt-4")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_the_model_may_be_called_otherwise(make_server: Any):
    server = make_server(served_model_name="org/our-model")
    assert server.client.get("/v1/models/org/our-model").json()["root"] == "stub-lm"


def test_embeddings_are_unit_vectors_of_the_embedder(server: Any):
    answer = embed(server, ["the harbour", "the ferry"])
    rows = vectors(answer)
    assert rows.shape == (2, 256)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert np.allclose(rows[0], server.pipeline.embedder.query("the harbour"), atol=1e-6)
    assert answer.json()["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    one = vectors(embed(server, "the harbour", input_type="query", model="all-minilm-l6-v2"))
    assert np.allclose(one[0], rows[0], atol=1e-6)


def test_base64_holds_the_same_numbers(server: Any):
    (row,) = embed(server, "the harbour", encoding_format="base64").json()["data"]
    numbers = np.frombuffer(base64.b64decode(row["embedding"]), "<f4")
    assert np.array_equal(numbers, vectors(embed(server, "the harbour"))[0])


def test_windows_of_a_long_text_are_averaged(server: Any, monkeypatch: pytest.MonkeyPatch):
    rows = np.array([[1, 0], [0, 1]], np.float32)
    monkeypatch.setattr(type(server.pipeline.embedder), "passages", lambda *_: [rows])
    assert np.allclose(vectors(embed(server, "long")), 2**-0.5)
    monkeypatch.setattr(type(server.pipeline.embedder), "passages", lambda *_: [rows[:0]])
    assert embed(server, "long").status_code == 400


@pytest.mark.parametrize(
    ("text", "more", "status"),
    [
        ([1, 2, 3], {}, 400),
        ([[1, 2], [3]], {}, 400),
        ([], {}, 400),
        ("  ", {}, 400),
        (["a", ""], {}, 400),
        (["a"] * 5, {}, 400),
        ("x" * 101, {}, 400),
        ({"a": 1}, {}, 400),
        (None, {}, 400),
        ("a", {"dimensions": 8}, 400),
        ("a", {"dimensions": 256}, 200),
        ("a", {"encoding_format": "int8"}, 400),
        ("a", {"model": "text-embedding-3-small"}, 404),
    ],
)
def test_input_has_limits(make_server: Any, text: Any, more: dict[str, Any], status: int):
    server = make_server(max_inputs=4, max_input_chars=100)
    answer = embed(server, text, **more)
    assert answer.status_code == status, answer.text


def test_openais_own_client_gets_its_vectors(live: Any):
    import openai

    with openai.OpenAI(base_url=live.v1, api_key="any", max_retries=0) as client:
        made = client.embeddings.create(model="all-minilm-l6-v2", input=["the harbour"])
        assert len(made.data[0].embedding) == 256
        assert made.usage.total_tokens == 2
        assert next(iter(client.models.list())).id == "epicrag"
        with pytest.raises(openai.BadRequestError, match="token ids"):
            client.embeddings.create(model="all-minilm-l6-v2", input=[1, 2])
