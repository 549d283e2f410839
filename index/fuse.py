"""Several rankings to one, by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epicrag.types import Stage

RANK_CONSTANT = 60
"""From Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank
Learning Methods", SIGIR 2009, who chose it in a pilot and found that it hardly matters."""

Ranking = Sequence[tuple[int, float]]
"""Chunk rows with the score of one stage, best first, each row once."""


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
