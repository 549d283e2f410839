"""The FAISS copy finds what the catalog holds, and is never believed over the catalog."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from epicrag.errors import MismatchError
from epicrag.index import vectors as vectors_module
from epicrag.index.catalog import Catalog
from epicrag.index.vectors import FILE_NAME, VectorIndex


def unit(*rows):
    array = np.array(rows, np.float32)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def random_units(n, dim=16, seed=0):
    return unit(*np.random.default_rng(seed).standard_normal((n, dim)))


@pytest.fixture
def add(catalog, make):
    """Return a function that puts one document whose chunk i has the windows `groups[i]`."""

    def do(path, *groups):
        document, chunks = make(path, *[f"{path} {i} " for i in range(len(groups))])
        return catalog.put_document(document, chunks, groups)

    return do


def assert_equals_catalog(index, catalog):
    """Each vector of the catalog is found as itself, and none besides."""
    ids, rows, data = catalog.vectors()
    assert index.count == len(ids) == catalog.counts().vectors
    for row, vector in zip(rows.tolist(), data, strict=True):
        best = dict(index.search(vector, 1000))
        assert best[row] == pytest.approx(1, abs=1e-5)
    if len(ids):
        assert {row for row, _ in index.search(data[0], 1000)} == set(rows.tolist())


def test_scores_are_cosines(catalog, add, tmp_path):
    one, two, three = add("/a", unit([1, 0]), unit([10, 1]), unit([-1, 0]))
    found = VectorIndex.open(catalog, tmp_path).search(np.array([5, 0], np.float32), 3)
    assert [row for row, _ in found] == [one, two, three]
    assert [score for _, score in found] == pytest.approx([1, 10 / 101**0.5, -1])
    assert all(-1 <= score <= 1 for _, score in found)


def test_result_equals_brute_force(catalog, add, tmp_path):
    data = random_units(300)
    rows = add("/a", *np.split(data, 100))
    index = VectorIndex.open(catalog, tmp_path)
    for query in random_units(20, seed=1):
        scores = (data @ query).reshape(100, 3).max(axis=1)
        order = np.argsort(-scores)[:7]
        found = index.search(query, 7)
        assert [row for row, _ in found] == [rows[i] for i in order]
        np.testing.assert_allclose([score for _, score in found], scores[order], atol=1e-6)


def test_chunk_with_many_near_windows_does_not_crowd_out_the_others(catalog, add, tmp_path):
    crowd = unit(*[[1, 0.001 * i] for i in range(200)])
    rows = add("/a", crowd, unit([0, 1]), unit([-1, 0]))
    found = VectorIndex.open(catalog, tmp_path).search(np.array([1, 0], np.float32), 3)
    assert [row for row, _ in found] == rows


def test_ties_go_by_row(catalog, add, tmp_path):
    rows = add("/a", *[unit([1, 0])] * 5)
    assert [
        row for row, _ in VectorIndex.open(catalog, tmp_path).search(unit([1, 0])[0], 5)
    ] == rows


def test_empty_index_finds_nothing(catalog, tmp_path):
    index = VectorIndex.open(catalog, tmp_path)
    assert index.search(np.ones(3, np.float32), 5) == []
    assert (index.count, index.rebuilt) == (0, "missing")
    assert VectorIndex.open(catalog, tmp_path).rebuilt is None


def test_asking_for_none_or_too_many_is_fine(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    assert index.search(unit([1, 0])[0], 0) == []
    assert len(index.search(unit([1, 0])[0], 1000)) == 1
    assert index.search(np.zeros(2, np.float32), 1)[0][1] == 0


def test_query_that_is_not_finite_finds_nothing_and_does_not_crash(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path).search(np.full(2, np.nan, np.float32), 3)


def test_query_of_another_dimension_is_a_mismatch(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    with pytest.raises(MismatchError, match=r"2 numbers.* 3"):
        VectorIndex.open(catalog, tmp_path).search(np.ones(3, np.float32), 1)


def test_whole_copy_is_used_as_it_is(catalog, add, tmp_path):
    add("/a", unit([1, 0]), unit([0, 1]))
    VectorIndex.open(catalog, tmp_path)
    before = (tmp_path / FILE_NAME).stat()
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt is None
    assert (tmp_path / FILE_NAME).stat().st_mtime_ns == before.st_mtime_ns
    assert_equals_catalog(index, catalog)


def test_id_map_does_not_drift_over_deletes_adds_and_reloads(catalog, add, tmp_path):
    data = random_units(40)
    rows = {}
    for i in range(10):
        rows[f"/{i}"] = add(f"/{i}", data[i : i + 1])
    index = VectorIndex.open(catalog, tmp_path)
    catalog.delete_document("/3")
    del rows["/3"]
    index.refresh()
    for i in (10, 11):
        rows[f"/{i}"] = add(f"/{i}", data[i : i + 1])
    index.refresh()
    rows["/5"] = add("/5", data[20:22])
    index.refresh()
    for copy in (index, VectorIndex.open(catalog, tmp_path)):
        assert copy.rebuilt in (None, "missing")
        assert_equals_catalog(copy, catalog)
        for path, (row,) in rows.items():
            i = 20 if path == "/5" else int(path[1:])
            assert copy.search(data[i], 1)[0][0] == row
    assert VectorIndex.open(catalog, tmp_path).rebuilt is None


def test_deleted_document_is_no_longer_found(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    (kept,) = add("/b", unit([0, 1]))
    index = VectorIndex.open(catalog, tmp_path)
    catalog.delete_document("/a")
    index.refresh()
    assert [row for row, _ in index.search(unit([1, 0])[0], 10)] == [kept]


def test_emptied_index_takes_another_dimension(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    catalog.delete_document("/a")
    index.refresh()
    assert index.search(unit([1, 0])[0], 1) == []
    add("/b", unit([1, 0, 0]))
    index.refresh()
    assert_equals_catalog(index, catalog)


def test_document_replaced_by_another_dimension_in_one_refresh(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    catalog.delete_document("/a")
    add("/a", unit([1, 0, 0]))
    index.refresh()
    assert_equals_catalog(index, catalog)


def test_refresh_without_change_writes_nothing(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    (tmp_path / FILE_NAME).unlink()
    index.refresh()
    assert not (tmp_path / FILE_NAME).exists()


def test_refresh_need_not_save(catalog, add, tmp_path):
    index = VectorIndex.open(catalog, tmp_path)
    add("/a", unit([1, 0]))
    index.refresh(save=False)
    assert index.count == 1
    assert VectorIndex.open(catalog, tmp_path).rebuilt == "old"


def test_copy_that_a_crash_left_behind_is_rebuilt(catalog, add, tmp_path):
    """Killed between the commit and the save: the catalog is ahead."""
    add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path)
    add("/b", unit([0, 1]))
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt == "old"
    assert_equals_catalog(index, catalog)


def test_copy_of_another_catalog_with_the_same_counts_is_not_believed(catalog, add, make, tmp_path):
    """A backup restored and continued differently reaches the same generation and the same ids."""
    add("/a", unit([1, 0]))
    shutil.copytree(tmp_path, tmp_path / "backup")
    add("/b", unit([0, 1]))
    VectorIndex.open(catalog, tmp_path)
    with Catalog.open(tmp_path / "backup") as restored:
        restored.put_document(*make("/c", "other"), [unit([1, 1])])
        assert restored.generation == catalog.generation
        shutil.copy(tmp_path / FILE_NAME, tmp_path / "backup" / FILE_NAME)
        index = VectorIndex.open(restored, tmp_path / "backup")
        assert index.rebuilt == "old"
        assert_equals_catalog(index, restored)


def test_whole_copy_with_other_vectors_than_the_catalog_is_not_believed(catalog, add, tmp_path):
    add("/a", unit([1, 0]), unit([0, 1]))
    index = VectorIndex.open(catalog, tmp_path)
    index._index.remove_ids(np.array([1], np.int64))
    index._save()
    again = VectorIndex.open(catalog, tmp_path)
    assert again.rebuilt.startswith("damaged: 1 vectors")
    assert_equals_catalog(again, catalog)


def flip(raw, at):
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: b"garbage",
        lambda raw: b"\n" * 100,
        lambda raw: raw[:-1],
        lambda raw: raw[:20],
        lambda raw: raw + b"x",
        lambda raw: raw[16:],
        lambda raw: b"epicrag vectors\n[1]\nrest",
        lambda raw: b"epicrag vectors\n{}\nrest",
        lambda raw: b'epicrag vectors\n{"stamp": 1, "xxh3": "0"}\nrest',
        *[lambda raw, i=i: flip(raw, len(raw) * i // 20) for i in range(20)],
    ],
)
def test_garbage_on_disk_is_rebuilt_and_never_a_crash(catalog, add, tmp_path, damage):
    add("/a", unit([1, 0]), unit([0, 1]))
    VectorIndex.open(catalog, tmp_path)
    file = tmp_path / FILE_NAME
    file.write_bytes(damage(file.read_bytes()))
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt in ("damaged", "old")
    assert_equals_catalog(index, catalog)
    assert VectorIndex.open(catalog, tmp_path).rebuilt is None


def test_folder_in_the_place_of_the_copy_is_told_and_harmless(catalog, add, tmp_path, caplog):
    add("/a", unit([1, 0]))
    (tmp_path / FILE_NAME).mkdir()
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt.startswith("damaged") and "not saved" in caplog.text
    assert_equals_catalog(index, catalog)


def test_read_only_folder_is_searched_without_a_copy(catalog, add, tmp_path, read_only, caplog):
    (row,) = add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path)
    (tmp_path / FILE_NAME).unlink()
    catalog.close()
    folder = read_only(tmp_path)
    with Catalog.open(folder) as frozen:
        index = VectorIndex.open(frozen, folder)
        assert index.search(unit([1, 0])[0], 1) == [(row, pytest.approx(1))]
    assert "not saved" in caplog.text


def test_failed_save_leaves_the_old_copy_and_no_debris(catalog, add, tmp_path, monkeypatch):
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    before = (tmp_path / FILE_NAME).read_bytes()
    add("/b", unit([0, 1]))

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vectors_module.os, "replace", fail)
    index.refresh()
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))
    assert_equals_catalog(index, catalog)


def test_header_tells_no_more_than_what_is_checked(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path)
    facts = json.loads((tmp_path / FILE_NAME).read_bytes().split(b"\n")[1])
    assert facts.keys() == {"stamp", "xxh3"} and facts["stamp"] == catalog.stamp
    assert os.listdir(tmp_path).count(FILE_NAME) == 1
