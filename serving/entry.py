"""One chunk's keys and values, as they are stored and as they stand in the pool: plain numbers, or 8 bits and scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from epicrag.kernels import ops


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Keys (L, G, T, Dk) and values (L, G, T, Dv); rounded to 8 bits, each row (L, G, T) has a scale."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def is_rounded(self) -> bool:
        return self.key_scales is not None

    @property
    def n_tokens(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """Keys and values, then the scales where there are any."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys, self.values
        return self.keys, self.values, self.key_scales, self.value_scales

    @property
    def scales(self) -> tuple[Tensor, Tensor] | None:
        return None if self.key_scales is None else self.tensors()[2:]  # type: ignore[return-value]

    def cast(self, dtype: torch.dtype) -> Entry:
        """In another type, the numbers themselves; what is rounded stays as it is."""
        if self.is_rounded:
            return self
        return Entry(self.keys.to(dtype), self.values.to(dtype))

    def narrowed(self) -> Entry:
        """The same with scales in sixteen bits, which they came in: what a pool has widened."""
        if self.key_scales is None or self.value_scales is None:
            return self
        scales = (self.key_scales.to(torch.float16), self.value_scales.to(torch.float16))
        return Entry(self.keys, self.values, *scales)


def rounded(keys: Tensor, values: Tensor) -> Entry:
    """Keys and values rounded to 8 bits. ValueError where they cannot be."""
    whole_keys, key_scales = ops.round_rows(keys)
    whole_values, value_scales = ops.round_rows(values)
    return Entry(whole_keys, whole_values, key_scales, value_scales)
