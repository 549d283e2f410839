"""The weights of linear layers as products want them: side by side, exact in 16 bits, or in 8 bits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from epicrag.serving.layout import Parts

_STORED = {"F16": "float16", "BF16": "bfloat16"}


@dataclass(slots=True)
class Linear:
    """One linear layer, or several that read the same input, as one product."""

    weight: Tensor  # (N, K), the memory of the module's own parameters
    bias: Tensor | None = None  # (N,)
    packed: Any = None
    """The same numbers as `kernels.native` reads them; None where it does not run."""


def fuse(layers: Sequence[Any]) -> Linear:
    """Put the weights of `torch.nn.Linear`s side by side, once: their parameters become views.

    Raises ValueError where some have a bias and others have none.
    """
    if len(layers) == 1:
        return Linear(layers[0].weight.data, _data(layers[0].bias))
    weight = _side_by_side([layer.weight for layer in layers])
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if biases and len(biases) < len(layers):
        raise ValueError("of layers that read the same input, only some have a bias")
    return Linear(weight, _side_by_side(biases) if biases else None)


def _data(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.data


def _side_by_side(parameters: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, view in zip(
        parameters, torch.split(whole, [len(p) for p in parameters]), strict=True
    ):
        parameter.data = view
    return whole


def stored_kind(folder: Path) -> str:
    """In which of float16, bfloat16 and float32 a checkpoint's weights are exact, by their files' headers."""
    kinds: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
        kinds.update(entry["dtype"] for name, entry in header.items() if name != "__metadata__")
    return _STORED.get(next(iter(kinds)), "float32") if len(kinds) == 1 else "float32"


def quantise(parts: Parts, module: Any) -> None:
    """Round the linear layers' weights to 8 bits; the float weights become what those stand for.

    So wide products, the modeling code and narrow products compute with the same numbers. Embeddings stay: an
    output layer that shares their memory gets memory of its own.
    """
    from torch.nn import Parameter

    from epicrag.kernels import native

    if parts.head.weight.data_ptr() == parts.embedding.data_ptr():
        module.lm_head.weight = Parameter(parts.head.weight.clone(), requires_grad=False)
        parts.head.weight = module.lm_head.weight.data
    for linear in parts.linears():
        linear.packed = native.pack(linear.weight, "int8")
        linear.weight.copy_(native.unpack(linear.packed))


def pack(parts: Parts, stored: str) -> str:
    """Give every linear layer weights in the fewest bits that are exact. Returns which.

    `stored`: in what the checkpoint's weights are exact; the module's own type may be narrower.
    """
    from epicrag.kernels import native

    own = str(parts.dtype).removeprefix("torch.")
    kind: Any = stored if own == "float32" else own
    for linear in parts.linears():
        if linear.packed is not None:
            continue
        n, k = linear.weight.shape
        if kind == own:  # the module's own memory is read, no second copy is made
            linear.packed = native.Packed(kind, n, k, linear.weight)
        else:
            linear.packed = native.pack(linear.weight, kind)
    return str(parts.head.packed.kind)
