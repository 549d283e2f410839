"""The small steps between the products of a layer, compiled: for narrow batches each costs little but its call.

All work on float32 on the CPU, row by row, so that a row's result is the same in any batch. Rows must be contiguous
in their last dimension; ValueError where something does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from epicrag.kernels.native_table import float_bits
from epicrag.kernels.tables import Rotary

Activation = Literal["silu", "gelu_tanh"]
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None = None,
    *,
    add: Tensor | None = None,
    offset: float = 0.0,
) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * (weight + offset)` of each row. x, out: (M, D); weight: (D,).

    `add` (M, D) is first added to x, in place: the residual of a layer. out may be x.
    """
    n, dim = x.shape
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    second = x if add is None else add
    x_pitch, a_pitch, o_pitch = _pitch(x), _pitch(second), _pitch(out)
    if weight.shape != (dim,) or not second.shape == out.shape == (n, dim):
        raise ValueError(f"{tuple(x.shape)}, {tuple(weight.shape)}, {tuple(out.shape)} do not fit")
    added = 0 if add is None else add.data_ptr()
    run, kernels = _compiled()
    given = (x.data_ptr(), x_pitch, added, a_pitch, weight.data_ptr(), out.data_ptr(), o_pitch)
    run(kernels("norm"), (*given, n, dim, float_bits(eps), float_bits(offset)))
    return out


def rope(x: Tensor, cos: Tensor, sin: Tensor, rotary: Rotary) -> None:
    """Turn x (T, H, D) in place, as `reference.turn` does. cos, sin: (T, dim / 2), contiguous.

    Queries and keys that lie side by side can be turned as one.
    """
    n, heads, dim = x.shape
    pitch, head, step = x.stride()
    half = rotary.dim // 2
    if (
        not cos.shape == sin.shape == (n, half)
        or not (cos.is_contiguous() and sin.is_contiguous())
        or not x.dtype == cos.dtype == sin.dtype == torch.float32
        or step != 1
        or rotary.start + rotary.dim > dim
    ):
        raise ValueError(f"x {tuple(x.shape)} {x.dtype} and cos {tuple(cos.shape)} do not fit")
    run, kernels = _compiled()
    given = (x.data_ptr(), pitch, head, n, heads, cos.data_ptr(), sin.data_ptr())
    run(kernels("rope"), (*given, half, rotary.start, int(rotary.interleaved)))


def gated(
    gate: Tensor, up: Tensor, out: Tensor | None = None, activation: Activation = "silu"
) -> Tensor:
    """`activation(gate) * up`, each (M, D). out may be gate or up."""
    n, dim = gate.shape
    if out is None:
        out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    g_pitch, u_pitch, o_pitch = _pitch(gate), _pitch(up), _pitch(out)
    if not up.shape == out.shape == (n, dim):
        raise ValueError(f"{tuple(gate.shape)}, {tuple(up.shape)}, {tuple(out.shape)} do not fit")
    run, kernels = _compiled()
    given = (gate.data_ptr(), g_pitch, up.data_ptr(), u_pitch, out.data_ptr(), o_pitch)
    run(kernels("gated"), (*given, n, dim, _ACTIVATIONS[activation]), n * dim * 16)
    return out


def append(
    pool_keys: Tensor, pool_values: Tensor, keys: Tensor, values: Tensor, rows: Tensor
) -> None:
    """Write the keys and values of new tokens to their rows of one layer of the pool.

    pool_keys: (G, R, Dk), pool_values: (G, R, Dv), float32; keys: (T, G, Dk), values: (T, G, Dv); rows: (T,) int64,
    contiguous. Rows that are not in the pool are passed over.
    """
    run, kernels = _compiled()
    for pool, new in ((pool_keys, keys), (pool_values, values)):
        n, groups, dim = new.shape
        p_group, p_row, p_step = pool.stride()
        pitch, group, step = new.stride()
        if (
            rows.shape != (n,)
            or rows.dtype != torch.int64
            or not rows.is_contiguous()
            or pool.shape[::2] != (groups, dim)
            or not pool.dtype == new.dtype == torch.float32
            or not p_step == step == 1
        ):
            raise ValueError(
                f"{tuple(new.shape)} {new.dtype} does not fit a pool {tuple(pool.shape)} {pool.dtype} "
                f"and {tuple(rows.shape)} rows"
            )
        given = (pool.data_ptr(), p_group, p_row, new.data_ptr(), pitch, group, rows.data_ptr())
        run(kernels("append"), (*given, n, groups, dim, pool.shape[1]))


def _pitch(x: Tensor) -> int:
    pitch, step = x.stride()
    if step != 1 or x.dtype != torch.float32:
        raise ValueError(f"{tuple(x.shape)} {x.dtype} is not float32 with contiguous rows")
    return pitch


@cache
def _compiled() -> tuple[Callable[..., None], Callable[[str], int]]:
    from epicrag.kernels import native_jit, native_small

    return native_jit.run, native_small.step
