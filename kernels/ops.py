"""The face of the kernels: one name an operation. It checks shapes, chooses the back end and says which and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.kernels import cpu, native, reference, select
from epicrag.kernels.choice import BackEnd, Choice, back_end, choices
from epicrag.kernels.rounding import Rounded, round_rows, span_keys, span_values, widen_rows
from epicrag.kernels.tables import LayerKind, Layers, Rotary, Rows, Span

if TYPE_CHECKING:
    from epicrag.kernels import triton_select

__all__ = [
    "Choice",
    "Columns",
    "LayerKind",
    "Layers",
    "Prepared",
    "Rotary",
    "Rounded",
    "Rows",
    "Span",
    "angles",
    "choices",
    "column_sums",
    "prepare",
    "prepare_columns",
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
"""Queries of one request up to which the compiled kernel is used: see benchmarks/bench_kernels_cpu.py."""


@dataclass(slots=True, eq=False)
class Prepared:
    """What all layers of one kind share about one flat batch's attention; worked out as it is wanted."""

    rows: tuple[Rows, ...]
    kind: LayerKind
    dtype: torch.dtype
    back_end: str
    n_narrow: int = 0
    """How many requests, from the first, have few queries."""
    _table: native.Table | None = None
    _wide: dict[int, cpu.Prepared] = field(default_factory=dict)

    def table(self) -> native.Table:
        """The compiled kernel's work: all requests of few queries together."""
        if self._table is None:
            self._table = native.prepare_native(self.rows[: self.n_narrow], self.kind)
        return self._table

    def wide(self, index: int) -> cpu.Prepared:
        """The blocked kernel's calls for one request."""
        if index not in self._wide:
            rows = self.rows[index]
            self._wide[index] = cpu.prepare(rows.positions, rows.spans, self.kind, self.dtype)
        return self._wide[index]


def prepare(rows: Sequence[Rows], kind: LayerKind, dtype: torch.dtype) -> Prepared:
    """Say once per forward pass what `segment_attention` is about in every layer of a kind.

    `dtype`: what rotations are worked out in. Requests of at most NARROW_QUERIES queries that stand first in the
    batch are served by one call of the compiled kernel, where it runs.
    """
    back_end = "reference"
    n_narrow = 0
    if rows and rows[0].positions.device.type == "cpu":
        back_end = "cpu"
        if dtype == torch.float32 and native.why_not() is None:
            while n_narrow < len(rows) and _is_narrow(rows[n_narrow]):
                n_narrow += 1
    return Prepared(tuple(rows), kind, dtype, back_end, n_narrow)


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
    n_narrow = prepared.n_narrow if _fits_native(keys, values) else 0
    rows = prepared.rows
    if n_narrow == len(rows):
        return _narrow(queries, keys, values, prepared, scale, rounded)
    if len(rows) == 1:
        return _wide(0, queries, keys, values, prepared, scale, rounded)
    out = queries.new_empty((*queries.shape[:2], values.shape[2]))
    if n_narrow:
        high = rows[n_narrow - 1].high
        out[:high] = _narrow(queries[:high], keys, values, prepared, scale, rounded)
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


@dataclass(slots=True, eq=False)
class Columns:
    """What all layers of one kind share about the attention that one request's queries pay to each key."""

    rows: Rows
    kind: LayerKind
    back_end: BackEnd
    _work: triton_select.Columns | None = None

    def work(self, queries: Tensor, keys: Tensor) -> triton_select.Columns:
        """The Triton kernel's work, which is the same in every layer."""
        if self._work is None:
            from epicrag.kernels import triton_select

            self._work = triton_select.prepare_columns(
                self.rows,
                self.kind,
                heads=queries.shape[1],
                groups=keys.shape[0],
                dim=keys.shape[2],
                itemsize=keys.dtype.itemsize,
                n_own=keys.shape[1],
                device=keys.device,
            )
        return self._work


def prepare_columns(rows: Rows, kind: LayerKind) -> Columns:
    """Say once per forward pass what `column_sums` is about in every layer of a kind."""
    return Columns(rows, kind, back_end(rows.positions.device))


def column_sums(
    queries: Tensor,
    keys: Tensor,
    columns: Columns,
    scale: float,
    rounded: Rounded | None = None,
) -> list[Tensor]:
    """Sum the attention that the queries of one request pay to each key, for each head and span.

    queries: (T, H, Dk), those of the whole batch, rotated at their positions; keys: (G, R, Dk), one layer of the
    pool, with its rows in 8 bits. Probabilities are over all that a query sees, in every span. Returns (H, length)
    for each span, in float32 or wider; keys that no query sees and holes get 0. Raises ValueError on shapes that do
    not fit.
    """
    if queries.shape[1] % keys.shape[0] or queries.shape[2] != keys.shape[2]:
        raise ValueError(f"queries {tuple(queries.shape)} do not fit keys {tuple(keys.shape)}")
    if columns.back_end != "triton":
        return select.column_sums(queries, keys, columns.rows, columns.kind, scale, rounded)
    from epicrag.kernels import triton_select

    work = columns.work(queries, keys)
    return triton_select.column_sums(queries, keys, work, scale, rounded)
