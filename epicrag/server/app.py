"""The server as an ASGI app: every router of this folder, behind the guards."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from fastapi import FastAPI

from epicrag import __version__
from epicrag.server import errors
from epicrag.server.state import State

ROUTERS = ("health", "models", "ask", "chat", "completions", "chunks", "page")


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
    for name in ROUTERS:
        if find_spec(f"epicrag.server.{name}"):
            app.include_router(import_module(f"epicrag.server.{name}").router)
    return app
