"""The check at load: this model through the engine and through plain transformers must agree.

A short probe; what differs beyond tolerance is refused for reuse, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from epicrag.errors import EpicragError
from epicrag.kernels import ops
from epicrag.serving.attention import RefusedModel
from epicrag.serving.compile import Recipe, compile_batch, relocate
from epicrag.serving.compose import Layout, Segment, plan
from epicrag.serving.link import stitch
from epicrag.serving.policies import Full, LegoLink, Policy
from epicrag.serving.prompt import Unit

if TYPE_CHECKING:
    from torch import Tensor

    from epicrag.serving.engine import Engine

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest difference of logits, in units of their standard deviation."""


def check(engine: Engine) -> None:
    """Raise RefusedModel unless full prefill, identity reuse and relocation are right for this model."""
    vocabulary = engine.model.config.get_text_config().vocab_size
    ids = [(17 + 31 * i) % vocabulary for i in range(48)]
    layout = _layout(ids, (16, 32))
    try:
        want = engine.model.plain_logits(ids, [len(ids) - 1])[0].float()
        _agree(_logits(engine, layout, Full()), want, engine, "full prefill")
        # Everything recomputed over stitched pages: pages, masks and merging.
        _agree(_logits(engine, layout, LegoLink(32)), want, engine, "recomputed chunks")
        _check_relocation(engine, tuple(ids[16:32]))
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
    """Logits of the last token under a policy, the chunk compiled behind what it stands behind."""
    reused = {0: True, 1: False} if policy.reuse == "chunks" else {}
    recipes = {i: Recipe(layout.segments[i].unit.ids) for i in reused}
    resident = {}
    try:
        for index, recipe in recipes.items():
            pair = compile_batch(engine.model, engine.pool, engine.layers, [recipe])[0]
            engine.pool.fill(f"check:{index}", *pair)
            resident[index] = engine.pool.acquire(f"check:{index}")
        cost = plan(layout, policy, reused)
        linked = stitch(engine.model, engine.pool, engine.layers, layout, cost, resident, 1)
        try:
            return linked.link()[0].float()
        finally:
            linked.close()
    finally:
        for index in resident:
            engine.pool.unpin(f"check:{index}")
            engine.pool.drop(f"check:{index}")


def _check_relocation(engine: Engine, ids: tuple[int, ...]) -> None:
    """A chunk compiled at 0 and turned to 100 must equal the same chunk compiled at 100."""
    at_zero, _ = compile_batch(engine.model, engine.pool, engine.layers, [Recipe(ids)])[0]
    moved = relocate(
        at_zero[:1].float(), 100, ops.Layers(engine.layers.kinds, engine.layers.of_layer[:1])
    )[0]
    there = engine.model.layer0_keys(ids, range(100, 100 + len(ids)))
    error = float((moved - there).abs().max() / there.abs().max())
    if error > _TOLERANCE[engine.model.dtype]:
        raise RefusedModel(f"relocated keys differ from keys computed there by {error:.1%}")


def _agree(got: Tensor, want: Tensor, engine: Engine, what: str) -> None:
    error = float((got - want).abs().max() / want.std().clamp_min(1e-6))
    if not error <= _TOLERANCE[engine.model.dtype]:
        raise RefusedModel(
            f"{what} in the engine differs from transformers by {error:.2g} standard deviations"
        )
