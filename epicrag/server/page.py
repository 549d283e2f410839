"""The page at `/`: plain files of this package, under headers that let nothing else run or load."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request, Response

router = APIRouter(include_in_schema=False)

MEDIA = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "page.js": "text/javascript; charset=utf-8",
    "wire.js": "text/javascript; charset=utf-8",
    "answer.js": "text/javascript; charset=utf-8",
    "receipt.js": "text/javascript; charset=utf-8",
    "passage.js": "text/javascript; charset=utf-8",
    "speak.js": "text/javascript; charset=utf-8",
    "build.js": "text/javascript; charset=utf-8",
}
"""Every file of the page, and what it is: no other name is served, whatever a path says."""

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    # No string becomes markup in a script, not even by mistake: documents are text.
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(map(" ".join, POLICY.items())),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",  # asked for anew each time, and sent only where it changed
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    body: bytes
    media: str
    tag: str
    """Its ETag: a digest of the body, in quotes."""


@cache
def asset(name: str) -> Asset:
    """Return a file of the page by its name. KeyError: the page has none of that name."""
    media = MEDIA[name]
    body = files("epicrag.server").joinpath("page", name).read_bytes()
    return Asset(body, media, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


@router.api_route("/", methods=["GET", "HEAD"])
def index(request: Request) -> Response:
    """The page itself. It holds nothing of the index, so it needs no token: what it asks for does."""
    return _send(request, "index.html")


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
def part(request: Request, name: str) -> Response:
    """A style sheet, a script or the icon of the page."""
    if name not in MEDIA:
        raise HTTPException(404, "the page has no such file")
    return _send(request, name)


def _send(request: Request, name: str) -> Response:
    found = asset(name)
    headers = {**HEADERS, "ETag": found.tag}
    if found.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media, headers=headers)
