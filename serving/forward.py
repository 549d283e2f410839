"""Which forward pass a model gets: a fast one that is proven at load, or transformers' modeling code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.errors import UsageError
from epicrag.kernels import ops
from epicrag.serving import layout
from epicrag.serving.attention import Causal
from epicrag.serving.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epicrag.serving.attention import Batch
    from epicrag.serving.model import ServedModel
    from epicrag.serving.narrow import NarrowDecoder

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest difference of logits, in units of their standard deviation."""


@dataclass(frozen=True, slots=True)
class Fast:
    """The decoders of a model that is known: one for many rows, and where it can be one for few."""

    wide: Decoder
    narrow: NarrowDecoder | None
    most: int
    """Rows up to which the narrow one is faster."""

    def __call__(
        self, ids: Sequence[int], positions: Tensor, batch: Batch, rows: Sequence[int]
    ) -> Tensor:
        """As `ServedModel.forward`."""
        decoder = self.narrow if self.narrow is not None and len(ids) <= self.most else self.wide
        device = positions.device
        given = torch.tensor(ids, device=device), positions, batch
        return decoder.forward(*given, torch.tensor(rows, dtype=torch.int64, device=device))


def choose(model: ServedModel, stored: str, quantize: str) -> tuple[Fast | None, str]:
    """The fast pass and what it is called, or None and the reason.

    `stored`: in which type the checkpoint's weights are exact. With `quantize` the module's own weights become
    what their rounded form stands for. UsageError where that would be of no use.
    """
    if quantize == "none" and ops.wish() == "reference":
        return None, f"transformers' modeling code: asked for by {ops.WISH}"
    try:
        fast, kind = _fast(model, stored, quantize)
        if not model.proofs.holds(kind):
            with torch.inference_mode():
                _prove(model, fast)
            model.proofs.keep(kind)
    except (layout.UnknownLayoutError, RuntimeError, TypeError) as error:
        if quantize != "none":
            raise UsageError(
                f"quantize is {quantize!r}, which this model cannot be run with: {error}",
                'leave it out, or set it to "none"',
            ) from error
        return None, f"transformers' modeling code: {error}"
    return fast, kind


def _fast(model: ServedModel, stored: str, quantize: str) -> tuple[Fast, str]:
    from epicrag.kernels import native
    from epicrag.serving import narrow, weights

    if model.device.type != "cpu":
        raise layout.UnknownLayoutError(f"the fast decoder is the CPU's, not {model.device.type}'s")
    parts = layout.take_apart(model.module)
    if quantize != "none":
        weights.quantise(parts, model.module)
    wide = Decoder(parts)
    lacking = narrow.why_not(parts)
    if lacking:
        return Fast(wide, None, 0), f"fast decoder, few rows as many ({lacking})"
    kind = weights.pack(parts, stored)
    return Fast(wide, narrow.NarrowDecoder(parts), native.NARROW), f"fast decoder, {kind} weights"


def _prove(model: ServedModel, fast: Fast) -> None:
    """Raise UnknownLayoutError unless the modeling code and the decoders agree, each on its own."""
    vocabulary = fast.wide.parts.embedding.shape[0]
    ids = [(7 + 31 * i) % vocabulary for i in range(11)]
    last = min(300, model.context_window - 1)
    places = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, last]
    given = torch.tensor(places, device=model.device)
    want = model.modeling_logits(ids, given, Causal(), range(len(ids))).float()
    rows = torch.arange(len(ids), device=model.device)
    for name, decoder in (("many", fast.wide), ("few", fast.narrow)):
        if decoder is None:
            continue
        got = decoder.forward(torch.tensor(ids, device=model.device), given, Causal(), rows)
        error = float((got.float() - want).abs().max() / want.std().clamp_min(1e-6))
        if not error <= _TOLERANCE[model.dtype]:
            raise layout.UnknownLayoutError(
                f"for {name} rows the decoder's logits are {error:.2g} standard deviations off"
            )
