"""POST /v1/completions, as OpenAI's clients know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from epicrag.server import replying
from epicrag.server.jobs import Job
from epicrag.server.openai_replies import Completion, Envelope, Written
from epicrag.server.openai_types import CompletionRequest
from epicrag.server.state import State, get_state, get_tenant
from epicrag.server.tenants import Tenant
from epicrag.server.writing import Item, Writer

router = APIRouter(tags=["OpenAI"])


class _Of(NamedTuple):
    """What belongs to prompt number `n`."""

    n: int
    item: Item


@router.post(
    "/v1/completions",
    summary="Answer a prompt, or several",
    response_model=Completion,
    response_model_exclude_unset=True,
)
async def completions(
    body: CompletionRequest,
    request: Request,
    state: Annotated[State, Depends(get_state)],
    tenant: Annotated[Tenant, Depends(get_tenant)],
) -> Response:
    """Each prompt is a text that the model goes on with, without a chat template, and makes a choice. To the
    model `epicrag` it is a question, answered from the index."""
    reply = replying.Replying(state, request, _work(state, tenant, body), "prompt")
    envelope = Envelope.of(state, "cmpl", body)
    if body.stream:
        return await reply.stream(_Pieces(envelope, len(body.prompts)))
    of = await reply.whole()
    written = [item for _, item in of if isinstance(item, Written)]
    texts = [
        "".join(item for n, item in of if n == index and isinstance(item, str))
        for index in range(len(written))
    ]
    return replying.complete(envelope.text(texts, written), *written)


def _work(state: State, tenant: Tenant, body: CompletionRequest) -> Callable[[Job], Iterator[_Of]]:
    """The prompts, one after the other."""

    def work(job: Job) -> Iterator[_Of]:
        writer = Writer(state, tenant, job)
        for n, prompt in enumerate(body.prompts):
            job.refuse_cancelled()
            for item in writer.completion(body, prompt):
                yield _Of(n, item)

    return work


class _Pieces:
    """Items as pieces of a stream, with the usage of all prompts at the end."""

    def __init__(self, envelope: Envelope, n_prompts: int) -> None:
        self._envelope = envelope
        self._n = n_prompts
        self._written: list[Written] = []

    def __call__(self, of: _Of) -> Iterator[str]:
        envelope, (n, item) = self._envelope, of
        if isinstance(item, str):
            yield envelope.text_delta(n, item).wire()
        elif isinstance(item, Written):
            self._written.append(item)
            yield envelope.text_closing(n, item, self._n > 1).wire()
            if envelope.with_usage and len(self._written) == self._n:
                yield envelope.text_usage(self._written).wire()
