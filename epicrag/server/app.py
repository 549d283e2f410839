"""The server as an ASGI app: every router of this folder, behind the guards."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from epicrag import __version__
from epicrag.server import errors, openapi
from epicrag.server.bodies import Bodies
from epicrag.server.logs import Logged
from epicrag.server.security import Guard
from epicrag.server.state import State

ROUTERS = ("health", "models", "ask", "chat", "completions", "chunks", "page")
SHOWN_HEADERS = ("X-Epicrag-Receipt", "Server-Timing", "X-Request-Id", "Retry-After")


def create_app(state: State) -> FastAPI:
    """The app over a state. It does nothing until it is served."""
    app = FastAPI(
        title="epicrag",
        version=__version__,
        summary="OpenAI's API and epicrag's own, over one index and one engine.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.server = state
    errors.install(app)
    openapi.install(app)
    for name in ROUTERS:
        if find_spec(f"epicrag.server.{name}"):
            app.include_router(import_module(f"epicrag.server.{name}").router)
    # The last one is the outermost: nothing of a body is read before it is known who sends it.
    app.add_middleware(Bodies, settings=state.settings)
    app.add_middleware(Guard, state=state)
    if state.settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=state.settings.allow_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("Authorization", "Content-Type"),
            expose_headers=SHOWN_HEADERS,
        )
    app.add_middleware(Logged, state=state)
    return app
