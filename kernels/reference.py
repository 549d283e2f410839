"""The operations in plain torch, written to be read: the oracle every fast version is tested against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from epicrag.kernels.rounding import Rounded, span_keys, span_values
from epicrag.kernels.tables import LayerKind, Rotary, RowSet, Shifts, Span


def angles(delta: Tensor | int, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin of a rotation by `delta` positions, (..., dim / 2), worked out in float64."""
    delta = torch.as_tensor(delta, device=rotary.inv_freq.device, dtype=torch.float64)
    angle = delta[..., None] * rotary.inv_freq.to(torch.float64)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, rotary: Rotary) -> Tensor:
    """Rotate the entries of x (..., D) that `rotary` turns, by the given angles (..., dim / 2)."""
    if not rotary.dim:
        return x
    end = rotary.start + rotary.dim
    before, moved, rest = x[..., : rotary.start], x[..., rotary.start : end], x[..., end:]
    moved = moved.to(cos.dtype)
    if rotary.interleaved:
        first, second = moved[..., 0::2], moved[..., 1::2]
    else:
        first, second = moved.chunk(2, dim=-1)
    new_first, new_second = first * cos - second * sin, second * cos + first * sin
    if rotary.interleaved:
        moved = torch.stack((new_first, new_second), dim=-1).flatten(-2)
    else:
        moved = torch.cat((new_first, new_second), dim=-1)
    shape = moved.shape[:-1]
    around = [part.expand(*shape, part.shape[-1]) for part in (before, rest)]
    return torch.cat((around[0], moved.to(x.dtype), around[1]), dim=-1)


def rotate(
    x: Tensor, delta: Tensor | int | Shifts, rotary: Rotary, out: Tensor | None = None
) -> Tensor:
    """Turn keys or queries by `delta` positions: `R(delta) x`, computed in float32 or wider, cast once.

    x: (..., D); delta: a number, or a tensor that broadcasts to x's shape without D, or one for each segment of
    x's rows. One constant rotation relocates a whole segment whatever the positions of its rows, since
    `R(n + delta) = R(delta) R(n)`. `out`: takes the result; it may be x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if isinstance(delta, Shifts):
        rows = delta.of_rows(x.shape[-2]).to(rotary.inv_freq.device)
        cos, sin = angles(torch.tensor(delta.deltas, dtype=torch.int64), rotary, wide)
        cos, sin = cos[rows], sin[rows]
    else:
        cos, sin = angles(delta, rotary, wide)
    turned = turn(x, cos, sin, rotary)
    return turned if out is None else out.copy_(turned)


def move_rows(
    source: Sequence[Tensor], target: Sequence[Tensor], source_rows: RowSet, target_rows: RowSet
) -> None:
    """Copy rows of each tensor (L, G, N, D) or (L, G, N) of `source` to rows of its fellow, cast to its type.

    ValueError where there are not as many rows on both sides.
    """
    pieces = list(_pieces(source_rows, source[0].shape[2], target_rows, target[0].shape[2]))
    for x, y in zip(source, target, strict=True):
        for from_rows, to_rows in pieces:
            if isinstance(to_rows, slice):
                y[:, :, to_rows] = x[:, :, from_rows]  # cast in the one copy
            else:
                y[:, :, to_rows] = x[:, :, from_rows].to(y.dtype)


Piece = tuple[slice | Tensor, slice | Tensor]


def _pieces(source_rows: RowSet, have: int, target_rows: RowSet, room: int) -> Iterator[Piece]:
    """Rows of one side and of the other as indices, stretches of neighbours where both sides are such."""
    sides = [
        rows if rows is not None else [(0, n)]
        for rows, n in ((source_rows, have), (target_rows, room))
    ]
    if any(isinstance(rows, Tensor) for rows in sides):
        numbers = [_numbers(rows) for rows in sides]
        if len(numbers[0]) != len(numbers[1]):
            raise ValueError(f"{len(numbers[0]):,} rows do not go to {len(numbers[1]):,} rows")
        yield numbers[0], numbers[1]
        return
    runs = [[(start, n) for start, n in rows if n] for rows in sides]
    counts = [sum(n for _, n in side) for side in runs]
    if counts[0] != counts[1]:
        raise ValueError(f"{counts[0]:,} rows do not go to {counts[1]:,} rows")
    while runs[0]:
        (start, n), (place, room_here) = (side.pop(0) for side in runs)
        step = min(n, room_here)
        yield slice(start, start + step), slice(place, place + step)
        for side, low, length in ((runs[0], start, n), (runs[1], place, room_here)):
            if length > step:
                side.insert(0, (low + step, length - step))


def _numbers(rows: Tensor | Sequence[tuple[int, int]]) -> Tensor:
    if isinstance(rows, Tensor):
        return rows.long()
    return torch.cat([torch.arange(start, start + n) for start, n in rows])


def visible(positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """Which keys each query sees, (S, N). positions: (S,), key_positions: (N,)."""
    queries, keys = positions[:, None], key_positions[None, :]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def segment_attention(
    queries: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: Sequence[Span],
    kind: LayerKind,
    scale: float,
    rounded: Rounded | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from the tokens of one request to its spans of the pool, by rotating every key to its place.

    queries: (S, H, Dk), rotated at `positions` (S,); keys, values: one layer of the pool, (G, R, Dk) and
    (G, R, Dv), and its rows in 8 bits. A query sees exactly what `kind` lets it see. Returns the output (S, H, Dv) and the log-sum-exp
    of the scores (S, H).
    """
    repeat = queries.shape[1] // keys.shape[0]
    device, rotary = queries.device, kind.rotary
    all_keys, all_values, all_positions, all_bias = [], [], [], []
    for span in spans:
        key = span_keys(keys, rounded, span.start, span.length)  # (G, n, Dk)
        value = span_values(values, rounded, span.start, span.length)
        bias = torch.full((span.length,), span.bias, device=device)
        if span.change >= 0:
            local = torch.arange(span.local, span.local + span.length, device=device)
            change = keys[:, span.change : span.change + 1].expand_as(key)
            key = key + rotate(change, local, rotary)
            value = value + values[:, span.change : span.change + 1]
        if span.holes is not None:
            bias[span.holes] = float("-inf")
        all_keys.append(rotate(key, span.delta, rotary) if span.delta else key)
        all_values.append(value)
        all_positions.append(span.positions(device))
        all_bias.append(bias)
    key = torch.cat(all_keys, 1).repeat_interleave(repeat, 0)  # (H, N, Dk)
    value = torch.cat(all_values, 1).repeat_interleave(repeat, 0)
    scores = torch.einsum("shd,hnd->shn", queries.to(key.dtype), key) * scale
    if kind.softcap:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    scores = scores + torch.cat(all_bias).to(scores.dtype)
    seen = visible(positions, torch.cat(all_positions), kind.window)  # (S, N)
    scores = scores.masked_fill(~seen[:, None, :], float("-inf"))
    out = torch.einsum("shn,hnd->shd", scores.softmax(-1), value)
    return out, scores.logsumexp(-1)
