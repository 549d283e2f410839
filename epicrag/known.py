"""Texts that are known by their hashes alone, found wherever they stand within another text.

A text is known by a hash of how it begins and one of all of it, with its length. Both are polynomial hashes of
its bytes, which a sum over the text searched gives for every stretch of it at once. What is found is a candidate:
whoever asks compares the texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BEGINS = 48
"""Bytes at the beginning that a text is looked up by. What is shorter cannot be found."""

MOST_CANDIDATES = 50_000
"""Of one search: a text made of one letter stands within itself at every place."""

_BASE = 0x9E3779B97F4A7C15 | 1
_INVERSE = pow(_BASE, -1, 1 << 64)
_SLOTS = 20
"""Bits of a hash that say, in a table of a megabyte, whether any text may begin so."""


class Candidate(NamedTuple):
    """The bytes [start, end) of the text searched may be the text of `row`."""

    start: int
    end: int
    row: int


class _Table(NamedTuple):
    """What is kept of the texts, ascending by how they begin: (N,) each, and (2**_SLOTS,)."""

    begins: NDArray[np.uint64]
    digest: NDArray[np.uint64]
    length: NDArray[np.int64]
    row: NDArray[np.int64]
    may_begin: NDArray[np.bool_]


class Known:
    """A set of texts, each under a row of its own. Takes 32 bytes a text, and a megabyte."""

    def __init__(self) -> None:
        self._table = _sorted(np.zeros(0, _TEXT))

    def __len__(self) -> int:
        return len(self._table.row)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(column.nbytes for column in self._table)

    def update(self, new: Iterable[tuple[int, str]], gone: Collection[int] = ()) -> None:
        """Add texts by their rows, and forget rows. Texts that are too short to be found are left out."""
        fresh = (described(row, text.encode("utf-8", "surrogatepass")) for row, text in new)
        added = np.array([text for text in fresh if text is not None], _TEXT)
        old = self._table
        kept = np.zeros(len(old.row), _TEXT)
        for name in _TEXT.names or ():
            kept[name] = getattr(old, name)
        if len(gone):
            kept = kept[~np.isin(kept["row"], np.fromiter(gone, np.int64))]
        # Replaced, not changed: a search in another thread goes on in what it began with.
        self._table = _sorted(np.concatenate([kept, added]))

    def find(self, data: bytes) -> list[Candidate]:
        """Return where known texts may stand in `data`, in no order, overlapping where they do."""
        table = self._table
        places = len(data) - BEGINS + 1
        if places <= 0 or not len(table.row):
            return []
        sums, inverse = _sums(data)
        begins = (sums[BEGINS:] - sums[:places]) * inverse[:places]
        starts = np.flatnonzero(table.may_begin[begins >> (64 - _SLOTS)])
        low = np.searchsorted(table.begins, begins[starts], "left")
        counts = np.searchsorted(table.begins, begins[starts], "right") - low
        if (total := int(counts.sum())) == 0:
            return []
        before = np.repeat(np.cumsum(counts) - counts, counts)
        which = (np.repeat(low, counts) + np.arange(total) - before)[:MOST_CANDIDATES]
        start = np.repeat(starts, counts)[:MOST_CANDIDATES]
        end = start + table.length[which]
        fits = end <= len(data)
        which, start, end = which[fits], start[fits], end[fits]
        same = (sums[end] - sums[start]) * inverse[start] == table.digest[which]
        rows = table.row[which]
        found = zip(start[same].tolist(), end[same].tolist(), rows[same].tolist(), strict=True)
        return [Candidate(*one) for one in found]


_TEXT = np.dtype(
    [("begins", np.uint64), ("digest", np.uint64), ("length", np.int64), ("row", np.int64)]
)


def _sorted(texts: NDArray[np.void]) -> _Table:
    order = np.argsort(texts["begins"], kind="stable")
    may_begin = np.zeros(1 << _SLOTS, bool)
    may_begin[texts["begins"] >> (64 - _SLOTS)] = True
    texts = texts[order]
    begins, digest, length, row = (np.ascontiguousarray(texts[n]) for n in _TEXT.names or ())
    return _Table(begins, digest, length, row, may_begin)


def described(row: int, data: bytes) -> tuple[int, int, int, int] | None:
    """What is kept of a text; None for one that is too short."""
    if len(data) < BEGINS:
        return None
    sums = _sums(data)[0]
    return int(sums[BEGINS]), int(sums[-1]), len(data), row


def _sums(data: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Sums of the bytes, each times a power of the base: (n + 1,); and the inverse powers, (n + 1,).

    All modulo 2**64. The hash of [i, j) is (sums[j] - sums[i]) * inverse[i], wherever it stands.
    """
    n = len(data)
    sums = np.zeros(n + 1, np.uint64)
    np.cumsum(np.frombuffer(data, np.uint8) * _powers(_BASE, n), out=sums[1:])
    return sums, _powers(_INVERSE, n + 1)


def _powers(base: int, n: int) -> NDArray[np.uint64]:
    powers = np.full(n, base, np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)
