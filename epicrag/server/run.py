"""A server's life: a socket, then the model, then requests, and an end that loses nobody's answer."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from epicrag.errors import IndexEmptyError, UsageError
from epicrag.index.kvstore import KVStore
from epicrag.pipeline import Pipeline
from epicrag.remote import run_file
from epicrag.server.app import create_app
from epicrag.server.discovery import Discovery
from epicrag.server.protocol import MAX_HEADER_BYTES, PatientOnce
from epicrag.server.rooms import furnish
from epicrag.server.settings import ServerSettings
from epicrag.server.state import State

if TYPE_CHECKING:
    from epicrag.config import Config

INTERRUPTED = 130
_SPARE_CONNECTIONS = 128
"""For health, metrics and the page, when all answers that may be open are."""
_LAST_S = 5.0
"""For responses that are being sent, and work that ends between two parts, when the grace is over."""


def serve(
    config: Config,
    settings: ServerSettings,
    *,
    with_index: bool = True,
    context_limit: int | None = None,
    say: Callable[[str], None],
    told: Callable[[str], None],
) -> int:
    """Serve until a signal says stop; return the exit code: 0 after SIGTERM, 130 after Ctrl-C.

    The port is bound, and says that the model is being loaded, before it is. `told` gets the server's
    address once it is known, `say` what else a person may want to know. UsageError: the address cannot
    be had, or is not this machine's alone and no token is asked for. What loading fails with is raised.
    """
    listener = bind(settings)
    with listener:
        url = url_of(listener, settings.host)
        folder = api_folder(config)
        with suppress(OSError):  # what cannot be kept is said when the model is there
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = KVStore(folder / "kv", budget_bytes=config.kv_disk)
        pipeline, has_index = _open(config, settings, with_index, context_limit, store, say)
        state = State(settings=settings, has_index=has_index)
        state.secret = secrets.token_urlsafe(32)
        discovery = Discovery.of(config, url, state.secret)
        rooms = partial(furnish, state, pipeline, folder, store)
        loading = Loading(state, pipeline, rooms, discovery, say)
        server = Server(state, loading, discovery)
        told(url)
        loading.start()
        try:
            server.run(sockets=[listener])
        finally:
            discovery.remove()
            state.jobs.cancel_all()
            if state.jobs.drain(_LAST_S):
                loading.close()
    return server.exit_code


# --- the address ---------------------------------------------------------------------------------


def bind(settings: ServerSettings) -> socket.socket:
    """A socket that listens where the settings say. Port 0: wherever there is a free one."""
    host, port = settings.host, settings.port
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is no address of this machine: {error}",
            "give --host an address, or leave it out",
        ) from error
    if not _is_loopback(str(address[0])) and not settings.tenants.wants_token:
        raise UsageError(
            f"on {host} anybody who reaches this machine could ask, and no token is asked for",
            "set EPICRAG_TOKEN or give --token-file, or leave --host out",
        )
    try:
        return socket.create_server(address[:2], family=family, backlog=256)
    except OSError as error:
        raise _no_socket(error, host, port) from error


def _no_socket(error: OSError, host: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} of {host} is taken: another server runs there",
            "stop it, or give another --port (0: any that is free)",
        )
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} is not for every user", "give a --port above 1023")
    return UsageError(f"{host}:{port} cannot be listened on: {error.strerror or error}")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def url_of(listener: socket.socket, host: str) -> str:
    """The address that a client on this machine asks: the host as given where it is one, and the port that was chosen."""
    address, port = listener.getsockname()[:2]
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_unspecified:
        address = "127.0.0.1" if ip.version == 4 else "::1"
    name = f"[{address}]" if ":" in address else address
    return f"http://{host if host == 'localhost' else name}:{port}"


# --- the pipeline --------------------------------------------------------------------------------


def _open(
    config: Config,
    settings: ServerSettings,
    with_index: bool,
    context_limit: int | None,
    store: KVStore,
    say: Callable[[str], None],
) -> tuple[Pipeline, bool]:
    """The pipeline of a server, nothing loaded yet, and whether there is an index."""
    from epicrag.serving.schedule import Limits

    options: dict[str, Any] = {
        "context_limit": context_limit,
        "limits": Limits(max_running=settings.max_running, max_waiting=settings.max_waiting),
        "other_store": store,
    }
    if with_index:
        with suppress(IndexEmptyError):
            pipeline = Pipeline.open(config, say=say, engine_options=options)
            return pipeline, True
        say(f"there is no index at {config.index}: the model is served alone")
    own = (
        api_folder(config) / "own-kv"
    )  # of the system prompt: an index is neither made nor changed
    pipeline = Pipeline(config, say=say, kv_folder=own, engine_options=options)
    return pipeline, False


def api_folder(config: Config) -> Path:
    """Where what clients bring along is kept: beside the index's server file, and not in the index."""
    return config.home / "api" / run_file(config.home, config.index).stem


class Loading:
    """Loads the models in a thread of its own, while the server says that it does."""

    def __init__(
        self,
        state: State,
        pipeline: Pipeline,
        furnish: Callable[[], None],
        discovery: Discovery,
        say: Callable[[str], None],
    ) -> None:
        self.error: BaseException | None = None
        self._state = state
        self._pipeline = pipeline
        self._furnish = furnish
        self._discovery = discovery
        self._say = say
        self._thread = threading.Thread(target=self._load, name="epicrag-loading", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Close the pipeline, unless something still uses it."""
        if not self.is_under_way:
            self._state.close()
            self._pipeline.close()

    def _load(self) -> None:
        began = time.perf_counter()
        try:
            self._warm()
            self._state.ready(self._pipeline)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.error = error
            self._state.phase = "failed"
            return
        self._discovery.write()
        self._say(f"ready after {time.perf_counter() - began:.1f} s")

    def _warm(self) -> None:
        """Load what the first question would otherwise wait for."""
        pipeline = self._pipeline
        _ = pipeline.engine
        if self._state.has_index:
            from epicrag.index.retrieve import check_embedder

            _ = pipeline.vectors, pipeline.reranker
            check_embedder(pipeline.catalog, pipeline.embedder)
        self._furnish()


# --- the end -------------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """uvicorn, ended by signals in two steps.

    The first one: new requests get 503, open answers go on for the grace time. The second one: over, now.
    """

    def __init__(self, state: State, loading: Loading, discovery: Discovery) -> None:
        settings = state.settings
        most = settings.max_running + settings.max_waiting + _SPARE_CONNECTIONS
        protocol = type("Protocol", (PatientOnce,), {"header_timeout_s": settings.header_timeout_s})
        config = uvicorn.Config(
            create_app(state),
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks is told by a token, and not by a header
            limit_concurrency=most,
            backlog=256,
            timeout_keep_alive=int(settings.keep_alive_s),
            timeout_graceful_shutdown=int(_LAST_S),
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        super().__init__(config)
        self.exit_code = 0
        self._state = state
        self._loading = loading
        self._discovery = discovery
        self._ends_at: float | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets)
        if self._loading.error is not None:
            raise self._loading.error
        if self._loading.is_under_way:  # nothing can end it, and nothing of it is needed
            self._leave(self.exit_code)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own would raise the signal again, and hide the exit code."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ends_at is not None:
            self._leave(INTERRUPTED)
        self.exit_code = INTERRUPTED if sig == signal.SIGINT else 0
        self._state.phase = "stopping"
        self._discovery.remove()
        self._ends_at = time.monotonic() + self._state.settings.grace_s

    async def on_tick(self, counter: int) -> bool:
        if self._loading.error is not None:
            self.should_exit = True
        if self._ends_at is not None:
            if time.monotonic() > self._ends_at:
                self._state.jobs.cancel_all()
            self.should_exit = not self._state.jobs or time.monotonic() > self._ends_at
        return await super().on_tick(counter)

    def _leave(self, code: int) -> None:
        """End the process with threads in it that would not end by themselves. Files are whole at any moment."""
        self._discovery.remove()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
