"""Products with narrow weights, compiled: weights are widened in registers, so that memory moves only their bits."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from functools import cache

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from epicrag.kernels.native_jit import (
    F32,
    I64,
    KINDS,
    N_NUMBERS,
    TAGS,
    VECTOR,
    ZERO,
    fma,
    kernel,
    load,
    loop,
    splat,
    store,
    total,
    wholes,
    widen,
)

STEP = 12
"""Weights a block: a multiple of every tile's width, and few enough that their rows stay in the first cache."""


def _tile(n_rows: int, n_weights: int):
    """A function that multiplies `n_rows` rows of x with `n_weights` rows of weights, sums in registers."""

    @intrinsic
    def tile(
        context, tag, weight, pitch, x, x_pitch, k, group, scale, n_groups, bias, out, pitch_out
    ):
        kind = KINDS[tag]

        def generate(context, b, signature, arguments):
            _, weight, pitch, x, x_pitch, k, group, scale, n_groups, bias, out, pitch_out = (
                arguments
            )
            weights = [b.add(weight, b.mul(pitch, I64(j))) for j in range(n_weights)]
            rows = [b.add(x, b.mul(x_pitch, I64(i))) for i in range(n_rows)]
            cells = [(i, j) for i in range(n_rows) for j in range(n_weights)]
            sums = {cell: cgutils.alloca_once(b, VECTOR) for cell in cells}
            _clear(b, sums)
            if kind == "int8":
                sums = _grouped(b, sums, weights, rows, k, group, scale, n_groups)
            else:
                _accumulate(b, kind, sums, weights, rows, I64(0), k)
            offsets = [cgutils.alloca_once_value(b, ir.Constant(F32, 0.0)) for _ in weights]
            with b.if_then(b.icmp_signed("!=", bias, I64(0))):
                for j, offset in enumerate(offsets):
                    b.store(load(b, b.add(bias, I64(4 * j)), F32), offset)
            for i, j in cells:
                value = b.fadd(total(b, b.load(sums[i, j])), b.load(offsets[j]))
                store(b, value, b.add(out, b.add(b.mul(pitch_out, I64(i)), I64(4 * j))))
            return context.get_dummy_value()

        return types.void(tag, *[types.int64] * 11), generate

    return tile


def _clear(b, sums) -> None:
    for cell in sums.values():
        b.store(ZERO, cell)


def _accumulate(b, kind: str, sums, weights, rows, low, high) -> None:
    """Add the products of columns [low, high) to the sums."""
    with loop(b, low, high, I64(8)) as (column, _):
        wide = [widen(b, kind, weight, column) for weight in weights]
        for i, row in enumerate(rows):
            x = widen(b, "float32", row, column)
            for j, weight in enumerate(wide):
                b.store(fma(b, weight, x, b.load(sums[i, j])), sums[i, j])


def _grouped(b, sums, weights, rows, k, group, scale, n_groups):
    """The same with a factor a group of columns: sums of whole numbers, scaled group by group."""
    result = {cell: cgutils.alloca_once(b, VECTOR) for cell in sums}
    _clear(b, result)
    pitch = b.shl(n_groups, I64(2))
    scales = [b.add(scale, b.mul(pitch, I64(j))) for j in range(len(weights))]
    place = cgutils.alloca_once_value(b, I64(0))
    with loop(b, I64(0), k, group) as (low, _):
        high = b.add(low, group)
        high = b.select(b.icmp_signed("<", high, k), high, k)
        _clear(b, sums)
        _accumulate(b, "int8", sums, weights, rows, low, high)
        here = b.load(place)
        for j, address in enumerate(scales):
            factor = splat(b, load(b, b.add(address, here), F32))
            for i in range(len(rows)):
                value = fma(b, b.load(sums[i, j]), factor, b.load(result[i, j]))
                b.store(value, result[i, j])
        b.store(b.add(here, I64(4)), place)
    return result


# As many sums, weights and rows at a time as sixteen registers hold.
_tile_1x4, _tile_2x4, _tile_3x3, _tile_4x3 = _tile(1, 4), _tile(2, 4), _tile(3, 3), _tile(4, 3)
_tile_1x1 = _tile(1, 1)


def _product(tag):
    """The product with one kind of weights, as a kernel."""

    def product(address, thread, threads):
        a = numba.carray(wholes(address), (N_NUMBERS,))
        weight, pitch, k, group, scale, n_groups, n = a[0], a[1], a[2], a[3], a[4], a[5], a[6]
        x, x_pitch, n_rows, bias, out, pitch_out = a[7], a[8], a[9], a[10], a[11], a[12]
        low = n * thread // threads // STEP * STEP
        high = n if thread == threads - 1 else n * (thread + 1) // threads // STEP * STEP
        at = low
        while at + STEP <= high:
            row = 0
            while row < n_rows:
                left = n_rows - row
                width = 3 if left >= 3 else 4
                for j in range(at, at + STEP, width):
                    w = weight + j * pitch
                    s = scale + j * n_groups * 4
                    c = bias + j * 4 if bias else 0
                    y = x + row * x_pitch
                    o = out + row * pitch_out + j * 4
                    if left >= 4:
                        _tile_4x3(tag, w, pitch, y, x_pitch, k, group, s, n_groups, c, o, pitch_out)
                    elif left == 3:
                        _tile_3x3(tag, w, pitch, y, x_pitch, k, group, s, n_groups, c, o, pitch_out)
                    elif left == 2:
                        _tile_2x4(tag, w, pitch, y, x_pitch, k, group, s, n_groups, c, o, pitch_out)
                    else:
                        _tile_1x4(tag, w, pitch, y, x_pitch, k, group, s, n_groups, c, o, pitch_out)
                row += min(left, 4)
            at += STEP
        while at < high:
            w = weight + at * pitch
            s = scale + at * n_groups * 4
            c = bias + at * 4 if bias else 0
            for row in range(n_rows):
                y = x + row * x_pitch
                o = out + row * pitch_out + at * 4
                _tile_1x1(tag, w, pitch, y, x_pitch, k, group, s, n_groups, c, o, pitch_out)
            at += 1

    return product


@cache
def product(kind: str) -> int:
    """The kernel of the product with weights of a kind. Numbers: those of `Packed.fixed`, then x, its pitch, its
    rows, the bias or 0, out, its pitch; addresses and pitches in bytes."""
    return kernel(_product(TAGS[kind]))
