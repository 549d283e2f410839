"""POST /v1/chat/completions, as OpenAI's clients know it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from epicrag.server import replying
from epicrag.server.openai_replies import ChatCompletion, Envelope, Refused, Written
from epicrag.server.openai_types import ChatRequest
from epicrag.server.state import State, get_state, get_tenant
from epicrag.server.tenants import Tenant
from epicrag.server.writing import Item, Writer

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    response_model=ChatCompletion,
    response_model_exclude_unset=True,
)
async def chat_completions(
    body: ChatRequest,
    request: Request,
    state: Annotated[State, Depends(get_state)],
    tenant: Annotated[Tenant, Depends(get_tenant)],
) -> Response:
    """The model `epicrag` answers from the index: the last message is the question, and the text has markers
    such as [1]. The served model answers the conversation as it is, or from the chunks and documents that come
    with it. With `stream`, pieces of the answer come as server-sent events."""
    reply = replying.Replying(
        state, request, lambda job: Writer(state, tenant, job).chat(body), "messages"
    )
    envelope = Envelope.of(state, "chatcmpl", body)
    if body.stream:
        return await reply.stream(
            lambda item: _pieces(envelope, item), opening=envelope.chat_opening().wire()
        )
    items = await reply.whole()
    (written,) = (item for item in items if isinstance(item, Written))
    text = "".join(item for item in items if isinstance(item, str))
    refusal = next((item.text for item in items if isinstance(item, Refused)), None)
    return replying.complete(envelope.chat(text, refusal, written), written)


def _pieces(envelope: Envelope, item: Item) -> Iterator[str]:
    if isinstance(item, Written):
        yield from (chunk.wire() for chunk in envelope.chat_closing(item))
    else:
        yield envelope.chat_delta(item).wire()
