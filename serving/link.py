"""One request's walk through the model: the link pass over a stitched prompt, then token after token.

`Linked` owns the request's private rows and pins; whatever happens, `close` gives them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.kernels import ops
from epicrag.serving.attention import Copied, Correction, FlatBatch, Request
from epicrag.serving.compile import compute_dtype, private_spans

if TYPE_CHECKING:
    from epicrag.serving.compose import Layout, Plan, Reused
    from epicrag.serving.model import ServedModel
    from epicrag.serving.pool import Pool, Run

N_SINK_PROBES = 4
"""The first tokens of a chunk are sinks of their own kind: their change is not that of the others."""


@dataclass(slots=True)
class Linked:
    """A stitched prompt in the pool, ready for `link` and then any number of `step`s."""

    model: ServedModel
    pool: Pool
    rotary: ops.Rotary
    layout: Layout
    plan: Plan
    shared: list[ops.Span]
    """Spans over pages that other requests may read too."""
    runs: tuple[Run, ...]
    """Private rows: the computed tokens, then the generated ones, then corrected copies of keys."""
    rows: Tensor
    """The private rows of tokens, in order: (n_positions + room for generated tokens,)."""
    places: Tensor
    """Their positions."""
    corrections: tuple[Correction, ...] = ()
    shifts: Tensor | None = None
    used: int = field(default=0)

    def link(self, last: int = 1) -> Tensor:
        """Compute the plan's positions against the whole prompt; logits of the last `last`, (last, V)."""
        ids = self.layout.ids
        positions = self.plan.positions
        tokens = [ids[p] for p in positions]
        return self._forward(tokens, last, self.corrections)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens to the prompt; logits after each of them, (len(tokens), V)."""
        return self._forward(list(tokens), len(tokens), ())

    @property
    def room(self) -> int:
        """How many more tokens `step` can take."""
        return len(self.rows) - self.used

    def close(self) -> None:
        """Give the private rows back. Safe to call again."""
        runs, self.runs = self.runs, ()
        if runs:
            self.pool.release(runs)

    def _forward(self, tokens: list[int], last: int, corrections: tuple[Correction, ...]) -> Tensor:
        low, high = self.used, self.used + len(tokens)
        place = self.places[low:high]
        spans = [*self.shared, *private_spans(self.rows[:high], self.places[:high])]
        prepared = ops.prepare(place, spans, self.rotary, compute_dtype(self.model.dtype))
        request = Request(0, len(tokens), self.rows[low:high], prepared, corrections, self.shifts)
        batch = FlatBatch(self.pool, self.rotary, [request])
        logits = self.model.forward(tokens, place, batch, range(len(tokens) - last, len(tokens)))
        self.used = high
        return logits


def stitch(
    model: ServedModel,
    pool: Pool,
    rotary: ops.Rotary,
    layout: Layout,
    plan: Plan,
    resident: dict[int, tuple[Run, ...]],
    n_new: int,
) -> Linked:
    """Put a plan into the pool's terms: spans over resident chunks, private rows for the rest.

    `resident`: pool rows of each reused segment, by its index; `n_new`: room for generated tokens. Only
    tables are made, no key or value is touched. DeviceError when the private rows do not fit.
    """
    copied = sum(part.high - part.low for part in plan.reused if part.corrected)
    n_tokens = len(plan.positions) + n_new
    runs = pool.allocate(n_tokens + copied)
    device = model.device
    every = torch.cat([torch.arange(run.start, run.start + run.length) for run in runs])
    rows = every[:n_tokens].to(device)
    new = torch.arange(layout.n_tokens, layout.n_tokens + n_new)
    places = torch.cat([torch.tensor(plan.positions, dtype=torch.int64), new]).to(device)
    shared: list[ops.Span] = []
    copies: dict[int, list[tuple[Reused, int, ops.Span]]] = {}
    spare = every[n_tokens:].tolist()
    for part in plan.reused:
        for span, local in _spans(
            part, layout.segments[part.segment].start, resident[part.segment]
        ):
            if not part.corrected:
                shared.append(span)
                continue
            # The copy may cross from one private run to the next: one span for each stretch of rows.
            for source, target, length, skip in _stretches(span, spare):
                moved = ops.Span(target, source, length, span.delta, span.first + skip, span.bias)
                copies.setdefault(part.segment, []).append((part, local + skip, moved))
                shared.append(moved)
    linked = Linked(model, pool, rotary, layout, plan, shared, runs, rows, places)
    if copies:
        _prepare_corrections(linked, copies, resident)
    return linked


def _spans(part: Reused, start: int, runs: tuple[Run, ...]) -> list[tuple[ops.Span, int]]:
    """Spans over rows [part.low, part.high) of a segment that starts at `start`, with their local place."""
    out = []
    local = 0
    for run in runs:
        low, high = max(part.low, local), min(part.high, local + run.length)
        if low < high:
            row = run.start + low - local
            out.append((ops.Span(row, row, high - low, start, start + low, part.bias), low))
        local += run.length
    return out


def _stretches(span: ops.Span, spare: list[int]) -> list[tuple[int, int, int, int]]:
    """Take target rows for a copy from `spare`: (source, target, length, rows done before)."""
    out: list[tuple[int, int, int, int]] = []
    done = 0
    while done < span.length:
        target = spare.pop(0)
        length = 1
        while done + length < span.length and spare and spare[0] == target + length:
            spare.pop(0)
            length += 1
        out.append((span.key_start + done, target, length, done))
        done += length
    return out


def _prepare_corrections(
    linked: Linked,
    copies: dict[int, list[tuple[Reused, int, ops.Span]]],
    resident: dict[int, tuple[Run, ...]],
) -> None:
    """Work out the index tables and rotations of every corrected chunk, once for all layers."""
    device, rotary = linked.model.device, linked.rotary
    dtype = compute_dtype(linked.model.dtype)
    order = {position: index for index, position in enumerate(linked.plan.positions)}
    index_of = {span: index for index, span in enumerate(linked.shared)}
    corrections = []
    for segment, parts in copies.items():
        start = linked.layout.segments[segment].start
        n_recomputed = min(part.low for part, _, _ in parts)
        probes = range(min(N_SINK_PROBES, n_recomputed // 2), n_recomputed)
        local = torch.tensor(list(probes), device=device)
        rows = torch.cat([torch.arange(r.start, r.start + r.length) for r in resident[segment]])
        made = []
        for _, low, span in parts:
            where = torch.arange(low, low + span.length, device=device)
            made.append(
                Copied(
                    span.value_start, span.key_start, span.length, *ops.angles(where, rotary, dtype)
                )
            )
        corrections.append(
            Correction(
                linked.plan.alpha,
                torch.tensor([order[start + row] for row in probes], device=device),
                rows[list(probes)].to(device),
                *ops.angles(-(local + start), rotary, dtype),
                *ops.angles(-local, rotary, dtype),
                tuple(made),
                tuple(index_of[span] for _, _, span in parts),
            )
        )
    linked.corrections = tuple(corrections)
    layers, groups, _, dim = linked.pool.values.shape
    n_spans = len(linked.shared) + len(linked.runs)
    linked.shifts = linked.pool.values.new_zeros((layers, n_spans, groups, dim))
