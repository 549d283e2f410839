"""The decoder for few rows: weights in fewer bits, and compiled functions around the attention.

A pass of one row waits for memory and for the calls it is made of: so the weights are read in the fewest bits
that are exact, and a layer is eight calls and its attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import SiLUActivation

from epicrag.kernels import native
from epicrag.serving.decoder import angles
from epicrag.serving.layout import Layer, Norm, Parts
from epicrag.serving.weights import Linear

if TYPE_CHECKING:
    from epicrag.serving.attention import Batch


@dataclass(frozen=True, slots=True)
class _Product:
    """One product by a packed weight, by addresses."""

    kernel: int
    weight: tuple[int, ...]
    k: int
    n: int
    bias: int

    def __call__(self, run: Callable[..., None], x: int, n_rows: int, out: int) -> None:
        """x and out: addresses of (T, K) and (T, N)."""
        given = (*self.weight, x, 4 * self.k, n_rows, self.bias, out, 4 * self.n)
        run(self.kernel, given, self.k * self.n * n_rows)


@dataclass(frozen=True, slots=True)
class _Layer:
    index: int
    scale: float
    rotates: bool
    attention_norm: tuple[Any, float]
    qkv: _Product
    heads: tuple[Any, ...]  # what `turn` is told of them
    out: _Product
    mlp_norm: tuple[Any, float]
    gate_up: _Product
    down: _Product


class NarrowDecoder:
    """`Decoder.forward` for few rows, with the parts' packed weights; `why_not` says for which parts."""

    def __init__(self, parts: Parts) -> None:
        from epicrag.kernels import native_jit, native_linear, native_rows

        self._parts = parts
        self._rows, self._run, self._kernel = native_rows, native_jit.run, native_linear.product
        self._kept: list[Tensor] = []  # the compiled functions are told addresses
        self._layers = [self._layer(layer) for layer in parts.layers]
        self._norm = self._plain(parts.norm.weight)
        self._head_bias = self._bias(parts.head)

    def forward(self, ids: Tensor, positions: Tensor, batch: Batch, rows: Tensor) -> Tensor:
        """See `Decoder.forward`."""
        parts, n = self._parts, len(ids)
        add_norm, turn, silu_gate = self._rows.add_norm, self._rows.turn, self._rows.silu_gate
        run = self._run
        stream = F.embedding(ids, parts.embedding).float()
        cos, sin = (x[:, 0].float().contiguous().numpy() for x in angles(parts, stream, positions))
        none = cos[:, :0]
        inner, heads = parts.layers[0].down.weight.shape[1], parts.heads + 2 * parts.groups
        qkv = stream.new_empty(n, heads * parts.head_dim)
        views = qkv.view(n, heads, -1).transpose(0, 1)
        views = views.split((parts.heads, parts.groups, parts.groups))
        normed, more = torch.empty_like(stream), torch.zeros_like(stream)
        both, gated = stream.new_empty(n, 2 * inner), stream.new_empty(n, inner)
        x, x_normed, x_more, x_qkv = (y.numpy() for y in (stream, normed, more, qkv))
        x_both, x_gated = both.numpy(), gated.numpy()
        a_normed, a_more, a_qkv = (y.data_ptr() for y in (normed, more, qkv))
        a_both, a_gated = both.data_ptr(), gated.data_ptr()
        for layer in self._layers:
            add_norm(x, x_more, *layer.attention_norm, x_normed)
            layer.qkv(run, a_normed, n, a_qkv)
            turn(x_qkv, *layer.heads, *((cos, sin) if layer.rotates else (none, none)))
            given = views if parts.dtype == torch.float32 else [v.to(parts.dtype) for v in views]
            mixed = batch.attend(layer.index, *given, layer.scale)  # (T, H, D)
            mixed = mixed.float().contiguous()
            layer.out(run, mixed.data_ptr(), n, a_more)
            add_norm(x, x_more, *layer.mlp_norm, x_normed)
            layer.gate_up(run, a_normed, n, a_both)
            silu_gate(x_both, x_gated)
            layer.down(run, a_gated, n, a_more)
        last = stream[rows] + more[rows]
        last = F.rms_norm(last, self._norm.shape, self._norm, parts.norm.eps)
        return native.linear(last, parts.head.packed, None, self._head_bias).to(parts.dtype)

    def _layer(self, layer: Layer) -> _Layer:
        parts = self._parts
        return _Layer(
            layer.index,
            layer.scale,
            layer.rotates,
            self._norm_of(layer.attention_norm),
            self._product(layer.qkv),
            (
                parts.heads,
                parts.groups,
                parts.head_dim,
                self._norm_of(layer.query_norm)[0],
                *self._norm_of(layer.key_norm),
            ),
            self._product(layer.out),
            self._norm_of(layer.mlp_norm),
            self._product(layer.gate_up),
            self._product(layer.down),
        )

    def _norm_of(self, norm: Norm | None) -> tuple[Any, float]:
        if norm is None:
            return torch.empty(0).numpy(), 0.0
        return self._plain(norm.weight).numpy(), norm.eps

    def _product(self, linear: Linear) -> _Product:
        packed, bias = linear.packed, self._bias(linear)
        address = 0 if bias is None else bias.data_ptr()
        return _Product(self._kernel(packed.kind), packed.fixed, packed.k, packed.n, address)

    def _bias(self, linear: Linear) -> Tensor | None:
        return None if linear.bias is None else self._plain(linear.bias)

    def _plain(self, tensor: Tensor) -> Tensor:
        self._kept.append(tensor.float().contiguous())
        return self._kept[-1]


def why_not(parts: Parts) -> str | None:
    """None where the compiled functions can run these parts, else the reason that they cannot."""
    if parts.embedding.device.type != "cpu":
        return f"the compiled kernels are the CPU's, and the model is on {parts.embedding.device}"
    for layer in parts.layers:
        if not isinstance(layer.activation, SiLUActivation):
            return f"its activation is {type(layer.activation).__name__}"
    widths = {linear.weight.shape[1] for linear in parts.linears()}
    if any(width % 8 for width in widths):
        return "its layers' widths are no multiples of eight"
    return native.why_not()
