"""What a decoder layer does between its products, compiled: each a pass over few rows, and one call.

All is float32. Rows are worked on one by one in the same order of additions, so that a row alone and the same row in
a batch give the same bits.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from epicrag.kernels.native_jit import compiled


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


@compiled
def silu_gate(both, out):
    """out (T, n) = silu(gate) * up, of both (T, 2 n), gate beside up."""
    n = out.shape[1]
    for row in range(both.shape[0]):
        for i in range(n):
            gate = both[row, i]
            out[row, i] = gate / (np.float32(1) + np.float32(math.exp(-gate))) * both[row, n + i]
