"""What is wrong is found, told with what mends it, and mended where that can do no harm."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import replace

import pytest

from epicrag import checkup
from epicrag.doctor import examine
from epicrag.errors import DamagedError, UsageError
from epicrag.index.lock import WriterLock
from epicrag.index.staging import Staging
from epicrag.pipeline import Pipeline


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch):
    """The machine is looked at by tests of its own: here it is the index."""
    monkeypatch.setattr(checkup, "machine", lambda config: iter(()))


def examined(bench, **options):
    return examine(lambda: bench.config, lambda config: bench.open(), **options)


def states(found, *wanted):
    return {c.name: c.state for c in found.checks if c.state != "ok" or c.name in wanted}


def test_a_sound_index_is_all_ok(museum):
    found = examined(museum, deep=True)
    assert states(found) == {}
    assert found.exit_code == 0
    told = {check.name: check.what for check in found.checks}
    assert "3 documents" in told["catalog"]
    assert told["vector copy"].startswith("3 vectors")
    assert "4471" in told["generation"]


def test_each_check_is_told_as_it_is_made(museum):
    seen = []
    found = examined(museum, look=seen.append)
    assert tuple(seen) == found.checks


def test_nothing_is_written_unless_asked(museum):
    def facts():
        return {
            path: (path.stat().st_size, path.stat().st_mtime_ns)
            for path in museum.config.index.rglob("*")
            if path.is_file() and not path.name.endswith(("-wal", "-shm"))
        }

    for file in (museum.config.index / "vectors").glob("*"):
        file.write_bytes(b"nonsense")
    museum.engine.put("0" * 64)
    before = facts()
    assert examined(museum).exit_code == 8
    assert facts() == before


def test_a_damaged_vector_copy_is_found_and_mended(museum):
    for file in (museum.config.index / "vectors").glob("*"):
        file.write_bytes(b"nonsense")
    found = examined(museum)
    assert states(found) == {"vector copy": "fail"}
    assert found.exit_code == 8
    mended = examined(museum, fix=True)
    assert states(mended) == {}
    assert "3 vectors" in mended.fixed[0]
    assert "4471" in museum.found("museum door code")


def test_words_that_were_lost_are_found_and_mended(museum):
    with museum.open() as pipeline:
        pipeline.catalog.database.rows("DELETE FROM words WHERE rowid = 1")
    assert states(examined(museum)) == {"words": "fail"}
    assert states(examined(museum, fix=True)) == {}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE words SET body = 'nonsense'",
        "DELETE FROM words_data WHERE id > 10",
        "DROP TRIGGER words_insert",
        "DROP TABLE words",
    ],
)
def test_words_that_are_wrong_or_broken_are_found_and_made_again(museum, damage):
    with museum.open() as pipeline, pipeline.catalog.database.writing() as connection:
        connection.execute(damage)
    assert states(examined(museum)).get("words") == "fail"
    assert states(examined(museum, fix=True)) == {}
    museum.write("new.txt", "the lighthouse keeper sleeps at noon")
    museum.ingest()
    with museum.open(search_mode="words") as pipeline:
        assert "lighthouse" in pipeline.search("lighthouse")[0].chunk.text


def test_a_check_that_stumbles_over_damage_is_a_failure_and_no_crash(museum):
    with museum.open() as pipeline, pipeline.catalog.database.writing() as connection:
        connection.execute("UPDATE documents SET meta = 'no JSON'")
    assert examined(museum).exit_code == 8


def test_damaged_kv_is_found_dropped_and_computed_again(museum):
    with museum.open() as pipeline:
        key = min(pipeline.catalog.kv_keys())
        file = pipeline.kv_store.file(key)
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    found = examined(museum)
    assert states(found) == {"KV files": "fail"}
    assert found.exit_code == 8
    mended = examined(museum, fix=True)
    assert not file.exists()
    assert states(mended) == {"KV": "warn"}  # one chunk is without: `warm` is the way
    assert mended.exit_code == 0
    assert museum.ingest().kv_chunks == 1
    assert states(examined(museum)) == {}


def test_deep_looks_at_every_kv_file(museum, monkeypatch):
    from epicrag import soundness

    monkeypatch.setattr(soundness, "SAMPLE", 0)
    with museum.open() as pipeline:
        file = pipeline.kv_store.file(min(pipeline.catalog.kv_keys()))
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    assert examined(museum).exit_code == 0
    assert examined(museum, deep=True).exit_code == 8


def test_kv_of_another_model_is_reported_as_foreign(museum):
    """The models have equal shapes: only their fingerprints tell them apart."""
    museum.engine.fingerprint, museum.engine.profile = "lm-2", "profile-2"
    with museum.open():
        museum.engine.put(museum.engine.key_of(type("Piece", (), {"text": "x"})))
    found = examined(museum)
    assert states(found) == {"foreign KV": "warn", "model of the KV": "warn"}
    told = next(check for check in found.checks if check.name == "model of the KV")
    assert "lm-1" in told.what
    assert "lm-2" in told.what
    assert "epicrag warm" in told.fix
    assert states(examined(museum, fix=True)) == {"model of the KV": "warn"}


def test_notes_of_kv_that_were_lost_are_made_again_and_no_kv_goes(museum):
    before = museum.kv_keys()
    with museum.open() as pipeline:
        pipeline.catalog.clear_kv()
        museum.engine.put("0" * 64)
    assert states(examined(museum)) == {"KV": "warn", "foreign KV": "warn"}
    assert states(examined(museum, fix=True)) == {}
    assert museum.kv_keys() == before


def test_after_an_answer_over_an_index_without_kv_all_agree(bench):
    """`ingest --no-kv`, then `ask`: what was computed has a model, and nothing says that there is none."""
    bench.write("museum.txt", "The harbour museum opens at ten. Its door code is 4471.\n")
    bench.ingest(kv=False)
    with bench.open() as pipeline:
        piece = pipeline.prompt("?", pipeline.search("museum")).pieces[0]
        lacking = {0: 7}
        bench.engine.lacking = lambda *_, **__: lacking
        stream = pipeline.stream("What is the museum's door code?", policy="none")
        bench.engine.put(bench.engine.key_of(piece))
        stream.finish()
        status = pipeline.status()
    assert (status.model, status.compile, status.kv_dtype) == ("stub-lm", "isolated", "float32")
    assert (status.chunks_with_kv, status.kv_bytes_per_token) == (1, 8)
    found = examined(bench)
    assert states(found) == {}
    assert next(c.what for c in found.checks if c.name == "model of the KV").startswith("stub-lm")


def test_another_embedder_is_a_mismatch_with_the_way_out(museum):
    museum.embedder = replace(museum.embedder, name="other", fingerprint="o", dim=16)
    found = examined(museum)
    assert found.exit_code == 6
    (bad,) = [check for check in found.checks if check.state == "fail"]
    assert "stub" in bad.what
    assert "epicrag rebuild --embed-only --embed-model other" in bad.fix


def test_damage_outranks_a_mismatch(museum):
    museum.embedder = replace(museum.embedder, fingerprint="o")
    for file in (museum.config.index / "vectors").glob("*"):
        file.write_bytes(b"nonsense")
    assert examined(museum).exit_code == 8


def test_vectors_that_no_longer_fit_their_texts_are_found(museum):
    with museum.open() as pipeline:
        rows = pipeline.catalog.database.rows("SELECT id, data FROM vectors ORDER BY id")
        for (vector_id, _), (_, data) in zip(rows, rows[1:] + rows[:1], strict=True):
            with pipeline.catalog.database.writing() as connection:
                connection.execute("UPDATE vectors SET data = ? WHERE id = ?", (data, vector_id))
    assert states(examined(museum)) == {"round trip": "fail"}


def test_text_that_changed_on_disk_is_damage_and_reading_its_file_again_mends_it(museum):
    with sqlite3.connect(museum.config.index / "catalog.sqlite") as connection:
        connection.execute("UPDATE chunks SET text = replace(text, '4471', '1234')")
    connection.close()
    found = examined(museum)
    assert (found.exit_code, states(found)) == (8, {"texts": "fail"})
    file = museum.docs / "museum.txt"
    (told,) = [check for check in found.checks if check.state == "fail"]
    assert "has changed" in told.what and told.fix.endswith(f"epicrag ingest {file}")
    with pytest.raises(DamagedError) as damage:
        museum.found("museum door code")
    assert damage.value.hint.endswith(f"epicrag ingest {file}")
    before = museum.kv_keys()
    museum.engine.compiled.clear(), museum.embedder.embedded.clear()
    (report,) = museum.ingest(file).files
    assert report.status == "changed" and "damaged" in report.reason
    assert states(examined(museum)) == {}
    assert (museum.kv_keys(), museum.engine.compiled) == (before, [])
    assert "4471" in museum.found("museum door code")


def test_a_catalog_that_is_none_is_damage(museum):
    (museum.config.index / "catalog.sqlite").write_bytes(b"nonsense" * 1000)
    found = examined(museum)
    assert (states(found), found.exit_code) == ({"index": "fail"}, 8)


def test_rows_that_refer_to_nothing_are_damage(museum):
    connection = sqlite3.connect(museum.config.index / "catalog.sqlite")
    connection.execute("UPDATE kv SET chunk_row = 99 WHERE chunk_row = 1")
    connection.commit()
    connection.close()
    found = examined(museum)
    assert (states(found)["catalog"], found.exit_code) == ("fail", 8)


def test_orphans_leftovers_and_an_unfinished_rebuild_are_warnings_and_go(museum):
    old = museum.config.index / "kv" / "ab" / "x.tmp"
    old.parent.mkdir(exist_ok=True)
    old.write_bytes(b"x")
    os.utime(old, (time.time() - 3600,) * 2)
    with museum.open() as pipeline:
        museum.engine.put("0" * 64)
        Staging(pipeline.catalog).begin(replace(museum.embedder, fingerprint="o"))
    found = examined(museum)
    assert states(found) == {"foreign KV": "warn", "leftovers": "warn", "rebuild": "warn"}
    assert found.exit_code == 0
    assert states(examined(museum, fix=True)) == {}


def test_files_that_are_gone_are_told_and_a_lost_disk_is_suspected(museum):
    (museum.docs / "museum.txt").unlink()
    (told,) = [check for check in examined(museum).checks if check.state == "warn"]
    assert "museum.txt" in told.what
    assert told.fix.endswith(f"epicrag ingest {museum.docs}")
    museum.docs.rename(museum.docs.with_name("away"))
    (told,) = [check for check in examined(museum).checks if check.state == "warn"]
    assert "mounted" in told.fix


def test_a_named_folder_that_is_gone_is_not_to_be_ingested(museum):
    museum.ingest(museum.docs / "sub")
    (museum.docs / "sub").rename(museum.docs / "away")
    (told,) = [check for check in examined(museum).checks if check.state == "warn"]
    assert f"is the disk of {museum.docs / 'sub'} mounted?" in told.fix
    assert "epicrag ingest" not in told.fix


def test_what_stands_in_an_archive_or_on_the_web_is_not_missed(museum):
    import zipfile

    with zipfile.ZipFile(museum.docs / "old.zip", "w") as file:
        file.writestr("inner/note.txt", "A note within an archive, on the tides.\n")
    assert museum.ingest().counts["added"] == 1
    with museum.open() as pipeline:
        museum_path = str(museum.docs / "museum.txt")
        pipeline.catalog.rename_documents([(museum_path, "https://museum.example/hours")])
    assert states(examined(museum)) == {}


def test_somebody_who_writes_is_named(museum):
    assert states(examined(museum), "writer") == {"writer": "ok"}
    with WriterLock(museum.config.index):
        (told,) = [check for check in examined(museum).checks if check.state == "warn"]
    assert str(os.getpid()) in told.what


def test_more_kv_than_the_budget_is_a_warning(museum):
    museum.config = replace(museum.config, kv_disk=1)
    assert states(examined(museum)) == {"KV": "warn"}


def test_an_index_that_is_not_there_is_no_failure(bench):
    def open_(config):
        return Pipeline.open(config)

    found = examine(lambda: bench.config, open_)
    assert (states(found), found.exit_code) == ({"index": "warn"}, 0)


def test_settings_that_cannot_be_used_are_the_end_of_it(bench):
    def load():
        raise UsageError("Unknown key 'x'.", "Did you mean y?")

    found = examine(load, lambda config: bench.open())
    assert (states(found), found.exit_code) == ({"settings": "fail"}, 2)


def test_after_a_crash_between_vectors_and_catalog_the_counts_are_equal(museum, monkeypatch):
    """The fast copy is written after the catalog: whichever the crash lost, opening makes them equal."""
    from epicrag.index.vectors import VectorIndex

    museum.write("new.md", "A note that the crash came after.\n")
    with monkeypatch.context() as crash, pytest.raises(ZeroDivisionError):
        crash.setattr(VectorIndex, "refresh", lambda self, **options: 1 / 0)
        museum.ingest()
    found = examined(museum)
    assert found.exit_code == 0
    with museum.open() as pipeline:
        assert pipeline.vectors.count == pipeline.catalog.counts().vectors == 4
    museum.ingest()
    assert states(examined(museum)) == {}
