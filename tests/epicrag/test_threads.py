"""A generator runs in a thread of its own; readers may wait, await, or leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from epicrag.threads import in_thread, in_thread_async


class Numbers:
    """Yields 0, 1, 2 … `end`; each but the first needs a permit when permits are counted."""

    def __init__(self, end: int, permits: threading.Semaphore | None = None) -> None:
        self.end = end
        self.permits = permits
        self.thread = ""
        self.closed = threading.Event()

    def __call__(self) -> Iterator[int]:
        self.thread = threading.current_thread().name
        try:
            for n in range(self.end):
                if n and self.permits:
                    self.permits.acquire(timeout=10)  # longer than any test waits
                yield n
        finally:
            assert threading.current_thread().name == self.thread
            self.closed.set()


def test_items_arrive_in_order_from_another_thread():
    numbers = Numbers(5)
    assert list(in_thread(numbers())) == [0, 1, 2, 3, 4]
    assert numbers.thread == "epicrag-answer"


def test_nothing_starts_before_the_first_item_is_asked_for():
    numbers = Numbers(5)
    in_thread(numbers()).close()
    assert not numbers.thread


def test_the_first_item_arrives_while_the_second_is_not_there_yet():
    permits = threading.Semaphore(0)
    items = in_thread(Numbers(3, permits)())
    assert next(items) == 0
    permits.release(2)
    assert list(items) == [1, 2]


def test_a_reader_that_stops_halfway_does_not_stop_the_generator_from_ending():
    numbers = Numbers(3)
    items = in_thread(numbers())
    assert next(items) == 0
    assert numbers.closed.wait(5)
    assert list(items) == [1, 2]


def test_closing_stops_the_generator_at_its_next_item():
    permits = threading.Semaphore(0)
    numbers = Numbers(1000, permits)
    items = in_thread(numbers())
    next(items)
    items.close()
    permits.release()
    assert numbers.closed.wait(5)


def test_an_error_is_raised_where_the_items_are_read():
    def fail() -> Iterator[int]:
        yield 1
        raise KeyError("lost")

    items = in_thread(fail())
    assert next(items) == 1
    with pytest.raises(KeyError, match="lost"):
        next(items)

    async def read() -> None:
        async for _ in in_thread_async(fail()):
            pass

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(read())


def test_the_event_loop_goes_on_while_an_item_is_waited_for():
    permits = threading.Semaphore(0)

    async def main() -> list[int]:
        async def read() -> list[int]:
            return [n async for n in in_thread_async(Numbers(4, permits)())]

        async def tick() -> None:
            for _ in range(3):
                await asyncio.sleep(0.001)
                permits.release()  # only a loop that is free gets here

        found, _ = await asyncio.gather(read(), tick())
        return found

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_cancelling_returns_at_once_and_stops_the_generator():
    permits = threading.Semaphore(0)
    numbers = Numbers(1000, permits)

    async def main() -> None:
        async def read() -> None:
            async for _ in in_thread_async(numbers()):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not numbers.closed.is_set()  # nobody waited for the thread
        permits.release()

    asyncio.run(main())
    assert numbers.closed.wait(5)


def test_leaving_an_async_loop_stops_the_generator():
    permits = threading.Semaphore(0)
    numbers = Numbers(1000, permits)

    async def main() -> None:
        async for _ in in_thread_async(numbers()):
            break

    asyncio.run(main())
    permits.release()
    assert numbers.closed.wait(5)


def test_more_readers_than_the_loops_own_threads_do_not_starve_each_other():
    turn = threading.Lock()

    def guarded() -> Iterator[int]:
        with turn:  # as the engine: one request at a time, the lock held between items
            yield from range(3)

    async def main() -> list[list[int]]:
        async def read() -> list[int]:
            return [n async for n in in_thread_async(guarded())]

        return await asyncio.gather(*(read() for _ in range(64)))

    assert asyncio.run(main()) == [[0, 1, 2]] * 64
