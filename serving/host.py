"""Chunk KV in host memory: what had to leave the pool and may be wanted again before long."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


class HostTier:
    """Pairs of keys and values under a byte budget; the least recently used go first.

    `page_locked` memory is copied to a GPU at full speed. A pair that is larger than the budget is not kept.
    """

    def __init__(self, budget_bytes: int, *, page_locked: bool = False) -> None:
        self.budget_bytes = budget_bytes
        self.nbytes = 0
        self._page_locked = page_locked
        self._pairs: OrderedDict[str, Pair] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def get(self, key: str) -> Pair | None:
        """The pair under a key, which is thereby the last to go."""
        if key in self._pairs:
            self._pairs.move_to_end(key)
        return self._pairs.get(key)

    def put(self, key: str, keys: Tensor, values: Tensor, dtype: torch.dtype) -> None:
        """Keep a copy in `dtype`; one that is there already is only touched."""
        if self.get(key) is not None:
            return
        size = (keys.numel() + values.numel()) * dtype.itemsize
        if size > self.budget_bytes:
            return
        while self.nbytes + size > self.budget_bytes:
            _, pair = self._pairs.popitem(last=False)
            self.nbytes -= _size(pair)
        self._pairs[key] = self._copy(keys, dtype), self._copy(values, dtype)
        self.nbytes += size

    def clear(self) -> None:
        self._pairs.clear()
        self.nbytes = 0

    def _copy(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.empty(tensor.shape, dtype=dtype, pin_memory=self._page_locked)
        return out.copy_(tensor)


def _size(pair: Pair) -> int:
    return pair[0].nbytes + pair[1].nbytes
