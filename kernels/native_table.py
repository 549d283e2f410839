"""What the compiled attention is told its work by: worked out once a forward pass, in plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from epicrag.kernels.rounding import Rounded
from epicrag.kernels.tables import Extent, LayerKind, Rotary, Rows, Span

# The columns of a span; EXPLICIT and HOLES are addresses or 0, BIAS the bits of a float.
START, LENGTH, TURN, FIRST, EXPLICIT, CHANGE, HOLES, LOCAL, BIAS = range(9)
N_COLUMNS = 9

PIECE = 256
"""Rows of a piece: few enough that keys and values of one head stay in the second cache."""

TILE = 8
"""Queries of one request that meet a piece one after the other, while it is in the cache."""

_CHUNK = 1024
"""Positions that the shared table of rotations grows by."""


class Header(IntEnum):
    """The places of a table's numbers, and of the addresses of its parts."""

    QUERIES = 0
    SPANS = 1
    REQUESTS = 2
    PIECES = 3
    ITEMS = 4
    SLOTS = 5
    TURNS = 6
    WINDOW = 7
    ROTARY = 8
    ROTARY_START = 9
    INTERLEAVED = 10
    LOCAL_LOW = 11
    LOCAL_AT = 12
    COS_AT = 13
    SIN_AT = 14
    SPANS_AT = 15
    REQUESTS_AT = 16
    PIECES_AT = 17
    ITEMS_AT = 18
    SLOTS_AT = 19
    WEIGHTS_AT = 20
    POSITIONS_AT = 21
    MET_AT = 22
    REACH_AT = 23
    MEETINGS = 24
    BLIND = 25


N_HEADER = len(Header)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The work of one flat batch in the layers of one kind."""

    header: int
    """Its address."""
    n_queries: int
    extent: Extent
    n_slots: int
    """Meetings of a query and a piece, at most."""
    n_met: int
    """Meetings of a query and a row, for one head."""
    softcap: int
    """Its bits; 0: none."""
    kept: tuple[Any, ...]
    """What these addresses point into."""


def prepare_native(rows: Sequence[Rows], kind: LayerKind) -> Table:
    """Work out once per forward pass what `attend` does in every layer of a kind.

    ValueError where a query sees no key, where the requests do not tile the batch, on spans that no pool has, or on a
    change of rows that are not at consecutive positions.
    """
    rotary = kind.rotary
    columns: list[int] = []
    requests: list[int] = []
    turn_of: dict[int, int] = {}
    kept: list[Any] = []
    n_queries = n_spans = n_pieces = n_items = n_slots = 0
    extent = Extent(rows)
    low, high = 1 << 60, -(1 << 60)
    for request in rows:
        n_own, own = request.high - request.low, 0
        if request.low != n_queries or len(request.positions) != n_own:
            raise ValueError(
                f"a request of {len(request.positions)} positions begins at row {request.low} and ends before "
                f"{request.high}, where row {n_queries} is next"
            )
        for span in request.spans:
            columns += _columns(span, turn_of if rotary.dim else None, kept)
            own += -(-span.length // PIECE)
            if span.change >= 0 and span.length:
                low, high = min(low, span.local), max(high, span.local + span.length)
        n_next = n_spans + len(request.spans)
        positions = _address(request.positions, kept)
        requests += (n_queries, request.high, n_spans, n_next, positions)
        n_queries, n_spans = request.high, n_next
        n_pieces += own
        n_items += own * -(-n_own // TILE)
        n_slots += own * n_own
    changed = low < high and rotary.dim
    low, high = (low // _CHUNK * _CHUNK, -(-high // _CHUNK) * _CHUNK) if changed else (0, 0)
    cos, sin, local = _turns_of(rotary, tuple(turn_of), low, high)
    sizes = (
        len(columns),
        len(requests),
        n_pieces * 3,
        n_items * 4,
        n_queries * 3,
        n_items + 1,
        n_queries,
        n_slots // 8 + 1,
        n_queries + 1,
    )
    arena = np.empty(N_HEADER + sum(sizes), np.int64)
    base = arena.ctypes.data
    parts = [base + 8 * N_HEADER]
    for size in sizes[:-1]:
        parts.append(parts[-1] + 8 * size)
    header = (
        *(n_queries, n_spans, len(rows), n_pieces, n_items, n_slots, len(turn_of)),
        *(kind.window or 0, rotary.dim, rotary.start, int(rotary.interleaved)),
        *(low, local.data_ptr(), cos.data_ptr(), sin.data_ptr(), *parts, 0, -1),
    )
    numbers = [*header, *columns, *requests]
    arena[: len(numbers)] = numbers
    run, plan = _compiled()[:2]
    run(plan(), (base,))
    n_met, blind = arena[N_HEADER - 2 : N_HEADER].tolist()
    if blind >= 0:
        raise ValueError(f"query {blind} sees no key: a token sees at least itself")
    softcap = float_bits(kind.softcap) if kind.softcap else 0
    return Table(base, n_queries, extent, n_slots, n_met, softcap, (arena, cos, sin, local, *kept))


def _columns(span: Span, turn_of: dict[int, int] | None, kept: list[Any]) -> tuple[int, ...]:
    """A span as numbers. What is pointed at goes to `kept`, and new offsets to `turn_of`."""
    turn, explicit, holes = -1, 0, 0
    if span.delta and turn_of is not None:
        turn = turn_of.setdefault(span.delta, len(turn_of))
    if span.explicit is not None:
        if span.change >= 0:
            raise ValueError("a change of rows that are not at consecutive positions")
        explicit = _address(span.explicit, kept)
    if span.holes is not None and len(span.holes):
        marks = torch.zeros(span.length, dtype=torch.uint8)
        marks[span.holes] = 1
        holes = marks.data_ptr()
        kept.append(marks)
    bias = float_bits(span.bias) if span.bias else 0
    local = span.first - span.delta
    return (span.start, span.length, turn, span.first, explicit, span.change, holes, local, bias)


def _address(whole: Tensor, kept: list[Any]) -> int:
    """Where the int64 numbers of a tensor, or of a copy, lie one after the other."""
    if whole.dtype != torch.int64 or not whole.is_contiguous():
        whole = whole.to(torch.int64).contiguous()
    kept.append(whole)
    return whole.data_ptr()


@lru_cache(maxsize=64)
def _turns_of(
    rotary: Rotary, deltas: tuple[int, ...], low: int, high: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cos and sin of the rotations by `deltas`, and the table of those to positions [low, high)."""
    return *_angles(rotary, torch.tensor(deltas)), _local_turns(rotary, low, high)


@lru_cache(maxsize=8)
def _local_turns(rotary: Rotary, low: int, high: int) -> Tensor:
    """Cos, then sin, of the rotations to positions [low, high), filled up with zeros to a multiple of eight."""
    cos, sin = _angles(rotary, torch.arange(low, high))
    return pad(torch.cat((cos, sin), 1), (0, -rotary.dim % 8)).contiguous()


def _angles(rotary: Rotary, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and sin of rotations, each (n, dim / 2) float32, worked out in float64."""
    angle = delta.to(torch.float64)[:, None] * rotary.inv_freq.to(torch.float64)
    return angle.cos().float().contiguous(), angle.sin().float().contiguous()


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Table,
    scale: float,
    out: Tensor | None = None,
    *,
    rounded: Rounded | None = None,
) -> Tensor:
    """Attend from the tokens of a flat batch to their spans of one layer of the pool.

    queries: (T, H, Dk) float32, rotated at their positions; keys: (G, R, Dk), values: (G, R, Dv) in float32, float16
    or bfloat16, Dk and Dv multiples of 8; `rounded`: the layer's rows in 8 bits. Returns (T, H, Dv) float32, written to `out` where given. A query's result
    is the same in any batch, to the bit. Safe to call from several threads. ValueError on what does not fit.
    """
    out, kind, given = _given(queries, keys, values, table, scale, out, rounded)
    heads, value_dim = out.shape[1:]
    run, _, attention, merge, _ = _compiled()
    partial = queries.new_empty(table.n_slots * heads * (value_dim + 2))
    numbers = (*given[:17], partial.data_ptr(), *given[18:])
    work = table.n_met * heads * (queries.shape[2] + value_dim)
    run(attention(kind), numbers, work, merge(), table.n_slots * heads * value_dim)
    return out


def attend_many(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Table,
    scale: float,
    out: Tensor | None = None,
    *,
    rounded: Rounded | None = None,
) -> Tensor:
    """The same by tiles of queries, which pays where a request has many; its sums are in another order."""
    out, kind, given = _given(queries, keys, values, table, scale, out, rounded)
    run, tiles = _compiled()[0], _compiled()[4]
    run(tiles(kind), given, table.n_met * out.shape[1] * (queries.shape[2] + out.shape[2]))
    return out


def _given(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Table,
    scale: float,
    out: Tensor | None,
    rounded: Rounded | None,
) -> tuple[Tensor, str, tuple[int, ...]]:
    """The output, the kind of pool, and the numbers of the kernels, without an address for partial results."""
    n, heads, dim = queries.shape
    groups, n_pool, value_dim = values.shape
    q_pitch, q_head, q_step = queries.stride()
    k_group, k_pitch, k_step = keys.stride()
    v_group, v_pitch, v_step = values.stride()
    if out is None:
        out = queries.new_empty(n, heads, value_dim)
    kind, size = _POOLS.get(keys.dtype, ("", 0))
    if (
        not size
        or values.dtype != keys.dtype
        or queries.dtype != torch.float32
        or out.dtype != torch.float32
        or n != table.n_queries
        or heads % groups
        or keys.shape != (groups, n_pool, dim)
        or not table.extent.fits(n_pool, 0 if rounded is None else rounded.keys.shape[1])
        or (dim | value_dim) % 8
        or not q_step == k_step == v_step == 1
        or out.shape != (n, heads, value_dim)
        or not out.is_contiguous()
    ):
        raise ValueError(
            f"queries {tuple(queries.shape)} {queries.dtype}, keys {tuple(keys.shape)} {keys.dtype} and values "
            f"{tuple(values.shape)} {values.dtype} do not fit a table of {table.n_queries} queries over {table.extent.n_rows} rows, "
            "or their entries do not stand side by side"
        )
    given = (
        table.header,
        queries.data_ptr(),
        q_pitch,
        q_head,
        keys.data_ptr(),
        k_group * size,
        k_pitch * size,
        values.data_ptr(),
        v_group * size,
        v_pitch * size,
        groups,
        heads // groups,
        dim,
        value_dim,
        float_bits(scale),
        table.softcap,
        out.data_ptr(),
        0,
        n_pool,
        *(_rounded_numbers(rounded, groups, dim, value_dim) if rounded is not None else ()),
    )
    return out, kind, given


def _rounded_numbers(rounded: Rounded, groups: int, dim: int, value_dim: int) -> tuple[int, ...]:
    """Where the rows in 8 bits and their scales lie. ValueError on what does not fit."""
    numbers: list[int] = []
    n = rounded.keys.shape[1]
    for rows, scales, width in (
        (rounded.keys, rounded.key_scales, dim),
        (rounded.values, rounded.value_scales, value_dim),
    ):
        if (
            rows.shape != (groups, n, width)
            or scales.shape != (groups, n)
            or rows.dtype != torch.int8
            or scales.dtype != torch.float32
            or not rows.stride(2) == scales.stride(1) == 1
        ):
            raise ValueError(
                f"rows {tuple(rows.shape)} {rows.dtype} and scales {tuple(scales.shape)} {scales.dtype} do not fit"
            )
        numbers += (rows.data_ptr(), rows.stride(0), rows.stride(1))
        numbers += (scales.data_ptr(), scales.stride(0))
    return tuple(numbers)


_POOLS = {
    torch.float32: ("float32", 4),
    torch.float16: ("float16", 2),
    torch.bfloat16: ("bfloat16", 2),
}


@lru_cache(maxsize=64)
def float_bits(number: float) -> int:
    """A float32 as a whole number, as numbers reach a kernel."""
    return int(np.float32(number).view(np.int32))


@cache
def _compiled() -> tuple[Callable[..., Any], ...]:
    from epicrag.kernels import native_attention, native_jit, native_tiles

    few = native_attention
    return native_jit.run, few.plan, few.attention, few.merge, native_tiles.attention
