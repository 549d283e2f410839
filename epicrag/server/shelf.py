"""Chunks as a request names them, brings them along or has them in its text: those that its tenant may know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epicrag.server.asked import Passage
from epicrag.server.errors import ApiError, not_found
from epicrag.server.openai_types import GivenDocument

if TYPE_CHECKING:
    from epicrag.server.state import State
    from epicrag.server.tenants import Tenant
    from epicrag.serving.prompt import Piece


def chunk(state: State, tenant: Tenant, chunk_id: str, where: str) -> Passage:
    """A chunk of the tenant's, or a passage of the index. ApiError 404 that names it and the field it stood in."""
    from epicrag.chunkbook import UnknownChunkError
    from epicrag.server.chunks import referenced

    try:
        piece, _ = referenced(state, tenant, chunk_id)
    except UnknownChunkError as error:
        raise not_found("chunk", chunk_id, error.hint, param=where) from error
    return Passage(piece, chunk_id)


def documents(
    state: State,
    tenant: Tenant,
    given: Sequence[str | GivenDocument],
    check: Callable[[], object],
) -> list[Passage]:
    """The documents of a request, cut into chunks that are cached for its tenant.

    `check` is called between two, and ends it by what it raises. ApiError 413: more text than is cut.
    """
    if not given:
        return []
    n_chars, most = _length(given), state.settings.max_document_chars
    if n_chars > most:
        raise ApiError(
            413,
            f"the documents have {n_chars:,} characters, of at most {most:,}",
            "send those that the question needs, or register chunks (POST /v1/chunks)",
            param="documents",
            code="too_large",
        )
    from epicrag.brought import Bringer, BroughtDocument
    from epicrag.server.chunks import book_of

    bringer = state.bringer or Bringer(
        book_of(state), state.pipeline.counter, state.settings.chunk_tokens
    )
    brought = [
        BroughtDocument(one)
        if isinstance(one, str)
        else BroughtDocument(one.text, one.id, one.title)
        for one in given
    ]
    return [
        Passage(passage.chunk.piece(), passage.chunk.id, passage.name)
        for passage in bringer.bring(tenant.namespace, brought, check)
    ]


def _length(given: Sequence[str | GivenDocument]) -> int:
    return sum(len(one if isinstance(one, str) else one.text) for one in given)


def parts(state: State, tenant: Tenant, text: str) -> Sequence[str | Piece]:
    """A text with the chunks known to its tenant in it; joined, the parts are the text to the byte."""
    if state.recogniser is None:
        return (text,)
    found: Sequence[str | Piece] = state.recogniser.parts(text, tenant)
    known = (len(part.standing) for part in found if not isinstance(part, str))
    state.metrics.recognised.inc(sum(known))
    return found
