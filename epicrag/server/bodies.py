"""Bodies of requests, held to their limits while they come in and before anything reads them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from epicrag.server.errors import ApiError, response
from epicrag.server.security import headers_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from epicrag.server.settings import ServerSettings

_WITHOUT = ("GET", "HEAD", "OPTIONS", "DELETE")
# Possessive, and with an end for a string that has none: it never goes back, whatever the body.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)
_ASIDE_BYTES = 64 * 1024
"""Above this, looking through a body takes so long that it is done in another thread."""


class Bodies:
    """Reads a request's body whole, and refuses what is too big, too slow or too deep. ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT:
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
            if body is None:
                return  # the client is gone
            await self._check_depth(body)
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

    async def _check_depth(self, body: bytes) -> None:
        most = self._settings.max_json_depth
        if len(body) <= _ASIDE_BYTES:
            deep = is_deeper(body, most)
        else:
            deep = await asyncio.to_thread(is_deeper, body, most)
        if deep:
            raise ApiError(400, f"the JSON is nested deeper than {most} levels", code="too_deep")


def is_deeper(body: bytes, most: int) -> bool:
    """Whether JSON text opens more than `most` lists and objects within one another; for any bytes."""
    if body.count(b"[") + body.count(b"{") <= most:
        return False
    depth = 0
    for token in _TOKEN.finditer(body):
        first = body[token.start()]
        if first == 0x22:  # a string
            continue
        depth += 1 if first in b"[{" else -1
        if depth > most:
            return True
    return False


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
