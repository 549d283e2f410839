"""The decoder for few rows: weights in fewer bits, and compiled functions around the attention.

A pass of one row waits for memory and for the calls it is made of: so the weights are read in the fewest bits
that are exact, and a layer is eight calls and its attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from epicrag.kernels import native
from epicrag.kernels.native_table import float_bits
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
    attention_norm: tuple[int, int]  # the address of the weight, the bits of eps
    qkv: _Product
    head_norms: tuple[tuple[Tensor, float], tuple[Tensor, float]] | None
    out: _Product
    mlp_norm: tuple[int, int]
    gate_up: _Product
    down: _Product


class NarrowDecoder:
    """`Decoder.forward` for few rows, with the parts' packed weights; `why_not` says for which parts."""

    def __init__(self, parts: Parts) -> None:
        from epicrag.kernels import native_jit, native_linear, native_small

        self._parts = parts
        self._run, self._kernel = native_jit.run, native_linear.product
        self._steps = tuple(native_small.step(name) for name in ("norm", "rope", "gated"))
        self._kept: list[Tensor] = []  # the compiled functions are told addresses
        self._layers = [self._layer(layer) for layer in parts.layers]
        self._norm = self._plain(parts.norm.weight)
        self._head_bias = self._bias(parts.head)

    def forward(self, ids: Tensor, positions: Tensor, batch: Batch, rows: Tensor) -> Tensor:
        """See `Decoder.forward`."""
        parts, run, n = self._parts, self._run, len(ids)
        norm, rope, gate = self._steps
        stream = F.embedding(ids, parts.embedding).float()
        cos, sin = (x[:, 0].float().contiguous() for x in angles(parts, stream, positions))
        width, inner = stream.shape[1], parts.layers[0].down.weight.shape[1]
        turned, heads, dim = (
            parts.heads + parts.groups,
            parts.heads + 2 * parts.groups,
            parts.head_dim,
        )
        qkv = stream.new_empty(n, heads, dim)
        views = torch.split(qkv.transpose(0, 1), [parts.heads, parts.groups, parts.groups])
        normed, more = torch.empty_like(stream), torch.zeros_like(stream)
        both, gated = stream.new_empty(n, 2 * inner), stream.new_empty(n, inner)
        a_normed, a_more, a_qkv, a_both, a_gated = (
            x.data_ptr() for x in (normed, more, qkv, both, gated)
        )
        # What the compiled steps are told (see `kernels.native_steps`), but for what differs from layer to layer.
        added = stream.data_ptr(), width, a_more, width
        to_normed = a_normed, width, n, width
        angle = cos.data_ptr(), sin.data_ptr(), cos.shape[1], 0, 0
        turning = a_qkv, heads * dim, dim, n, turned, *angle
        gating = a_both, 2 * inner, a_both + 4 * inner, 2 * inner, a_gated, inner, n, inner, 0
        is_float32 = parts.dtype == torch.float32
        for layer in self._layers:
            weight, eps = layer.attention_norm
            run(norm, (*added, weight, *to_normed, eps, 0))
            layer.qkv(run, a_normed, n, a_qkv)
            if layer.head_norms is not None:
                self._norm_heads(qkv, *layer.head_norms)
            if layer.rotates:
                run(rope, turning)
            queries, keys, values = (
                views if is_float32 else tuple(view.to(parts.dtype) for view in views)
            )
            mixed = batch.attend(layer.index, queries, keys, values, layer.scale)  # (T, H, D)
            mixed = mixed.float().contiguous()
            layer.out(run, mixed.data_ptr(), n, a_more)
            weight, eps = layer.mlp_norm
            run(norm, (*added, weight, *to_normed, eps, 0))
            layer.gate_up(run, a_normed, n, a_both)
            run(gate, gating, n * inner * 16)
            layer.down(run, a_gated, n, a_more)
        last = stream[rows] + more[rows]
        last = F.rms_norm(last, self._norm.shape, self._norm, parts.norm.eps)
        return native.linear(last, parts.head.packed, None, self._head_bias).to(parts.dtype)

    def _norm_heads(
        self, qkv: Tensor, query: tuple[Tensor, float], key: tuple[Tensor, float]
    ) -> None:
        """Norm each query and each key in qkv (T, H + 2 G, D), in place."""
        heads, groups = self._parts.heads, self._parts.groups
        for row in qkv:
            native.rms_norm(row[:heads], *query, row[:heads])
            native.rms_norm(row[heads : heads + groups], *key, row[heads : heads + groups])

    def _layer(self, layer: Layer) -> _Layer:
        query, key = layer.query_norm, layer.key_norm
        head_norms = None
        if query is not None and key is not None:
            head_norms = (
                (self._plain(query.weight), query.eps),
                (self._plain(key.weight), key.eps),
            )
        return _Layer(
            layer.index,
            layer.scale,
            layer.rotates,
            self._norm_of(layer.attention_norm),
            self._product(layer.qkv),
            head_norms,
            self._product(layer.out),
            self._norm_of(layer.mlp_norm),
            self._product(layer.gate_up),
            self._product(layer.down),
        )

    def _norm_of(self, norm: Norm) -> tuple[int, int]:
        return self._plain(norm.weight).data_ptr(), float_bits(norm.eps)

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
        if not layer.is_silu:
            return f"its activation is {type(layer.activation).__name__}"
    widths = {linear.weight.shape[1] for linear in parts.linears()}
    if any(width % 8 for width in widths):
        return "its layers' widths are no multiples of eight"
    return native.why_not()
