"""The face of the kernels: one name an operation. It checks shapes, chooses the back end and says which and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.kernels import cpu, native, reference, select
from epicrag.kernels.choice import WISH, BackEnd, Choice, back_end, choices, triton_lacks, wish
from epicrag.kernels.rounding import Rounded, round_rows, span_keys, span_values, widen_rows
from epicrag.kernels.tables import LayerKind, Layers, Rotary, Rows, RowSet, Shifts, Span

if TYPE_CHECKING:
    from epicrag.kernels import triton_select
    from epicrag.kernels.triton_table import Table

__all__ = [
    "WISH",
    "BackEnd",
    "Choice",
    "Columns",
    "LayerKind",
    "Layers",
    "Prepared",
    "Rotary",
    "Rounded",
    "RowSet",
    "Rows",
    "Shifts",
    "Span",
    "angles",
    "append",
    "back_end",
    "choices",
    "column_sums",
    "move_rows",
    "prepare",
    "prepare_columns",
    "rotate",
    "round_rows",
    "segment_attention",
    "span_keys",
    "span_values",
    "triton_lacks",
    "turn",
    "widen_rows",
    "wish",
]

angles = reference.angles
turn = reference.turn


def rotate(
    x: Tensor, delta: Tensor | int | Shifts, rotary: Rotary, out: Tensor | None = None
) -> Tensor:
    """Turn keys or queries by `delta` positions: `R(delta) x`, computed in float32 or wider, cast once.

    x: (..., T, D), of any strides; delta: a number, one for each of the T rows or for each segment of them, or a
    tensor that broadcasts to x's shape without D. `out`: takes the result; it may be x, but no other view of its
    memory. Returns `out`; x itself where nothing turns and there is no `out`. ValueError where shapes do not fit.
    """
    plain = isinstance(delta, int | Shifts) or delta.numel() == 1 or delta.shape == x.shape[-2:-1]
    if not plain or back_end(x.device) != "triton":
        return reference.rotate(x, delta, rotary, out)
    from epicrag.kernels import triton_rows

    return triton_rows.rotate(x if x.stride(-1) == 1 else x.contiguous(), delta, rotary, out)


def move_rows(
    source: Sequence[Tensor], target: Sequence[Tensor], source_rows: RowSet, target_rows: RowSet
) -> None:
    """Copy rows of each tensor of `source` to rows of its fellow in `target`, cast to its type.

    Tensors are (L, G, N, D), or (L, G, N) for scales; on each side all have the same L, G and N. Within one tensor
    the rows that are read and those that are written must not be the same ones; each is written once. ValueError
    where something does not fit.
    """
    if back_end(target[0].device) != "triton":
        return reference.move_rows(source, target, source_rows, target_rows)
    from epicrag.kernels import triton_rows

    return triton_rows.move_rows(source, target, source_rows, target_rows)


def append(
    keys: Tensor,
    values: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    rows: Tensor | slice,
    chosen: BackEnd | None = None,
) -> None:
    """Write the keys (G, T, Dk) and values (G, T, Dv) of new tokens to their rows of one layer of a pool, (G, R, D).

    rows: (T,), or a slice of T neighbours. `chosen`: the pool's back end, for callers that have found it out once for
    all layers.
    """
    if (chosen or back_end(pool_keys.device)) == "triton":
        from epicrag.kernels import triton_rows

        return triton_rows.append(keys, values, pool_keys, pool_values, rows)
    pool_keys[:, rows] = keys
    pool_values[:, rows] = values


NARROW_QUERIES = 4
"""Queries of one request up to which the compiled kernel takes them one by one, and not in tiles."""

NARROW_BESIDE_TORCH = 16
"""The same where those of many queries are torch's."""


@dataclass(slots=True, eq=False)
class Prepared:
    """What all layers of one kind share about one flat batch's attention; worked out as it is wanted."""

    rows: tuple[Rows, ...]
    kind: LayerKind
    dtype: torch.dtype
    back_end: BackEnd
    n_narrow: int = 0
    """How many requests, from the first, have few queries."""
    is_compiled: bool = False
    """Whether the compiled kernels may be used."""
    in_tiles: bool = False
    """Whether they serve requests of many queries, too."""
    _table: native.Table | None = None
    _tiles: native.Table | None = None
    _wide: dict[int, cpu.Prepared] = field(default_factory=dict)
    _triton: dict[tuple[int, ...], Table] = field(default_factory=dict)

    def table(self) -> native.Table:
        """The compiled kernel's work: all requests of few queries together."""
        if self._table is None:
            self._table = native.prepare_native(self.rows[: self.n_narrow], self.kind)
        return self._table

    def tiles(self) -> native.Table:
        """The compiled kernel's work in tiles: all other requests."""
        if self._tiles is None:
            base = self.rows[self.n_narrow].low
            rest = [
                replace(r, low=r.low - base, high=r.high - base) for r in self.rows[self.n_narrow :]
            ]
            self._tiles = native.prepare_native(rest, self.kind)
        return self._tiles

    def triton(self, queries: Tensor, keys: Tensor, values: Tensor) -> Table:
        """The page table for a layer of this shape: queries (T, H, Dk), keys (G, R, Dk), values (G, R, Dv)."""
        n_own, itemsize = keys.shape[1], keys.dtype.itemsize
        shape = queries.shape[1], keys.shape[0], keys.shape[2], values.shape[2], itemsize, n_own
        if shape not in self._triton:
            from epicrag.kernels.triton_table import prepare_table

            heads, groups, dim, value_dim = shape[:4]
            self._triton[shape] = prepare_table(
                self.rows,
                self.kind,
                heads=heads,
                groups=groups,
                dim=dim,
                value_dim=value_dim,
                itemsize=itemsize,
                n_own=n_own,
                device=keys.device,
            )
        return self._triton[shape]

    def wide(self, index: int) -> cpu.Prepared:
        """The blocked kernel's calls for one request."""
        if index not in self._wide:
            rows = self.rows[index]
            self._wide[index] = cpu.prepare(rows.positions, rows.spans, self.kind, self.dtype)
        return self._wide[index]


def prepare(
    rows: Sequence[Rows], kind: LayerKind, dtype: torch.dtype, operands: torch.dtype | None = None
) -> Prepared:
    """Say once per forward pass what `segment_attention` is about in every layer of a kind.

    `dtype`: what rotations are worked out in; `operands`: what queries and keys are in. Where the compiled kernels
    run, one call of them serves the requests of at most NARROW_QUERIES queries that stand first in the batch, and
    another all others; but products in bfloat16, where the processor has units for them, are left to torch.
    """
    chosen = back_end(rows[0].positions.device) if rows else "reference"
    is_compiled = chosen == "cpu" and dtype == torch.float32 and native.why_not() is None
    in_tiles = is_compiled and not (operands == torch.bfloat16 and native.has_matrix_units())
    limit = 0 if not is_compiled else NARROW_QUERIES if in_tiles else NARROW_BESIDE_TORCH
    n_narrow = 0
    while n_narrow < len(rows) and rows[n_narrow].high - rows[n_narrow].low <= limit:
        n_narrow += 1
    return Prepared(tuple(rows), kind, dtype, chosen, n_narrow, is_compiled, in_tiles)


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
    if prepared.back_end == "triton":
        from epicrag.kernels import triton_attention

        given = queries, keys, values, prepared.triton(queries, keys, values), prepared.kind, scale
        return triton_attention.attend(*given, rounded)[0]
    is_compiled = prepared.is_compiled and _fits_native(keys, values)
    n_narrow = prepared.n_narrow if is_compiled else 0
    rows = prepared.rows
    if n_narrow == len(rows):
        return _native(native.attend, queries, keys, values, prepared.table(), scale, rounded)
    in_tiles = is_compiled and prepared.in_tiles
    if in_tiles and not n_narrow:
        return _native(native.attend_many, queries, keys, values, prepared.tiles(), scale, rounded)
    if len(rows) == 1:
        return _wide(0, queries, keys, values, prepared, scale, rounded)
    out = queries.new_empty((*queries.shape[:2], values.shape[2]))
    if n_narrow:
        high = rows[n_narrow - 1].high
        few = queries[:high], keys, values, prepared.table(), scale, rounded
        out[:high] = _native(native.attend, *few)
    if in_tiles:
        low = rows[n_narrow].low
        many = queries[low:], keys, values, prepared.tiles(), scale, rounded
        out[low:] = _native(native.attend_many, *many)
        return out
    for index in range(n_narrow, len(rows)):
        own = slice(rows[index].low, rows[index].high)
        out[own] = _wide(index, queries[own], keys, values, prepared, scale, rounded)
    return out


def _fits_native(keys: Tensor, values: Tensor) -> bool:
    """The compiled kernel works on eight numbers at a time."""
    return not (keys.shape[2] | values.shape[2]) % 8


def _native(
    attend: Callable[..., Tensor],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: native.Table,
    scale: float,
    rounded: Rounded | None,
) -> Tensor:
    """By a compiled kernel: `native.attend` or `native.attend_many`, which compute in float32."""
    return attend(queries.float(), keys, values, table, scale, rounded=rounded).to(queries.dtype)


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
    own, kind = prepared.rows[index], prepared.kind
    given = queries, own.positions, keys, values, own.spans, kind, scale, rounded
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
