"""Which models there are, and the embedder among them: OpenAI's /v1/models and /v1/embeddings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from epicrag.server.errors import ApiError, not_found
from epicrag.server.state import State, get_state, get_tenant
from epicrag.server.tenants import Tenant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epicrag.index.embed import Embedder

router = APIRouter(prefix="/v1", tags=["models"])

_BATCH = 16
"""Texts that are embedded before somebody else may search."""


class EmbeddingsRequest(BaseModel):
    """OpenAI's, and `input_type`: what the texts are, for embedders that make a difference."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    input_type: Literal["passage", "query"] = "passage"


@router.get("/models", summary="The models that may be asked")
def list_models(
    state: Annotated[State, Depends(get_state)], tenant: Annotated[Tenant, Depends(get_tenant)]
) -> dict[str, Any]:
    """`epicrag` answers from the index, the served model's own name without it; the last one embeds."""
    names = [*state.models_for(tenant), state.embedder_name]
    return {"object": "list", "data": [_model(state, name) for name in names]}


@router.get("/models/{name:path}", summary="One of them")
def get_model(
    name: str,
    state: Annotated[State, Depends(get_state)],
    tenant: Annotated[Tenant, Depends(get_tenant)],
) -> dict[str, Any]:
    known = (*state.models_for(tenant), state.embedder_name)
    if name not in known:
        raise not_found("model", name, f"there are: {', '.join(known)}", param="model")
    return _model(state, name)


def _model(state: State, name: str) -> dict[str, Any]:
    model = {"id": name, "object": "model", "created": state.started, "owned_by": "epicrag"}
    if name != state.embedder_name:
        window = getattr(state.pipeline.engine, "context_window", None)
        model |= {"root": state.pipeline.engine.name, "max_model_len": window}
    return model


@router.post("/embeddings", summary="Texts as unit vectors")
def embeddings(
    request: EmbeddingsRequest,
    state: Annotated[State, Depends(get_state)],
    tenant: Annotated[Tenant, Depends(get_tenant)],
) -> dict[str, Any]:
    """By the embedder of the index. Nothing is cut off: a long text's vector is the mean of its windows'."""
    if request.model is not None and request.model != state.embedder_name:
        raise not_found(
            "model", request.model, f"the embedder is {state.embedder_name}", param="model"
        )
    texts = _texts(request, state)
    embedder = _embedder(state)
    if request.dimensions is not None and request.dimensions != embedder.dim:
        raise ApiError(
            400, f"the vectors of {embedder.name} have {embedder.dim} numbers", param="dimensions"
        )
    vectors = _vectors(state, embedder, texts, request.input_type)
    n_tokens = _tokens(embedder, texts)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": n, "embedding": _encoded(vector, request)}
            for n, vector in enumerate(vectors)
        ],
        "model": state.embedder_name,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


def _texts(request: EmbeddingsRequest, state: State) -> list[str]:
    """The texts to be embedded; ApiError 400 where there are too many, none, or none in one."""
    given = [request.input] if isinstance(request.input, str) else request.input
    texts = [text for text in given if isinstance(text, str)]
    settings = state.settings
    if len(texts) < len(given):
        raise ApiError(
            400,
            "the input is token ids, which are those of another model",
            "send texts (LangChain: check_embedding_ctx_length=False)",
            param="input",
        )
    if not texts or len(texts) > settings.max_inputs:
        raise ApiError(400, f"the input is to be 1 to {settings.max_inputs} texts", param="input")
    for n, text in enumerate(texts):
        if not text.strip():
            raise ApiError(400, f"text {n} of the input is empty", param="input")
    if sum(map(len, texts)) > settings.max_input_chars:
        raise ApiError(
            400,
            f"the input has more than {settings.max_input_chars:,} characters",
            "send it in several requests",
            param="input",
        )
    return texts


def _embedder(state: State) -> Embedder:
    with state.turn():
        return state.pipeline.embedder


def _vectors(
    state: State, embedder: Embedder, texts: list[str], input_type: str
) -> list[NDArray[np.float32]]:
    """Unit vectors (dim,), batch by batch: whoever wants to search needs not wait for all of them."""
    vectors = []
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        with state.turn():
            if input_type == "query":
                vectors += [embedder.query(text) for text in batch]
            else:
                vectors += [_mean(rows) for rows in embedder.passages(batch)]
    return vectors


def _mean(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """One unit vector for the windows (W, dim) of a text."""
    mean = rows.mean(axis=0) if len(rows) else np.zeros(rows.shape[1], np.float32)
    length = float(np.linalg.norm(mean))
    if not length:
        raise ApiError(400, "the embedder gave no vector for one of the texts", param="input")
    unit: NDArray[np.float32] = mean / np.float32(length)
    return unit


def _encoded(vector: NDArray[np.float32], request: EmbeddingsRequest) -> list[float] | str:
    """As numbers; or as base64 of little-endian float32, which OpenAI's own client asks for."""
    if request.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return [float(number) for number in vector]


def _tokens(embedder: Embedder, texts: list[str]) -> int:
    """What the texts are in the embedder's own tokens; their words, where it does not count."""
    count = getattr(embedder, "count", None)
    if count is not None:
        return sum(map(count, texts))
    return sum(len(text.split()) for text in texts)
