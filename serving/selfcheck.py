"""The check at load: this model through the engine and through plain transformers must agree.

A short probe; what differs beyond tolerance is refused for reuse, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.errors import EpicragError
from epicrag.serving.attention import RefusedModel
from epicrag.serving.compile import Recipe, compile_batch, relocate
from epicrag.serving.compose import Layout, Segment, plan
from epicrag.serving.entry import Entry
from epicrag.serving.link import stitch
from epicrag.serving.policies import Full, LegoLink, Policy
from epicrag.serving.prompt import Unit

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest difference of logits, in units of their standard deviation, unless transformers' own attentions
are further from each other."""

_ROWS = 8
"""Tokens at the end of the probe whose logits are compared."""


def check(engine: Engine) -> None:
    """Raise RefusedModel unless full prefill, identity reuse and relocation are right for this model."""
    vocabulary = engine.model.config.get_text_config().vocab_size
    # A chunk, and what stands before and behind it, each longer than a narrow sliding window. The rule of a
    # wide one was read off the model's own mask (`probe.py`): to cross it here would take seconds.
    windows = [kind.window for kind in engine.layers.kinds if kind.window and kind.window <= 256]
    part = max([8, *windows]) + 8
    ids = [(17 + 31 * i) % vocabulary for i in range(3 * part)]
    layout = _layout(ids, (part, 2 * part))
    try:
        rows = range(len(ids) - _ROWS, len(ids))
        reference = _Reference(engine, ids, engine.model.plain_logits(ids, rows).float())
        reference.check(_logits(engine, layout, Full()), "full prefill")
        # Everything recomputed over stitched pages: pages, masks and merging.
        reference.check(_logits(engine, layout, LegoLink(len(ids))), "recomputed chunks")
        check_relocation(engine, ids[:8])
    except (NotImplementedError, TypeError, RuntimeError, EpicragError) as error:
        raise RefusedModel(f"its self-check failed ({type(error).__name__}: {error})") from error


def _layout(ids: list[int], cuts: tuple[int, int]) -> Layout:
    first, second = cuts
    units = (
        Unit("system", tuple(ids[:first])),
        Unit("chunk", tuple(ids[first:second]), 0),
        Unit("question", tuple(ids[second:])),
    )
    return Layout(tuple(map(Segment, units, (0, first, second))))


def _logits(engine: Engine, layout: Layout, policy: Policy) -> Tensor:
    """Logits of the last tokens under a policy, (_ROWS, V), the chunk compiled behind what it stands behind."""
    reused = {0: True, 1: False} if policy.reuse == "chunks" else {}
    recipes = {i: Recipe(layout.segments[i].unit.ids) for i in reused}
    resident = {}
    try:
        for index, recipe in recipes.items():
            pair = compile_batch(engine.model, engine.pool, engine.layers, [recipe])[0]
            engine.pool.fill(f"check:{index}", Entry(*pair))
            resident[index] = engine.pool.acquire(f"check:{index}")
        cost = plan(layout, policy, reused)
        linked = stitch(engine.model, engine.pool, engine.layers, layout, cost, resident, 1)
        try:
            return linked.link(_ROWS).float()
        finally:
            linked.close()
    finally:
        for index in resident:
            engine.pool.unpin(f"check:{index}")
            engine.pool.drop(f"check:{index}")


def check_relocation(engine: Engine, ids: Sequence[int]) -> None:
    """Tokens compiled alone at 0 and turned to 100 must have the keys, in all layers, that they have there."""
    recipes = [Recipe((token,)) for token in ids]
    pairs = compile_batch(engine.model, engine.pool, engine.layers, recipes)
    at_zero = torch.cat([keys for keys, _ in pairs], dim=2).float()
    moved = relocate(at_zero, 100, engine.layers)
    there = engine.model.keys_alone(ids, [100] * len(ids))
    error = float((moved - there).abs().max() / there.abs().max())
    if not error <= TOLERANCE[engine.model.dtype]:
        raise RefusedModel(f"relocated keys differ from keys computed there by {error:.1%}")


@dataclass(frozen=True, slots=True)
class _Reference:
    """What transformers gives at the end of the probe, and how far it is from itself where that is needed."""

    engine: Engine
    ids: list[int]
    logits: Tensor  # (_ROWS, V)

    def check(self, got: Tensor, what: str) -> None:
        """RefusedModel where `got` (_ROWS, V) differs by more than rounding."""
        tolerance = TOLERANCE[self.engine.model.dtype]
        error = self._distance(got)
        if not error <= tolerance and not error <= min(2 * self._rounding(), 0.5):
            raise RefusedModel(
                f"{what} in the engine differs from transformers by {error:.2g} standard deviations"
            )

    def _distance(self, got: Tensor) -> float:
        """In standard deviations. In 16 bits the middle row counts: rounding moves single rows of a mixture of
        experts, whose tokens it sends elsewhere; what is wrong with masks or rotations moves all of them."""
        errors = (got - self.logits).abs().amax(-1) / self.logits.std(-1).clamp_min(
            1e-6
        )  # (_ROWS,)
        return float(errors.median() if self._narrow else errors.max())

    def _rounding(self) -> float:
        """In 16 bits: the distance between two of transformers' own attentions."""
        model = self.engine.model
        if not self._narrow or model.config._attn_implementation == "eager":
            return 0.0
        rows = range(len(self.ids) - _ROWS, len(self.ids))
        return self._distance(model.plain_logits(self.ids, rows, own="eager").float())

    @property
    def _narrow(self) -> bool:
        return self.engine.model.dtype in (torch.bfloat16, torch.float16)
