"""Vectors in lists of near ones, so that a search looks at a few lists and not at all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CLUSTERED_FROM = 1 << 16
"""Vectors from which a settled segment is put into lists. Below, looking at all takes some 10 ms and misses none."""
_SAMPLE_PER_LIST = 64
_ITERATIONS = 10
_BLOCK_ROWS = 4096
_PROBED_SHARE = 6
"""One list in so many is looked at first."""
_PROBED_LEAST = 24


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Which rows of a segment belong together: list i holds rows `bounds[i]` to `bounds[i + 1]`."""

    centroids: NDArray[np.float32]  # (L, dim), unit rows
    bounds: NDArray[np.int64]  # (L + 1,)

    @property
    def count(self) -> int:
        return len(self.centroids)

    @classmethod
    def made(
        cls, rows_at: Callable[[NDArray[np.int64]], NDArray[np.float32]], n: int, n_lists: int
    ) -> tuple[Lists, NDArray[np.int64]]:
        """Cluster n unit rows, fetched by place; return the lists and (n,): the rows in list order."""
        chance = np.random.default_rng(0)
        size = min(n, _SAMPLE_PER_LIST * n_lists)
        sample = np.sort(chance.choice(n, size, replace=False))
        centroids = _trained(rows_at(sample), n_lists)
        nearest = np.empty(n, np.int32)
        for at in range(0, n, _BLOCK_ROWS):
            places = np.arange(at, min(at + _BLOCK_ROWS, n))
            nearest[places] = (rows_at(places) @ centroids.T).argmax(axis=1)
        bounds = np.concatenate(([0], np.cumsum(np.bincount(nearest, minlength=n_lists))))
        return cls(centroids, bounds.astype("<i8")), np.argsort(nearest, kind="stable")

    @classmethod
    def read(cls, raw: NDArray[np.uint8], count: int, dim: int) -> Lists:
        """View what `arrays` gave, as it was written."""
        bounds = raw[: 8 * (count + 1)].view("<i8")
        return cls(raw[8 * (count + 1) :].view("<f4").reshape(count, dim), bounds)

    @staticmethod
    def nbytes(count: int, dim: int) -> int:
        return 8 * (count + 1) + 4 * count * dim if count else 0

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return what is to be written, in order."""
        return np.asarray(self.bounds, "<i8"), np.asarray(self.centroids, "<f4")

    def probes(
        self, query: NDArray[np.float32], share: float = 1.0
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield rounds of row spans to look at, the nearest lists first, until all lists were named.

        `share` of the rows may be found at all: the fewer they are, the more lists a round names.
        """
        order = np.argsort(-(self.centroids @ query), kind="stable")
        first = max(self.count // _PROBED_SHARE, _PROBED_LEAST)
        done, size = 0, int(np.ceil(first / max(share, 1e-6)))
        while done < self.count:
            chosen = order[done : done + size]
            yield list(
                zip(self.bounds[chosen].tolist(), self.bounds[chosen + 1].tolist(), strict=True)
            )
            done += size
            size = done


def lists_for(n: int) -> int:
    """Return into how many lists n vectors are best put; 0: none."""
    return round(2 * float(np.sqrt(n))) if n >= CLUSTERED_FROM else 0


def _trained(sample: NDArray[np.float32], n_lists: int) -> NDArray[np.float32]:
    """Return (L, dim) unit centroids of a sample."""
    import faiss

    kmeans = faiss.Kmeans(
        sample.shape[1],
        n_lists,
        niter=_ITERATIONS,
        spherical=True,
        seed=1234,
        min_points_per_centroid=1,
        max_points_per_centroid=_SAMPLE_PER_LIST,
    )
    kmeans.train(sample)
    return np.asarray(kmeans.centroids, np.float32)
