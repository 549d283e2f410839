"""The attention function given to transformers, and the flat batch it works on.

A forward pass carries tokens of several requests side by side. For each request the batch knows which rows
of the pool the new keys and values go to and which spans the queries read. The batch travels as a keyword
argument of `forward`; nothing is global but the name under which transformers finds the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


class Enough(Exception):
    """Raised by a batch's `attend` to end a forward pass early: the layers so far were all that was wanted."""


class Batch(Protocol):
    """What the attention function asks of the object under the keyword `epicrag`."""

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """Queries (H, T, Dk), keys (G, T, Dk) and values (G, T, Dv) of all tokens; returns (T, H, Dv).

        All three may be views of memory that the next layer overwrites: clone what is to be kept.
        """
        ...


class Causal:
    """A batch of one text without a past, by torch's own attention: what the engine's is compared with."""

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """See `Batch.attend`."""
        repeat = len(queries) // len(keys)
        keys, values = (x.repeat_interleave(repeat, 0) for x in (keys, values))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(queries, keys, values, is_causal=True, scale=scale).transpose(0, 1)


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
    """transformers' attention signature: query (1, H, T, Dk), key (1, G, T, Dk), value (1, G, T, Dv).

    What else modeling code passes (softcap, sliding window) is in the layer's kind: `probe.py` has read it.
    """
    if epicrag is None:
        raise RefusedModel("its modeling code does not pass keyword arguments to its attention")
    out = epicrag.attend(module.layer_idx, query[0], key[0], value[0], scaling)  # type: ignore[arg-type]
    return out[None], None


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The mean change of some chunks' probe tokens, for their other tokens.

    The change of a probe is taken between what the forward pass computes for it and what the chunk's cache
    holds for it, keys in the un-rotated frame. Weighted sums of the changes go to rows of the pool of their own,
    which the spans over the chunks' other tokens name (`Span.change`). Nothing shared is written.
    """

    probes: Tensor  # (n_probes,) indices into the flat batch
    places: Tensor  # (n_probes,) their positions in the prompt
    cached: Tensor  # (n_probes,) pool rows of the same tokens as compiled
    locals: Tensor  # (n_probes,) their positions in their chunks
    weights: Tensor  # (2, n_rows, n_probes), for keys and for values
    rows: Tensor  # (n_rows,) pool rows that take the sums
    depth: tuple[float, ...]
    """What the weights are multiplied by in each layer."""
    shrink: bool = False
    """Whether a mean is shrunk by what of it is noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request's part of a flat batch: tokens [low, high)."""

    low: int
    high: int
    write: Tensor  # (high - low,) pool rows for the new keys and values
    positions: Tensor  # (high - low,)
    spans: Sequence[ops.Span]
    correction: Correction | None = None


@dataclass(slots=True)
class FlatBatch:
    """Tokens of several requests in one forward pass over one pool."""

    pool: Pool
    layers: ops.Layers
    requests: Sequence[Request]
    dtype: torch.dtype = torch.float32
    """What rotations are worked out in."""
    _prepared: dict[int, ops.Prepared] = field(default_factory=dict)
    _turns: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict)
    _write: Tensor | slice | None = None
    _back_end: ops.BackEnd | None = None
    """The pool's, found out once for all layers."""

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """Write the new keys and values, correct what is to be corrected, then attend. See `Batch.attend`."""
        pool_keys, pool_values = self.pool.keys[layer], self.pool.values[layer]  # (G, R, D)
        kind = self.layers.of_layer[layer]
        rows = self._rows()
        ops.append(keys, values, pool_keys, pool_values, rows, self._back_end)
        for index, request in enumerate(self.requests):
            if request.correction is not None:
                depth = request.correction.depth[layer]
                self._correct(layer, index, request.correction, kind, depth, keys, values)
        if kind not in self._prepared:
            tables = [ops.Rows(r.low, r.high, r.positions, r.spans) for r in self.requests]
            given = tables, self.layers.kinds[kind], self.dtype, queries.dtype
            self._prepared[kind] = ops.prepare(*given)
        queries = queries.transpose(0, 1)  # (T, H, D)
        return ops.segment_attention(
            queries, pool_keys, pool_values, self._prepared[kind], scale, self.pool.rounded(layer)
        )

    def _rows(self) -> Tensor | slice:
        """Pool rows of all tokens of the batch: a slice where they are neighbours, but on a GPU, which would wait."""
        if self._write is None:
            rows = torch.cat([request.write for request in self.requests])
            self._back_end = ops.back_end(self.pool.keys.device)
            if self._back_end == "triton":
                self._write = rows
                return rows
            first, n = int(rows[0]), len(rows)
            neighbours = torch.equal(rows, torch.arange(first, first + n, device=rows.device))
            self._write = slice(first, first + n) if neighbours else rows
        return self._write

    def _correct(
        self,
        layer: int,
        index: int,
        correction: Correction,
        kind: int,
        depth: float,
        keys: Tensor,
        values: Tensor,
    ) -> None:
        """Fill the rows that hold the changes of a request's chunks, for one layer."""
        c = correction
        rotary = self.layers.kinds[kind].rotary
        if (index, kind) not in self._turns:
            self._turns[index, kind] = (
                *ops.angles(-c.places, rotary, self.dtype),
                *ops.angles(-c.locals, rotary, self.dtype),
            )
        cos, sin, cached_cos, cached_sin = self._turns[index, kind]
        fresh = ops.turn(keys[:, c.probes].to(self.dtype), cos, sin, rotary)  # (G, n, D)
        cached_keys, cached_values = self.pool.layer_rows(layer, c.cached)
        old = ops.turn(cached_keys.to(self.dtype), cached_cos, cached_sin, rotary)
        weights = c.weights.to(self.dtype) * depth
        pool_keys, pool_values = self.pool.keys[layer], self.pool.values[layer]
        pool_keys[:, c.rows] = _mean(weights[0], fresh - old, c.shrink).to(pool_keys.dtype)
        moved = (values[:, c.probes] - cached_values).to(self.dtype)
        pool_values[:, c.rows] = _mean(weights[1], moved, c.shrink).to(pool_values.dtype)


def _mean(weights: Tensor, changes: Tensor, shrink: bool) -> Tensor:
    """Weighted sums (G, n_rows, D) of changes (G, n_probes, D), by weights (n_rows, n_probes), alike in a row.

    Shrunk, a mean m of n changes is multiplied by `1 - var(m) / m^2`, over all groups and entries: with James
    and Stein, the share of it that the changes have in common. A mean of one change cannot be judged and is kept.
    """
    sums = weights @ changes
    if not shrink:
        return sums
    n = (weights != 0).sum(1)
    alike = (weights != 0).to(changes.dtype) / n.clamp_min(1)[:, None]
    mean = alike @ changes
    spread = (alike @ changes.square() - mean.square()).sum((0, 2)) / (n - 1).clamp_min(1)
    share = 1 - spread / mean.square().sum((0, 2)).clamp_min(1e-30)
    return sums * share.clamp(0, 1)[None, :, None]
