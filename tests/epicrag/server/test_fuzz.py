"""The server against requests made up from its own OpenAPI document: none is a fault of ours, and none goes
unsaid in the document."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import openapi
from schemathesis.checks import load_all_checks

MODELS = ("epicrag", "tiny", "all-minilm-l6-v2")
EXAMPLES = int(os.environ.get("EPICRAG_FUZZ_EXAMPLES", "4"))
"""Made-up requests of each operation, besides those that walk along the bounds of its schema."""

load_all_checks()


@pytest.fixture
def fuzzed(museum: Any, server_engine: Any, tmp_path: Path) -> Iterator[Any]:
    """The schema of a server over a tiny model, with all that a server has."""
    from epicrag.chunkbook import ChunkBook
    from epicrag.pipeline import Pipeline
    from epicrag.recognise import Recogniser
    from epicrag.server.app import create_app
    from epicrag.server.settings import ServerSettings
    from epicrag.server.state import State

    museum.engine = server_engine
    tokenizer = server_engine.tokenizer
    pipeline = Pipeline(
        museum.config, embedder=museum.embedder, engine=server_engine, counter=tokenizer
    )
    book = ChunkBook.open(tmp_path / "book", server_engine, tokenizer, None)
    with pipeline, book:
        state = State(pipeline, ServerSettings(allow_hosts=("testserver",)))
        state.chunks = book
        state.recogniser = Recogniser(tokenizer, index=museum.config.index, book=book)
        schema = openapi.from_asgi("/openapi.json", create_app(state))
        schema.config.update()
        yield schema
        state.recogniser.close()


schema = schemathesis.pytest.from_fixture("fuzzed")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
def test_requests_of_any_kind(case: Any):
    case.call_and_validate()
