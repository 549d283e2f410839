"""The small tables an operation is told its work by: no tensors of the model, nothing to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """How a layer turns its queries and keys by position.

    Entries [start, start + dim) of a head are turned; `dim` may be smaller than D (partial rotary), and is 0
    where a layer does not turn at all. `inv_freq` is the model's own, (dim / 2,), after any scaling, and without
    YaRN's attention factor: that factor multiplies the stored keys already.
    """

    inv_freq: Tensor
    dim: int
    interleaved: bool = False
    start: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LayerKind:
    """How the layers of one kind read: a query at p sees the keys at n with n <= p, and n > p - window if
    there is a window; scores become softcap * tanh(scores / softcap) if there is a softcap."""

    rotary: Rotary
    window: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window of {self.window}: a token sees at least itself")


class Shifts(NamedTuple):
    """By how many positions each of a prompt's segments is turned, which lie one behind the other in its rows."""

    deltas: Sequence[int]
    lengths: Sequence[int]
    """Rows of each segment."""

    def of_rows(self, n: int) -> Tensor:
        """The segment of each of n rows, (n,) int32. ValueError where the lengths do not add up to n."""
        if len(self.deltas) != len(self.lengths) or sum(self.lengths) != n:
            raise ValueError(
                f"{len(self.deltas)} deltas, and segments of {sum(self.lengths):,} rows in all, "
                f"do not fit {n:,} rows"
            )
        numbers = torch.arange(len(self.lengths), dtype=torch.int32)
        return numbers.repeat_interleave(torch.tensor(self.lengths, dtype=torch.int64))


RowSet = Tensor | Sequence[tuple[int, int]] | None
"""Some rows: their numbers (n,), or runs of neighbours as (start, length); None: all there are, in order."""


class Layers(NamedTuple):
    """The kinds of layers of a model, and the kind of each layer."""

    kinds: tuple[LayerKind, ...]
    of_layer: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A run of pool rows that a request reads: one row of its page table.

    The key in row `start + i` was computed at local position `local + i`; it stands in the prompt at
    `local + i + delta`. Where the rows are not at consecutive positions (a request's own tokens), `explicit`
    holds the position of each row, ascending, and `delta` is 0.
    """

    start: int
    length: int
    delta: int
    first: int
    """Absolute position of the first row (of the smallest, when `explicit`)."""
    bias: float = 0.0
    """Added to every score of this span."""
    explicit: Tensor | None = None  # (length,) int64
    change: int = -1
    """Pool row with a constant change of this span's rows, or -1. Its key part stands in the un-rotated frame:
    turned to each row's local position it is added to the key; its value part is added to the value."""
    holes: Tensor | None = None  # int64, ascending
    """Row offsets inside the span that are not visible: they are computed again in rows of the request."""

    @property
    def last(self) -> int:
        """Absolute position of the last row."""
        return self.first + self.length - 1 if self.explicit is None else int(self.explicit[-1])

    @property
    def local(self) -> int:
        """Position that the first row's key was computed at."""
        return self.first - self.delta

    def positions(self, device: torch.device) -> Tensor:
        """Absolute position of each row, (length,)."""
        if self.explicit is not None:
            return self.explicit.to(device)
        return torch.arange(self.first, self.first + self.length, device=device)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One request's queries in a flat batch: rows [low, high), at ascending `positions` (high - low,)."""

    low: int
    high: int
    positions: Tensor
    spans: Sequence[Span]


class Extent:
    """Which rows some requests read, held against each pool once. ValueError on spans that no pool could serve."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.runs: list[tuple[int, int]] = []
        """The first row of each span, and the row behind its last."""
        self.n_changes = 0
        """Rows that the pool must have of its own, for the changes."""
        for span in (span for request in rows for span in request.spans):
            explicit = span.length if span.explicit is None else len(span.explicit)
            if span.start < 0 or span.length < 0 or explicit != span.length:
                raise ValueError(
                    f"a span of {span.length} rows from row {span.start} on, with {explicit} positions"
                )
            if span.length:
                self.runs.append((span.start, span.start + span.length))
                self.n_changes = max(self.n_changes, span.change + 1)
        self.n_rows = max([end for _, end in self.runs] + [self.n_changes])
        self._fitting: set[tuple[int, int]] = set()

    def fits(self, n_own: int, n_rounded: int) -> bool:
        """Whether a pool of so many rows, and so many in 8 bits behind them, has all rows, and each span on one side."""
        if (n_own, n_rounded) in self._fitting:
            return True
        if self.n_rows > n_own + n_rounded or self.n_changes > n_own:
            return False
        if n_rounded and any(start < n_own < end for start, end in self.runs):
            return False
        self._fitting.add((n_own, n_rounded))
        return True
