"""Runs a generator in a thread of its own, and hands what it yields to a reader, waiting or awaiting.

The generator keeps its thread, and never waits for its reader: one that stops reading half-way holds up
no other request, and no event loop ever waits for the model.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None = None


class _Worker(Generic[T]):
    """Iterates and delivers, item by item, until the end or until `stop` is set."""

    def __init__(
        self, items: Generator[T, None, None], deliver: Callable[[T | _End], object]
    ) -> None:
        self.stop = threading.Event()
        self._items = items
        self._deliver = deliver
        threading.Thread(target=self._work, name="epicrag-answer").start()

    def _work(self) -> None:
        end = _End()
        try:
            with closing(self._items):
                for item in self._items:
                    if self.stop.is_set():
                        break
                    self._deliver(item)
        except BaseException as error:  # noqa: BLE001 - raised again in the reader
            end = _End(error)
        self._deliver(end)


def _received(item: T | _End) -> T | None:
    """An item, or None at the end; raises what the thread raised."""
    if not isinstance(item, _End):
        return item
    if item.error is not None:
        raise item.error
    return None


def in_thread(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield what `items` yields. It starts with the first item asked for; closing stops it."""
    queue: SimpleQueue[T | _End] = SimpleQueue()
    worker = _Worker(items, queue.put)
    try:
        while (item := _received(queue.get())) is not None:
            yield item
    finally:
        worker.stop.set()


async def in_thread_async(
    items: Generator[T, None, None],
    on_cancel: Callable[[Callable[[], object]], object] | None = None,
) -> AsyncGenerator[T, None]:
    """`in_thread` for an event loop. Cancelling stops the generator at its next item.

    `on_cancel` is given what ends the reading, from any thread, whatever the generator is about.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[T | _End] = asyncio.Queue()

    def deliver(item: T | _End) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    if on_cancel is not None:
        on_cancel(lambda: deliver(_End()))
    worker = _Worker(items, deliver)
    try:
        while (item := _received(await queue.get())) is not None:
            yield item
    finally:
        worker.stop.set()
