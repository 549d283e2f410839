"""The face of the kernels: one name an operation. It checks shapes, chooses the back end and says which and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epicrag.kernels import cpu, reference
from epicrag.kernels.tables import Rotary, Span

__all__ = [
    "Choice",
    "Prepared",
    "Rotary",
    "Span",
    "add_turned",
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
    """What all layers of one forward pass share about one request's attention."""

    positions: Tensor  # (S,)
    spans: tuple[Span, ...]
    rotary: Rotary
    calls: cpu.Prepared | None


def add_turned(
    keys: Tensor, change: Tensor, cos: Tensor, sin: Tensor, rotary: Rotary, *, out: Tensor
) -> None:
    """Write `keys + R(n) change` to `out`: one change, turned to the position n of each row.

    keys, out: (G, T, D), which must not overlap; change: (G, 1, D) in the un-rotated frame; cos, sin: (T, dim / 2).
    """
    if keys.device.type == "cpu" and keys.dtype == change.dtype and not rotary.interleaved:
        cpu.add_turned(keys, change, cos, sin, rotary, out)
        return
    reference.add_turned(keys, change, cos, sin, rotary, out)


def choice(device: torch.device) -> Choice:
    """Return the back end of `segment_attention` on a device."""
    if device.type == "cpu":
        return Choice(
            "cpu", "torch's blocked attention per span, merged by log-sum-exp, no key copied"
        )
    return Choice("reference", f"plain torch: no kernel of our own for {device.type} yet")


def prepare(
    positions: Tensor, spans: Sequence[Span], rotary: Rotary, dtype: torch.dtype
) -> Prepared:
    """Work out once per forward pass what `segment_attention` needs in every layer.

    positions: (S,) ascending absolute positions of the queries.
    """
    calls = None
    if choice(positions.device).name == "cpu":
        calls = cpu.prepare(positions, spans, rotary, dtype)
    return Prepared(positions, tuple(spans), rotary, calls)


def segment_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prepared: Prepared,
    scale: float,
    shifts: Tensor | None = None,
) -> Tensor:
    """Attend from the tokens of one request to its spans of one layer of the pool.

    queries: (S, H, D), rotated at their positions; keys, values: (G, R, D), keys as compiled, each at its
    local position; shifts: (n_spans, G, D), added to the values of each span. A query sees exactly the keys
    whose position is at most its own. Returns (S, H, D). Raises ValueError on shapes that do not fit.
    """
    if queries.shape[1] % keys.shape[0] or queries.shape[2] != keys.shape[2]:
        raise ValueError(f"queries {tuple(queries.shape)} do not fit keys {tuple(keys.shape)}")
    if prepared.calls is not None:
        return cpu.segment_attention(queries, keys, values, prepared.calls, scale, shifts)
    out, _ = reference.segment_attention(
        queries, prepared.positions, keys, values, prepared.spans, prepared.rotary, scale, shifts
    )
    return out
