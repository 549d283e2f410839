"""The plan of a prompt, from sizes alone: where each unit starts, what is reused, what is computed.

Touches no tensor. Positions are absolute: unit after unit, token after token, but where a unit asks for a place
of its own and leaves a gap before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from epicrag.errors import UsageError
from epicrag.serving.policies import Alpha, Correction, Damping, Full, Policy
from epicrag.serving.prompt import Unit


@dataclass(frozen=True, slots=True)
class Segment:
    """One use of a unit in one prompt: positions [start, start + length).

    Of a chunk that is not the prompt's last, `unit.ids` end with its tail; of the last, `unit.tail` is cached and
    not read.
    """

    unit: Unit
    start: int

    @property
    def length(self) -> int:
        return len(self.unit.ids)

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def skip(self) -> int:
        """How many rows are cached in front of it that it does not read."""
        return len(self.unit.head)

    @property
    def cacheable(self) -> bool:
        """Chunks, and the system unit at the very start, can be compiled once and reused."""
        return self.unit.kind == "chunk" or (self.unit.kind == "system" and self.start == 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt's segments in order. `dropped` chunks did not fit the window."""

    segments: tuple[Segment, ...]
    dropped: int = 0

    @property
    def n_tokens(self) -> int:
        return sum(segment.length for segment in self.segments)

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.segments[-1].end if self.segments else 0

    @property
    def solid(self) -> int:
        """Up to which position there is no gap."""
        end = 0
        for segment in self.segments:
            if segment.start != end:
                break
            end = segment.end
        return end

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens in order."""
        return tuple(chain.from_iterable(segment.unit.ids for segment in self.segments))

    @property
    def by_place(self) -> tuple[int, ...]:
        """The token at each position; 0 in a gap, where nothing stands."""
        ids: list[int] = []
        for segment in self.segments:
            ids.extend([0] * (segment.start - len(ids)))
            ids.extend(segment.unit.ids)
        return tuple(ids)


def compose(units: Sequence[Unit], window: int, *, may_drop: bool = True) -> Layout:
    """Place units one after another; whole chunks are dropped from the tail until they fit `window` tokens.

    A chunk is never cut: a cut chunk would be another chunk. The layout may still exceed the window when
    even without chunks the rest does not fit, or none `may_drop`; the caller decides. UsageError: a unit's own
    place is taken by what stands before it.
    """
    if not may_drop:
        return _in_place(units)
    last = max((unit.piece for unit in units), default=-1)
    keep = last
    sizes = sum(len(unit.ids) + len(unit.tail) for unit in units)
    tails = {unit.piece: len(unit.tail) for unit in units if unit.tail}
    while keep >= 0 and sizes - tails.get(keep, 0) > window:
        sizes -= sum(len(unit.ids) + len(unit.tail) for unit in units if unit.piece == keep)
        keep -= 1
    segments = []
    start = 0
    for unit in units:
        if unit.piece > keep:
            continue
        if unit.tail and unit.piece < keep:
            unit = Unit(unit.kind, unit.ids + unit.tail, unit.piece)
        segments.append(Segment(unit, start))
        start += len(unit.ids)
    return Layout(tuple(segments), last - keep)


def _in_place(units: Sequence[Unit]) -> Layout:
    """All units, each at its own place, or behind the one before."""
    segments = []
    start = 0
    for unit in units:
        if unit.place is not None:
            if unit.place < start:
                raise UsageError(
                    f"chunk {unit.piece + 1} cannot stand at offset {unit.place}: what is before it, "
                    f"template and earlier chunks included, reaches up to {start}",
                    f"give it an offset of {start} or more, or none",
                )
            start = unit.place
        segments.append(Segment(unit, start))
        start += len(unit.ids)
    return Layout(tuple(segments))


@dataclass(frozen=True, slots=True)
class Reused:
    """Rows [low, high) of a compiled segment, read from the pool at their positions, without `holes`."""

    segment: int
    low: int
    high: int
    bias: float = 0.0
    alpha: Alpha | None = None
    """How much of the mean change of the segment's probes is added to these rows."""
    holes: tuple[int, ...] = ()
    """Rows between `low` and `high` that are computed again, ascending; neither the first nor the last row."""

    @property
    def corrected(self) -> bool:
        return self.alpha is not None

    @property
    def n_rows(self) -> int:
        """How many rows are read."""
        return self.high - self.low - len(self.holes)


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a layout is read and what is computed.

    `positions` are the tokens of the link pass, ascending. Every position of the prompt is either in
    `positions` or covered by exactly one `reused` stretch.
    """

    positions: tuple[int, ...]
    reused: tuple[Reused, ...]
    exact: int
    stitched: int
    recomputed: int
    fresh: int
    again: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The rows of each stitched segment that are computed again, where there are any."""
    correction: Correction | None = None
    selected: float = 0.0
    """Cost of choosing: tokens of the selection passes, each times the share of the layers it went through."""

    @property
    def context(self) -> int:
        """Tokens of the system prompt and the chunks."""
        return self.exact + self.stitched + self.recomputed

    @property
    def charged(self) -> float:
        """What is computed for the context, over the context: link and selection passes, weighted by layers."""
        return (self.recomputed + self.selected) / self.context if self.context else 0.0


def plan(
    layout: Layout,
    policy: Policy,
    exact: Mapping[int, bool],
    chosen: Mapping[int, Collection[int]] | None = None,
    selected: float = 0.0,
) -> Plan:
    """Apply a policy. `exact` maps the index of each segment with a cache to whether its cache is exact here.

    Segments that are not in `exact` are computed whole. An exact segment is read whole and as it is: computing
    part of it again would give the same numbers, and there is nothing to damp or correct. `chosen` adds rows to
    those that the policy knows from sizes, by segment; `selected` is what choosing them cost (see `Plan`).
    """
    positions: list[int] = []
    reused: list[Reused] = []
    again: dict[int, tuple[int, ...]] = {}
    counts = {"exact": 0, "stitched": 0, "recomputed": 0, "fresh": 0}
    correction, damping = policy.correction, policy.damping
    first_chunk = True
    for index, segment in enumerate(layout.segments):
        context = segment.unit.kind in ("system", "chunk")
        if index not in exact:
            positions.extend(range(segment.start, segment.end))
            counts["recomputed" if context else "fresh"] += segment.length
        elif exact[index]:
            reused.append(Reused(index, 0, segment.length))
            counts["exact"] += segment.length
        else:
            rows = policy.recompute(segment.length)
            if chosen and chosen.get(index):
                rows = sorted({*rows, *chosen[index]})
            again[index] = tuple(rows)
            positions.extend(segment.start + row for row in rows)
            # The first chunk is not damped: its sinks are the prompt's.
            damped = damping if segment.unit.kind == "chunk" and not first_chunk else None
            cuts = _cuts(segment.length, damped, correction if rows else None)
            reused.extend(_stretches(index, segment.length, again[index], cuts))
            counts["recomputed"] += len(rows)
            counts["stitched"] += segment.length - len(rows)
        first_chunk = first_chunk and segment.unit.kind != "chunk"
    return Plan(
        tuple(positions),
        tuple(reused),
        **counts,
        again={index: rows for index, rows in again.items() if rows},
        correction=correction,
        selected=selected,
    )


_Cut = tuple[int, int, float, Alpha | None]
"""Rows [low, high) of a segment with their bias and alpha."""


def _cuts(length: int, damping: Damping | None, correction: Correction | None) -> list[_Cut]:
    """Cut a segment where its treatment changes."""
    pieces: Sequence[tuple[int, int, Alpha | None]] = [(0, length, None)]
    if correction is not None:
        pieces = correction.pieces(length)
    if damping is None:
        return [(low, high, 0.0, alpha) for low, high, alpha in pieces]
    cut = min(damping.tokens, length)
    parts = [(low, min(high, cut), -damping.amount, alpha) for low, high, alpha in pieces]
    parts += [(max(low, cut), high, 0.0, alpha) for low, high, alpha in pieces]
    return [part for part in parts if part[0] < part[1]]


def _stretches(
    index: int, length: int, rows: tuple[int, ...], cuts: Sequence[_Cut]
) -> Iterator[Reused]:
    """What stays of a segment without `rows`, for each cut. A stretch begins and ends with a row it reads."""
    for low, high, bias, alpha in cuts:
        first, last = bisect_left(rows, low), bisect_left(rows, high)
        while first < last and rows[first] == low:
            low, first = low + 1, first + 1
        while first < last and rows[last - 1] == high - 1:
            high, last = high - 1, last - 1
        if low < high:
            yield Reused(index, low, high, bias, alpha, rows[first:last])


def plan_prefix(layout: Layout, length: int) -> Plan:
    """The plan of a prompt whose first `length` tokens are reused exactly and the rest computed."""
    whole = plan(layout, Full(), {})
    context = sum(s.length for s in layout.segments if s.unit.kind in ("system", "chunk"))
    exact = sum(
        max(0, min(s.end, length) - s.start)
        for s in layout.segments
        if s.unit.kind in ("system", "chunk")
    )
    return replace(
        whole, positions=whole.positions[length:], exact=exact, recomputed=context - exact
    )


def skipped(plan: Plan, low: int, high: int) -> Plan:
    """A plan whose positions [low, high), before the first chunk, are read exactly instead of computed."""
    first, last = bisect_left(plan.positions, low), bisect_left(plan.positions, high)
    n = last - first
    return replace(
        plan,
        positions=plan.positions[:first] + plan.positions[last:],
        exact=plan.exact + n,
        fresh=plan.fresh - n,
    )
