"""Segment attention on the CPU without touching a key: torch's blocked kernel per span, merged by log-sum-exp.

Each span is read where it lies in the pool (a strided view, nothing is gathered), the queries are
counter-rotated once per distinct offset, and the partial results are merged as they come. What each query
may see is worked out once per forward pass (`prepare`) and used by all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epicrag.kernels.reference import angles
from epicrag.kernels.tables import Rotary, Span


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the blocked kernel: queries [low, high) against `length` rows."""

    span: int
    key_start: int
    value_start: int
    length: int
    turn: int  # row of the table of rotations; -1: none
    low: int
    high: int
    bias: float
    causal: bool = False  # queries and keys are the same tokens in the same order
    mask: Tensor | None = None  # (high - low, length) bool, where neither all nor causal


@dataclass(frozen=True, slots=True)
class Prepared:
    """The calls of one request, and cos and sin of minus each distinct offset."""

    calls: tuple[_Call, ...]
    cos: Tensor  # (n_turns, dim / 2)
    sin: Tensor
    rotary: Rotary


def prepare(
    positions: Tensor, spans: Sequence[Span], rotary: Rotary, dtype: torch.dtype
) -> Prepared:
    """Work out which queries see which rows. positions: (S,), ascending."""
    deltas = sorted({span.delta for span in spans if span.delta})
    turn_of = {delta: index for index, delta in enumerate(deltas)} | {0: -1}
    place = positions.tolist()
    calls: list[_Call] = []
    for index, span in enumerate(spans):
        if span.length:
            calls.extend(_calls_of(index, span, turn_of[span.delta], place, positions))
    # First the calls that cover every query, so that the merge starts from a whole result.
    calls.sort(key=lambda call: (call.low, call.span))
    cos, sin = angles(-torch.tensor(deltas, dtype=torch.float64), rotary, dtype)
    return Prepared(tuple(calls), cos, sin, rotary)


def _calls_of(
    index: int, span: Span, turn: int, place: list[int], positions: Tensor
) -> list[_Call]:
    """Split the queries at a span: those behind it see all of it, those inside see a part."""
    fixed = (index, span.key_start, span.value_start, span.length, turn)
    n_queries = len(place)
    inside = next((i for i, p in enumerate(place) if p >= span.first), n_queries)
    behind = next((i for i, p in enumerate(place) if p >= span.last), n_queries)
    calls = []
    if inside < behind:
        key_positions = span.positions(positions.device)
        same = span.length == n_queries and inside == 0 and torch.equal(key_positions, positions)
        if same:
            return [_Call(*fixed, 0, n_queries, span.bias, causal=True)]
        mask = key_positions[None, :] <= positions[inside:behind, None]
        calls.append(_Call(*fixed, inside, behind, span.bias, mask=mask))
    if behind < n_queries:
        calls.append(_Call(*fixed, behind, n_queries, span.bias))
    return calls


def _turn_all(queries: Tensor, prepared: Prepared) -> Tensor:
    """Counter-rotate: (G, S, r, D) -> (n_turns, G, S, r, D)."""
    rotary = prepared.rotary
    cos, sin = prepared.cos[:, None, None, None], prepared.sin[:, None, None, None]
    given, queries = queries.dtype, queries.to(cos.dtype)
    out = queries.new_empty((cos.shape[0], *queries.shape))
    half = rotary.dim // 2
    if rotary.interleaved:
        first, second = queries[..., 0 : rotary.dim : 2], queries[..., 1 : rotary.dim : 2]
        into_first, into_second = out[..., 0 : rotary.dim : 2], out[..., 1 : rotary.dim : 2]
    else:
        first, second = queries[..., :half], queries[..., half : rotary.dim]
        into_first, into_second = out[..., :half], out[..., half : rotary.dim]
    torch.mul(first, cos, out=into_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=into_second).addcmul_(first, sin)
    out[..., rotary.dim :] = queries[..., rotary.dim :]
    return out.to(given)


def add_turned(
    keys: Tensor, change: Tensor, cos: Tensor, sin: Tensor, rotary: Rotary, out: Tensor
) -> None:
    """`reference.add_turned` for half-split pairs, in four passes and without a temporary."""
    half, dim = rotary.dim // 2, rotary.dim
    first, second = change[..., :half], change[..., half:dim]
    low, high = out[..., :half], out[..., half:dim]
    torch.addcmul(keys[..., :half], cos, first, out=low).addcmul_(sin, second, value=-1)
    torch.addcmul(keys[..., half:dim], cos, second, out=high).addcmul_(sin, first)
    if dim < keys.shape[-1]:
        torch.add(keys[..., dim:], change[..., dim:], out=out[..., dim:])


def segment_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prepared: Prepared,
    scale: float,
    shifts: Tensor | None = None,
) -> Tensor:
    """Attend from one request's tokens to its spans. queries: (S, H, D); keys, values: (G, R, D).

    Same result as `reference.segment_attention`; returns the output (S, H, D). Partial results are merged
    in float32 at least.
    """
    n_queries, n_heads, dim = queries.shape
    groups = keys.shape[0]
    repeat = n_heads // groups
    folded = (
        queries.view(n_queries, groups, repeat, dim).transpose(0, 1).contiguous()
    )  # (G, S, r, D)
    turned = _turn_all(folded, prepared) if prepared.cos.shape[0] else folded[None]
    out: Tensor | None = None
    total: Tensor | None = None
    for call in prepared.calls:
        query = folded if call.turn < 0 else turned[call.turn]
        part, lse = _attend(call, queries, query, keys, values, scale)  # (G, s, r, D), (G, s, r)
        part = part.to(lse.dtype)
        if call.bias:
            lse = lse + call.bias
        if shifts is not None:
            part = part + shifts[call.span][:, None, None]
        if out is None or total is None:
            if call.low:
                raise ValueError(
                    f"queries 0 to {call.low - 1} see no key: a token sees at least itself"
                )
            out, total = _start(part, lse, n_queries)
            continue
        here, there = out[:, call.low : call.high], total[:, call.low : call.high]
        here.lerp_(part, torch.sigmoid(lse - there)[..., None])
        total[:, call.low : call.high] = torch.logaddexp(there, lse)
    assert out is not None
    return out.transpose(0, 1).reshape(n_queries, n_heads, dim).to(queries.dtype)


def _start(part: Tensor, lse: Tensor, n_queries: int) -> tuple[Tensor, Tensor]:
    """Begin the merge; rows the first call does not reach start at minus infinity."""
    if part.shape[1] == n_queries:
        return part.contiguous(), lse.contiguous()
    out = part.new_zeros((part.shape[0], n_queries, *part.shape[2:]))
    total = lse.new_full((lse.shape[0], n_queries, lse.shape[2]), float("-inf"))
    out[:, : part.shape[1]], total[:, : part.shape[1]] = part, lse
    return out, total


def _attend(
    call: _Call, queries: Tensor, folded: Tensor, keys: Tensor, values: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Run the blocked kernel on one call. Returns (G, s, r, D) and (G, s, r)."""
    groups, _, repeat, dim = folded.shape
    key = keys[None, :, call.key_start : call.key_start + call.length]
    value = values[None, :, call.value_start : call.value_start + call.length]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if call.causal:
        # (1, H, S, D): the kernel itself maps each query head to its key head.
        part, lse = kernel(queries.transpose(0, 1)[None], key, value, 0.0, True, scale=scale)
        part = part[0].unflatten(0, (groups, repeat)).transpose(1, 2)
        return part, lse[0].unflatten(0, (groups, repeat)).transpose(1, 2)
    n = call.high - call.low
    rows = folded[:, call.low : call.high].reshape(1, groups, n * repeat, dim)
    mask = None
    if call.mask is not None:
        mask = torch.zeros(call.mask.shape, dtype=rows.dtype).masked_fill_(
            ~call.mask, float("-inf")
        )
        mask = mask.repeat_interleave(repeat, 0)[None, None]
    part, lse = kernel(rows, key, value, 0.0, False, attn_mask=mask, scale=scale)
    return part[0].view(groups, n, repeat, dim), lse[0].view(groups, n, repeat)
