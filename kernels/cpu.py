"""Segment attention where nothing is compiled: torch's blocked CPU kernel per span, merged by log-sum-exp.

Each span is read where it lies in the pool (a strided view, nothing is gathered), the queries are
counter-rotated once per distinct offset, and the partial results are merged as they come. What each query
may see is worked out once per forward pass (`prepare`) and used by all layers of a kind. Only keys with a
change, and rows in 8 bits, are written out, one layer at a time, into the same scratch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from epicrag.kernels.reference import angles, visible
from epicrag.kernels.rounding import Rounded
from epicrag.kernels.tables import LayerKind, Rotary, Span

_MASK_BLOCK = 256
"""Queries in one masked call: bounds the mask, and lets each call skip the rows that none of them sees."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the blocked kernel: queries [low, high) against rows [skip, skip + length) of a span."""

    span: int
    start: int
    skip: int
    length: int
    turn: int  # row of the table of rotations; -1: none
    low: int
    high: int
    causal: bool = False  # queries and keys are the same tokens in the same order
    mask: Tensor | None = None  # (high - low or 1, length): 0 or minus infinity
    blind: Tensor | None = None  # (high - low,): queries that see nothing, where there are any


@dataclass(frozen=True, slots=True)
class _Changed:
    """The rotations to the local positions of a span's rows."""

    cos: Tensor  # (length, dim / 2)
    sin: Tensor


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Room for the rows of one layer that are not read where they lie: the same for every layer."""

    keys: Tensor  # (G, n, Dk)
    values: Tensor  # (G, n, Dv), of rows in 8 bits; those that only change have none
    at: dict[int, tuple[int, int]]
    """For each such span its place among the keys, and among the values, or -1."""


@dataclass(slots=True)
class Prepared:
    """The calls of one request, and cos and sin of minus each distinct offset."""

    spans: tuple[Span, ...]
    calls: tuple[_Call, ...]
    cos: Tensor  # (n_turns, dim / 2)
    sin: Tensor
    kind: LayerKind
    changed: dict[int, _Changed]
    _scratch: _Scratch | None = None
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def scratch(self, keys: Tensor, values: Tensor) -> _Scratch:
        """The scratch for a layer like this one: (G, R, Dk) and (G, R, Dv), rows behind these are in 8 bits."""
        if self._scratch is None or self._scratch.keys.dtype != keys.dtype:
            at: dict[int, tuple[int, int]] = {}
            n_keys = n_values = 0
            for index in sorted({call.span for call in self.calls}):
                span = self.spans[index]
                is_rounded = span.start >= keys.shape[1]
                if is_rounded or index in self.changed:
                    at[index] = n_keys, n_values if is_rounded else -1
                    n_keys += span.length
                    n_values += span.length if is_rounded else 0
            groups = keys.shape[0]
            self._scratch = _Scratch(
                keys.new_empty((groups, n_keys, keys.shape[2])),
                values.new_empty((groups, n_values, values.shape[2])),
                at,
            )
        return self._scratch

    def folded_mask(self, index: int, repeat: int, dtype: torch.dtype) -> Tensor | None:
        """The mask of a call for queries with their heads folded in: (n * repeat or 1, length)."""
        mask = self.calls[index].mask
        if mask is None:
            return None
        if (index, repeat) not in self._masks:
            if mask.shape[0] > 1:
                mask = mask.repeat_interleave(repeat, 0)
            self._masks[index, repeat] = mask.to(dtype)
        return self._masks[index, repeat]


def prepare(
    positions: Tensor, spans: Sequence[Span], kind: LayerKind, dtype: torch.dtype
) -> Prepared:
    """Work out which queries see which rows. positions: (S,), ascending."""
    rotary = kind.rotary
    deltas = sorted({span.delta for span in spans if span.delta}) if rotary.dim else []
    turn_of = {delta: index for index, delta in enumerate(deltas)}
    place = positions.tolist()
    calls: list[_Call] = []
    changed: dict[int, _Changed] = {}
    for index, span in enumerate(spans):
        made = _calls_of(index, span, turn_of.get(span.delta, -1), place, positions, kind.window)
        calls.extend(made)
        if made and span.change >= 0:
            local = torch.arange(span.local, span.local + span.length)
            changed[index] = _Changed(*angles(local, rotary, dtype))
    # First the calls that cover every query, so that the merge starts from a whole result.
    calls.sort(key=lambda call: (call.low, -call.high, call.span))
    cos, sin = angles(-torch.tensor(deltas, dtype=torch.float64), rotary, dtype)
    return Prepared(tuple(spans), tuple(calls), cos, sin, kind, changed)


def _calls_of(
    index: int, span: Span, turn: int, place: list[int], positions: Tensor, window: int | None
) -> list[_Call]:
    """Split the queries at a span: those that see all of it, those that see a part, those that see nothing."""
    length, n_queries = span.length, len(place)
    n_hidden = 0 if span.holes is None else len(span.holes)
    if n_hidden == length or not n_queries:
        return []
    first, last = span.first, span.last
    some = bisect_left(place, first)  # queries [some, ...) stand at or behind the first row
    whole = bisect_left(place, last)
    gone = out = n_queries  # with a window: where rows begin to fall out, and have all fallen out
    if window is not None:
        gone, out = bisect_left(place, first + window), bisect_left(place, last + window)
    hidden = None
    if n_hidden:
        hidden = torch.zeros(1, length)
        hidden[0, span.holes] = float("-inf")
    if hidden is None and turn < 0 and length == n_queries and not some:
        is_same = torch.equal(span.positions(positions.device), positions)
        if is_same and (window is None or last - first < window):
            return [_Call(index, span.start, 0, length, turn, 0, n_queries, causal=True)]
    calls = []
    low, high = max(some, whole), min(gone, out)
    if low < high:
        calls.append(_Call(index, span.start, 0, length, turn, low, high, mask=hidden))
    partial = [(some, low), (high, out)] if low < high else [(some, out)]
    for begin, end in partial:
        if begin >= end:
            continue
        key_positions = span.positions(positions.device)
        for block in range(begin, end, _MASK_BLOCK):
            upto = min(block + _MASK_BLOCK, end)
            skip = 0
            if window is None:
                # Rows that all of the block see need no mask: it would grow with queries times rows.
                skip = int(torch.searchsorted(key_positions, positions[block], right=True))
                if skip:
                    start = None if hidden is None else hidden[:, :skip]
                    if start is None or not torch.isneginf(start).all():
                        calls.append(
                            _Call(index, span.start, 0, skip, turn, block, upto, mask=start)
                        )
            seen = visible(positions[block:upto], key_positions[skip:], window)
            columns = seen.any(0).nonzero().flatten()
            if not len(columns):
                continue
            lo, hi = int(columns[0]), int(columns[-1]) + 1
            mask = torch.zeros(upto - block, hi - lo).masked_fill_(~seen[:, lo:hi], float("-inf"))
            lo, hi = lo + skip, hi + skip
            if hidden is not None:
                mask += hidden[:, lo:hi]
            blind = torch.isneginf(mask).all(1)
            call = _Call(index, span.start, lo, hi - lo, turn, block, upto, mask=mask)
            if not blind.all():
                calls.append(replace(call, blind=blind) if blind.any() else call)
    return calls


def _turn_all(queries: Tensor, prepared: Prepared) -> Tensor:
    """Counter-rotate: (G, S, r, D) -> (n_turns, G, S, r, D)."""
    rotary = prepared.kind.rotary
    cos, sin = prepared.cos[:, None, None, None], prepared.sin[:, None, None, None]
    given, queries = queries.dtype, queries.to(cos.dtype)
    out = queries.new_empty((cos.shape[0], *queries.shape))
    if rotary.dim < queries.shape[-1]:
        out.copy_(queries.expand_as(out))
    first, second = _halves(queries, rotary)
    into_first, into_second = _halves(out, rotary)
    torch.mul(first, cos, out=into_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=into_second).addcmul_(first, sin)
    return out.to(given)


def _halves(x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
    """Views of the paired entries of x (..., D), each (..., dim / 2)."""
    start, end, half = rotary.start, rotary.start + rotary.dim, rotary.dim // 2
    if rotary.interleaved:
        return x[..., start:end:2], x[..., start + 1 : end : 2]
    return x[..., start : start + half], x[..., start + half : end]


def add_turned(
    keys: Tensor, change: Tensor, cos: Tensor, sin: Tensor, rotary: Rotary, out: Tensor
) -> None:
    """Write `keys + R(n) change` to `out`: one change, turned to the position n of each row.

    keys, out: (G, T, D); change: (G, 1, D) in the un-rotated frame; cos, sin: (T, dim / 2). Worked out in the
    precision of cos, in four passes and without a temporary where the keys have it too.
    """
    if keys.dtype != cos.dtype:
        wide = keys.to(cos.dtype)
        add_turned(wide, change, cos, sin, rotary, wide)
        out.copy_(wide)
        return
    for still in (slice(0, rotary.start), slice(rotary.start + rotary.dim, keys.shape[-1])):
        if still.start < still.stop:
            torch.add(keys[..., still], change[..., still].to(cos.dtype), out=out[..., still])
    if not rotary.dim:
        return
    first, second = _halves(change.to(cos.dtype), rotary)
    low, high = _halves(keys, rotary)
    into_low, into_high = _halves(out, rotary)
    torch.addcmul(low, cos, first, out=into_low).addcmul_(sin, second, value=-1)
    torch.addcmul(high, cos, second, out=into_high).addcmul_(sin, first)


def segment_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prepared: Prepared,
    scale: float,
    rounded: Rounded | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from one request's tokens to its spans. queries: (S, H, Dk); keys, values: (G, R, Dk), (G, R, Dv).

    Same result as `reference.segment_attention`: the output (S, H, Dv), and the log-sum-exp of the scores
    (S, H) in float32 at least. Partial results are merged in that precision.
    """
    n_queries, n_heads, dim = queries.shape
    groups = keys.shape[0]
    repeat = n_heads // groups
    folded = (
        queries.view(n_queries, groups, repeat, dim).transpose(0, 1).contiguous()
    )  # (G, S, r, D)
    turned = _turn_all(folded, prepared) if prepared.cos.shape[0] else folded[None]
    source = _Source(keys, values, rounded, prepared)
    out: Tensor | None = None
    total: Tensor | None = None
    for index, call in enumerate(prepared.calls):
        query = folded if call.turn < 0 else turned[call.turn]
        span, changed = prepared.spans[call.span], prepared.changed.get(call.span)
        key, value = source.rows(call)
        mask = prepared.folded_mask(index, repeat, queries.dtype)
        part, lse = _attend(call, queries, query, key, value, mask, scale, prepared.kind.softcap)
        part = part.to(lse.dtype)  # (G, s, r, Dv), (G, s, r)
        if call.blind is not None:
            part[:, call.blind], lse[:, call.blind] = 0.0, float("-inf")
        if span.bias:
            lse = lse + span.bias
        if changed:
            part = part + values[:, span.change][:, None, None]
        if out is None or total is None:
            if call.low:
                raise _sees_nothing(call.low)
            out, total = _start(part, lse, n_queries)
            continue
        here, there = out[:, call.low : call.high], total[:, call.low : call.high]
        merged = torch.logaddexp(there, lse)
        share = torch.exp(lse - merged).nan_to_num_(0.0)[..., None]
        here.lerp_(part, share)
        total[:, call.low : call.high] = merged
    if out is None or total is None:
        raise _sees_nothing(n_queries)
    shape = (n_queries, n_heads)
    return (
        out.transpose(0, 1).reshape(*shape, values.shape[2]).to(queries.dtype),
        total.transpose(0, 1).reshape(shape),
    )


def _sees_nothing(low: int) -> ValueError:
    return ValueError(f"queries 0 to {low - 1} see no key: a token sees at least itself")


class _Source:
    """Where the calls of one layer find their keys and values: in the pool, else written out when first wanted."""

    def __init__(
        self, keys: Tensor, values: Tensor, rounded: Rounded | None, prepared: Prepared
    ) -> None:
        self._keys, self._values, self._prepared = keys, values, prepared
        self._rounded = rounded
        self._scratch = prepared.scratch(keys, values)
        self._done: set[int] = set()

    def rows(self, call: _Call) -> tuple[Tensor, Tensor]:
        """Keys (G, length, Dk) and values (G, length, Dv) of a call."""
        span = self._prepared.spans[call.span]
        here = slice(span.start + call.skip, span.start + call.skip + call.length)
        if call.span not in self._scratch.at:
            return self._keys[:, here], self._values[:, here]
        at_keys, at_values = self._scratch.at[call.span]
        if call.span not in self._done:
            self._write(call.span, at_keys, at_values)
            self._done.add(call.span)
        key = self._scratch.keys[:, at_keys + call.skip : at_keys + call.skip + call.length]
        if at_values < 0:
            return key, self._values[:, here]
        at = at_values + call.skip
        return key, self._scratch.values[:, at : at + call.length]

    def _write(self, index: int, at_keys: int, at_values: int) -> None:
        """Write out the keys of a span, and its values where they are in 8 bits."""
        span, changed = self._prepared.spans[index], self._prepared.changed.get(index)
        keys = self._scratch.keys[:, at_keys : at_keys + span.length]
        before = self._keys[:, span.start : span.start + span.length]
        if at_values >= 0:
            assert self._rounded is not None
            rounded, first = self._rounded, span.start - self._keys.shape[1]
            rows = slice(first, first + span.length)
            values = self._scratch.values[:, at_values : at_values + span.length]
            _widen(rounded.keys[:, rows], rounded.key_scales[:, rows], keys)
            _widen(rounded.values[:, rows], rounded.value_scales[:, rows], values)
            before = keys
        if changed is not None:
            change = self._keys[:, span.change : span.change + 1]
            rotary = self._prepared.kind.rotary
            add_turned(before, change, changed.cos, changed.sin, rotary, keys)


def _widen(whole: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write what whole numbers (G, n, D) and their scales (G, n) stand for to `out`."""
    if out.dtype == torch.float32:
        out.copy_(whole).mul_(scales[..., None])
    else:
        out.copy_(whole.float().mul_(scales[..., None]))


def _start(part: Tensor, lse: Tensor, n_queries: int) -> tuple[Tensor, Tensor]:
    """Begin the merge; rows the first call does not reach start at minus infinity."""
    if part.shape[1] == n_queries:
        return part.contiguous(), lse.contiguous()
    out = part.new_zeros((part.shape[0], n_queries, *part.shape[2:]))
    total = lse.new_full((lse.shape[0], n_queries, lse.shape[2]), float("-inf"))
    out[:, : part.shape[1]], total[:, : part.shape[1]] = part, lse
    return out, total


def _attend(
    call: _Call,
    queries: Tensor,
    folded: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Run one call. folded: (G, S, r, Dk); key, value: (G, n, Dk), (G, n, Dv). Returns (G, s, r, Dv), (G, s, r)."""
    groups, _, repeat, dim = folded.shape
    n = call.high - call.low
    rows = folded[:, call.low : call.high].reshape(groups, n * repeat, dim)
    if softcap or value.shape[2] != dim:
        part, lse = _plain(call, rows, key, value, mask, scale, softcap)
        return part.view(groups, n, repeat, value.shape[2]), lse.view(groups, n, repeat)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if call.causal:
        # (1, H, S, D): the kernel itself maps each query head to its key head.
        part, lse = kernel(
            queries.transpose(0, 1)[None], key[None], value[None], 0.0, True, scale=scale
        )
        part = part[0].unflatten(0, (groups, repeat)).transpose(1, 2)
        return part, lse[0].unflatten(0, (groups, repeat)).transpose(1, 2)
    if mask is not None:
        mask = mask.expand(n * repeat, call.length)[None, None]
    part, lse = kernel(rows[None], key[None], value[None], 0.0, False, attn_mask=mask, scale=scale)
    return part[0].view(groups, n, repeat, dim), lse[0].view(groups, n, repeat)


def _plain(
    call: _Call,
    rows: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Product, softmax, product, in blocks of queries: where torch's kernel does not do the arithmetic.

    rows: (G, n * r, Dk). Returns (G, n * r, Dv) and (G, n * r).
    """
    repeat = rows.shape[1] // (call.high - call.low)
    outs, sums = [], []
    for low in range(0, rows.shape[1], _MASK_BLOCK * repeat):
        high = min(low + _MASK_BLOCK * repeat, rows.shape[1])
        seen = key.shape[1] if not call.causal else -(-high // repeat)
        scores = torch.matmul(rows[:, low:high], key[:, :seen].transpose(1, 2)).mul_(scale)
        if softcap:
            scores.div_(softcap).tanh_().mul_(softcap)
        if call.causal:
            place = torch.arange(low, high) // repeat
            scores.masked_fill_(torch.arange(seen)[None, :] > place[:, None], float("-inf"))
        elif mask is not None:
            scores += mask if mask.shape[0] == 1 else mask[low:high]
        lse = scores.float().logsumexp(-1) if scores.dtype.itemsize < 4 else scores.logsumexp(-1)
        weights = (scores - lse[..., None].to(scores.dtype)).exp_().nan_to_num_(0.0)
        outs.append(torch.matmul(weights, value[:, :seen]))
        sums.append(lse)
    return torch.cat(outs, 1), torch.cat(sums, 1)
