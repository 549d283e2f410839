"""Chunks as a request names them, brings them along or has them in its text: those of its own tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epicrag.server.asked import Passage
from epicrag.server.errors import not_found
from epicrag.server.openai_types import GivenDocument

if TYPE_CHECKING:
    from epicrag.server.state import State
    from epicrag.server.tenants import Tenant
    from epicrag.serving.prompt import Piece


def chunk(state: State, tenant: Tenant, chunk_id: str, where: str) -> Passage:
    """A registered chunk. ApiError 404 that names it, and `where` it was asked for."""
    from epicrag.chunkbook import UnknownChunkError

    try:
        found = state.chunks.use(tenant.namespace, chunk_id)
    except UnknownChunkError as error:
        raise not_found("chunk", chunk_id, error.hint, param=where) from error
    return Passage(found.piece(), found.id, found.title)


def documents(state: State, tenant: Tenant, given: Sequence[str | GivenDocument]) -> list[Passage]:
    """The documents of a request, cut into chunks that are cached for its tenant."""
    if not given:
        return []
    from epicrag.brought import BroughtDocument

    brought = [
        BroughtDocument(one)
        if isinstance(one, str)
        else BroughtDocument(one.text, one.id, one.title)
        for one in given
    ]
    return [
        Passage(passage.chunk.piece(), passage.chunk.id, passage.name)
        for passage in state.bringer.bring(tenant.namespace, brought)
    ]


def parts(state: State, tenant: Tenant, text: str) -> Sequence[str | Piece]:
    """A text with the chunks known to its tenant in it; joined, the parts are the text to the byte."""
    if state.recogniser is None:
        return (text,)
    found: Sequence[str | Piece] = state.recogniser.parts(text, tenant)
    return found
