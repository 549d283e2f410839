"""Keys and values in 8 bits: each row (one token of one head) as whole numbers with one scale of its own.

`x = scale * whole`, symmetric, the scale in sixteen bits. A row is rounded once, where it is compiled; from then on
its numbers and its scale are copied as they are, and widened where they are read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MOST = 127
_TINY = 2.0**-24
"""The smallest number of sixteen bits: the scale of rows that are smaller still."""


class Rounded(NamedTuple):
    """The rows of one layer of a pool that are kept in 8 bits.

    They are numbered behind the others: row R + r of a layer with R rows is row r here.
    """

    keys: Tensor  # (G, R, Dk) int8
    values: Tensor  # (G, R, Dv) int8
    key_scales: Tensor  # (G, R) float32
    value_scales: Tensor  # (G, R) float32


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round x (..., D) to whole numbers (..., D) int8 and scales (...) float16. ValueError where x is not finite.

    No entry moves by more than half of its row's scale, which is the largest entry over 127 (and a little more,
    where sixteen bits cannot say that).
    """
    wide = x.float()
    if not bool(wide.isfinite().all()):
        raise ValueError("what is not finite cannot be kept in 8 bits")
    wanted = wide.abs().amax(-1) / MOST
    scales = wanted.to(torch.float16)
    # A scale must not be rounded down: the largest entry would not fit.
    low = scales.float() < wanted
    scales[low] = (scales[low].view(torch.int16) + 1).view(torch.float16)
    if not bool(scales.isfinite().all()):
        raise ValueError("numbers this large cannot be kept in 8 bits")
    divisor = scales.float().clamp_min(_TINY)[..., None]
    return (wide / divisor).round_().to(torch.int8), scales


def widen_rows(whole: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What whole numbers (..., D) and their scales (...) stand for, worked out in float32 and cast once."""
    return whole.float().mul_(scales.float()[..., None]).to(dtype)


def span_keys(keys: Tensor, rounded: Rounded | None, start: int, length: int) -> Tensor:
    """The keys of neighbouring rows of a layer (G, R, Dk), in its own type: a view where they are not rounded."""
    if rounded is None or start < keys.shape[1]:
        return keys[:, start : start + length]
    rows = slice(start - keys.shape[1], start - keys.shape[1] + length)
    return widen_rows(rounded.keys[:, rows], rounded.key_scales[:, rows], keys.dtype)


def span_values(values: Tensor, rounded: Rounded | None, start: int, length: int) -> Tensor:
    """The same for values (G, R, Dv)."""
    if rounded is None or start < values.shape[1]:
        return values[:, start : start + length]
    rows = slice(start - values.shape[1], start - values.shape[1] + length)
    return widen_rows(rounded.values[:, rows], rounded.value_scales[:, rows], values.dtype)
