"""What every request of a server shares: the pipeline, the settings, the counts, the open answers."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from fastapi import Request

from epicrag.errors import IndexEmptyError
from epicrag.server.errors import ApiError, retry_after
from epicrag.server.jobs import Jobs
from epicrag.server.metrics import Metrics
from epicrag.server.settings import ServerSettings
from epicrag.server.tenants import LOCAL, Tenant

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline

INDEX_MODEL = "epicrag"
"""The name of a model that answers from the index."""

Phase = Literal["loading", "ready", "stopping", "failed"]


class State:
    """One server's. It is made before the model is loaded: asked for the pipeline too early, it says so.

    `chunks`, `bringer` and `recogniser` are there once `rooms.py` has opened them.
    """

    def __init__(
        self,
        pipeline: Pipeline | None = None,
        settings: ServerSettings | None = None,
        metrics: Metrics | None = None,
        *,
        has_index: bool = True,
    ) -> None:
        self.settings = settings or ServerSettings()
        self.metrics = metrics or Metrics()
        self.jobs = Jobs(
            self.settings.max_running + self.settings.max_waiting, self.settings.max_registrations
        )
        self.started = int(time.time())
        self.phase: Phase = "loading"
        self.has_index = has_index
        self.secret: str | None = None
        """The token of the programs of the person who runs the server; None where there is none."""
        self.chunks: Any = None
        self.recogniser: Any = None
        self.bringer: Any = None
        self._pipeline: Pipeline | None = None
        if pipeline is not None:
            self.ready(pipeline)

    def ready(self, pipeline: Pipeline) -> None:
        """Begin to serve: the models of this pipeline are loaded."""
        self._pipeline = pipeline
        self.metrics.watch(pipeline.engine)
        if self.phase == "loading":
            self.phase = "ready"

    def close(self) -> None:
        """Close what is kept beside the pipeline."""
        for room in (self.recogniser, self.chunks):
            if room is not None:
                room.close()

    def refuse_unready(self) -> None:
        """ApiError 503 while the model is being loaded, and once the server was told to stop."""
        if self.phase == "loading" or self._pipeline is None:
            raise ApiError(503, "the model is being loaded", code="loading", headers=retry_after(2))
        if self.phase != "ready":
            raise ApiError(503, "the server is shutting down", code="stopping")

    @property
    def pipeline(self) -> Pipeline:
        if self._pipeline is None:
            self.refuse_unready()
        assert self._pipeline is not None
        return self._pipeline

    @property
    def model_name(self) -> str:
        """What clients call the model, which does not retrieve."""
        return self.settings.served_model_name or self.pipeline.engine.name

    @property
    def embedder_name(self) -> str:
        return self.pipeline.config.embed_model

    def turn(self) -> AbstractContextManager[object]:
        """Have the catalog and the embedder alone, for what is not a question."""
        return self.pipeline.turn

    def models_for(self, tenant: Tenant) -> tuple[str, ...]:
        """The names of models that a tenant may ask."""
        with_index = self.has_index and tenant.may_ask
        return (*((INDEX_MODEL,) if with_index else ()), self.model_name)

    def refuse_long(self, n_chars: int, param: str) -> None:
        """ApiError 400 for text that cannot fit the model's window, told without tokenising it."""
        from epicrag.serving.tokenizer import MOST_CHARS

        window = self.pipeline.engine.context_window
        if n_chars > window * MOST_CHARS:
            raise ApiError(
                400,
                f"{n_chars:,} characters of text; the window of {self.model_name} is {window:,} tokens, "
                f"and at most {window * MOST_CHARS:,} characters are read for it",
                "shorten it",
                param=param,
                code="context_length_exceeded",
            )

    def refuse_index(self, tenant: Tenant) -> None:
        """ApiError 403 for a tenant that the index does not answer to; IndexEmptyError where there is none."""
        if not tenant.may_ask:
            raise ApiError(
                403,
                f"the index of this server does not answer to {tenant.name!r}",
                "its token file would have to say: index = true",
                code="no_index_access",
            )
        if not self.has_index:
            raise IndexEmptyError(
                "this server has no index: it serves the model alone",
                "put documents into one, and start it without --no-index",
            )


def get_state(request: Request) -> State:
    """The server's state, for endpoints that need the model. ApiError 503 while it is not to be had."""
    state: State = request.app.state.server
    state.refuse_unready()
    return state


def get_tenant(request: Request) -> Tenant:
    """Whom the request comes from, as `security.py` found it."""
    tenant: Tenant = request.scope.get("state", {}).get("tenant", LOCAL)
    return tenant
