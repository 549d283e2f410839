"""epicrag's own endpoints: a question answered line by line, a search, a passage."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from epicrag.cli.ask import answer_json, receipt_line
from epicrag.cli.look import relevance_json
from epicrag.cli.search import hit_json
from epicrag.errors import EpicragError, UsageError
from epicrag.server.answering import begun, note, note_first, run, whole
from epicrag.server.errors import as_epicrag, headers_of, not_found, own_object, status_of
from epicrag.server.jobs import Job
from epicrag.server.state import State, get_state, get_tenant
from epicrag.server.tenants import Tenant

if TYPE_CHECKING:
    from epicrag.pipeline import AnswerStream
    from epicrag.types import Answer, Chunk

router = APIRouter(prefix="/v1", tags=["index"])

NDJSON = "application/x-ndjson"
SCHEMA_VERSION = 1
_CHUNK_ID = re.compile(r"[0-9a-f]{24}")

Line = dict[str, Any]


class Weights(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dense: float = Field(1.0, ge=0, le=1e6)
    words: float = Field(1.0, ge=0, le=1e6)


class Looking(BaseModel):
    """What is looked for, and how; a name that is not known is refused, for it would do nothing."""

    model_config = ConfigDict(extra="forbid")

    k: int | None = Field(None, ge=1, description="Passages; as configured where it is missing.")
    filter: str | None = Field(None, max_length=10_000)
    mode: Literal["hybrid", "dense", "words"] | None = None
    weights: Weights | None = None
    rerank: bool | str | None = Field(
        None, description="False leaves the configured reranker out; no other one can be named."
    )


class SearchRequest(Looking):
    query: str = Field(max_length=100_000)


class Said(BaseModel):
    role: Literal["user", "assistant"]
    text: str


class AskRequest(Looking):
    question: str = Field(max_length=1_000_000)
    link_policy: str | None = Field(None, max_length=200)
    min_score: Annotated[float, Field(ge=-1, le=1)] | Literal["auto"] | None = None
    strict: bool = False
    shuffle_seed: int | None = None
    history: list[Said] | None = Field(None, max_length=1000)
    query: str | None = Field(None, max_length=100_000)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(0.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k_tokens: int = Field(0, ge=0)
    seed: int | None = Field(None, ge=0)
    stop: list[str] = Field(default_factory=list, max_length=16)
    stream: bool = True


@router.post("/ask", summary="A question, answered from the index", response_model=None)
async def ask(
    body: AskRequest,
    request: Request,
    state: Annotated[State, Depends(get_state)],
    tenant: Annotated[Tenant, Depends(get_tenant)],
) -> Response:
    """Lines of JSON: `{"hits"}`, `{"notice"}`, `{"delta"}`…, and last the object of `ask --json`, or `{"error"}`.

    With `"stream": false` that object alone. What goes wrong before the first line has its own HTTP status.
    """
    try:
        state.refuse_index(tenant)
        lines = run(state, request, lambda job: _lines(state, tenant, body, request, job))
        if body.stream:
            encoded = _encoded(await begun(lines))
            return StreamingResponse(
                encoded, media_type=NDJSON, headers={"X-Accel-Buffering": "no"}
            )
        return JSONResponse((await whole(lines))[-1])
    except EpicragError as error:
        return _failed(error)


@router.post("/search", summary="The best passages for a query", response_model=None)
def search(
    body: SearchRequest,
    state: Annotated[State, Depends(get_state)],
    tenant: Annotated[Tenant, Depends(get_tenant)],
) -> Response:
    """The object of `search --json`."""
    try:
        state.refuse_index(tenant)
        options = _looking(state, body)
        with state.turn():
            found = state.pipeline.find(body.query, **options)
    except EpicragError as error:
        return _failed(error)
    hits = [hit_json(rank, hit) for rank, hit in enumerate(found.hits, 1)]
    relevance = relevance_json(found.relevance)
    return JSONResponse(
        {
            "schema_version": SCHEMA_VERSION,
            "query": body.query,
            "hits": hits,
            "relevance": relevance,
        }
    )


@router.get("/passages/{chunk}", summary="One passage, with its neighbours", response_model=None)
def passage(
    chunk: str,
    state: Annotated[State, Depends(get_state)],
    tenant: Annotated[Tenant, Depends(get_tenant)],
) -> Response:
    """By the id that a hit and a source carry as `chunk`."""
    try:
        state.refuse_index(tenant)
        with state.turn():
            return JSONResponse(_passage(state, chunk))
    except EpicragError as error:
        return _failed(error)


# --- an answer -----------------------------------------------------------------------------------


def _lines(
    state: State, tenant: Tenant, body: AskRequest, request: Request, job: Job
) -> Iterator[Line]:
    """The lines of an answer, in the thread that makes it."""
    said: list[str] = []
    with _begin(state, tenant, body, said.append) as stream:
        job.on_cancel(stream.cancel)
        hits = [hit_json(rank, hit) for rank, hit in enumerate(stream.hits, 1)]
        yield {"hits": hits, "relevance": relevance_json(stream.relevance)}
        yield from ({"notice": text} for text in said)
        for delta in stream:
            note_first(state, request)
            yield {"delta": delta}
        answer = stream.answer
    note(request, answer.receipt, answer.usage)
    yield {**answer_line(answer, stream.notes), **stream.conversation()}


def _begin(
    state: State, tenant: Tenant, body: AskRequest, say: Callable[[str], None]
) -> AnswerStream:
    """Retrieve, and be ready to answer."""
    from epicrag.serving.prompt import Turn

    pipeline = state.pipeline
    state.refuse_long(len(body.question), "question")
    chosen = {} if body.max_tokens is None else {"max_tokens": body.max_tokens}
    sampling = pipeline.sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k_tokens,
        seed=body.seed,
        stop=tuple(body.stop),
        **chosen,
    )
    return pipeline.stream(
        body.question,
        policy=body.link_policy,
        sampling=sampling,
        strict=body.strict,
        shuffle_seed=body.shuffle_seed,
        min_score=body.min_score,
        history=tuple(Turn(said.role, said.text) for said in body.history or ()),
        query=body.query,
        namespace=tenant.namespace,
        say=say,
        **_looking(state, body),
    )


def _looking(state: State, body: Looking) -> dict[str, Any]:
    """The arguments of `Pipeline.find`. A model's name would be loaded from anywhere: only the configured one."""
    most, reranker = state.settings.max_top_k, state.pipeline.config.rerank_model
    if body.k is not None and body.k > most:
        raise UsageError(f"k is {body.k}, and may be {most}", "ask for fewer passages")
    if isinstance(body.rerank, str) and body.rerank != reranker:
        raise UsageError(
            f"the server's reranker is {reranker or 'none'}, not {body.rerank[:100]!r}",
            "leave rerank out, or send false",
        )
    weights = body.weights
    if weights and not (weights.dense or weights.words):
        raise UsageError("both weights are 0", "give one of them more")
    return {
        "k": body.k,
        "filter": body.filter,
        "mode": body.mode,
        "weights": (weights.dense, weights.words) if weights else None,
        "rerank": False if body.rerank is False else None,
    }


def answer_line(answer: Answer, notes: list[str]) -> Line:
    """The object of `ask --json`, with the receipt as a line for people."""
    line = receipt_line(answer.receipt) if answer.receipt else None
    return {"schema_version": SCHEMA_VERSION, **answer_json(answer, notes), "receipt_line": line}


async def _encoded(lines: AsyncGenerator[Line]) -> AsyncGenerator[bytes]:
    try:
        async for line in lines:
            yield _bytes(line)
    except Exception as error:  # noqa: BLE001 - the status is out: a line says it
        yield _bytes(own_object(as_epicrag(error)))


def _bytes(line: Line) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _failed(error: EpicragError) -> JSONResponse:
    return JSONResponse(own_object(error), status_of(error), headers_of(error))


# --- a passage -----------------------------------------------------------------------------------


def _passage(state: State, chunk_id: str) -> Line:
    catalog = state.pipeline.catalog
    rows = catalog.chunk_rows(chunk_id) if _CHUNK_ID.fullmatch(chunk_id) else []
    if not rows:
        raise not_found("passage", chunk_id, "its document may have changed: search again")
    chunk = catalog.chunk(rows[0][0])
    every = [other for _, other in catalog.chunks(chunk.document)]
    return {
        "schema_version": SCHEMA_VERSION,
        "chunk": chunk.id,
        "path": chunk.document,
        "title": chunk.title,
        "page": chunk.place.page,
        "lines": chunk.place.lines,
        "heading": chunk.place.heading,
        "part": chunk.place.part,
        "cells": chunk.place.cells,
        "text": chunk.text,
        "before_text": _text_at(every, chunk.ordinal - 1),
        "after_text": _text_at(every, chunk.ordinal + 1),
    }


def _text_at(chunks: list[Chunk], ordinal: int) -> str | None:
    return next((chunk.text for chunk in chunks if chunk.ordinal == ordinal), None)
