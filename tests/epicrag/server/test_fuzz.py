"""The server against requests made up from its own OpenAPI document: none is a fault of ours, and none goes
unsaid in the document."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from schemathesis import Case, CheckContext, Response, openapi
from schemathesis.specs.openapi.checks import positive_data_acceptance

from epicrag.pipeline import Pipeline
from epicrag.server.app import create_app
from epicrag.server.openai_replies import ChatChunk, Completion
from epicrag.server.rooms import furnish
from epicrag.server.settings import ServerSettings
from epicrag.server.state import State

EXAMPLES = int(os.environ.get("EPICRAG_FUZZ_EXAMPLES", "2"))
"""Made-up requests of each operation, besides those that walk along the bounds of its schema."""


CHAT_MODELS = ("epicrag", "tiny")
PIECES: dict[str, Any] = {"/v1/chat/completions": ChatChunk, "/v1/completions": Completion}
MODELS = {"/v1/embeddings": "all-minilm-l6-v2"}


class Door:
    """Leads to the app of the test that runs; to begin with, to one that only tells of itself."""

    def __init__(self) -> None:
        self.app: Any = create_app(State(settings=SETTINGS))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


SETTINGS = ServerSettings(allow_hosts=("testserver",))
DOOR = Door()
SCHEMA = openapi.from_asgi("/openapi.json", DOOR)


@pytest.fixture
def open_door(museum: Any, server_engine: Any, tmp_path: Path) -> Iterator[None]:
    """A server over a tiny model, with all that a server has."""
    museum.engine = server_engine
    with Pipeline(
        replace(museum.config, max_tokens=4),
        embedder=museum.embedder,
        engine=server_engine,
        counter=server_engine.tokenizer,
    ) as pipeline:
        state = State(settings=SETTINGS)
        furnish(state, pipeline, tmp_path / "book", None)
        state.ready(pipeline)
        DOOR.app = create_app(state)
        yield
        state.close()


def document_is_honest(ctx: CheckContext, response: Response, case: Case) -> None:
    """What the document allows is refused for what it means, never for its shape."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if response.status_code == 400 and response.json()["error"]["code"] == "invalid_field":
        raise AssertionError(f"allowed by the document, and refused: {response.text}")


def pieces_are_of_their_shape(ctx: CheckContext, response: Response, case: Case) -> None:
    """A stream holds pieces as documented, or an error, and is not broken off unsaid."""
    piece = PIECES.get(case.operation.path)
    kind = response.headers.get("content-type", [""])[0]
    if piece is None or not kind.startswith("text/event-stream"):
        return
    events = [event for event in response.text.split("\n\n") if event]
    for event in events[:-1]:
        piece.model_validate_json(event.removeprefix("data: "))
    if events[-1] != "data: [DONE]":
        error = json.loads(events[-1].removeprefix("event: error\ndata: "))
        assert error["error"]["code"] != "unexpected"


def ask_a_model_that_is_there(case: Case) -> None:
    """Made-up names are all unknown: beyond that answer there would be nothing to see."""
    body = case.body
    if case.meta and case.meta.generation.mode.is_positive and isinstance(body, dict):
        name = body.get("model")
        if isinstance(name, str):
            body["model"] = MODELS.get(case.operation.path, CHAT_MODELS[len(name) % 2])


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
def test_requests_of_any_kind(case: Case, open_door: None):
    ask_a_model_that_is_there(case)
    case.call_and_validate(
        excluded_checks=[positive_data_acceptance],
        additional_checks=[document_is_honest, pieces_are_of_their_shape],
    )
