"""A question to the passages that may answer it: by meaning, by words, or by both."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from epicrag.errors import MismatchError
from epicrag.index.duplicates import gathered
from epicrag.index.fuse import Ranking, fuse, shares
from epicrag.index.relevance import JUDGED, USUAL, background_of, by_score, judged, unfit
from epicrag.index.words import query_words
from epicrag.types import Chunk, Found, Hit, Stage

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.embed import Embedder
    from epicrag.index.filters import Filter
    from epicrag.index.vectors import VectorIndex

MODES = ("hybrid", "dense", "words")
WEIGHTS: Mapping[str, float] = {"dense": 1.0, "words": 1.0}
SETTING = "embedder"
"""Of the catalog: the embedder that the vectors are of, as JSON."""
_DEPTH = 50  # passages that each ranking puts forward, at least
_PER_HIT = 4  # and for each hit that is wanted


class Reranker(Protocol):
    """Reads question and passage together: slower, and closer, than comparing two vectors."""

    @property
    def depth(self) -> int:
        """How many passages it reads, at least."""
        ...

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text; a higher one is better."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """What is looked for, and how."""

    query: str
    k: int = 6
    mode: str = "hybrid"
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    filter: Filter | None = None
    reranker: Reranker | None = None
    min_score: float | None = None
    """The cosine that the best passage must have to count as relevant; None: judged by more than that."""

    @property
    def effective_weights(self) -> dict[str, float]:
        """The weights by ranking; those that the mode leaves out have none."""
        if self.mode == "hybrid":
            return dict(self.weights)
        return {name: float(name == self.mode) for name in WEIGHTS}


def find(catalog: Catalog, vectors: VectorIndex, embedder: Embedder, request: Request) -> Found:
    """Return the k best passages, best first, each text once, and whether they speak of the question.

    All come from one state of the catalog, whoever writes meanwhile.
    """
    vector = embedder.query(request.query)
    is_fixed = request.min_score is not None
    background = USUAL if is_fixed else background_of(catalog, vectors, embedder)
    with catalog.snapshot():
        vectors.refresh(save=False)
        search = _Search(catalog, vectors, vector, request)
        hits = search.hits(max(request.k, JUDGED))
        if search.allowed is not None and not search.allowed:
            relevance = unfit()
        elif request.min_score is not None:
            relevance = by_score(hits[: request.k], request.min_score)
        else:
            relevance = judged(catalog, request.query, hits, background)
    return Found(tuple(hits[: max(request.k, 0)]), relevance)


def search(
    catalog: Catalog, vectors: VectorIndex, embedder: Embedder, request: Request
) -> list[Hit]:
    """Return the hits of `find` alone, and do not judge them."""
    vector = embedder.query(request.query)
    with catalog.snapshot():
        vectors.refresh(save=False)
        return _Search(catalog, vectors, vector, request).hits(max(request.k, 0))


def check_embedder(catalog: Catalog, embedder: Embedder) -> None:
    """Raise MismatchError unless the index was made with this embedder; an empty index takes it on."""
    mine = facts_of(embedder)
    stored = catalog.setting(SETTING)
    if stored is not None and json.loads(stored) == mine:
        return
    if stored is None or not catalog.vector_count():
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


class _Search:
    """One search over one state of the catalog."""

    def __init__(
        self,
        catalog: Catalog,
        vectors: VectorIndex,
        vector: NDArray[np.float32],
        request: Request,
    ) -> None:
        self.catalog, self.vectors, self.vector, self.request = catalog, vectors, vector, request
        self.weights = request.effective_weights
        self.terms = query_words(request.query) if self.weights["words"] else []
        self.allowed: AbstractSet[int] | None = (
            request.filter.rows(catalog) if request.filter else None
        )
        self.chunks: dict[int, Chunk] = {}
        self.scores: dict[int, float] = {}

    def hits(self, k: int) -> list[Hit]:
        wanted = max(k, self.request.reranker.depth) if self.request.reranker and k else k
        depth = max(_DEPTH, _PER_HIT * wanted)
        while k:
            rankings = self._rankings(depth)
            hits = gathered(self._candidates(rankings), wanted)
            if len(hits) >= wanted or all(len(found) < depth for found in rankings.values()):
                return self._reranked(hits)[:k]
            depth *= 4
        return []

    def _rankings(self, depth: int) -> dict[str, Ranking]:
        finders: dict[str, Callable[[], Ranking]] = {
            "dense": lambda: self.vectors.search(self.vector, depth, self.allowed),
            "words": lambda: self.catalog.by_words(self.terms, depth, self.allowed),
        }
        return {name: find() for name, find in finders.items() if self.weights[name]}

    def _candidates(self, rankings: Mapping[str, Ranking]) -> Iterator[Hit]:
        """Yield the fused ranking as hits; each names the other documents with its very content."""
        fused = fuse(rankings, shares(rankings, self.weights))
        self.scores.update(rankings.get("dense", ()))
        lacking = [row for row, _ in fused if row not in self.scores]
        if lacking:
            cosines = self.vectors.score_of(self.vector, lacking).tolist()
            self.scores.update(zip(lacking, cosines, strict=True))
        for row, stages in fused:
            chunk = self._chunk(row)
            if self.request.filter is None or self.request.filter.allows(self.catalog, row):
                yield Hit(row, chunk, self.scores[row], stages, self._others(row, chunk))

    def _others(self, row: int, chunk: Chunk) -> tuple[str, ...]:
        """Return the other documents that hold the very same passage, of those that may be found."""
        rows = self.catalog.rows_with(chunk.id)
        paths = {path for other, path in rows if self.allowed is None or other in self.allowed}
        return tuple(sorted(paths - {chunk.document}))

    def _chunk(self, row: int) -> Chunk:
        if row not in self.chunks:
            self.chunks[row] = self.catalog.chunk(row)
        return self.chunks[row]

    def _reranked(self, hits: list[Hit]) -> list[Hit]:
        reranker = self.request.reranker
        if reranker is None or not hits:
            return hits
        scores = reranker.scores(self.request.query, [hit.chunk.model_text for hit in hits])
        order = sorted(range(len(hits)), key=lambda n: -scores[n])
        return [
            replace(hits[n], stages={**hits[n].stages, "rerank": Stage(rank, scores[n])})
            for rank, n in enumerate(order, 1)
        ]
