"""KV before it is asked for: all, some documents, or what questions find."""

from __future__ import annotations

import pytest

from epicrag.errors import IndexEmptyError, UsageError
from epicrag.warm import warm


@pytest.fixture
def cold(bench):
    """Three documents without KV."""
    bench.write("returns.md", "Goods can be returned within 45 days of purchase.\n")
    bench.write("museum.txt", "The harbour museum opens at ten. Its door code is 4471.\n")
    bench.write("ferry.txt", "The ferry to the island leaves every hour from pier three.\n")
    bench.ingest(kv=False)
    assert not bench.kv_keys()
    return bench


def test_all_that_is_missing_is_computed_once(cold):
    with cold.open() as pipeline:
        done = warm(pipeline)
        assert (done.wanted, done.ready, done.run.kv_chunks) == (3, 3, 3)
        again = warm(pipeline)
    assert (again.ready, again.run.kv_chunks) == (3, 0)
    assert cold.ingest().kv_chunks == 0


def test_only_the_named_documents_are_computed(cold):
    with cold.open() as pipeline:
        done = warm(pipeline, ["*.txt"])
        assert (done.wanted, done.ready) == (2, 2)
    assert len(cold.kv_keys()) == 2


def test_top_bounds_how_many(cold):
    with cold.open() as pipeline:
        assert warm(pipeline, top=1).wanted == 1
    assert len(cold.kv_keys()) == 1


def test_only_what_questions_find_is_computed(cold, tmp_path):
    file = tmp_path / "questions.txt"
    file.write_text("When does the ferry leave the island?\n")
    with cold.open() as pipeline:
        done = warm(pipeline, questions=file, k=1)
    assert (done.wanted, done.ready) == (1, 1)
    assert [piece.text.startswith("The ferry") for piece in cold.engine.compiled] == [True]


def test_ctrl_c_keeps_what_was_computed(cold):
    cold.engine.interrupt_at = 1
    with cold.open() as pipeline:
        done = warm(pipeline)
        assert (done.run.interrupted, done.ready) == (True, 1)
        cold.engine.interrupt_at = None
        assert warm(pipeline).run.kv_chunks == 2


def test_evicted_kv_is_computed_again_under_a_budget(cold):
    with cold.open(kv_disk=1 << 20) as pipeline:
        warm(pipeline)
        for key in cold.kv_keys():
            pipeline.kv_store.delete(key)
        assert warm(pipeline).ready == 3


def test_a_name_that_means_nothing_and_an_empty_index_are_said(cold, tmp_path):
    with cold.open() as pipeline, pytest.raises(UsageError):
        warm(pipeline, ["nowhere.md"])
    with cold.open(index=tmp_path / "empty") as pipeline, pytest.raises(IndexEmptyError):
        warm(pipeline)
