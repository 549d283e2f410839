"""Which KV is which passage's, derived anew from its text: the tokenizer is read for it, and no weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from epicrag.errors import EpicragError
from epicrag.ingest import own_keys, piece_of

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from epicrag.pipeline import Pipeline
    from epicrag.serving.prompt import Piece

KeyOf = Callable[["Piece"], str]


def unnoted(pipeline: Pipeline, among: AbstractSet[str]) -> dict[int, str]:
    """Return chunk row: key, of passages whose KV is `among` these keys on disk and not what the catalog notes.

    {} also where the model of the index's KV is not the configured one, or not here: then nothing can be derived.
    """
    catalog = pipeline.catalog
    there = pipeline.kv_store.contains
    lacking = [row for row, _, key in catalog.chunk_keys() if not (key and there(key))]
    if not lacking or not among or (key_of := key_maker(pipeline)) is None:
        return {}
    keys = {row: key_of(piece_of(catalog, row)) for row in lacking}
    return {row: key for row, key in keys.items() if key in among}


def key_maker(pipeline: Pipeline) -> KeyOf | None:
    """Return what derives the keys of this index's KV; None where that cannot be known without its model."""
    setting = pipeline.catalog.setting
    if (engine := pipeline.given_engine) is not None:
        return engine.key_of if engine.profile == setting("kv_profile") else None
    profile, mode = setting("kv_cache_profile"), setting("model_compile_mode")
    made = setting("model_fingerprint")
    if not (profile and mode and made) or pipeline.model_fingerprint() != made:
        return None
    return _without_weights(pipeline, profile, mode)


def _without_weights(pipeline: Pipeline, profile: str, mode: str) -> KeyOf | None:
    """As the engine does it. The key of its own entry proves that it is the same."""
    from epicrag.models import Models
    from epicrag.serving.compile import Frame, Recipe, reads_neighbour
    from epicrag.serving.prompt import ChatFormat
    from epicrag.serving.tokenizer import UnitTokenizer

    try:
        folder = Models(pipeline.config).path(pipeline.config.model)
    except EpicragError:
        return None
    tokenizer = UnitTokenizer.load(folder)
    chat = ChatFormat.load(folder, tokenizer)
    bos = tokenizer.template_ids(chat.bos) if chat.bos else ()
    frame = Frame.of(chat, bos[0] if bos else None)
    if Recipe(frame.system, opens=True).key(profile) not in own_keys(pipeline.catalog):
        return None

    def key_of(piece: Piece) -> str:
        behind = piece.before if reads_neighbour(mode) else None
        before = chat.chunk_ids(behind) if behind else None
        return frame.recipe(chat.chunk_ids(piece.text), mode, before, piece.namespace).key(profile)

    return key_of
