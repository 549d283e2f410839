"""Vectors of another embedder replace those in use all at once, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from epicrag.index.retrieve import check_embedder
from epicrag.index.staging import Staging
from epicrag.index.vectors import VectorIndex


@pytest.fixture
def filled(catalog, put, embedder):
    check_embedder(catalog, embedder)
    for n in range(4):
        put(catalog, f"/d/{n}", f"first of {n} ", f"second of {n} " * 40)
    return catalog


def stage_all(catalog, staging, embedder):
    while rows := staging.missing(3):
        staging.add(rows, embedder.passages([catalog.chunk(row).text for row in rows]))


def test_nothing_changes_for_readers_before_the_switch(filled, new_embedder):
    staging, other = Staging(filled), new_embedder("other", 16)
    before = filled.vectors(), filled.stamp, filled.settings()["embedder"]
    staging.begin(other)
    stage_all(filled, staging, other)
    after = filled.vectors(), filled.stamp, filled.settings()["embedder"]
    assert np.array_equal(before[0].data, after[0].data)
    assert before[1:] == after[1:]
    assert staging.count == filled.counts().chunks


def test_the_switch_puts_all_vectors_and_the_embedder_in_place(filled, new_embedder, tmp_path):
    staging, other = Staging(filled), new_embedder("other", 16)
    old_ids = filled.vectors().ids
    staging.begin(other)
    stage_all(filled, staging, other)
    staging.switch()
    check_embedder(filled, other)
    held = filled.vectors()
    assert held.data.shape == (len(old_ids), 16)
    assert held.ids.min() > old_ids.max()  # an id is never used twice
    index = VectorIndex.open(filled, tmp_path)
    for _, row, path in [(0, row, path) for row, _, path in filled.chunk_rows()]:
        text = filled.chunk(row).text
        best = [found for found, _ in index.search(other.passages([text])[0][0], 8)]
        assert row in best, path
    assert (staging.count, staging.embedder) == (0, None)


def test_a_switch_that_lacks_a_chunk_is_refused(filled, new_embedder, put):
    staging, other = Staging(filled), new_embedder("other", 16)
    with pytest.raises(RuntimeError):
        staging.switch()
    staging.begin(other)
    stage_all(filled, staging, other)
    put(filled, "/d/late", "came later")
    with pytest.raises(RuntimeError):
        staging.switch()
    assert filled.vectors().data.shape[1] == 64
    stage_all(filled, staging, other)
    staging.switch()
    assert filled.vectors().data.shape[1] == 16


def test_what_was_staged_for_another_embedder_is_dropped(filled, new_embedder):
    staging, other, third = Staging(filled), new_embedder("other", 16), new_embedder("third", 8)
    staging.begin(other)
    stage_all(filled, staging, other)
    staging.begin(other)
    assert staging.count == filled.counts().chunks
    staging.begin(third)
    assert staging.count == 0


def test_a_deleted_document_takes_its_staged_vectors_along(filled, new_embedder):
    staging, other = Staging(filled), new_embedder("other", 16)
    staging.begin(other)
    stage_all(filled, staging, other)
    filled.delete_document("/d/1")
    assert staging.count == filled.counts().chunks
    staging.switch()
    assert staging.drop() == 0


def test_a_chunk_that_the_embedder_makes_nothing_of_counts_as_done(filled, new_embedder):
    staging, other = Staging(filled), new_embedder("other", 16)
    staging.begin(other)
    first, *rest = staging.missing(100)
    staging.add([first], [np.zeros((0, 16), np.float32)])
    staging.add(rest, other.passages([filled.chunk(row).text for row in rest]))
    staging.switch()
    assert first not in filled.vectors().chunk_rows


def test_vectors_that_are_not_of_unit_length_are_refused(filled, new_embedder):
    staging = Staging(filled)
    staging.begin(new_embedder("other", 16))
    with pytest.raises(ValueError, match="unit length"):
        staging.add(staging.missing(1), [np.ones((1, 16), np.float32)])
    assert staging.count == 0
