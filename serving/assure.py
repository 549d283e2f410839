"""The self-check, in full when this model is new to this machine, and its cheap part from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from epicrag.serving.attention import Causal
from epicrag.serving.lean import share_lean
from epicrag.serving.model import ServedModel
from epicrag.serving.selfcheck import TOLERANCE, check, check_relocation

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine


def assure(engine: Engine) -> None:
    """Raise RefusedModel unless this model may be served. What has passed is remembered; a refusal is not."""
    proofs = engine.model.proofs
    if proofs.holds("reuse"):
        check_relocation(engine, _probe(engine)[:8])
        return
    check(engine)
    proofs.keep("reuse")
    if _is_lean(engine):
        proofs.keep("lean", engine.model.seen.packed())


def _is_lean(engine: Engine) -> bool:
    """Whether the plain modules give what transformers gives, so that they can stand in for it."""
    model = engine.model
    lean = share_lean(model.folder, model.module) if model.folder else None
    if lean is None:
        return False
    ids = _probe(engine)
    last = [len(ids) - 1]
    want = model.plain_logits(ids, last)
    places = torch.arange(len(ids), device=model.device)
    got = ServedModel(lean, model.fingerprint, model.context_window).forward(
        ids, places, Causal(), last
    )
    error = float((got - want).abs().max() / want.float().std().clamp_min(1e-6))
    return error <= TOLERANCE[model.dtype]


def _probe(engine: Engine) -> list[int]:
    """Token ids to compute with: any will do."""
    vocabulary = engine.model.config.get_text_config().vocab_size
    return [(17 + 31 * i) % vocabulary for i in range(48)]
