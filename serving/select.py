"""Choosing what to compute again by looking at the stitched prompt: the selection passes.

A pass runs few tokens through few layers, or all tokens through one, ends as soon as it has seen enough, and
is charged: its tokens times the share of the layers that it entered. Nothing shared is written. Tokens that
the policy computes again anyway are not ranked, so that the budget is spent on others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.kernels import ops
from epicrag.serving.attention import Enough, FlatBatch
from epicrag.serving.compile import compute_dtype
from epicrag.serving.compose import plan
from epicrag.serving.link import stitch
from epicrag.serving.policies import (
    QUESTION_TOKENS,
    Damp,
    Deviation,
    Focus,
    Heads,
    Naive,
    Policy,
    Reconnect,
    Selector,
    count_of,
)

if TYPE_CHECKING:
    from epicrag.serving.compose import Layout, Plan, Segment
    from epicrag.serving.model import ServedModel
    from epicrag.serving.pool import Pool, Run


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rows of each segment to compute again, ascending, and what choosing them cost (see `Plan.selected`)."""

    rows: dict[int, list[int]]
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A stitched prompt to look at: where it lies, what of it is exact, and how it will be read."""

    model: ServedModel
    pool: Pool
    layers: ops.Layers
    layout: Layout
    policy: Policy
    exact: Mapping[int, bool]
    resident: dict[int, tuple[Run, ...]]

    @property
    def n_layers(self) -> int:
        return len(self.layers.of_layer)

    def stitched(self) -> list[tuple[int, Segment]]:
        """The segments that are reused without being exact, in order."""
        segments = self.layout.segments
        return [(index, segments[index]) for index in sorted(self.exact) if not self.exact[index]]

    def rows(self, index: int) -> list[int]:
        """Pool rows of a segment. More may be cached of a chunk than the prompt reads (see `Segment`)."""
        runs = self.resident[index]
        rows = [row for run in runs for row in range(run.start, run.start + run.length)]
        segment = self.layout.segments[index]
        return rows[segment.skip : segment.skip + segment.length]

    def cost(self, n_tokens: int, n_layers: int) -> float:
        return n_tokens * n_layers / self.n_layers


def choose(look: Look) -> Chosen:
    """Let each of the policy's selectors choose, one after the other, among what is not chosen yet."""
    taken: set[int] = set()
    for _, segment in look.stitched():
        taken.update(segment.start + row for row in look.policy.recompute(segment.length))
    chosen: set[int] = set()
    cost = 0.0
    for selector in look.policy.selectors:
        free = [
            place
            for _, segment in look.stitched()
            for place in range(segment.start, segment.end)
            if place not in taken
        ]
        picked, charged = _pick(look, selector, free)
        taken.update(picked)
        chosen.update(picked)
        cost += charged
    return Chosen(_by_segment(look, sorted(chosen)), cost)


def _pick(look: Look, selector: Selector, free: list[int]) -> tuple[Collection[int], float]:
    """Positions that a selector picks among the `free` ones, and the cost of finding them."""
    if isinstance(selector, Reconnect):
        return _reconnect(look, selector, free)
    assert isinstance(selector, Focus | Deviation)
    context = sum(s.length for s in look.layout.segments if s.unit.kind in ("system", "chunk"))
    count = count_of(selector.share, context)
    if count >= len(free) or not count:
        return free[:count], 0.0  # nothing to find out
    if isinstance(selector, Deviation):
        scores, cost = deviations(look, free)
    else:
        asking = _question(look.layout, selector.tokens)
        groups, cost = attention_to(look, selector, [asking], [])
        scores = groups[0][torch.tensor(free)]
    return _top(scores, free, count), cost


def _reconnect(look: Look, selector: Reconnect, free: list[int]) -> tuple[Collection[int], float]:
    """The best of each chunk, by its share of its border's attention plus its share of the question's."""
    parts = []
    for _, segment in look.stitched():
        inside = free[bisect_left(free, segment.start) : bisect_left(free, segment.end)]
        border = range(max(segment.start, segment.end - selector.edge), segment.end)
        parts.append((inside, border))
    if all(len(inside) <= selector.tokens for inside, _ in parts) or not selector.tokens:
        return (free if selector.tokens else []), 0.0
    borders = [border for _, border in parts if len(border)]
    asking = _question(look.layout, QUESTION_TOKENS)
    groups, cost = attention_to(look, selector, [asking, *borders], borders)
    by_border = dict(zip(borders, groups[1:], strict=True))
    picked: list[int] = []
    for inside, border in parts:
        places = torch.tensor(inside, dtype=torch.int64)
        scores = _shares(groups[0][places])
        if border in by_border:
            # A token always attends to itself and what stands next to it: that says nothing of the border.
            ahead = by_border[border].clone()
            ahead[border.start : border.stop] = 0
            scores = scores + _shares(ahead[places])
        picked.extend(_top(scores, inside, selector.tokens))
    return picked, cost


def _shares(scores: Tensor) -> Tensor:
    return scores / scores.sum().clamp_min(1e-12)


def _top(scores: Tensor, places: Sequence[int], count: int) -> list[int]:
    """The places of the `count` highest scores; of equal ones the earlier."""
    order = scores.argsort(descending=True, stable=True)[:count]
    return [places[index] for index in order.tolist()]


def _by_segment(look: Look, chosen: list[int]) -> dict[int, list[int]]:
    rows = {}
    for index, segment in look.stitched():
        inside = chosen[bisect_left(chosen, segment.start) : bisect_left(chosen, segment.end)]
        if inside:
            rows[index] = [place - segment.start for place in inside]
    return rows


def _question(layout: Layout, most: int) -> range:
    """The positions of the last `most` tokens of the question, template included."""
    last = layout.segments[-1]
    return range(max(last.start, last.end - most), last.end)


# --- attention ------------------------------------------------------------------------------------


def attention_to(
    look: Look, selector: Focus | Reconnect, groups: list[range], inside: list[range]
) -> tuple[list[Tensor], float]:
    """Run the tokens of all groups over the stitched prompt; how much each group attends to every position.

    `inside` are the groups that stand in chunks: their tokens are computed here, and their cached rows are not
    read. Returns a score (n_tokens,) for each group, and the cost.
    """
    order = sorted(groups, key=lambda group: group.start)
    places = [place for group in order for place in group]
    passing = replace(_plan(look, inside), positions=tuple(places))
    watched = selector.layers.layers(look.n_layers)
    linked = stitch(look.model, look.pool, look.layers, look.layout, passing, look.resident, 0)
    try:
        request = linked.request(len(places), 0)
        tables = []
        for group in groups:
            low = places.index(group.start)
            high = low + len(group)
            tables.append(ops.Rows(low, high, request.positions[low:high], request.spans))
        dtype = compute_dtype(look.model.dtype)
        flat = FlatBatch(look.pool, look.layers, [request], dtype)
        batch = _Watching(flat, tables, watched, selector.heads, look.layout.end)
        ids = look.layout.by_place
        look.model.forward([ids[place] for place in places], request.positions, batch, [0])
    finally:
        linked.close()
    return [score.cpu() for score in batch.scores], look.cost(len(places), watched.stop)


def _plan(look: Look, inside: list[range]) -> Plan:
    """The stitched prompt with nothing computed again but what stands `inside` chunks."""
    damping = look.policy.damping
    bare: Policy = Damp(damping.tokens, damping.amount) if damping else Naive()
    places = sorted(place for group in inside for place in group)
    return plan(look.layout, bare, look.exact, _by_segment(look, places))


class _Watching:
    """A batch that adds up, in some layers, how much attention each position receives; then it has enough."""

    def __init__(
        self,
        inner: FlatBatch,
        groups: Sequence[ops.Rows],
        layers: range,
        heads: Heads,
        n_tokens: int,
    ) -> None:
        self._inner = inner
        self._layers = layers
        self._heads = heads
        device = inner.pool.keys.device
        of_layer, kinds = inner.layers.of_layer, inner.layers.kinds
        self._columns = {
            number: [ops.prepare_columns(rows, kinds[number]) for rows in groups]
            for number in {of_layer[layer] for layer in layers}
        }
        spans = groups[0].spans
        self._places = torch.cat([span.positions(device) for span in spans])
        self.scores = [torch.zeros(n_tokens, device=device) for _ in groups]

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        out = self._inner.attend(layer, queries, keys, values, scale)
        if layer in self._layers:
            asked = self._columns[self._inner.layers.of_layer[layer]]
            pool = self._inner.pool
            pool_keys, rounded = pool.keys[layer], pool.rounded(layer)
            for columns, score in zip(asked, self.scores, strict=True):
                given = queries.transpose(0, 1), pool_keys, columns, scale, rounded
                sums = torch.cat(ops.column_sums(*given), 1)  # (H, N)
                joined = sums.amax(0) if self._heads == "max" else sums.mean(0)
                score.index_add_(0, self._places, joined.to(score.dtype))
        if layer == self._layers[-1]:
            raise Enough
        return out


# --- deviation ------------------------------------------------------------------------------------


def deviations(look: Look, free: list[int]) -> tuple[Tensor, float]:
    """How far the values of the `free` positions are from the cached ones in the second layer, and the cost.

    Everything up to the last stitched chunk is computed but what is exact, through one layer. The second
    layer is charged too, though no more than its keys and values are computed.
    """
    segments = look.layout.segments
    end = look.stitched()[-1][1].end
    known = [index for index in sorted(look.exact) if look.exact[index]]
    places = [
        place
        for index, segment in enumerate(segments)
        if index not in known
        for place in range(segment.start, min(segment.end, end))
    ]
    device = look.model.device
    cached = {
        segment.start + n: row
        for index, segment in look.stitched()
        for n, row in enumerate(look.rows(index))
    }
    index_of = {place: index for index, place in enumerate(places)}
    positions = torch.tensor(places, device=device)
    batch = _Deviating(
        look,
        positions,
        [(segments[i].start, segments[i].skip, look.rows(i)) for i in known],
        torch.tensor([index_of[place] for place in free], device=device),
        torch.tensor([cached[place] for place in free], device=device),
    )
    ids = look.layout.by_place
    look.model.forward([ids[place] for place in places], positions, batch, [0])
    return batch.scores.cpu(), look.cost(len(places), min(2, look.n_layers))


class _Deviating:
    """A batch that computes the first layer from its own tokens and exact rows, and compares in the second.

    It takes no rows of the pool: the first layer's keys and values are read where they are computed.
    """

    def __init__(
        self,
        look: Look,
        positions: Tensor,
        exact: Sequence[tuple[int, int, list[int]]],
        compared: Tensor,
        cached: Tensor,
    ) -> None:
        self._look = look
        self._positions = positions
        self._exact = exact
        self._compared = compared
        self._cached = cached
        self.scores = torch.zeros(len(compared), device=compared.device)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        pool = self._look.pool
        if layer:
            there = pool.layer_rows(layer, self._cached)[1].float()
            self.scores = (values[:, self._compared].float() - there).square().sum((0, 2))
            raise Enough
        n = len(self._positions)
        spans = [ops.Span(0, n, 0, int(self._positions[0]), explicit=self._positions)]
        rows: list[int] = []
        for start, skip, part in self._exact:
            spans.append(ops.Span(n + len(rows), len(part), start - skip, start))
            rows.extend(part)
        known = torch.tensor(rows, dtype=torch.int64, device=keys.device)
        layers = self._look.layers
        known_keys, known_values = pool.layer_rows(0, known)
        prepared = ops.prepare(
            [ops.Rows(0, n, self._positions, spans)],
            layers.kinds[layers.of_layer[0]],
            compute_dtype(self._look.model.dtype),
            keys.dtype,
        )
        return ops.segment_attention(
            queries.transpose(0, 1),
            torch.cat((keys, known_keys), 1),
            torch.cat((values, known_values), 1),
            prepared,
            scale,
        )
