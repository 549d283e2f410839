"""The OpenAPI document tells of every operation how it may end."""

from __future__ import annotations

from typing import Any

from epicrag.server.app import create_app
from epicrag.server.openapi import OF, methods_of
from epicrag.server.state import State


def document() -> dict[str, Any]:
    told: dict[str, Any] = create_app(State()).openapi()
    return told


def test_every_operation_is_told_of():
    paths = document()["paths"]
    assert {(method, path) for path in paths for method in paths[path]} >= set(OF)
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert {"200", "400", "401", "403"} <= set(operation["responses"]), (method, path)


def test_errors_are_of_openais_shape():
    told = document()
    answers = told["paths"]["/v1/chat/completions"]["post"]["responses"]
    for status in ("400", "404", "409", "413", "422", "429", "503", "504"):
        schema = answers[status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ErrorReply"}
    assert "HTTPValidationError" not in told["components"]["schemas"]


def test_streams_are_told_of_by_their_pieces():
    told = document()
    content = told["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    assert {"ChatCompletion", "ChatChunk"} <= set(told["components"]["schemas"])


def test_methods_of_a_path_are_those_of_all_its_operations():
    app = create_app(State())
    assert methods_of(app, "/v1/chunks") == ["GET", "POST"]
    assert methods_of(app, "/v1/chunks/a") == ["DELETE", "GET"]
    assert methods_of(app, "/nowhere") == []


def test_wrong_method_is_told_which_are_right(server: Any):
    answer = server.client.put("/v1/chunks")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, POST"
