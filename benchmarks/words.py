"""Prompts of random words, for benches whose text does not matter, and the model that is configured."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.config import load_config
from epicrag.models import Models

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine
    from epicrag.serving.prompt import Piece

WORDS = [
    "river",
    "stone",
    "market",
    "window",
    "garden",
    "paper",
    "engine",
    "letter",
    "winter",
    "village",
    "bridge",
    "copper",
    "harbour",
    "field",
    "signal",
    "kitchen",
    "mountain",
    "ticket",
    "forest",
    "lantern",
    "theatre",
    "valley",
    "orchard",
    "wheel",
    "station",
    "feather",
]


def configured_model() -> Path:
    """The folder of the model that `epicrag ask` would use here."""
    config = load_config({})
    return Models(config).ensure(config.model)


def random_piece(engine: Engine, n_tokens: int, rng: random.Random) -> Piece:
    """Random words, as near to `n_tokens` tokens as words allow, never above."""
    from epicrag.serving.prompt import Piece

    words = [rng.choice(WORDS) for _ in range(n_tokens)]
    while engine.tokenizer.count(" ".join(words)) > n_tokens:
        words.pop()
    return Piece(" ".join(words))
