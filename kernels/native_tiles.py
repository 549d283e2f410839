"""Segment attention for many queries, compiled: blocks of pool rows made ready in the cache, met by tiles of queries.

A thread takes some queries of one group, and piece after piece of the rows that they see: the keys are turned to
their places, widened and laid out for the product while they stand in the second cache, rows that nobody sees are left
out, and six queries at a time meet the piece with all sums in registers. What is added to what depends on a query and
its spans alone, so that it gets the same bits in any batch and with any number of threads.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math
from functools import cache

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from epicrag.kernels.native_attention import _BYTES, _EIGHT, _adjust, _seen, _wide
from epicrag.kernels.native_jit import (
    F32,
    I32,
    I64,
    KINDS,
    LANES,
    N_NUMBERS,
    TAGS,
    compiled,
    exponential,
    float_of,
    floats,
    fma,
    kernel,
    largest,
    load,
    loop,
    number,
    octets,
    splat,
    store,
    total,
    vector_of,
    wholes,
    widen,
    widest,
)
from epicrag.kernels.native_table import (
    BIAS,
    CHANGE,
    FIRST,
    HOLES,
    LENGTH,
    LOCAL,
    N_COLUMNS,
    N_HEADER,
    PIECE,
    START,
    TURN,
    Header,
)

_LANES = widest()

_ROWS = 6
"""Queries of a tile: with two vectors of columns, their sums and one row of each side fill sixteen registers."""

_VECTOR, _ZERO = vector_of(_LANES), number(0.0, _LANES)

_WIDE = 2 * _LANES
"""Columns of a tile."""

_TOGETHER = 4
"""Tiles that meet the same columns one after the other, while these are in the first cache."""

_PITCH = 4 * (PIECE + _WIDE)
"""Bytes from one query's scores to the next one's: not a power of two."""

_NUMBERS = 1 << 16
"""Numbers of the queries that meet a piece while it is in the second cache."""


@intrinsic
def _score_tile(context, query, panel, dim, out):
    """Products of six queries, laid out entry by entry, with a panel's keys, likewise; rows of `out` are _PITCH apart."""

    def generate(context, b, signature, arguments):
        query, panel, dim, out = arguments
        cells = [(i, j) for i in range(_ROWS) for j in range(_WIDE // _LANES)]
        sums = {cell: cgutils.alloca_once(b, _VECTOR) for cell in cells}
        for place in sums.values():
            b.store(_ZERO, place)
        with loop(b, I64(0), dim, I64(1)) as (d, _):
            q = b.add(query, b.mul(d, I64(4 * _ROWS)))
            k = b.add(panel, b.mul(d, I64(4 * _WIDE)))
            keys = [load(b, b.add(k, I64(4 * _LANES * j)), _VECTOR) for j in range(_WIDE // _LANES)]
            for i in range(_ROWS):
                one = splat(b, load(b, b.add(q, I64(4 * i)), F32), _LANES)
                for j, key in enumerate(keys):
                    b.store(fma(b, key, one, b.load(sums[i, j])), sums[i, j])
        for (i, j), place in sums.items():
            store(b, b.load(place), b.add(out, I64(_PITCH * i + 4 * _LANES * j)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _mix(width: int, lanes: int = _LANES):
    """Six rows of sums, each times its factor, and n rows of `width` vectors of values times their weights."""

    kind = vector_of(lanes)

    @intrinsic
    def mix(context, weights, value, pitch, n, factors, out, out_pitch):
        def generate(context, b, signature, arguments):
            weights, value, pitch, n, factors, out, out_pitch = arguments
            cells = [(i, j) for i in range(_ROWS) for j in range(width)]
            places = {
                (i, j): b.add(b.add(out, b.mul(out_pitch, I64(i))), I64(4 * lanes * j))
                for i, j in cells
            }
            sums = {cell: cgutils.alloca_once(b, kind) for cell in cells}
            for i in range(_ROWS):
                factor = splat(b, load(b, b.add(factors, I64(4 * i)), F32), lanes)
                for j in range(width):
                    b.store(b.fmul(load(b, places[i, j], kind), factor), sums[i, j])
            with loop(b, I64(0), n, I64(1)) as (row, _):
                v = b.add(value, b.mul(row, pitch))
                w = b.add(weights, b.shl(row, I64(2)))
                values = [load(b, b.add(v, I64(4 * lanes * j)), kind) for j in range(width)]
                for i in range(_ROWS):
                    one = splat(b, load(b, b.add(w, I64(_PITCH * i)), F32), lanes)
                    for j, each in enumerate(values):
                        b.store(fma(b, each, one, b.load(sums[i, j])), sums[i, j])
            for cell, place in sums.items():
                store(b, b.load(place), places[cell])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return mix


_mix_2, _mix_1, _mix_8 = _mix(2), _mix(1), _mix(1, LANES)


@intrinsic
def _largest(context, scores, n, known):
    """The largest of n scores (whole vectors) and `known`."""

    def generate(context, b, signature, arguments):
        scores, n, known = arguments
        top = cgutils.alloca_once_value(b, splat(b, known, _LANES))
        with loop(b, I64(0), n, I64(_LANES)) as (index, _):
            value, best = load(b, b.add(scores, b.shl(index, I64(2))), _VECTOR), b.load(top)
            b.store(b.select(b.fcmp_ordered(">", best, value), best, value), top)
        return largest(b, b.load(top))

    return types.float32(types.int64, types.int64, types.float32), generate


@intrinsic
def _powers(context, scores, n, most):
    """n scores (whole vectors) to e to the power of what they are below `most`; returns their sum."""

    def generate(context, b, signature, arguments):
        scores, n, most = arguments
        most = splat(b, most, _LANES)
        mass = cgutils.alloca_once_value(b, _ZERO)
        with loop(b, I64(0), n, I64(_LANES)) as (index, _):
            address = b.add(scores, b.shl(index, I64(2)))
            value = exponential(b, b.fsub(load(b, address, _VECTOR), most))
            store(b, value, address)
            b.store(b.fadd(b.load(mass), value), mass)
        return total(b, b.load(mass))

    return types.float32(types.int64, types.int64, types.float32), generate


@intrinsic
def _widened(context, tag, address, n, out):
    """n numbers of the pool (in eights) as floats."""
    kind = KINDS[tag]

    def generate(context, b, signature, arguments):
        _, address, n, out = arguments
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            store(b, widen(b, kind, address, index), b.add(out, b.shl(index, I64(2))))
        return context.get_dummy_value()

    return types.void(tag, *[types.int64] * 3), generate


@intrinsic
def _scaled(context, row, n, factor):
    """n floats (in eights) times a factor, in place."""

    def generate(context, b, signature, arguments):
        row, n, factor = arguments
        factor = splat(b, factor)
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            address = b.add(row, b.shl(index, I64(2)))
            store(b, b.fmul(load(b, address), factor), address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


@intrinsic
def _turned_halves(context, row, half, cos, sin):
    """Turn two halves (in eights) of a row, in place."""

    def generate(context, b, signature, arguments):
        row, half, cos, sin = arguments
        apart = b.shl(half, I64(2))
        with loop(b, I64(0), half, I64(LANES)) as (index, _):
            offset = b.shl(index, I64(2))
            first = b.add(row, offset)
            second = b.add(first, apart)
            x, y = load(b, first), load(b, second)
            c, s = load(b, b.add(cos, offset)), load(b, b.add(sin, offset))
            store(b, b.fsub(b.fmul(x, c), b.fmul(y, s)), first)
            store(b, fma(b, y, c, b.fmul(x, s)), second)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def _lay_out(context, rows, dim, panel):
    """Eight rows of `dim` floats (in eights), one after the other, to eight of a panel's columns."""

    def generate(context, b, signature, arguments):
        rows, dim, panel = arguments
        pitch = b.shl(dim, I64(2))

        def shuffle(x, y, order):
            return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, LANES), order))

        with loop(b, I64(0), dim, I64(LANES)) as (d, _):
            offset = b.shl(d, I64(2))
            r = [load(b, b.add(b.add(rows, b.mul(pitch, I64(i))), offset)) for i in range(LANES)]
            low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
            t = [shuffle(r[i], r[i + 1], order) for i in (0, 2, 4, 6) for order in (low, high)]
            low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
            u = [
                shuffle(t[i], t[i + 2], order) for i in (0, 1, 4, 5) for order in (low, high)
            ]  # four of each: entries 0, 1, 2, 3 and 4 above
            low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
            out = b.add(panel, b.mul(d, I64(4 * _WIDE)))
            for order, first in ((low, 0), (high, 4)):
                for i in range(4):
                    column = b.add(out, I64(4 * _WIDE * (first + i)))
                    store(b, shuffle(u[i], u[i + 4], order), column)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@compiled
def _turn(at, row, rotary, start, interleaved, cos_at, sin_at):
    """Turn a row of floats, at an address and as an array, by the cos and sin at an address."""
    half = rotary // 2
    if not interleaved and half % 8 == 0:
        _turned_halves(at + 4 * start, half, cos_at, sin_at)
        return
    cos, sin = numba.carray(floats(cos_at), (half,)), numba.carray(floats(sin_at), (half,))
    step, apart = (2, 1) if interleaved else (1, half)
    for i in range(half):
        first = start + i * step
        x, y = row[first], row[first + apart]
        row[first] = x * cos[i] - y * sin[i]
        row[first + apart] = y * cos[i] + x * sin[i]


def _attention(tag, size):
    """The kernel over a pool of one kind of numbers; size: bytes of a number."""

    def attention(address, thread, threads):
        a = numba.carray(wholes(address), (N_NUMBERS,))
        header = numba.carray(wholes(a[0]), (N_HEADER,))
        queries = numba.carray(floats(a[1]), (1 << 40,))
        q_pitch, q_head = a[2], a[3]
        keys, k_group, k_pitch = a[4], a[5], a[6]
        values, v_group, v_pitch = a[7], a[8], a[9]
        groups, repeat, dim, value_dim = a[10], a[11], a[12], a[13]
        heads = groups * repeat
        n_pool = a[18]
        keys_8, k_group_8, k_pitch_8, k_scales, ks_group = a[19], a[20], a[21], a[22], a[23]
        values_8, v_group_8, v_pitch_8, v_scales, vs_group = a[24], a[25], a[26], a[27], a[28]
        scale, softcap = float_of(a[14]), float_of(a[15])
        n = header[Header.QUERIES]
        out = numba.carray(floats(a[16]), (n * heads * value_dim,))
        spans = numba.carray(wholes(header[Header.SPANS_AT]), (header[Header.SPANS], N_COLUMNS))
        requests = numba.carray(wholes(header[Header.REQUESTS_AT]), (header[Header.REQUESTS], 5))
        positions = numba.carray(wholes(header[Header.POSITIONS_AT]), (n,))
        reach = numba.carray(wholes(header[Header.REACH_AT]), (n + 1,))
        rotary, start = header[Header.ROTARY], header[Header.ROTARY_START]
        interleaved = header[Header.INTERLEAVED] != 0
        half = rotary // 2
        window = header[Header.WINDOW]
        local_pitch = (rotary + 7) // 8 * 8 * 4

        most_queries = max(_NUMBERS // (dim * repeat), 1)
        most_tiles = (most_queries * repeat + _ROWS - 1) // _ROWS
        n_rows = most_tiles * _ROWS
        # Everything that is worked on, in one piece of memory: addresses in bytes behind `base`.
        panel_at = 0
        query_at = panel_at + PIECE * dim
        sums_at = query_at + n_rows * dim
        value_at = sums_at + n_rows * value_dim
        stage_at = value_at + PIECE * value_dim
        change_at = stage_at + 8 * dim
        scores_at = change_at + dim
        factor_at = scores_at + _TOGETHER * _ROWS * (PIECE + _WIDE)
        scratch = np.zeros(factor_at + _TOGETHER * _ROWS, np.float32)
        base = scratch.ctypes.data
        panel, tiles, sums = base + 4 * panel_at, base + 4 * query_at, base + 4 * sums_at
        stage, scores, factors = base + 4 * stage_at, base + 4 * scores_at, base + 4 * factor_at
        changed = scratch[change_at : change_at + dim]
        tops, masses = np.empty(n_rows, np.float32), np.empty(n_rows, np.float32)
        lows, highs = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
        kept, before = np.empty(PIECE, np.int64), np.empty(PIECE + 1, np.int64)
        nothing = np.float32(-np.inf)

        everything = reach[n] * groups
        begin, end = everything * thread // threads, everything * (thread + 1) // threads
        for group in range(groups):
            for request in range(header[Header.REQUESTS]):
                t_low, t_high = requests[request, 0], requests[request, 1]
                while t_low < t_high and group * reach[n] + reach[t_low] < begin:
                    t_low += 1
                while t_high > t_low and group * reach[n] + reach[t_high - 1] >= end:
                    t_high -= 1
                for low in range(t_low, t_high, most_queries):
                    high = min(low + most_queries, t_high)
                    rows = (high - low) * repeat
                    n_tiles = (rows + _ROWS - 1) // _ROWS
                    for row in range(n_tiles * _ROWS):
                        at = query_at + row // _ROWS * _ROWS * dim + row % _ROWS
                        if row < rows:
                            q = (low + row // repeat) * q_pitch + (
                                group * repeat + row % repeat
                            ) * q_head
                            for d in range(dim):
                                scratch[at + d * _ROWS] = queries[q + d] * scale
                        else:
                            for d in range(dim):
                                scratch[at + d * _ROWS] = 0.0
                            lows[row], highs[row] = 0, 0
                        tops[row], masses[row] = nothing, 0.0
                    for i in range(sums_at, sums_at + n_tiles * _ROWS * value_dim):
                        scratch[i] = 0.0
                    for s in range(requests[request, 2], requests[request, 3]):
                        change, bias = spans[s, CHANGE], float_of(spans[s, BIAS])
                        turn = spans[s, TURN]
                        holed = spans[s, HOLES] != 0
                        holes = numba.carray(octets(spans[s, HOLES]), (spans[s, LENGTH],))
                        if spans[s, FIRST] > positions[high - 1]:
                            continue
                        for offset in range(0, spans[s, LENGTH], PIECE):
                            length = min(PIECE, spans[s, LENGTH] - offset)
                            first, _ = _seen(spans, s, offset, length, positions[low], window)
                            _, last = _seen(spans, s, offset, length, positions[high - 1], window)
                            if last <= first:
                                continue
                            # Rows that some query sees move together: `before` counts those that are left, up
                            # to each. With a window, queries that are far apart see nothing of what is between.
                            gaps = False
                            if window and high - low > 1:
                                for j in range(length):
                                    kept[j] = 0
                                upto = first
                                for t in range(low, high):
                                    begin_t, end_t = _seen(
                                        spans, s, offset, length, positions[t], window
                                    )
                                    gaps |= begin_t > upto and end_t > begin_t
                                    for j in range(max(begin_t, upto), end_t):
                                        kept[j] = 1
                                    upto = max(upto, end_t)
                            count = 0
                            for j in range(length):
                                before[j] = count
                                seen = not gaps or kept[j] == 1
                                if seen and (not holed or not holes[offset + j]):
                                    kept[count] = j
                                    count += 1
                            before[length] = count
                            first, last = before[first], before[last]
                            if last <= first:
                                continue
                            for t in range(low, high):
                                begin_t, end_t = _seen(
                                    spans, s, offset, length, positions[t], window
                                )
                                begin_t, end_t = before[begin_t], before[max(begin_t, end_t)]
                                for row in range((t - low) * repeat, (t - low + 1) * repeat):
                                    lows[row], highs[row] = begin_t, end_t
                            row = spans[s, START] + offset
                            rounded = row >= n_pool
                            if rounded:
                                row -= n_pool
                                key, pitch_k = (
                                    keys_8 + group * k_group_8 + row * k_pitch_8,
                                    k_pitch_8,
                                )
                                value, pitch_v = (
                                    values_8 + group * v_group_8 + row * v_pitch_8,
                                    v_pitch_8,
                                )
                                k_scale = numba.carray(
                                    floats(k_scales + (group * ks_group + row) * 4), (length,)
                                )
                                v_scale = numba.carray(
                                    floats(v_scales + (group * vs_group + row) * 4), (length,)
                                )
                            else:
                                key, pitch_k = keys + group * k_group + row * k_pitch, k_pitch
                                value, pitch_v = values + group * v_group + row * v_pitch, v_pitch
                            for c in range(first // 8 * 8, last, 8):
                                for j in range(c, min(c + 8, last)):
                                    if j < first:
                                        continue
                                    at = stage + (j - c) * dim * 4
                                    line = scratch[
                                        stage_at + (j - c) * dim : stage_at + (j - c + 1) * dim
                                    ]
                                    if rounded:
                                        _widened(_EIGHT, key + kept[j] * pitch_k, dim, at)
                                        _scaled(at, dim, k_scale[kept[j]])
                                    else:
                                        _widened(tag, key + kept[j] * pitch_k, dim, at)
                                    if change >= 0:
                                        _widened(
                                            tag,
                                            keys + group * k_group + change * k_pitch,
                                            dim,
                                            base + 4 * change_at,
                                        )
                                        if rotary:
                                            local = (
                                                spans[s, LOCAL]
                                                + offset
                                                + kept[j]
                                                - header[Header.LOCAL_LOW]
                                            )
                                            cos = header[Header.LOCAL_AT] + local * local_pitch
                                            _turn(
                                                base + 4 * change_at,
                                                changed,
                                                rotary,
                                                start,
                                                interleaved,
                                                cos,
                                                cos + 4 * half,
                                            )
                                        for d in range(dim):
                                            line[d] += changed[d]
                                    if turn >= 0:
                                        place = turn * half * 4
                                        _turn(at, line, rotary, start, interleaved, header[Header.COS_AT] + place,
                                              header[Header.SIN_AT] + place)  # fmt: skip
                                _lay_out(
                                    stage, dim, panel + (c // _WIDE * _WIDE * dim + c % _WIDE) * 4
                                )
                            if rounded or size != 4 or change >= 0 or holed or gaps:
                                to = base + 4 * value_at
                                for j in range(first, last):
                                    at = to + j * value_dim * 4
                                    if rounded:
                                        _widened(_EIGHT, value + kept[j] * pitch_v, value_dim, at)
                                        _scaled(at, value_dim, v_scale[kept[j]])
                                    else:
                                        _widened(tag, value + kept[j] * pitch_v, value_dim, at)
                                    if change >= 0:
                                        more = values + group * v_group + change * v_pitch
                                        for d in range(value_dim):
                                            scratch[value_at + j * value_dim + d] += _wide(
                                                tag, more, d
                                            )
                                value, pitch_v = to, value_dim * 4
                            for tile in range(0, n_tiles, _TOGETHER):
                                upto = min(tile + _TOGETHER, n_tiles)
                                left, right = PIECE, 0
                                for x in range(tile * _ROWS, min(upto * _ROWS, rows)):
                                    if lows[x] < highs[x]:
                                        left, right = min(left, lows[x]), max(right, highs[x])
                                if right <= left:
                                    continue
                                # All tiles of a few start and end alike: what a query does not see weighs nothing.
                                left = left // _WIDE * _WIDE
                                for c in range(left, right, _WIDE):
                                    for x in range(tile, upto):
                                        _score_tile(tiles + x * _ROWS * dim * 4, panel + c * dim * 4, dim,
                                                    scores + (x - tile) * _ROWS * _PITCH + c * 4)  # fmt: skip
                                left, end_c = (
                                    max(left, first),
                                    (right + _LANES - 1) // _LANES * _LANES,
                                )
                                begin_c = left // _LANES * _LANES
                                for x in range(tile * _ROWS, upto * _ROWS):
                                    i = x - tile * _ROWS
                                    here = scores + i * _PITCH + begin_c * 4
                                    s_at = scores_at + i * (PIECE + _WIDE)
                                    if softcap > 0 or bias != 0:
                                        _adjust(
                                            here, end_c - begin_c, np.float32(0.0), softcap, bias
                                        )
                                    low_x, high_x = max(lows[x], begin_c), min(highs[x], end_c)
                                    for c in range(begin_c, min(low_x, end_c)):
                                        scratch[s_at + c] = nothing
                                    for c in range(max(high_x, begin_c), end_c):
                                        scratch[s_at + c] = nothing
                                    known = tops[x]
                                    top = _largest(here, end_c - begin_c, known)
                                    factor = np.float32(1.0)
                                    if top > known:
                                        factor = np.float32(math.exp(known - top))
                                    base_x = top if top > nothing else np.float32(0.0)
                                    masses[x] = masses[x] * factor + _powers(
                                        here, end_c - begin_c, base_x
                                    )
                                    tops[x] = top
                                    scratch[factor_at + i] = factor
                                v = value + left * pitch_v
                                d = 0
                                while d < value_dim:
                                    wide = (
                                        _WIDE
                                        if value_dim - d >= _WIDE
                                        else _LANES
                                        if value_dim - d >= _LANES
                                        else 8
                                    )
                                    for x in range(tile, upto):
                                        w = scores + (x - tile) * _ROWS * _PITCH + left * 4
                                        f = factors + (x - tile) * _ROWS * 4
                                        o = sums + (x * _ROWS * value_dim + d) * 4
                                        if wide == _WIDE:
                                            _mix_2(
                                                w,
                                                v + d * 4,
                                                pitch_v,
                                                right - left,
                                                f,
                                                o,
                                                value_dim * 4,
                                            )
                                        elif wide == _LANES:
                                            _mix_1(
                                                w,
                                                v + d * 4,
                                                pitch_v,
                                                right - left,
                                                f,
                                                o,
                                                value_dim * 4,
                                            )
                                        else:
                                            _mix_8(
                                                w,
                                                v + d * 4,
                                                pitch_v,
                                                right - left,
                                                f,
                                                o,
                                                value_dim * 4,
                                            )
                                    d += wide
                    for row in range(rows):
                        o = (
                            (low + row // repeat) * heads + group * repeat + row % repeat
                        ) * value_dim
                        share = np.float32(1.0) / masses[row]
                        for d in range(value_dim):
                            out[o + d] = scratch[sums_at + row * value_dim + d] * share

    return attention


@cache
def attention(kind: str) -> int:
    """The kernel over a pool of a kind. Numbers: those of `native_attention.attention`, without partial results."""
    return kernel(_attention(TAGS[kind], _BYTES[kind]))
