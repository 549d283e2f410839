"""The weights of linear layers as products want them: side by side, exact in 16 bits, or in 8 bits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

QUANTIZE = ("none", "int8")
"""What `quantize` may be; a test holds it equal to the configuration's."""

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
        raise ValueError(
            "of layers that read the same input, some have a bias and others have none"
        )
    return Linear(weight, _side_by_side(biases) if biases else None)


def _data(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.data


def _side_by_side(parameters: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, view in zip(parameters, whole.split([len(p) for p in parameters]), strict=True):
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
