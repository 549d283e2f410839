"""One request's walk through the model: the link pass over a stitched prompt, then token after token.

A walk is a row of jobs; `run` does the jobs of any number of requests in one forward pass. `Linked` owns the
request's private rows; whatever happens, `close` gives them back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.kernels import ops
from epicrag.serving.attention import Correction, FlatBatch, Request
from epicrag.serving.compile import compute_dtype, private_spans

if TYPE_CHECKING:
    from epicrag.serving.compose import Layout, Plan, Reused, Segment
    from epicrag.serving.model import ServedModel
    from epicrag.serving.policies import Alpha
    from epicrag.serving.pool import Pool, Run

N_SINK_PROBES = 4
"""The first tokens of a chunk are sinks of their own kind: their change is not that of the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Fix:
    """The correction of one chunk: probes of the link pass, and the pool rows that take their mean changes."""

    probes: tuple[int, ...]
    """Their indices among the plan's positions."""
    places: tuple[int, ...]
    """Their positions in the prompt."""
    locals: tuple[int, ...]
    """Their positions in the chunk."""
    cached: tuple[int, ...]
    """The pool rows that hold them as compiled."""
    weights: tuple[tuple[float, ...], ...]
    """For each row that is filled, what the probes' changes of the keys are weighted by."""
    value_weights: tuple[tuple[float, ...], ...]
    """The same for the values."""
    rows: tuple[int, ...]
    first: int
    """Index of the chunk's first recomputed token: what stands from there to the last probe belongs together,
    since a token between the probes may read rows that their change is added to."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Some tokens of one request, to be computed in one forward pass with those of others."""

    linked: Linked
    tokens: Sequence[int]
    last: int
    """Of how many tokens, from the end, the logits are wanted."""


@dataclass(slots=True, eq=False)
class Linked:
    """A stitched prompt in the pool, ready for its link pass and then any number of tokens."""

    model: ServedModel
    pool: Pool
    layers: ops.Layers
    layout: Layout
    plan: Plan
    shared: list[ops.Span]
    """Spans over pages that other requests may read too."""
    runs: tuple[Run, ...]
    """Private rows: the computed tokens, then the generated ones, then the changes of corrected chunks."""
    rows: Tensor
    """The private rows of tokens, in order: (n_positions + room for generated tokens,)."""
    places: Tensor
    """Their positions."""
    fixes: tuple[Fix, ...] = ()
    used: int = 0
    _link_spans: list[ops.Span] = field(default_factory=list)

    @property
    def n_left(self) -> int:
        """Tokens of the link pass that are not computed yet."""
        return max(0, len(self.plan.positions) - self.used)

    @property
    def is_linked(self) -> bool:
        return not self.n_left

    @property
    def room(self) -> int:
        """How many more tokens can be appended."""
        return len(self.rows) - self.used

    def link_job(self, most: int | None = None, last: int = 1) -> Job:
        """The next piece of the link pass: `most` tokens, fewer or more so that a chunk's probes stay together.

        The last piece asks for the logits of its last `last` tokens.
        """
        low, end = self.used, len(self.plan.positions)
        high = end if most is None else self._cut(low, min(low + max(1, most), end))
        ids = self.layout.by_place
        tokens = [ids[p] for p in self.plan.positions[low:high]]
        return Job(self, tokens, last if high == end else 0)

    def step_job(self, tokens: Sequence[int]) -> Job:
        """Tokens appended to the prompt; logits after each of them."""
        return Job(self, tokens, len(tokens))

    def link(self, last: int = 1) -> Tensor:
        """Compute the plan's positions against the whole prompt; logits of the last `last`, (last, V)."""
        return run([self.link_job(last=last)])[0]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens to the prompt; logits after each of them, (len(tokens), V)."""
        return run([self.step_job(tokens)])[0]

    def close(self) -> None:
        """Give the private rows back. Safe to call again."""
        runs, self.runs = self.runs, ()
        if runs:
            self.pool.release(runs)

    def _cut(self, low: int, high: int) -> int:
        """The last place up to `high` where no chunk's probes are divided, or else the first one after it."""
        groups = [(fix.first, fix.probes[-1] + 1) for fix in self.fixes]
        index = bisect_right(groups, (high,)) - 1
        if index < 0 or not groups[index][0] < high < groups[index][1]:
            return high
        return groups[index][0] if groups[index][0] > low else groups[index][1]

    def request(self, n_tokens: int, low: int) -> Request:
        """The request's part of a flat batch that begins at row `low` of it: its next `n_tokens` tokens."""
        begin, end = self.used, self.used + n_tokens
        own = [*self._computed(begin), *self._now(begin, end)]
        fixes = [fix for fix in self.fixes if begin <= fix.probes[0] < end]
        return Request(
            low,
            low + n_tokens,
            self.rows[begin:end],
            self.places[begin:end],
            [*self.shared, *own],
            self._correction(fixes, low - begin) if fixes else None,
        )

    def _correction(self, fixes: Sequence[Fix], offset: int) -> Correction:
        n_layers, correction = len(self.layers.of_layer), self.plan.correction
        depth = [
            correction.factor(layer, n_layers) if correction else 1.0 for layer in range(n_layers)
        ]
        shrink = correction is not None and correction.shrink
        return _correction(fixes, offset, self.model.device, tuple(depth), shrink)

    def _computed(self, end: int) -> list[ops.Span]:
        """Spans over the private tokens computed so far."""
        n_link = len(self.plan.positions)
        if end <= n_link:
            return private_spans(self.rows[:end], self.places[:end])
        if not self._link_spans and n_link:
            self._link_spans = private_spans(self.rows[:n_link], self.places[:n_link])
        return [*self._link_spans, *self._generated(n_link, end)]

    def _now(self, begin: int, end: int) -> list[ops.Span]:
        """Spans over the tokens that are about to be computed."""
        if begin >= len(self.plan.positions):
            return self._generated(begin, end)
        return private_spans(self.rows[begin:end], self.places[begin:end])

    def _generated(self, begin: int, end: int) -> list[ops.Span]:
        """Spans over tokens behind the prompt, which stand at consecutive positions."""
        spans = private_spans(self.rows[begin:end], self.places[begin:end])
        return [ops.Span(span.start, span.length, 0, span.first) for span in spans]


def run(jobs: Sequence[Job]) -> list[Tensor]:
    """Do jobs of one model in one forward pass. Returns the wanted logits of each, (last, V).

    Every request has moved on when it returns; none has when it raises.
    """
    order = sorted(range(len(jobs)), key=lambda index: len(jobs[index].tokens))
    logits = _run_in_order([jobs[index] for index in order])
    return [rows for _, rows in sorted(zip(order, logits, strict=True), key=lambda pair: pair[0])]


def _run_in_order(jobs: Sequence[Job]) -> list[Tensor]:
    """`run`, for jobs whose smallest stand first: those of few tokens share one call of attention a layer."""
    first = jobs[0].linked
    ids: list[int] = []
    wanted: list[int] = []
    requests = []
    for job in jobs:
        requests.append(job.linked.request(len(job.tokens), len(ids)))
        ids.extend(job.tokens)
        wanted.extend(range(len(ids) - job.last, len(ids)))
    batch = FlatBatch(first.pool, first.layers, requests, compute_dtype(first.model.dtype))
    places = [request.positions for request in requests]
    positions = places[0] if len(places) == 1 else torch.cat(places)
    logits = first.model.forward(ids, positions, batch, wanted or [0])
    out, low = [], 0
    for job in jobs:
        job.linked.used += len(job.tokens)
        out.append(logits[low : low + job.last])
        low += job.last
    return out


def stitch(
    model: ServedModel,
    pool: Pool,
    layers: ops.Layers,
    layout: Layout,
    plan: Plan,
    resident: dict[int, tuple[Run, ...]],
    n_new: int,
) -> Linked:
    """Put a plan into the pool's terms: spans over resident chunks, private rows for the rest.

    `resident`: pool rows of each reused segment, by its index; `n_new`: room for generated tokens. Only
    tables are made, no key or value is touched. DeviceError when the private rows do not fit.
    """
    changes = sorted({(part.segment, part.alpha) for part in plan.reused if part.alpha})
    n_tokens = len(plan.positions) + n_new
    runs = pool.allocate(n_tokens + len(changes))
    try:
        every = torch.cat([torch.arange(run.start, run.start + run.length) for run in runs])
        rows = every[:n_tokens].to(model.device)
        new = torch.arange(layout.end, layout.end + n_new)
        places = torch.cat([torch.tensor(plan.positions, dtype=torch.int64), new]).to(model.device)
        change_of = dict(zip(changes, every[n_tokens:].tolist(), strict=False))
        shared: list[ops.Span] = []
        for part in plan.reused:
            segment = layout.segments[part.segment]
            change = change_of[part.segment, part.alpha] if part.alpha else -1
            shared.extend(_spans(part, segment, resident[part.segment], change))
        fixes = _fixes(layout, plan, resident, change_of)
        return Linked(model, pool, layers, layout, plan, shared, runs, rows, places, fixes)
    except BaseException:
        pool.release(runs)
        raise


def _spans(part: Reused, segment: Segment, runs: tuple[Run, ...], change: int) -> list[ops.Span]:
    """Spans over rows [part.low, part.high) of a segment, its holes left out."""
    out = []
    start = segment.start - segment.skip  # where the first cached row would stand
    holes_at = tuple([hole + segment.skip for hole in part.holes]) if segment.skip else part.holes
    begin, end = part.low + segment.skip, part.high + segment.skip
    local = 0
    for run in runs:
        low, high = max(begin, local), min(end, local + run.length)
        if low < high:
            row = run.start + low - local
            inside = holes_at[bisect_left(holes_at, low) : bisect_left(holes_at, high)]
            holes = torch.tensor([hole - low for hole in inside]) if inside else None
            span = ops.Span(row, high - low, start, start + low, part.bias, None, change, holes)
            out.append(span)
        local += run.length
    return out


def _fixes(
    layout: Layout,
    plan: Plan,
    resident: dict[int, tuple[Run, ...]],
    change_of: dict[tuple[int, Alpha], int],
) -> tuple[Fix, ...]:
    """For each corrected chunk: its probes, and a row of weights for each alpha that it is corrected with."""
    alphas: dict[int, list[Alpha]] = {}
    for index, alpha in change_of:
        alphas.setdefault(index, []).append(alpha)
    fixes = []
    for index, mine in alphas.items():
        segment, again = layout.segments[index], plan.again[index]
        first = bisect_left(plan.positions, segment.start)
        skip = _n_sinks(again)
        local = _shifted(again[skip:], segment.skip)
        share = 1 / len(local)
        fixes.append(
            Fix(
                tuple(range(first + skip, first + len(again))),
                _shifted(local, segment.start - segment.skip),
                local,
                _rows_at(resident[index], local),
                tuple((alpha.keys * share,) * len(local) for alpha in mine),
                tuple((alpha.values * share,) * len(local) for alpha in mine),
                tuple(change_of[index, alpha] for alpha in mine),
                first,
            )
        )
    return tuple(fixes)


def _n_sinks(again: Sequence[int]) -> int:
    """How many of a chunk's recomputed rows, from the first, are no probes: the sinks, or half where all are sinks."""
    sinks = bisect_left(again, N_SINK_PROBES)
    return sinks if sinks < len(again) else len(again) // 2


def _rows_at(runs: Sequence[Run], local: tuple[int, ...]) -> tuple[int, ...]:
    """The pool rows at ascending places of a chunk."""
    if len(runs) == 1:
        return _shifted(local, runs[0].start)
    rows = [row for run in runs for row in range(run.start, run.start + run.length)]
    return tuple([rows[n] for n in local])


def _shifted(places: tuple[int, ...], by: int) -> tuple[int, ...]:
    """Ascending places, moved."""
    first, last = places[0] + by, places[-1] + by
    if last - first + 1 == len(places):
        return tuple(range(first, last + 1))
    return tuple([place + by for place in places])


def _correction(
    fixes: Sequence[Fix],
    offset: int,
    device: torch.device,
    depth: tuple[float, ...],
    shrink: bool,
) -> Correction:
    """The corrections of several chunks as one: their weights stand in one matrix for keys, one for values."""
    n_probes = sum(len(fix.probes) for fix in fixes)
    weights = torch.zeros(2, sum(len(fix.rows) for fix in fixes), n_probes)
    row = column = 0
    for fix in fixes:
        block = torch.tensor((fix.weights, fix.value_weights))
        weights[:, row : row + len(fix.rows), column : column + len(fix.probes)] = block
        row, column = row + len(fix.rows), column + len(fix.probes)

    def table(name: str) -> Tensor:
        found = [value for fix in fixes for value in getattr(fix, name)]
        return torch.tensor(found, device=device)

    return Correction(
        table("probes") + offset,
        table("places"),
        table("cached"),
        table("locals"),
        weights.to(device),
        table("rows"),
        depth,
        shrink,
    )
