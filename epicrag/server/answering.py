"""An answer being made in a thread of its own, for a reader that awaits it and may go away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeVar

from epicrag.server.errors import ApiError
from epicrag.server.jobs import Job, Kind
from epicrag.server.logs import CLIENT_LEFT, record_of
from epicrag.threads import in_thread_async

if TYPE_CHECKING:
    from fastapi import Request

    from epicrag.server.state import State
    from epicrag.types import Receipt, Usage

T = TypeVar("T")


async def run(
    state: State, request: Request, work: Callable[[Job], Iterator[T]], kind: Kind = "answer"
) -> AsyncGenerator[T]:
    """Yield what `work(job)` yields; it is called, and iterated, in a thread of its own.

    When the client goes away, or the answer takes longer than it may, the job is cancelled: `work` gives
    `job.on_cancel` what stops it, or asks `job.refuse_cancelled`, and ends. BusyError: too many of the kind are
    open. ApiError 504: too late; 503: the server ends; 499: the client is gone.
    """
    job = state.jobs.enter(kind)
    deadline = time.monotonic() + state.settings.request_timeout_s
    gone = asyncio.Event()
    watcher = asyncio.create_task(_watch(state, request, job, gone))
    items = in_thread_async(_working(state, job, work), job.on_cancel)
    try:
        async with aclosing(items):
            while True:
                try:
                    item = await asyncio.wait_for(anext(items), deadline - time.monotonic())
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    state.metrics.cancelled.labels("timeout").inc()
                    raise _too_late(state, kind) from None
                yield item
        if gone.is_set():  # nobody reads this: it is counted and logged
            raise ApiError(CLIENT_LEFT, "the client is gone", code="client_left")
        if job.is_cancelled:
            raise ApiError(503, "the server is shutting down", code="stopping")
    finally:
        watcher.cancel()
        await _cancel(job)


async def begun(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Wait for the first item: what goes wrong before it is raised here, while the status can still say so."""

    async def chained() -> AsyncGenerator[T]:
        async with aclosing(items):
            for item in first:
                yield item
            async for item in items:
                yield item

    first: list[T] = []
    with suppress(StopAsyncIteration):
        first.append(await anext(items))
    return chained()


async def whole(items: AsyncGenerator[T]) -> list[T]:
    """Everything, once it is there."""
    async with aclosing(items):
        return [item async for item in items]


def note_first(state: State, request: Request) -> None:
    """To be called when the first word of an answer is there."""
    record = record_of(request)
    if record.ttft_s is None:
        record.ttft_s = time.perf_counter() - record.began
        state.metrics.ttft.observe(record.ttft_s)


def note(request: Request, receipt: Receipt | None, usage: Usage | None) -> None:
    """To be called when an answer is complete: its cost goes to the log."""
    record = record_of(request)
    record.receipt, record.usage = receipt, usage


def _working(
    state: State, job: Job, work: Callable[[Job], Iterator[T]]
) -> Generator[T, None, None]:
    try:
        if not job.is_cancelled:
            yield from work(job)
    except Exception:
        if not job.is_cancelled:  # then it has no receipt, no end, and nobody to tell
            raise
    finally:
        state.jobs.leave(job)


async def _watch(state: State, request: Request, job: Job, gone: asyncio.Event) -> None:
    """Cancel the job when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
    state.metrics.cancelled.labels("disconnect").inc()
    await _cancel(job)


async def _cancel(job: Job) -> None:
    """Cancelling waits for a step of the model, and the event loop must not."""
    if job.is_cancelled:
        return
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, job.cancel))


def _too_late(state: State, kind: Kind) -> ApiError:
    limit = state.settings.request_timeout_s
    hint = {
        "answer": "ask for fewer tokens, or start the server with a longer --request-timeout",
        "registration": "what was computed stays: send the same again, or fewer chunks at once",
    }
    return ApiError(
        504,
        f"the {kind} took longer than {limit:g} s, and was stopped",
        hint[kind],
        code="timeout",
    )
