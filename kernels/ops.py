"""The face of the kernels: one name an operation. It checks shapes, chooses the back end and says which and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from epicrag.kernels import cpu, native, reference
from epicrag.kernels.choice import Choice, choices
from epicrag.kernels.rounding import Rounded, round_rows, span_keys, span_values, widen_rows
from epicrag.kernels.tables import LayerKind, Layers, Rotary, Rows, Span

__all__ = [
    "Choice",
    "LayerKind",
    "Layers",
    "Prepared",
    "Rotary",
    "Rounded",
    "Rows",
    "Span",
    "angles",
    "choices",
    "prepare",
    "rotate",
    "round_rows",
    "segment_attention",
    "span_keys",
    "span_values",
    "turn",
    "widen_rows",
]

angles = reference.angles
rotate = reference.rotate
turn = reference.turn


NARROW_QUERIES = 16
"""Queries of one request up to which the compiled kernel takes them one by one, and not in tiles."""


@dataclass(slots=True, eq=False)
class Prepared:
    """What all layers of one kind share about one flat batch's attention; worked out as it is wanted."""

    rows: tuple[Rows, ...]
    kind: LayerKind
    dtype: torch.dtype
    back_end: str
    n_narrow: int = 0
    """How many requests, from the first, have few queries."""
    is_compiled: bool = False
    """Whether the compiled kernels may be used."""
    _table: native.Table | None = None
    _tiles: native.Table | None = None
    _wide: dict[int, cpu.Prepared] = field(default_factory=dict)

    def table(self) -> native.Table:
        """The compiled kernel's work: all requests of few queries together."""
        if self._table is None:
            self._table = native.prepare_native(self.rows[: self.n_narrow], self.kind)
        return self._table

    def tiles(self) -> native.Table:
        """The compiled kernel's work in tiles: all other requests."""
        if self._tiles is None:
            base = self.rows[self.n_narrow].low
            rest = [replace(r, low=r.low - base, high=r.high - base) for r in self.rows[self.n_narrow :]]
            self._tiles = native.prepare_native(rest, self.kind)
        return self._tiles

    def wide(self, index: int) -> cpu.Prepared:
        """The blocked kernel's calls for one request."""
        if index not in self._wide:
            rows = self.rows[index]
            self._wide[index] = cpu.prepare(rows.positions, rows.spans, self.kind, self.dtype)
        return self._wide[index]


def prepare(rows: Sequence[Rows], kind: LayerKind, dtype: torch.dtype) -> Prepared:
    """Say once per forward pass what `segment_attention` is about in every layer of a kind.

    `dtype`: what rotations are worked out in. Where the compiled kernels run, one call of them serves the requests
    of at most NARROW_QUERIES queries that stand first in the batch, and another all others.
    """
    back_end = "reference"
    n_narrow, is_compiled = 0, False
    if rows and rows[0].positions.device.type == "cpu":
        back_end = "cpu"
        is_compiled = dtype == torch.float32 and native.why_not() is None
        if is_compiled:
            while n_narrow < len(rows) and _is_narrow(rows[n_narrow]):
                n_narrow += 1
    return Prepared(tuple(rows), kind, dtype, back_end, n_narrow, is_compiled)


def _is_narrow(rows: Rows) -> bool:
    return rows.high - rows.low <= NARROW_QUERIES


def segment_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prepared: Prepared,
    scale: float,
    rounded: Rounded | None = None,
) -> Tensor:
    """Attend from the tokens of a flat batch to their spans of one layer of the pool.

    queries: (T, H, Dk), rotated at their positions; keys: (G, R, Dk) as compiled, each at its local position;
    values: (G, R, Dv); `rounded`: the layer's rows in 8 bits, where it has any. Each request's queries see what its spans and the layer's kind let them see.
    Returns (T, H, Dv). Raises ValueError on shapes that do not fit.
    """
    if queries.shape[1] % keys.shape[0] or queries.shape[2] != keys.shape[2]:
        raise ValueError(f"queries {tuple(queries.shape)} do not fit keys {tuple(keys.shape)}")
    is_compiled = prepared.is_compiled and _fits_native(keys, values)
    n_narrow = prepared.n_narrow if is_compiled else 0
    rows = prepared.rows
    if n_narrow == len(rows):
        return _narrow(queries, keys, values, prepared, scale, rounded)
    if is_compiled and not n_narrow:
        return _tiled(queries, keys, values, prepared, scale, rounded)
    if len(rows) == 1:
        return _wide(0, queries, keys, values, prepared, scale, rounded)
    out = queries.new_empty((*queries.shape[:2], values.shape[2]))
    if n_narrow:
        high = rows[n_narrow - 1].high
        out[:high] = _narrow(queries[:high], keys, values, prepared, scale, rounded)
    if is_compiled:
        low = rows[n_narrow].low
        out[low:] = _tiled(queries[low:], keys, values, prepared, scale, rounded)
        return out
    for index in range(n_narrow, len(rows)):
        own = slice(rows[index].low, rows[index].high)
        out[own] = _wide(index, queries[own], keys, values, prepared, scale, rounded)
    return out


def _fits_native(keys: Tensor, values: Tensor) -> bool:
    """The compiled kernel works on eight numbers at a time."""
    return not (keys.shape[2] | values.shape[2]) % 8


def _narrow(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prepared: Prepared,
    scale: float,
    rounded: Rounded | None,
) -> Tensor:
    """Requests of few queries, all together."""
    out = native.attend(queries.float(), keys, values, prepared.table(), scale, rounded=rounded)
    return out.to(queries.dtype)


def _tiled(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prepared: Prepared,
    scale: float,
    rounded: Rounded | None,
) -> Tensor:
    """All requests of many queries."""
    given = queries.float(), keys, values, prepared.tiles(), scale
    return native.attend_many(*given, rounded=rounded).to(queries.dtype)


def _wide(
    index: int,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prepared: Prepared,
    scale: float,
    rounded: Rounded | None,
) -> Tensor:
    """One request."""
    if prepared.back_end == "cpu":
        return cpu.segment_attention(queries, keys, values, prepared.wide(index), scale, rounded)[0]
    rows, kind = prepared.rows[index], prepared.kind
    given = queries, rows.positions, keys, values, rows.spans, kind, scale, rounded
    return reference.segment_attention(*given)[0]
