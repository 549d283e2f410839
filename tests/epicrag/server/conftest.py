"""The server over a stub pipeline, without a socket; and a real one on loopback over a tiny random model."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient

from epicrag.pipeline import Pipeline
from epicrag.server.app import create_app
from epicrag.server.settings import ServerSettings
from epicrag.server.state import State

OWN_URL = "http://127.0.0.1:8000"


@dataclass
class StubServer:
    """A server over the museum's index; `client` is a synchronous client that needs no socket."""

    pipeline: Pipeline
    engine: Any
    """The stub: `engine.answer` is what it says, `engine.prompts` what it was asked."""
    state: State
    app: Any
    client: TestClient

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)


@pytest.fixture
def make_server(museum: Any) -> Iterator[Callable[..., StubServer]]:
    """A function from settings (fields of `ServerSettings`) to a `StubServer`; `config` changes the index's own."""
    opened: list[StubServer] = []

    def make(
        *, has_index: bool = True, config: dict[str, Any] | None = None, **settings: Any
    ) -> StubServer:
        pipeline = museum.open(**(config or {}))
        state = State(pipeline, ServerSettings(**settings), has_index=has_index)
        app = create_app(state)
        client = TestClient(app, base_url=OWN_URL, raise_server_exceptions=True)
        opened.append(StubServer(pipeline, museum.engine, state, app, client))
        return opened[-1]

    yield make
    for server in opened:
        server.client.close()
        server.pipeline.close()


@pytest.fixture
def server(make_server: Callable[..., StubServer]) -> StubServer:
    """The server as it is without any flag."""
    return make_server()


@pytest.fixture(scope="session")
def server_engine(checkpoint: Callable[[str], Path], tmp_path_factory: Any) -> Any:
    """A tiny Llama with random weights: its answers are nonsense, and all the same each time."""
    from epicrag.index.kvstore import KVStore
    from epicrag.serving.engine import Engine

    return Engine.load(
        checkpoint("llama"),
        name="tiny",
        store=KVStore(tmp_path_factory.mktemp("kv")),
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        kv_memory_bytes=32 << 20,
    )


@dataclass
class Live:
    """A real server on loopback. `url` is its root, without a slash at the end."""

    url: str
    pipeline: Pipeline
    engine: Any
    state: State
    uvicorn: Any = field(repr=False, default=None)

    @property
    def v1(self) -> str:
        """What OpenAI's clients want as `base_url`."""
        return self.url + "/v1"


@contextmanager
def serving(app: Any) -> Iterator[tuple[str, Any]]:
    """uvicorn in a thread, on a free port of loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(name="serving")
def _serving() -> Callable[..., Any]:
    """`serving`, for tests that have an app of their own."""
    return serving


@pytest.fixture
def make_live(museum: Any, server_engine: Any) -> Iterator[Callable[..., Live]]:
    """A function from settings to a `Live` server over the museum's index; all are stopped at the end."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(*, has_index: bool = True, **settings: Any) -> Live:
            museum.engine = server_engine
            pipeline = Pipeline(
                museum.config,
                create=True,
                embedder=museum.embedder,
                engine=server_engine,
                counter=server_engine.tokenizer,
            )
            stack.callback(pipeline.close)
            state = State(pipeline, ServerSettings(**settings), has_index=has_index)
            url, server = stack.enter_context(serving(create_app(state)))
            return Live(url, pipeline, server_engine, state, server)

        yield make
    until(lambda: server_engine.busy_pages == 0)


@pytest.fixture
def live(make_live: Callable[..., Live]) -> Live:
    """A real server as it is without any flag."""
    return make_live()


def until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something is so, and fail if it never is."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
