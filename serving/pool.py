"""The page pool: one block of memory for the keys and values of all requests, allocated once.

Rows are tokens; pages of `page_size` rows are the unit of allocation; a run is a stretch of neighbouring
rows. Chunks that are read by running requests are pinned by reference counts; chunks nobody reads stay until
their pages are needed (least recently used first). Pages shared by requests are never written after `fill`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from epicrag.errors import DeviceError

if TYPE_CHECKING:
    from torch import Tensor


class Run(NamedTuple):
    """Rows `[start, start + length)` of the pool."""

    start: int
    length: int


@dataclass(slots=True)
class Resident:
    """A chunk whose pages are in the pool."""

    runs: tuple[Run, ...]
    """The rows in use."""
    pages: tuple[Run, ...]
    """The whole pages they stand in, as rows."""
    readers: int = 0


class Pool:
    """Keys (L, G, R, Dk) and values (L, G, R, Dv), and the free list of their pages.

    Raises DeviceError when a request needs more pages than can be freed: nothing else is touched then.
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
    ) -> None:
        value_dim = value_dim or head_dim
        row_bytes = layers * groups * (head_dim + value_dim) * dtype.itemsize
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
        shape = (layers, groups, pages * page_size)
        self.keys = torch.empty((*shape, head_dim), dtype=dtype, device=device)
        self.values = torch.empty((*shape, value_dim), dtype=dtype, device=device)
        self._free: list[Run] = [Run(0, pages)]  # in pages, sorted by start, never adjacent
        self._residents: OrderedDict[str, Resident] = OrderedDict()

    # --- pages -----------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        return sum(run.length for run in self._free)

    def allocate(self, rows: int) -> tuple[Run, ...]:
        """Return runs of at least `rows` rows in all, as few as possible; evicts idle chunks if it must."""
        pages = -(-rows // self.page_size)
        while self.free_pages < pages:
            if not self._evict_one():
                raise DeviceError(
                    f"the request needs {pages * self.page_size:,} tokens of KV memory; "
                    f"{self.free_pages * self.page_size:,} of {self.n_pages * self.page_size:,} are free",
                    "raise kv_memory (--kv-memory), or ask with fewer chunks (-k)",
                )
        return tuple(
            Run(r.start * self.page_size, r.length * self.page_size) for r in self._take(pages)
        )

    def release(self, runs: Sequence[Run]) -> None:
        """Give runs back that `allocate` returned."""
        pages = [Run(run.start // self.page_size, run.length // self.page_size) for run in runs]
        merged: list[Run] = []
        for run in sorted([*self._free, *pages]):
            if merged and merged[-1].start + merged[-1].length == run.start:
                merged[-1] = Run(merged[-1].start, merged[-1].length + run.length)
            else:
                merged.append(run)
        self._free = merged

    def _take(self, pages: int) -> list[Run]:
        """Take pages from the free list: the tightest single run, or else the largest ones first."""
        fitting = [run for run in self._free if run.length >= pages]
        if fitting:
            return [self._cut(min(fitting, key=lambda run: run.length), pages)]
        taken: list[Run] = []
        for run in sorted(self._free, key=lambda run: -run.length):
            part = min(run.length, pages - sum(t.length for t in taken))
            taken.append(self._cut(run, part))
            if sum(t.length for t in taken) == pages:
                break
        return taken

    def _cut(self, run: Run, pages: int) -> Run:
        """Take the first pages of a free run."""
        self._free.remove(run)
        if run.length > pages:
            self._free.append(Run(run.start + pages, run.length - pages))
            self._free.sort()
        return Run(run.start, pages)

    # --- chunks ----------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        return key in self._residents

    def fill(self, key: str, keys: Tensor, values: Tensor) -> None:
        """Copy a compiled chunk in, keys and values (L, G, T, D), cast once to the pool's dtype."""
        if key in self._residents:
            return
        rows = keys.shape[2]
        pages = self.allocate(rows)
        runs, done = [], 0
        for page_run in pages:
            run = Run(page_run.start, min(page_run.length, rows - done))
            self.keys[:, :, run.start : run.start + run.length] = keys[
                :, :, done : done + run.length
            ]
            self.values[:, :, run.start : run.start + run.length] = values[
                :, :, done : done + run.length
            ]
            runs.append(run)
            done += run.length
        self._residents[key] = Resident(tuple(runs), pages=pages)

    def adopt(self, key: str, runs: Sequence[Run], rows: int) -> None:
        """Keep a request's private runs, whose first `rows` rows are in use, under a key; free the rest."""
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
        self._residents[key] = Resident(tuple(kept), pages=tuple(owned))

    def acquire(self, key: str) -> tuple[Run, ...]:
        """Pin a resident chunk for one reader and return its rows."""
        resident = self._residents[key]
        resident.readers += 1
        self._residents.move_to_end(key)
        return resident.runs

    def unpin(self, key: str) -> None:
        """Undo one `acquire`."""
        self._residents[key].readers -= 1

    def drop(self, key: str) -> None:
        """Forget a chunk that nobody reads."""
        resident = self._residents[key]
        assert resident.readers == 0, "a chunk in use cannot be dropped"
        del self._residents[key]
        self.release(resident.pages)

    def drop_idle(self) -> None:
        """Forget every chunk that nobody reads."""
        while self._evict_one():
            pass

    def _evict_one(self) -> bool:
        for key, resident in self._residents.items():
            if resident.readers == 0:
                self.drop(key)
                return True
        return False

    @contextmanager
    def private(self, rows: int) -> Iterator[tuple[Run, ...]]:
        """Rows for one request's own tokens, given back at the end whatever happens."""
        runs = self.allocate(rows)
        try:
            yield runs
        finally:
            self.release(runs)

    def check(self) -> None:
        """Assert that every page is free or owned, once. For tests; private pages must be released."""
        owned = [run for resident in self._residents.values() for run in resident.pages]
        pages = [
            page
            for run in owned
            for page in range(
                run.start // self.page_size, (run.start + run.length) // self.page_size
            )
        ]
        free = [page for run in self._free for page in range(run.start, run.start + run.length)]
        assert sorted(pages + free) == list(range(self.n_pages)), "pages lost or owned twice"
        assert all(resident.readers >= 0 for resident in self._residents.values())
