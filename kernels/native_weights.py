"""Weights in fewer bits than the arithmetic: packed once, widened in registers as they are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

Kind = Literal["float32", "float16", "bfloat16", "int8"]
KINDS: tuple[Kind, ...] = ("float32", "float16", "bfloat16", "int8")

NARROW = 32
"""Rows of x up to which `linear` is faster than torch's float32 product with unpacked weights, measured on AVX2 for
every kind. float16 stays ahead to about 96 rows, int8 to about 48."""

GROUP = 128
"""Columns that share a factor in int8: a unit of rounding that a few large weights cannot coarsen far."""

_FLOAT16_ENDS = 65520
"""From here on a number is rounded to infinity."""

_LANES = 8
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight (n, k) as `linear` reads it."""

    kind: Kind
    n: int
    k: int
    weight: Tensor
    """(n, k or a little more): columns are filled up with zeros to a multiple of eight."""
    scale: Tensor | None = None
    """(n, groups) float32, for int8: the factor of each `group` columns."""
    group: int = 1
    fixed: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """What the compiled product is told about the weight: addresses and sizes."""

    def __post_init__(self) -> None:
        weight, scale = self.weight, self.scale
        columns, pitch = weight.shape[1], weight.stride(0) * weight.element_size()
        factors = (0, 0) if scale is None else (scale.data_ptr(), scale.shape[1])
        fixed = (weight.data_ptr(), pitch, columns, self.group, *factors, self.n)
        object.__setattr__(self, "fixed", fixed)

    @property
    def n_bytes(self) -> int:
        """Bytes that one product reads."""
        scale = 0 if self.scale is None else self.scale.nbytes
        return self.weight.nbytes + scale


def pack(weight: Tensor, kind: Kind, group: int = GROUP) -> Packed:
    """Round a weight (N, K), which may be any float tensor, to the nearest of its kind.

    int8 is symmetric, from -127 to 127, with a factor for each `group` columns (a multiple of 8; at least K: one for
    each row). Raises ValueError on an unknown kind, another shape, or float16 that would overflow.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}: one of {', '.join(KINDS)}")
    if weight.ndim != 2:
        raise ValueError(f"a weight has rows and columns, not the shape {tuple(weight.shape)}")
    n, k = weight.shape
    filled = weight.detach().cpu()
    if k % _LANES:
        filled = pad(filled, (0, -k % _LANES))
    if kind != "int8":
        if kind == "float16" and n and max(map(abs, map(float, filled.aminmax()))) >= _FLOAT16_ENDS:
            raise ValueError("the weight is too large for float16")
        return Packed(kind, n, k, filled.to(_DTYPES[kind]).contiguous())
    if group % _LANES:
        raise ValueError(f"groups of {group} columns: a multiple of {_LANES} is needed")
    group = min(group, filled.shape[1])
    wide = filled.float()
    parts = pad(wide, (0, -wide.shape[1] % group)).reshape(n, -1, group)
    scale = parts.abs().amax(2) / 127
    whole = (parts / scale.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).round()
    bits = whole.flatten(1)[:, : wide.shape[1]].to(torch.int8).contiguous()
    return Packed(kind, n, k, bits, scale.contiguous(), group)


def unpack(packed: Packed) -> Tensor:
    """The weight that the products compute with, (N, K) float32."""
    wide = packed.weight[:, : packed.k].float()
    if packed.scale is None:
        return wide
    return wide * packed.scale.repeat_interleave(packed.group, 1)[:, : packed.k]


def linear(
    x: Tensor, packed: Packed, out: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """`x @ weight.T + bias` with float32 sums. x: (M, K) float32 -> (M, N), written to `out` where given.

    The sums of a row are added in the same order whatever the other rows are. Safe to call from several threads.
    ValueError where shapes, types or layouts do not fit: rows of x and out must be contiguous, bias too.
    """
    n_rows, k = x.shape
    n = packed.n
    if out is None:
        out = x.new_empty(n_rows, n)
    x_pitch, x_step = x.stride()
    out_pitch, out_step = out.stride()
    fits = x.dtype == out.dtype == torch.float32 and k == packed.k and out.shape == (n_rows, n)
    if not fits or (x_step != 1 and k > 1) or (out_step != 1 and n > 1):
        raise ValueError(
            f"x {tuple(x.shape)} {x.dtype} and out {tuple(out.shape)} {out.dtype} do not fit "
            f"a weight ({n}, {packed.k}): float32 with contiguous rows"
        )
    if bias is not None and not (
        bias.shape == (n,) and bias.dtype == torch.float32 and bias.is_contiguous()
    ):
        raise ValueError(f"the bias is {tuple(bias.shape)} {bias.dtype}, not ({n},) float32")
    if k % _LANES:
        x = pad(x, (0, -k % _LANES))
        x_pitch = x.stride(0)
    added = 0 if bias is None else bias.data_ptr()
    given = (x.data_ptr(), x_pitch * 4, n_rows, added, out.data_ptr(), out_pitch * 4)
    run, product = _compiled()
    run(product(packed.kind), packed.fixed + given, n * k * n_rows)
    return out


@cache
def _compiled() -> tuple[Callable[..., None], Callable[[Kind], int]]:
    from epicrag.kernels import native_jit, native_linear

    return native_jit.run, native_linear.product
