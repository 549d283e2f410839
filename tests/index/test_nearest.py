"""Of the passages that may be found, all that are wanted are found, however far away they lie."""

from __future__ import annotations

import numpy as np
import pytest

from epicrag.errors import MismatchError
from epicrag.index import nearest as room
from epicrag.index.nearest import cosines, nearest
from epicrag.index.vectors import VectorIndex


@pytest.fixture
def crowd(catalog, put, tmp_path):
    """Many near passages, and three far ones."""
    put(catalog, "/d/near.md", *(f"cat dog n{n} " for n in range(60)))
    rows = put(catalog, "/d/far.md", "ship one ", "ship two ", "ship three")
    return VectorIndex.open(catalog, tmp_path), rows


@pytest.mark.parametrize("few", [0, 4_000])
def test_allowed_rows_are_found_behind_any_crowd(catalog, embedder, crowd, monkeypatch, few):
    vectors, rows = crowd
    monkeypatch.setattr(room, "_FEW", few)
    query = embedder.query("cat dog")
    found = nearest(catalog, vectors, query, 2, frozenset(rows))
    assert len(found) == 2 and {row for row, _ in found} <= set(rows)
    everything = nearest(catalog, vectors, query, 63)
    expected = [pair for pair in everything if pair[0] in rows][:2]
    assert [row for row, _ in found] == [row for row, _ in expected]
    assert [score for _, score in found] == pytest.approx(
        [score for _, score in expected], abs=1e-6
    )
    assert nearest(catalog, vectors, query, 9, frozenset()) == []


def test_an_approximate_search_that_misses_is_made_good(catalog, embedder, crowd, monkeypatch):
    vectors, rows = crowd
    monkeypatch.setattr(room, "_FEW", 0)
    monkeypatch.setattr(VectorIndex, "search", lambda self, query, k: [])
    assert len(nearest(catalog, vectors, embedder.query("cat"), 3, frozenset(rows))) == 3


def test_a_cosine_is_that_of_the_best_window(catalog, make):
    document, chunks = make("/d/a.md", "long", "none")
    windows = np.eye(3, dtype=np.float32)[:2]
    first, second = catalog.put_document(document, chunks, [windows, windows[:0]])
    query = np.array([0.6, 0.8, 0.0], np.float32)
    assert cosines(catalog, 10 * query, [first, second]) == {first: pytest.approx(0.8)}


def test_lengths_of_vectors_do_not_count(catalog, make):
    """Inner product or distance in place of the cosine would turn this order round."""
    document, chunks = make("/d/a.md", "a ", "b")
    vectors = [np.array([[10.0, 1.0]]), np.array([[1.0, 0.0]])]
    units = [array / np.linalg.norm(array) for array in vectors]
    first, second = catalog.put_document(document, chunks, [u.astype(np.float32) for u in units])
    index = VectorIndex.open(catalog, catalog._database.file.parent)
    found = nearest(catalog, index, np.array([5.0, 0.0], np.float32), 2)
    assert [row for row, _ in found] == [second, first]
    assert found[0][1] == pytest.approx(1.0)
    assert all(-1 <= score <= 1 for _, score in found)


def test_another_dimension_is_refused(catalog, crowd):
    vectors, rows = crowd
    with pytest.raises(MismatchError):
        nearest(catalog, vectors, np.ones(3, np.float32), 2, frozenset(rows))
