"""Bodies of requests, held to their limits while they come in and before anything reads them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from epicrag.server.errors import ApiError, response
from epicrag.server.security import headers_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from epicrag.server.settings import ServerSettings

_WITHOUT = ("GET", "HEAD", "OPTIONS", "DELETE")
_MARK = re.compile(rb'["\[\]{},]')
# Possessive: it never goes back, whatever the body. No more at once than takes a moment: a regular expression
# holds up all other threads.
_PART = re.compile(rb'(?:[^"\\]{1,65536}+|\\.?){1,1024}+', re.DOTALL)
_QUOTE = ord('"')
_ASIDE_BYTES = 64 * 1024
"""Above this, looking through a body takes so long that it is done in another thread."""
_LOOKS_AT_ONCE = 2
"""Bodies that are looked through in other threads at the same time."""


class Bodies:
    """Reads a request's body whole, and refuses what is too big, too slow, too deep or in too many pieces. ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._looking = asyncio.Semaphore(_LOOKS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT:
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
            if body is None:
                return  # the client is gone
            await self._check_shape(body)
        except ApiError as error:
            await response(error)(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        headers = headers_of(scope)
        if headers.get("content-encoding", ["identity"]) != ["identity"]:
            raise ApiError(415, "bodies are taken as they are, not compressed", code="encoding")
        declared = headers.get("content-length", ["0"])[0]
        if declared.isdecimal() and int(declared) > self._settings.max_body_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._settings.max_body_bytes:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            limit = f"{self._settings.body_timeout_s:g} s"
            raise ApiError(
                408, f"the body was not there within {limit}", code="slow_body"
            ) from None

    def _too_large(self) -> ApiError:
        limit = self._settings.max_body_bytes
        return ApiError(
            413,
            f"the body is larger than {limit:,} bytes",
            "send less, or start the server with a larger --max-body-mb",
            code="too_large",
        )

    async def _check_shape(self, body: bytes) -> None:
        most_deep, most_items = self._settings.max_json_depth, self._settings.max_json_items
        if len(body) <= _ASIDE_BYTES:
            over = excess(body, most_deep, most_items)
        else:
            async with self._looking:
                over = await asyncio.to_thread(excess, body, most_deep, most_items)
        if over == "depth":
            limit = f"the JSON is nested deeper than {most_deep} levels"
            raise ApiError(400, limit, code="too_deep")
        if over == "items":
            limit = f"the JSON has more than {most_items:,} items"
            raise ApiError(400, limit, "send it in several requests", code="too_many_items")


def excess(body: bytes, most_deep: int, most_items: int) -> Literal["depth", "items"] | None:
    """What JSON text has more of than it may: lists and objects within one another, or items; for any bytes.

    Items are strings, lists, objects, and commas: whatever a parser makes objects of, so that what is let
    through is parsed in moments. It lets other threads run meanwhile.
    """
    opens = body.count(b"[") + body.count(b"{")
    if opens <= most_deep and opens + body.count(b",") + body.count(b'"') // 2 <= most_items:
        return None
    depth = items = 0
    for mark in _marks(body):
        if mark in b"]}":
            depth -= 1
            continue
        items += 1
        if items > most_items:
            return "items"
        depth += mark in b"[{"
        if depth > most_deep:
            return "depth"
    return None


def _marks(body: bytes) -> Iterator[bytes]:
    """The brackets and commas of JSON text, and a quotation mark for each string."""
    at = 0
    while (found := _MARK.search(body, at)) is not None:
        at = found.end()
        yield found[0]
        if found[0] == b'"':
            while at < len(body) and body[at] != _QUOTE:
                part = _PART.match(body, at)
                assert part is not None
                at = part.end()
            at += 1


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once more, and then what still comes."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
