"""The page pool: one block of memory for the keys and values of all requests, allocated once.

Rows are tokens; pages of `page_size` rows are the unit of allocation; a run is a stretch of neighbouring
rows. What is resident under a key (a chunk, an exact prefix) is pinned by the requests that read it, and stays
afterwards until its pages are needed: least recently used first. Resident pages are never written again.

A pool with rounded rows lends some of its memory to rows in 8 bits: the same pages, seen as bytes, hold two or
four times as many of them, numbered behind the others. A request's own rows are never rounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from epicrag.errors import DeviceError
from epicrag.kernels import ops
from epicrag.serving.entry import Entry
from epicrag.serving.pages import FreePages

if TYPE_CHECKING:
    from torch import Tensor


class Run(NamedTuple):
    """Rows `[start, start + length)` of the pool; behind the last of its `n_rows` stand those in 8 bits."""

    start: int
    length: int


_SCALE = torch.float32


class NoPagesError(DeviceError):
    """More pages are needed than can be freed now; `pages` were asked for, `busy` cannot be freed."""

    def __init__(self, message: str, *, pages: int, busy: int) -> None:
        super().__init__(message, "raise kv_memory (--kv-memory), or ask with fewer chunks (-k)")
        self.pages = pages
        self.busy = busy


@dataclass(slots=True)
class Resident:
    """What has pages in the pool under a key."""

    runs: tuple[Run, ...]
    """The rows in use."""
    pages: tuple[Run, ...]
    """The whole pages they stand in, as rows that are not rounded."""
    n_pages: int
    leave: Callable[[Resident], None] | None = None
    """Told just before the pages go."""
    parent: str | None = None
    """The resident whose rows this one's rows were computed behind: it goes later, and is read with it."""
    readers: int = 0
    children: int = 0


class Pool:
    """Keys (L, G, R, D) and values (L, G, R, V), and who has which of their pages.

    With `rounded`, row R + r is row r of `bytes_of_keys` (L, G, R * ratio, D) and `bytes_of_values`: the same
    memory, each row with a scale.

    Raises NoPagesError when more pages are needed than can be freed: nothing is touched then.
    """

    def __init__(
        self,
        *,
        layers: int,
        groups: int,
        head_dim: int,
        value_dim: int | None = None,
        budget_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
        page_size: int = 16,
        rounded: bool = False,
    ) -> None:
        value_dim = head_dim if value_dim is None else value_dim
        row_bytes = layers * groups * (head_dim + value_dim) * dtype.itemsize
        self.ratio = dtype.itemsize if rounded else 0
        """Rows in 8 bits that take the memory of one other."""
        if rounded:
            page_size = max(1, page_size // self.ratio)
            row_bytes += layers * groups * self.ratio * 2 * _SCALE.itemsize
        pages = budget_bytes // (row_bytes * page_size)
        if pages < 1:
            raise DeviceError(
                f"a KV budget of {budget_bytes:,} bytes holds no page of {page_size} tokens "
                f"({row_bytes:,} bytes a token)",
                "raise kv_memory (--kv-memory)",
            )
        self.page_size = page_size
        self.row_bytes = row_bytes
        self.n_pages = pages
        # Zeros would touch every page now; an empty tensor costs memory only as it is used.
        rows = pages * page_size
        self.keys = torch.empty((layers, groups, rows, head_dim), dtype=dtype, device=device)
        self.values = torch.empty((layers, groups, rows, value_dim), dtype=dtype, device=device)
        self.n_rows = rows
        self._bytes: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        if rounded:
            many = (layers, groups, rows * self.ratio)
            self._bytes = (
                self.keys.view(torch.int8).view(*many, head_dim),
                self.values.view(torch.int8).view(*many, value_dim),
                torch.empty(many, dtype=_SCALE, device=device),
                torch.empty(many, dtype=_SCALE, device=device),
            )
        self._free = FreePages(pages)
        self._residents: dict[str, Resident] = {}
        self._idle: OrderedDict[str, Resident] = OrderedDict()  # may go now, in this order
        self._unread = 0  # pages of residents without a reader: all of them can be freed in the end

    # --- pages -----------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return self._free.count

    @property
    def idle_pages(self) -> int:
        """Pages of residents that nobody reads: they can be freed."""
        return self._unread

    @property
    def busy_pages(self) -> int:
        """Pages that cannot be freed now: of running requests, and of what they read."""
        return self.n_pages - self._free.count - self._unread

    @property
    def shared_pages(self) -> int:
        """Pages that more than one reader reads."""
        return sum(r.n_pages for r in list(self._residents.values()) if r.readers > 1)

    def expect(self, rows: int, n_pages: int) -> None:
        """Raise NoPagesError when `rows` rows will never fit into `n_pages` pages."""
        pages = -(-rows // self.page_size)
        if pages > n_pages:
            raise NoPagesError(
                f"the request needs {rows:,} tokens of KV memory; there are {n_pages * self.page_size:,}",
                pages=pages,
                busy=self.busy_pages,
            )

    def allocate(self, rows: int) -> tuple[Run, ...]:
        """Return runs of at least `rows` rows in all, as few as possible; evicts idle residents if it must."""
        pages = -(-rows // self.page_size)
        if self._free.count + self._unread < pages:
            raise NoPagesError(
                f"the request needs {pages * self.page_size:,} tokens of KV memory; "
                f"{(self.n_pages - self.busy_pages) * self.page_size:,} of "
                f"{self.n_pages * self.page_size:,} are free",
                pages=pages,
                busy=self.busy_pages,
            )
        while self._free.count < pages:
            self._evict_one()
        size = self.page_size
        return tuple(Run(start * size, n * size) for start, n in self._free.take(pages))

    def release(self, runs: Sequence[Run]) -> None:
        """Give runs back that `allocate` returned."""
        for run in runs:
            self._free.give(run.start // self.page_size, run.length // self.page_size)

    @contextmanager
    def private(self, rows: int) -> Iterator[tuple[Run, ...]]:
        """Rows for one request's own tokens, given back at the end whatever happens."""
        runs = self.allocate(rows)
        try:
            yield runs
        finally:
            self.release(runs)

    # --- residents -------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        return key in self._residents

    def fill(self, key: str, entry: Entry, leave: Callable[[Resident], None] | None = None) -> None:
        """Copy a compiled chunk in: rounded rows as they are, others cast in the one copy.

        `leave` is told before the chunk's pages go.
        """
        if key in self._residents:
            return
        length = entry.n_tokens
        ratio = self._ratio_of(entry)
        pages = self.allocate(-(-length // ratio))
        try:
            blocks, first = self._blocks(entry)
            runs = _used(pages, length, ratio)
            staged = [x.to(self.keys.device, non_blocking=True) for x in entry.tensors()]
            ops.move_rows(staged, blocks, None, runs)
        except BaseException:
            self.release(pages)
            raise
        self._add(key, tuple(Run(first + start, n) for start, n in runs), pages, leave, None)

    def _ratio_of(self, entry: Entry) -> int:
        """How many of an entry's rows stand where one of the pool's own does."""
        if entry.is_rounded and not self.ratio:
            raise ValueError("this pool was made without room for rows in 8 bits")
        return self.ratio if entry.is_rounded else 1

    def _blocks(self, entry: Entry) -> tuple[tuple[Tensor, ...], int]:
        """The memory for an entry's tensors, and the number of its first row."""
        if entry.is_rounded and self._bytes is not None:
            return self._bytes, self.n_rows
        return (self.keys, self.values), 0

    def entry(self, runs: Sequence[Run]) -> Entry:
        """Copies of the rows of a resident, as they are."""
        is_rounded = bool(runs) and runs[0].start >= self.n_rows
        blocks: tuple[Tensor, ...] = (self.keys, self.values)
        first = 0
        if is_rounded and self._bytes is not None:
            blocks, first = self._bytes, self.n_rows
        n = sum(run.length for run in runs)
        parts = [block.new_empty((*block.shape[:2], n, *block.shape[3:])) for block in blocks]
        own = [(run.start - first, run.length) for run in runs]
        ops.move_rows(blocks, parts, own, None)
        return Entry(*parts)

    def rounded(self, layer: int) -> ops.Rounded | None:
        """The rows of a layer in 8 bits; None for a pool without."""
        return None if self._bytes is None else ops.Rounded(*(x[layer] for x in self._bytes))

    def layer_rows(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys (G, n, D) and values (G, n, V) of any rows of a layer, in the pool's own type."""
        eight = self.rounded(layer)
        if eight is None:
            return self.keys[layer][:, rows], self.values[layer][:, rows]
        behind = rows >= self.n_rows
        own, there = rows.masked_fill(behind, 0), (rows - self.n_rows).clamp_min(0)
        out = []
        for plain, whole, scales in (
            (self.keys[layer], eight.keys, eight.key_scales),
            (self.values[layer], eight.values, eight.value_scales),
        ):
            wide = ops.widen_rows(whole[:, there], scales[:, there], plain.dtype)
            out.append(torch.where(behind[:, None], wide, plain[:, own]))
        return out[0], out[1]

    def adopt(
        self,
        key: str,
        runs: Sequence[Run],
        rows: int,
        *,
        parent: str | None = None,
        leave: Callable[[Resident], None] | None = None,
    ) -> None:
        """Keep a request's private runs, whose first `rows` rows are in use, under a key; free the rest.

        `parent`: the resident, in the pool, whose rows come before these.
        """
        kept, owned, spare = [], [], []
        for run in runs:
            used = min(run.length, rows)
            pages = -(-used // self.page_size) * self.page_size
            rows -= used
            if used:
                kept.append(Run(run.start, used))
                owned.append(Run(run.start, pages))
            if run.length > pages:
                spare.append(Run(run.start + pages, run.length - pages))
        self.release(spare)
        self._add(key, tuple(kept), tuple(owned), leave, parent)

    def rows_of(self, key: str) -> tuple[Run, ...]:
        """The rows of a resident, without pinning it."""
        return self._residents[key].runs

    def pages_of(self, key: str) -> int:
        return self._residents[key].n_pages

    def acquire(self, key: str) -> tuple[Run, ...]:
        """Pin a resident, and those it stands behind, for one reader; returns its own rows."""
        for resident in self._line(key):
            if not resident.readers:
                self._unread -= resident.n_pages
            resident.readers += 1
        self._idle.pop(key, None)
        return self._residents[key].runs

    def unpin(self, key: str) -> None:
        """Undo one `acquire`."""
        for resident in self._line(key):
            resident.readers -= 1
            if not resident.readers:
                self._unread += resident.n_pages
        self._settle(key)

    def drop(self, key: str) -> None:
        """Forget a resident that nobody reads or stands behind."""
        resident = self._residents[key]
        assert not resident.readers and not resident.children, "what is in use cannot be dropped"
        if resident.leave is not None:
            resident.leave(resident)
        del self._residents[key]
        self._idle.pop(key, None)
        self._unread -= resident.n_pages
        self.release(resident.pages)
        if resident.parent is not None:
            self._residents[resident.parent].children -= 1
            self._settle(resident.parent)

    def drop_idle(self) -> None:
        """Forget everything that nobody reads."""
        while self._idle:
            self._evict_one()

    def _add(
        self,
        key: str,
        runs: tuple[Run, ...],
        pages: tuple[Run, ...],
        leave: Callable[[Resident], None] | None,
        parent: str | None,
    ) -> None:
        n_pages = sum(run.length for run in pages) // self.page_size
        self._residents[key] = Resident(runs, pages, n_pages, leave, parent)
        self._unread += n_pages
        if parent is not None:
            self._residents[parent].children += 1
            self._idle.pop(parent, None)
        self._settle(key)

    def _line(self, key: str | None) -> Iterator[Resident]:
        """A resident and those it stands behind."""
        while key is not None:
            resident = self._residents[key]
            yield resident
            key = resident.parent

    def _settle(self, key: str) -> None:
        """Put a resident that may go at the end of the line of those that may."""
        resident = self._residents[key]
        if not resident.readers and not resident.children:
            self._idle[key] = resident
            self._idle.move_to_end(key)

    def _evict_one(self) -> None:
        self.drop(next(iter(self._idle)))

    def check(self) -> None:
        """Assert that every page is free or owned, once. For tests; private pages must be released."""
        size = self.page_size
        pages = [
            page
            for resident in self._residents.values()
            for run in resident.pages
            for page in range(run.start // size, (run.start + run.length) // size)
        ]
        free = [page for start, n in self._free for page in range(start, start + n)]
        assert sorted(pages + free) == list(range(self.n_pages)), "pages lost or owned twice"
        assert len(free) == self._free.count
        quiet = [r for r in self._residents.values() if not r.readers]
        assert self._unread == sum(r.n_pages for r in quiet)
        assert set(self._idle) == {
            k for k, r in self._residents.items() if not r.readers and not r.children
        }
        for key, resident in self._residents.items():
            assert resident.readers >= 0
            born = [r for r in self._residents.values() if r.parent == key]
            assert resident.children == len(born)


def _used(pages: Sequence[Run], rows: int, ratio: int) -> tuple[Run, ...]:
    """The first `rows` rows of some pages, where each of the pages' own rows holds `ratio` of them."""
    runs = []
    for run in pages:
        runs.append(Run(run.start * ratio, min(run.length * ratio, rows)))
        rows -= runs[-1].length
    return tuple(runs)
