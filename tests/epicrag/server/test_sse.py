"""Server-sent events: signs of life, errors on the way, and nothing left open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from epicrag.errors import DeviceError
from epicrag.server import sse


class Source:
    """Items with a pause before each, then an error where one is given."""

    def __init__(self, *items: Any, pause: float = 0.0, error: Exception | None = None) -> None:
        self.is_closed = False
        self.items = sse.Items(self._make(items, pause, error))

    async def _make(self, items: Any, pause: float, error: Exception | None) -> AsyncGenerator[Any]:
        try:
            for item in items:
                await asyncio.sleep(pause)
                yield item
            if error:
                raise error
        finally:
            self.is_closed = True


async def sent(response: sse.EventStream, most: int = 1000) -> bytes:
    """What a client receives; it goes away after `most` messages."""
    out: list[bytes] = []

    async def send(message: Any) -> None:
        out.append(message.get("body", b""))
        if len(out) > most:
            raise OSError

    async def receive() -> Any:
        await asyncio.sleep(60)

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    await response(scope, receive, send)
    return b"".join(out)


def stream(source: Source) -> sse.EventStream:
    return sse.EventStream('{"first": 1}', source.items, lambda item: [json.dumps(item)])


def test_items_are_events_and_the_end_is_said():
    source = Source("a", "b")
    assert asyncio.run(sent(stream(source))) == (
        b'data: {"first": 1}\n\ndata: "a"\n\ndata: "b"\n\ndata: [DONE]\n\n'
    )
    assert source.is_closed


def test_signs_of_life_are_comments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    body = asyncio.run(sent(stream(Source("a", pause=0.1))))
    assert body.count(b": keep-alive\n\n") >= 2
    assert body.endswith(b'data: "a"\n\ndata: [DONE]\n\n')


def test_error_on_the_way_is_the_last_event():
    body = asyncio.run(sent(stream(Source("a", error=DeviceError("no memory", "use less")))))
    *_, last = body.decode().strip().split("\n\n")
    kind, data = last.split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"] == {
        "message": "no memory: use less",
        "type": "server_error",
        "param": None,
        "code": "device",
    }


def test_error_of_ours_says_nothing_of_the_text():
    body = asyncio.run(sent(stream(Source("a", error=ValueError("the secret text")))))
    assert b"secret" not in body
    assert b"ValueError" in body


def test_error_before_the_first_item_is_raised():
    source = Source(error=DeviceError("no memory"))
    with pytest.raises(DeviceError):
        asyncio.run(source.items.refuse_failed(5))
    assert source.is_closed


def test_first_item_is_not_waited_for_without_end():
    async def go() -> bytes:
        source = Source("a", pause=0.2)
        await source.items.refuse_failed(0.01)
        return await sent(stream(source))

    assert b'"a"' in asyncio.run(go())


@pytest.mark.parametrize("most", [0, 1, 2])
def test_items_are_closed_when_the_client_goes_away(most: int):
    from starlette.requests import ClientDisconnect

    source = Source("a", "b", "c")

    async def go() -> None:
        await source.items.refuse_failed(1)
        with pytest.raises(ClientDisconnect):
            await sent(stream(source), most)

    asyncio.run(go())
    assert source.is_closed


def test_items_can_be_closed_while_they_are_waited_for():
    async def go() -> Source:
        source = Source("a", pause=30)
        assert not await source.items.wait(0.01)
        await source.items.aclose()
        return source

    assert asyncio.run(go()).is_closed
