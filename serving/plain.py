"""Decoding by transformers alone, with its own attention and cache: for models that reuse is refused for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from epicrag.serving.compose import plan
from epicrag.serving.policies import Full
from epicrag.serving.watch import Watch

if TYPE_CHECKING:
    from torch import Tensor

    from epicrag.serving.compose import Layout
    from epicrag.serving.model import ServedModel


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Tokens of one request; the logits of the last of them are wanted."""

    linked: PlainLinked
    tokens: Sequence[int]


class PlainLinked:
    """Stands where a `Linked` would: tokens in, logits out."""

    def __init__(self, model: ServedModel, ids: tuple[int, ...]) -> None:
        self._model = model
        self._ids = ids
        self._cache: Any = None
        self._name = ""

    @property
    def n_left(self) -> int:
        return 0 if self._cache is not None else len(self._ids)

    @property
    def is_linked(self) -> bool:
        return not self.n_left

    def link_job(self, most: int | None = None) -> Job:
        """The whole prompt, however long: transformers' cache takes it in one piece."""
        return Job(self, self._ids)

    def step_job(self, tokens: Sequence[int]) -> Job:
        return Job(self, tokens)

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


def run(jobs: Sequence[Job]) -> list[Tensor]:
    """Do jobs one after another: each request has a cache of its own."""
    return [job.linked.step(job.tokens) for job in jobs]


class PlainPlaced:
    """A prompt that is prefilled in full by transformers: see `answer.Placed`."""

    def __init__(self, model: ServedModel, lay_out: Any) -> None:
        watch = Watch()
        self.layout: Layout = lay_out()
        self.plan = plan(self.layout, Full(), {})
        self.linked = PlainLinked(model, self.layout.ids)
        self.computed = 0
        self.late = (0, 0)
        self.load_ms = self.stitch_ms = 0.0
        self.select_ms = watch.lap()

    def keep(self, generated: list[int]) -> None:
        """Nothing is kept: there is no pool."""

    def close(self) -> None:
        """The cache goes with the object."""
