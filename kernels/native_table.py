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

from epicrag.kernels.tables import LayerKind, Rotary, Rows, Span

Array = np.ndarray[Any, Any]

# The columns of a span.
START, LENGTH, TURN, FIRST, EXPLICIT, CHANGE, HOLES, LOCAL = range(8)

PIECE = 256
"""Rows of a piece: few enough that keys and values of one head stay in the second cache."""

TILE = 8
"""Queries of one request that meet a piece one after the other, while it is in the cache."""

_CHUNK = 1024
"""Positions that the shared table of rotations grows by."""


class Header(IntEnum):
    """The places of a table's numbers and of its arrays' addresses."""

    QUERIES = 0
    SPANS = 1
    PIECES = 2
    ITEMS = 3
    SLOTS = 4
    TURNS = 5
    EXPLICIT = 6
    HOLES = 7
    WINDOW = 8
    ROTARY = 9
    ROTARY_START = 10
    INTERLEAVED = 11
    LOCAL_LOW = 12
    LOCAL_AT = 13
    SPANS_AT = 14
    BIASES_AT = 15
    PIECES_AT = 16
    ITEMS_AT = 17
    SLOTS_AT = 18
    WEIGHTS_AT = 19
    POSITIONS_AT = 20
    EXPLICIT_AT = 21
    HOLES_AT = 22
    COS_AT = 23
    SIN_AT = 24
    REQUESTS = 25
    REQUESTS_AT = 26
    MEETINGS = 27
    BLIND = 28
    MET_AT = 29


N_HEADER = len(Header)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The work of one flat batch in the layers of one kind."""

    header: int
    """Its address."""
    n_queries: int
    n_slots: int
    """Meetings of a query and a piece, at most."""
    n_met: int
    """Meetings of a query and a row, for one head."""
    softcap: int
    """Its bits; 0: none."""
    arrays: tuple[Any, ...]
    """What these addresses point into."""


def prepare_native(rows: Sequence[Rows], kind: LayerKind) -> Table:
    """Work out once per forward pass what `attend` does in every layer of a kind.

    ValueError where a query sees no key, where the requests do not tile the batch, or on a change of rows that are
    not at consecutive positions.
    """
    requests = np.empty((len(rows), 4), np.int64)
    spans: list[Span] = []
    n_queries = 0
    for index, request in enumerate(rows):
        if request.low != n_queries:
            raise ValueError(f"a request begins at row {request.low}, not {n_queries}")
        n_queries = request.high
        requests[index] = request.low, request.high, len(spans), len(spans) + len(request.spans)
        spans.extend(request.spans)
    positions = _joined([request.positions for request in rows])
    if len(positions) != n_queries:
        raise ValueError(f"{len(positions)} positions for {n_queries} queries")
    columns, deltas, explicit, holes = _columns(spans, kind.rotary)
    biases = np.array([span.bias for span in spans], np.float32)
    cos, sin = _angles(deltas, kind.rotary)
    low, turns = _local_turns(columns, kind.rotary)
    n_pieces, n_items, n_slots = _most(columns, requests)
    header = np.zeros(N_HEADER, np.int64)
    arrays = {
        Header.SPANS_AT: columns,
        Header.BIASES_AT: biases,
        Header.PIECES_AT: np.empty((n_pieces, 3), np.int64),
        Header.ITEMS_AT: np.empty((n_items, 4), np.int64),
        Header.SLOTS_AT: np.empty((n_queries, 3), np.int64),
        Header.WEIGHTS_AT: np.empty(n_items + 1, np.int64),
        Header.POSITIONS_AT: positions,
        Header.EXPLICIT_AT: explicit,
        Header.HOLES_AT: holes,
        Header.COS_AT: cos,
        Header.SIN_AT: sin,
        Header.LOCAL_AT: turns,
        Header.REQUESTS_AT: requests,
        Header.MET_AT: np.zeros(n_slots, np.uint8),
    }
    header[: Header.LOCAL_LOW + 1] = (
        n_queries,
        len(spans),
        n_pieces,
        n_items,
        0,
        len(cos),
        len(explicit),
        len(holes),
        kind.window or 0,
        kind.rotary.dim,
        kind.rotary.start,
        kind.rotary.interleaved,
        low,
    )
    header[Header.REQUESTS] = len(rows)
    for place, array in arrays.items():
        header[place] = array.ctypes.data
    run, plan = _compiled()[:2]
    run(plan(), (header.ctypes.data,))
    blind, n_met = int(header[Header.BLIND]), int(header[Header.MEETINGS])
    if blind >= 0:
        raise ValueError(f"query {blind} sees no key: a token sees at least itself")
    kept = (header, *arrays.values())
    return Table(header.ctypes.data, n_queries, n_slots, n_met, _bits(kind.softcap or 0.0), kept)


def _most(columns: Array, requests: Array) -> tuple[int, int, int]:
    """How many pieces and items there are at most, and how many slots."""
    pieces = np.concatenate(([0], np.cumsum(-(-columns[:, LENGTH] // PIECE))))
    own = pieces[requests[:, 3]] - pieces[requests[:, 2]]
    queries = requests[:, 1] - requests[:, 0]
    return int(own.sum()), int((own * -(-queries // TILE)).sum()), int((own * queries).sum())


def _columns(spans: Sequence[Span], rotary: Rotary) -> tuple[Array, list[int], Array, Array]:
    """The spans as rows of numbers; the distinct offsets; all explicit positions; all marks of holes."""
    columns = np.empty((len(spans), 8), np.int64)
    turn_of: dict[int, int] = {}
    explicit: list[Tensor] = []
    marks: list[Array] = []
    n_explicit, n_marks = 0, 0
    table = []
    for span in spans:
        turn = -1
        if span.delta and rotary.dim:
            turn = turn_of.setdefault(span.delta, len(turn_of))
        own = hidden = -1
        if span.explicit is not None:
            if span.change >= 0:
                raise ValueError("a change of rows that are not at consecutive positions")
            own = n_explicit
            explicit.append(span.explicit)
            n_explicit += span.length
        if span.holes is not None and len(span.holes):
            hidden = n_marks
            mark = np.zeros(span.length, np.uint8)
            mark[span.holes.numpy()] = 1
            marks.append(mark)
            n_marks += span.length
        local = span.first - span.delta
        table.append((span.start, span.length, turn, span.first, own, span.change, hidden, local))
    columns[:] = table or np.empty((0, 8), np.int64)
    holes = np.concatenate(marks) if marks else np.empty(0, np.uint8)
    return columns, list(turn_of), _joined(explicit), holes


def _joined(tensors: Sequence[Tensor]) -> Array:
    if not tensors:
        return np.empty(0, np.int64)
    arrays = [tensor.numpy() for tensor in tensors]
    whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return np.ascontiguousarray(whole, np.int64)


def _angles(deltas: Sequence[int], rotary: Rotary) -> tuple[Array, Array]:
    """Cos and sin of rotations by `deltas` positions, each (n, dim / 2) float32, worked out in float64."""
    if not deltas or not rotary.dim:
        return np.empty((0, 0), np.float32), np.empty((0, 0), np.float32)
    angle = np.outer(np.array(deltas, np.float64), rotary.inv_freq.numpy().astype(np.float64))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _local_turns(columns: Array, rotary: Rotary) -> tuple[int, Array]:
    """The first position, and cos and sin by position, of the rotations of all changed rows."""
    changed = columns[(columns[:, CHANGE] >= 0) & (columns[:, LENGTH] > 0)]
    if not len(changed) or not rotary.dim:
        return 0, np.empty((0, 0), np.float32)
    low = int(changed[:, LOCAL].min()) // _CHUNK * _CHUNK
    high = -(-int((changed[:, LOCAL] + changed[:, LENGTH]).max()) // _CHUNK) * _CHUNK
    return low, _turns(rotary, low, high)


@lru_cache(maxsize=8)
def _turns(rotary: Rotary, low: int, high: int) -> Array:
    """Cos, then sin, of the rotations to positions [low, high), filled up with zeros to a multiple of eight."""
    cos, sin = _angles(range(low, high), rotary)
    table = np.zeros((high - low, -(-rotary.dim // 8) * 8), np.float32)
    table[:, : rotary.dim // 2], table[:, rotary.dim // 2 : rotary.dim] = cos, sin
    return table


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Table,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from the tokens of a flat batch to their spans of one layer of the pool.

    queries: (T, H, Dk) float32, rotated at their positions; keys: (G, R, Dk), values: (G, R, Dv) in float32, float16
    or bfloat16, Dk and Dv multiples of 8. Returns (T, H, Dv) float32, written to `out` where given. A query's result
    is the same in any batch, to the bit. Safe to call from several threads. ValueError on what does not fit.
    """
    n, heads, dim = queries.shape
    groups, _, value_dim = values.shape
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
        or keys.shape[0] != groups
        or keys.shape[2] != dim
        or (dim | value_dim) % 8
        or not q_step == k_step == v_step == 1
        or out.shape != (n, heads, value_dim)
        or not out.is_contiguous()
    ):
        raise ValueError(
            f"queries {tuple(queries.shape)} {queries.dtype}, keys {tuple(keys.shape)} {keys.dtype} and values "
            f"{tuple(values.shape)} {values.dtype} do not fit a table of {table.n_queries} queries"
        )
    run, _, attention, merge = _compiled()
    partial = queries.new_empty(table.n_slots * heads * (value_dim + 2))
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
        _bits(scale),
        table.softcap,
        out.data_ptr(),
        partial.data_ptr(),
    )
    run(attention(kind), given, table.n_met * heads * (dim + value_dim))
    run(merge(), given, table.n_slots * heads * value_dim)
    return out


_POOLS = {
    torch.float32: ("float32", 4),
    torch.float16: ("float16", 2),
    torch.bfloat16: ("bfloat16", 2),
}


@lru_cache(maxsize=64)
def _bits(number: float) -> int:
    """A float32 as a whole number, as numbers reach a kernel."""
    return int(np.float32(number).view(np.int32))


@cache
def _compiled() -> tuple[Callable[..., Any], ...]:
    from epicrag.kernels import native_attention, native_jit

    compiled = native_attention
    return native_jit.run, compiled.plan, compiled.attention, compiled.merge
