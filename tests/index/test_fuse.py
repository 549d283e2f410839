"""Rankings are joined by their ranks, and each counts what its weight says."""

from __future__ import annotations

import pytest

from epicrag.index.fuse import RANK_CONSTANT, fuse, shares

RANKINGS = {"dense": [(1, 0.9), (2, 0.5)], "words": [(3, 8.0), (2, 4.0)]}


def order(**weights: float) -> list[int]:
    return [row for row, _ in fuse(RANKINGS, weights)]


def test_what_both_find_comes_first():
    assert order(dense=1, words=1) == [2, 1, 3]


def test_weights_are_honoured():
    assert order(dense=1, words=0) == [1, 2]
    assert order(dense=0, words=1) == [3, 2]
    assert order(dense=3, words=1) == [2, 1, 3]
    assert order(dense=1, words=100) == [3, 2, 1] or order(dense=1, words=100) == [2, 3, 1]


def test_each_row_tells_its_rank_and_score_in_every_stage():
    (row, stages), *_ = fuse(RANKINGS, {"dense": 1.0, "words": 0.5})
    assert row == 2
    assert (stages["dense"].rank, stages["dense"].score) == (2, 0.5)
    assert (stages["words"].rank, stages["words"].score) == (2, 4.0)
    assert stages["fused"].rank == 1
    assert stages["fused"].score == 1.5 / (RANK_CONSTANT + 2)


def test_ties_go_to_the_first_ranking():
    assert order(dense=1, words=1)[1:] == [1, 3]
    assert [
        row for row, _ in fuse({"words": [(3, 8.0)], "dense": [(1, 0.9)]}, {"dense": 1, "words": 1})
    ] == [3, 1]


def test_nothing_gives_nothing():
    assert fuse({"dense": [], "words": []}, {"dense": 1, "words": 1}) == []


def test_a_ranking_that_singles_nothing_out_counts_less():
    flat = [(n, 0.5 - n / 1000) for n in range(20)]
    clear = [(100, 9.0), *((n, 1.0 - n / 100) for n in range(19))]
    found = shares({"dense": flat, "words": clear}, {"dense": 1.0, "words": 1.0})
    assert found["words"] > 1 > found["dense"] > 0
    assert sum(found.values()) == pytest.approx(2)
    turned = shares({"dense": clear, "words": flat}, {"dense": 1.0, "words": 1.0})
    assert turned["dense"] == found["words"]


def test_given_weights_are_multiplied_and_none_stays_none():
    ranking = [(n, 1.0 / (n + 1)) for n in range(20)]
    even = {"dense": ranking, "words": ranking}
    assert shares(even, {"dense": 1.0, "words": 0.5}) == {"dense": 1.0, "words": 0.5}
    assert shares(even, {"dense": 1.0, "words": 0.0}) == {"dense": 1.0, "words": 0.0}


def test_short_rankings_and_equal_scores_are_no_trouble():
    weights = {"dense": 1.0, "words": 1.0}
    assert shares({"dense": [(1, 0.5)] * 4, "words": [(1, 9.0)]}, weights) == weights
    equal = {"dense": [(1, 0.5)] * 9, "words": [(1, 9.0)] * 9}
    assert shares(equal, weights) == weights
