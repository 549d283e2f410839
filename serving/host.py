"""Chunk KV in host memory: what had to leave the pool and may be wanted again before long."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from epicrag.serving.entry import Entry


class HostTier:
    """Entries, each keys and values of a chunk, under a byte budget; the least recently used go first.

    `page_locked` memory is copied to a GPU at full speed. An entry that is larger than the budget is not kept.
    """

    def __init__(self, budget_bytes: int, *, page_locked: bool = False) -> None:
        self.budget_bytes = budget_bytes
        self.nbytes = 0
        self._page_locked = page_locked
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Entry | None:
        """The entry under a key, which is thereby the last to go."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: str, entry: Entry, dtype: torch.dtype) -> None:
        """Keep a copy in `dtype`, or as it is rounded; one that is there already is only touched."""
        if self.get(key) is not None:
            return
        entry = entry.narrowed() if entry.is_rounded else entry
        size = sum(
            x.nbytes if entry.is_rounded else x.numel() * dtype.itemsize for x in entry.tensors()
        )
        if size > self.budget_bytes:
            return
        while self.nbytes + size > self.budget_bytes:
            _, gone = self._entries.popitem(last=False)
            self.nbytes -= gone.nbytes
        tensors = (self._copy(x, x.dtype if entry.is_rounded else dtype) for x in entry.tensors())
        self._entries[key] = Entry(*tensors)
        self.nbytes += size

    def clear(self) -> None:
        self._entries.clear()
        self.nbytes = 0

    def _copy(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.empty(tensor.shape, dtype=dtype, pin_memory=self._page_locked)
        return out.copy_(tensor)
