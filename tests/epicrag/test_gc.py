"""What nothing refers to goes; all else stays."""

from __future__ import annotations

import os
import time

from epicrag.gc import collect
from epicrag.index.staging import Staging


def freed(museum, **options):
    with museum.open() as pipeline:
        return {one.what: one for one in collect(pipeline, **options)}


def test_a_tidy_index_has_nothing_to_free(museum):
    assert freed(museum) == {}


def test_kv_of_no_passage_goes_and_that_of_passages_stays(museum):
    keys = museum.kv_keys()
    with museum.open():
        museum.engine.put("0" * 64)
    assert freed(museum, dry_run=True)["KV of no passage"].files == 1
    assert museum.kv_keys() == keys | {"0" * 64}
    found = freed(museum)["KV of no passage"]
    assert (found.files, museum.kv_keys()) == (1, keys)
    assert found.bytes > 0


def test_an_edited_file_leaves_no_kv_of_its_old_text(museum):
    old = museum.kv_keys()
    museum.write("museum.txt", "The harbour museum opens at ten. Its door code is 8820.\n")
    museum.ingest(kv=False)  # which ends with a collection of its own
    assert freed(museum) == {}
    assert len(museum.kv_keys() & old) == 2


def test_a_budget_that_was_lowered_holds_afterwards(museum):
    with museum.open() as pipeline:
        held = pipeline.kv_store.nbytes()
        size = max(pipeline.kv_store.sizes().values())
    with museum.open(kv_disk=held - 1) as pipeline:
        (told,) = collect(pipeline, dry_run=True)
        assert (told.what, told.bytes) == ("KV beyond the budget kv_disk", 1)
        assert pipeline.kv_store.nbytes() == held
        (done,) = collect(pipeline)
        assert (done.files, done.bytes) == (1, held - pipeline.kv_store.nbytes())
        assert held - size <= pipeline.kv_store.nbytes() < held
        assert collect(pipeline) == []


def test_leftovers_of_killed_runs_go_when_they_are_old(museum):
    folder = museum.config.index
    new, old = folder / "kv" / "ab" / "x.1.tmp", folder / "y.2.tmp"
    for file in (new, old):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 10)
    os.utime(old, (time.time() - 3600,) * 2)
    assert freed(museum)["temporary files of killed runs"].bytes == 10
    assert (new.exists(), old.exists()) == (True, False)


def test_an_embedding_that_was_not_finished_goes(museum):
    with museum.open() as pipeline:
        staging = Staging(pipeline.catalog)
        museum.embedder.fingerprint = "other"
        staging.begin(museum.embedder)
        rows = staging.missing(2)
        staging.add(rows, museum.embedder.passages(["a", "b"]))
        assert [one.files for one in collect(pipeline, dry_run=True)] == [2]
        assert staging.count == 2
        collect(pipeline)
        assert staging.embedder is None


def test_deleted_text_is_not_in_the_file_any_more(museum):
    with museum.open() as pipeline:
        secret = "xylophone " * 3000
        path = museum.write("secret.txt", secret)
        pipeline.ingest([path], kv=False)
        pipeline.catalog.delete_document(str(path))
        assert "empty pages of the catalog" in {one.what for one in collect(pipeline)}
    assert b"xylophone" not in (museum.config.index / "catalog.sqlite").read_bytes()
