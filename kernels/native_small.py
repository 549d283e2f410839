"""The small steps between the products, as numba compiles them. What their numbers are: `native_steps.py`."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math
from functools import cache

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from epicrag.kernels.native_jit import (
    I64,
    LANES,
    N_NUMBERS,
    VECTOR,
    ZERO,
    exponential,
    float_of,
    floats,
    fma,
    kernel,
    load,
    loop,
    number,
    store,
    total,
    wholes,
)


@intrinsic
def _squares(context, address, n):
    """The sum of the squares of n floats, a multiple of eight."""

    def generate(_context, b, _signature, arguments):
        address, n = arguments
        place = cgutils.alloca_once_value(b, ZERO)
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            x = load(b, b.add(address, b.shl(index, I64(2))))
            b.store(fma(b, x, x, b.load(place)), place)
        return total(b, b.load(place))

    return types.float32(types.int64, types.int64), generate


@intrinsic
def _gate(context, gate, up, out, n, kind):
    """n floats, a multiple of eight: gate * sigmoid(z) * up, with z the gate itself, or gelu's polynomial of it."""

    def generate(_context, b, _signature, arguments):
        gate, up, out, n, kind = arguments
        polynomial = b.icmp_signed("==", kind, I64(1))
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            offset = b.shl(index, I64(2))
            g = load(b, b.add(gate, offset))
            place = cgutils.alloca_once(b, VECTOR)
            b.store(g, place)
            with b.if_then(polynomial):
                cube = b.fmul(b.fmul(g, g), g)
                z = b.fmul(number(1.5957691216057308), fma(b, cube, number(0.044715), g))
                b.store(z, place)
            z = b.load(place)
            negative = b.fcmp_ordered("<", z, ZERO)
            u = exponential(b, b.select(negative, z, b.fsub(ZERO, z)))
            part = b.fdiv(b.select(negative, u, number(1.0)), b.fadd(number(1.0), u))
            value = b.fmul(b.fmul(g, part), load(b, b.add(up, offset)))
            store(b, value, b.add(out, offset))
        return _context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _norm(address, thread, threads):
    a = numba.carray(wholes(address), (N_NUMBERS,))
    n, dim = a[7], a[8]
    eps, offset = float_of(a[9]), float_of(a[10])
    weight = numba.carray(floats(a[4]), (dim,))
    even = dim // 8 * 8
    for row in range(n):
        at = a[0] + row * a[1] * 4
        x = numba.carray(floats(at), (dim,))
        out = numba.carray(floats(a[5] + row * a[6] * 4), (dim,))
        if a[2]:
            added = numba.carray(floats(a[2] + row * a[3] * 4), (dim,))
            for d in range(dim):
                x[d] += added[d]
        mass = _squares(at, even)
        for d in range(even, dim):
            mass += x[d] * x[d]
        factor = np.float32(1.0) / np.float32(math.sqrt(mass / np.float32(dim) + eps))
        for d in range(dim):
            out[d] = x[d] * factor * (weight[d] + offset)


def _rope(address, thread, threads):
    a = numba.carray(wholes(address), (N_NUMBERS,))
    half, start = a[7], a[8]
    step, apart = (2, 1) if a[9] else (1, half)
    for row in range(a[3]):
        cos = numba.carray(floats(a[5] + row * half * 4), (half,))
        sin = numba.carray(floats(a[6] + row * half * 4), (half,))
        for head in range(a[4]):
            at = a[0] + (row * a[1] + head * a[2] + start) * 4
            x = numba.carray(floats(at), (half * 2,))
            for i in range(half):
                j = i * step
                first, second = x[j], x[j + apart]
                x[j] = first * cos[i] - second * sin[i]
                x[j + apart] = second * cos[i] + first * sin[i]


def _gated(address, thread, threads):
    a = numba.carray(wholes(address), (N_NUMBERS,))
    n, dim, kind = a[6], a[7], a[8]
    even = dim // 8 * 8
    spare = np.zeros(24, np.float32)
    for row in range(n):
        low, high = even // 8 * thread // threads * 8, even // 8 * (thread + 1) // threads * 8
        gate, up = a[0] + row * a[1] * 4, a[2] + row * a[3] * 4
        out = a[4] + row * a[5] * 4
        _gate(gate + low * 4, up + low * 4, out + low * 4, high - low, kind)
        if thread == threads - 1 and even < dim:
            last = dim - even
            gates = numba.carray(floats(gate + even * 4), (last,))
            ups = numba.carray(floats(up + even * 4), (last,))
            outs = numba.carray(floats(out + even * 4), (last,))
            for d in range(last):
                spare[d], spare[8 + d] = gates[d], ups[d]
            place = spare.ctypes.data
            _gate(place, place + 32, place + 64, 8, kind)
            for d in range(last):
                outs[d] = spare[16 + d]


def _append(address, thread, threads):
    a = numba.carray(wholes(address), (N_NUMBERS,))
    n, groups, dim, n_rows = a[7], a[8], a[9], a[10]
    rows = numba.carray(wholes(a[6]), (n,))
    for t in range(n):
        if rows[t] < 0 or rows[t] >= n_rows:
            continue
        for group in range(groups):
            to = numba.carray(floats(a[0] + (group * a[1] + rows[t] * a[2]) * 4), (dim,))
            new = numba.carray(floats(a[3] + (t * a[4] + group * a[5]) * 4), (dim,))
            for d in range(dim):
                to[d] = new[d]


_STEPS = {"norm": _norm, "rope": _rope, "gated": _gated, "append": _append}


@cache
def step(name: str) -> int:
    """The kernel of a step."""
    return kernel(_STEPS[name])
