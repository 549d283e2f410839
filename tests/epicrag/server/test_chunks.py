"""/v1/chunks: what a client registers is its own, and nobody else's to see, use, time or guess."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from epicrag.brought import Bringer
from epicrag.chunkbook import BookLimits, ChunkBook, UnknownChunkError
from epicrag.index.kvstore import KVStore
from epicrag.recognise import Recogniser
from epicrag.server.chunks import referenced
from epicrag.server.tenants import LOCAL, Tenant, Tenants, digest_of

PATH = "/v1/chunks"
TEXT = "The ferry to the island leaves every hour from pier three, says the keeper. " * 4
ALICE, BOB = "alices-own-token-0001", "bobs-own-token-000002"
MINE = {"headers": {"Authorization": f"Bearer {ALICE}"}}
THEIRS = {"headers": {"Authorization": f"Bearer {BOB}"}}
TENANTS = Tenants(
    (
        (digest_of(ALICE), Tenant("alice", "tenant:alice")),
        (digest_of(BOB), Tenant("bob", "tenant:bob", may_ask=True)),
    )
)


@pytest.fixture
def furnished(
    make_server: Callable[..., Any], make_compiler: Any, word_counter: Any, tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """A function from settings to a server that keeps chunks."""
    books: list[ChunkBook] = []

    def make(limits: BookLimits | None = None, **settings: Any) -> Any:
        made = make_server(**settings)
        store = KVStore(tmp_path / "served")
        compiler = make_compiler(store)
        book = ChunkBook.open(tmp_path, compiler, word_counter, store, limits)
        made.state.chunks = book
        made.state.bringer = Bringer(book, word_counter, 64)
        made.state.recogniser = Recogniser(
            word_counter, index=made.pipeline.config.index, book=book
        )
        made.compiler = compiler
        books.append(book)
        return made

    yield make
    for book in books:
        book.close()


@pytest.fixture
def server(furnished: Callable[..., Any]) -> Any:
    return furnished()


@pytest.fixture
def shared(furnished: Callable[..., Any]) -> Any:
    """A server with two tenants."""
    return furnished(tenants=TENANTS)


def error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


def until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


def test_a_chunk_from_its_first_to_its_last(server: Any):
    made = server.post(PATH, {"id": "one", "text": TEXT, "title": "Ferries", "metadata": {"y": 1}})
    assert made.status_code == 200
    assert made.json() == {
        "id": "one",
        "object": "chunk",
        "tokens": 57,
        "kv_key": made.json()["kv_key"],
        "kv": "computed",
        "bytes": 570,
    }
    again = server.post(PATH, {"id": "one", "text": TEXT, "title": "Ferries"})
    assert again.json() == {**made.json(), "kv": "stored"}
    found = server.client.get(f"{PATH}/one").json()
    assert (found["text"], found["title"], found["metadata"]) == (TEXT, "Ferries", {"y": 1})
    assert found["registered"]
    listed = server.client.get(PATH).json()
    assert [chunk["id"] for chunk in listed["data"]] == ["one"]
    assert "text" not in listed["data"][0]
    gone = server.client.delete(f"{PATH}/one")
    assert gone.json() == {"id": "one", "object": "chunk", "deleted": True}
    assert "one" in error(server.client.get(f"{PATH}/one"), 404)["message"]
    assert error(server.client.delete(f"{PATH}/one"), 404)["code"] == "unknown_chunk"


def test_several_at_once_each_behind_the_one_before(server: Any):
    made = server.post(
        PATH,
        {"chunks": [{"id": "1", "text": "First."}, {"id": "2", "text": "Second.", "before": "1"}]},
    ).json()
    assert [chunk["id"] for chunk in made["data"]] == ["1", "2"]
    assert server.client.get(f"{PATH}/2").json()["before"] == "1"
    page = server.client.get(PATH, params={"limit": 1}).json()
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, "1", "1")
    rest = server.client.get(PATH, params={"after": "1"}).json()
    assert (rest["has_more"], [chunk["id"] for chunk in rest["data"]]) == (False, ["2"])


def test_another_text_under_a_used_id_conflicts(server: Any):
    server.post(PATH, {"id": "one", "text": TEXT})
    assert "one" in error(server.post(PATH, {"id": "one", "text": "Other."}), 409)["message"]
    assert server.post(PATH, {"id": "one", "text": "Other.", "replace": True}).status_code == 200
    assert server.client.get(f"{PATH}/one").json()["text"] == "Other."


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "text"),
        ({"text": " "}, 400, "text"),
        ({"text": 7}, 400, "text"),
        ({"chunks": []}, 400, "chunks"),
        ({"chunks": [{"text": "a"}, {"text": ""}]}, 400, "chunks.1.text"),
        ({"chunks": [{"text": "a"}], "text": "b"}, 400, "chunks"),
        ({"text": "a", "metadata": {"x": "y" * 20_000}}, 400, "metadata"),
        ({"text": "a", "id": "no/slash"}, 400, None),
        ({"text": "a", "before": "nobody"}, 404, None),
        ([], 400, None),
    ],
)
def test_bad_bodies_are_told_apart(server: Any, body: Any, status: int, param: str | None):
    found = error(server.post(PATH, body), status)
    if param is not None:
        assert found["param"] == param


@pytest.mark.parametrize(
    "raw", [b'{"text": "a", "metadata": {"x": NaN}}', b'{"text": "a\\ud800", "title": "\\udfff"}']
)
def test_what_json_in_utf8_cannot_hold_is_never_a_fault_of_ours(server: Any, raw: bytes):
    made = server.client.post(PATH, content=raw, headers={"Content-Type": "application/json"})
    assert made.status_code in (200, 400)
    if made.status_code == 200:
        assert "\ufffd" in server.client.get(f"{PATH}/{made.json()['id']}").json()["text"]


@pytest.mark.parametrize("chunk_id", ["%00", "%ff", "..%2f..", "%ed%a0%80", "a" * 5000])
def test_odd_ids_are_unknown(server: Any, chunk_id: str):
    assert server.client.get(f"{PATH}/{chunk_id}").status_code == 404
    assert server.client.get(PATH, params={"after": "\x00"}).status_code == 404


def test_full_namespace_says_so(furnished: Callable[..., Any]):
    server = furnished(limits=BookLimits(max_chunks=1))
    server.post(PATH, {"text": "One."})
    assert error(server.post(PATH, {"text": "Two."}), 409)["code"] == "chunks_full"


MANY = {"chunks": [{"id": f"n{n}", "text": f"{n} {TEXT}"} for n in range(30)]}


class Hand:
    """Stands for computing that waits until it is let go on."""

    def __init__(self, server: Any) -> None:
        self.begun, self.more = threading.Semaphore(0), threading.Semaphore(0)
        server.compiler.on_compile = self

    def __call__(self) -> None:
        self.begun.release()
        assert self.more.acquire(timeout=20)

    def let(self, n: int = 1000) -> None:
        for _ in range(n):
            self.more.release()


def test_too_many_registrations_are_refused_and_others_are_served_meanwhile(
    furnished: Callable[..., Any],
):
    server = furnished(max_registrations=50)  # more than the threads that requests share
    hand = Hand(server)
    statuses: list[int] = []

    def register(n: int) -> None:
        statuses.append(server.post(PATH, {"text": f"{n} {TEXT}"}).status_code)

    threads = [threading.Thread(target=register, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.state.jobs) == 50)
    refused = server.post(PATH, {"text": TEXT})
    assert error(refused, 429)["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1
    assert server.post("/v1/search", {"query": "museum"}).status_code == 200
    hand.let()
    for thread in threads:
        thread.join(20)
    assert statuses == [200] * 50


def test_a_registration_whose_client_left_ends_between_two_chunks(server: Any, serving: Any):
    hand = Hand(server)
    with serving(server.app) as (url, _):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + PATH, json=MANY, timeout=1.0)
        assert hand.begun.acquire(timeout=5)
        (job,) = server.state.jobs._open
        until(lambda: job.is_cancelled)
        hand.let()
        until(lambda: not server.state.jobs)
    assert len(server.compiler.compiled) == 1
    data = server.client.get(PATH).json()["data"]
    assert len(data) == 30
    assert [chunk["id"] for chunk in data if chunk["kv_key"]] == ["n0"]


def test_a_registration_that_the_end_of_the_server_breaks_off_is_told_so(server: Any, serving: Any):
    """At once, also while a chunk is being computed."""
    hand = Hand(server)
    with serving(server.app) as (url, _), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, url + PATH, json=MANY, timeout=20)
        assert hand.begun.acquire(timeout=5)
        server.state.jobs.cancel_all()
        assert error(asked.result(5), 503)["code"] == "stopping"
        assert not server.state.jobs.drain(0.05)
        hand.let()
        assert server.state.jobs.drain(5)


def test_server_without_a_book_says_so(make_server: Callable[..., Any]):
    assert error(make_server().post(PATH, {"text": TEXT}), 503)["code"] == "no_chunks"


# --- tenants ---


def test_nothing_of_a_tenant_is_another_ones(shared: Any):
    shared.post(PATH, {"id": "secret", "text": TEXT}, **MINE)
    absent = error(shared.client.get(f"{PATH}/nothing", **THEIRS), 404)
    for response in (
        shared.client.get(f"{PATH}/secret", **THEIRS),
        shared.client.delete(f"{PATH}/secret", **THEIRS),
        shared.client.get(PATH, params={"after": "secret"}, **THEIRS),
        shared.post(PATH, {"text": "x", "before": "secret"}, **THEIRS),
    ):
        found = error(response, 404)
        assert found["message"].replace("secret", "nothing") == absent["message"]
    assert shared.client.get(PATH, **THEIRS).json()["data"] == []
    assert shared.client.get(f"{PATH}/secret", **MINE).json()["text"] == TEXT
    assert error(shared.client.get(f"{PATH}/secret"), 401)


def test_the_same_text_is_computed_for_each_tenant(shared: Any):
    mine = shared.post(PATH, {"text": TEXT}, **MINE).json()
    theirs = shared.post(PATH, {"text": TEXT}, **THEIRS).json()
    assert mine["kv"] == theirs["kv"] == "computed"
    assert mine["id"] == theirs["id"]  # by content: it says nothing of who has it
    assert mine["kv_key"] != theirs["kv_key"]
    shared.client.delete(f"{PATH}/{mine['id']}", **MINE)
    assert shared.post(PATH, {"text": TEXT}, **THEIRS).json()["kv"] == "stored"
    assert shared.post(PATH, {"text": TEXT}, **MINE).json()["kv"] == "computed"


def test_same_id_is_a_chunk_of_each_tenant(shared: Any):
    shared.post(PATH, {"id": "one", "text": TEXT}, **MINE)
    assert shared.post(PATH, {"id": "one", "text": "Other."}, **THEIRS).status_code == 200
    assert shared.client.get(f"{PATH}/one", **MINE).json()["text"] == TEXT


def test_flat_text_and_documents_are_matched_within_a_namespace(shared: Any):
    from epicrag.brought import BroughtDocument

    state = shared.state
    alice, bob = (tenant for _, tenant in TENANTS.known)
    shared.post(PATH, {"text": TEXT}, **MINE)
    (piece,) = state.recogniser.parts(TEXT, alice)
    assert piece.namespace == "tenant:alice"
    assert state.recogniser.parts(TEXT, bob) == (TEXT,)
    mine = state.bringer.bring(alice.namespace, [BroughtDocument("Some words. " * 40)])
    theirs = state.bringer.bring(bob.namespace, [BroughtDocument("Some words. " * 40)])
    assert {p.chunk.kv_key for p in mine}.isdisjoint(p.chunk.kv_key for p in theirs)


def test_reference_means_a_chunk_or_a_passage_of_the_index(server: Any):
    server.post(PATH, {"id": "one", "text": TEXT, "title": "Ferries"})
    piece, text = referenced(server.state, LOCAL, "one", 64)
    assert (piece.text, piece.offset, piece.namespace) == (f"Ferries\n{TEXT}", 64, "api")
    assert text == TEXT
    (hit, *_) = server.pipeline.search("museum door code")
    piece, text = referenced(server.state, LOCAL, hit.chunk.id)
    assert (piece.text, piece.namespace, text) == (hit.chunk.model_text, "", hit.chunk.text)
    for tenant in (LOCAL, Tenant("bob", "tenant:bob")):
        with pytest.raises(UnknownChunkError, match="two"):
            referenced(server.state, tenant, "two")
    with pytest.raises(UnknownChunkError):
        referenced(server.state, Tenant("bob", "tenant:bob"), hit.chunk.id)
