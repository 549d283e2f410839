"""Several rankings to one, by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from epicrag.types import Stage

RANK_CONSTANT = 60
"""From Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank
Learning Methods", SIGIR 2009, who chose it in a pilot and found that it hardly matters."""

_LEAST = 5  # passages: of fewer nothing can be said
_MOST = 50
_POWER = 2.0
_CLEAREST = 10.0  # others that all score alike prove nothing more

Ranking = Sequence[tuple[int, float]]
"""Chunk rows with the score of one stage, best first, each row once."""


def shares(rankings: Mapping[str, Ranking], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights, shifted towards the rankings that single out their best more clearly.

    An embedder that does not know a language finds all its texts about equally near, and words that stand
    everywhere find everything: such a ranking is noise, and its ranks would count as much as any. How clear
    a ranking is, is how many standard deviations its first score lies above the others', squared. The
    factors are 1 on average, and exactly 1 where a ranking is too short to tell.
    """
    used = [name for name in rankings if weights[name]]
    if len(used) < 2 or any(len(rankings[name]) < _LEAST for name in used):
        return dict(weights)
    clear = {name: _clarity(rankings[name]) ** _POWER for name in used}
    mean = sum(clear.values()) / len(clear)
    return {name: weights[name] * clear.get(name, mean) / mean for name in weights}


def _clarity(ranking: Ranking) -> float:
    first, *others = [score for _, score in ranking[:_MOST]]
    clear = (first - fmean(others)) / (pstdev(others) + 1e-9)
    return min(max(clear, 0.1), _CLEAREST)


def fuse(
    rankings: Mapping[str, Ranking], weights: Mapping[str, float]
) -> list[tuple[int, dict[str, Stage]]]:
    """Return all rows, best first, each with its place in every ranking and in the fused one.

    A row's score is the sum of weight / (60 + rank) over the rankings that hold it. A ranking of weight
    0 takes no part: what only it holds is left out. Ties go to the ranking that is named first.
    """
    stages: dict[int, dict[str, Stage]] = {}
    scores: dict[int, float] = {}
    for name, ranking in rankings.items():
        if not weights[name]:
            continue
        for rank, (row, score) in enumerate(ranking, 1):
            stages.setdefault(row, {})[name] = Stage(rank, score)
            scores[row] = scores.get(row, 0.0) + weights[name] / (RANK_CONSTANT + rank)
    ordered = sorted(stages, key=lambda row: -scores[row])  # stable: first come stays first
    return [
        (row, {**stages[row], "fused": Stage(rank, scores[row])})
        for rank, row in enumerate(ordered, 1)
    ]
