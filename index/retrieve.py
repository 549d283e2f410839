"""A question to the passages that may answer it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from epicrag.errors import MismatchError
from epicrag.types import Hit

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.embed import Embedder
    from epicrag.index.vectors import VectorIndex

SETTING = "embedder"
"""Of the catalog: the embedder that the vectors are of, as JSON."""


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
    mine = facts_of(embedder)
    stored = catalog.setting(SETTING)
    if stored is not None and json.loads(stored) == mine:
        return
    if stored is None or not catalog.counts().vectors:
        catalog.set_setting(SETTING, json.dumps(mine))
        return
    raise _mismatch(json.loads(stored), mine)


def facts_of(embedder: Embedder) -> dict[str, object]:
    """What an index remembers of the embedder it was made with."""
    return {"name": embedder.name, "fingerprint": embedder.fingerprint, "dim": embedder.dim}


def _mismatch(made: dict[str, object], given: dict[str, object]) -> MismatchError:
    def words(embedder: dict[str, object]) -> str:
        print_ = str(embedder["fingerprint"])[:8]
        return f"{embedder['name']} ({embedder['dim']} numbers, fingerprint {print_})"

    old, new = (shlex.quote(str(embedder["name"])) for embedder in (made, given))
    return MismatchError(
        f"the index was made with the embedder {words(made)}, not with {words(given)}",
        f"embed it again: epicrag rebuild --embed-only --embed-model {new}; "
        f"or use the old one: --embed-model {old}",
    )


def _distinct(hits: Iterable[Hit]) -> list[Hit]:
    """Keep the first hit of each content."""
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(hit.chunk.id, hit)
    return list(first.values())
