"""A question answered line by line, a search, a passage."""

from __future__ import annotations

import json
from typing import Any

import pytest


def lines_of(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


def ask(
    server: Any, question: str = "What is the door code of the harbour museum?", **more: Any
) -> Any:
    return server.post("/v1/ask", {"question": question, **more})


def test_an_answer_comes_line_by_line(server: Any):
    answer = ask(server)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = lines_of(answer)
    assert lines[0]["relevance"]["relevant"]
    assert lines[0]["hits"][0]["path"].endswith("museum.txt")
    assert set(lines[0]["hits"][0]) >= {"rank", "score", "path", "lines", "chunk", "text", "stages"}
    deltas = [line["delta"] for line in lines if "delta" in line]
    last = lines[-1]
    assert "".join(deltas) == last["answer"]
    assert "4471" in last["answer"]
    assert last["schema_version"] == 1
    assert last["receipt"]["stitched"] == 70
    assert last["receipt_line"].startswith("reused 80 of 90 context tokens")
    assert last["sources"][0]["cited"]


def test_what_takes_long_is_said(server: Any):
    server.engine.profile = "another"  # its KV is nowhere yet
    notices = [line["notice"] for line in lines_of(ask(server)) if "notice" in line]
    assert notices and "computing the KV" in notices[0]


def test_without_streaming_the_object_comes_alone(server: Any):
    answer = ask(server, stream=False)
    assert answer.headers["content-type"] == "application/json"
    assert "4471" in answer.json()["answer"]


def test_nothing_relevant_is_said_and_under_strict_refused(server: Any):
    question = "quantum chromodynamics lattice?"
    assert lines_of(ask(server, question))[-1]["answered"] is False
    answer = ask(server, question, strict=True, stream=False)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["code"], error["exit_code"]) == ("abstained", 4)
    assert error["hint"]


def test_a_late_failure_is_the_last_line(server: Any):
    server.engine.answer = "words that stand nowhere"
    lines = lines_of(ask(server, strict=True))
    assert lines[-1]["error"]["code"] == "abstained"


def test_a_fault_of_ours_says_nothing_of_the_text(server: Any, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret of a document")

    monkeypatch.setattr(server.engine.__class__, "generate", fail)
    answer = ask(server)
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"]
    assert not server.state.jobs


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"filter": "nonsense=="}, "filter"),
        ({"link_policy": "magic(3)"}, "magic"),
        ({"rerank": "/etc/passwd"}, "reranker"),
        ({"k": 10**6}, "k is"),
        ({"k": 0}, "k:"),
        ({"weights": {"dense": 0, "words": 0}}, "weights"),
        ({"weights": {"dense": float("1e300")}}, "weights.dense"),
        ({"question": "  "}, "question"),
        ({"temperature": -1}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"unknown": 1}, "unknown"),
        ({"history": [{"role": "system", "text": "x"}]}, "history"),
        ({"min_score": 7}, "min_score"),
    ],
)
def test_what_cannot_be_asked_is_a_bad_request(server: Any, more: dict[str, Any], says: str):
    answer = ask(server, **more)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


def test_every_choice_reaches_the_engine(server: Any, monkeypatch: pytest.MonkeyPatch):
    from epicrag import pipeline
    from epicrag.history import Kept

    # The stub has no template to measure turns by.
    monkeypatch.setattr(pipeline, "fitted", lambda engine, prompt, n_new: (prompt, Kept(2, 1, 9)))
    answer = ask(
        server,
        k=2,
        link_policy="full",
        mode="words",
        weights={"dense": 0.5, "words": 1},
        rerank=False,
        min_score=0.01,
        shuffle_seed=3,
        history=[{"role": "user", "text": "Hello"}, {"role": "assistant", "text": "Hi"}],
        query="harbour museum door code",
        max_tokens=7,
        seed=1,
        filter='path~"*museum*"',
    )
    assert answer.status_code == 200
    last = lines_of(answer)[-1]
    assert (last["query"], last["history_tokens"]) == ("harbour museum door code", 9)
    assert last["dropped_turns"] == 1
    prompt = server.engine.prompts[-1]
    assert [turn.text for turn in prompt.history] == ["Hello", "Hi"]
    assert len(prompt.pieces) == 1
    assert prompt.namespace == "api"
    assert ask(server, min_score="auto", history=None).status_code == 200


def test_a_search_is_that_of_the_command(server: Any):
    answer = server.post("/v1/search", {"query": "island ferry", "k": 1})
    found = answer.json()
    assert found["hits"][0]["path"].endswith("ferry.txt")
    assert len(found["hits"]) == 1
    assert found["relevance"]


def test_a_passage_comes_with_its_neighbours(server: Any):
    (hit,) = server.post("/v1/search", {"query": "ferry", "k": 1}).json()["hits"]
    shown = server.client.get(f"/v1/passages/{hit['chunk']}").json()
    assert shown["text"] == hit["text"]
    assert shown["path"] == hit["path"]
    assert (shown["before_text"], shown["after_text"]) == (None, None)


@pytest.mark.parametrize("name", ["0" * 24, "abc", "..%2f..", "%00", "x" * 500])
def test_an_unknown_passage_is_not_found(server: Any, name: str):
    answer = server.client.get(f"/v1/passages/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_a_server_without_an_index_says_so(make_server: Any):
    server = make_server(has_index=False)
    answer = ask(server)
    assert answer.status_code == 409
    assert answer.json()["error"]["exit_code"] == 3
    assert answer.headers["x-should-retry"] == "false"
    names = [model["id"] for model in server.client.get("/v1/models").json()["data"]]
    assert "epicrag" not in names


def test_an_index_that_was_emptied_is_told(server: Any):
    with server.pipeline.turn:
        paths = [row.path for row in server.pipeline.catalog.documents()]
        server.pipeline.catalog.delete_documents(paths)
    assert ask(server).json()["error"]["code"] == "no_index"
