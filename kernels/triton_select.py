"""How much attention each key receives, on a GPU: the sums of the columns of a matrix that never exists.

Twice through the keys. The first time as in attention, without the values, for what each query's scores are divided by.
The second time each program owns some keys and goes through the queries that see them, so that no two programs
add to one sum, and the result is the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from epicrag.kernels.choice import current
from epicrag.kernels.rounding import Rounded
from epicrag.kernels.tables import LayerKind, Rotary, Rows
from epicrag.kernels.triton_attention import (
    LOG2E,
    attend,
    hidden_scores,
    scored,
    turned_queries,
)
from epicrag.kernels.triton_table import (
    AT,
    FIRST,
    LENGTH,
    NEVER,
    Numbers,
    Table,
    Tile,
    prepare_table,
)

if TYPE_CHECKING:
    from epicrag.kernels.triton_aot import Specimen

# The columns of a task: what one program does for some heads. PIECE: number of the piece; BEGIN: its first row in it;
# COLUMN: where the sums go; LOW, HIGH: the queries that see any of it.
PIECE, BEGIN, COLUMN, LOW, HIGH = range(5)
TASK_COLUMNS = 5


def column_tile(n_queries: int, repeat: int, dim: int, itemsize: int) -> Tile:
    """Choose how to cut column sums. A power of two of heads is taken together, so that rows fold into heads."""
    dim_a = 1 << (max(dim, 16).bit_length() - 1)
    dim_b = 0 if dim <= dim_a else max(16, _power(dim - dim_a))
    row = (dim_a + dim_b) * itemsize  # bytes
    block_m = 64 if row <= 256 else 32 if row <= 512 else 16
    if n_queries * _power(repeat) <= 16:
        block_m = 16
    # What is kept of the keys from one query to the next lies in registers, wider types and in two parts the more.
    weight = row * itemsize * (2 if dim_b else 1)
    block_n = 64 if weight <= 512 else 32 if weight <= 1024 else 16
    heads = min(_power(repeat), block_m)
    warps = 8 if block_m > 16 or itemsize == 2 else 4
    return Tile(block_m, block_n, heads, -(-repeat // heads), dim_a, dim_b, 0, warps, 2)


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The work of one request's column sums in the layers of one kind."""

    low: int
    high: int
    kind: LayerKind
    table: Table
    """Of the request alone: its first query is query 0."""
    tile: Tile
    tasks: Tensor  # (n_tasks, TASK_COLUMNS) int32, on the device
    lengths: tuple[int, ...]
    """Rows of each span."""


def prepare_columns(
    rows: Rows,
    kind: LayerKind,
    *,
    heads: int,
    groups: int,
    dim: int,
    itemsize: int,
    n_own: int,
    device: torch.device,
    programs: int | None = None,
) -> Columns:
    """Work out once what every layer of a kind does; the arguments are those of `prepare_table`."""
    n = rows.high - rows.low
    table = prepare_table(
        [replace(rows, low=0, high=n)],
        kind,
        heads=heads,
        groups=groups,
        dim=dim,
        value_dim=dim,  # not read: so the tiles are those of attention
        itemsize=itemsize,
        n_own=n_own,
        device=device,
        programs=programs,
    )
    cut = column_tile(n, heads // groups, dim, itemsize)
    tasks = torch.from_numpy(_tasks(table.numbers, kind.window, cut.block_n))
    lengths = tuple(span.length for span in rows.spans)
    return Columns(
        rows.low, rows.high, kind, table, cut, tasks.to(device, non_blocking=True), lengths
    )


def _tasks(numbers: Numbers, window: int | None, size: int) -> np.ndarray:
    """All pieces in parts of at most `size` rows, each with the queries that see any of it."""
    parts = [np.empty((0, TASK_COLUMNS), np.int32)]
    column = 0
    for number, piece in enumerate(numbers.pieces):
        length = int(piece[LENGTH])
        begins = np.arange(0, length, size)
        firsts, lasts = _ends(piece, numbers.explicit, begins, size)
        lows = np.searchsorted(numbers.positions, firsts)
        highs = np.full_like(lows, len(numbers.positions))
        if window is not None:
            highs = np.maximum(np.searchsorted(numbers.positions, lasts + window), lows)
        made = np.full_like(begins, number), begins, column + begins, lows, highs
        parts.append(np.stack(made, 1).astype(np.int32))
        column += length
    return np.concatenate(parts)


def _ends(
    piece: np.ndarray, explicit: np.ndarray, begins: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last position that is visible in each part of a piece; NEVER and -1 where none is."""
    length, first, at = int(piece[LENGTH]), int(piece[FIRST]), int(piece[AT])
    if at < 0:
        return first + begins, first + np.minimum(begins + size, length) - 1
    places = np.full((len(begins), size), NEVER, np.int64)
    places.ravel()[:length] = explicit[at : at + length]
    return places.min(1), np.where(places == NEVER, -1, places).max(1)


@triton.jit
def _added(
    acc,
    queries,
    logs,
    positions,
    low,
    high,
    keys,
    keys_row,
    key_scales,
    change,
    has,
    row,
    i,
    inside,
    turn,
    first,
    at,
    bias,
    local,
    cos,
    sin,
    local_cos,
    local_sin,
    explicit,
    group,
    part,
    n_heads,
    queries_row,
    queries_head,
    scale,
    window,
    softcap,
    kept: tl.constexpr,
    REPEAT: tl.constexpr,
    HEADS: tl.constexpr,
    DK: tl.constexpr,
    DA: tl.constexpr,
    DB: tl.constexpr,
    BLOCK_M: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    EIGHT: tl.constexpr,
    CHANGED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Go through queries [low, high): the attention that each row of a block pays to rows i of a piece, added to `acc`."""
    r = tl.arange(0, BLOCK_M)
    head = part * HEADS + r % HEADS
    at_head = group * REPEAT + head
    da = tl.arange(0, DA)
    for block in range(low, high, BLOCK_M // HEADS):
        own = block + r // HEADS
        ok = (own < high) & (head < REPEAT)
        t = own.to(tl.int64)
        place = tl.load(positions + t, mask=ok, other=-1)  # -1: before everything, sees nothing
        log = tl.load(logs + t * n_heads + at_head, mask=ok, other=0.0) * LOG2E
        at_query = t * queries_row + at_head * queries_head
        a = turned_queries(
            queries, at_query, ok, da, turn, cos, sin, DK, START, DIM, INTERLEAVED
        ).to(kept)
        b = a
        if DB > 0:
            db = DA + tl.arange(0, DB)
            b = turned_queries(
                queries, at_query, ok, db, turn, cos, sin, DK, START, DIM, INTERLEAVED
            ).to(kept)
        scores = scored(
            a,
            b,
            keys,
            keys_row,
            key_scales,
            change,
            has,
            row,
            i,
            inside,
            local,
            local_cos,
            local_sin,
            DK,
            DA,
            DB,
            START,
            DIM,
            INTERLEAVED,
            EIGHT,
            CHANGED,
            WIDEN,
            EXACT=kept == tl.float32,
        )
        scores = hidden_scores(
            scores,
            place,
            i,
            inside,
            first,
            at,
            bias,
            explicit,
            scale,
            window,
            softcap,
            WINDOW,
            SOFTCAP,
        )
        # A query that sees nothing: minus infinity from minus infinity would be no number.
        log = tl.where(log == float("-inf"), 0.0, log)
        acc += tl.exp2(scores - log[:, None])
    return acc


@triton.jit
def columns_kernel(
    queries,
    logs,
    out,
    keys,
    keys8,
    key_scales,
    tasks,
    pieces,
    positions,
    explicit,
    cos,
    sin,
    local_cos,
    local_sin,
    queries_row,
    queries_head,
    out_row,
    keys_group,
    keys_row,
    keys8_group,
    keys8_row,
    key_scales_group,
    n_own,
    scale,
    window,
    softcap,
    REPEAT: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    DK: tl.constexpr,
    DA: tl.constexpr,
    DB: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    ROUNDED: tl.constexpr,
    CHANGED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One task for the heads of one group, or a part of them. The grid is (tasks, groups * PARTS)."""
    task = tasks + tl.program_id(0) * 5
    group = (tl.program_id(1) // PARTS).to(tl.int64)
    part = tl.program_id(1) % PARTS
    n_heads = tl.num_programs(1) // PARTS * REPEAT
    begin = tl.load(task + 1)
    column = tl.load(task + 2)
    low = tl.load(task + 3)
    high = tl.load(task + 4)
    piece = pieces + tl.load(task) * 8
    row = tl.load(piece).to(tl.int64)
    length = tl.load(piece + 1)
    turn = tl.load(piece + 2)
    first = tl.load(piece + 3)
    at = tl.load(piece + 4)
    change = tl.load(piece + 5).to(tl.int64)
    local = tl.load(piece + 6)
    bias = tl.load(piece + 7).to(tl.float32, bitcast=True)
    keys += group * keys_group
    key_change = keys + change * keys_row
    has = change >= 0
    n = tl.arange(0, BLOCK_N)
    i = begin + n
    inside = i < length
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    is_eight = False
    if ROUNDED:
        is_eight = row >= n_own
    if is_eight:
        acc = _added(
            acc,
            queries,
            logs,
            positions,
            low,
            high,
            keys8 + group * keys8_group,
            keys8_row,
            key_scales + group * key_scales_group,
            key_change,
            has,
            row - n_own,
            i,
            inside,
            turn,
            first,
            at,
            bias,
            local,
            cos,
            sin,
            local_cos,
            local_sin,
            explicit,
            group,
            part,
            n_heads,
            queries_row,
            queries_head,
            scale,
            window,
            softcap,
            keys.dtype.element_ty,
            REPEAT,
            HEADS,
            DK,
            DA,
            DB,
            BLOCK_M,
            START,
            DIM,
            INTERLEAVED,
            True,
            CHANGED,
            WINDOW,
            SOFTCAP,
            WIDEN,
        )
    else:
        acc = _added(
            acc,
            queries,
            logs,
            positions,
            low,
            high,
            keys,
            keys_row,
            key_scales,
            key_change,
            has,
            row,
            i,
            inside,
            turn,
            first,
            at,
            bias,
            local,
            cos,
            sin,
            local_cos,
            local_sin,
            explicit,
            group,
            part,
            n_heads,
            queries_row,
            queries_head,
            scale,
            window,
            softcap,
            keys.dtype.element_ty,
            REPEAT,
            HEADS,
            DK,
            DA,
            DB,
            BLOCK_M,
            START,
            DIM,
            INTERLEAVED,
            False,
            CHANGED,
            WINDOW,
            SOFTCAP,
            WIDEN,
        )
    sums = tl.sum(tl.reshape(acc, (BLOCK_M // HEADS, HEADS, BLOCK_N)), 0)
    head = part * HEADS + tl.arange(0, HEADS)
    tl.store(
        out + (group * REPEAT + head)[:, None] * out_row + (column + n)[None, :],
        sums,
        mask=(head < REPEAT)[:, None] & inside[None, :],
    )


def column_sums(
    queries: Tensor,
    keys: Tensor,
    columns: Columns,
    scale: float,
    rounded: Rounded | None = None,
) -> list[Tensor]:
    """Sum the attention that the queries of one request pay to each key, for each head and span.

    queries: (T, H, Dk), those of the whole batch, rotated at their positions; keys: (G, R, Dk) as compiled;
    `rounded`: the layer's rows in 8 bits. Returns (H, length) in float32 for each span, parts of one tensor; keys that no query sees
    and holes get 0. Raises ValueError on what does not fit.
    """
    table, cut, kind = columns.table, columns.tile, columns.kind
    if queries.shape[0] < columns.high:
        raise ValueError(f"{queries.shape[0]} queries, of which {columns.high} are needed")
    asking = _dense(queries[columns.low : columns.high])
    keys = _dense(keys)
    _, logs = attend(asking, keys, None, table, kind, scale, rounded)
    heads, groups = queries.shape[1], keys.shape[0]
    out = torch.empty(heads, sum(columns.lengths), dtype=torch.float32, device=queries.device)
    keys8 = key_scales = keys
    if table.rounded and rounded is not None:
        keys8, key_scales = _dense(rounded.keys), _dense(rounded.key_scales)
    if len(columns.tasks):
        with current(queries):
            columns_kernel[(len(columns.tasks), groups * cut.parts)](
                asking,
                logs,
                out,
                keys,
                keys8,
                key_scales,
                columns.tasks,
                table.pieces,
                table.positions,
                table.explicit,
                table.cos,
                table.sin,
                table.local_cos,
                table.local_sin,
                asking.stride(0),
                asking.stride(1),
                out.stride(0),
                keys.stride(0),
                keys.stride(1),
                keys8.stride(0),
                keys8.stride(1),
                key_scales.stride(0),
                keys.shape[1],
                scale,
                kind.window or 0,
                kind.softcap or 1.0,
                **constants(
                    cut, kind, queries.shape[2], heads // groups, table.rounded, table.changed
                ),
                WIDEN=triton.knobs.runtime.interpret,
                num_warps=cut.warps,
                num_stages=cut.stages,
            )
    return list(out.split(columns.lengths, 1))


def constants(
    cut: Tile, kind: LayerKind, dim: int, repeat: int, rounded: bool, changed: bool
) -> dict[str, int | bool]:
    """What the kernel is compiled for."""
    return {
        "REPEAT": repeat,
        "HEADS": cut.heads,
        "PARTS": cut.parts,
        "DK": dim,
        "DA": cut.dim_a,
        "DB": cut.dim_b,
        "BLOCK_M": cut.block_m,
        "BLOCK_N": cut.block_n,
        "START": kind.rotary.start,
        "DIM": kind.rotary.dim,
        "INTERLEAVED": kind.rotary.interleaved,
        "ROUNDED": rounded,
        "CHANGED": changed,
        "WINDOW": kind.window is not None,
        "SOFTCAP": bool(kind.softcap),
    }


def _dense(x: Tensor) -> Tensor:
    """The same with neighbouring entries side by side, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


_LIKE = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def specimens() -> Iterator[Specimen]:
    """What is launched on real models: by head size and type, then each thing that a model or a pool may bring."""
    for dtype in (torch.bfloat16, torch.float32):
        for dim in (64, 96, 128, 256):
            yield from _specimens("plain", _kind(dim), dim, dtype)
    half = torch.bfloat16
    both = {"rounded": True, "changed": True}
    yield from _specimens("one-query", _kind(128), 128, half, n_queries=1)
    yield from _specimens("latent", _kind(64, start=512, interleaved=True), 576, half, repeat=16)
    yield from _specimens("rounded", _kind(128), 128, half, rounded=True)
    yield from _specimens("rounded-changed", _kind(128), 128, half, **both)
    gemma = _kind(256, window=4096, softcap=50.0)
    yield from _specimens("window-softcap", gemma, 256, half, repeat=2)
    yield from _specimens("everything", gemma, 256, half, repeat=2, **both)
    yield from _specimens("everything-one-query", gemma, 256, half, n_queries=1, repeat=2, **both)


def _kind(
    dim: int,
    *,
    start: int = 0,
    interleaved: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> LayerKind:
    return LayerKind(Rotary(torch.empty(0), dim, interleaved, start), window, softcap)


def _specimens(
    name: str,
    kind: LayerKind,
    dim: int,
    dtype: torch.dtype,
    *,
    n_queries: int = 64,
    repeat: int = 4,
    rounded: bool = False,
    changed: bool = False,
) -> Iterator[Specimen]:
    """Both passes of one variant."""
    from epicrag.kernels.triton_aot import Specimen

    types = {
        "queries": "*" + _LIKE[dtype],
        "keys": "*" + _LIKE[dtype],
        "logs": "*fp32",
        "out": "*fp32",
        "keys8": "*i8" if rounded else "*" + _LIKE[dtype],
        "key_scales": "*fp32" if rounded else "*" + _LIKE[dtype],
        "tasks": "*i32",
        "pieces": "*i32",
        "positions": "*i32",
        "explicit": "*i32",
        "cos": "*fp32",
        "sin": "*fp32",
        "local_cos": "*fp32",
        "local_sin": "*fp32",
        "scale": "fp32",
        "softcap": "fp32",
        "keys_group": "i64",
    }
    cut = column_tile(n_queries, repeat, dim, dtype.itemsize)
    constexprs = constants(cut, kind, dim, repeat, rounded, changed) | {"WIDEN": False}
    names = columns_kernel.arg_names
    signature = {x: "constexpr" if x in constexprs else types.get(x, "i32") for x in names}
    yield Specimen(
        f"columns-{name}-{dim}-{_LIKE[dtype]}",
        columns_kernel,
        signature,
        constexprs,
        cut.warps,
        cut.stages,
        _ALIGNED,
    )


_ALIGNED = frozenset(
    [
        "queries",
        "logs",
        "out",
        "keys",
        "keys8",
        "key_scales",
        "tasks",
        "pieces",
        "cos",
        "sin",
        "local_cos",
        "local_sin",
        "queries_row",
        "queries_head",
        "keys_group",
        "keys_row",
        "keys8_group",
        "keys8_row",
    ]
)
