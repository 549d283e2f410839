"""Documents by the names people give them, and out of the index."""

from __future__ import annotations

import os

import pytest

from epicrag.documents import UnconfirmedError, delete, document_id, listing
from epicrag.errors import UsageError


def paths(museum, *names):
    with museum.open() as pipeline:
        return [os.path.relpath(row.path, museum.docs) for row in listing(pipeline, names)]


def test_every_document_is_listed_with_what_is_there_of_it(museum):
    with museum.open() as pipeline:
        rows = listing(pipeline)
        sizes = pipeline.kv_store.sizes()
    assert [os.path.basename(row.path) for row in rows] == ["museum.txt", "returns.md", "ferry.txt"]
    assert all(row.chunks_with_kv == row.chunks == 1 for row in rows)
    assert sum(row.kv_bytes for row in rows) == sum(sizes.values()) - sizes.popitem()[1]
    assert rows[0].id == document_id(rows[0].path)


def test_a_name_is_a_path_a_folder_a_glob_an_end_or_an_id(museum, monkeypatch):
    monkeypatch.chdir(museum.docs)
    for name in ("museum.txt", "./museum.txt", str(museum.docs / "museum.txt"), "*seum.t?t"):
        assert paths(museum, name) == ["museum.txt"]
    assert paths(museum, "sub") == paths(museum, "ferry.txt") == ["sub/ferry.txt"]
    assert paths(museum, document_id(str(museum.docs / "sub/ferry.txt"))[:5]) == ["sub/ferry.txt"]
    assert paths(museum, "*.txt", "museum.txt") == ["museum.txt", "sub/ferry.txt"]


def test_a_name_that_means_nothing_is_told_with_a_near_one(museum):
    with pytest.raises(UsageError, match="no document") as told:
        paths(museum, "musem.txt")
    assert "museum.txt" in told.value.hint
    assert "epicrag list" in told.value.hint


@pytest.mark.parametrize(
    "name", ["a[1].md", "a&b#c%20.md", "line\nbreak.txt", " led and trailed .md", "é🚀.md"]
)
def test_odd_names_are_found_and_deleted_by_path_and_id(bench, name):
    path = str(bench.write(name, "Something about tides.\n"))
    bench.write("other.md", "Nothing of the kind here.\n")
    bench.ingest()
    with bench.open() as pipeline:
        assert listing(pipeline, [document_id(path)])[0].path == path
        assert delete(pipeline, [path], yes=True).paths == (path,)


def test_a_deleted_document_is_nowhere_and_its_file_stays(museum):
    keys = museum.kv_keys()
    path = museum.docs / "museum.txt"
    with museum.open() as pipeline:
        gone = delete(pipeline, ["museum.txt"])
        assert gone.left == (str(path),)
        assert (gone.chunks, gone.kv_files) == (1, 1)
        assert not any("4471" in chunk.text for _, chunk in pipeline.catalog.all_chunks())
        counts = pipeline.catalog.counts()
        assert counts.vectors == pipeline.vectors.count == counts.documents == 2
        assert not pipeline.catalog.database.rows(
            "SELECT 1 FROM words WHERE words MATCH 'body : 4471'"
        )
    assert len(museum.kv_keys()) == len(keys) - 1
    assert path.exists()
    assert museum.ingest().counts == {"added": 1, "unchanged": 2}


def test_kv_that_another_document_shares_stays(bench):
    for name in ("a.md", "b.md"):
        bench.write(name, "The same words in both.\n")
    bench.ingest()
    with bench.open() as pipeline:
        assert delete(pipeline, ["a.md"]).kv_files == 0
    assert len(bench.kv_keys()) == 1


def test_several_or_most_documents_need_a_yes(museum):
    with museum.open() as pipeline:
        for names in (["*.txt"], [str(museum.docs)], ["museum.txt", "returns.md"]):
            with pytest.raises(UnconfirmedError):
                delete(pipeline, names)
        assert len(delete(pipeline, ["*.txt"], dry_run=True).paths) == 2
        assert pipeline.catalog.counts().documents == 3
        assert len(delete(pipeline, ["*.txt"], yes=True).paths) == 2
        assert pipeline.catalog.counts().documents == 1


def test_the_only_document_needs_a_yes(bench):
    bench.write("only.md", "The only document.\n")
    bench.ingest()
    with bench.open() as pipeline:
        with pytest.raises(UnconfirmedError, match="1 of the 1 documents"):
            delete(pipeline, ["only.md"])
        assert delete(pipeline, ["only.md"], yes=True).chunks == 1


def test_a_delete_that_fails_midway_deletes_nothing(museum, monkeypatch):
    from epicrag.index import catalog as rooms

    def fails(connection):
        raise OSError("the power went")

    monkeypatch.setattr(rooms, "step", fails)
    with museum.open() as pipeline, pytest.raises(Exception, match="power"):
        delete(pipeline, ["*.txt"], yes=True)
    monkeypatch.undo()
    with museum.open() as pipeline:
        assert pipeline.catalog.counts().documents == 3
        assert pipeline.vectors.count == 3


def test_a_delete_that_was_killed_before_the_kv_went_is_finished_by_gc(museum, monkeypatch):
    from epicrag.gc import collect
    from epicrag.index.kvstore import KVStore

    monkeypatch.setattr(KVStore, "gc", lambda self, keep: 1 / 0)
    with museum.open() as pipeline, pytest.raises(ZeroDivisionError):
        delete(pipeline, ["museum.txt"])
    assert len(museum.kv_keys()) == 3
    with museum.open() as pipeline:
        assert [freed.files for freed in collect(pipeline) if "KV" in freed.what] == [1]
    assert len(museum.kv_keys()) == 2
