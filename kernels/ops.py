"""The face of the kernels: one name an operation. It checks shapes, chooses the back end and says which and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epicrag.kernels import cpu, reference
from epicrag.kernels.tables import LayerKind, Layers, Rotary, Rows, Span

__all__ = [
    "Choice",
    "LayerKind",
    "Layers",
    "Prepared",
    "Rotary",
    "Rows",
    "Span",
    "angles",
    "choice",
    "prepare",
    "rotate",
    "segment_attention",
    "turn",
]

angles = reference.angles
rotate = reference.rotate
turn = reference.turn


@dataclass(frozen=True, slots=True)
class Choice:
    """Which back end runs an operation, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What all layers of one kind share about one flat batch's attention."""

    rows: tuple[Rows, ...]
    kind: LayerKind
    wide: tuple[tuple[Rows, cpu.Prepared], ...]
    """Requests that the CPU's back end serves one by one."""


def choice(device: torch.device) -> Choice:
    """Return the back end of `segment_attention` on a device."""
    if device.type == "cpu":
        return Choice(
            "cpu", "torch's blocked attention per span, merged by log-sum-exp, no key copied"
        )
    return Choice("reference", f"plain torch: no kernel of our own for {device.type} yet")


def prepare(rows: Sequence[Rows], kind: LayerKind, dtype: torch.dtype) -> Prepared:
    """Work out once per forward pass what `segment_attention` needs in every layer of a kind.

    `dtype`: what rotations are worked out in.
    """
    wide: tuple[tuple[Rows, cpu.Prepared], ...] = ()
    if rows and choice(rows[0].positions.device).name == "cpu":
        wide = tuple((r, cpu.prepare(r.positions, r.spans, kind, dtype)) for r in rows)
    return Prepared(tuple(rows), kind, wide)


def segment_attention(
    queries: Tensor, keys: Tensor, values: Tensor, prepared: Prepared, scale: float
) -> Tensor:
    """Attend from the tokens of a flat batch to their spans of one layer of the pool.

    queries: (T, H, Dk), rotated at their positions; keys: (G, R, Dk) as compiled, each at its local position;
    values: (G, R, Dv). Each request's queries see what its spans and the layer's kind let them see.
    Returns (T, H, Dv). Raises ValueError on shapes that do not fit.
    """
    if queries.shape[1] % keys.shape[0] or queries.shape[2] != keys.shape[2]:
        raise ValueError(f"queries {tuple(queries.shape)} do not fit keys {tuple(keys.shape)}")
    if len(prepared.wide) == 1 and len(prepared.rows) == 1:
        return cpu.segment_attention(queries, keys, values, prepared.wide[0][1], scale)[0]
    out = queries.new_empty((*queries.shape[:2], values.shape[2]))
    for rows, calls in prepared.wide:
        part, _ = cpu.segment_attention(queries[rows.low : rows.high], keys, values, calls, scale)
        out[rows.low : rows.high] = part
    if not prepared.wide:
        for rows in prepared.rows:
            part, _ = reference.segment_attention(
                queries[rows.low : rows.high],
                rows.positions,
                keys,
                values,
                rows.spans,
                prepared.kind,
                scale,
            )
            out[rows.low : rows.high] = part
    return out
