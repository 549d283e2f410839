"""The halves of a decoder layer before and behind attention, compiled: two calls a layer instead of thirty.

Everything is float32 but the weights. Rows are worked on one by one in the same order of additions, so that a
row alone and the same row in a batch give the same bits.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from epicrag.kernels.native_jit import SMALL, compiled
from epicrag.kernels.native_linear import product, product_part


@compiled()
def _times(tag, threads, x, place, out):
    """out (T, n) = x (T, k) times a packed weight, which is told in numbers: see `serving.narrow.Place`."""
    weight, pitch, k, group, scale, n_groups, n, bias = place
    rows, a, o, step = x.shape[0], x.ctypes.data, out.ctypes.data, 4 * x.shape[1]
    if threads == 1 or n * k * rows < SMALL:
        product_part(tag, 0, n, weight, pitch, k, group, scale, n_groups, a, step, rows, bias, o, 4 * n)  # fmt: skip
    else:
        product(threads, n, tag, weight, pitch, k, group, scale, n_groups, a, step, rows, bias, o, 4 * n)  # fmt: skip


@compiled()
def _norm(x, low, high, weight, eps, out):
    """out[low:high] = x[low:high] / its root mean square * weight, of one row."""
    a = b = c = d = np.float32(0)
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
    mean = ((a + b) + (c + d)) / np.float32(high - low)
    factor = np.float32(1) / np.float32(math.sqrt(mean + np.float32(eps)))
    for i in range(high - low):
        out[low + i] = x[low + i] * factor * weight[i]


@compiled()
def _turn(x, low, half, cos, sin):
    """Rotate x[low : low + 2 half] of one row, half against half."""
    for i in range(half):
        first, second = x[low + i], x[low + half + i]
        x[low + i] = first * cos[i] - second * sin[i]
        x[low + half + i] = second * cos[i] + first * sin[i]


@compiled()
def before(tag, threads, stream, norm, eps, qkv, heads, groups, dim, query_norm, key_norm, head_eps, cos, sin, normed, out):  # fmt: skip
    """out (T, (heads + 2 groups) dim): queries and keys, normed where there are norms, turned; and values.

    stream, normed: (T, C); cos, sin: (T, half), half 0: nothing is turned; an empty norm is none.
    """
    for row in range(stream.shape[0]):
        _norm(stream[row], 0, stream.shape[1], norm, eps, normed[row])
    _times(tag, threads, normed, qkv, out)
    half = cos.shape[1]
    for row in range(stream.shape[0]):
        for head in range(heads + groups):
            weight = query_norm if head < heads else key_norm
            if len(weight):
                _norm(out[row], head * dim, head * dim + dim, weight, head_eps, out[row])
            _turn(out[row], head * dim, half, cos[row], sin[row])


@compiled()
def behind(tag, threads, stream, mixed, out, norm, eps, gate_up, down, normed, both, gated):
    """Add to stream (T, C) what attention gives, mixed (T, H dim), through `out`; then the MLP."""
    rows, width = stream.shape
    _times(tag, threads, mixed, out, normed)
    for row in range(rows):
        for i in range(width):
            stream[row, i] += normed[row, i]
        _norm(stream[row], 0, width, norm, eps, normed[row])
    _times(tag, threads, normed, gate_up, both)
    inner = gated.shape[1]
    for row in range(rows):
        for i in range(inner):
            gate = both[row, i]
            gated[row, i] = gate / (np.float32(1) + np.float32(math.exp(-gate))) * both[row, inner + i]
    _times(tag, threads, gated, down, normed)
    for row in range(rows):
        for i in range(width):
            stream[row, i] += normed[row, i]
