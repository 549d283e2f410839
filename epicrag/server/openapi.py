"""The OpenAPI document: every status that an operation may end with, and the shape of what comes with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from epicrag.server.openai_replies import ChatChunk, Completion

if TYPE_CHECKING:
    from fastapi import FastAPI

Schema = dict[str, Any]

MEANINGS = {
    400: "The request cannot be used as it is; `param` names the field",
    401: "A token is needed, and none or a wrong one was given",
    403: "Not for whoever asks: the Host, the Origin, or the index",
    404: "Nothing is known by that name",
    408: "The body took too long",
    409: "The index is empty or made with another embedder; or the id is taken",
    413: "The body is too large",
    415: "The body is compressed",
    422: "The documents do not say, and the answer was to be strict",
    429: "As many answers are open as may be; Retry-After says when to ask again",
    503: "The model is being loaded, the server is stopping, or memory ran out",
    504: "The answer took too long",
}
ANY = (400, 401, 403)
WITH_BODY = (408, 413, 415)
WITH_MODEL = (503,)
ANSWERING = (404, 409, 422, 429, 504)

OF: dict[tuple[str, str], tuple[int, ...]] = {
    ("post", "/v1/chat/completions"): ANSWERING,
    ("post", "/v1/completions"): ANSWERING,
    ("post", "/v1/ask"): ANSWERING,
    ("post", "/v1/search"): (409, 422),
    ("get", "/v1/passages/{chunk}"): (404, 409),
    ("get", "/v1/models/{name}"): (404,),
    ("post", "/v1/embeddings"): (404, 409),
    ("post", "/v1/chunks"): (404, 409),
    ("get", "/v1/chunks"): (404,),
    ("get", "/v1/chunks/{chunk_id}"): (404,),
    ("delete", "/v1/chunks/{chunk_id}"): (404,),
}
"""What an operation may end with besides what all may."""

UNGUARDED = ("/healthz", "/metrics")
"""These answer whether the model is there or not."""

STREAMS: dict[tuple[str, str], type[BaseModel]] = {
    ("post", "/v1/chat/completions"): ChatChunk,
    ("post", "/v1/completions"): Completion,
}
"""What each event of a stream holds."""

TEXTS = {("post", "/v1/ask"): "application/x-ndjson", ("get", "/metrics"): "text/plain"}
"""What an operation may answer in besides one object of JSON."""


class ErrorObject(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    error: ErrorObject


def install(app: FastAPI) -> None:
    """Let an app tell of itself so."""

    def document() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = document_of(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def document_of(app: FastAPI) -> Schema:
    """The document, made anew."""
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for name in (
        "HTTPValidationError",
        "ValidationError",
    ):  # FastAPI's own, which no client ever sees
        schemas.pop(name, None)
    schemas["ErrorObject"] = ErrorObject.model_json_schema()
    schemas["ErrorReply"] = {
        "title": "ErrorReply",
        "type": "object",
        "properties": {"error": {"$ref": "#/components/schemas/ErrorObject"}},
        "required": ["error"],
    }
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, method, operation in _operations(document):
        _tell_ends(path, method, operation)
        content = operation["responses"]["200"].setdefault("content", {})
        if media := TEXTS.get((method, path)):
            content[media] = {"schema": {"type": "string"}}
        if piece := STREAMS.get((method, path)):
            content["text/event-stream"] = {"itemSchema": _event_of(piece, schemas)}
    return document


def _event_of(piece: type[BaseModel], schemas: Schema) -> Schema:
    """The schema of an event that holds a piece; the piece's own goes to `schemas`."""
    shape = piece.model_json_schema(
        mode="serialization", ref_template="#/components/schemas/{model}"
    )
    for name, schema in {**shape.pop("$defs", {}), piece.__name__: shape}.items():
        schemas.setdefault(name, schema)
    what = f"A {piece.__name__} as JSON; at the end [DONE], or in an event of the kind error an ErrorReply."
    data = {"type": "string", "description": what}
    properties = {"data": data, "event": {"enum": ["message", "error"]}}
    return {"type": "object", "properties": properties, "required": ["data"]}


def methods_of(app: FastAPI, path: str) -> list[str]:
    """The methods of what stands at a path; none where the document tells of nothing there."""
    found = set()
    for template, methods in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\\?\{[^}]*\}", "[^/]+", re.escape(template)), path):
            found |= {method.upper() for method in methods}
    return sorted(found)


def _operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _tell_ends(path: str, method: str, operation: Schema) -> None:
    ends = {*ANY, *OF.get((method, path), ())}
    if "requestBody" in operation:
        ends |= {*WITH_BODY}
    if path not in UNGUARDED:
        ends |= {*WITH_MODEL}
        operation["security"] = [{}, {"token": []}]
    responses = operation["responses"]
    responses.pop("422", None)
    for status in sorted(ends):
        responses.setdefault(
            str(status),
            {
                "description": MEANINGS[status],
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}
                },
            },
        )
