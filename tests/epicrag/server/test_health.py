"""Whether it is ready, and what it has counted."""

from __future__ import annotations

from typing import Any

import httpx

from epicrag.server.app import create_app
from epicrag.server.state import State


def test_health_is_ok_when_the_model_is_there(server: Any):
    answer = server.client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_health_says_loading_before():
    from fastapi.testclient import TestClient

    with TestClient(create_app(State()), base_url="http://127.0.0.1") as client:
        answer = client.get("/healthz")
        assert (answer.status_code, answer.json()) == (503, {"status": "loading"})
        assert answer.headers["Retry-After"]


def test_live_server_answers(live: Any):
    assert httpx.get(live.url + "/healthz").json() == {"status": "ok"}
