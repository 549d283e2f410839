"""Whether the server is ready, and what it has counted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from epicrag.server.errors import ApiError
from epicrag.server.state import State, get_tenant
from epicrag.server.tenants import Tenant

router = APIRouter(tags=["server"])


@router.get("/healthz", summary="Whether it is ready")
async def healthz(request: Request) -> JSONResponse:
    """200 and "ok" when it answers; 503 and "loading", "stopping" or "failed" when it does not."""
    state: State = request.app.state.server
    is_ready = state.phase == "ready"
    headers = {"Cache-Control": "no-store"} | ({} if is_ready else {"Retry-After": "2"})
    status = "ok" if is_ready else state.phase
    return JSONResponse({"status": status}, 200 if is_ready else 503, headers)


@router.get("/metrics", summary="Counts, for Prometheus", response_class=Response)
def metrics(request: Request, tenant: Annotated[Tenant, Depends(get_tenant)]) -> Response:
    """Of all tenants together: for the operator alone."""
    if not tenant.is_operator:
        raise ApiError(403, "the counts of all tenants are for the operator alone")
    state: State = request.app.state.server
    return Response(state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
