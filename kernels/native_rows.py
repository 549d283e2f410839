"""What a decoder layer does between its products, compiled: each a pass over few rows, and one call.

All is float32. Rows are worked on one by one in the same order of additions, so that a row alone and the same row in
a batch give the same bits.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import intrinsic

from epicrag.kernels.native_jit import (
    I64,
    LANES,
    ZERO,
    compiled,
    exponential,
    load,
    loop,
    number,
    store,
)


@compiled
def _norm(x, low, n, weight, eps, out):
    """out = x / its root mean square * weight, for the entries [low, low + n) of one row."""
    a = b = c = d = np.float32(0)
    high = low + n
    i = low
    while i + 4 <= high:
        a += x[i] * x[i]
        b += x[i + 1] * x[i + 1]
        c += x[i + 2] * x[i + 2]
        d += x[i + 3] * x[i + 3]
        i += 4
    while i < high:
        a += x[i] * x[i]
        i += 1
    mean = ((a + b) + (c + d)) / np.float32(n)
    factor = np.float32(1) / np.float32(math.sqrt(mean + np.float32(eps)))
    for j in range(n):
        out[low + j] = x[low + j] * factor * weight[j]


@compiled
def add_norm(stream, more, weight, eps, out):
    """stream += more; out = its root mean square norm. All but weight (C,) are (T, C)."""
    for row in range(stream.shape[0]):
        for i in range(stream.shape[1]):
            stream[row, i] += more[row, i]
        _norm(stream[row], 0, stream.shape[1], weight, eps, out[row])


@compiled
def turn(qkv, heads, groups, dim, query_norm, key_norm, eps, cos, sin):
    """Norm the queries and keys in qkv (T, (heads + 2 groups) dim), then rotate them half against half.

    A norm without entries is none; cos, sin: (T, half), of which half may be 0.
    """
    half = cos.shape[1]
    for row in range(qkv.shape[0]):
        x, c, s = qkv[row], cos[row], sin[row]
        for head in range(heads + groups):
            low = head * dim
            weight = query_norm if head < heads else key_norm
            if len(weight):
                _norm(x, low, dim, weight, eps, x)
            for i in range(half):
                first, second = x[low + i], x[low + half + i]
                x[low + i] = first * c[i] - second * s[i]
                x[low + half + i] = second * c[i] + first * s[i]


@intrinsic
def _silu_gate(context, gate, up, out, n):
    """n floats, a multiple of eight, at addresses: eight at a time."""

    def generate(context, b, signature, arguments):
        gate, up, out, n = arguments
        with loop(b, I64(0), n, I64(LANES)) as (index, _):
            offset = b.shl(index, I64(2))
            x = load(b, b.add(gate, offset))
            # The sigmoid of x by e to the power of -|x|, which cannot overflow
            negative = b.fcmp_ordered("<", x, ZERO)
            power = exponential(b, b.select(negative, x, b.fsub(ZERO, x)))
            one = number(1.0)
            share = b.fdiv(b.select(negative, power, one), b.fadd(one, power))
            value = b.fmul(b.fmul(x, share), load(b, b.add(up, offset)))
            store(b, value, b.add(out, offset))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@compiled
def silu_gate(both, out):
    """out (T, n) = silu(gate) * up, of both (T, 2 n), gate beside up. Both are contiguous."""
    n = out.shape[1]
    even = n // 8 * 8
    for row in range(both.shape[0]):
        gate = both.ctypes.data + row * n * 8
        _silu_gate(gate, gate + n * 4, out.ctypes.data + row * n * 4, even)
        for i in range(even, n):
            x = both[row, i]
            out[row, i] = x / (np.float32(1) + np.float32(math.exp(-x))) * both[row, n + i]
