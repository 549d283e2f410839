"""Decoders that are built like Llama, as plain torch modules: what transformers has, without its import.

The modules have the names and the arithmetic of transformers' own. They stand in for them only where both have
given the same logits on this machine before (`proofs.py`); whatever a configuration says that is not read here
leaves the model to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_FAMILIES = {
    "llama": ("LlamaForCausalLM", False),
    "mistral": ("MistralForCausalLM", False),
    "qwen2": ("Qwen2ForCausalLM", True),
}
"""Model types, their class in transformers, and whether queries, keys and values have a bias."""

_ABSENT = ("quantization_config", "auto_map", "attention_bias", "mlp_bias", "rope_scaling")
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
_IDLE = {"rope_theta", "rope_type"}


class LeanConfig(SimpleNamespace):
    """A model's configuration, with what the engine asks of transformers' own."""

    def get_text_config(self) -> LeanConfig:
        return self


@dataclass(frozen=True, slots=True)
class LeanOutput:
    logits: Tensor  # (1, n, V)


class LeanForCausalLM(nn.Module):
    """The model. It has no attention of its own: its caller gives one with every call."""

    def __init__(self, config: LeanConfig, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.generation_config = LeanConfig(eos_token_id=None)
        self.model = LeanModel(config, bias)
        self.lm_head = _linear(config.hidden_size, config.vocab_size)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        logits_to_keep: Tensor,
        use_cache: bool = False,
        **attention: Any,
    ) -> LeanOutput:
        """input_ids, position_ids: (1, T). The one other keyword is the object whose `attend` is asked."""
        (batch,) = attention.values()
        states = self.model(input_ids, position_ids, batch)
        return LeanOutput(self.lm_head(states[:, logits_to_keep]))


class LeanModel(nn.Module):
    def __init__(self, config: LeanConfig, bias: bool) -> None:
        super().__init__()
        self.config = config
        sizes = config.vocab_size, config.hidden_size
        self.embed_tokens = nn.Embedding(*sizes, _weight=torch.empty(sizes, device="meta"))
        self.layers = nn.ModuleList(
            LeanDecoderLayer(config, bias, index) for index in range(config.num_hidden_layers)
        )
        self.norm = LeanRMSNorm(config)
        self.rotary_emb = LeanRotaryEmbedding(config)

    def forward(self, input_ids: Tensor, position_ids: Tensor, batch: Any) -> Tensor:
        states = self.embed_tokens(input_ids)
        angles = self.rotary_emb(states, position_ids)
        for layer in self.layers:
            states = layer(states, angles, batch)
        out: Tensor = self.norm(states)
        return out


class LeanDecoderLayer(nn.Module):
    def __init__(self, config: LeanConfig, bias: bool, index: int) -> None:
        super().__init__()
        self.self_attn = LeanAttention(config, bias, index)
        self.mlp = LeanMLP(config)
        self.input_layernorm = LeanRMSNorm(config)
        self.post_attention_layernorm = LeanRMSNorm(config)

    def forward(self, states: Tensor, angles: tuple[Tensor, Tensor], batch: Any) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), angles, batch)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class LeanAttention(nn.Module):
    def __init__(self, config: LeanConfig, bias: bool, index: int) -> None:
        super().__init__()
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        dim, inner = config.hidden_size, config.head_dim
        self.layer_idx = index
        self.head_dim = inner
        self.num_key_value_groups = heads // groups
        self.scaling = inner**-0.5
        self.q_proj = _linear(dim, heads * inner, bias)
        self.k_proj = _linear(dim, groups * inner, bias)
        self.v_proj = _linear(dim, groups * inner, bias)
        self.o_proj = _linear(heads * inner, dim)

    def forward(self, states: Tensor, angles: tuple[Tensor, Tensor], batch: Any) -> Tensor:
        by_head = (*states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(states).view(by_head).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _turned(query, angles), _turned(key, angles)
        mixed = batch.attend(self.layer_idx, query[0], key[0], value[0], self.scaling)
        out: Tensor = self.o_proj(mixed.reshape(*states.shape[:-1], -1))
        return out


class LeanMLP(nn.Module):
    def __init__(self, config: LeanConfig) -> None:
        super().__init__()
        dim, wide = config.hidden_size, config.intermediate_size
        self.gate_proj = _linear(dim, wide)
        self.up_proj = _linear(dim, wide)
        self.down_proj = _linear(wide, dim)
        self.act_fn = nn.SiLU()

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))
        return out


class LeanRMSNorm(nn.Module):
    def __init__(self, config: LeanConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.hidden_size, device="meta"))
        self.variance_epsilon = config.rms_norm_eps

    def forward(self, states: Tensor) -> Tensor:
        wide = states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(states.dtype)


class LeanRotaryEmbedding(nn.Module):
    rope_type = "default"

    def __init__(self, config: LeanConfig) -> None:
        super().__init__()
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
        self.inv_freq = nn.Buffer(1.0 / (config.rope_theta**steps), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def _linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """An `nn.Linear` whose weights come later, without its initialisation: a model's would take seconds."""
    linear = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(linear)
    linear.in_features, linear.out_features = inputs, outputs
    linear.weight = nn.Parameter(torch.empty(outputs, inputs, device="meta"))
    linear.register_parameter(
        "bias", nn.Parameter(torch.empty(outputs, device="meta")) if bias else None
    )
    return linear


def _turned(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (part.unsqueeze(1) for part in angles)
    half = x.shape[-1] // 2
    return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)


def read_lean(folder: Path, dtype: torch.dtype, device: torch.device) -> LeanForCausalLM | None:
    """Load a model folder; None where it is not as plain as these modules."""
    config = lean_config(_read_json(folder / "config.json"))
    files = sorted(folder.glob("*.safetensors"))
    if config is None or not files:
        return None
    module = LeanForCausalLM(config, _FAMILIES[config.model_type][1])
    module.generation_config = LeanConfig(**_read_json(folder / "generation_config.json"))
    weights = {name: tensor.to(device, dtype) for file in files for name, tensor in _tensors(file)}
    if config.tie_word_embeddings or "lm_head.weight" not in weights:
        if not config.tie_word_embeddings:
            return None
        weights["lm_head.weight"] = weights.get("model.embed_tokens.weight", torch.empty(0))
    wanted = {name: parameter.shape for name, parameter in module.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != wanted:
        return None
    module.load_state_dict(weights, assign=True)
    module.model.rotary_emb.to(device)
    return module.requires_grad_(False).eval()


def share_lean(folder: Path, module: nn.Module) -> LeanForCausalLM | None:
    """The same modules around the weights of a model that transformers has loaded from this folder.

    None where they are not as plain, or where transformers has not taken the files as they are.
    """
    config = lean_config(_read_json(folder / "config.json"))
    if config is None:
        return None
    lean, theirs = LeanForCausalLM(config, _FAMILIES[config.model_type][1]), module.state_dict()
    if {n: t.shape for n, t in lean.state_dict().items()} != {
        n: t.shape for n, t in theirs.items()
    }:
        return None
    for path in folder.glob("*.safetensors"):
        for name, tensor in _tensors(path):
            known = theirs.get(name)
            if known is None or not torch.equal(tensor.to(known.device, known.dtype), known):
                return None
    lean.load_state_dict(theirs, assign=True)
    lean.model.rotary_emb.to(next(module.parameters()).device)
    lean.generation_config = LeanConfig(**_read_json(folder / "generation_config.json"))
    return lean.requires_grad_(False).eval()


def lean_config(spec: Mapping[str, Any]) -> LeanConfig | None:
    """Return the configuration, with what is left out by it filled in; None where it is not a plain one."""
    name, _ = _FAMILIES.get(str(spec.get("model_type")), ("", False))
    rope = spec.get("rope_parameters") or {"rope_theta": spec.get("rope_theta")}
    # Mistral's window slides where its configuration is silent.
    sliding = spec.get("sliding_window", name == "MistralForCausalLM")
    sliding = sliding and spec.get("use_sliding_window", True)
    kinds = set(spec.get("layer_types") or ()) - {"full_attention"}
    if (
        spec.get("architectures") != [name]
        or spec.get("hidden_act") != "silu"
        or any(spec.get(absent) for absent in _ABSENT)
        or not all(isinstance(spec.get(size), int) for size in _SIZES)
        or not isinstance(spec.get("rms_norm_eps"), float)
        or not isinstance(rope.get("rope_theta"), int | float)
        or rope.get("rope_type", "default") != "default"
        or set(rope) - _IDLE
        or sliding
        or kinds
    ):
        return None
    heads, groups = spec["num_attention_heads"], spec["num_key_value_heads"]
    inner = spec.get("head_dim") or spec["hidden_size"] // heads
    if heads % groups or inner % 2 or spec["hidden_size"] % heads:
        return None
    filled = {
        "tie_word_embeddings": False,
        "sliding_window": None,
        **spec,
        "head_dim": inner,
        "rope_theta": rope["rope_theta"],
        "_attn_implementation": "sdpa",
    }
    return LeanConfig(**filled)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of a file, each a view of it."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            yield name, file.get_tensor(name)


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
