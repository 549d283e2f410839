"""A fast forward pass for decoders that are built like Llama, over the modeling code's own weights.

transformers' modeling code makes some hundred Python calls a layer; this makes about twenty. It is used only
where its logits equal the modeling code's on a probe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from epicrag.serving.layout import Layer, Parts
from epicrag.serving.weights import Linear

if TYPE_CHECKING:
    from epicrag.serving.attention import Batch


class Decoder:
    """The forward pass over a model's parts."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def forward(self, ids: Tensor, positions: Tensor, batch: Batch, rows: Tensor) -> Tensor:
        """ids, positions: (T,); rows: (n,). Returns the logits of `rows`, (n, V).

        Behind the last layer's attention only `rows` are computed. What `batch.attend` is given are views of
        memory that the next layer overwrites.
        """
        parts = self.parts
        stream = F.embedding(ids, parts.embedding)  # (T, C)
        cos, sin = angles(parts, stream, positions)
        first = parts.layers[0]
        qkv = stream.new_empty(len(stream), len(first.qkv.weight))
        both = stream.new_empty(len(stream), len(first.gate_up.weight))
        for layer in parts.layers:
            _product(layer.attention_norm(stream), layer.qkv, qkv)
            mixed = self._attend(layer, qkv, cos, sin, batch)
            if layer is parts.layers[-1]:
                stream, mixed, both = stream[rows], mixed[rows], both[: len(rows)]
            _add_product(stream, mixed, layer.out)
            _product(layer.mlp_norm(stream), layer.gate_up, both)
            _add_product(stream, _gated(both, layer), layer.down)
        logits = stream.new_empty(len(stream), len(parts.head.weight))
        return _product(parts.norm(stream), parts.head, logits)

    def _attend(self, layer: Layer, qkv: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """Attention of one layer, from qkv (T, (H + 2 G) D), which it turns in place. Returns (T, H D)."""
        heads, groups, dim = self.parts.heads, self.parts.groups, self.parts.head_dim
        every = qkv.view(-1, heads + 2 * groups, dim)
        turning = every[:, : heads + groups]
        if layer.query_norm is not None and layer.key_norm is not None:
            turning[:, :heads] = layer.query_norm(turning[:, :heads])
            turning[:, heads:] = layer.key_norm(turning[:, heads:])
        if layer.rotates:
            _rotate(turning, cos, sin)
        queries, keys, values = torch.split(every.transpose(0, 1), [heads, groups, groups])
        mixed = batch.attend(layer.index, queries, keys, values, layer.scale)
        return mixed.reshape(-1, heads * dim)


def angles(parts: Parts, stream: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The model's own cos and sin, (T, 1, dim / 2): they come twice over, for both halves."""
    cos, sin = parts.rotary(stream[None], positions[None])
    half = cos.shape[-1] // 2
    return cos[0, :, None, :half], sin[0, :, None, :half]


def _product(x: Tensor, linear: Linear, out: Tensor) -> Tensor:
    torch.mm(x, linear.weight.t(), out=out)
    return out if linear.bias is None else out.add_(linear.bias)


def _add_product(stream: Tensor, x: Tensor, linear: Linear) -> None:
    stream.addmm_(x, linear.weight.t())
    if linear.bias is not None:
        stream.add_(linear.bias)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the first entries of x (T, heads, D) in place, half against half. cos, sin: (T, 1, dim / 2)."""
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(turned)


def _gated(both: Tensor, layer: Layer) -> Tensor:
    """both: (T, 2 I), gate beside up. Returns (T, I), which may be the place where the gate stood."""
    gate, up = both.chunk(2, -1)
    if layer.is_silu:
        return F.silu(gate, inplace=True).mul_(up)
    return layer.activation(gate).mul_(up)  # type: ignore[no-any-return]
