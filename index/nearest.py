"""The nearest passages by cosine, also where only some may be found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from epicrag.errors import MismatchError

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.vectors import VectorIndex

_FEW = 4_000  # rows that are compared one by one, from the catalog, sooner than searched for
_BATCH = 2_000  # rows whose vectors are in memory at once


def nearest(
    catalog: Catalog,
    vectors: VectorIndex,
    query: NDArray[np.float32],
    n: int,
    allowed: AbstractSet[int] | None = None,
) -> list[tuple[int, float]]:
    """Return the n nearest (chunk row, cosine), best first; of `allowed` rows only, if given.

    All n are returned where so many are allowed and have vectors, however far away they lie.
    """
    if allowed is None:
        return vectors.search(query, n)
    if len(allowed) > _FEW:
        found = _searched(vectors, query, n, allowed)
        if len(found) >= min(n, len(allowed)):
            return found
    best = cosines(catalog, query, sorted(allowed))
    return sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[: max(n, 0)]


def cosines(catalog: Catalog, query: NDArray[np.float32], rows: Sequence[int]) -> dict[int, float]:
    """Return the cosine of each of these chunks: its best window's. Chunks without vectors are left out."""
    unit = query / max(float(np.linalg.norm(query)), 1e-12)
    best: dict[int, float] = {}
    for batch in _batches(rows):
        held = catalog.windows(batch)
        if not len(held.ids):
            continue
        if held.data.shape[1] != len(unit):
            raise MismatchError(
                f"the index holds vectors of {held.data.shape[1]} numbers, the embedder makes {len(unit)}",
                "use the embedder the index was made with (--embed-model), or a new index (--index)",
            )
        scores = np.clip(held.data @ unit, -1.0, 1.0)
        for row, score in zip(held.chunk_rows.tolist(), scores.tolist(), strict=True):
            best[row] = max(score, best.get(row, -1.0))
    return best


def _searched(
    vectors: VectorIndex, query: NDArray[np.float32], n: int, allowed: AbstractSet[int]
) -> list[tuple[int, float]]:
    """Search for more and more until n of them are allowed, or there are no more."""
    asked = 4 * n
    while True:
        found = vectors.search(query, asked)
        kept = [pair for pair in found if pair[0] in allowed]
        if len(kept) >= n or len(found) < asked:
            return kept[:n]
        asked *= 4


def _batches(rows: Sequence[int]) -> Iterator[list[int]]:
    remaining = iter(rows)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
