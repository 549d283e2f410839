"""The free list of a pool: pages in stretches, found by length and joined with their neighbours."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class FreePages:
    """Free pages `[0, n)` as maximal stretches (start, length), none of them adjacent.

    `count` is kept, not summed; taking and giving back are searches in sorted lists.
    """

    def __init__(self, n_pages: int) -> None:
        self.count = 0
        self._length_at: dict[int, int] = {}  # by first page
        self._start_before: dict[int, int] = {}  # by the page behind the last
        self._by_length: list[tuple[int, int]] = []  # (length, start), sorted
        if n_pages:
            self._insert(0, n_pages)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The stretches (start, length), by place."""
        return iter(sorted(self._length_at.items()))

    def take(self, n_pages: int) -> list[tuple[int, int]]:
        """Take pages: the tightest single stretch that holds them, or else the longest ones first.

        ValueError, and nothing taken, when there are fewer.
        """
        if n_pages > self.count:
            raise ValueError(f"{n_pages} pages of {self.count}")
        taken = []
        while n_pages:
            at = bisect_left(self._by_length, (n_pages, -1))
            length, start = self._by_length[min(at, len(self._by_length) - 1)]
            part = min(length, n_pages)
            self._remove(start)
            if part < length:
                self._insert(start + part, length - part)
            taken.append((start, part))
            n_pages -= part
        return taken

    def give(self, start: int, length: int) -> None:
        """Put pages back that `take` returned, whole or in parts."""
        behind = self._length_at.get(start + length)
        if behind is not None:
            self._remove(start + length)
            length += behind
        before = self._start_before.get(start)
        if before is not None:
            length += self._length_at[before]
            self._remove(before)
            start = before
        self._insert(start, length)

    def _insert(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        insort(self._by_length, (length, start))
        self.count += length

    def _remove(self, start: int) -> None:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        del self._by_length[bisect_left(self._by_length, (length, start))]
        self.count -= length
