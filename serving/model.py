"""A causal language model of transformers, run over flat batches with our own attention.

The modeling code is transformers' own. Geometry and what each layer does with positions are read off the loaded
model (`probe.py`), and what reuse cannot be right for is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from epicrag.errors import DeviceError, UsageError
from epicrag.kernels import ops
from epicrag.serving import attention, probe
from epicrag.serving.fingerprint import model_fingerprint
from epicrag.serving.forward import Fast, choose
from epicrag.serving.lean import read_lean
from epicrag.serving.proofs import Proofs
from epicrag.serving.weights import stored_kind

LAYOUT_VERSION = 1
"""Of the KV entries: keys (L, G, T, Dk) and values (L, G, T, Dv), keys rotated to local positions 0, 1, 2 …"""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of all layers: H query heads read G key heads; keys are `head_dim` wide, values `value_dim`."""

    layers: int
    heads: int
    groups: int
    head_dim: int
    value_dim: int


class ServedModel:
    """The loaded weights, and one call: `forward`."""

    def __init__(
        self,
        module: Any,
        fingerprint: str,
        context_window: int,
        folder: Path | None = None,
        proofs: Proofs | None = None,
        seen_before: probe.Seen | None = None,
    ) -> None:
        self.module = module
        self.folder = folder
        self.proofs = proofs or Proofs(None, "")
        self._seen_before = seen_before
        self.fingerprint = fingerprint
        self.context_window = context_window
        parameter = next(module.parameters())
        self.device: torch.device = parameter.device
        self.dtype: torch.dtype = parameter.dtype
        self.eos_ids = _eos_ids(module)
        self.forward_kind = "transformers' modeling code: nothing else was asked for"
        """Which forward pass runs, and where it is not the fast one, why."""
        self._fast: Fast | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        quantize: str = "none",
        cache_folder: Path | None = None,
    ) -> ServedModel:
        """Load a model folder. DeviceError for a missing device or memory, UsageError for a bad folder.

        UsageError, too, for `quantize` "int8" where the model or device cannot be run with it. What has been
        proven to need no transformers is loaded without it.
        """
        if not (folder / "config.json").is_file():
            raise UsageError(
                f"{folder} is no model folder: it has no config.json",
                "name a model of `epicrag models list`, or a folder saved by transformers",
            )
        where = _device(device)
        kind = _dtype(dtype, where, folder)
        try:
            fingerprint = model_fingerprint(folder, cache_folder, quantize)
            proofs = Proofs.of(cache_folder, fingerprint, kind, where)
            seen = _seen_before(proofs, where)
            module: Any = read_lean(folder, kind, where) if seen else None
            if module is None:
                module, seen = _modeling(folder, kind).to(where).eval(), None
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise DeviceError(
                f"{folder.name} does not fit into the memory of {where}",
                "use a smaller model (--model)",
            ) from error
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"{folder} cannot be loaded as a causal language model: {error}",
                "name a model of `epicrag models list`, or a folder saved by transformers",
            ) from error
        model = cls(module, fingerprint, _window(module.config), folder, proofs, seen)
        model._fast, model.forward_kind = choose(model, stored_kind(folder), quantize)
        return model

    @property
    def config(self) -> Any:
        return self.module.config

    @cached_property
    def seen(self) -> probe.Seen:
        """What the model does with positions: read off it, unless that was done before."""
        return self._seen_before or probe.look(self.module, self.context_window)

    def geometry(self) -> Geometry:
        """L, H, G, Dk and Dv, as the layers hand them to their attention. RefusedModel as `kinds`."""
        seen = self.seen
        layers = len(seen.layers.of_layer)
        return Geometry(layers, seen.heads, seen.groups, seen.head_dim, seen.value_dim)

    def kinds(self) -> ops.Layers:
        """How each layer turns its keys and what it sees, proven on the model's own keys and masks.

        RefusedModel where reuse cannot be right, saying why.
        """
        return self.seen.layers

    def keys_alone(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """The keys of tokens that see nothing but themselves, as the model turns them, (L, G, T, D) float32."""
        alone = probe.Alone(self.geometry().layers)
        self.forward(ids, torch.tensor(list(positions), device=self.device), alone, [0])
        return torch.stack(alone.keys)

    @torch.inference_mode()
    def forward(
        self, ids: Sequence[int], positions: Tensor, batch: attention.Batch, rows: Sequence[int]
    ) -> Tensor:
        """Run the flat batch once. ids, positions: (T,); returns the logits of `rows`, (len(rows), V).

        Empty where the batch had enough before the last layer. The keys and values that the batch is given
        may be memory that the next layer overwrites.
        """
        try:
            if self._fast is not None:
                return self._fast(ids, positions, batch, rows)
            return self.modeling_logits(ids, positions, batch, rows)
        except attention.Enough:
            return torch.empty(0, device=self.device)

    @torch.inference_mode()
    def modeling_logits(
        self, ids: Sequence[int], positions: Tensor, batch: attention.Batch, rows: Sequence[int]
    ) -> Tensor:
        """`forward` by transformers' modeling code. Passes on what `batch.attend` raises."""
        with self._attention(attention.NAME):
            out = self.module(
                input_ids=torch.tensor([list(ids)], device=self.device),
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=torch.tensor(list(rows), device=self.device),
                **{attention.NAME: batch},
            )
        logits: Tensor = out.logits[0]
        return logits

    @torch.inference_mode()
    def plain_logits(self, ids: Sequence[int], rows: Sequence[int], own: str = "") -> Tensor:
        """Logits by transformers' own attention, nothing of ours: the reference of the self-check.

        `own`: which of transformers' attentions, where it is not to be the one the model was loaded with.
        """
        with self._attention(own or self.config._attn_implementation):
            out = self.module(
                input_ids=torch.tensor([list(ids)], device=self.device),
                use_cache=False,
                logits_to_keep=torch.tensor(list(rows), device=self.device),
            )
        logits: Tensor = out.logits[0]
        return logits

    def _attention(self, name: str) -> _Switched:
        return _Switched(self.config, name)


def _seen_before(proofs: Proofs, device: torch.device) -> probe.Seen | None:
    """What was read off the model when it was proven to need no transformers; None where it was not."""
    try:
        return probe.Seen.unpacked(proofs.text("lean") or "", device)
    except (ValueError, KeyError, TypeError):
        return None


def _modeling(folder: Path, dtype: torch.dtype) -> Any:
    """The model as transformers loads it."""
    from transformers import AutoModelForCausalLM

    attention.register()
    return AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=dtype, local_files_only=True, use_safetensors=True
    )


class _Switched:
    """The model's attention implementation, changed for one call: its own the rest of the time."""

    def __init__(self, config: Any, name: str) -> None:
        self._config = config
        self._name = name
        self._before = ""

    def __enter__(self) -> None:
        self._before = self._config._attn_implementation
        self._config._attn_implementation = self._name

    def __exit__(self, *_: object) -> None:
        self._config._attn_implementation = self._before


def _eos_ids(module: Any) -> frozenset[int]:
    """Every token that ends an answer, from the generation settings and the configuration."""
    found: set[int] = set()
    for settings in (module.generation_config, module.config):
        eos = getattr(settings, "eos_token_id", None)
        found.update([eos] if isinstance(eos, int) else eos or [])
    return frozenset(found)


def _window(config: Any) -> int:
    """Longest prompt with answer that the engine serves, in tokens."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2048)


def _device(name: str) -> torch.device:
    """Resolve `auto`, `cpu`, `cuda`, `cuda:1`. DeviceError when it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"unknown device {name!r}", "use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"the engine does not run on {name!r}", "use auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name} is not there: {torch.cuda.device_count()} CUDA devices found",
            "use --device cpu",
        )
    return device


def _dtype(name: str, device: torch.device, folder: Path) -> torch.dtype:
    """Resolve a dtype; `auto` is float32 on a CPU where it fits, in half of the free memory.

    Units for bfloat16 do not change that: they halve a full prefill, and stitched prompts and decoding gain nothing
    (docs/decisions/0020). Nothing is timed either: KV is kept by the dtype it was computed in, and has to be found again.
    """
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name in named:
        return named[name]
    if name != "auto":
        raise UsageError(f"unknown dtype {name!r}", f"use auto, {', '.join(named)}")
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if _weights_bytes(folder) * 2 > _available_bytes() // 2:
        return torch.bfloat16
    return torch.float32


def _weights_bytes(folder: Path) -> int:
    """Size of the weights on disk, which are 16-bit as a rule: twice that in float32."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _available_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
