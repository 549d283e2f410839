"""`/v1/chunks`: chunks that clients register, inspect and drop, each in its own namespace."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from epicrag.chunkbook import BookChunk, ChunkBook, GivenChunk, UnknownChunkError, storable
from epicrag.recognise import piece_of
from epicrag.server.answering import run, whole
from epicrag.server.errors import ApiError
from epicrag.server.jobs import Job
from epicrag.server.state import State, get_state, get_tenant
from epicrag.server.tenants import Tenant

if TYPE_CHECKING:
    from epicrag.serving.prompt import Piece

MAX_CHUNKS = 1_000
"""Chunks of one request."""
MAX_METADATA = 16_384
"""Characters of a chunk's metadata."""

router = APIRouter(prefix="/v1/chunks", tags=["chunks"])

Server = Annotated[State, Depends(get_state)]
Who = Annotated[Tenant, Depends(get_tenant)]


class ChunkIn(BaseModel):
    """A chunk to be registered."""

    model_config = ConfigDict(extra="ignore")

    text: str = Field(description="What is tokenised, cached and reused as a whole.")
    id: str | None = Field(None, description="By default it is made of the content.")
    title: str | None = Field(None, description="Shown to the model as a line above the text.")
    before: str | None = Field(
        None, description="The id of the chunk that stands before it in its document."
    )
    metadata: dict[str, JsonValue] | None = Field(None, description="Kept, and never read.")


class ChunksIn(BaseModel):
    """One chunk, or several under `chunks`."""

    model_config = ConfigDict(extra="ignore")

    text: str | None = None
    id: str | None = None
    title: str | None = None
    before: str | None = None
    metadata: dict[str, JsonValue] | None = None
    chunks: list[ChunkIn] | None = Field(None, min_length=1, max_length=MAX_CHUNKS)
    replace: bool = Field(False, description="Other content may be known under the id.")


@router.post("", summary="Register chunks, and compute their KV")
async def register(body: ChunksIn, request: Request, state: Server, tenant: Who) -> dict[str, Any]:
    """A client that goes away ends it between two chunks: what was computed until then stays."""
    given = _given(body)
    book = book_of(state)

    def work(job: Job) -> Iterator[BookChunk]:
        check = job.refuse_cancelled
        yield from book.put(tenant.namespace, given, replace=body.replace, check=check)

    chunks = await whole(run(state, request, work, "registration"))
    if body.chunks is None:
        return _registered(chunks[0])
    return {"object": "list", "data": [_registered(chunk) for chunk in chunks]}


@router.get("", summary="The chunks of this client, in the order they were given")
async def chunks(
    state: Server,
    tenant: Who,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
) -> dict[str, Any]:
    book = book_of(state)
    page = await run_in_threadpool(book.page, tenant.namespace, limit=limit, after=after)
    data = [_listed(chunk) for chunk in page.chunks]
    ends = {
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
    return {"object": "list", "data": data, "has_more": page.has_more, **ends}


@router.get("/{chunk_id}", summary="One chunk, with its text")
async def chunk(chunk_id: str, state: Server, tenant: Who) -> dict[str, Any]:
    found = await run_in_threadpool(book_of(state).get, tenant.namespace, chunk_id)
    return {**_listed(found), "text": found.text, "metadata": dict(found.metadata)}


@router.delete("/{chunk_id}", summary="Forget a chunk, and its KV unless another chunk needs it")
async def delete(chunk_id: str, state: Server, tenant: Who) -> dict[str, Any]:
    gone = await run_in_threadpool(book_of(state).delete, tenant.namespace, chunk_id)
    return {"id": gone.id, "object": "chunk", "deleted": True}


def book_of(state: State) -> ChunkBook:
    """The book of a server. ApiError 503 where it keeps none."""
    book: ChunkBook | None = state.chunks
    if book is None:
        raise ApiError(503, "this server keeps no chunks", code="no_chunks")
    return book


def referenced(
    state: State, tenant: Tenant, chunk_id: str, offset: int | None = None
) -> tuple[Piece, str]:
    """The piece that a `chunk_references` entry means, and its own text; it counts as used.

    Ids of the tenant's chunks come first, then those of passages of the index, where it may ask that.
    UnknownChunkError, which names the id, where neither knows it: the same whether another tenant does.
    """
    try:
        found = book_of(state).use(tenant.namespace, chunk_id)
        return found.piece(offset), found.text
    except UnknownChunkError:
        passage = None
        if tenant.may_ask and state.has_index:
            with state.pipeline.turn:
                passage = piece_of(state.pipeline.catalog, storable(chunk_id), offset)
        if passage is None:
            raise
        return passage


def _given(body: ChunksIn) -> list[GivenChunk]:
    single = [body.text, body.id, body.title, body.before, body.metadata]
    if body.chunks is not None:
        if any(value is not None for value in single):
            raise ApiError(400, "a chunk stands beside `chunks`", "give either", param="chunks")
        return [_one(chunk, f"chunks.{n}.") for n, chunk in enumerate(body.chunks)]
    if body.text is None:
        raise ApiError(400, "there is neither `text` nor `chunks`", param="text")
    return [_one(ChunkIn(**body.model_dump(exclude={"chunks", "replace"})), "")]


def _one(chunk: ChunkIn, where: str) -> GivenChunk:
    if not chunk.text.strip():
        raise ApiError(400, "a chunk has no text", param=f"{where}text")
    if len(str(chunk.metadata)) > MAX_METADATA:
        raise ApiError(
            400, f"metadata of more than {MAX_METADATA:,} characters", param=f"{where}metadata"
        )
    return GivenChunk(chunk.text, chunk.id, chunk.title, chunk.before, chunk.metadata)


def _registered(chunk: BookChunk) -> dict[str, Any]:
    return {
        "id": chunk.id,
        "object": "chunk",
        "tokens": chunk.tokens,
        "kv_key": chunk.kv_key,
        "kv": chunk.kv,
        "bytes": chunk.bytes,
    }


def _listed(chunk: BookChunk) -> dict[str, Any]:
    return {
        "id": chunk.id,
        "object": "chunk",
        "title": chunk.title,
        "before": chunk.before,
        "tokens": chunk.tokens,
        "kv_key": chunk.kv_key,
        "bytes": chunk.bytes,
        "registered": chunk.named,
        "created": chunk.created,
        "last_used": datetime.fromtimestamp(chunk.used, UTC).isoformat(timespec="seconds"),
    }
