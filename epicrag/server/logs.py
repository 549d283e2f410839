"""One line of log for each request: who, what, how long, and what it cost; never a word of any text."""

from __future__ import annotations

import json
import logging
import secrets
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from epicrag.server.errors import response, unexpected

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from epicrag.server.state import State
    from epicrag.types import Receipt, Usage

FORMATS = ("json", "text")
REQUESTS = logging.getLogger("epicrag.server.requests")
SERVER = logging.getLogger("epicrag.server")
CLIENT_LEFT = 499
"""What a request is counted as whose client went away before there was an answer."""

_PROBES = ("/healthz", "/metrics")
"""Asked by machines every few seconds: counted, and not logged."""

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""Of every response, unless its endpoint says otherwise."""


@dataclass(slots=True)
class Record:
    """What is known of a request so far."""

    id: str = field(default_factory=lambda: f"req-{secrets.token_hex(8)}")
    began: float = field(default_factory=time.perf_counter)
    ttft_s: float | None = None
    receipt: Receipt | None = None
    usage: Usage | None = None


def record_of(request: Request) -> Record:
    """The record of a request."""
    record: Record = request.scope.setdefault("state", {}).setdefault("record", Record())
    return record


class Logged:
    """Gives each request an id, counts it, and logs it when its response has ended. ASGI middleware, the outermost.

    A fault of ours becomes a 500 here, so that no traceback with somebody's text in it is printed.
    """

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # nothing else is served
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        record = Record()
        scope.setdefault("state", {})["record"] = record
        status = CLIENT_LEFT
        is_begun = False

        async def sending(message: Message) -> None:
            nonlocal status, is_begun
            if message["type"] == "http.response.start":
                is_begun, status = True, message["status"]
                message = {**message, "headers": _headers(message["headers"], record)}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # noqa: BLE001 - the last resort: a line, and a 500 without text
            failure = unexpected(error)
            if not is_begun:
                await response(failure)(scope, receive, sending)
            status = 500
        finally:
            endpoint = endpoint_of(scope)
            self._state.metrics.requests.labels(endpoint, str(status)).inc()
            if endpoint not in _PROBES and REQUESTS.isEnabledFor(logging.INFO):
                REQUESTS.info("%s", endpoint, extra={"request": _line(scope, record, status)})


def endpoint_of(scope: Scope) -> str:
    """The path of a request as its router knows it, without anybody's ids; "other" for what there is not."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else "other"


def _headers(headers: Any, record: Record) -> list[tuple[bytes, bytes]]:
    given = {name.lower() for name, _ in headers}
    more = [item for item in _HEADERS.items() if item[0] not in given]
    return [*headers, *more, (b"x-request-id", record.id.encode())]


def _line(scope: Scope, record: Record, status: int) -> dict[str, Any]:
    tenant = scope["state"].get("tenant")
    line: dict[str, Any] = {
        "id": record.id,
        "tenant": tenant.name if tenant else None,
        "method": scope["method"],
        "endpoint": endpoint_of(scope),
        "status": status,
        "ms": round((time.perf_counter() - record.began) * 1000, 1),
    }
    if record.ttft_s is not None:
        line["ttft_ms"] = round(record.ttft_s * 1000, 1)
    if record.receipt is not None:
        kinds = ("exact", "stitched", "recomputed", "fresh")
        line["tokens"] = {kind: getattr(record.receipt, kind) for kind in kinds}
        line["policy"] = record.receipt.policy
    if record.usage is not None:
        line.setdefault("tokens", {})["generated"] = record.usage.completion_tokens
    return line


# --- how lines are written -----------------------------------------------------------------------


class JsonLines(logging.Formatter):
    """A record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": "request" if hasattr(record, "request") else "log",
        }
        if hasattr(record, "request"):
            line |= record.request
        else:
            line["message"] = record.getMessage()
        return json.dumps(line)


class TextLines(logging.Formatter):
    """A record as a person reads it."""

    def format(self, record: logging.LogRecord) -> str:
        if not hasattr(record, "request"):
            level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
            return level + record.getMessage()
        line = record.request
        parts = [
            f"{_time(record)} {line['status']} {line['method']} {line['endpoint']}",
            f"{line['ms']:,.0f} ms",
        ]
        if "ttft_ms" in line:
            parts.append(f"first word {line['ttft_ms']:,.0f} ms")
        parts += [f"{kind} {n:,}" for kind, n in line.get("tokens", {}).items()]
        parts += [line["policy"]] if "policy" in line else []
        return " · ".join([*parts, str(line["tenant"]), line["id"]])


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def configure(kind: str, level: str, *, quiet: bool = False) -> None:
    """Send the log of the server, and what epicrag and uvicorn say, to stderr: as JSON lines or as text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    for name, own_level in (("epicrag", level.upper()), ("uvicorn", "ERROR")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(own_level)
    SERVER.setLevel("ERROR" if quiet else "INFO")  # and that of REQUESTS, below it
