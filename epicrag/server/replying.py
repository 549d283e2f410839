"""From items that a thread makes to a response: whole, or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from fastapi.responses import Response

from epicrag.server import answering, sse
from epicrag.server.openai_replies import Reply, Written
from epicrag.server.writing import speaking_http

if TYPE_CHECKING:
    from fastapi import Request

    from epicrag.server.jobs import Job
    from epicrag.server.state import State
    from epicrag.types import Receipt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replying(Generic[T]):
    """The items of `work`, made in a thread of its own, and counted as they pass."""

    state: State
    request: Request
    work: Callable[[Job], Iterator[T]]
    field: str
    """The field of the request that holds the text."""

    async def whole(self) -> list[T]:
        return await answering.whole(self._items())

    async def stream(
        self, encode: Callable[[T], Iterable[str]], opening: str | None = None
    ) -> sse.EventStream:
        """Events, begun with `opening`. What goes wrong within the first moments is raised instead."""
        items = sse.Items(self._items())
        await items.refuse_failed(sse.PATIENCE_S)
        return sse.EventStream(opening, items, encode)

    async def _items(self) -> AsyncGenerator[T]:
        made = answering.run(
            self.state, self.request, lambda job: speaking_http(lambda: self.work(job), self.field)
        )
        try:
            async for item in made:
                self._note(item[1] if isinstance(item, tuple) else item)
                yield item
        finally:
            await made.aclose()

    def _note(self, item: object) -> None:
        answering.note_first(self.state, self.request)
        if isinstance(item, Written):
            answering.note(self.request, item.receipt, item.usage)


def complete(reply: Reply, *written: Written) -> Response:
    """A whole response; of a single answer, what it cost stands in its headers, too."""
    headers = _headers(written[0].receipt) if len(written) == 1 and written[0].receipt else {}
    return Response(reply.wire(), media_type="application/json", headers=headers)


def _headers(receipt: Receipt) -> dict[str, str]:
    from epicrag.cli.ask import receipt_line

    times = asdict(receipt.ms).items()
    return {
        "X-Epicrag-Receipt": _plain(receipt_line(receipt)),
        "Server-Timing": ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in times),
    }


def _plain(text: str) -> str:
    """Text that every client takes in a header: ASCII, on one line."""
    text = text.replace(" ·", ";").encode("ascii", "replace").decode("ascii")
    return " ".join(text.split())
