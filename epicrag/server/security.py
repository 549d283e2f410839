"""Who may come in: by Host and Origin, so that no web page asks in a person's name, and by token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from epicrag.errors import UsageError
from epicrag.server.errors import ApiError, response
from epicrag.server.tenants import LOCAL, NOBODY, Tenant, digest_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from epicrag.server.settings import ServerSettings
    from epicrag.server.state import State

_HOST = re.compile(r"[\w.:%-]+")  # urlsplit takes what is no name, too

PUBLIC = frozenset({"/", "/healthz", "/favicon.ico"})
PUBLIC_BELOW = "/assets/"
"""What shows nothing of anybody: the page asks for the token that its questions then carry."""


class Guard:
    """Lets a request through when it names this server, comes from no strange page, and has a token if it needs one."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # nothing else is served
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        try:
            headers = headers_of(scope)
            check_host(headers, self._state.settings)
            check_origin(headers, self._state.settings)
            tenant = tenant_of(headers, self._state, is_public=_is_public(scope))
        except ApiError as error:
            await response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def headers_of(scope: Scope) -> dict[str, list[str]]:
    """Every value of every header, by its name in lower case."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return headers


def check_host(headers: Mapping[str, list[str]], settings: ServerSettings) -> None:
    """ApiError 403 where the Host header names another machine: a page whose name was turned to this address.

    An address is nobody's name, so it cannot be turned: each is taken.
    """
    given = headers.get("host", [])
    name = host_name(given[0]) if len(given) == 1 else None
    if name is None:
        raise ApiError(400, "a request needs one Host header", code="bad_host")
    known = {"localhost", settings.host.lower(), *(host.lower() for host in settings.allow_hosts)}
    if name in known or name.endswith(".localhost") or _is_address(name):
        return
    raise ApiError(
        403,
        f"this server does not answer to the name {name[:200]!r}",
        "start it with --allow-host NAME",
        code="unknown_host",
    )


def check_origin(headers: Mapping[str, list[str]], settings: ServerSettings) -> None:
    """ApiError 403 for a browser that asks on behalf of another site's page."""
    given = headers.get("origin", [])
    host = headers["host"][0].lower()
    for origin in given:
        is_own = _site_of(origin) == host
        if not (is_own or origin.lower() in settings.allow_origins):
            raise ApiError(
                403,
                f"pages of {origin[:200]!r} may not ask this server",
                "start it with --allow-origin ORIGIN",
                code="unknown_origin",
            )
    site = headers.get("sec-fetch-site", ["none"])[0]
    is_visit = headers.get("sec-fetch-mode", [""])[0] == "navigate"
    if not given and site in ("cross-site", "same-site") and not is_visit:
        raise ApiError(403, "pages of other sites may not ask this server", code="unknown_origin")


def tenant_of(headers: Mapping[str, list[str]], state: State, *, is_public: bool) -> Tenant:
    """Whom the token of a request belongs to. ApiError 401 where one is needed, and none or a wrong one given."""
    tenants, token = state.settings.tenants, _bearer(headers)
    if token is not None:
        if state.secret is not None and hmac.compare_digest(
            digest_of(token), digest_of(state.secret)
        ):
            return LOCAL
        if (tenant := tenants.of(token)) is not None:
            return tenant
    if not tenants.wants_token:
        return LOCAL
    if is_public:
        return NOBODY
    message = "this server asks for a token" if token is None else "the token is not known"
    raise ApiError(401, message, "send it as: Authorization: Bearer TOKEN", code="invalid_api_key")


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port, in lower case; None where there is none."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or not _HOST.fullmatch(name) or host.rpartition("@")[1] or parts.path:
        return None
    return name.rstrip(".")


def checked_names(hosts: Iterable[str]) -> tuple[str, ...]:
    """Names as a Host header gives them, without a port. UsageError for what is none, a star among them."""
    checked = []
    for host in hosts:
        name = host.strip().rstrip(".").lower()
        if not name or host_name(name) != name or "*" in name:
            raise UsageError(f"{host!r} is no name of a server", "give each as in notes.example")
        checked.append(name)
    return tuple(checked)


def checked_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Origins as browsers write them. UsageError for what is none: a path, a name alone, a star."""
    checked = []
    for origin in origins:
        text = origin.strip().rstrip("/").lower()
        try:
            parts = urlsplit(text)
            is_origin = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_origin = False
        if not is_origin or text != f"{parts.scheme}://{parts.netloc}" or "*" in text:
            raise UsageError(
                f"{origin!r} is no origin", "give each as scheme and host: https://notes.example"
            )
        checked.append(text)
    return tuple(checked)


def _site_of(origin: str) -> str | None:
    """Host and port of an origin; None for what is none."""
    try:
        return urlsplit(origin.lower()).netloc or None
    except ValueError:
        return None


def _bearer(headers: Mapping[str, list[str]]) -> str | None:
    given = headers.get("authorization", [])
    if len(given) != 1:
        return None
    scheme, _, token = given[0].partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _is_public(scope: Scope) -> bool:
    path = scope["path"]
    is_reading = scope["method"] in ("GET", "HEAD")
    return is_reading and (path in PUBLIC or path.startswith(PUBLIC_BELOW))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
