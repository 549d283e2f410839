"""Segment attention for few queries, compiled: blocks of pool rows shared out among threads, merged by log-sum-exp.

A span is cut into pieces of `PIECE` rows, and every query meets every piece by itself: what is added to what
depends on the query's own spans only, so that a request gives the same bits alone and in a batch.
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

from epicrag.kernels.native_jit import (
    F32,
    I32,
    I64,
    KINDS,
    LANES,
    N_NUMBERS,
    TAGS,
    VECTOR,
    ZERO,
    compiled,
    eight_totals,
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
    wholes,
    widen,
)
from epicrag.kernels.native_table import (
    BIAS,
    CHANGE,
    EXPLICIT,
    FIRST,
    HOLES,
    LENGTH,
    LOCAL,
    N_COLUMNS,
    N_HEADER,
    PIECE,
    START,
    TILE,
    TURN,
    Header,
)

_BLOCK = 64
"""Rows of values that all heads of a group read while they are in the first cache."""

_EIGHT = TAGS["int8"]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def _score(whole: bool, add: bool):
    """Products of a query with eight keys, written (or added) to eight floats. Not whole: with fewer, at least one."""

    @intrinsic
    def score(context, tag, query, key, pitch, left, dim, out):
        kind = KINDS[tag]

        def generate(context, b, signature, arguments):
            _, query, key, pitch, left, dim, out = arguments
            last = b.sub(left, I64(1))
            addresses = []
            for lane in range(LANES):
                row = I64(lane)
                if not whole:  # no row behind the last one is read
                    row = b.select(b.icmp_signed("<", row, last), row, last)
                addresses.append(b.add(key, b.mul(pitch, row)))
            sums = [cgutils.alloca_once(b, VECTOR) for _ in addresses]
            for place in sums:
                b.store(ZERO, place)
            with loop(b, I64(0), dim, I64(LANES)) as (column, _):
                q = widen(b, "float32", query, column)
                for address, place in zip(addresses, sums, strict=True):
                    b.store(fma(b, widen(b, kind, address, column), q, b.load(place)), place)
            result = eight_totals(b, [b.load(place) for place in sums])
            store(b, b.fadd(result, load(b, out)) if add else result, out)
            return context.get_dummy_value()

        return types.void(tag, *[types.int64] * 6), generate

    return score


def _mix(width: int):
    """Add rows of values, each times its weight, to `width` vectors of sums."""

    @intrinsic
    def mix(context, tag, weights, value, pitch, n, out):
        kind = KINDS[tag]

        def generate(context, b, signature, arguments):
            _, weights, value, pitch, n, out = arguments
            sums = [cgutils.alloca_once(b, VECTOR) for _ in range(width)]
            for index, place in enumerate(sums):
                b.store(load(b, b.add(out, I64(4 * LANES * index))), place)
            with loop(b, I64(0), n, I64(1)) as (row, _):
                weight = splat(b, load(b, b.add(weights, b.shl(row, I64(2))), F32))
                address = b.add(value, b.mul(row, pitch))
                for index, place in enumerate(sums):
                    v = widen(b, kind, address, I64(LANES * index))
                    b.store(fma(b, v, weight, b.load(place)), place)
            for index, place in enumerate(sums):
                store(b, b.load(place), b.add(out, I64(4 * LANES * index)))
            return context.get_dummy_value()

        return types.void(tag, *[types.int64] * 5), generate

    return mix


_score_8, _score_few = _score(True, False), _score(False, False)
_add_8, _add_few = _score(True, True), _score(False, True)
_mix_8, _mix_4, _mix_1 = _mix(8), _mix(4), _mix(1)


@intrinsic
def _adjust(context, scores, n, constant, softcap, bias):
    """Scores to softcap * tanh((scores + constant) / softcap) + bias; a softcap of 0: none."""

    def generate(context, b, signature, arguments):
        scores, n, constant, softcap, bias = arguments
        constant, cap, bias = splat(b, constant), splat(b, softcap), splat(b, bias)
        capped = b.fcmp_ordered(">", softcap, ir.Constant(F32, 0.0))
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            address = b.add(scores, b.shl(index, I64(2)))
            place = cgutils.alloca_once(b, VECTOR)
            b.store(b.fadd(load(b, address), constant), place)
            with b.if_then(capped):
                # tanh(y) = sign(y) (1 - u) / (1 + u) with u = exp(-2 |y|), which cannot overflow
                y = b.fdiv(b.load(place), cap)
                negative = b.fcmp_ordered("<", y, ZERO)
                size = b.select(negative, b.fsub(ZERO, y), y)
                u = exponential(b, b.fmul(size, number(-2.0)))
                one = number(1.0)
                t = b.fdiv(b.fsub(one, u), b.fadd(one, u))
                b.store(b.fmul(cap, b.select(negative, b.fsub(ZERO, t), t)), place)
            store(b, b.fadd(b.load(place), bias), address)
        return context.get_dummy_value()

    numbers = [types.float32] * 3
    return types.void(types.int64, types.int64, *numbers), generate


@intrinsic
def _soften(context, scores, n, out):
    """n scores to e to the power of what they are below the largest; that and their sum go to `out`."""

    def generate(context, b, signature, arguments):
        scores, n, out = arguments
        nothing = number(float("-inf"))
        whole = ir.VectorType(I64, LANES)
        lanes = ir.Constant(whole, list(range(LANES)))
        top = cgutils.alloca_once_value(b, nothing)
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            address = b.add(scores, b.shl(index, I64(2)))
            left = b.insert_element(ir.Constant(whole, ir.Undefined), b.sub(n, index), I32(0))
            zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
            left = b.shuffle_vector(left, ir.Constant(whole, ir.Undefined), zeros)
            value = b.select(b.icmp_signed("<", lanes, left), load(b, address), nothing)
            store(b, value, address)
            known = b.load(top)
            b.store(b.select(b.fcmp_ordered(">", known, value), known, value), top)
        most = largest(b, b.load(top))
        store(b, most, out)
        # Where nothing is seen: 0, so that no infinity is taken from another
        most = b.select(
            b.fcmp_ordered("==", most, ir.Constant(F32, float("-inf"))), ir.Constant(F32, 0.0), most
        )
        most = splat(b, most)
        mass = cgutils.alloca_once_value(b, ZERO)
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            address = b.add(scores, b.shl(index, I64(2)))
            value = exponential(b, b.fsub(load(b, address), most))
            store(b, value, address)
            b.store(b.fadd(b.load(mass), value), mass)
        store(b, total(b, b.load(mass)), b.add(out, I64(4)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def _wide(context, tag, address, index):
    """One number of the pool as a float."""
    kind = KINDS[tag]

    def generate(context, b, signature, arguments):
        _, address, index = arguments
        address = b.add(address, b.mul(index, I64(_BYTES[kind])))
        if kind == "float32":
            return load(b, address, F32)
        if kind == "float16":
            return b.fpext(load(b, address, ir.HalfType(), 2), F32)
        bits = b.zext(load(b, address, ir.IntType(16), 2), I32)
        return b.bitcast(b.shl(bits, I32(16)), F32)

    return types.float32(tag, types.int64, types.int64), generate


@compiled
def _first_above(address, low, high, position):
    """How many of the ascending places[low:high] at an address are at most `position`."""
    places = numba.carray(wholes(address), (high,))
    start = low
    while low < high:
        middle = (low + high) // 2
        if places[middle] <= position:
            low = middle + 1
        else:
            high = middle
    return low - start


@compiled
def _seen(spans, s, offset, length, position, window):
    """Rows [low, high) of a piece of span s that a query sees. window: 0 for none."""
    explicit = spans[s, EXPLICIT]
    if explicit:
        high = _first_above(explicit, offset, offset + length, position)
        low = _first_above(explicit, offset, offset + length, position - window) if window else 0
        return low, high
    high = position - spans[s, FIRST] - offset + 1
    low = max(high - window, 0) if window else 0
    return min(low, length), max(min(high, length), 0)


def _plan(address, thread, threads):
    """Cut spans into pieces and queries into tiles: fills a table's pieces, items, slots and weights.

    Numbers: the table's header. Its counts of pieces and items become those in use, and `BLIND` the first query
    that sees nothing, or -1.
    """
    header = numba.carray(wholes(numba.carray(wholes(address), (1,))[0]), (N_HEADER,))
    spans = numba.carray(wholes(header[Header.SPANS_AT]), (header[Header.SPANS], N_COLUMNS))
    requests = numba.carray(wholes(header[Header.REQUESTS_AT]), (header[Header.REQUESTS], 5))
    pieces = numba.carray(wholes(header[Header.PIECES_AT]), (header[Header.PIECES], 3))
    items = numba.carray(wholes(header[Header.ITEMS_AT]), (header[Header.ITEMS], 4))
    slots = numba.carray(wholes(header[Header.SLOTS_AT]), (header[Header.QUERIES], 3))
    weights = numba.carray(wholes(header[Header.WEIGHTS_AT]), (header[Header.ITEMS] + 1,))
    positions = numba.carray(wholes(header[Header.POSITIONS_AT]), (header[Header.QUERIES],))
    met = numba.carray(octets(header[Header.MET_AT]), (header[Header.SLOTS],))
    reach = numba.carray(wholes(header[Header.REACH_AT]), (header[Header.QUERIES] + 1,))
    for slot in range(header[Header.SLOTS]):
        met[slot] = 0
    for t in range(header[Header.QUERIES] + 1):
        reach[t] = 0
    window = header[Header.WINDOW]
    piece, item, n_slots = 0, 0, 0
    weights[0] = 0
    for request in range(header[Header.REQUESTS]):
        q_low, q_high = requests[request, 0], requests[request, 1]
        first = piece
        for s in range(requests[request, 2], requests[request, 3]):
            for offset in range(0, spans[s, LENGTH], PIECE):
                pieces[piece, 0], pieces[piece, 1] = s, offset
                pieces[piece, 2] = min(PIECE, spans[s, LENGTH] - offset)
                piece += 1
        places = numba.carray(wholes(requests[request, 4]), (q_high - q_low,))
        for t in range(q_low, q_high):
            positions[t] = places[t - q_low]
            slots[t, 0], slots[t, 1], slots[t, 2] = n_slots, piece - first, 0
            n_slots += piece - first
        for p in range(first, piece):
            s, offset, length = pieces[p, 0], pieces[p, 1], pieces[p, 2]
            holed = spans[s, HOLES] != 0
            holes = numba.carray(octets(spans[s, HOLES]), (spans[s, LENGTH],))
            for low in range(q_low, q_high, TILE):
                high = min(low + TILE, q_high)
                rows = 0
                for t in range(low, high):
                    begin, end = _seen(spans, s, offset, length, positions[t], window)
                    if end <= begin:
                        continue
                    rows += end - begin
                    reach[t + 1] += end - begin
                    met[slots[t, 0] + p - first] = 1
                    while holed and begin < end and holes[offset + begin]:
                        begin += 1
                    if begin < end:
                        slots[t, 2] = 1
                if rows:
                    items[item, 0], items[item, 1], items[item, 2] = p, low, high
                    items[item, 3] = p - first
                    weights[item + 1] = weights[item] + rows
                    item += 1
    header[Header.PIECES], header[Header.ITEMS] = piece, item
    header[Header.MEETINGS] = weights[item]
    for t in range(header[Header.QUERIES]):
        reach[t + 1] += reach[t]
    header[Header.BLIND] = -1
    for t in range(header[Header.QUERIES]):
        if slots[t, 2] == 0:
            header[Header.BLIND] = t
            break


@compiled
def _turned(query, head, dim, scale, turn, cos, sin, rotary, start, interleaved, out, low):
    """A query times scale, turned back by a span's offset, to out[low:]. turn: row of cos and sin, or -1."""
    for d in range(dim):
        out[low + d] = query[head + d] * scale
    if turn < 0:
        return
    half = rotary // 2
    first, step, apart = low + start, 1, half
    if interleaved:
        step, apart = 2, 1
    row = turn * half
    for i in range(half):
        at = first + i * step
        x, y = out[at], out[at + apart]
        c, s = cos[row + i], sin[row + i]
        out[at] = x * c + y * s
        out[at + apart] = y * c - x * s


@compiled
def _against_change(tag, query, low, change, dim, rotary, start, interleaved, out, base):
    """A turned query against a change: the factors of cos and sin to out[base:], and what does not turn as result."""
    half = rotary // 2
    step, apart = (2, 1) if interleaved else (1, half)
    for i in range(half):
        at = start + i * step
        x, y = query[low + at], query[low + at + apart]
        first, second = _wide(tag, change, at), _wide(tag, change, at + apart)
        out[base + i] = x * first + y * second
        out[base + half + i] = y * first - x * second
    rest = np.float32(0.0)
    for d in range(dim):
        if d < start or d >= start + rotary:
            rest += query[low + d] * _wide(tag, change, d)
    return rest


@compiled
def _mixed(tag, weights, value, pitch, n, value_dim, out, size):
    """Add n rows of values, each times its weight, to `value_dim` floats at `out`."""
    d = 0
    while d < value_dim:
        if value_dim - d >= 64:
            _mix_8(tag, weights, value + d * size, pitch, n, out + d * 4)
            d += 64
        elif value_dim - d >= 32:
            _mix_4(tag, weights, value + d * size, pitch, n, out + d * 4)
            d += 32
        else:
            _mix_1(tag, weights, value + d * size, pitch, n, out + d * 4)
            d += 8


@compiled
def _scaled(numbers, scales, n):
    """Multiply n floats at an address, each by its own."""
    to, by = numba.carray(floats(numbers), (n,)), numba.carray(floats(scales), (n,))
    for j in range(n):
        to[j] *= by[j]


def _attention(tag, size):
    """The meetings of queries and pieces, over a pool of one kind of numbers, as a kernel.

    size: bytes of a number. Rows behind those of the pool are in 8 bits, each with a scale: the scores are
    multiplied by those of the keys, and the weights by those of the values.
    """

    def attention(address, thread, threads):
        a = numba.carray(wholes(address), (N_NUMBERS,))
        header = numba.carray(wholes(a[0]), (N_HEADER,))
        queries = numba.carray(floats(a[1]), (1 << 40,))
        q_pitch, q_head = a[2], a[3]
        keys, k_group, k_pitch = a[4], a[5], a[6]
        values, v_group, v_pitch = a[7], a[8], a[9]
        groups, repeat, dim, value_dim = a[10], a[11], a[12], a[13]
        n_pool = a[18]
        keys_8, k_group_8, k_pitch_8, k_scales, ks_group = a[19], a[20], a[21], a[22], a[23]
        values_8, v_group_8, v_pitch_8, v_scales, vs_group = a[24], a[25], a[26], a[27], a[28]
        scale, softcap = float_of(a[14]), float_of(a[15])
        heads = groups * repeat
        stride = value_dim + 2
        partial_at = a[17]
        partial = numba.carray(floats(partial_at), (header[Header.SLOTS] * heads * stride,))
        n_items = header[Header.ITEMS]
        weights = numba.carray(wholes(header[Header.WEIGHTS_AT]), (n_items + 1,))
        items = numba.carray(wholes(header[Header.ITEMS_AT]), (n_items, 4))
        spans = numba.carray(wholes(header[Header.SPANS_AT]), (header[Header.SPANS], N_COLUMNS))
        pieces = numba.carray(wholes(header[Header.PIECES_AT]), (header[Header.PIECES], 3))
        slots = numba.carray(wholes(header[Header.SLOTS_AT]), (header[Header.QUERIES], 3))
        positions = numba.carray(wholes(header[Header.POSITIONS_AT]), (header[Header.QUERIES],))
        rotary, start = header[Header.ROTARY], header[Header.ROTARY_START]
        interleaved = header[Header.INTERLEAVED] != 0
        half = rotary // 2
        cos = numba.carray(floats(header[Header.COS_AT]), (header[Header.TURNS] * half,))
        sin = numba.carray(floats(header[Header.SIN_AT]), (header[Header.TURNS] * half,))
        padded = (rotary + 7) // 8 * 8
        window = header[Header.WINDOW]

        everything = weights[n_items] * groups
        begin, end = everything * thread // threads, everything * (thread + 1) // threads
        scratch = np.zeros(repeat * (dim + padded + PIECE), np.float32)
        q_at = 0
        c_at = repeat * dim
        s_at = c_at + repeat * padded
        base = scratch.ctypes.data
        for group in range(groups):
            for item in range(n_items):
                place = group * weights[n_items] + weights[item]
                if place < begin or place >= end:
                    continue
                piece = items[item, 0]
                s, offset, length = pieces[piece, 0], pieces[piece, 1], pieces[piece, 2]
                change, bias = spans[s, CHANGE], float_of(spans[s, BIAS])
                holed = spans[s, HOLES] != 0
                holes = numba.carray(octets(spans[s, HOLES]), (spans[s, LENGTH],))
                for t in range(items[item, 1], items[item, 2]):
                    low, high = _seen(spans, s, offset, length, positions[t], window)
                    n = high - low
                    if n <= 0:
                        continue
                    row = spans[s, START] + offset + low
                    rounded = row >= n_pool
                    if rounded:
                        row -= n_pool
                        key = keys_8 + group * k_group_8 + row * k_pitch_8
                        value, pitch_v = values_8 + group * v_group_8 + row * v_pitch_8, v_pitch_8
                    else:
                        key = keys + group * k_group + row * k_pitch
                        value, pitch_v = values + group * v_group + row * v_pitch, v_pitch
                    for r in range(repeat):
                        _turned(queries, t * q_pitch + (group * repeat + r) * q_head, dim, scale, spans[s, TURN], cos, sin,
                                rotary, start, interleaved, scratch, q_at + r * dim)  # fmt: skip
                    for j in range(0, n, 8):
                        few = n - j < 8
                        for r in range(repeat):
                            q = base + (q_at + r * dim) * 4
                            o = base + (s_at + r * PIECE + j) * 4
                            if rounded:
                                k8 = key + j * k_pitch_8
                                if few:
                                    _score_few(_EIGHT, q, k8, k_pitch_8, n - j, dim, o)
                                else:
                                    _score_8(_EIGHT, q, k8, k_pitch_8, 8, dim, o)
                            elif few:
                                _score_few(tag, q, key + j * k_pitch, k_pitch, n - j, dim, o)
                            else:
                                _score_8(tag, q, key + j * k_pitch, k_pitch, 8, dim, o)
                    if rounded:
                        by = k_scales + (group * ks_group + row) * 4
                        for r in range(repeat):
                            _scaled(base + (s_at + r * PIECE) * 4, by, n)
                    first = (slots[t, 0] + items[item, 3]) * heads + group * repeat
                    for r in range(repeat):
                        constant = np.float32(0.0)
                        scores = base + (s_at + r * PIECE) * 4
                        if change >= 0:
                            change_key = keys + group * k_group + change * k_pitch
                            constant = _against_change(tag, scratch, q_at + r * dim, change_key, dim, rotary, start,
                                                       interleaved, scratch, c_at + r * padded)  # fmt: skip
                            pitch = padded * 4
                            turn = spans[s, LOCAL] + offset + low - header[Header.LOCAL_LOW]
                            turn = header[Header.LOCAL_AT] + turn * pitch
                            c = base + (c_at + r * padded) * 4
                            one = np.float32(0.0)
                            if padded:
                                for j in range(0, n, 8):
                                    if n - j >= 8:
                                        _add_8(
                                            one,
                                            c,
                                            turn + j * pitch,
                                            pitch,
                                            8,
                                            padded,
                                            scores + j * 4,
                                        )
                                    else:
                                        _add_few(one, c, turn + j * pitch, pitch, n - j, padded, scores + j * 4)  # fmt: skip
                        if softcap > 0 or constant != 0 or bias != 0:
                            _adjust(scores, n, constant, softcap, bias)
                        if holed:
                            for j in range(n):
                                if holes[offset + low + j]:
                                    scratch[s_at + r * PIECE + j] = -np.inf
                        result = (first + r) * stride
                        _soften(scores, n, partial_at + (result + value_dim) * 4)
                        for d in range(value_dim):
                            partial[result + d] = 0.0
                        if rounded:
                            _scaled(scores, v_scales + (group * vs_group + row) * 4, n)
                    j = 0
                    while (
                        j < n
                    ):  # stretches without a hole: no hidden value is read, which may be anything
                        if holed and holes[offset + low + j]:
                            j += 1
                            continue
                        stop = min(j + _BLOCK, n)
                        if holed:
                            k = j
                            while k < stop and not holes[offset + low + k]:
                                k += 1
                            stop = k
                        for r in range(repeat):
                            p = base + (s_at + r * PIECE + j) * 4
                            o = partial_at + (first + r) * stride * 4
                            v = value + j * pitch_v
                            if rounded:
                                _mixed(_EIGHT, p, v, pitch_v, stop - j, value_dim, o, 1)
                            else:
                                _mixed(tag, p, v, pitch_v, stop - j, value_dim, o, size)
                        j = stop
                    if change >= 0:
                        change_value = values + group * v_group + change * v_pitch
                        for r in range(repeat):
                            result = (first + r) * stride
                            mass = partial[result + value_dim + 1]
                            for d in range(value_dim):
                                partial[result + d] += mass * _wide(tag, change_value, d)

    return attention


def _merge(address, thread, threads):
    """Join what each query met. Numbers: as of `_attention`; the result goes to floats (T, H, Dv)."""
    a = numba.carray(wholes(address), (N_NUMBERS,))
    header = numba.carray(wholes(a[0]), (N_HEADER,))
    heads, value_dim = a[10] * a[11], a[13]
    n = header[Header.QUERIES]
    stride = value_dim + 2
    out = numba.carray(floats(a[16]), (n * heads * value_dim,))
    partial = numba.carray(floats(a[17]), (header[Header.SLOTS] * heads * stride,))
    slots = numba.carray(wholes(header[Header.SLOTS_AT]), (n, 3))
    met = numba.carray(octets(header[Header.MET_AT]), (header[Header.SLOTS],))
    for t in range(n * thread // threads, n * (thread + 1) // threads):
        first = slots[t, 0]
        for head in range(heads):
            most = np.float32(-np.inf)
            for slot in range(first, first + slots[t, 1]):
                if met[slot]:
                    most = max(most, partial[(slot * heads + head) * stride + value_dim])
            mass = np.float32(0.0)
            o = (t * heads + head) * value_dim
            for d in range(value_dim):
                out[o + d] = 0.0
            for slot in range(first, first + slots[t, 1]):
                if not met[slot]:
                    continue
                at = (slot * heads + head) * stride
                share = np.float32(math.exp(partial[at + value_dim] - most))
                mass += share * partial[at + value_dim + 1]
                for d in range(value_dim):
                    out[o + d] += share * partial[at + d]
            for d in range(value_dim):
                out[o + d] /= mass


@cache
def plan() -> int:
    """The kernel that fills a table. Numbers: the address of its header."""
    return kernel(_plan)


@cache
def attention(kind: str) -> int:
    """The kernel of the meetings, over a pool of a kind.

    Numbers: the header; the queries, and their pitches by query and head; keys, and their pitches by group and row;
    values, likewise; groups, heads a group, Dk, Dv; the bits of scale and softcap; out; the partial results, by
    slot and head, each of value_dim sums, the largest score and the mass; the rows of the pool; where there are rows in
    8 bits, the keys and their pitches by group and row, their scales and the pitch by group, in numbers, and the
    same for the values. Addresses and pitches in bytes, but for the queries' pitches, in numbers.
    """
    return kernel(_attention(TAGS[kind], _BYTES[kind]))


@cache
def merge() -> int:
    """The kernel that joins the meetings. Numbers: the same."""
    return kernel(_merge)
