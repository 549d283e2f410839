"""The copy of the vectors finds what the catalog holds, and is never believed over the catalog."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epicrag.errors import MismatchError
from epicrag.index import clusters, manifest
from epicrag.index.catalog import Catalog
from epicrag.index.vectors import FOLDER_NAME, VectorIndex


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


def files(folder):
    """The files of the copy by name, with what tells whether they were written again."""
    found = sorted((folder / FOLDER_NAME).iterdir())
    return {path.name: path.stat().st_ino for path in found if path.name != "lock"}


def segment_files(folder):
    return [name for name in files(folder) if name.endswith(".vectors")]


def test_whole_copy_is_used_as_it_is(catalog, add, tmp_path):
    add("/a", unit([1, 0]), unit([0, 1]))
    VectorIndex.open(catalog, tmp_path)
    before = files(tmp_path)
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt is None
    assert files(tmp_path) == before and len(before) == 2
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
    index.refresh()
    before = files(tmp_path)
    index.refresh()
    VectorIndex.open(catalog, tmp_path).refresh()
    assert files(tmp_path) == before


def test_refresh_need_not_save(catalog, add, tmp_path):
    index = VectorIndex.open(catalog, tmp_path)
    before = files(tmp_path)
    add("/a", unit([1, 0]))
    index.refresh(save=False)
    assert (index.count, files(tmp_path)) == (1, before)


def test_copy_that_a_crash_left_behind_is_brought_up_to_date(catalog, add, tmp_path):
    """Killed between the commit and the save: the catalog is ahead, with additions and deletions."""
    add("/a", unit([1, 0]))
    add("/b", unit([1, 1]))
    VectorIndex.open(catalog, tmp_path)
    before = files(tmp_path)
    add("/c", unit([0, 1]))
    catalog.delete_document("/a")
    index = VectorIndex.open(catalog, tmp_path)
    assert (index.rebuilt, files(tmp_path)) == (None, before)
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
        shutil.copytree(tmp_path / FOLDER_NAME, tmp_path / "backup" / FOLDER_NAME)
        index = VectorIndex.open(restored, tmp_path / "backup")
        assert index.rebuilt == "old"
        assert_equals_catalog(index, restored)
        assert VectorIndex.open(restored, tmp_path / "backup").rebuilt is None


def test_copy_of_a_state_long_ago_is_not_believed(catalog, add, tmp_path, monkeypatch):
    monkeypatch.setattr("epicrag.index.catalog._HISTORY", 2)
    add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path)
    for i in range(3):
        add("/b", unit([i, 1]))
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt == "old"
    assert_equals_catalog(index, catalog)


def test_whole_copy_with_other_vectors_than_the_catalog_is_not_believed(catalog, add, tmp_path):
    add("/a", unit([1, 0]), unit([0, 1]))
    VectorIndex.open(catalog, tmp_path)
    found, _ = manifest.read(tmp_path / FOLDER_NAME)
    manifest.write(tmp_path / FOLDER_NAME, replace(found, segments=()))
    again = VectorIndex.open(catalog, tmp_path)
    assert again.rebuilt == "damaged: 0 vectors for the catalog's 2"
    assert_equals_catalog(again, catalog)


# --- damage ---


def flip(raw, at):
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


DAMAGES = [
    lambda raw: b"",
    lambda raw: b"garbage",
    lambda raw: b"\n" * 100,
    lambda raw: raw[:-1],
    lambda raw: raw[:-8],
    lambda raw: raw[:20],
    lambda raw: raw + b"x",
    lambda raw: raw + bytes(8),
    lambda raw: raw[16:],
    lambda raw: b"epicrag vector manifest\n[1]\nrest",
    lambda raw: b"epicrag vector manifest\n{}\nrest",
    lambda raw: b'epicrag vector manifest\n{"stamp": 1, "xxh3": "0"}\nrest',
    *[lambda raw, i=i: flip(raw, len(raw) * i // 20) for i in range(20)],
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["manifest", "segment"])
def test_garbage_on_disk_is_rebuilt_and_never_a_crash(catalog, add, tmp_path, damage, which):
    add("/a", unit([1, 0]), unit([0, 1]))
    VectorIndex.open(catalog, tmp_path)
    (segment,) = segment_files(tmp_path)
    file = tmp_path / FOLDER_NAME / (segment if which == "segment" else "manifest")
    file.write_bytes(damage(file.read_bytes()))
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt.startswith("damaged")
    assert_equals_catalog(index, catalog)
    assert VectorIndex.open(catalog, tmp_path).rebuilt is None
    assert len(segment_files(tmp_path)) == 1


def test_missing_segment_is_rebuilt(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path)
    (segment,) = segment_files(tmp_path)
    (tmp_path / FOLDER_NAME / segment).unlink()
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt == f"damaged: {segment}: No such file or directory"
    assert_equals_catalog(index, catalog)
    assert VectorIndex.open(catalog, tmp_path).rebuilt is None


def test_copy_that_vanishes_under_a_writer_is_written_again(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    shutil.rmtree(tmp_path / FOLDER_NAME)
    add("/b", unit([0, 1]))
    index.refresh()
    again = VectorIndex.open(catalog, tmp_path)
    assert again.rebuilt is None
    for copy in (index, again):
        assert_equals_catalog(copy, catalog)


@pytest.mark.parametrize("name", ["", "manifest"])
def test_something_else_in_the_place_of_the_copy_is_told_and_harmless(
    catalog, add, tmp_path, caplog, name
):
    add("/a", unit([1, 0]))
    place = tmp_path / FOLDER_NAME / name
    if name:
        place.mkdir(parents=True)
    else:
        place.write_text("not a folder")
    index = VectorIndex.open(catalog, tmp_path)
    assert index.rebuilt.startswith("damaged" if name else "missing")
    assert "not saved" in caplog.text
    assert_equals_catalog(index, catalog)


def test_file_of_an_older_epicrag_is_removed(catalog, add, tmp_path):
    add("/a", unit([1, 0]))
    (tmp_path / "vectors.faiss").write_bytes(b"old")
    VectorIndex.open(catalog, tmp_path)
    assert not (tmp_path / "vectors.faiss").exists()


def test_read_only_folder_is_searched_without_a_copy(catalog, add, tmp_path, read_only, caplog):
    (row,) = add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path)
    (tmp_path / FOLDER_NAME / "manifest").unlink()
    catalog.close()
    folder = read_only(tmp_path)
    with Catalog.open(folder) as frozen:
        index = VectorIndex.open(frozen, folder)
        assert index.search(unit([1, 0])[0], 1) == [(row, pytest.approx(1))]
    assert "not saved" in caplog.text


def test_read_only_copy_is_used_in_silence(catalog, add, tmp_path, read_only, caplog):
    (row,) = add("/a", unit([1, 0]))
    VectorIndex.open(catalog, tmp_path)
    catalog.close()
    folder = read_only(tmp_path)
    with Catalog.open(folder) as frozen:
        index = VectorIndex.open(frozen, folder)
        assert index.rebuilt is None
        assert index.search(unit([1, 0])[0], 1) == [(row, pytest.approx(1))]
    assert caplog.text == ""


# --- saving ---


class Killed(BaseException):
    """As a SIGKILL: nothing after it runs but what the test does."""


CRASHES = {
    "before any file": ("builtins.open", 0),
    "before a segment has its name": ("os.replace", 0),
    "before the manifest has its name": ("os.replace", 1),
    "before the sweep": ("os.scandir", 0),
    "within the sweep": ("os.unlink", 0),
}


@pytest.mark.parametrize(("call", "nth"), CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")])
def test_save_that_breaks_anywhere_leaves_what_opens(
    catalog, add, tmp_path, monkeypatch, call, nth, error
):
    add("/a", *[unit([1, i]) for i in range(9)])
    index = VectorIndex.open(catalog, tmp_path)
    add("/b", *[unit([i, 1]) for i in range(9)])  # large enough to be merged
    catalog.delete_document("/a")
    add("/c", unit([-1, 1]))
    module, name = call.split(".")
    module = os if module == "os" else __import__(module)
    real, calls = getattr(module, name), []

    def failing(*arguments, **more):
        if FOLDER_NAME in str(arguments[0]):
            calls.append(arguments)
            if len(calls) == nth + 1:
                raise error
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing)
        try:
            index.refresh()
        except Killed:
            pass
        else:
            assert_equals_catalog(index, catalog)
    assert len(calls) > nth
    again = VectorIndex.open(catalog, tmp_path)
    assert again.rebuilt is None
    assert_equals_catalog(again, catalog)
    again.refresh()
    assert len(segment_files(tmp_path)) == len(again._state.segments)
    assert not list((tmp_path / FOLDER_NAME).glob("*.tmp"))
    assert_equals_catalog(VectorIndex.open(catalog, tmp_path), catalog)


def test_failed_save_leaves_the_old_copy_and_no_debris(catalog, add, tmp_path, monkeypatch, caplog):
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    before = files(tmp_path)
    add("/b", unit([0, 1]))

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest.os, "replace", fail)
    index.refresh()
    assert files(tmp_path) == before
    assert "No space left" in caplog.text
    assert_equals_catalog(index, catalog)


def test_save_writes_what_is_new_and_leaves_the_rest(catalog, add, tmp_path):
    add("/a", *np.split(random_units(300), 300))
    index = VectorIndex.open(catalog, tmp_path)
    index.refresh()
    before = files(tmp_path)
    add("/b", *np.split(random_units(2, seed=1), 2))
    catalog.rename_documents([("/a", "/c")])
    index.refresh()
    after = files(tmp_path)
    (new,) = after.keys() - before.keys()
    assert (tmp_path / FOLDER_NAME / new).stat().st_size < 1000
    assert before.items() - after.items() == {("manifest", before["manifest"])}


def test_many_small_saves_leave_few_files_and_copy_little(catalog, add, tmp_path, monkeypatch):
    index, written = VectorIndex.open(catalog, tmp_path), []
    real = os.replace
    monkeypatch.setattr(
        os, "replace", lambda a, b: (written.append(os.stat(a).st_size), real(a, b))
    )
    data = random_units(200, dim=256)
    for i in range(200):
        add(f"/{i}", data[i : i + 1])
        index.refresh()
    assert len(segment_files(tmp_path)) <= 8
    assert sum(written) < 12 * data.nbytes  # one file would have been written 100 times over
    assert_equals_catalog(VectorIndex.open(catalog, tmp_path), catalog)


def test_file_that_is_mostly_dead_is_written_anew(catalog, add, tmp_path):
    for i in range(8):
        add(f"/{i}", *np.split(random_units(8, seed=i), 8))
    index = VectorIndex.open(catalog, tmp_path)
    index.refresh()
    size = sum((tmp_path / FOLDER_NAME / name).stat().st_size for name in segment_files(tmp_path))
    for i in range(5):
        catalog.delete_document(f"/{i}")
        index.refresh()
        assert_equals_catalog(VectorIndex.open(catalog, tmp_path), catalog)
    left = sum((tmp_path / FOLDER_NAME / name).stat().st_size for name in segment_files(tmp_path))
    assert left < size * 0.6
    for i in range(5, 8):
        catalog.delete_document(f"/{i}")
    index.refresh()
    assert (index.count, segment_files(tmp_path)) == (0, [])


def test_long_lived_reader_holds_few_segments(catalog, add, tmp_path):
    index = VectorIndex.open(catalog, tmp_path)
    data = random_units(50)
    for i in range(50):
        add(f"/{i % 40}", data[i : i + 1])
        index.refresh(save=False)
        assert len(index._state.segments) <= 9
    assert_equals_catalog(index, catalog)


def test_reader_takes_over_what_the_writer_saved(catalog, add, tmp_path):
    writer, reader = (VectorIndex.open(catalog, tmp_path) for _ in range(2))
    add("/a", *np.split(random_units(20), 20))
    writer.refresh()
    reader.refresh(save=False)
    assert [segment.facts for segment in reader._state.segments] == [
        segment.facts for segment in writer._state.segments
    ]
    assert reader._state.unsaved == 0
    assert_equals_catalog(reader, catalog)


def test_reader_of_an_older_state_keeps_to_it_while_the_writer_saves(catalog, add, tmp_path):
    add("/a", *np.split(random_units(20), 20))
    with Catalog.open(tmp_path) as other:
        reader = VectorIndex.open(other, tmp_path)
        with other.snapshot():
            assert other.counts().documents == 1
            rows = [row for row, _ in reader.search(random_units(1)[0], 100)]
            catalog.delete_document("/a")
            add("/b", *np.split(random_units(30, seed=1), 30))
            VectorIndex.open(catalog, tmp_path).refresh()
            reader.refresh(save=False)
            assert sorted(row for row, _ in reader.search(random_units(1)[0], 100)) == sorted(rows)
        reader.refresh(save=False)
        assert_equals_catalog(reader, other)


def _write(folder, n):
    from epicrag.types import Chunk, Document

    with Catalog.open(folder) as catalog:
        index = VectorIndex.open(catalog, folder)
        for i in range(n):
            path, vector = f"/{i % 7}", random_units(3, seed=i)
            texts = [f"{path} {i} {j}" for j in range(3)]
            pieces = [Chunk(path, j, 0, len(text), text) for j, text in enumerate(texts)]
            catalog.put_document(Document(path, "".join(texts), "d"), pieces, np.split(vector, 3))
            index.refresh()


def test_readers_open_and_search_while_another_process_writes(catalog, add, tmp_path):
    """Whatever a reader sees is one state of the catalog, and no reader ever rebuilds for it."""
    add("/0", *np.split(random_units(3), 3))
    VectorIndex.open(catalog, tmp_path).refresh()
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(tmp_path, 60))
    process.start()
    readers = 0
    long_lived = VectorIndex.open(catalog, tmp_path)
    while process.is_alive() or not readers:
        index = VectorIndex.open(catalog, tmp_path)
        assert index.rebuilt is None
        for copy in (index, long_lived):
            with catalog.snapshot():
                copy.refresh(save=False)
                assert_equals_catalog(copy, catalog)
        readers += 1
    process.join()
    assert process.exitcode == 0
    assert_equals_catalog(VectorIndex.open(catalog, tmp_path), catalog)


def test_many_that_find_no_copy_at_once_all_answer(catalog, add, tmp_path):
    add("/a", *np.split(random_units(50), 50))
    bad = []

    def read():
        try:
            with Catalog.open(tmp_path) as mine:
                assert_equals_catalog(VectorIndex.open(mine, tmp_path), mine)
        except BaseException as error:  # noqa: BLE001 - told below
            bad.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bad == []
    assert VectorIndex.open(catalog, tmp_path).rebuilt is None


# --- filters and scores ---


def brute(data, rows, query, k, allowed):
    best = {}
    for row, vector in zip(rows.tolist(), data, strict=True):
        if allowed is None or row in allowed:
            best[row] = max(best.get(row, -2), float(np.clip(vector @ query, -1, 1)))
    return best, sorted(best.values(), reverse=True)[:k]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    groups=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    dead=st.sets(st.integers(0, 40), max_size=10),
    share=st.floats(0, 1),
    k=st.integers(1, 12),
    seed=st.integers(0, 9),
    in_lists=st.booleans(),
)
def test_filtered_search_equals_brute_force(
    tmp_path_factory, make_document, groups, cuts, dead, share, k, seed, in_lists
):
    """Whatever segments there are, with dead rows, lists and many windows a chunk."""
    folder = tmp_path_factory.mktemp("index")
    chance = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, Catalog.open(folder, create=True) as catalog:
        if in_lists:
            patch.setattr(clusters, "CLUSTERED_FROM", 8)
        index = VectorIndex.open(catalog, folder)
        for i, windows in enumerate(groups):
            vectors = unit(*chance.integers(-3, 4, (windows, 3)) + 0.5) if windows else None
            catalog.put_document(
                *make_document(f"/{i}"),
                [np.zeros((0, 3), np.float32) if vectors is None else vectors],
            )
            if i in cuts:
                index.refresh()
        for i in dead:
            catalog.delete_document(f"/{i}")
        index.refresh(save=seed % 2 == 0)
        _, rows, data = catalog.vectors()
        every = sorted(set(rows.tolist()))
        allowed = {row for row in every if chance.random() < share} | {10**6}
        query = unit(chance.standard_normal(3))[0]
        for only in (None, allowed, np.array(sorted(allowed)), set()):
            best, scores = brute(data, rows, query, k, None if only is None else set(only))
            found = index.search(query, k, only)
            assert len({row for row, _ in found}) == len(found) == len(scores)
            np.testing.assert_allclose([score for _, score in found], scores, atol=1e-6)
            for row, score in found:
                assert score == pytest.approx(best[row], abs=1e-6)
        best, _ = brute(data, rows, query, k, None)
        asked = [*reversed(every), 10**6, *every]
        expected = [best.get(row, 0) for row in asked]
        np.testing.assert_allclose(index.score_of(query, asked), expected, atol=1e-6)


@pytest.fixture(scope="module")
def make_document():
    from epicrag.types import Chunk, Document

    def build(path):
        return Document(path, path, "digest"), [Chunk(path, 0, 0, len(path), path)]

    return build


def test_scores_of_no_rows_and_of_an_empty_index(catalog, add, tmp_path):
    assert VectorIndex.open(catalog, tmp_path).score_of(
        np.ones(2, np.float32), [1, 2]
    ).tolist() == [
        0,
        0,
    ]
    add("/a", unit([1, 0]))
    index = VectorIndex.open(catalog, tmp_path)
    assert index.score_of(np.ones(2, np.float32), []).shape == (0,)
    with pytest.raises(MismatchError):
        index.score_of(np.ones(3, np.float32), [1])


# --- lists ---


def crowded(n, dim=16, centres=40, seed=0):
    """Vectors as texts give them: in crowds."""
    chance = np.random.default_rng(seed)
    near = chance.standard_normal((centres, dim))[chance.integers(0, centres, n)]
    return unit(*(near + 0.4 * chance.standard_normal((n, dim))))


@pytest.fixture
def lists(catalog, add, tmp_path, monkeypatch):
    """An index of 3000 chunks in lists, with a tail and deletions."""
    monkeypatch.setattr(clusters, "CLUSTERED_FROM", 2000)
    data = crowded(3000)
    for i in range(30):
        add(f"/{i}", *np.split(data[100 * i : 100 * i + 100], 100))
    index = VectorIndex.open(catalog, tmp_path)
    index.refresh()
    add("/tail", *np.split(crowded(100, seed=1), 100))
    catalog.delete_document("/3")
    index.refresh()
    return index


def test_settled_vectors_are_put_into_lists_and_the_tail_stays_exact(catalog, lists, tmp_path):
    assert [bool(segment.lists) for segment in lists._state.segments] == [True, False]
    again = VectorIndex.open(catalog, tmp_path)
    assert again.rebuilt is None and again.count == lists.count == 3000
    query = crowded(1, seed=5)[0]
    assert again.search(query, 20) == lists.search(query, 20)


def test_recall_in_lists_is_near_that_of_looking_at_all(catalog, lists):
    _, rows, data = catalog.vectors()
    hits = total = 0
    for query in crowded(50, seed=7):
        best = set(rows[np.argsort(-(data @ query))[:10]].tolist())
        hits += len(best & {row for row, _ in lists.search(query, 10)})
        total += 10
    assert hits / total > 0.95


def test_filter_over_lists_finds_as_many_as_there_are(catalog, lists):
    _, rows, data = catalog.vectors()
    query = crowded(1, seed=8)[0]
    farthest = rows[np.argsort(data @ query)]
    for allowed in (farthest[:5], farthest[:1000], farthest):
        found = lists.search(query, 20, allowed)
        assert len(found) == min(20, len(allowed))
        assert {row for row, _ in found} <= set(allowed.tolist())


def test_all_of_an_index_in_lists_can_be_asked_for(catalog, lists):
    assert len(lists.search(crowded(1)[0], 10**6)) == lists.count


def test_deleted_rows_in_lists_are_not_found(catalog, add, lists):
    (row,) = add("/only", unit(np.full(16, 3.0)))
    lists.refresh()
    assert lists.search(np.full(16, 1, np.float32), 1)[0][0] == row
    catalog.delete_document("/only")
    lists.refresh()
    assert lists.search(np.full(16, 1, np.float32), 1)[0][0] != row


def test_lists_are_left_alone_until_the_tail_is_a_quarter(catalog, add, lists, tmp_path):
    (first, *_) = [segment.facts for segment in lists._state.segments]
    add("/more", *np.split(crowded(500, seed=2), 500))
    lists.refresh()
    assert lists._state.segments[0].facts == first
    add("/most", *np.split(crowded(500, seed=3), 500))
    lists.refresh()
    assert [bool(segment.lists) for segment in lists._state.segments] == [True]
    assert_equals_catalog_roughly(lists, catalog)


def assert_equals_catalog_roughly(index, catalog):
    ids, rows, data = catalog.vectors()
    assert index.count == len(ids)
    for row, vector in list(zip(rows.tolist(), data, strict=True))[::97]:
        assert index.search(vector, 1)[0] == (row, pytest.approx(1, abs=1e-5))
