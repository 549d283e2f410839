"""The small tables an operation is told its work by: no tensors of the model, nothing to run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotary:
    """How a model turns its queries and keys by position.

    `inv_freq` is the model's own, (dim / 2,), after any scaling, and without YaRN's attention factor: that
    factor multiplies the stored keys already. `dim` may be smaller than D (partial rotary).
    """

    inv_freq: Tensor
    dim: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A run of pool rows that a request reads: one row of its page table.

    The key in row `key_start + i` was computed at local position `local + i`; it stands in the prompt at
    `local + i + delta`. Where the rows are not at consecutive positions (a request's own tokens), `explicit`
    holds the position of each row, ascending, and `delta` is 0.
    """

    key_start: int
    value_start: int
    length: int
    delta: int
    first: int
    """Absolute position of the first row (of the smallest, when `explicit`)."""
    bias: float = 0.0
    """Added to every score of this span."""
    explicit: Tensor | None = None  # (length,) int64

    @property
    def last(self) -> int:
        """Absolute position of the last row."""
        return self.first + self.length - 1 if self.explicit is None else int(self.explicit[-1])

    def positions(self, device: torch.device) -> Tensor:
        """Absolute position of each row, (length,)."""
        if self.explicit is not None:
            return self.explicit.to(device)
        return torch.arange(self.first, self.first + self.length, device=device)
