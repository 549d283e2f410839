"""A causal language model of transformers that is built like Llama, taken apart into its weights.

A layout is known by the types of its modules: what is not what it should be is not guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from epicrag.serving.weights import Linear, fuse

_FAMILIES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "phi3": "Phi3",
    "smollm3": "SmolLM3",
}
"""Modeling files of transformers whose layers are known here, and how their classes' names begin."""


class UnknownLayoutError(Exception):
    """The layout is not known; the message says what of it."""


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: attention and MLP, each behind a norm and added to the stream."""

    index: int
    attention_norm: Norm
    qkv: Linear
    query_norm: Norm | None  # over each head
    key_norm: Norm | None
    rotates: bool
    scale: float
    out: Linear
    mlp_norm: Norm
    gate_up: Linear
    activation: nn.Module
    is_silu: bool
    down: Linear


@dataclass(frozen=True, slots=True)
class Parts:
    """A model, taken apart."""

    embedding: Tensor  # (V, C)
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    rotary: nn.Module
    heads: int
    groups: int
    head_dim: int

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def linears(self) -> Iterator[Linear]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
        yield self.head


def take_apart(module: Any) -> Parts:
    """Find the parts of a causal language model. UnknownLayoutError where anything is not as expected.

    The weights of layers that read the same input are put side by side; the module goes on working on the
    same memory.
    """
    look = _look(module)
    look.children(module, "model", "lm_head")
    body = module.model
    look.is_a(body, "Model")
    look.children(body, "embed_tokens", "layers", "norm", "rotary_emb")
    look.is_exactly(body.embed_tokens, nn.Embedding)
    look.is_a(body.rotary_emb, "RotaryEmbedding")
    config = body.config
    for layer in body.layers:
        look.layer(layer)
    first = body.layers[0].self_attn
    groups = config.num_key_value_heads
    layers = tuple(_layer(look, layer) for layer in body.layers[: config.num_hidden_layers])
    return Parts(
        embedding=body.embed_tokens.weight.data,
        layers=layers,
        norm=look.norm(body.norm),
        head=fuse([look.linear(module.lm_head)]),
        rotary=body.rotary_emb,
        heads=groups * first.num_key_value_groups,
        groups=groups,
        head_dim=first.head_dim,
    )


def _look(module: nn.Module) -> _Look:
    files = {f"transformers.models.{f}.modeling_{f}": prefix for f, prefix in _FAMILIES.items()}
    for where, prefix in {**files, "epicrag.serving.lean": "Lean"}.items():
        if (type(module).__module__, type(module).__name__) == (where, f"{prefix}ForCausalLM"):
            return _Look(where, prefix)
    raise UnknownLayoutError(f"{type(module).__name__} is not among the layouts it knows")


@dataclass(frozen=True, slots=True)
class _Look:
    """Checks modules against one modeling file."""

    where: str
    prefix: str

    def is_a(self, module: Any, kind: str) -> None:
        name = self.prefix + kind
        if (type(module).__module__, type(module).__name__) != (self.where, name):
            raise UnknownLayoutError(f"a {type(module).__name__} stands where {name} should")

    def is_exactly(self, module: Any, kind: type) -> None:
        if type(module) is not kind:
            raise UnknownLayoutError(
                f"a {type(module).__name__} stands where {kind.__name__} should"
            )

    def children(self, module: nn.Module, *names: str) -> None:
        found = [name for name, _ in module.named_children()]
        if set(found) != set(names):
            raise UnknownLayoutError(f"{type(module).__name__} consists of {', '.join(found)}")

    def linear(self, module: Any) -> nn.Linear:
        self.is_exactly(module, nn.Linear)
        return module  # type: ignore[no-any-return]

    def norm(self, module: Any) -> Norm:
        self.is_a(module, "RMSNorm")
        return Norm(module.weight.data, module.variance_epsilon)

    def layer(self, layer: Any) -> None:
        self.is_a(layer, "DecoderLayer")
        self.children(
            layer, "self_attn", "mlp", "input_layernorm", "post_attention_layernorm", *_idle(layer)
        )
        self.is_a(layer.self_attn, "Attention")
        self.is_a(layer.mlp, "MLP")
        attention = layer.self_attn
        if hasattr(attention, "qkv_proj"):
            self.children(attention, "qkv_proj", "o_proj")
            self.children(layer.mlp, "gate_up_proj", "down_proj", "activation_fn")
            return
        norms = ("q_norm", "k_norm") if hasattr(attention, "q_norm") else ()
        self.children(attention, "q_proj", "k_proj", "v_proj", "o_proj", *norms)
        self.children(layer.mlp, "gate_proj", "up_proj", "down_proj", "act_fn")


def _idle(layer: nn.Module) -> list[str]:
    """Dropout does nothing where nothing is trained."""
    return [name for name, child in layer.named_children() if type(child) is nn.Dropout]


def _layer(look: _Look, layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    has_fused = hasattr(attention, "qkv_proj")
    qkv = ("qkv_proj",) if has_fused else ("q_proj", "k_proj", "v_proj")
    gate_up = ("gate_up_proj",) if has_fused else ("gate_proj", "up_proj")
    has_norms = hasattr(attention, "q_norm")
    activation = mlp.activation_fn if has_fused else mlp.act_fn
    try:
        return Layer(
            index=attention.layer_idx,
            attention_norm=look.norm(layer.input_layernorm),
            qkv=fuse([look.linear(getattr(attention, name)) for name in qkv]),
            query_norm=look.norm(attention.q_norm) if has_norms else None,
            key_norm=look.norm(attention.k_norm) if has_norms else None,
            rotates=bool(getattr(attention, "use_rope", True)),
            scale=attention.scaling,
            out=fuse([look.linear(attention.o_proj)]),
            mlp_norm=look.norm(layer.post_attention_layernorm),
            gate_up=fuse([look.linear(getattr(mlp, name)) for name in gate_up]),
            activation=activation,
            is_silu=_is_silu(activation),
            down=fuse([look.linear(mlp.down_proj)]),
        )
    except ValueError as error:
        raise UnknownLayoutError(str(error)) from error


def _is_silu(activation: nn.Module) -> bool:
    """Whether it is transformers' SiLU or torch's; transformers need not be imported to tell."""
    kind = type(activation)
    theirs = ("transformers.activations", "SiLUActivation")
    return kind is nn.SiLU or (kind.__module__, kind.__name__) == theirs
