"""Segment attention on a GPU: queries counter-rotated once a piece, keys and values read where they lie.

One kernel serves both forms. Its rows are pairs of a query and a head of one group: in the decode form the heads of
one query, in the block form those of many. The softmax runs along as the keys go by (Dao et al., FlashAttention-2);
a request that is dealt out to several programs is merged by its log-sum-exp (Flash-Decoding).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from epicrag.kernels.choice import current
from epicrag.kernels.rounding import Rounded
from epicrag.kernels.tables import LayerKind, Rotary
from epicrag.kernels.triton_aot import Specimen
from epicrag.kernels.triton_table import Table, Tile, tile

LOG2E = tl.constexpr(1.4426950408889634)
PRECISION = tl.constexpr("tf32x3")
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def paired(d, START: tl.constexpr, DIM: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Of entries d of a head: whether they turn, their place in the table of angles, their partner, and the sine's sign."""
    r = d - START
    if INTERLEAVED:
        second = r % 2 == 1
        pair = r // 2
        partner = tl.where(second, d - 1, d + 1)
    else:
        second = r >= DIM // 2
        pair = tl.where(second, r - DIM // 2, r)
        partner = tl.where(second, d - DIM // 2, d + DIM // 2)
        if DIM % 16 == 0 and START % 8 == 0:
            partner = tl.max_contiguous(tl.multiple_of(partner, 8), 8)
    return (r >= 0) & (r < DIM), pair, partner, tl.where(second, 1.0, -1.0)


@triton.jit
def turned_queries(
    queries,
    at,
    ok,
    d,
    turn,
    cos,
    sin,
    DK: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Entries d of the queries at `at`, turned by row `turn` of the table: (M, D) float32."""
    x = tl.load(queries + at[:, None] + d[None, :], mask=ok[:, None] & (d < DK)[None, :], other=0.0)
    x = x.to(tl.float32)
    if DIM > 0:
        moves, pair, partner, sign = paired(d, START, DIM, INTERLEAVED)
        c = tl.load(cos + turn * (DIM // 2) + pair, mask=moves, other=1.0)
        s = tl.load(sin + turn * (DIM // 2) + pair, mask=moves, other=0.0) * sign
        other = tl.load(
            queries + at[:, None] + partner[None, :], mask=ok[:, None] & moves[None, :], other=0.0
        )
        x = x * c[None, :] + other.to(tl.float32) * s[None, :]
    return x


@triton.jit
def changed_keys(
    change,
    local,
    inside,
    d,
    has,
    local_cos,
    local_sin,
    DK: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Entries d of one change, turned to each of the local positions: (D, N) float32, 0 where there is none."""
    c = tl.load(change + d, mask=has & (d < DK), other=0.0).to(tl.float32)
    if DIM > 0:
        moves, pair, partner, sign = paired(d, START, DIM, INTERLEAVED)
        other = tl.load(change + partner, mask=has & moves, other=0.0).to(tl.float32) * sign
        here = local[None, :] * (DIM // 2) + pair[:, None]
        ok = has & moves[:, None] & inside[None, :]
        x = c[:, None] * tl.load(local_cos + here, mask=ok, other=1.0)
        x += other[:, None] * tl.load(local_sin + here, mask=ok, other=0.0)
    else:
        x = c[:, None] + tl.zeros_like(local)[None, :].to(tl.float32)
    return x


@triton.jit
def scored(
    queries_a,
    queries_b,
    keys,
    keys_row,
    scales,
    change,
    has,
    row,
    i,
    inside,
    local,
    local_cos,
    local_sin,
    DK: tl.constexpr,
    DA: tl.constexpr,
    DB: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    EIGHT: tl.constexpr,
    CHANGED: tl.constexpr,
    WIDEN: tl.constexpr,
    EXACT: tl.constexpr = False,
):
    """Products of queries (M, D) with rows `row + i` of the keys: (M, N) float32. EXACT: without tensor cores in float32."""
    how: tl.constexpr = "ieee" if EXACT else PRECISION
    da = tl.arange(0, DA)
    at = (row + i).to(tl.int64)
    scale = i.to(tl.float32)
    if EIGHT:
        scale = tl.load(scales + at, mask=inside, other=0.0)
    a = tl.load(
        keys + at[None, :] * keys_row + da[:, None],
        mask=inside[None, :] & (da < DK)[:, None],
        other=0,
    )
    if CHANGED:
        a = a.to(tl.float32)
        if EIGHT:
            a = a * scale[None, :]
        a += changed_keys(
            change, local + i, inside, da, has, local_cos, local_sin, DK, START, DIM, INTERLEAVED
        )
    if WIDEN:
        a = a.to(tl.float32)  # the interpreter makes no bfloat16 of whole numbers
    a = a.to(queries_a.dtype)
    if WIDEN:
        a = a.to(tl.float32)
        queries_a = queries_a.to(tl.float32)
    scores = tl.dot(queries_a, a, input_precision=how)
    if DB > 0:
        db = DA + tl.arange(0, DB)
        b = tl.load(
            keys + at[None, :] * keys_row + db[:, None],
            mask=inside[None, :] & (db < DK)[:, None],
            other=0,
        )
        if CHANGED:
            b = b.to(tl.float32)
            if EIGHT:
                b = b * scale[None, :]
            b += changed_keys(
                change,
                local + i,
                inside,
                db,
                has,
                local_cos,
                local_sin,
                DK,
                START,
                DIM,
                INTERLEAVED,
            )
        if WIDEN:
            b = b.to(tl.float32)
        b = b.to(queries_b.dtype)
        if WIDEN:
            b = b.to(tl.float32)
            queries_b = queries_b.to(tl.float32)
        scores = tl.dot(queries_b, b, scores, input_precision=how)
    if EIGHT and not CHANGED:
        scores = scores * scale[None, :]
    return scores


@triton.jit
def hidden_scores(
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
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Finished scores in units of log 2, minus infinity where a query at `place` (M,) does not see a row."""
    if SOFTCAP:
        x = scores * (scale / softcap)
        scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))
    else:
        scores = scores * scale
    scores = (scores + bias) * LOG2E
    given = tl.load(explicit + at + i, mask=inside & (at >= 0), other=0)
    position = tl.where(at >= 0, given, first + i)
    seen = inside[None, :] & (position[None, :] <= place[:, None])
    if WINDOW:
        seen = seen & (position[None, :] > place[:, None] - window)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _tiles(
    acc,
    top,
    total,
    queries_a,
    queries_b,
    keys,
    values,
    keys_row,
    values_row,
    key_scales,
    value_scales,
    key_change,
    value_change,
    has,
    row,
    low,
    high,
    length,
    place,
    first,
    at,
    bias,
    local,
    local_cos,
    local_sin,
    explicit,
    scale,
    window,
    softcap,
    DK: tl.constexpr,
    DV: tl.constexpr,
    DA: tl.constexpr,
    DB: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    EIGHT: tl.constexpr,
    CHANGED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    VALUES: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Go through rows [low, high) of one piece: the running sum of values, the largest score, the sum of weights."""
    dv = tl.arange(0, BLOCK_V)
    for n in range(low, high, BLOCK_N):
        i = n + tl.arange(0, BLOCK_N)
        inside = i < length
        scores = scored(
            queries_a,
            queries_b,
            keys,
            keys_row,
            key_scales,
            key_change,
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
        new = tl.maximum(top, tl.max(scores, 1))
        # A query that has seen nothing yet: minus infinity from minus infinity would be no number.
        safe = tl.where(new == float("-inf"), 0.0, new)
        shrink = tl.exp2(top - safe)
        weights = tl.exp2(scores - safe[:, None])
        total = total * shrink + tl.sum(weights, 1)
        top = new
        if VALUES:
            rows = (row + i).to(tl.int64)
            v = tl.load(
                values + rows[:, None] * values_row + dv[None, :],
                mask=inside[:, None] & (dv < DV)[None, :],
                other=0,
            )
            if EIGHT:
                by = tl.load(value_scales + rows, mask=inside, other=0.0)
                if not CHANGED:
                    weights = weights * by[None, :]
            if CHANGED:
                v = v.to(tl.float32)
                if EIGHT:
                    v = v * by[:, None]
                v += tl.load(value_change + dv, mask=has & (dv < DV), other=0.0).to(tl.float32)[
                    None, :
                ]
            if WIDEN:
                v = v.to(tl.float32)
            v = v.to(queries_a.dtype)
            weights = weights.to(queries_a.dtype)
            if WIDEN:
                v = v.to(tl.float32)
                weights = weights.to(tl.float32)
            acc = tl.dot(weights, v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, top, total


@triton.jit
def attend_kernel(
    queries,
    out,
    sums,
    partial,
    partial_sums,
    keys,
    values,
    keys8,
    values8,
    key_scales,
    value_scales,
    items,
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
    values_group,
    values_row,
    keys8_group,
    keys8_row,
    values8_group,
    values8_row,
    key_scales_group,
    value_scales_group,
    n_own,
    scale,
    window,
    softcap,
    REPEAT: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    DA: tl.constexpr,
    DB: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    ROUNDED: tl.constexpr,
    CHANGED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    VALUES: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One item for the heads of one group, or a part of them: see `triton_table`.

    The grid is (items, groups * PARTS).
    """
    item = items + tl.program_id(0) * 8
    group = (tl.program_id(1) // PARTS).to(tl.int64)
    part = tl.program_id(1) % PARTS
    low = tl.load(item)
    count = tl.load(item + 1)
    least = tl.load(item + 4)
    most = tl.load(item + 5)
    slot = tl.load(item + 6)
    r = tl.arange(0, BLOCK_M)
    own = r // HEADS
    head = part * HEADS + r % HEADS
    ok = (own < count) & (head < REPEAT)
    t = (low + own).to(tl.int64)
    place = tl.load(positions + t, mask=ok, other=-1)  # -1: before everything, sees nothing
    at_head = group * REPEAT + head
    at_query = t * queries_row + at_head * queries_head
    da = tl.arange(0, DA)
    dv = tl.arange(0, BLOCK_V)
    keys += group * keys_group
    values += group * values_group
    if ROUNDED:
        keys8 += group * keys8_group
        values8 += group * values8_group
        key_scales += group * key_scales_group
        value_scales += group * value_scales_group
    acc = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for index in range(tl.load(item + 2), tl.load(item + 3)):
        piece = pieces + index * 8
        row = tl.load(piece).to(tl.int64)
        length = tl.load(piece + 1)
        turn = tl.load(piece + 2)
        first = tl.load(piece + 3)
        at = tl.load(piece + 4)
        change = tl.load(piece + 5).to(tl.int64)
        local = tl.load(piece + 6)
        bias = tl.load(piece + 7).to(tl.float32, bitcast=True)
        # Nothing, but Triton cannot know: it would keep what is read of the queries in registers all along.
        at_anew = at_query + tl.minimum(turn, 0)
        # Rows behind the last query are not gone through, nor those before the first one's window.
        begin = 0
        end = length
        if at < 0:
            end = tl.minimum(length, most - first + 1)
            if WINDOW:
                begin = tl.maximum(least - window + 1 - first, 0) // BLOCK_N * BLOCK_N
        elif first > most:
            end = 0
        a = turned_queries(
            queries, at_anew, ok, da, turn, cos, sin, DK, START, DIM, INTERLEAVED
        ).to(keys.dtype.element_ty)
        b = a
        if DB > 0:
            b = turned_queries(
                queries,
                at_anew,
                ok,
                DA + tl.arange(0, DB),
                turn,
                cos,
                sin,
                DK,
                START,
                DIM,
                INTERLEAVED,
            ).to(keys.dtype.element_ty)
        has = change >= 0
        key_change = keys + change * keys_row
        value_change = values + change * values_row
        is_eight = False
        if ROUNDED:
            is_eight = row >= n_own
        if is_eight:
            acc, top, total = _tiles(
                acc,
                top,
                total,
                a,
                b,
                keys8,
                values8,
                keys8_row,
                values8_row,
                key_scales,
                value_scales,
                key_change,
                value_change,
                has,
                row - n_own,
                begin,
                end,
                length,
                place,
                first,
                at,
                bias,
                local,
                local_cos,
                local_sin,
                explicit,
                scale,
                window,
                softcap,
                DK,
                DV,
                DA,
                DB,
                BLOCK_V,
                BLOCK_N,
                START,
                DIM,
                INTERLEAVED,
                True,
                CHANGED,
                WINDOW,
                SOFTCAP,
                VALUES,
                WIDEN,
            )
        else:
            acc, top, total = _tiles(
                acc,
                top,
                total,
                a,
                b,
                keys,
                values,
                keys_row,
                values_row,
                key_scales,
                value_scales,
                key_change,
                value_change,
                has,
                row,
                begin,
                end,
                length,
                place,
                first,
                at,
                bias,
                local,
                local_cos,
                local_sin,
                explicit,
                scale,
                window,
                softcap,
                DK,
                DV,
                DA,
                DB,
                BLOCK_V,
                BLOCK_N,
                START,
                DIM,
                INTERLEAVED,
                False,
                CHANGED,
                WINDOW,
                SOFTCAP,
                VALUES,
                WIDEN,
            )
    some = total > 0
    divisor = tl.where(some, total, 1.0)
    logs = tl.where(some, (top + tl.log2(divisor)) * LN2, float("-inf"))
    if slot < 0:
        tl.store(sums + t * (tl.num_programs(1) // PARTS * REPEAT) + at_head, logs, mask=ok)
        if VALUES:
            tl.store(
                out + t[:, None] * out_row + at_head[:, None] * DV + dv[None, :],
                (acc / divisor[:, None]).to(out.dtype.element_ty),
                mask=ok[:, None] & (dv < DV)[None, :],
            )
    else:
        here = (slot.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * BLOCK_M + r
        tl.store(partial_sums + here, logs)
        if VALUES:
            tl.store(
                partial + here[:, None] * DV + dv[None, :],
                acc / divisor[:, None],
                mask=(dv < DV)[None, :],
            )


@triton.jit
def merge_kernel(
    out,
    sums,
    partial,
    partial_sums,
    blocks,
    out_row,
    REPEAT: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Join the partial results of one block of queries. The grid is (blocks, groups * PARTS)."""
    block = blocks + tl.program_id(0) * 4
    low = tl.load(block)
    count = tl.load(block + 1)
    slot = tl.load(block + 2).to(tl.int64)
    n_slots = tl.load(block + 3)
    r = tl.arange(0, BLOCK_M)
    dv = tl.arange(0, BLOCK_V)
    own = r // HEADS
    head = (tl.program_id(1) % PARTS) * HEADS + r % HEADS
    ok = (own < count) & (head < REPEAT)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    for s in range(n_slots):
        here = ((slot + s) * tl.num_programs(1) + tl.program_id(1)) * BLOCK_M + r
        top = tl.maximum(top, tl.load(partial_sums + here))
    safe = tl.where(top == float("-inf"), 0.0, top)
    acc = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for s in range(n_slots):
        here = ((slot + s) * tl.num_programs(1) + tl.program_id(1)) * BLOCK_M + r
        weight = tl.exp(tl.load(partial_sums + here) - safe)
        total += weight
        if VALUES:
            part = tl.load(
                partial + here[:, None] * DV + dv[None, :], mask=(dv < DV)[None, :], other=0.0
            )
            acc += part * weight[:, None]
    some = total > 0
    divisor = tl.where(some, total, 1.0)
    t = (low + own).to(tl.int64)
    at_head = (tl.program_id(1) // PARTS) * REPEAT + head
    logs = tl.where(some, safe + tl.log(divisor), float("-inf"))
    tl.store(sums + t * (tl.num_programs(1) // PARTS * REPEAT) + at_head, logs, mask=ok)
    if VALUES:
        tl.store(
            out + t[:, None] * out_row + at_head[:, None] * DV + dv[None, :],
            (acc / divisor[:, None]).to(out.dtype.element_ty),
            mask=ok[:, None] & (dv < DV)[None, :],
        )


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None,
    table: Table,
    kind: LayerKind,
    scale: float,
    rounded: Rounded | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from the tokens of a flat batch to their pieces of one layer of the pool.

    queries: (T, H, Dk), rotated at their positions; keys: (G, R, Dk) as compiled; values: (G, R, Dv), or None where only
    the sums are wanted; `rounded`: the layer's rows in 8 bits. Returns the output (T, H, Dv) in the queries'
    type and the log-sum-exp of the scores (T, H) in float32: 0 and minus infinity for a query that sees nothing.
    Products are taken in the keys' type and summed in float32. Raises ValueError on what does not fit.
    """
    n, heads, dim = queries.shape
    groups = keys.shape[0]
    n_eight = 0 if rounded is None else rounded.keys.shape[1]
    if (
        n != table.n_queries
        or heads % groups
        or keys.shape[2] != dim
        or (
            values is not None
            and (values.shape[:2] != keys.shape[:2] or values.dtype != keys.dtype)
        )
        or not table.extent.fits(keys.shape[1], n_eight)
        or (table.rounded and rounded is None)
    ):
        raise ValueError(
            f"queries {tuple(queries.shape)}, keys {tuple(keys.shape)} and values "
            f"{None if values is None else tuple(values.shape)} do not fit a table of {table.n_queries} queries over "
            f"{table.extent.n_rows} rows"
        )
    queries, keys = _dense(queries), _dense(keys)
    values = keys if values is None else _dense(values)
    wanted = values is not keys
    value_dim = values.shape[2] if wanted else 0
    out = queries.new_empty(n, heads, value_dim)
    sums = torch.empty(n, heads, dtype=torch.float32, device=queries.device)
    eight = _eight(rounded if table.rounded else None, keys)
    with current(queries):
        for launch in table.launches:
            cut = launch.tile
            programs = groups * cut.parts
            size = launch.n_slots * programs * cut.block_m
            partial = out.new_empty(size * value_dim, dtype=torch.float32)
            partial_sums = out.new_empty(size, dtype=torch.float32)
            attend_kernel[(launch.items.shape[0], programs)](
                queries,
                out,
                sums,
                partial,
                partial_sums,
                keys,
                values,
                *eight.tensors,
                launch.items,
                table.pieces,
                table.positions,
                table.explicit,
                table.cos,
                table.sin,
                table.local_cos,
                table.local_sin,
                queries.stride(0),
                queries.stride(1),
                heads * value_dim,
                keys.stride(0),
                keys.stride(1),
                values.stride(0),
                values.stride(1),
                *eight.strides,
                keys.shape[1],
                scale,
                kind.window or 0,
                kind.softcap or 1.0,
                **constants(
                    cut, kind, dim, value_dim, heads // groups, table.rounded, table.changed
                ),
                WIDEN=triton.knobs.runtime.interpret,
                num_warps=cut.warps,
                num_stages=cut.stages,
            )
            if launch.n_slots:
                merge_kernel[(launch.blocks.shape[0], programs)](
                    out,
                    sums,
                    partial,
                    partial_sums,
                    launch.blocks,
                    heads * value_dim,
                    REPEAT=heads // groups,
                    HEADS=cut.heads,
                    PARTS=cut.parts,
                    DV=value_dim,
                    BLOCK_V=cut.dim_v,
                    BLOCK_M=cut.block_m,
                    VALUES=wanted,
                    num_warps=4,
                )
    return out, sums


def constants(
    cut: Tile,
    kind: LayerKind,
    dim: int,
    value_dim: int,
    repeat: int,
    rounded: bool,
    changed: bool,
) -> dict[str, int | bool]:
    """What the attention kernel is compiled for. `value_dim` 0: only the sums are wanted."""
    return {
        "REPEAT": repeat,
        "HEADS": cut.heads,
        "PARTS": cut.parts,
        "DK": dim,
        "DV": value_dim,
        "DA": cut.dim_a,
        "DB": cut.dim_b,
        "BLOCK_V": cut.dim_v if value_dim else 16,
        "BLOCK_M": cut.block_m,
        "BLOCK_N": cut.block_n,
        "START": kind.rotary.start,
        "DIM": kind.rotary.dim,
        "INTERLEAVED": kind.rotary.interleaved,
        "ROUNDED": rounded,
        "CHANGED": changed,
        "WINDOW": kind.window is not None,
        "SOFTCAP": bool(kind.softcap),
        "VALUES": value_dim > 0,
    }


class _Eight(NamedTuple):
    """Rows in 8 bits as the kernel takes them; where there are none, what is never read."""

    tensors: tuple[Tensor, ...]
    strides: tuple[int, ...]


def _eight(rounded: Rounded | None, keys: Tensor) -> _Eight:
    if rounded is None:
        return _Eight((keys, keys, keys, keys), (0,) * 6)
    rows = _dense(rounded.keys), _dense(rounded.values)
    scales = _dense(rounded.key_scales), _dense(rounded.value_scales)
    strides = [x.stride(axis) for x in rows for axis in (0, 1)] + [x.stride(0) for x in scales]
    return _Eight((*rows, *scales), tuple(strides))


def _dense(x: Tensor) -> Tensor:
    """The same with neighbouring entries side by side, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Geometry(NamedTuple):
    """Heads as real models have them."""

    name: str
    repeat: int
    dim: int
    value_dim: int
    rotary_dim: int
    start: int = 0
    interleaved: bool = False
    window: int | None = None
    softcap: float | None = None

    @property
    def kind(self) -> LayerKind:
        rotary = Rotary(
            torch.ones(self.rotary_dim // 2), self.rotary_dim, self.interleaved, self.start
        )
        return LayerKind(rotary, self.window, self.softcap)


GEOMETRIES = (
    Geometry("64", 4, 64, 64, 64),
    Geometry("128", 4, 128, 128, 128),
    Geometry("96", 1, 96, 96, 96),
    Geometry("256 softcap window", 2, 256, 256, 256, window=4096, softcap=50.0),
    Geometry("80 partial", 1, 80, 80, 32),
    Geometry("128 partial interleaved", 16, 128, 128, 64, interleaved=True),
    Geometry("192 expanded latent", 1, 192, 128, 64, 128, True),
    Geometry("576 latent", 16, 576, 512, 64, 512, True),
)


def specimens() -> Iterator[Specimen]:
    """What is launched on real models: every geometry in both forms, and the commonest in all its variants."""
    for geometry in GEOMETRIES:
        for form in ("decode", "block"):
            yield specimen(geometry, form)
    for geometry in GEOMETRIES[:2]:
        for form in ("decode", "block"):
            yield specimen(geometry, form, rounded=True)
            yield specimen(geometry, form, changed=True)
            yield specimen(geometry, form, "fp32")
    yield specimen(GEOMETRIES[1], "block", rounded=True, changed=True)
    yield specimen(GEOMETRIES[1], "block", "fp16")
    yield specimen(GEOMETRIES[1], "block", values=False)
    for geometry in (GEOMETRIES[1], GEOMETRIES[7]):
        yield _merge_specimen(geometry)


_SHORT = {"bf16": 2, "fp16": 2, "fp32": 4}


def specimen(
    geometry: Geometry,
    form: str,
    dtype: str = "bf16",
    *,
    rounded: bool = False,
    changed: bool = False,
    values: bool = True,
) -> Specimen:
    """The attention kernel as `attend` launches it."""
    g, own = geometry, f"*{dtype}"
    cut = tile(form, g.repeat, g.dim, g.value_dim, _SHORT[dtype], rounded, changed)
    value_dim = g.value_dim if values else 0
    constexprs = constants(cut, g.kind, g.dim, value_dim, g.repeat, rounded, changed)
    constexprs["WIDEN"] = False
    types = dict.fromkeys(("queries", "out", "keys", "values"), own)
    types |= dict.fromkeys(("keys8", "values8"), "*i8" if rounded else own)
    types |= dict.fromkeys(("key_scales", "value_scales"), "*fp32" if rounded else own)
    types |= dict.fromkeys(("sums", "partial", "partial_sums"), "*fp32")
    types |= dict.fromkeys(("cos", "sin", "local_cos", "local_sin"), "*fp32")
    types |= dict.fromkeys(("items", "pieces", "positions", "explicit"), "*i32")
    types |= dict.fromkeys(("scale", "softcap"), "fp32")
    types |= dict.fromkeys(constexprs, "constexpr")
    signature = {name: types.get(name, "i32") for name in attend_kernel.arg_names}
    kinds = [
        dtype,
        "8 bits" if rounded else "",
        "change" if changed else "",
        "" if values else "sums",
    ]
    name = f"attend {form}, heads of {g.name}, {', '.join(kind for kind in kinds if kind)}"
    # Tables are parts of one copy: where each begins is a multiple of its numbers, not of 16 bytes.
    loose = {"items", "pieces", "positions", "explicit"}
    wide = {
        n
        for n, kind in signature.items()
        if (kind.startswith("*") and n not in loose) or n.endswith(("_row", "_group", "_head"))
    }
    return Specimen(
        name, attend_kernel, signature, constexprs, cut.warps, cut.stages, frozenset(wide)
    )


def _merge_specimen(geometry: Geometry) -> Specimen:
    g = geometry
    cut = tile("decode", g.repeat, g.dim, g.value_dim, 2)
    constexprs = {
        "REPEAT": g.repeat,
        "HEADS": cut.heads,
        "PARTS": cut.parts,
        "DV": g.value_dim,
        "BLOCK_V": cut.dim_v,
        "BLOCK_M": cut.block_m,
        "VALUES": True,
    }
    types = {"out": "*bf16", "sums": "*fp32", "partial": "*fp32", "partial_sums": "*fp32"}
    types |= {"blocks": "*i32", "out_row": "i32"} | dict.fromkeys(constexprs, "constexpr")
    signature = {name: types[name] for name in merge_kernel.arg_names}
    return Specimen(f"merge, heads of {g.name}", merge_kernel, signature, constexprs, 4, 3)
