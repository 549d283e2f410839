"""The decoder for few rows: weights in fewer bits, and compiled halves of layers around the attention.

A pass of one row waits for memory and for the calls it is made of; so memory holds the weights in the fewest
bits that are exact, and a layer is two calls and its attention.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
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

Place = tuple[int, ...]
"""A packed weight in numbers: address, pitch, k, group, address of the factors, their number, n, address of the bias."""


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What the compiled functions are told of one layer."""

    index: int
    scale: float
    rotates: bool
    before: tuple[Any, ...]
    behind: tuple[Any, ...]


class NarrowDecoder:
    """`Decoder.forward` for few rows, with the parts' packed weights; `why_not` says for which parts."""

    def __init__(self, parts: Parts) -> None:
        from epicrag.kernels import native_jit, native_layer

        self._parts = parts
        self._before, self._behind = native_layer.before, native_layer.behind
        self._share = native_jit.share
        self._enter: AbstractContextManager[Any] = native_jit.ENTER
        self._kept: list[Tensor] = []  # the compiled functions are told addresses
        self._layers = [self._numbers(layer) for layer in parts.layers]
        self._norm = self._plain(parts.norm.weight)
        self._head_bias = self._bias(parts.head)
        self._tag = native.tag(parts.head.packed.kind)

    def forward(self, ids: Tensor, positions: Tensor, batch: Batch, rows: Tensor) -> Tensor:
        """See `Decoder.forward`."""
        parts, n = self._parts, len(ids)
        heads, groups, dim = parts.heads, parts.groups, parts.head_dim
        stream = F.embedding(ids, parts.embedding).float()
        cos, sin = (x[:, 0].float().contiguous().numpy() for x in angles(parts, stream, positions))
        none = cos[:, :0]
        width, inner = stream.shape[1], parts.layers[0].down.weight.shape[1]
        qkv = stream.new_empty(n, (heads + 2 * groups) * dim)
        space = tuple(stream.new_empty(n, k).numpy() for k in (width, 2 * inner, inner))
        views = qkv.view(n, -1, dim).transpose(0, 1).split((heads, groups, groups))
        x, x_qkv = stream.numpy(), qkv.numpy()
        threads = torch.get_num_threads()
        threads = self._share(threads) if threads > 1 else 1
        for numbers in self._layers:
            turn = (cos, sin) if numbers.rotates else (none, none)
            with self._enter:
                self._before(self._tag, threads, x, *numbers.before, *turn, space[0], x_qkv)
            given = views if parts.dtype == torch.float32 else [v.to(parts.dtype) for v in views]
            mixed = batch.attend(numbers.index, *given, numbers.scale)
            mixed = mixed.float().reshape(n, heads * dim).numpy()
            with self._enter:
                self._behind(self._tag, threads, x, mixed, *numbers.behind, *space)
        last = F.rms_norm(stream[rows], self._norm.shape, self._norm, parts.norm.eps)
        return native.linear(last, parts.head.packed, None, self._head_bias).to(parts.dtype)

    def _numbers(self, layer: Layer) -> _Numbers:
        parts = self._parts
        head_norms = [self._weight(norm) for norm in (layer.query_norm, layer.key_norm)]
        return _Numbers(
            layer.index,
            layer.scale,
            layer.rotates,
            (
                self._weight(layer.attention_norm),
                layer.attention_norm.eps,
                self._place(layer.qkv),
                parts.heads,
                parts.groups,
                parts.head_dim,
                *head_norms,
                layer.query_norm.eps if layer.query_norm else 0.0,
            ),
            (
                self._place(layer.out),
                self._weight(layer.mlp_norm),
                layer.mlp_norm.eps,
                self._place(layer.gate_up),
                self._place(layer.down),
            ),
        )

    def _weight(self, norm: Norm | None) -> Any:
        return self._plain(torch.empty(0) if norm is None else norm.weight).numpy()

    def _place(self, linear: Linear) -> Place:
        bias = self._bias(linear)
        packed = linear.packed
        return (*packed.fixed, packed.n, 0 if bias is None else bias.data_ptr())

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
