"""The attention function given to transformers, and the flat batch it works on.

A forward pass carries tokens of several requests side by side. For each request the batch knows which rows
of the pool the new keys and values go to and which spans the queries read. The batch travels as a keyword
argument of `forward`; nothing is global but the name under which transformers finds the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from epicrag.kernels import ops

if TYPE_CHECKING:
    from epicrag.serving.pool import Pool

NAME = "epicrag"
"""The attention implementation's name in transformers, and the keyword its batch travels under."""


class RefusedModel(Exception):
    """Reuse would not be right for this model; the message says why."""


class Batch(Protocol):
    """What the attention function asks of the object under the keyword `epicrag`."""

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """Queries (H, T, D), keys and values (G, T, D) of all tokens; returns (T, H, D)."""
        ...


def register() -> None:
    """Make the attention function known to transformers. Safe to call again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """The batch knows what each token sees; no mask is ever built."""


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    epicrag: Batch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query (1, H, T, D), key and value (1, G, T, D)."""
    if epicrag is None:
        raise RefusedModel("its modeling code does not pass keyword arguments to its attention")
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise RefusedModel(f"its attention needs {name!r}, which the engine does not have")
    out = epicrag.attend(module.layer_idx, query[0], key[0], value[0], scaling)  # type: ignore[arg-type]
    return out[None], None


@dataclass(frozen=True, slots=True)
class Copied:
    """Rows of a chunk whose keys the request reads from a corrected private copy."""

    source: int
    target: int
    length: int
    cos: Tensor  # (length, dim / 2): the rotation to each row's local position
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Correction:
    """The mean change of one chunk's probe tokens, times alpha, for its other tokens.

    The change is taken between what the forward pass computes for the probes and what the chunk's cache holds
    for them, keys in the un-rotated frame. Other tokens get it added: their keys as a private copy, their
    values as a constant added where the span is read.
    """

    alpha: float
    probes: Tensor  # indices into the flat batch
    cached: Tensor  # pool rows of the same tokens as compiled
    cos: Tensor  # (n_probes, dim / 2): the rotation back from the prompt position to 0
    sin: Tensor
    cached_cos: Tensor  # the rotation back from the local position to 0
    cached_sin: Tensor
    copies: tuple[Copied, ...]
    spans: tuple[int, ...]  # indices of the spans that read the copies


@dataclass(frozen=True, slots=True)
class Request:
    """One request's part of a flat batch: tokens [low, high)."""

    low: int
    high: int
    write: Tensor  # (high - low,) pool rows for the new keys and values
    prepared: ops.Prepared
    corrections: tuple[Correction, ...] = ()
    shifts: Tensor | None = None
    """(L, n_spans or more, G, D), added to the values of each span: filled by `corrections`, kept for decoding."""


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Tokens of several requests in one forward pass over one pool."""

    pool: Pool
    rotary: ops.Rotary
    requests: Sequence[Request]

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """Write the new keys and values, then attend request by request. See `Batch.attend`."""
        pool_keys, pool_values = self.pool.keys[layer], self.pool.values[layer]  # (G, R, D)
        queries = queries.transpose(0, 1)  # (T, H, D)
        parts = []
        for request in self.requests:
            rows = slice(request.low, request.high)
            pool_keys[:, request.write] = keys[:, rows]
            pool_values[:, request.write] = values[:, rows]
            shifts = None if request.shifts is None else request.shifts[layer]
            for correction in request.corrections:
                assert shifts is not None
                self._correct(correction, pool_keys, pool_values, keys, values, shifts)
            parts.append(
                ops.segment_attention(
                    queries[rows], pool_keys, pool_values, request.prepared, scale, shifts
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _correct(
        self,
        correction: Correction,
        pool_keys: Tensor,
        pool_values: Tensor,
        keys: Tensor,
        values: Tensor,
        shifts: Tensor,
    ) -> None:
        """Fill the corrected copies of one chunk's keys, and its rows of `shifts` (n_spans, G, D)."""
        c = correction
        wide = c.cos.dtype
        fresh = ops.turn(keys[:, c.probes].to(wide), c.cos, c.sin, self.rotary)  # (G, n, D)
        old = ops.turn(pool_keys[:, c.cached].to(wide), c.cached_cos, c.cached_sin, self.rotary)
        change = (fresh - old).mean(1, keepdim=True) * c.alpha  # (G, 1, D)
        for copy in c.copies:
            source = pool_keys[:, copy.source : copy.source + copy.length]
            target = pool_keys[:, copy.target : copy.target + copy.length]
            ops.add_turned(source, change, copy.cos, copy.sin, self.rotary, out=target)
        moved = (values[:, c.probes] - pool_values[:, c.cached]).mean(1) * c.alpha  # (G, D)
        for span in c.spans:
            shifts[span] = moved
