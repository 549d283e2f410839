"""What goes wrong, as an HTTP status and the error object of OpenAI's API."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epicrag import errors
from epicrag.errors import EpicragError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

_log = logging.getLogger("epicrag")

_STATUS: dict[type[EpicragError], int] = {
    errors.UsageError: 400,
    errors.IndexEmptyError: 409,
    errors.AbstainedError: 422,
    errors.MismatchError: 409,
    errors.LockedError: 503,
    errors.DamagedError: 503,
    errors.DeviceError: 503,
    errors.BusyError: 429,
    errors.OfflineError: 503,
}
_STATUS_BY_CODE = {"unknown_chunk": 404, "chunk_conflict": 409, "chunks_full": 409}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_MAX_SHOWN = 8
"""Fields that one message about a bad request names."""


class ApiError(EpicragError):
    """A request that cannot be answered, with its HTTP status. `param` names the field that is to blame."""

    exit_code = 2

    def __init__(
        self,
        status: int,
        message: str,
        hint: str | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.param = param
        self.code = code or _TYPES.get(status, "invalid_request").removesuffix("_error")
        self.headers = dict(headers or {})


def not_found(
    what: str, name: str, hint: str | None = None, *, param: str | None = None
) -> ApiError:
    """`what` of the name is not there: "model", "chunk", "passage"."""
    shown = name if len(name) <= 100 else name[:100] + "…"
    return ApiError(
        404, f"there is no {what} {shown!r}", hint, param=param, code=f"{what}_not_found"
    )


def status_of(error: EpicragError) -> int:
    """The HTTP status of an error that is meant for a user."""
    if isinstance(error, ApiError):
        return error.status
    if error.code in _STATUS_BY_CODE:
        return _STATUS_BY_CODE[error.code]
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 503)


def error_object(error: EpicragError) -> dict[str, Any]:
    """OpenAI's error object: `{"error": {"message", "type", "param", "code"}}`; the message ends with the hint."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    message = f"{error.message}: {error.hint}" if error.hint else error.message
    param = error.param if isinstance(error, ApiError) else None
    return {
        "error": {"message": _printable(message), "type": kind, "param": param, "code": error.code}
    }


def own_object(error: EpicragError) -> dict[str, Any]:
    """The error object of epicrag's own endpoints: OpenAI's, with message and hint apart, and the exit code."""
    inner: dict[str, Any] = error_object(error)["error"]
    hint = _printable(error.hint) if error.hint else None
    more = {"message": _printable(error.message), "hint": hint, "exit_code": error.exit_code}
    return {"error": {**inner, **more}}


def headers_of(error: EpicragError) -> dict[str, str]:
    """What goes with an error: when to ask again, or that asking again is of no use."""
    status = status_of(error)
    headers = dict(error.headers) if isinstance(error, ApiError) else {}
    if status == 429:
        headers.setdefault("Retry-After", "1")
    elif status == 409:
        headers["x-should-retry"] = "false"  # clients of OpenAI's would try three times
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def response(error: EpicragError) -> JSONResponse:
    from fastapi.responses import JSONResponse

    return JSONResponse(error_object(error), status_of(error), headers_of(error))


def unexpected(error: BaseException) -> ApiError:
    """A fault of ours, for the client: which kind, and nothing of what it was about.

    Where it came from goes to the log; its message may hold words of a document, and does not.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[::-1])
    _log.error("unexpected %s at %s", type(error).__name__, where)
    return ApiError(
        500,
        f"something unexpected went wrong ({type(error).__name__})",
        "the server's log says where",
        code="unexpected",
    )


def as_epicrag(error: BaseException) -> EpicragError:
    """An error as one that may be shown."""
    return error if isinstance(error, EpicragError) else unexpected(error)


def install(app: FastAPI) -> None:
    """Let an app answer every error in this shape."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    async def on_epicrag(_: Request, error: EpicragError) -> JSONResponse:
        return response(error)

    async def on_validation(_: Request, error: RequestValidationError) -> JSONResponse:
        return response(_invalid(error))

    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        return response(_http(request, error))

    app.add_exception_handler(EpicragError, on_epicrag)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, on_validation)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, on_http)  # type: ignore[arg-type]


def _invalid(error: RequestValidationError) -> ApiError:
    """Which fields are wrong, and how; never what was in them."""
    found = error.errors()
    says = [f"{_field(item)}: {item.get('msg', 'is not valid')}" for item in found[:_MAX_SHOWN]]
    more = f" (and {len(found) - _MAX_SHOWN} more)" if len(found) > _MAX_SHOWN else ""
    param = _field(found[0]) if found else None
    return ApiError(400, "; ".join(says) + more, param=param, code="invalid_field")


def _field(item: Mapping[str, Any]) -> str:
    """Where it stands, as a client writes it: messages[0].content. Parts in brackets name a kind, and no field."""
    where = ""
    for part in item.get("loc", ()):
        if isinstance(part, int):
            where += f"[{part}]"
        elif part != "body" and part.isidentifier():
            where += f".{part}" if where else part
    return where[:200] or "body"


def _http(request: Request, error: HTTPException) -> ApiError:
    """What the router itself refuses: an unknown path, a method, a body that is not JSON."""
    from epicrag.server.openapi import methods_of

    if error.status_code == 404:
        message = f"there is nothing at {request.url.path[:200]}"
        return ApiError(404, message, "see /openapi.json for what there is")
    if error.status_code == 405:
        message = f"{request.method} is not for {request.url.path[:200]}"
        headers = dict(error.headers or {})
        if methods := methods_of(request.app, request.url.path):
            headers["Allow"] = ", ".join(methods)
        return ApiError(405, message, headers=headers, code="method_not_allowed")
    return ApiError(error.status_code, str(error.detail)[:500], headers=error.headers)


def _printable(text: str) -> str:
    """Text that JSON in UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
