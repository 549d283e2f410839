"""Immutable files of vectors: unit rows with their ids and chunk rows, mapped into memory, proven whole.

A file is written once, under a name that is never used again, and its facts stand in the manifest. Rows
that the catalog has forgotten stay in the file and are masked until the next merge.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from epicrag.index.catalog import Vectors
from epicrag.index.clusters import Lists

if TYPE_CHECKING:
    from xxhash import xxh3_128

SUFFIX = ".vectors"
TEMPORARY = ".tmp"
BLOCK_ROWS = 4096
"""Rows held in memory at once while a file is written: a few megabytes."""
_MAGIC = b"epicrag vectors 2\n".ljust(64, b"\0")
_ALIGN = 64


class DamagedSegment(Exception):
    """The file is not what was written: gone, cut, changed or foreign."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the manifest says of a file; all of it must hold."""

    file: str
    vectors: int
    dim: int
    lists: int
    """0: the rows stand in the order of their ids, and are searched one and all."""
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Vectors that were stored together, and which of them the catalog still has."""

    ids: NDArray[np.int64]  # (N,)
    chunk_rows: NDArray[np.int64]  # (N,), ascending unless there are lists
    data: NDArray[np.float32]  # (N, dim)
    lists: Lists | None = None
    facts: Facts | None = None
    """None while it is in memory alone."""
    alive: NDArray[np.bool_] | None = None
    """(N,); None while all are."""

    @property
    def count(self) -> int:
        """Vectors that are alive."""
        return len(self.ids) if self.alive is None else int(np.count_nonzero(self.alive))

    @property
    def dim(self) -> int:
        return int(self.data.shape[1])

    def keeping(self, live: NDArray[np.int64]) -> Segment:
        """Return it with only the vectors whose ids are in `live`, (M,) ascending."""
        return self._masked(_is_in(self.ids, live))

    def without(self, dead: NDArray[np.int64]) -> Segment:
        """Return it without the vectors whose ids are in `dead`, (M,) ascending."""
        return self._masked(~_is_in(self.ids, dead))

    def dead_ids(self) -> NDArray[np.int64]:
        """Return the ids of the vectors that are masked."""
        return np.zeros(0, np.int64) if self.alive is None else self.ids[~self.alive]

    def _masked(self, alive: NDArray[np.bool_]) -> Segment:
        return replace(self, alive=None if alive.all() else alive)


class SegmentWriter:
    """Context manager that writes one file, block after block; without `end` nothing stays of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = secrets.token_hex(8) + SUFFIX
        self._temporary = folder / (self._name + TEMPORARY)
        self._ids: list[NDArray[np.int64]] = []
        self._chunk_rows: list[NDArray[np.int64]] = []
        self._dim = 0
        self._file: BinaryIO
        self._digest: xxh3_128

    def __enter__(self) -> Self:
        import xxhash

        self._digest = xxhash.xxh3_128()
        self._file = open(self._temporary, "wb")
        self._put(_MAGIC)
        return self

    def add(self, block: Vectors) -> None:
        """Append rows. ValueError when they are of another dimension than those before."""
        if self._ids and block.data.shape[1] != self._dim:
            raise ValueError(f"vectors of {self._dim} and of {block.data.shape[1]} numbers")
        self._dim = block.data.shape[1]
        self._put(np.ascontiguousarray(block.data, "<f4").reshape(-1).view(np.uint8).data)
        self._ids.append(np.asarray(block.ids, "<i8"))
        self._chunk_rows.append(np.asarray(block.chunk_rows, "<i8"))

    @property
    def count(self) -> int:
        return sum(map(len, self._ids))

    def end(self, lists: Lists | None = None) -> Facts:
        """Append all that is not vectors, and give the file its name."""
        ids, chunk_rows = np.concatenate(self._ids), np.concatenate(self._chunk_rows)
        self._put(b"\0" * (-self._file.tell() % _ALIGN))
        for array in (ids, chunk_rows, *(lists.arrays() if lists else ())):
            self._put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._file.close()
        os.replace(self._temporary, self._folder / self._name)
        n_lists = lists.count if lists else 0
        return Facts(self._name, self.count, self._dim, n_lists, self._digest.hexdigest())

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _put(self, raw: bytes | memoryview) -> None:
        self._file.write(raw)
        self._digest.update(raw)


def read_segment(folder: Path, facts: Facts) -> Segment:
    """Map a file and check every byte of it. DamagedSegment; OSError when it cannot be opened."""
    import xxhash

    raw = _map(folder / facts.file, _size(facts))
    if xxhash.xxh3_128_hexdigest(raw.data) != facts.digest:
        raise DamagedSegment("its checksum differs")
    return _view(raw, facts)


def in_memory(blocks: Iterable[Vectors]) -> Segment | None:
    """Return blocks as one segment without a file; None when there is no vector in them."""
    parts = [block for block in blocks if len(block.ids)]
    if not parts:
        return None
    ids, chunk_rows, data = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Segment(ids, chunk_rows, data)


def written(folder: Path, blocks: Iterable[Vectors]) -> Segment | None:
    """Write blocks as one file and return it mapped; None, and no file, when there is no vector."""
    with SegmentWriter(folder) as writer:
        for block in blocks:
            if len(block.ids):
                writer.add(block)
        facts = writer.end() if writer.count else None
    return _view(_map(folder / facts.file, _size(facts)), facts) if facts else None


def merged(folder: Path, segments: Sequence[Segment], *, n_lists: int = 0) -> Segment:
    """Write the living vectors of neighbours, of which there are some, as one file: in lists, or by id."""
    chosen = [
        np.arange(len(s.ids)) if s.alive is None else np.flatnonzero(s.alive) for s in segments
    ]
    ends = np.cumsum([len(places) for places in chosen])
    n = int(ends[-1]) if len(ends) else 0

    def block_of(wanted: NDArray[np.int64]) -> Vectors:
        """Gather vectors by their places among all living ones."""
        owners = np.searchsorted(ends, wanted, "right")
        ids, chunk_rows = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        data = np.empty((len(wanted), segments[0].dim), np.float32)
        for i in np.unique(owners):
            mine = owners == i
            places = chosen[i][wanted[mine] - (ends[i] - len(chosen[i]))]
            ids[mine] = segments[i].ids[places]
            chunk_rows[mine] = segments[i].chunk_rows[places]
            data[mine] = segments[i].data[places]
        return Vectors(ids, chunk_rows, data)

    every = _by_id([s.ids[places] for s, places in zip(segments, chosen, strict=True)])
    lists = None
    if n_lists:
        lists, order = Lists.made(lambda places: block_of(every[places]).data, n, n_lists)
        every = every[order]
    with SegmentWriter(folder) as writer:
        for at in range(0, n, BLOCK_ROWS):
            writer.add(block_of(every[at : at + BLOCK_ROWS]))
        facts = writer.end(lists)
    return _view(_map(folder / facts.file, _size(facts)), facts)


def living(segment: Segment) -> Iterator[Vectors]:
    """Yield the living vectors of a segment in the order it holds them."""
    for at in range(0, len(segment.ids), BLOCK_ROWS):
        part = np.arange(at, min(at + BLOCK_ROWS, len(segment.ids)))
        if segment.alive is not None:
            part = part[segment.alive[part]]
        yield Vectors(segment.ids[part], segment.chunk_rows[part], segment.data[part])


def _by_id(ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.argsort(np.concatenate(ids), kind="stable")


def _is_in(ids: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each id whether it is in `known`, which is ascending."""
    if not len(known):
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    found: NDArray[np.bool_] = known[places] == ids
    return found


def _size(facts: Facts) -> int:
    return _ints_at(facts) + 16 * facts.vectors + Lists.nbytes(facts.lists, facts.dim)


def _ints_at(facts: Facts) -> int:
    end = len(_MAGIC) + 4 * facts.vectors * facts.dim
    return end + (-end % _ALIGN)


def _map(path: Path, size: int) -> NDArray[np.uint8]:
    """Map a file that must be of this size, so that no read of it can reach behind its end."""
    found = path.stat().st_size
    if found != size:
        raise DamagedSegment(f"it has {found} bytes for {size}")
    raw: Any = np.memmap(path, np.uint8, "r")
    if raw[: len(_MAGIC)].tobytes() != _MAGIC:
        raise DamagedSegment("it is no file of vectors")
    return np.asarray(raw)


def _view(raw: NDArray[np.uint8], facts: Facts) -> Segment:
    n, at = facts.vectors, _ints_at(facts)
    data = raw[len(_MAGIC) : len(_MAGIC) + 4 * n * facts.dim].view("<f4").reshape(n, facts.dim)
    ids, chunk_rows = raw[at : at + 16 * n].view("<i8").reshape(2, n)
    lists = Lists.read(raw[at + 16 * n :], facts.lists, facts.dim) if facts.lists else None
    return Segment(ids, chunk_rows, data, lists, facts)
