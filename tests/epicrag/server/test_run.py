"""A server's life: the socket, the models, and the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from epicrag.config import Config
from epicrag.errors import MismatchError, UsageError
from epicrag.remote import differing, discover, run_file
from epicrag.server.discovery import Discovery
from epicrag.server.run import Loading, Server, bind, serve, url_of
from epicrag.server.settings import ServerSettings
from epicrag.server.state import State
from epicrag.server.tenants import LOCAL, Tenants, digest_of

TENANTS = Tenants(((digest_of("a-token-of-the-operator"), LOCAL),))
LONG = {"question": "What is the door code of the harbour museum?", "max_tokens": 100}


def until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


# --- the address ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_other_addresses_than_loopback_need_a_token(host: str):
    with pytest.raises(UsageError, match="no token") as caught:
        bind(ServerSettings(host=host, port=0))
    assert "EPICRAG_TOKEN" in str(caught.value.hint)


def test_with_a_token_any_address_is_listened_on():
    with bind(ServerSettings(host="0.0.0.0", port=0, tenants=TENANTS)) as listener:
        assert url_of(listener, "0.0.0.0").startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_port_0_is_any_that_is_free(host: str):
    with bind(ServerSettings(host=host, port=0)) as listener:
        url = urlsplit(url_of(listener, host))
        assert (url.hostname, bool(url.port)) == (host, True)


def test_a_port_that_is_taken_is_said():
    with bind(ServerSettings(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is taken"):
            bind(ServerSettings(port=port))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a b", "x" * 300, "203.0.113.7"])
def test_an_address_that_is_not_this_machines_is_said(host: str):
    with pytest.raises(UsageError):
        bind(ServerSettings(host=host, port=0, tenants=TENANTS))


# --- the end -------------------------------------------------------------------------------------


class Running:
    """A `Server` in a thread, told to stop as a signal would."""

    def __init__(self, state: State, folder: Path, load: Callable[[], None] | None = None) -> None:
        self.listener = bind(ServerSettings(port=0))
        self.url = url_of(self.listener, "127.0.0.1")
        self.discovery = Discovery(folder / "run" / "x.json", {"secret": "s"})
        self.discovery.write()
        self.loading = Loading(state, None, load or (lambda: None), self.discovery, print)  # type: ignore[arg-type]
        self.server = Server(state, self.loading, self.discovery)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        until(lambda: self.server.started)

    def _run(self) -> None:
        try:
            self.server.run(sockets=[self.listener])
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def stop(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)


@pytest.fixture
def run(make_server: Any, tmp_path: Path) -> Iterator[Callable[..., tuple[Any, Running]]]:
    opened: list[Running] = []

    def start(**settings: Any) -> tuple[Any, Running]:
        server = make_server(**settings)
        opened.append(Running(server.state, tmp_path))
        return server, opened[-1]

    yield start
    for running in opened:
        running.server.should_exit = running.server.force_exit = True
        running.thread.join(10)
        assert not running.thread.is_alive()


@pytest.fixture
def gate(museum: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answers wait for `gate.release()` after their first word; `gate.closed` is set when one is cancelled."""
    generation = type(museum.engine.generate(_Prompt(), policy=None, sampling=None))
    ordinary = generation.__next__
    gate = threading.Semaphore(0)
    gate.closed = threading.Event()  # type: ignore[attr-defined]
    gate.opened = threading.Event()  # type: ignore[attr-defined]

    def following(self: Any) -> str:
        if len(self.deltas) == 3:
            gate.opened.set()  # type: ignore[attr-defined]
            while not gate.acquire(timeout=0.01) and not gate.closed.is_set():  # type: ignore[attr-defined]
                pass
        return str(ordinary(self))

    def close(self: Any) -> None:
        self.closed = True
        gate.closed.set()  # type: ignore[attr-defined]

    monkeypatch.setattr(generation, "__next__", following)
    monkeypatch.setattr(generation, "close", close)
    return gate


class _Prompt:
    pieces = (type("Piece", (), {"text": "a b"})(),)


def asking(url: str) -> tuple[threading.Thread, list[str]]:
    got: list[str] = []

    def ask() -> None:
        got.extend(httpx.post(url + "/v1/ask", json=LONG, timeout=20).text.splitlines())

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, got


def test_open_answers_are_finished_and_new_ones_refused(run: Any, gate: Any):
    _, running = run(grace_s=20.0)
    thread, got = asking(running.url)
    assert gate.opened.wait(10)
    running.stop()
    answer = httpx.post(running.url + "/v1/ask", json=LONG)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
    assert httpx.get(running.url + "/healthz").json() == {"status": "stopping"}
    assert not (running.discovery._file).exists()
    gate.release()
    thread.join(10)
    assert json.loads(got[-1])["answered"]
    running.thread.join(10)
    assert not running.thread.is_alive()
    assert running.server.exit_code == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(running.url + "/healthz")


def test_when_the_grace_is_over_answers_are_broken_off_and_told_so(run: Any, gate: Any):
    _, running = run(grace_s=0.2)
    thread, got = asking(running.url)
    assert gate.opened.wait(10)
    running.stop()
    thread.join(10)
    assert json.loads(got[-1])["error"]["code"] == "stopping"
    running.thread.join(10)
    assert not running.thread.is_alive()
    assert gate.closed.is_set()


def test_an_idle_server_ends_at_once(run: Any):
    _, running = run(grace_s=60.0)
    with httpx.Client() as client:
        client.get(running.url + "/healthz")  # and its connection is kept open
        running.stop()
        running.thread.join(5)
        assert not running.thread.is_alive()


def test_ctrl_c_has_its_own_exit_code(run: Any):
    _, running = run()
    running.server.handle_exit(signal.SIGINT, None)
    running.thread.join(5)
    assert running.server.exit_code == 130


def test_what_loading_fails_with_ends_the_server(tmp_path: Path):
    class Broken:
        @property
        def engine(self) -> Any:
            raise MismatchError("another model", "choose it")

        def close(self) -> None:
            pass

    state = State()
    running = Running(state, tmp_path)
    running.loading._pipeline = Broken()  # type: ignore[assignment]
    running.loading.start()
    running.thread.join(10)
    assert isinstance(running.error, MismatchError)
    assert state.phase == "failed"


# --- slow clients --------------------------------------------------------------------------------


def closes_within(url: str, sent: bytes, seconds: float) -> bool:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=seconds) as wire:
        wire.sendall(sent)
        try:
            while wire.recv(1000):
                pass
        except TimeoutError:
            return False
    return True


HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("sent", [b"", b"GE", HEAD, HEAD + b"\r\n" + HEAD, HEAD + b"\r\n"])
def test_connections_that_say_too_little_are_closed(run: Any, sent: bytes):
    _, running = run(header_timeout_s=0.3, keep_alive_s=1)
    assert closes_within(running.url, sent, 5)


def test_connections_that_say_enough_are_kept(run: Any):
    _, running = run(header_timeout_s=0.3, keep_alive_s=30)
    assert not closes_within(running.url, HEAD + b"\r\n", 1)


def test_heads_without_end_are_refused(run: Any):
    _, running = run()
    assert closes_within(running.url, HEAD + b"X: " + b"x" * 100_000, 5)


# --- the file ------------------------------------------------------------------------------------


def config_in(folder: Path) -> Config:
    return Config(home=folder / "home", index=folder / "index")


def test_the_discovery_file_is_for_its_owner_alone(tmp_path: Path):
    config = config_in(tmp_path)
    discovery = Discovery.of(config, "http://127.0.0.1:1", "secret")
    discovery.write()
    file = run_file(config.home, config.index)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    facts = json.loads(file.read_text())
    assert facts["pid"] == os.getpid()
    assert facts["settings"]["hybrid_weights"] == {"dense": 1.0, "words": 1.0}
    assert {"model", "embed_model", "link_policy", "top_k", "system_prompt"} <= set(
        facts["settings"]
    )
    assert list(file.parent.iterdir()) == [file]
    found = discover(config)
    assert found and (found.url, found.token) == ("http://127.0.0.1:1", "secret")
    assert differing(found, config) == []
    discovery.remove()
    assert not file.exists()


def test_the_file_of_another_server_is_left(tmp_path: Path):
    config = config_in(tmp_path)
    first, second = (Discovery.of(config, "http://127.0.0.1:1", name) for name in "ab")
    first.write()
    second.write()
    first.remove()
    assert json.loads(run_file(config.home, config.index).read_text())["secret"] == "b"


@pytest.mark.parametrize("end", ["lives", "silent", "killed"])
def test_the_file_of_another_server_that_still_answers_is_kept(
    live: Any, tmp_path: Path, caplog: Any, end: str
):
    config = config_in(tmp_path)
    url = live.url if end != "silent" else "http://127.0.0.1:1"
    other = Discovery.of(config, url, "a")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        other._facts = {**other._facts, "pid": process.pid}
        other.write()
        if end == "killed":
            process.kill()
            process.wait()
        second = Discovery.of(config, "http://127.0.0.1:2", "b")
        second.write()
        kept = json.loads(run_file(config.home, config.index).read_text())["secret"]
        assert kept == ("a" if end == "lives" else "b")
        assert (url in caplog.text) == (end == "lives")
        second.remove()
        assert run_file(config.home, config.index).exists() == (end == "lives")
        process.kill()


def test_a_home_that_cannot_be_written_is_no_failure(tmp_path: Path, caplog: Any):
    config = config_in(tmp_path)
    config.home.write_text("a file")
    discovery = Discovery.of(config, "http://127.0.0.1:1", "secret")
    discovery.write()
    assert "will not find this server" in caplog.text
    discovery.remove()


# --- the whole -----------------------------------------------------------------------------------


def test_a_model_alone_is_loaded_served_and_ended(
    checkpoint: Callable[[str], Path], tmp_path: Path
):
    """As the command does it, signals included; what a client sees meanwhile."""
    config = Config(
        home=tmp_path, index=tmp_path / "index", model=str(checkpoint("llama")), device="cpu",
        kv_memory=32 << 20,
    )  # fmt: skip
    said: list[str] = []
    urls: list[str] = []
    seen: dict[str, Any] = {}

    def client() -> None:
        until(lambda: urls)
        file = run_file(config.home, config.index)
        try:
            seen["first"] = httpx.get(urls[0] + "/healthz").json()["status"]
            until(lambda: httpx.get(urls[0] + "/healthz").status_code == 200, 60)
            until(file.exists)
            seen["facts"] = json.loads(file.read_text())
            seen["models"] = httpx.get(urls[0] + "/v1/models").json()["data"]
            asked = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
            asked["model"] = seen["models"][0]["id"]
            answer = httpx.post(urls[0] + "/v1/chat/completions", json=asked, timeout=60)
            seen["answer"] = answer.json()
            made = httpx.post(urls[0] + "/v1/chunks", json={"text": "The ferry leaves at ten."})
            seen["chunk"] = made.json()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=client)
    thread.start()
    settings = ServerSettings(port=0, served_model_name="tiny")
    code = serve(config, settings, context_limit=512, say=said.append, told=urls.append)
    thread.join(10)
    assert code == 0
    assert seen["first"] in ("loading", "ok")
    assert seen["facts"]["url"] == urls[0]
    assert [model["id"] for model in seen["models"]] == ["tiny", config.embed_model]
    assert seen["models"][0]["max_model_len"] == 512
    assert seen["answer"]["choices"][0]["message"]["role"] == "assistant"
    assert seen["chunk"]["object"] == "chunk"
    assert any("there is no index" in line for line in said)
    assert not config.index.exists()
    assert not list((tmp_path / "run").iterdir())


STUCK = """
import sys
from pathlib import Path
from epicrag.server.discovery import Discovery
from epicrag.server.run import Loading, Server, bind, serve, url_of
from epicrag.server.settings import ServerSettings
from epicrag.server.state import State

state, listener = State(), bind(ServerSettings(port=0))
state.phase = "ready"
state.jobs.enter()  # an answer that never ends
discovery = Discovery(Path(sys.argv[1]), {"secret": "s"})
discovery.write()
loading = Loading(state, None, lambda: None, discovery, print)
print(url_of(listener, "127.0.0.1"), flush=True)
Server(state, loading, discovery).run(sockets=[listener])
"""


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path):
    file = tmp_path / "run.json"
    command = [sys.executable, "-c", STUCK, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            url = process.stdout.readline().strip()
            until(lambda: httpx.get(url + "/healthz").status_code == 200)
            process.send_signal(signal.SIGINT)
            until(lambda: httpx.get(url + "/healthz").json() == {"status": "stopping"})
            assert not file.exists()
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
        finally:
            process.kill()
