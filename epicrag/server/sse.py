"""Server-sent events: an answer piece by piece, signs of life while there is none, and what went wrong on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from starlette.responses import StreamingResponse

from epicrag.server.errors import as_epicrag, error_object

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")

PATIENCE_S = 3.0
"""For how long a first item is waited for: what goes wrong before it then has a status of its own."""
KEEP_ALIVE_S = 10.0
"""Between two signs of life while there is nothing to send."""

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: str) -> bytes:
    """One event; `data` is JSON, which has no line ends of its own."""
    return b"data: " + data.encode("utf-8") + b"\n\n"


def error_event(error: Exception) -> bytes:
    """What OpenAI's clients raise as an error, whatever was sent before it."""
    return b"event: error\n" + event(json.dumps(error_object(as_epicrag(error))))


class Items(Generic[T]):
    """An async generator that can be waited for without being asked again, and closed at any moment."""

    def __init__(self, items: AsyncGenerator[T]) -> None:
        self._items = items
        self._next: asyncio.Future[T | None] | None = None

    async def wait(self, seconds: float) -> bool:
        """Whether the next item, or the end, is there by then."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._items, None))
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        return bool(done)

    async def take(self) -> T | None:
        """The item that was waited for; None at the end. Raises what went wrong."""
        assert self._next is not None
        taken, self._next = self._next, None
        return await taken

    async def refuse_failed(self, seconds: float) -> None:
        """Wait so long for the first item, and raise what went wrong instead of it."""
        try:
            if await self.wait(seconds) and self._next is not None and self._next.exception():
                await self.take()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)  # nobody is left to be told
        await self._items.aclose()


class EventStream(StreamingResponse):
    """Items as events, then `[DONE]`. An error is the last event, and no `[DONE]` follows it.

    `encode` turns an item into JSON, one or more pieces of it. `items` are closed however the response ends,
    be it that nothing was ever sent.
    """

    def __init__(
        self, opening: str | None, items: Items[T], encode: Callable[[T], Iterable[str]]
    ) -> None:
        self._close = items.aclose
        events = _events(opening, items, encode)
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()


async def _events(
    opening: str | None, items: Items[T], encode: Callable[[T], Iterable[str]]
) -> AsyncGenerator[bytes]:
    if opening is not None:
        yield event(opening)
    try:
        while True:
            while not await items.wait(KEEP_ALIVE_S):
                yield KEEP_ALIVE
            item = await items.take()
            if item is None:
                break
            for piece in encode(item):
                yield event(piece)
        yield DONE
    except Exception as error:  # noqa: BLE001 - the status is sent: the client is told in the stream
        yield error_event(error)
