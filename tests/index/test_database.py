"""Whatever stands where the catalog should be, and whatever the disk does, is told in plain words."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from epicrag.errors import (
    DamagedError,
    DeviceError,
    EpicragError,
    IndexEmptyError,
    LockedError,
    MismatchError,
)
from epicrag.index import database, migrations
from epicrag.index.catalog import FILE_NAME, Catalog


def test_no_index_says_what_to_run(tmp_path):
    with pytest.raises(IndexEmptyError) as caught:
        Catalog.open(tmp_path / "none")
    assert "epicrag ingest" in caught.value.hint
    assert not (tmp_path / "none").exists()


def test_index_killed_at_birth_is_no_index_and_can_be_made(tmp_path):
    (tmp_path / FILE_NAME).touch()
    with pytest.raises(IndexEmptyError):
        Catalog.open(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    with pytest.raises(IndexEmptyError):
        Catalog.open(tmp_path)
    with Catalog.open(tmp_path, create=True) as catalog:
        assert catalog.documents() == []


@pytest.mark.parametrize(
    "garbage", [b"garbage", b"\x00" * 5000, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_garbage_is_damage_that_names_the_file_and_the_way_out(tmp_path, garbage):
    (tmp_path / FILE_NAME).write_bytes(garbage)
    for create in (False, True):
        with pytest.raises(DamagedError) as caught:
            Catalog.open(tmp_path, create=create)
        assert str(tmp_path / FILE_NAME) in caught.value.message
        assert "move" in caught.value.hint and "ingest" in caught.value.hint
    assert (tmp_path / FILE_NAME).read_bytes() == garbage


def test_truncated_catalog_is_damage(catalog, put, tmp_path):
    for i in range(20):
        put(catalog, f"/d/{i}", "words" * 240)
    catalog.close()
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DamagedError):
        Catalog.open(tmp_path)


def test_torn_pages_are_damage_at_latest_when_they_are_read(catalog, put, tmp_path, monkeypatch):
    for i in range(50):
        put(catalog, f"/d/{i}", "words" * 240)
    catalog.close()
    file = tmp_path / FILE_NAME
    raw = bytearray(file.read_bytes())
    raw[8192:] = b"\xa5" * (len(raw) - 8192)
    file.write_bytes(raw)
    with pytest.raises(DamagedError):
        Catalog.open(tmp_path)
    monkeypatch.setattr(database, "_QUICK_CHECK_BYTES", 0)  # as for a large index
    with pytest.raises(DamagedError), Catalog.open(tmp_path) as again:
        list(again.all_chunks())


def test_catalog_that_lost_a_table_is_damage(catalog, tmp_path):
    catalog.close()
    for table in ("vectors", "migrations"):
        connection = sqlite3.connect(tmp_path / FILE_NAME)
        connection.execute(f"DROP TABLE {table}")
        connection.close()
        with pytest.raises(DamagedError, match="no such table"), Catalog.open(tmp_path) as again:
            again.counts()


def test_error_of_the_caller_within_a_snapshot_is_left_as_it_is(catalog):
    with pytest.raises(FileNotFoundError), catalog.snapshot():
        raise FileNotFoundError("theirs")
    catalog.set_setting("x", "1")


def test_many_processes_may_make_the_index_at_once(tmp_path):
    script = (
        "import sys; from pathlib import Path; from epicrag.index.catalog import Catalog;"
        "Catalog.open(Path(sys.argv[1]), create=True).close()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait() for process in running] == [0] * 3
    with Catalog.open(tmp_path) as catalog:
        assert catalog.counts().documents == 0


def test_someone_elses_database_is_refused_and_left_alone(tmp_path):
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(DamagedError, match="not a catalog"):
        Catalog.open(tmp_path, create=True)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_index_of_a_newer_version_is_refused(catalog, tmp_path):
    catalog.close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("INSERT INTO migrations VALUES (99, '0099_future')")
    connection.commit()
    connection.close()
    with pytest.raises(MismatchError, match="0099_future") as caught:
        Catalog.open(tmp_path)
    assert "update epicrag" in caught.value.hint


def test_missing_steps_are_applied_in_order_and_once(catalog, put, tmp_path, monkeypatch):
    put(catalog, "/d/a.md", "kept")
    catalog.close()
    later = migrations.Migration("9999_note", "CREATE TABLE note (x); INSERT INTO note VALUES (7);")
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, later))
    for _ in range(2):
        with Catalog.open(tmp_path) as again:
            assert again.chunks("/d/a.md")[0][1].text == "kept"
            assert again._rows("SELECT x FROM note") == [(7,)]
            names = [name for (name,) in again._rows("SELECT name FROM migrations ORDER BY step")]
    assert names[0] == "0001_catalog" and names[-1] == "9999_note" and len(set(names)) == len(names)


def test_failed_migration_leaves_the_schema_before_it(catalog, tmp_path, monkeypatch):
    catalog.close()
    broken = migrations.Migration(
        "9999_broken", "CREATE TABLE note (x); CREATE TABLE documents (x);"
    )
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, broken))
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            Catalog.open(tmp_path)
    with Catalog.open(tmp_path) as again:
        assert again._rows("SELECT name FROM sqlite_master WHERE name = 'note'") == []


def test_full_disk_is_said_and_the_prior_index_is_intact(catalog, put):
    put(catalog, "/d/a.md", "old")
    (pages,) = catalog._rows("PRAGMA page_count")[0]
    catalog._rows(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DeviceError, match="disk is full"):
        put(catalog, "/d/a.md", "new" * 30000)
    assert catalog.chunks("/d/a.md")[0][1].text == "old"
    put(catalog, "/d/a.md", "new")
    assert catalog.chunks("/d/a.md")[0][1].text == "new"


def test_read_only_folder_answers_and_refuses_to_change(catalog, put, tmp_path, read_only):
    put(catalog, "/d/a.md", "old")
    catalog.close()
    folder = read_only(tmp_path)
    with Catalog.open(folder) as frozen:
        assert frozen.chunks("/d/a.md")[0][1].text == "old"
        with pytest.raises(EpicragError, match="cannot be used") as caught:
            put(frozen, "/d/a.md", "new")
        assert "written to" in caught.value.hint
        assert frozen.chunks("/d/a.md")[0][1].text == "old"


def test_index_cannot_be_made_in_a_read_only_folder(tmp_path, read_only):
    (tmp_path / "empty").mkdir()
    folder = read_only(tmp_path / "empty")
    for place in (folder, folder / "below"):
        with pytest.raises(EpicragError, match="cannot be used"):
            Catalog.open(place, create=True)


def test_folder_that_is_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    for create in (False, True):
        with pytest.raises(EpicragError):
            Catalog.open(tmp_path / "file", create=create)


def test_second_writer_waits_and_then_is_told(catalog, put, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.1)
    with Catalog.open(tmp_path) as other, catalog._database.writing():
        with pytest.raises(LockedError, match="another process"):
            put(other, "/d/a.md", "text")
        assert other.documents() == []  # reading never waits
    monkeypatch.setattr(database, "_BUSY_SECONDS", 5.0)
    with Catalog.open(tmp_path) as other:
        held = threading.Event()

        def hold():
            with catalog._database.writing():
                held.set()
                time.sleep(0.1)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        put(other, "/d/a.md", "text")
        thread.join()
        assert len(other.documents()) == 1


def test_folder_of_any_name_can_hold_an_index(tmp_path):
    folder = tmp_path / "a?b#c%20 é\udcff"
    with Catalog.open(folder, create=True) as catalog:
        catalog.set_setting("x", "1")
    assert (folder / FILE_NAME).exists()
    with Catalog.open(folder) as catalog:
        assert catalog.setting("x") == "1"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_written_to_a_file_that_was_removed(tmp_path, is_replaced):
    file = tmp_path / "index" / "catalog.sqlite"
    opened = database.Database.open(file, create=True)
    shutil.rmtree(file.parent)
    if is_replaced:
        database.Database.open(file, create=True).close()
    with pytest.raises(IndexEmptyError, match="removed or replaced"), opened.writing():
        pass
    opened.close()


def test_a_second_connection_leaves_the_locks_of_the_first(tmp_path):
    """Else a writer of another process would believe it is alone, and take the log away from both."""
    write = (
        "import sys; from pathlib import Path; from epicrag.index.catalog import Catalog\n"
        "with Catalog.open(Path(sys.argv[1])) as catalog: catalog.set_setting('word', sys.argv[2])"
    )
    with Catalog.open(tmp_path, create=True) as first, Catalog.open(tmp_path) as second:
        for word in ("one", "two"):
            subprocess.run([sys.executable, "-c", write, str(tmp_path), word], check=True)
            assert (tmp_path / "catalog.sqlite-wal").exists()
            assert first.setting("word") == second.setting("word") == word
        second.set_setting("word", "three")
        assert first.setting("word") == "three"
