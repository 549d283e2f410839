"""The operations in plain torch, written to be read: the oracle every fast version is tested against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from epicrag.kernels.tables import Rotary, Span


def angles(delta: Tensor | int, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin of a rotation by `delta` positions, (..., dim / 2), worked out in float64."""
    delta = torch.as_tensor(delta, device=rotary.inv_freq.device, dtype=torch.float64)
    angle = delta[..., None] * rotary.inv_freq.to(torch.float64)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, rotary: Rotary) -> Tensor:
    """Rotate the first `rotary.dim` entries of x (..., D) by the given angles (..., dim / 2)."""
    moved, rest = x[..., : rotary.dim].to(cos.dtype), x[..., rotary.dim :]
    if rotary.interleaved:
        first, second = moved[..., 0::2], moved[..., 1::2]
    else:
        first, second = moved.chunk(2, dim=-1)
    new_first, new_second = first * cos - second * sin, second * cos + first * sin
    if rotary.interleaved:
        moved = torch.stack((new_first, new_second), dim=-1).flatten(-2)
    else:
        moved = torch.cat((new_first, new_second), dim=-1)
    rest = rest.expand(*moved.shape[:-1], rest.shape[-1])
    return torch.cat((moved.to(x.dtype), rest), dim=-1)


def rotate(x: Tensor, delta: Tensor | int, rotary: Rotary) -> Tensor:
    """Turn keys or queries by `delta` positions: `R(delta) x`, computed in float32 or wider, cast once.

    x: (..., D); delta: a number, or a tensor that broadcasts to x's shape without D. One constant rotation
    relocates a whole segment whatever the positions of its rows, since `R(n + delta) = R(delta) R(n)`.
    """
    cos, sin = angles(delta, rotary, torch.promote_types(x.dtype, torch.float32))
    return turn(x, cos, sin, rotary)


def add_turned(
    keys: Tensor, change: Tensor, cos: Tensor, sin: Tensor, rotary: Rotary, out: Tensor
) -> None:
    """Write `keys + R(n) change` to `out`. keys, out: (G, T, D); change: (G, 1, D); cos, sin: (T, dim / 2)."""
    out.copy_(keys + turn(change, cos, sin, rotary).to(keys.dtype))


def segment_attention(
    queries: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: Sequence[Span],
    rotary: Rotary,
    scale: float,
    shifts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from the tokens of one request to its spans of the pool, by rotating every key to its place.

    queries: (S, H, D), rotated at `positions` (S,); keys, values: one layer of the pool, (G, R, D);
    shifts: (n_spans, G, D), added to the values of each span. A query sees exactly the keys whose position
    is at most its own. Returns the output (S, H, D) and the log-sum-exp of the scores (S, H).
    """
    repeat = queries.shape[1] // keys.shape[0]
    all_keys, all_values, all_positions, all_bias = [], [], [], []
    for index, span in enumerate(spans):
        moved = rotate(keys[:, span.key_start : span.key_start + span.length], span.delta, rotary)
        value = values[:, span.value_start : span.value_start + span.length]
        if shifts is not None:
            value = value + shifts[index][:, None]
        all_keys.append(moved)  # (G, n, D)
        all_values.append(value)
        all_positions.append(span.positions(queries.device))
        all_bias.append(torch.full((span.length,), span.bias, device=queries.device))
    key = torch.cat(all_keys, 1).repeat_interleave(repeat, 0)  # (H, N, D)
    value = torch.cat(all_values, 1).repeat_interleave(repeat, 0)
    scores = torch.einsum("shd,hnd->shn", queries.to(key.dtype), key) * scale
    scores = scores + torch.cat(all_bias).to(scores.dtype)
    visible = torch.cat(all_positions)[None, :] <= positions[:, None]  # (S, N)
    scores = scores.masked_fill(~visible[:, None, :], float("-inf"))
    out = torch.einsum("shn,hnd->shd", scores.softmax(-1), value)
    return out, scores.logsumexp(-1)
