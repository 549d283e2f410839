"""Decoding by transformers alone, with its own attention and cache: for models that reuse is refused for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from epicrag.serving.model import ServedModel


class PlainLinked:
    """Stands where a `Linked` would: tokens in, logits out."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._cache: Any = None
        self._name = ""

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens; logits after the last of them, (1, V)."""
        known = {self._name: self._cache} if self._cache is not None else {}
        out = self._model.module(
            input_ids=torch.tensor([list(tokens)], device=self._model.device),
            use_cache=True,
            logits_to_keep=1,
            **known,
        )
        # The cache's name differs between releases of transformers.
        self._name = "cache" if "cache" in out else "past_key_values"
        self._cache = out[self._name]
        logits: Tensor = out.logits[0]
        return logits
