"""Retrievals are counted without disturbing anybody, and a budget for KV goes to what is retrieved most."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from typing import Any

import pytest

import epicrag.ingest as module
from epicrag.index.catalog import FILE_NAME

TOPICS = ("anchors", "beacons", "capstans", "dories", "ensigns")


@pytest.fixture
def size(bench: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of one entry, which is what the plan then counts with."""
    with bench.open() as pipeline:
        bench.engine.put("0" * 64)
        size = pipeline.kv_store.nbytes()
        pipeline.kv_store.delete("0" * 64)
    monkeypatch.setattr(module, "_entry_bytes", lambda tokens, each: size)
    return size


@pytest.fixture
def harbour(bench: Any) -> Any:
    """A document a topic, each of one chunk; nothing is ingested yet."""
    for topic in TOPICS:
        bench.write(f"{topic}.txt", f"All about {topic}, and nothing else.\n")
    return bench


def with_kv(bench: Any, **changes: Any) -> set[str]:
    """The topics whose KV is on disk."""
    with bench.open(**changes) as pipeline:
        rows = pipeline.catalog.kv_rows()
        keys = pipeline.kv_store.keys()
        return {path.rpartition("/")[2][:-4] for path, _, key in rows if key in keys}


def ingest(bench: Any, **changes: Any) -> Any:
    with bench.open(**changes) as pipeline:
        return pipeline.ingest([bench.docs])


def search(bench: Any, word: str, times: int = 1, **changes: Any) -> None:
    with bench.open(**changes) as pipeline:
        for _ in range(times):
            pipeline.search(word, k=1)


def uses(bench: Any) -> dict[str, int]:
    """How often each topic was retrieved."""
    with bench.open() as pipeline:
        counts = pipeline.catalog.uses()
        return {
            pipeline.catalog.chunk(row).document.rpartition("/")[2][:-4]: n
            for row, n in counts.items()
        }


def test_searches_and_questions_are_counted(harbour):
    ingest(harbour)
    search(harbour, "beacons", 2)
    harbour.ask("dories?", k=1)
    assert uses(harbour) == {"beacons": 2, "dories": 1}


def test_counting_changes_neither_generation_nor_stamp(harbour):
    ingest(harbour)
    with harbour.open() as pipeline:
        before = pipeline.catalog.generation, pipeline.catalog.stamp
        pipeline.search("beacons", k=1)
        assert (pipeline.catalog.generation, pipeline.catalog.stamp) == before


def test_counts_survive_reading_a_document_again(harbour):
    ingest(harbour)
    search(harbour, "beacons", 3)
    path = harbour.docs / "beacons.txt"
    path.write_text(path.read_text() + " ")
    result = ingest(harbour)
    assert result.counts["changed"] == 1
    assert uses(harbour).get("beacons", 0) in (
        0,
        3,
    )  # where the chunk's text is the same, its count
    harbour.write("beacons.txt", "All about beacons, and nothing else.\n")
    ingest(harbour)
    assert uses(harbour)["beacons"] == 3


def test_a_writer_elsewhere_is_no_reason_to_wait_or_to_fail(harbour):
    ingest(harbour)
    with harbour.open() as pipeline:
        pipeline.search("beacons", k=1)
        other = sqlite3.connect(harbour.config.index / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert pipeline.search("beacons", k=1)
        assert time.monotonic() - began < 3  # the usual wait for a writer is five seconds
        assert pipeline.catalog.retrievals() == (1, 1)
        other.execute("ROLLBACK")
        other.close()
        pipeline.search("beacons", k=1)
        assert pipeline.catalog.retrievals() == (
            3,
            3,
        )  # what could not be counted then is counted now


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_index_that_may_only_be_read_is_searched(harbour):
    ingest(harbour)
    harbour.config.index.chmod(0o500)
    try:
        search(harbour, "beacons")
    finally:
        harbour.config.index.chmod(0o700)
    assert uses(harbour) == {}


def test_a_catalog_that_refuses_to_be_written_to_is_searched(harbour, monkeypatch):
    from epicrag.errors import UsageError
    from epicrag.index.catalog import Catalog

    def refuse(*_: object) -> None:
        raise UsageError("read-only", "")

    ingest(harbour)
    monkeypatch.setattr(Catalog, "note_uses", refuse)
    search(harbour, "beacons")


def test_readers_at_once_lose_no_count(harbour):
    ingest(harbour)

    def read() -> None:
        with harbour.open() as pipeline:
            for _ in range(5):
                pipeline.search("beacons", k=1)
            while pipeline.uses._waiting:  # another one was writing just then
                time.sleep(0.01)
                pipeline.uses.note([], pipeline.kv_store)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert uses(harbour) == {"beacons": 15}


def test_the_share_of_retrievals_that_found_kv_is_known(harbour):
    with harbour.open() as pipeline:
        pipeline.ingest([harbour.docs], kv=False)
    search(harbour, "beacons")
    ingest(harbour)
    search(harbour, "beacons", 3)
    with harbour.open() as pipeline:
        status = pipeline.status()
    assert (status.retrievals, status.retrievals_with_kv) == (4, 3)


def test_a_budget_is_filled_in_reading_order_and_what_is_left_out_is_said(harbour, size):
    result = ingest(harbour, kv_disk=4 * size)  # the engine's own entry is one
    assert with_kv(harbour) == {"anchors", "beacons", "capstans"}
    assert "the KV of 2 of 5 chunks does not fit into kv_disk" in result.notes[0]
    assert "raise kv_disk" in result.notes[0]


def test_what_is_retrieved_most_is_compiled_first(harbour, size):
    with harbour.open() as pipeline:
        pipeline.ingest([harbour.docs], kv=False)
    search(harbour, "ensigns", 2)
    search(harbour, "dories")
    ingest(harbour, kv_disk=4 * size)
    assert [piece.text.split()[2] for piece in harbour.engine.compiled] == [
        "ensigns,",
        "dories,",
        "anchors,",
    ]
    assert with_kv(harbour) == {"anchors", "dories", "ensigns"}


def test_the_next_ingest_swaps_what_nobody_retrieves_for_what_somebody_does(harbour, size):
    budget = {"kv_disk": 4 * size}
    ingest(harbour, **budget)
    search(harbour, "ensigns", **budget)
    search(harbour, "anchors", 2, **budget)
    search(harbour, "capstans", **budget)
    ingest(harbour, **budget)
    assert with_kv(harbour) == {"anchors", "capstans", "ensigns"}
    assert len(harbour.engine.compiled) == 4


def test_a_run_under_a_budget_undoes_nothing_and_loads_no_engine(harbour, size):
    budget = {"kv_disk": 4 * size}
    ingest(harbour, **budget)
    before = with_kv(harbour)
    harbour.engine.compiled.clear()
    for _ in range(2):
        result = ingest(harbour, **budget)
        assert result.kv_chunks == 0
        assert "does not fit" in result.notes[0]
    assert (harbour.engine.compiled, with_kv(harbour)) == ([], before)


def test_a_larger_budget_is_used(harbour, size):
    ingest(harbour, kv_disk=4 * size)
    ingest(harbour, kv_disk=5 * size)
    assert len(with_kv(harbour)) == 4
    ingest(harbour)
    assert len(with_kv(harbour)) == 5


class Answering:
    """What an engine does that lacks a chunk's KV when a question needs it: compute and store it."""

    def __init__(self, engine: Any) -> None:
        self.generate = engine.generate
        self.engine = engine

    def __call__(self, prompt: Any, **given: Any) -> Any:
        for piece in prompt.pieces:
            self.engine.put(self.engine.key_of(piece))
        return self.generate(prompt, **given)


def test_a_question_about_a_cold_chunk_evicts_no_hotter_one(harbour, size, monkeypatch):
    budget = {"kv_disk": 4 * size}
    ingest(harbour, **budget)
    for hot in ("anchors", "beacons", "capstans"):
        search(harbour, hot, 2, **budget)
    monkeypatch.setattr(harbour.engine, "generate", Answering(harbour.engine))
    with harbour.open(**budget) as pipeline:
        pipeline.ask("dories?", k=1)
        assert pipeline.kv_store.nbytes() <= budget["kv_disk"]
    assert with_kv(harbour) == {"anchors", "beacons", "capstans"}
    with harbour.open(**budget) as pipeline:
        pipeline.ask("dories?", k=1)
        pipeline.ask("dories?", k=1)  # now it is the most retrieved
    assert "dories" in with_kv(harbour) and len(with_kv(harbour)) == 3


def test_the_engines_own_entry_is_never_evicted(harbour, size):
    budget = {"kv_disk": 2 * size}
    ingest(harbour, **budget)
    (own,) = harbour.engine.own_keys()
    with harbour.open(**budget) as pipeline:
        for n in range(5):
            harbour.engine.put(f"{n:064x}")
        assert pipeline.kv_store.contains(own)
