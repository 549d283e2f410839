"""The catalog gives back what was put, changes whole or not at all, and never mixes states."""

from __future__ import annotations

import dataclasses
import shutil
import threading

import numpy as np
import pytest

from epicrag.errors import DamagedError
from epicrag.index.catalog import Catalog, Counts


def unit(*rows):
    array = np.array(rows, np.float32)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def texts(catalog, path):
    return [chunk.text for _, chunk in catalog.chunks(path)]


def test_chunks_come_back_as_they_were_put(catalog, make, put):
    rows = put(catalog, "/d/a.md", "one ", "two\u0000 ", "三 🚀")
    assert [row for row, _ in catalog.chunks("/d/a.md")] == rows
    assert [chunk for _, chunk in catalog.chunks("/d/a.md")] == make(
        "/d/a.md", "one ", "two\u0000 ", "三 🚀"
    )[1]
    assert catalog.chunk(rows[1]) == catalog.chunks("/d/a.md")[1][1]


def test_chunks_without_place_or_title_come_back(catalog, make):
    document, (chunk,) = make("/d/a.md", "text")
    bare = dataclasses.replace(chunk, place=dataclasses.replace(chunk.place, page=None, lines=None))
    (row,) = catalog.put_document(document, [bare], [unit([1, 0])])
    assert catalog.chunk(row) == bare


def test_catalog_survives_closing(catalog, put, tmp_path):
    put(catalog, "/d/a.md", "one ", "two")
    catalog.set_setting("x", "é")
    generation = catalog.generation
    catalog.close()
    with Catalog.open(tmp_path) as again:
        assert texts(again, "/d/a.md") == ["one ", "two"]
        assert (again.setting("x"), again.generation) == ("é", generation)


@pytest.mark.parametrize(
    "name", ["bad\udcff.txt", "new\nline", "e\u0301", "é", "a&b#c%20.md ", "🚀" * 60]
)
def test_any_file_name_is_a_path(catalog, put, name):
    put(catalog, f"/d/{name}", "text")
    assert [row.path for row in catalog.documents()] == [f"/d/{name}"]
    assert catalog.document(f"/d/{name}").chunks == 1
    catalog.delete_document(f"/d/{name}")
    assert catalog.documents() == []


def test_document_tells_its_size(catalog, put):
    put(catalog, "/d/a.md", "one two ", "three")
    row = catalog.document("/d/a.md")
    assert (row.chunks, row.tokens, row.media) == (2, 3, "text/plain")
    assert catalog.documents() == [row]
    assert catalog.document("/d/b.md") is None
    assert catalog.counts() == Counts(documents=1, chunks=2, tokens=3, vectors=2)


def test_document_without_chunks_is_known(catalog, make):
    document, _ = make("/d/empty.md")
    assert catalog.put_document(document, [], []) == []
    assert catalog.document("/d/empty.md").chunks == 0


def test_edited_file_keeps_no_old_chunk_vector_or_kv(catalog, put):
    rows = put(catalog, "/d/a.md", "code is 4471 ", "more")
    catalog.set_kv([(rows[0], "aa")])
    put(catalog, "/d/a.md", "code is 8820")
    assert texts(catalog, "/d/a.md") == ["code is 8820"]
    assert catalog.counts() == Counts(1, 1, 3, 1)
    assert catalog.kv_keys() == set()
    with pytest.raises(KeyError):
        catalog.chunk(rows[0])


def test_deleted_file_leaves_nothing(catalog, put):
    rows = put(catalog, "/d/a.md", "code is 4471")
    catalog.set_kv([(rows[0], "aa")])
    catalog.delete_document("/d/a.md")
    assert catalog.counts() == Counts(0, 0, 0, 0)
    assert catalog.kv_keys() == set()
    assert len(catalog.vectors().ids) == 0


def test_deleting_an_unknown_file_changes_nothing(catalog):
    generation = catalog.generation
    catalog.delete_document("/d/none.md")
    assert catalog.generation == generation


def test_same_name_in_two_folders_is_two_documents(catalog, put):
    put(catalog, "/x/readme.md", "red")
    put(catalog, "/y/readme.md", "blue")
    assert (texts(catalog, "/x/readme.md"), texts(catalog, "/y/readme.md")) == (["red"], ["blue"])


def test_same_text_in_two_files_is_two_documents_and_one_id(catalog, put):
    (one,) = put(catalog, "/d/a.md", "same")
    (two,) = put(catalog, "/d/b.md", "same")
    assert one != two
    assert catalog.chunk(one).id == catalog.chunk(two).id
    catalog.delete_document("/d/a.md")
    assert catalog.chunk(two).text == "same"


def test_renaming_keeps_rows_vectors_and_kv(catalog, put):
    rows = put(catalog, "/d/a.md", "one ", "two")
    catalog.set_kv([(rows[0], "aa")])
    ids = catalog.vectors().ids.tolist()
    catalog.rename_documents([("/d/a.md", "/e/b.md")])
    assert catalog.document("/d/a.md") is None
    assert [row for row, _ in catalog.chunks("/e/b.md")] == rows
    assert catalog.chunk(rows[0]).document == "/e/b.md"
    assert (catalog.kv_key(rows[0]), catalog.vectors().ids.tolist()) == ("aa", ids)


def test_renaming_refuses_what_is_unknown(catalog, put):
    put(catalog, "/d/a.md", "one")
    with pytest.raises(KeyError):
        catalog.rename_documents([("/d/a.md", "/d/b.md"), ("/d/c.md", "/d/e.md")])
    assert [row.path for row in catalog.documents()] == ["/d/a.md"]


def test_previous_is_the_passage_before_in_the_same_document(catalog, put):
    rows = put(catalog, "/d/a.md", "one ", "two ", "three")
    others = put(catalog, "/d/b.md", "four")
    assert [catalog.previous(row) and catalog.previous(row).text for row in rows] == [
        None,
        "one ",
        "two ",
    ]
    assert catalog.previous(others[0]) is None


def test_previous_passes_over_a_gap_in_the_ordinals(catalog, make):
    document, chunks = make("/d/a.md", "one ", "skipped ", "three")
    rows = catalog.put_document(document, [chunks[0], chunks[2]], [unit([1, 0])] * 2)
    assert catalog.previous(rows[1]).text == "one "


def test_all_chunks_go_by_document_in_reading_order(catalog, put):
    put(catalog, "/d/b.md", "3 ", "4")
    put(catalog, "/d/a.md", "1 ", "2")
    assert [chunk.text for _, chunk in catalog.all_chunks()] == ["1 ", "2", "3 ", "4"]


def test_vectors_come_back_by_id_with_their_chunks(catalog, make):
    document, chunks = make("/d/a.md", "one ", "two")
    windows = [unit([1, 0], [1, 1]), unit([0, 1])]
    one, two = catalog.put_document(document, chunks, windows)
    ids, rows, data = catalog.vectors()
    assert (ids.tolist(), rows.tolist()) == ([1, 2, 3], [one, one, two])
    np.testing.assert_array_equal(data, np.concatenate(windows))
    assert catalog.vectors(after=2).ids.tolist() == [3]


def test_vector_ids_and_rows_are_never_reused(catalog, put):
    used_rows = set(put(catalog, "/d/a.md", "one ", "two"))
    used_ids = set(catalog.vectors().ids.tolist())
    catalog.delete_document("/d/a.md")
    assert not used_rows & set(put(catalog, "/d/b.md", "three"))
    assert not used_ids & set(catalog.vectors().ids.tolist())


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, 3.0])
def test_vector_that_is_not_finite_and_unit_never_enters(catalog, make, put, bad):
    put(catalog, "/d/a.md", "old")
    before = (catalog.counts(), catalog.stamp)
    document, chunks = make("/d/a.md", "fine ", "bad")
    with pytest.raises(ValueError, match="unit length"):
        catalog.put_document(document, chunks, [unit([1, 0]), np.array([[bad, 0]], np.float32)])
    assert (catalog.counts(), catalog.stamp) == before
    assert texts(catalog, "/d/a.md") == ["old"]


def test_chunk_without_a_vector_is_kept_for_its_neighbours(catalog, make):
    document, chunks = make("/d/a.md", "one ", "\u200b\u200b", "three")
    none = np.zeros((0, 2), np.float32)
    rows = catalog.put_document(document, chunks, [unit([1, 0]), none, unit([0, 1])])
    assert catalog.previous(rows[2]).text == "\u200b\u200b"
    assert catalog.vectors().chunk_rows.tolist() == [rows[0], rows[2]]


def test_vectors_of_two_dimensions_are_refused(catalog, make, put):
    put(catalog, "/d/a.md", "old")
    with pytest.raises(ValueError, match="different dimensions"):
        catalog.put_document(*make("/d/b.md", "new"), [unit([1, 0])])
    with pytest.raises(ValueError, match="2 chunks but 1"):
        catalog.put_document(*make("/d/b.md", "new ", "newer"), [unit([1, 0])])


def test_failed_write_keeps_the_old_version_and_a_retry_works(catalog, make, put):
    put(catalog, "/d/a.md", "v1")
    document, (chunk,) = make("/d/a.md", "v2")
    twice = [chunk, chunk]  # the same ordinal again: fails in the midst of the transaction
    with pytest.raises(Exception, match="UNIQUE"):
        catalog.put_document(document, twice, [np.eye(64, dtype=np.float32)[:1]] * 2)
    assert texts(catalog, "/d/a.md") == ["v1"]
    put(catalog, "/d/a.md", "v2")
    assert texts(catalog, "/d/a.md") == ["v2"]


def test_generation_and_stamp_move_with_documents_only(catalog, put):
    states = [(catalog.generation, catalog.stamp)]
    (row,) = put(catalog, "/d/a.md", "one")
    states.append((catalog.generation, catalog.stamp))
    catalog.rename_documents([("/d/a.md", "/d/b.md")])
    states.append((catalog.generation, catalog.stamp))
    catalog.set_setting("x", "1")
    catalog.set_kv([(row, "aa")])
    assert (catalog.generation, catalog.stamp) == states[-1]
    catalog.delete_document("/d/b.md")
    states.append((catalog.generation, catalog.stamp))
    assert [generation for generation, _ in states] == [0, 1, 2, 3]
    assert len({stamp for _, stamp in states}) == 4


def test_latest_kv_key_of_a_chunk_counts(catalog, put):
    one, two = put(catalog, "/d/a.md", "one ", "two")
    catalog.set_kv([(one, "aa"), (two, "bb")])
    catalog.set_kv([(one, "cc"), (999, "dd")])  # a chunk that is gone meanwhile
    assert (catalog.kv_key(one), catalog.kv_key(two), catalog.kv_key(999)) == ("cc", "bb", None)
    assert catalog.kv_keys() == {"bb", "cc"}


def test_reader_sees_old_or_new_and_never_both(catalog, put, tmp_path):
    put(catalog, "/d/a.md", *["version 0 "] * 8)
    stop = threading.Event()

    def write():
        with Catalog.open(tmp_path) as writer:
            for version in range(1, 60):
                put(writer, "/d/a.md", *[f"version {version} "] * 8)
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = []
    while not stop.is_set():
        with catalog.snapshot():
            chunks = catalog.chunks("/d/a.md")
            assert [catalog.chunk(row) for row, _ in chunks] == [chunk for _, chunk in chunks]
            assert len(catalog.vectors().ids) == 8
        assert len({chunk.text for _, chunk in chunks}) == 1
        seen.append(int(chunks[0][1].text.split()[1]))
    thread.join()
    assert seen == sorted(seen)
    assert texts(catalog, "/d/a.md") == ["version 59 "] * 8


def test_one_catalog_serves_several_threads(catalog, put):
    put(catalog, "/d/a.md", "one ", "two")
    found = []

    def read():
        found.extend(texts(catalog, "/d/a.md") for _ in range(20))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["one ", "two"]] * 80


def test_text_that_changed_on_disk_is_damage_and_not_an_answer(catalog, put, tmp_path):
    put(catalog, "/d/a.md", "the code is 4471")
    catalog.close()
    file = tmp_path / "catalog.sqlite"
    file.write_bytes(file.read_bytes().replace(b"4471", b"9999"))
    with Catalog.open(tmp_path) as again, pytest.raises(DamagedError, match="has changed"):
        again.chunks("/d/a.md")


def test_vector_that_changed_on_disk_is_damage(catalog, make, tmp_path):
    marker = np.full((1, 4), 0.5, np.float32)
    catalog.put_document(*make("/d/a.md", "text"), [marker])
    catalog.close()
    file = tmp_path / "catalog.sqlite"
    nan = np.full((1, 4), np.nan, np.float32)
    file.write_bytes(file.read_bytes().replace(marker.tobytes(), nan.tobytes()))
    with Catalog.open(tmp_path) as again, pytest.raises(DamagedError, match="unit length"):
        again.vectors()


def test_copy_of_the_folder_is_the_same_index(catalog, put, tmp_path):
    put(catalog, "/d/a.md", "one")
    stamp = catalog.stamp
    catalog.close()
    shutil.copytree(tmp_path, tmp_path / "copy")
    with Catalog.open(tmp_path / "copy") as copy:
        assert (texts(copy, "/d/a.md"), copy.stamp) == (["one"], stamp)


def test_chunk_keys_are_in_reading_order_with_tokens_and_without_texts(catalog, put):
    first = put(catalog, "/b", "one two three", "four")
    second = put(catalog, "/a", "five six")
    catalog.set_kv([(first[1], "k1")])
    assert catalog.chunk_keys() == [
        (second[0], 2, None),
        (first[0], 3, None),
        (first[1], 1, "k1"),
    ]


def test_all_chunks_of_documents_that_have_some(catalog, put):
    first = put(catalog, "/b", "one", "two")
    put(catalog, "/a", "three")
    assert [row for row, _ in catalog.all_chunks({first[1], 99})] == first
    assert list(catalog.all_chunks(set())) == []


def test_a_catalog_knows_the_states_it_has_been_in(catalog, put, tmp_path):
    states = [(catalog.generation, catalog.stamp)]
    for text in ("one", "two"):
        put(catalog, "/a", text)
        states.append((catalog.generation, catalog.stamp))
    assert all(catalog.has_been(*state) for state in states)
    assert not catalog.has_been(1, "another")
    assert not catalog.has_been(2, states[1][1])


def test_vectors_come_in_batches_that_are_all_of_them(catalog, put, monkeypatch):
    monkeypatch.setattr("epicrag.index.catalog._VECTOR_BATCH", 3)
    put(catalog, "/a", *[f"word{i}" for i in range(8)])
    whole, batches = catalog.vectors(), list(catalog.vector_batches(after=1))
    assert [len(batch.ids) for batch in batches] == [3, 3, 1]
    assert np.concatenate([batch.ids for batch in batches]).tolist() == whole.ids[1:].tolist()
    assert len(whole.ids) == catalog.vector_count() == 8
