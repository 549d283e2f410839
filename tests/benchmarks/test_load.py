"""The load test's own logic: how requests end, what is counted, and whether memory is flat."""

from __future__ import annotations

import asyncio
import itertools
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

load = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "load.py"), run_name="load")
)
POOL = [load.Passage(f"{n:024x}", f"text {n}", f"topic {n}") for n in range(8)]
RECEIPT = {"context_tokens": 100, "exact": 20, "stitched": 70, "recomputed": 10}
PIECES = [
    {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"completion_tokens": 7}, "epicrag": {"receipt": RECEIPT}},
]


def events(*items: object) -> str:
    return "".join(f"data: {item if item == '[DONE]' else json.dumps(item)}\n\n" for item in items)


def lines(*items: object) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def sent(text: str, *, status: int = 200, media: str = "text/event-stream") -> Any:
    """What becomes of a request that is answered with this."""

    async def ask() -> Any:
        reply = httpx.Response(status, text=text, headers={"content-type": media})
        transport = httpx.MockTransport(lambda request: reply)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await load.send(client, "v1/x", {})

    return asyncio.run(ask())


def test_same_seed_asks_the_same_in_orders_of_its_own():
    first, again = (list(itertools.islice(load.requests_of(POOL, 4, seed=3), 20)) for _ in range(2))
    assert first == again
    assert all(len(set(asked.passages)) == 4 for asked in first)
    assert len({asked.passages for asked in first}) > 10


@pytest.mark.parametrize("via", ["chunks", "documents", "ask"])
def test_body_carries_the_passages_in_their_order(via: str):
    asked = next(load.requests_of(POOL, 3, seed=0))
    path, body = load.body_of(asked, via, "m", 5)
    assert body["max_tokens"] == 5
    if via == "chunks":
        references = body["messages"][0]["chunk_references"]
        assert [one["id"] for one in references] == [one.id for one in asked.passages]
    elif via == "documents":
        assert [one["text"] for one in body["documents"]] == [one.text for one in asked.passages]
    else:
        assert path == "v1/ask" and body["k"] == 3


def test_finished_streams_are_done_with_their_receipt():
    for outcome in (
        sent(events(*PIECES, "[DONE]")),
        sent(
            lines(
                {"hits": []},
                {"delta": "a"},
                {"answer": "a", "receipt": RECEIPT, "usage": {"completion_tokens": 7}},
            ),
            media="application/x-ndjson",
        ),
    ):
        assert (outcome.state, outcome.written, outcome.receipt) == ("done", 7, RECEIPT)
        assert 0 < outcome.first <= outcome.whole


@pytest.mark.parametrize(
    ("text", "status", "state"),
    [
        (events(*PIECES), 200, "lost"),  # no end
        (events(PIECES[0], "[DONE]"), 200, "lost"),  # no finish
        (events(PIECES[0], {"error": {"message": "memory is full"}}), 200, "lost"),
        ('data: {"cho', 200, "lost"),
        ("busy", 429, "refused"),
        ("stopping", 503, "refused"),
        ("wrong", 400, "lost"),
    ],
)
def test_whatever_has_no_finish_is_refused_or_lost(text: str, status: int, state: str):
    assert sent(text, status=status).state == state


def test_row_counts_every_request_and_what_was_reused():
    server = load.Server("none", "", None, seconds=2.0)
    server.outcomes = [
        load.Outcome("done", first=0.1 * n, whole=0.2 * n, written=5, receipt=RECEIPT)
        for n in range(1, 11)
    ]
    server.outcomes += [load.Outcome("refused", "429"), load.Outcome("lost", "ReadError: gone")]
    row = load.row_of(server)
    assert (row["sent"], row["done"], row["refused"], row["lost"]) == (12, 10, 1, 1)
    assert row["reused"] == 0.9 and row["requests_per_s"] == 5.0 and row["tokens_per_s"] == 25.0
    assert row["ttft_ms"] == {"p50": 600.0, "p95": 1000.0}
    assert row["troubles"] == ["ReadError: gone"]
    assert load.table([row]).count("\n") == 2


@pytest.mark.parametrize(("growth", "is_flat"), [(0, True), (2_000, True), (4_000_000, False)])
def test_memory_is_flat_when_its_second_half_does_not_rise(growth: int, is_flat: bool):
    server = load.Server("none", "", None)
    start = [min(n, 20) * 10_000_000 for n in range(100)]  # it may fill up at first
    server.memory = [
        (n // 50, float(n), 900_000_000 + start[n] + growth * n + n % 3) for n in range(100)
    ]
    memory = load.memory_of(server)
    assert memory["is_flat"] is is_flat
    assert memory["mib_per_minute"] == pytest.approx(growth * 60 / 2**20, abs=0.01)
    assert len(memory["by_round_mib"]) == 2
