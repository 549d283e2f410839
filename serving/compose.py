"""The plan of a prompt, from sizes alone: where each unit starts, what is reused, what is computed.

Touches no tensor. Positions are absolute and contiguous: unit after unit, token after token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from epicrag.serving.policies import Full, Policy
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
        return self.segments[-1].end if self.segments else 0

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(segment.unit.ids for segment in self.segments))


def compose(units: Sequence[Unit], window: int) -> Layout:
    """Place units one after another; whole chunks are dropped from the tail until they fit `window` tokens.

    A chunk is never cut: a cut chunk would be another chunk. The layout may still exceed the window when
    even without chunks the rest does not fit; the caller decides.
    """
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
            unit = replace(unit, ids=unit.ids + unit.tail, tail=())
        segments.append(Segment(unit, start))
        start += len(unit.ids)
    return Layout(tuple(segments), last - keep)


@dataclass(frozen=True, slots=True)
class Reused:
    """Rows [low, high) of a compiled segment, read from the pool at their positions."""

    segment: int
    low: int
    high: int
    bias: float = 0.0
    corrected: bool = False


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
    alpha: float = 0.0


def plan(layout: Layout, policy: Policy, exact: Mapping[int, bool]) -> Plan:
    """Apply a policy. `exact` maps the index of each segment with a cache to whether its cache is exact here.

    Segments that are not in `exact` are computed whole. An exact segment is read whole: computing part of it
    again would give the same numbers.
    """
    positions: list[int] = []
    reused: list[Reused] = []
    counts = {"exact": 0, "stitched": 0, "recomputed": 0, "fresh": 0}
    first_chunk = True
    for index, segment in enumerate(layout.segments):
        if index not in exact:
            positions.extend(range(segment.start, segment.end))
            counts["recomputed" if segment.unit.kind in ("system", "chunk") else "fresh"] += (
                segment.length
            )
            continue
        rows = range(0) if exact[index] else policy.recompute(segment.length)
        damped = policy.damping if segment.unit.kind == "chunk" and not first_chunk else None
        positions.extend(segment.start + row for row in rows)
        reused.extend(_stretches(index, segment.length, rows, policy, damped))
        counts["recomputed"] += len(rows)
        counts["exact" if exact[index] else "stitched"] += segment.length - len(rows)
        first_chunk = first_chunk and segment.unit.kind != "chunk"
    return Plan(tuple(positions), tuple(reused), alpha=policy.correction, **counts)


def _stretches(
    index: int, length: int, rows: range, policy: Policy, damped: object
) -> list[Reused]:
    """Split what stays of a segment into runs of equal treatment. `rows` are its first ones."""
    low = len(rows)
    corrected = bool(policy.correction and low)
    cut = max(low, min(policy.damping.tokens, length)) if damped and policy.damping else low
    bias = -policy.damping.amount if policy.damping else 0.0
    parts = [Reused(index, low, cut, bias, corrected), Reused(index, cut, length, 0.0, corrected)]
    return [part for part in parts if part.high > part.low]


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
