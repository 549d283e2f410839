"""A question to the passages that may answer it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from epicrag.errors import MismatchError
from epicrag.types import Hit

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.embed import Embedder
    from epicrag.index.vectors import VectorIndex

_SETTING = "embedder"


def search(
    catalog: Catalog, vectors: VectorIndex, embedder: Embedder, query: str, *, k: int = 6
) -> list[Hit]:
    """Return the k best passages, best first; of passages with one content, the best one.

    All hits come from one state of the catalog, whoever writes meanwhile.
    """
    vector = embedder.query(query)
    with catalog.snapshot():
        vectors.refresh(save=False)
        asked = k
        while True:
            found = vectors.search(vector, asked)
            hits = _distinct(Hit(row, catalog.chunk(row), score) for row, score in found)
            if len(hits) >= k or len(found) < asked or asked < 1:
                return hits[: max(k, 0)]
            asked *= 2


def check_embedder(catalog: Catalog, embedder: Embedder) -> None:
    """Raise MismatchError unless the index was made with this embedder; an empty index takes it on."""
    mine = {"name": embedder.name, "fingerprint": embedder.fingerprint, "dim": embedder.dim}
    stored = catalog.setting(_SETTING)
    if stored is not None and json.loads(stored) == mine:
        return
    if stored is None or not catalog.counts().vectors:
        catalog.set_setting(_SETTING, json.dumps(mine))
        return
    raise _mismatch(json.loads(stored), mine)


def _mismatch(made: dict[str, object], given: dict[str, object]) -> MismatchError:
    def words(embedder: dict[str, object]) -> str:
        print_ = str(embedder["fingerprint"])[:8]
        return f"{embedder['name']} ({embedder['dim']} numbers, fingerprint {print_})"

    return MismatchError(
        f"the index was made with the embedder {words(made)}, not with {words(given)}",
        f"use the old one with --embed-model {made['name']}, or ingest into a new index with --index",
    )


def _distinct(hits: Iterable[Hit]) -> list[Hit]:
    """Keep the first hit of each content."""
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(hit.chunk.id, hit)
    return list(first.values())
