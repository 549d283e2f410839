"""What is counted, and what is logged."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import httpx
import pytest

from epicrag.server.logs import REQUESTS, JsonLines, TextLines, configure
from epicrag.server.metrics import Metrics

SECRET = "harbour museum"


def values(text: str) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_requests_are_counted_by_endpoint_and_status(server: Any):
    server.post("/v1/search", {"query": SECRET})
    server.post("/v1/search", {"query": SECRET, "filter": "="})
    server.client.get("/v1/passages/" + "0" * 24)
    server.client.get("/no/such/" + SECRET)
    counted = values(server.client.get("/metrics").text)
    assert counted['epicrag_requests_total{code="200",endpoint="/v1/search"}'] == 1
    assert counted['epicrag_requests_total{code="400",endpoint="/v1/search"}'] == 1
    assert counted['epicrag_requests_total{code="404",endpoint="/v1/passages/{chunk}"}'] == 1
    assert counted['epicrag_requests_total{code="404",endpoint="other"}'] == 1
    assert SECRET not in str(counted)


def test_the_engines_counts_are_those_of_the_receipts(live: Any):
    body = {"question": "harbour museum door code", "max_tokens": 5, "stream": False}
    httpx.post(live.url + "/v1/ask", json=body)  # and its chunks are in the pool
    before = values(httpx.get(live.url + "/metrics").text)
    answer = httpx.post(live.url + "/v1/ask", json=body).json()
    after = values(httpx.get(live.url + "/metrics").text)

    def grown(name: str) -> float:
        return after[name] - before[name]

    for kind in ("exact", "stitched", "recomputed", "fresh"):
        assert grown(f'epicrag_tokens_total{{kind="{kind}"}}') == answer["receipt"][kind]
    generated = answer["usage"]["completion_tokens"]
    assert grown('epicrag_tokens_total{kind="generated"}') == generated
    assert grown("epicrag_ttft_seconds_count") == 1
    assert grown('epicrag_chunk_hits_total{tier="pool"}') >= len(answer["sources"]) == 3
    for tier in ("host", "disk", "compiled"):
        assert grown(f'epicrag_chunk_hits_total{{tier="{tier}"}}') == 0
    pages = [after[f'epicrag_pool_pages{{state="{s}"}}'] for s in ("free", "idle", "used")]
    assert sum(pages) == live.engine.stats().pages
    assert after['epicrag_queue{state="running"}'] == 0


def test_two_servers_count_apart():
    first, second = Metrics(), Metrics()
    first.requests.labels("/x", "200").inc()
    assert b'endpoint="/x"' in first.text()
    assert b'endpoint="/x"' not in second.text()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    with caplog.at_level(logging.INFO, logger="epicrag.server.requests"):
        yield lambda: [r for r in caplog.records if r.name == REQUESTS.name]


def test_a_request_is_one_line_without_any_text(server: Any, logged: Any):
    server.post("/v1/ask", {"question": f"What is the door code of the {SECRET}?"})
    (record,) = logged()
    line = json.loads(JsonLines().format(record))
    assert set(line) == {
        "time", "level", "event", "id", "tenant", "method", "endpoint", "status", "ms", "ttft_ms",
        "tokens", "policy",
    }  # fmt: skip
    assert line["endpoint"] == "/v1/ask"
    assert (line["tenant"], line["status"], line["policy"]) == ("local", 200, "full")
    assert line["tokens"] == {
        "exact": 10,
        "stitched": 70,
        "recomputed": 10,
        "fresh": 20,
        "generated": 5,
    }
    text = TextLines().format(record)
    assert re.search(r"200 POST /v1/ask · [\d,]+ ms · first word", text)
    for said in (json.dumps(line), text):
        assert SECRET not in said and "4471" not in said


def test_refusals_are_logged_too_and_ids_are_of_the_response(server: Any, logged: Any):
    answer = server.client.get("/v1/models", headers={"host": "evil.example"})
    (record,) = logged()
    assert record.request["status"] == 403
    assert record.request["tenant"] is None
    assert record.request["id"] == answer.headers["x-request-id"]


def test_a_fault_is_logged_by_its_place_alone(server: Any, monkeypatch: Any, caplog: Any):
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(server.pipeline, "find", fail)
    answer = server.post("/v1/search", {"query": "x"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "RuntimeError at" in caplog.text and "test_metrics.py" in caplog.text
    assert SECRET not in caplog.text + answer.text


def test_responses_are_told_not_to_be_guessed_or_kept(server: Any):
    headers = server.client.get("/v1/models").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers


def test_the_log_is_lines_of_json(capfd: pytest.CaptureFixture[str]):
    loggers = [logging.getLogger(name) for name in ("epicrag", "uvicorn", "epicrag.server")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    try:
        configure("json", "warning")
        logging.getLogger("epicrag.server").info("serving on %s", "http://x")
        logging.getLogger("epicrag").warning("some\nthing")
        logging.getLogger("epicrag").info("not this")
        configure("text", "warning", quiet=True)
        logging.getLogger("epicrag.server").info("nor this")
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["serving on http://x", "some\nthing"]
